//! Managers in a cluster with RBAC: an account of their own, and one for each package.

use std::path::{Path, PathBuf};

use crate::support::ControlPlane;
use http::Request;
use operetta::rights;
use serde_json::{Value, json};

use super::ext::{CLUSTER_ROLE, LONG, ROLE, SERVICE_ACCOUNT, read};
use super::plans::PLAN_RUN;
use super::{Actor, Operetta, eventually, kubectl, kubectl_of, operetta};

/// The manager's namespace.
pub const SYSTEM: &str = "operetta-system";

const TOKEN_REQUEST: &str = r#"{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}"#;

/// The user name of a `ServiceAccount` of the manager's namespace.
pub fn user(account: &str) -> String {
    rights::user(SYSTEM, account)
}

/// A kubeconfig of a `ServiceAccount`.
pub async fn kubeconfig(plane: &ControlPlane, namespace: &str, account: &str) -> PathBuf {
    let path = format!("{}/token", SERVICE_ACCOUNT.path(Some(namespace), account));
    let request = Request::post(path).header("content-type", "application/json").body(TOKEN_REQUEST.into());
    let client = plane.client().expect("a client");
    let answer = client.request::<Value>(request.expect("a request")).await;
    let answer = answer.unwrap_or_else(|error| panic!("a token of {namespace}/{account}: {error}"));
    let token = answer["status"]["token"].as_str().expect("a token");
    let admin = std::fs::read_to_string(plane.kubeconfig_path()).expect("a kubeconfig");
    let lines = admin.lines().map(|line| match line.split_once("token:") {
        Some((indent, _)) => format!("{indent}token: {token}\n"),
        None => format!("{line}\n"),
    });
    let path = plane.folder().join(format!("{namespace}-{account}.kubeconfig"));
    std::fs::write(&path, lines.collect::<String>()).expect("a kubeconfig");
    path
}

/// A kubeconfig by which an administrator acts as a user, in the group of all users.
pub fn as_user(plane: &ControlPlane, user: &str) -> PathBuf {
    let admin = std::fs::read_to_string(plane.kubeconfig_path()).expect("a kubeconfig");
    let lines = admin.lines().map(|line| match line.split_once("token:") {
        Some((indent, _)) => format!("{line}\n{}as: {user}\n", indent.replace(|c: char| c != ' ', " ")),
        None => format!("{line}\n"),
    });
    let path = plane.folder().join(format!("{user}.kubeconfig"));
    std::fs::write(&path, lines.collect::<String>()).expect("a kubeconfig");
    path
}

/// Applies objects as admin. Returns when the API server's authorizer, which watches them, knows all bindings.
pub async fn apply(plane: &ControlPlane, objects: &[Value]) {
    let client = plane.client().expect("a client");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    match kubectl::run(&client, None, &args, &list).await {
        Some(applied) => drop(applied.unwrap_or_else(|error| panic!("{error}"))),
        None => drop(kubectl_of(plane, &args, &list).await.ok()),
    }
    for binding in objects.iter().filter(|object| object["roleRef"].is_object()) {
        eventually("the authorizer to know a binding", LONG, async || {
            if is_known(&client, binding).await { Ok(()) } else { Err(binding.to_string()) }
        })
        .await;
    }
}

/// Waits until the API server's authorizer, which watches roles and bindings, allows a user this in a namespace, or no longer does.
/// An empty namespace is all of them.
pub async fn decides(
    plane: &ControlPlane,
    user: &str,
    namespace: &str,
    (verb, group, resource): (&str, &str, &str),
    allowed: bool,
) {
    let client = plane.client().expect("a client");
    let about = json!({"namespace": namespace, "verb": verb, "group": group, "resource": resource});
    let spec = json!({"user": user, "resourceAttributes": about});
    eventually(&format!("the authorizer to answer {allowed}"), LONG, async || {
        if allows(&client, &spec).await == allowed { Ok(()) } else { Err(spec.to_string()) }
    })
    .await;
}

/// Whether the first subject of a binding may do what the first rule of its role is about.
async fn is_known(client: &kube::Client, binding: &Value) -> bool {
    let namespace = binding["metadata"]["namespace"].as_str();
    let role = binding["roleRef"]["name"].as_str().expect("a name");
    let role = match binding["roleRef"]["kind"].as_str() {
        Some("Role") => ROLE.path(namespace, role),
        _ => CLUSTER_ROLE.path(None, role),
    };
    // There may be no subject, no role, or none that is aggregated already.
    let role = read(client, &role).await.unwrap_or_default();
    let mut rules = role["rules"].as_array().into_iter().flatten();
    let Some(rule) = rules.find(|rule| rule["resources"][0].is_string()) else { return true };
    let (resource, subresource) = rule["resources"][0]
        .as_str()
        .map_or(("", ""), |resource| resource.split_once('/').unwrap_or((resource, "")));
    let subject = &binding["subjects"][0];
    let Some(name) = subject["name"].as_str() else { return true };
    let mut spec = json!({"resourceAttributes": {
        "namespace": namespace.unwrap_or_default(), "verb": rule["verbs"][0], "group": rule["apiGroups"][0],
        "resource": resource, "subresource": subresource, "name": rule["resourceNames"][0],
    }});
    match subject["kind"].as_str() {
        Some("Group") => spec["groups"] = json!([name]),
        Some("ServiceAccount") => {
            let namespace = subject["namespace"].as_str().expect("a namespace");
            spec["user"] = rights::user(namespace, name).into();
        }
        _ => spec["user"] = name.into(),
    }
    allows(client, &spec).await
}

/// What the authorizer answers now.
async fn allows(client: &kube::Client, spec: &Value) -> bool {
    let review =
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let request = Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes());
    let answer = client.request::<Value>(request.expect("a request")).await;
    answer.unwrap_or_else(|error| panic!("{review}: {error}"))["status"]["allowed"] == true
}

/// A role of a namespace, or of the cluster, with these rules.
pub fn role(namespace: Option<&str>, name: &str, rules: &Value) -> Value {
    let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let mut role =
        json!({"apiVersion": ROLE.api_version(), "kind": kind, "metadata": {"name": name}, "rules": rules});
    if let Some(namespace) = namespace {
        role["metadata"]["namespace"] = namespace.into();
    }
    role
}

/// Binds a role, given by kind and name, to a user in a namespace or in the cluster.
pub fn binding(namespace: Option<&str>, (kind, role): (&str, &str), user: &str) -> Value {
    let name = format!("{role}-{user}");
    let mut binding = json!({
        "apiVersion": ROLE.api_version(), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": ROLE.group(), "kind": kind, "name": role},
        "subjects": [{"apiGroup": ROLE.group(), "kind": "User", "name": user}],
    });
    if let Some(namespace) = namespace {
        binding["kind"] = "RoleBinding".into();
        binding["metadata"]["namespace"] = namespace.into();
    }
    binding
}

/// Lets users do in a namespace what this rule says, by a role of this name.
pub async fn permit(plane: &ControlPlane, namespace: &str, name: &str, rule: &Value, users: &[&str]) {
    let mut bound = binding(Some(namespace), ("Role", name), "all");
    bound["subjects"] =
        users.iter().map(|user| json!({"apiGroup": ROLE.group(), "kind": "User", "name": user})).collect();
    apply(plane, &[role(Some(namespace), name, &json!([rule])), bound]).await;
}

/// Waits until the policies of runs count in a namespace: the API server learns of them up to a second after they are installed.
pub async fn protected(plane: &ControlPlane, namespace: &str) {
    const PROBE: &str = "probe";
    let rule = json!({"apiGroups": ["operetta.dev"], "resources": ["planruns"], "verbs": ["create"]});
    permit(plane, namespace, PROBE, &rule, &[PROBE]).await;
    let of = json!({"apiVersion": "example.com/v1", "kind": "Db", "resource": "dbs", "name": "main"});
    let run = json!({"apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun", "metadata": {"name": PROBE},
        "spec": {"of": of, "plan": PROBE, "requestedBy": PROBE}});
    let probe = Actor::new(plane, PROBE).in_dry_runs();
    eventually("the policy of runs to count", LONG, async || {
        match probe.create(PLAN_RUN, Some(namespace), &run).await {
            Err(told) if told.contains("needs the verb") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Lets users edit all runs of a namespace, as far as the admission policies do. Returns when these count.
pub async fn permit_edits_of_runs(plane: &ControlPlane, namespace: &str, users: &[&str]) {
    let runs = ["planruns", "planruns/status"];
    let rule = json!({"apiGroups": ["operetta.dev"], "resources": runs, "verbs": ["*"]});
    permit(plane, namespace, "editor", &rule, users).await;
    protected(plane, namespace).await;
}

/// Creates the manager's namespace and its account with its rights; returns the account's kubeconfig.
pub async fn manager(plane: &ControlPlane) -> PathBuf {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}});
    apply(plane, &[namespace]).await;
    apply(plane, &rights::manager::manager(SYSTEM)).await;
    kubeconfig(plane, SYSTEM, rights::MANAGER).await
}

/// Grants packages their rights, as `operetta rbac` prints them; `change` may alter the objects.
pub async fn grant(plane: &ControlPlane, packages: &[&str], change: impl Fn(&mut Vec<Value>)) {
    grant_with(plane, &[], packages, change).await;
}

/// Like [`grant`], with flags for `operetta rbac`.
pub async fn grant_with(
    plane: &ControlPlane,
    flags: &[&str],
    packages: &[&str],
    change: impl Fn(&mut Vec<Value>),
) {
    let mut args = vec!["rbac", "-o", "json"];
    args.extend(flags);
    args.extend(packages);
    let text = operetta(plane.kubeconfig_path(), &args).await.ok();
    let mut list: Value = serde_json::from_str(&text).expect("JSON");
    let mut objects: Vec<Value> = serde_json::from_value(list["items"].take()).expect("a list");
    change(&mut objects);
    apply(plane, &objects).await;
}

/// Starts a manager of these packages as its own account, which impersonates the packages' accounts.
pub fn run(plane: &ControlPlane, kubeconfig: &Path, packages: &[&str]) -> Operetta {
    run_flags(plane, kubeconfig, &[], packages)
}

/// Like [`run`], as a manager with this name. See [`super::ext::run_as`].
pub fn run_as(name: &str, plane: &ControlPlane, kubeconfig: &Path, packages: &[&str]) -> Operetta {
    run_flags(plane, kubeconfig, &[&format!("--leader-elect-resource-name={name}")], packages)
}

/// Like [`run`], with flags.
pub fn run_flags(plane: &ControlPlane, kubeconfig: &Path, flags: &[&str], packages: &[&str]) -> Operetta {
    let mut args = vec!["run", "--impersonate", "--namespace", SYSTEM];
    if !flags.iter().any(|flag| flag.starts_with("--leader-elect=")) {
        args.push("--leader-elect=false");
    }
    args.extend(flags);
    args.extend(packages);
    Operetta::run_as_user(plane, kubeconfig, &args)
}

/// Starts a manager as its own account that loads the cluster's Operators and impersonates their packages'
/// accounts.
pub async fn run_operators(plane: &ControlPlane, kubeconfig: &Path) -> Operetta {
    let args = ["run", "--leader-elect=false", "--impersonate", "--namespace", SYSTEM];
    let mut operetta = Operetta::run_as_user(plane, kubeconfig, &args);
    operetta.wait_for("following the Operators of the cluster", LONG).await;
    operetta
}
