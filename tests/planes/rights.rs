//! Rights of packages and of the manager, with the authorizer of a real API server: the manager has an account with its own
//! rights, and each package one with the derived rights.

mod confined;
mod each;
mod escalation;
mod handover;
mod lives;
mod managers;
mod marks;
mod matrix;
mod namespaces;
mod orders;
mod revisions;
mod tenants;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{
    CONFIG_MAP, ControlPlane, DEPLOYMENT, INGRESS, Kind, LONG, Operetta, SERVICE, Scene, WEB_APP, condition,
    eventually, file, kubectl_of, options, put_file,
};
use operetta::local::Options;
use operetta::package;
use operetta::rights::{self, Rights};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::rights::{SYSTEM, apply, binding, grant, grant_with, manager, run, run_operators, user};

const WEBAPP: &str = "operators/webapp";

/// A control plane whose admission also checks who sets ownerReferences.
async fn strict_plane() -> Arc<ControlPlane> {
    let flags = vec!["--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned()];
    let options = Options { apiserver_flags: flags, ..options() };
    Arc::new(ControlPlane::start(options).await.unwrap_or_else(|error| panic!("{error}")))
}

/// The strict control plane that tests share, with the kubeconfig of the manager's account. Each test has packages of its own, and a
/// manager with a name of its own.
async fn shared_plane() -> (&'static Arc<ControlPlane>, &'static Path) {
    static SHARED: OnceCell<(Arc<ControlPlane>, PathBuf)> = OnceCell::const_new();
    let start = async || {
        let plane = strict_plane().await;
        let kubeconfig = manager(&plane).await;
        (plane, kubeconfig)
    };
    let (plane, kubeconfig) = SHARED.get_or_init(start).await;
    (plane, kubeconfig)
}

/// The same control plane, with a manager of its Operators.
async fn shared_plane_with_operators() -> &'static Arc<ControlPlane> {
    static MANAGER: OnceCell<Operetta> = OnceCell::const_new();
    let (plane, kubeconfig) = shared_plane().await;
    MANAGER.get_or_init(|| run_operators(plane, kubeconfig)).await;
    plane
}

fn derived(folder: &str) -> Rights {
    let (package, _) = package::load(Path::new(folder)).unwrap_or_else(|errors| panic!("{errors:?}"));
    rights::derive(&[&package], &|_| None).rights
}

#[tokio::test]
async fn missing_rights_are_named_before_anything_is_written() {
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    let without = |verb: &'static str, resource: &'static str| {
        move |objects: &mut Vec<Value>| {
            for rule in rules_of(objects) {
                if rule["resources"].as_array().is_some_and(|all| all.iter().any(|known| known == resource)) {
                    let verbs = rule["verbs"].as_array_mut().unwrap();
                    verbs.retain(|known| known != verb);
                }
            }
        }
    };
    // Withhold a right that no dry run needs.
    grant(&plane, &[WEBAPP], without("delete", "ingresses")).await;
    let operetta = run(&plane, &kubeconfig, &[WEBAPP]).watching(1).await;
    let scene = Scene::on(&plane).await;
    scene.apply(&file("examples/webapp/full.yaml")).await;
    let is_refused = |app: &Value| condition(app, "Stalled")["reason"] == "RightsMissing";
    let app = scene.until("refused", WEB_APP, "shop", is_refused).await;
    let message = condition(&app, "Stalled")["message"].as_str().unwrap().to_owned();
    for words in [
        "system:serviceaccount:operetta-system:operetta-webapp lacks rights",
        "delete ingresses.networking.k8s.io",
        "{apiGroups: [networking.k8s.io], resources: [ingresses], verbs: [delete]}",
        "operetta rbac",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert!(!message.contains("secrets") && !message.contains("deployments"), "{message}");
    for kind in [CONFIG_MAP, DEPLOYMENT, SERVICE, INGRESS] {
        assert_eq!(scene.names(kind).await, [""; 0], "{kind:?}");
    }
    // With the right, it continues by itself.
    grant(&plane, &[WEBAPP], |_| {}).await;
    scene.ready(WEB_APP, "shop").await;
    drop(operetta);

    tenants_have_the_rights_of_the_package(&plane, &scene).await;
    the_manager_has_only_its_own_rights(&plane).await;
}

/// The first version of a package: two kinds of children.
fn greeting(folder: &Path) {
    let write = |path: &str, text: &str| put_file(&folder.join(path), text);
    write("crds/greeting.yaml", &file("examples/packages/hello/crds/greeting.yaml"));
    write("operator.yaml", &greeting_with("card", "door"));
    write(
        "templates/card.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {who: \"{{ spec.who }}\"}\n",
    );
    write(
        "templates/door.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: \"{{ name }}\"}\nspec: {ports: [{port: 80}]}\n",
    );
    write(
        "templates/key.yaml",
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: \"{{ name }}\"}\nautomountServiceAccountToken: false\n",
    );
}

fn greeting_with(first: &str, second: &str) -> String {
    let child = |id: &str| format!("        - {{id: {id}, template: templates/{id}.yaml}}\n");
    format!(
        "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: greeting}}\nspec:\n  version: 0.1.0\n  \
         resources:\n    - crd: crds/greeting.yaml\n      children:\n{}{}",
        child(first),
        child(second)
    )
}

#[tokio::test]
async fn upgrade_needs_rights_to_delete_removed_kinds() {
    const GREETING: Kind = crate::support::ext::kind("examples.operetta.dev/v1", "greetings");
    let root = tempfile::tempdir().unwrap();
    greeting(root.path());
    let package = root.path().to_str().unwrap();
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    grant(&plane, &[package], |_| {}).await;
    let operetta = run(&plane, &kubeconfig, &[package]).watching(1).await;
    let scene = Scene::on(&plane).await;
    scene.apply_ready(GREETING, "world", &file("examples/packages/hello/instances/world.yaml")).await;
    let card = scene.get(CONFIG_MAP, "world").await;
    drop(operetta);

    // The next version has an account in place of the Service, and another text.
    std::fs::write(root.path().join("operator.yaml"), greeting_with("card", "key")).unwrap();
    let template =
        file("examples/packages/hello/templates/card.yaml").replace("times: \"{{ spec.times }}\"", "a: b");
    std::fs::write(root.path().join("templates/card.yaml"), template).unwrap();
    let _operetta = run(&plane, &kubeconfig, &[package]).watching(1).await;
    let lacks = async |right: &str| {
        let is_named = |object: &Value| {
            let stalled = condition(object, "Stalled");
            stalled["reason"] == "RightsMissing" && stalled["message"].as_str().unwrap().contains(right)
        };
        let object = scene.until("rights are missing", GREETING, "world", is_named).await;
        assert_eq!(scene.get(CONFIG_MAP, "world").await, card, "nothing of the change is written");
        condition(&object, "Stalled")["message"].as_str().unwrap().to_owned()
    };
    let message = lacks("create serviceaccounts").await;
    assert!(!message.contains("services"), "{message}");
    // The rules of the next version alone do not include the deletion of the Service.
    grant(&plane, &[package], |_| {}).await;
    let message = lacks("delete services").await;
    assert!(!message.contains("serviceaccounts,") && !message.contains("create services"), "{message}");
    grant_with(&plane, &["--cluster"], &[package], |_| {}).await;
    scene.gone(SERVICE, "world").await;
    let is_new = |object: &Value| object["data"]["a"] == "b";
    scene.until("the new text", CONFIG_MAP, "world", is_new).await;
    scene.ready(GREETING, "world").await;
    // Once the Service is deleted, its kind is removed from the record, and the next output has no rule for
    // it.
    eventually("no rule for Services", LONG, async || {
        let output = operetta_of(&plane, &["rbac", "--cluster", package]).await;
        if output.contains("services") { Err(output) } else { Ok(()) }
    })
    .await;
    grant_with(&plane, &["--cluster"], &[package], |_| {}).await;
    scene.patch(GREETING, "world", "merge", &json!({"spec": {"who": "All"}})).await;
    let says = |object: &Value| object["data"]["text"] == "Hello, All!";
    scene.until("written with the rules that are left", CONFIG_MAP, "world", says).await;
}

async fn operetta_of(plane: &ControlPlane, args: &[&str]) -> String {
    crate::support::operetta(plane.kubeconfig_path(), args).await.ok()
}

/// The rules of the package's account.
fn rules_of(objects: &mut [Value]) -> impl Iterator<Item = &mut Value> {
    rules_named(objects, "operetta:webapp").flatten()
}

/// The rules of the roles with this name.
fn rules_named<'a>(objects: &'a mut [Value], name: &'a str) -> impl Iterator<Item = &'a mut Vec<Value>> {
    let roles = objects
        .iter_mut()
        .filter(move |object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == name);
    roles.filter_map(|role| role["rules"].as_array_mut())
}

/// A user who may edit instances and nothing else.
async fn tenants_have_the_rights_of_the_package(plane: &Arc<ControlPlane>, scene: &Scene) {
    let namespace = scene.namespace();
    let binding = binding(Some(namespace), ("ClusterRole", "operetta:webapp:edit"), "tenant");
    apply(plane, &[binding]).await;
    let may = async |verb: &str, resource: &str, namespace: &str| {
        let args = ["auth", "can-i", verb, resource, "--as", "tenant", "-n", namespace];
        kubectl_of(plane, &args, "").await.stdout.trim() == "yes"
    };
    assert!(may("create", "webapps", namespace).await);
    for (verb, resource, namespace) in [
        ("create", "webapps", "default"),
        ("create", "deployments", namespace),
        ("get", "secrets", namespace),
        ("impersonate", "serviceaccounts", SYSTEM),
    ] {
        assert!(!may(verb, resource, namespace).await, "{verb} {resource} in {namespace}");
    }
    // The default roles contain the package's rules.
    for (role, verb) in [("view", "get"), ("edit", "create"), ("admin", "delete")] {
        eventually("the rules of the package in the default roles", LONG, async || {
            let role = kubectl_of(plane, &["get", "clusterrole", role, "-o", "json"], "").await.ok();
            let role: Value = serde_json::from_str(&role).unwrap();
            let has = |rule: &Value, field: &str, word: &str| {
                rule[field].as_array().is_some_and(|words| words.iter().any(|known| known == word))
            };
            let rules = role["rules"].as_array().cloned().unwrap_or_default();
            let found =
                rules.iter().any(|rule| has(rule, "resources", "webapps") && has(rule, "verbs", verb));
            if found { Ok(()) } else { Err(format!("{rules:?}")) }
        })
        .await;
    }
}

/// The file with the output of `kubectl auth can-i --list` for the manager.
const TABLE: &str = "tests/planes/manager-rights.txt";

async fn the_manager_has_only_its_own_rights(plane: &Arc<ControlPlane>) {
    let own = user(rights::MANAGER);
    let mut tables: Vec<String> = Vec::new();
    for namespace in ["kube-system", SYSTEM, "default"] {
        let args = ["auth", "can-i", "--list", "--as", own.as_str(), "-n", namespace];
        let table = kubectl_of(plane, &args, "").await.ok();
        // The rights of all users to non-resource URLs differ between versions.
        let lines = table.lines().skip(1).filter(|line| !line.trim_start().starts_with("[/"));
        let mut lines: Vec<String> =
            lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        lines.sort();
        tables.push(format!("# {namespace}\n{}\n", lines.join("\n")));
    }
    let tables = tables.concat();
    if std::env::var_os("OPERETTA_UPDATE").is_some() {
        std::fs::write(TABLE, &tables).unwrap();
    }
    assert_eq!(tables, file(TABLE), "OPERETTA_UPDATE=1 writes {TABLE}");
    let can = async |args: &[&str]| {
        let args: Vec<&str> =
            ["auth", "can-i", "--as", &own].into_iter().chain(args.iter().copied()).collect();
        kubectl_of(plane, &args, "").await.stdout.trim() == "yes"
    };
    let of_package = "serviceaccounts/operetta-webapp";
    assert!(can(&["impersonate", of_package, "-n", SYSTEM]).await);
    for (args, what) in [
        (&["impersonate", of_package, "-n", "default"][..], "the account of that name elsewhere"),
        (&["impersonate", "serviceaccounts/operetta", "-n", SYSTEM], "another account"),
        (&["impersonate", "users/admin"], "a user"),
        (&["impersonate", "groups/system:masters"], "a group"),
        (&["escalate", "clusterroles"], "escalation"),
        (&["bind", "clusterroles"], "bindings"),
        (&["get", "secrets", "-n", "default"], "Secrets"),
        (&["create", "deployments.apps", "-n", "default"], "children"),
        (&["*", "*"], "everything"),
    ] {
        assert!(!can(args).await, "the manager may: {what}");
    }
}
