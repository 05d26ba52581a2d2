//! What the manager itself may do: its own objects, and to read the Jobs that it has created for packages. It has no right to
//! the children and refs of packages, no wildcard, and may not grant rights.

use serde_json::{Value, json};

use super::MANAGER;
use super::objects::{TO_MANAGER, bound_role};
use super::rules::{Place, Rights};
use crate::children::names;
use crate::plan::crds;

const ADMISSION: &str = "admissionregistration.k8s.io";

/// The rights of the manager, without those to the instances of packages.
pub fn rights() -> Rights {
    let mut rights = Rights::default();
    let mut cluster = |group: &str, resource: &str, verbs: &[&str]| {
        rights.add(&Place::Cluster, group, resource, verbs);
    };
    let crds = "customresourcedefinitions";
    cluster("apiextensions.k8s.io", crds, &["get", "list", "watch", "create", "patch"]);
    // The stored versions, after a migration.
    cluster("apiextensions.k8s.io", "customresourcedefinitions/status", &["patch"]);
    // What `cluster` is in expressions.
    cluster("apiregistration.k8s.io", "apiservices", &["list", "watch"]);
    // The policy of PlanRuns.
    let policies = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
    for resource in policies {
        cluster(ADMISSION, resource, &["create"]);
    }
    // Which namespaces an Operator serves, by their labels.
    cluster("", "namespaces", &["list", "watch"]);
    // Of which range the address of a Service is.
    cluster("networking.k8s.io", "servicecidrs", &["list"]);
    cluster("operetta.dev", "operatorrevisions", &["get", "list", "watch", "create", "delete"]);
    cluster("operetta.dev", "operators", &["get", "list", "watch"]);
    cluster("operetta.dev", "operators/status", &["patch"]);
    for resource in policies {
        rights.add_named(&Place::Cluster, ADMISSION, resource, crds::POLICY, &["get", "patch"]);
    }
    let mut add = |place: &Place, group: &str, resource: &str, verbs: &[&str]| {
        rights.add(place, group, resource, verbs);
    };
    let everywhere = &Place::Everywhere;
    let runs = ["get", "list", "watch", "create", "patch", "delete"];
    add(everywhere, "operetta.dev", "planruns", &runs);
    add(everywhere, "operetta.dev", "planruns/status", &["patch"]);
    add(everywhere, "apps", "controllerrevisions", &["get", "list", "watch", "create", "delete"]);
    // The Jobs of steps are created as the account of their package.
    add(everywhere, "batch", "jobs", &["list", "watch"]);
    add(everywhere, "events.k8s.io", "events", &["create", "patch"]);
    let manager = &Place::Manager;
    add(manager, "coordination.k8s.io", "leases", &["get", "create", "update"]);
    // The files of revisions, and the key that proves the origin of generated values.
    add(manager, "", "configmaps", &["get", "create", "patch", "delete"]);
    add(manager, "", "secrets", &["create"]);
    // The addresses of the API server, which steps may not call.
    let default = &Place::Namespace("default".to_owned());
    add(default, "", "services", &["get"]);
    add(default, "discovery.k8s.io", "endpointslices", &["list"]);
    rights.add_named(manager, "", "secrets", names::KEY_SECRET, &["get"]);
    // The certificates of the conversion webhook.
    rights.add_named(manager, "", "secrets", "operetta-webhook", &["get", "update"]);
    rights
}

/// The `ServiceAccount` of the manager in that namespace, its roles and their bindings.
pub fn manager(namespace: &str) -> Vec<Value> {
    let labels = json!({names::MANAGED_BY: names::NOTES, "app.kubernetes.io/name": MANAGER});
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
    objects.extend(role(MANAGER, None, rules(&is_everywhere)));
    objects.extend(role(MANAGER, Some(namespace), rules(&|place| *place == Place::Manager)));
    for named in rights.namespaces() {
        let is_there = |place: &Place| *place == Place::Namespace(named.to_owned());
        objects.extend(role(MANAGER, Some(named), rules(&is_there)));
    }
    // The rules are those of the ClusterRoles with the label, which packages bring.
    let name = format!("{MANAGER}-packages");
    let aggregation = json!({
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {TO_MANAGER: "true"}}]}, "rules": [],
    });
    objects.extend(bound_role(&metadata(&name, None), None, aggregation, &subjects));
    objects
}
