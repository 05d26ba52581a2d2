//! `kubectl create`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use serde_json::{Map, Value, json};

use super::arguments::Arguments;
use super::output::Output;
use super::resources::{Object, objects};
use super::session::{Session, refusal};
use super::{Outcome, outcome};

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) async fn create(session: &Session<'_>, args: &Arguments<'_>, input: &str) -> Outcome {
    args.only(&[
        "clusterrole",
        "field-manager",
        "filename",
        "from-literal",
        "group",
        "output",
        "role",
        "serviceaccount",
        "user",
        "validate",
    ])?;
    let words = &args.words[1..];
    if let ["token", account] = words {
        args.only(&[])?;
        return Some(token(session, account).await);
    }
    let output = Output::of(args)?;
    let query = args.query("kubectl-create")?;
    let manifests = if words.is_empty() { args.manifests(input)? } else { vec![generated(args, words)?] };
    let (mut text, mut errors) = (String::new(), Vec::new());
    for object in objects(session, manifests).await {
        let Object { mut target, manifest } = match object {
            Ok(object) => object,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let request = Request::post(format!("{}?{query}", target.collection));
        match session.send(request, "json", &manifest).await {
            Ok(created) => {
                // The server may have chosen the name.
                created["metadata"]["name"].as_str().unwrap_or_default().clone_into(&mut target.name);
                text += &output.about(&target, created, args, "created");
            }
            Err(error) => errors.push(refusal("error when creating \"STDIN\": ", &error)),
        }
    }
    Some(outcome(text, &errors))
}

/// The manifest of a command as `create configmap NAME`.
fn generated(args: &Arguments<'_>, words: &[&str]) -> Option<Value> {
    let object = |api: &str, kind: &str, name: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
    Some(match words {
        ["configmap" | "cm", name] => {
            let mut map = object("v1", "ConfigMap", name);
            let data = literals(args, str::to_owned)?;
            if !data.is_empty() {
                map["data"] = data.into();
            }
            map
        }
        ["secret", "generic", name] => {
            let mut secret = object("v1", "Secret", name);
            secret["type"] = "Opaque".into();
            secret["data"] = literals(args, |value| STANDARD.encode(value))?.into();
            secret
        }
        ["namespace" | "ns", name] => object("v1", "Namespace", name),
        ["serviceaccount" | "sa", name] => object("v1", "ServiceAccount", name),
        ["rolebinding", name] => binding(args, object(&format!("{RBAC}/v1"), "RoleBinding", name))?,
        ["clusterrolebinding", name] => {
            binding(args, object(&format!("{RBAC}/v1"), "ClusterRoleBinding", name))?
        }
        _ => return None,
    })
}

fn literals(args: &Arguments<'_>, value_of: impl Fn(&str) -> String) -> Option<Map<String, Value>> {
    let entries = args.all("from-literal").into_iter().map(|entry| {
        let (key, value) = entry.split_once('=')?;
        Some((key.to_owned(), Value::from(value_of(value))))
    });
    entries.collect()
}

fn binding(args: &Arguments<'_>, mut binding: Value) -> Option<Value> {
    let (kind, role) = match (args.flag("clusterrole"), args.flag("role")) {
        (Some(role), None) => ("ClusterRole", role),
        (None, Some(role)) => ("Role", role),
        _ => return None,
    };
    binding["roleRef"] = json!({"apiGroup": RBAC, "kind": kind, "name": role});
    let mut subjects = Vec::new();
    for account in args.all("serviceaccount") {
        let (namespace, name) = account.split_once(':')?;
        subjects.push(json!({"kind": "ServiceAccount", "namespace": namespace, "name": name}));
    }
    for (flag, kind) in [("user", "User"), ("group", "Group")] {
        let names = args.all(flag).into_iter();
        subjects.extend(names.map(|name| json!({"apiGroup": RBAC, "kind": kind, "name": name})));
    }
    binding["subjects"] = subjects.into();
    Some(binding)
}

async fn token(session: &Session<'_>, account: &str) -> Result<String, String> {
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", session.home());
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"});
    let answer = session.send(Request::post(path), "json", &request).await;
    let answer = answer.map_err(|error| refusal("", &error))?;
    Ok(format!("{}\n", answer["status"]["token"].as_str().unwrap_or_default()))
}

#[test]
fn manifests_are_generated() {
    let generate = |args: &[&str]| {
        let args = Arguments::parse(args).expect("known flags");
        generated(&args, &args.words[1..])
    };
    let secret = generate(&["create", "secret", "generic", "s", "--from-literal=a=b=c"]);
    assert_eq!(secret.expect("a Secret")["data"], json!({"a": "Yj1j"}));
    let binding = generate(&["create", "rolebinding", "b", "--clusterrole=c", "--serviceaccount=n:a"]);
    let binding = binding.expect("a RoleBinding");
    assert_eq!(binding["roleRef"], json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": "c"}));
    assert_eq!(binding["subjects"], json!([{"kind": "ServiceAccount", "namespace": "n", "name": "a"}]));
    assert_eq!(generate(&["create", "service", "clusterip", "s"]), None);
}
