//! Rights of packages and of the manager, with the authorizer of a real API server: the manager has an account with its own
//! rights, and each package one with the derived rights.

mod examples;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use operetta::local::{AuditEvent, ControlPlane, Mark, Options};
use operetta::package;
use operetta::rights::{self, Right, Rights};
use serde_json::{Value, json};

use crate::support::ext::{
    AUTOSCALER, CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, ETCD, INGRESS, Kind, LONG, SERVICE, Scene,
    WEB_APP, condition, file, list, watching,
};
use crate::support::rights::{SYSTEM, apply, grant, grant_with, manager, run, user};
use crate::support::{eventually, kubectl_of, options};

const WEBAPP: &str = "operators/webapp";

/// What the lives below do not reach, by package, and when it is needed.
const UNREACHED: [(&str, &str, &[&str]); 5] = [
    (
        "webapp",
        "a later version of the package without such a child deletes it",
        &["delete deployments.apps", "delete services"],
    ),
    ("etcd", "the same", &["delete configmaps", "delete services", "delete poddisruptionbudgets.policy"]),
    (
        "etcd",
        "volumes, see tests/nodes/etcd.rs",
        &[
            "get persistentvolumeclaims",
            "create persistentvolumeclaims",
            "patch persistentvolumeclaims",
            "delete persistentvolumeclaims",
        ],
    ),
    ("etcd", "TLS, see tests/nodes/etcd.rs", &["list secrets", "watch secrets"]),
    (
        "etcd",
        "backups and restores, see tests/nodes/etcd.rs",
        &[
            "get jobs.batch",
            "create jobs.batch",
            "patch jobs.batch",
            "delete jobs.batch",
            "get pods/log",
            "list etcdclusters.etcd.database.coreos.com",
            "watch etcdclusters.etcd.database.coreos.com",
        ],
    ),
];

/// A control plane whose admission also checks who sets ownerReferences.
async fn strict_plane() -> Arc<ControlPlane> {
    let flags = vec!["--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned()];
    let options = Options { apiserver_flags: flags, ..options() };
    Arc::new(ControlPlane::start(options).await.unwrap_or_else(|error| panic!("{error}")))
}

fn derived(folder: &str) -> Rights {
    let (package, _) = package::load(Path::new(folder)).unwrap_or_else(|errors| panic!("{errors:?}"));
    rights::derive(&[&package], &|_| None).rights
}

/// What requests have used of rights, as `verb resource`.
fn used<'a>(requests: impl IntoIterator<Item = &'a AuditEvent>) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for request in requests.into_iter().filter(|request| !request.resource.is_empty()) {
        let mut add = |verb: &str| {
            let (group, resource) = (request.group.clone(), request.resource.clone());
            let resource = match request.subresource.as_str() {
                "" => resource,
                subresource => format!("{resource}/{subresource}"),
            };
            let right = Right { place: rights::Place::Home, group, resource, name: None, verb: verb.into() };
            used.insert(right.to_string());
        };
        add(&request.verb);
        // An apply that creates the object is authorized for both.
        if request.verb == "patch" && request.code == 201 {
            add("create");
        }
        // Servers that do not stream lists are asked for them.
        if request.verb == "watch" {
            add("list");
        }
        // A connection by WebSocket is, too.
        if request.subresource == "exec" {
            add("create");
        }
    }
    used
}

/// The same of a set of rights, wherever they are granted.
fn texts(rights: &Rights) -> BTreeSet<String> {
    let anywhere = |right: &Right| Right { place: rights::Place::Home, name: None, ..right.clone() };
    rights.iter().map(|right| anywhere(right).to_string()).collect()
}

#[tokio::test]
async fn packages_use_the_derived_rights_and_no_others() {
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    crate::support::etcd::watch(&plane);
    let etcd = crate::support::etcd::package();
    grant(&plane, &[WEBAPP, etcd], |_| {}).await;
    let mut operetta = run(&plane, &kubeconfig, &[WEBAPP, etcd]);
    watching(&mut operetta, 4).await;
    life_of_a_webapp(&Scene::on(&plane).await).await;
    life_of_an_etcd(&Scene::on(&plane).await).await;
    drop(operetta);

    let requests = plane.audit().requests_since(Mark::START).unwrap();
    let own = user(rights::MANAGER);
    let of_manager: Vec<&AuditEvent> = requests.iter().filter(|request| request.user == own).collect();
    let denied: Vec<AuditEvent> = of_manager.iter().filter(|r| r.code == 403).map(|r| (*r).clone()).collect();
    assert!(denied.is_empty(), "denied:\n{}", list(&denied));

    let mut wrong = Vec::new();
    for (folder, name) in [(WEBAPP, "webapp"), (etcd, "etcd")] {
        let account = user(&rights::account(name));
        let used = used(of_manager.iter().copied().filter(|request| request.acting_as == account));
        let mut used: BTreeSet<String> = used.into_iter().filter(|right| !is_of_everybody(right)).collect();
        let derived = texts(&derived(folder));
        // Asked for by the admission of ownerReferences: without it all applies were refused.
        used.extend(derived.iter().filter(|right| right.ends_with("/finalizers")).cloned());
        for right in used.difference(&derived) {
            wrong.push(format!("{name}: {right} is used and not derived"));
        }
        let known =
            || UNREACHED.iter().filter(|(package, ..)| *package == name).flat_map(|(_, _, rights)| *rights);
        for right in derived.difference(&used).filter(|right| !known().any(|known| known == right)) {
            wrong.push(format!("{name}: {right} is derived and not used"));
        }
        for right in known().filter(|right| !derived.contains(**right)) {
            wrong.push(format!("{name}: {right} is not derived, take it off the list"));
        }
    }
    // What the manager does as itself concerns no child and no ref.
    let itself = of_manager.iter().copied().filter(|request| request.acting_as.is_empty());
    let used: BTreeSet<String> = used(itself).into_iter().filter(|right| !is_of_everybody(right)).collect();
    let mut allowed = texts(&rights::manager::rights());
    for resource in [
        "webapps.apps.operetta.dev",
        "etcdclusters.etcd.database.coreos.com",
        "etcdbackups.etcd.database.coreos.com",
        "etcdrestores.etcd.database.coreos.com",
    ] {
        allowed.extend(["get", "list", "watch", "patch"].map(|verb| format!("{verb} {resource}")));
        allowed.insert(format!("patch {resource}/status"));
    }
    wrong.extend(used.difference(&allowed).map(|right| format!("the manager itself: {right}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What every user may do.
fn is_of_everybody(right: &str) -> bool {
    right.starts_with("create selfsubject")
}

async fn life_of_a_webapp(scene: &Scene) {
    scene.apply(&file("examples/webapp/full.yaml")).await;
    scene.ready(WEB_APP, "shop").await;
    for kind in [CONFIG_MAP, DEPLOYMENT, SERVICE, INGRESS, AUTOSCALER, DISRUPTION_BUDGET] {
        lose_label(scene, kind, "shop").await;
    }
    let less = json!({"spec": {
        "host": null, "tlsSecret": null, "ingressClassName": null, "config": null, "autoscaling": null, "minAvailable": null,
    }});
    scene.patch(WEB_APP, "shop", "merge", &less).await;
    for kind in [CONFIG_MAP, INGRESS, AUTOSCALER, DISRUPTION_BUDGET] {
        scene.gone(kind, "shop").await;
    }
    scene.kubectl(&["delete", "webapp", "shop", "--wait=false"]).await;
    scene.gone(WEB_APP, "shop").await;
}

/// An object without our label must be read before it is applied.
async fn lose_label(scene: &Scene, kind: Kind, name: &str) {
    let labels = json!({"metadata": {"labels": {"operetta.dev/instance-uid": null}}});
    scene.patch(kind, name, "merge", &labels).await;
    let is_ours = |object: &Value| object["metadata"]["labels"]["operetta.dev/instance-uid"].is_string();
    scene.until("labelled again", kind, name, is_ours).await;
}

async fn life_of_an_etcd(scene: &Scene) {
    let name = "example-etcd-cluster";
    scene.apply(&file("examples/etcd/example-etcd-cluster.yaml")).await;
    scene.ready(ETCD, name).await;
    let bootstrap = format!("{name}-bootstrap");
    for (kind, name) in [(SERVICE, name), (DISRUPTION_BUDGET, name), (CONFIG_MAP, &bootstrap)] {
        lose_label(scene, kind, name).await;
    }
    for size in [5, 3] {
        scene.patch(ETCD, name, "merge", &json!({"spec": {"size": size}})).await;
        let is_sized = |object: &Value| {
            object["status"]["readyMembers"] == size && crate::support::ext::is_ready(object)
        };
        scene.until("resized", ETCD, name, is_sized).await;
    }
    scene.kubectl(&["delete", "etcdcluster", name, "--wait=false"]).await;
    scene.gone(ETCD, name).await;
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
    // A right that no dry run would miss.
    grant(&plane, &[WEBAPP], without("delete", "ingresses")).await;
    let mut operetta = run(&plane, &kubeconfig, &[WEBAPP]);
    watching(&mut operetta, 1).await;
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
    // With the right, it proceeds by itself.
    grant(&plane, &[WEBAPP], |_| {}).await;
    scene.ready(WEB_APP, "shop").await;
    drop(operetta);

    tenants_have_the_rights_of_the_package(&plane, &scene).await;
    the_manager_has_only_its_own_rights(&plane).await;
}

/// The first version of a package: two kinds of children.
fn greeting(folder: &Path) {
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
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
async fn an_upgrade_waits_for_its_rights_and_needs_those_to_what_it_removes() {
    const GREETING: Kind = crate::support::ext::kind("examples.operetta.dev/v1", "greetings");
    let root = tempfile::tempdir().unwrap();
    greeting(root.path());
    let package = root.path().to_str().unwrap();
    let plane = strict_plane().await;
    let kubeconfig = manager(&plane).await;
    grant(&plane, &[package], |_| {}).await;
    let mut operetta = run(&plane, &kubeconfig, &[package]);
    watching(&mut operetta, 1).await;
    let scene = Scene::on(&plane).await;
    scene.apply(&file("examples/packages/hello/instances/world.yaml")).await;
    scene.ready(GREETING, "world").await;
    let card = scene.get(CONFIG_MAP, "world").await;
    drop(operetta);

    // The next version has an account in place of the Service, and another text.
    std::fs::write(root.path().join("operator.yaml"), greeting_with("card", "key")).unwrap();
    let template =
        file("examples/packages/hello/templates/card.yaml").replace("times: \"{{ spec.times }}\"", "a: b");
    std::fs::write(root.path().join("templates/card.yaml"), template).unwrap();
    let mut operetta = run(&plane, &kubeconfig, &[package]);
    watching(&mut operetta, 1).await;
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
    // The rules of the next version alone do not let it delete what it has no more.
    grant(&plane, &[package], |_| {}).await;
    let message = lacks("delete services").await;
    assert!(!message.contains("serviceaccounts,") && !message.contains("create services"), "{message}");
    grant_with(&plane, &["--cluster"], &[package], |_| {}).await;
    scene.gone(SERVICE, "world").await;
    let is_new = |object: &Value| object["data"]["a"] == "b";
    scene.until("the new text", CONFIG_MAP, "world", is_new).await;
    scene.ready(GREETING, "world").await;
    // When it is deleted, so is its record, and the next output has no rule for it.
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

/// The rules of the account of a package.
fn rules_of(objects: &mut [Value]) -> impl Iterator<Item = &mut Value> {
    rules_named(objects, "operetta-webapp").flatten()
}

/// The rules of the roles of that name.
fn rules_named<'a>(objects: &'a mut [Value], name: &'a str) -> impl Iterator<Item = &'a mut Vec<Value>> {
    let roles = objects
        .iter_mut()
        .filter(move |object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == name);
    roles.filter_map(|role| role["rules"].as_array_mut())
}

/// A user who may edit instances and nothing else.
async fn tenants_have_the_rights_of_the_package(plane: &Arc<ControlPlane>, scene: &Scene) {
    let namespace = scene.namespace();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operetta-webapp-edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
    });
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
    // The default roles have the rules of the package's.
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

/// The file with what `kubectl auth can-i --list` prints for the manager.
const TABLE: &str = "tests/planes/manager-rights.txt";

async fn the_manager_has_only_its_own_rights(plane: &Arc<ControlPlane>) {
    let own = user(rights::MANAGER);
    let mut tables: Vec<String> = Vec::new();
    for namespace in ["kube-system", SYSTEM, "default"] {
        let args = ["auth", "can-i", "--list", "--as", own.as_str(), "-n", namespace];
        let table = kubectl_of(plane, &args, "").await.ok();
        // What everybody may see of the server itself differs between versions.
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
