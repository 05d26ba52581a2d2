//! Reads and writes of controllers. Writes are requests, so that defaults, checks and managedFields are those of all writers.

use jiff::Timestamp;
use operetta_kube_model::facts::{key_of, name, namespace, text, uid};
use serde_json::{Value, json};

use crate::api::Api;
use crate::model::{Request, User};
use crate::verbs::response::Body;

/// A resource that controllers work with.
#[derive(Debug)]
pub(super) struct Resource {
    /// The path before the namespace.
    path: &'static str,
    plural: &'static str,
    /// The name in the store.
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    namespaced: bool,
}

macro_rules! resources {
    ($($name:ident = $path:literal $version:literal $kind:literal $plural:literal $stored:literal $namespaced:literal;)*) => {
        $(pub(super) const $name: Resource = Resource {
            path: $path, plural: $plural, name: $stored, version: $version, kind: $kind, namespaced: $namespaced,
        };)*
    };
}

resources! {
    PODS = "/api/v1" "v1" "Pod" "pods" "pods" true;
    QUOTAS = "/api/v1" "v1" "ResourceQuota" "resourcequotas" "resourcequotas" true;
    SERVICES = "/api/v1" "v1" "Service" "services" "services" true;
    CLAIMS = "/api/v1" "v1" "PersistentVolumeClaim" "persistentvolumeclaims" "persistentvolumeclaims" true;
    VOLUMES = "/api/v1" "v1" "PersistentVolume" "persistentvolumes" "persistentvolumes" false;
    NODES = "/api/v1" "v1" "Node" "nodes" "nodes" false;
    CLASSES = "/apis/storage.k8s.io/v1" "storage.k8s.io/v1" "StorageClass" "storageclasses" "storageclasses.storage.k8s.io" false;
    ATTRIBUTES = "/apis/storage.k8s.io/v1" "storage.k8s.io/v1" "VolumeAttributesClass" "volumeattributesclasses" "volumeattributesclasses.storage.k8s.io" false;
    SLICES = "/apis/discovery.k8s.io/v1" "discovery.k8s.io/v1" "EndpointSlice" "endpointslices" "endpointslices.discovery.k8s.io" true;
    DEPLOYMENTS = "/apis/apps/v1" "apps/v1" "Deployment" "deployments" "deployments.apps" true;
    REPLICA_SETS = "/apis/apps/v1" "apps/v1" "ReplicaSet" "replicasets" "replicasets.apps" true;
    STATEFUL_SETS = "/apis/apps/v1" "apps/v1" "StatefulSet" "statefulsets" "statefulsets.apps" true;
    DAEMON_SETS = "/apis/apps/v1" "apps/v1" "DaemonSet" "daemonsets" "daemonsets.apps" true;
    REVISIONS = "/apis/apps/v1" "apps/v1" "ControllerRevision" "controllerrevisions" "controllerrevisions.apps" true;
    JOBS = "/apis/batch/v1" "batch/v1" "Job" "jobs" "jobs.batch" true;
    CRON_JOBS = "/apis/batch/v1" "batch/v1" "CronJob" "cronjobs" "cronjobs.batch" true;
    BUDGETS = "/apis/policy/v1" "policy/v1" "PodDisruptionBudget" "poddisruptionbudgets" "poddisruptionbudgets.policy" true;
}

/// The program that writes: the manager of the fields.
pub(super) const MANAGER: &str = "kube-controller-manager";
pub(super) const KUBELET: &str = "kubelet";
pub(super) const SCHEDULER: &str = "kube-scheduler";

/// An object, if there is one.
pub(super) fn get(api: &Api, resource: &Resource, key: &str) -> Option<Value> {
    api.state.store.get(resource.name, key).map(|object| object.bare())
}

/// All objects in a namespace, by name; in all namespaces if it is empty.
pub(super) fn list(api: &Api, resource: &Resource, namespace: &str) -> Vec<Value> {
    let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    api.state.store.range(resource.name, &prefix, None).map(|(_, object)| object.bare()).collect()
}

/// The objects of a resource with an owner.
pub(super) fn below(api: &Api, resource: &Resource, uid: &str) -> Vec<Value> {
    let places = api.state.store.below(uid).filter(|(name, _)| **name == *resource.name);
    places.filter_map(|(_, key)| get(api, resource, key)).collect()
}

/// Sends a request. The error is the message of the server.
fn send(
    api: &mut Api,
    agent: &str,
    method: &str,
    uri: &str,
    body: &Value,
    now: Timestamp,
) -> Result<(), String> {
    let user = User {
        name: format!("system:{agent}"),
        groups: vec!["system:masters".to_owned()],
        ..User::default()
    };
    // Options of a deletion are read as all bodies are.
    let (options, given) =
        if method == "DELETE" { (body.to_string(), None) } else { (String::new(), Some(body.clone())) };
    let request = Request {
        method,
        uri,
        content_type: "application/json",
        accept: "application/json",
        user_agent: agent,
        user: &user,
        body: options.as_bytes(),
    };
    let response = api.handle_given(&request, given, now);
    // Whether an object is invalid or exists does not depend on admission.
    api.controllers.was_refused |= method == "POST" && response.code == 403;
    if response.code < 300 {
        return Ok(());
    }
    let Body::Text(answer) = response.body else { return Err("a watch".to_owned()) };
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    Err(text(&answer["message"]).to_owned())
}

fn path(resource: &Resource, namespace: &str) -> String {
    if resource.namespaced {
        format!("{}/namespaces/{namespace}/{}", resource.path, resource.plural)
    } else {
        format!("{}/{}", resource.path, resource.plural)
    }
}

/// Creates an object and returns it as stored.
pub(super) fn create(
    api: &mut Api,
    agent: &str,
    resource: &Resource,
    object: &mut Value,
    now: Timestamp,
) -> Result<(), String> {
    object["apiVersion"] = resource.version.into();
    object["kind"] = resource.kind.into();
    let uri = path(resource, namespace(object));
    send(api, agent, "POST", &uri, object, now)?;
    if let Some(stored) = api.state.store.newest() {
        *object = stored.bare();
    }
    Ok(())
}

/// Replaces an object, or its `status`, and returns it as stored.
pub(super) fn update(
    api: &mut Api,
    agent: &str,
    resource: &Resource,
    subresource: &str,
    object: &mut Value,
    now: Timestamp,
) -> Result<(), String> {
    let slash = if subresource.is_empty() { "" } else { "/" };
    let uri = format!("{}/{}{slash}{subresource}", path(resource, namespace(object)), name(object));
    send(api, agent, "PUT", &uri, object, now)?;
    if let Some(stored) = get(api, resource, &key_of(object)) {
        *object = stored;
    }
    Ok(())
}

/// Replaces the status of an object unless it stays the same.
pub(super) fn set_status(
    api: &mut Api,
    agent: &str,
    resource: &Resource,
    object: &mut Value,
    status: Value,
    now: Timestamp,
) {
    if object["status"] != status {
        object["status"] = status;
        let _ = update(api, agent, resource, "status", object, now);
    }
}

/// Deletes an object.
pub(super) fn delete(
    api: &mut Api,
    agent: &str,
    resource: &Resource,
    object: &Value,
    grace: Option<i64>,
    now: Timestamp,
) -> Result<(), String> {
    let uri = format!("{}/{}", path(resource, namespace(object)), name(object));
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
        "preconditions": {"uid": uid(object)}});
    if let Some(grace) = grace {
        options["gracePeriodSeconds"] = grace.into();
    }
    send(api, agent, "DELETE", &uri, &options, now)
}
