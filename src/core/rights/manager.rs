//! What the manager itself may do: its own objects, and to read the Jobs that it has created for packages. It has no right to
//! the children and refs of packages, no wildcard, and may not grant rights.

use serde_json::{Value, json};

use super::objects::{APP, EXTENSIONS, GROUP, TO_MANAGER, bound_role};
use super::rules::{Place, Rights};
use super::{MANAGER, MANAGER_ROLE};
use crate::children::names;
use crate::operators::PULL_SECRET;
use crate::plan::crds;

const ADMISSION: &str = "admissionregistration.k8s.io";
/// The manager's own CRDs.
pub(super) const OWN_CRDS: [&str; 5] = [
    "instancestates.operetta.dev",
    "operatorrevisions.operetta.dev",
    "operators.operetta.dev",
    "packagepolicies.operetta.dev",
    "planruns.operetta.dev",
];
/// The Secret with the certificates of the conversion webhook, and its Service.
pub const WEBHOOK: &str = "operetta-webhook";

/// The rights of the manager, without those to the instances of packages.
pub fn rights() -> Rights {
    let mut rights = Rights::default();
    let mut cluster = |group: &str, resource: &str, verbs: &[&str]| {
        rights.add(&Place::Cluster, group, resource, verbs);
    };
    // CRDs of packages are written by the right that each package brings.
    cluster(EXTENSIONS, "customresourcedefinitions", &["get", "list", "watch"]);
    // For the variable `cluster` in expressions.
    cluster("apiregistration.k8s.io", "apiservices", &["list", "watch"]);
    // To know which namespaces an Operator serves, by their labels.
    cluster("", "namespaces", &["list", "watch"]);
    // To check the address of a Service when a dry run refuses it.
    cluster("networking.k8s.io", "servicecidrs", &["list"]);
    // The patch records where a stored revision is from.
    cluster("operetta.dev", "operatorrevisions", &["get", "list", "watch", "create", "patch", "delete"]);
    cluster("operetta.dev", "packagepolicies", &["list", "watch"]);
    // To see what is granted to packages, and when somebody changes it. The right to bind comes with each revision, for its
    // roles alone.
    for resource in ["clusterroles", "clusterrolebindings", "rolebindings"] {
        cluster(GROUP, resource, &["list", "watch"]);
    }
    cluster("operetta.dev", "operators", &["get", "list", "watch"]);
    cluster("operetta.dev", "operators/status", &["patch"]);
    // Server-side apply is authorized to create an object by its name.
    for name in OWN_CRDS {
        rights.add_named(
            &Place::Cluster,
            EXTENSIONS,
            "customresourcedefinitions",
            name,
            &["create", "patch"],
        );
    }
    for resource in ["validatingadmissionpolicies", "validatingadmissionpolicybindings"] {
        for name in crds::POLICIES {
            let verbs = ["get", "list", "watch", "create", "patch"];
            rights.add_named(&Place::Cluster, ADMISSION, resource, name, &verbs);
        }
    }
    let mut add = |place: &Place, group: &str, resource: &str, verbs: &[&str]| {
        rights.add(place, group, resource, verbs);
    };
    let everywhere = &Place::Everywhere;
    let runs = ["get", "list", "watch", "create", "patch", "delete"];
    add(everywhere, "operetta.dev", "planruns", &runs);
    add(everywhere, "operetta.dev", "planruns/status", &["patch"]);
    // The memory of instances.
    add(everywhere, "operetta.dev", "instancestates", &runs);
    add(everywhere, "apps", "controllerrevisions", &["get", "list", "watch", "create", "delete"]);
    // The Jobs of steps are created as the account of their package.
    add(everywhere, "batch", "jobs", &["list", "watch"]);
    add(everywhere, "events.k8s.io", "events", &["create", "patch"]);
    let manager = &Place::Manager;
    add(manager, "coordination.k8s.io", "leases", &["get", "create", "update"]);
    // To see when a role is gone by which it acts as the account of a package.
    add(manager, GROUP, "roles", &["list", "watch"]);
    // The files of revisions, and the key that proves the origin of generated values.
    add(manager, "", "configmaps", &["get", "list", "watch", "create", "patch", "delete"]);
    add(manager, "", "secrets", &["create"]);
    // To read the addresses of the API server, which steps may not call.
    let default = &Place::Namespace("default".to_owned());
    add(default, "", "services", &["get"]);
    add(default, "discovery.k8s.io", "endpointslices", &["list"]);
    rights.add_named(manager, "", "secrets", names::KEY_SECRET, &["get"]);
    // The credentials of registries. An `Operator` that names another Secret needs a right for it.
    rights.add_named(manager, "", "secrets", PULL_SECRET, &["get"]);
    // The certificates of the conversion webhook.
    rights.add_named(manager, "", "secrets", WEBHOOK, &["get", "update"]);
    rights
}

/// The roles with their bindings that the manager had under earlier names: today `operetta-packages` could be the name of a
/// package's account.
pub fn former(namespace: &str) -> Vec<[Value; 2]> {
    let all: Vec<Value> =
        manager(namespace).into_iter().filter(|object| object["kind"] != "ServiceAccount").collect();
    let (pairs, _) = all.as_chunks::<2>();
    let mut pairs = pairs.to_vec();
    for object in pairs.iter_mut().flatten() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        object["metadata"]["name"] =
            if name == MANAGER_ROLE { MANAGER.into() } else { "operetta-packages".into() };
    }
    pairs
}

/// The `ServiceAccount` of the manager in that namespace, its roles and their bindings.
pub fn manager(namespace: &str) -> Vec<Value> {
    let labels = json!({names::MANAGED_BY: names::NOTES, APP: MANAGER});
    let metadata = |name: &str, namespace: Option<&str>| {
        let mut metadata = json!({"name": name, "labels": labels});
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        metadata
    };
    let subjects = [json!({"kind": "ServiceAccount", "name": MANAGER, "namespace": namespace})];
    let rights = rights();
    let rules = |is_wanted: &dyn Fn(&Place) -> bool| json!(rights.of(is_wanted).rules());
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(MANAGER, Some(namespace)),
        "automountServiceAccountToken": false,
    })];
    let role = |name: &str, namespace: Option<&str>, rules: Value| {
        bound_role(&metadata(name, namespace), namespace, json!({"rules": rules}), &subjects)
    };
    let is_everywhere = |place: &Place| matches!(place, Place::Everywhere | Place::Cluster);
    objects.extend(role(MANAGER_ROLE, None, rules(&is_everywhere)));
    objects.extend(role(MANAGER_ROLE, Some(namespace), rules(&|place| *place == Place::Manager)));
    for named in rights.namespaces() {
        let is_there = |place: &Place| *place == Place::Namespace(named.to_owned());
        objects.extend(role(MANAGER_ROLE, Some(named), rules(&is_there)));
    }
    // The rules are those of the ClusterRoles with the label, which packages bring.
    let name = format!("{MANAGER_ROLE}:packages");
    let aggregation = json!({
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {TO_MANAGER: "true"}}]}, "rules": [],
    });
    objects.extend(bound_role(&metadata(&name, None), None, aggregation, &subjects));
    objects
}
