//! The shape of a write: what decides whether the API server would accept it, values aside. One write of each
//! shape is tried by a dry run before anything is written.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::model::{Context, Desired, Expect};
use super::names;
use crate::api::Gvk;
use crate::package::Child;

/// The shape of a write: package revision, kind, namespace, child, create or update, whether the object may be recreated,
/// and which leaves the desired object has. Of an update also the values of fields that may never change, with what names the instance
/// taken out: they are what an update is refused for.
pub(super) fn shape(
    ctx: &Context<'_>,
    child: &Child,
    desired: &Desired,
    expect: &Expect,
    recreate: bool,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    ctx.origin.package.digest.hash(&mut hasher);
    ctx.origin.resource.kind.kind.hash(&mut hasher);
    child.id.hash(&mut hasher);
    let object = &desired.object;
    (&object.gvk, &object.namespace).hash(&mut hasher);
    leaves(&desired.body, &mut hasher);
    let created = *expect == Expect::Absent;
    (created, recreate).hash(&mut hasher);
    if !created {
        let data = ["/data", "/binaryData"];
        let is_frozen = desired.body["immutable"] == true;
        for path in fixed(&object.gvk).iter().chain(data.iter().filter(|_| is_frozen)) {
            values(desired.body.pointer(path).unwrap_or(&Value::Null), ctx.origin.name(), &mut hasher);
        }
    }
    hasher.finish()
}

/// The shape of a write whose values count, too.
pub(super) fn with_values(shape: u64, desired: &Desired) -> u64 {
    let mut hasher = DefaultHasher::new();
    (shape, &desired.hash).hash(&mut hasher);
    hasher.finish()
}

/// Hashes which leaves there are: the keys of maps, the types of scalars, and the different items of lists.
fn leaves(value: &Value, hasher: &mut impl Hasher) {
    match value {
        Value::Null => 0u8.hash(hasher),
        Value::Bool(_) => 1u8.hash(hasher),
        Value::Number(_) => 2u8.hash(hasher),
        Value::String(_) => 3u8.hash(hasher),
        Value::Array(items) => {
            let kinds: BTreeSet<u64> = items
                .iter()
                .map(|item| {
                    let mut hasher = DefaultHasher::new();
                    leaves(item, &mut hasher);
                    hasher.finish()
                })
                .collect();
            (4u8, kinds).hash(hasher);
        }
        Value::Object(map) => {
            (5u8, map.len()).hash(hasher);
            for (key, value) in map {
                key.hash(hasher);
                leaves(value, hasher);
            }
        }
    }
}

/// Hashes the values below, except for the name of the instance.
fn values(value: &Value, name: &str, hasher: &mut impl Hasher) {
    match value {
        Value::String(text) if text.contains(name) => text.replace(name, "\0").hash(hasher),
        Value::Array(items) => {
            items.len().hash(hasher);
            for item in items {
                values(item, name, hasher);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                key.hash(hasher);
                // Our labels and annotations say whose object it is.
                if !key.starts_with(names::DOMAIN) {
                    values(value, name, hasher);
                }
            }
        }
        other => other.hash(hasher),
    }
}

/// Where the fields of a kind are that may not be changed once they are set, as far as templates set them.
fn fixed(gvk: &Gvk) -> &'static [&'static str] {
    match gvk.parts() {
        ("apps/v1", "Deployment" | "DaemonSet" | "ReplicaSet") => &["/spec/selector"],
        ("apps/v1", "StatefulSet") => &[
            "/spec/selector",
            "/spec/serviceName",
            "/spec/volumeClaimTemplates",
            "/spec/podManagementPolicy",
        ],
        ("batch/v1", "Job") => {
            &["/spec/selector", "/spec/template", "/spec/completions", "/spec/completionMode"]
        }
        ("v1", "Service") => &["/spec/clusterIP", "/spec/clusterIPs", "/spec/type"],
        ("v1", "PersistentVolumeClaim" | "PersistentVolume" | "Pod")
        | ("networking.k8s.io/v1", "IngressClass" | "ServiceCIDR")
        | ("resource.k8s.io/v1", "ResourceClaim")
        | ("storage.k8s.io/v1", "CSIDriver") => &["/spec"],
        ("v1", "Secret") => &["/type", "/immutable"],
        ("v1", "ConfigMap") => &["/immutable"],
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => &["/roleRef"],
        ("storage.k8s.io/v1", "StorageClass") => &["/provisioner", "/parameters", "/volumeBindingMode"],
        ("scheduling.k8s.io/v1", "PriorityClass") => &["/value", "/preemptionPolicy"],
        ("node.k8s.io/v1", "RuntimeClass") => &["/handler"],
        ("discovery.k8s.io/v1", "EndpointSlice") => &["/addressType"],
        ("storage.k8s.io/v1", "VolumeAttributesClass") => &["/driverName", "/parameters"],
        _ => &[],
    }
}

/// Whether the absence of `other` may be why `desired` is refused.
pub(super) fn depends_on(desired: &Desired, other: &Desired) -> bool {
    let same_namespace = desired.object.namespace == other.object.namespace;
    let named =
        |pointer: &str| desired.body.pointer(pointer).and_then(Value::as_str) == Some(&*other.object.name);
    match &*other.object.gvk.kind {
        "Namespace" => desired.object.namespace.as_deref() == Some(&*other.object.name),
        // An object of that group may be of the kind that is only about to be served.
        "CustomResourceDefinition" => {
            let group = desired.object.gvk.group();
            other.body.pointer("/spec/group").and_then(Value::as_str) == Some(group)
        }
        "Role" => same_namespace && named("/roleRef/name") && is(desired, "/roleRef/kind", "Role"),
        "ClusterRole" => named("/roleRef/name") && is(desired, "/roleRef/kind", "ClusterRole"),
        "ServiceAccount" => same_namespace && named("/spec/serviceAccountName"),
        "PriorityClass" => named("/spec/priorityClassName"),
        _ => false,
    }
}

fn is(desired: &Desired, pointer: &str, text: &str) -> bool {
    desired.body.pointer(pointer).and_then(Value::as_str) == Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(value: &Value) -> u64 {
        let mut hasher = DefaultHasher::new();
        leaves(value, &mut hasher);
        hasher.finish()
    }

    #[test]
    fn shape_depends_on_fields_and_types_but_not_on_values() {
        let base = json!({"a": 1, "b": {"c": "x"}, "list": [{"n": 1}, {"n": 2}]});
        assert_eq!(of(&base), of(&json!({"a": 9, "b": {"c": "y"}, "list": [{"n": 3}]})));
        for other in [
            json!({"a": "1", "b": {"c": "x"}, "list": [{"n": 1}]}),
            json!({"a": 1, "b": {"c": "x", "d": 1}, "list": [{"n": 1}]}),
            json!({"a": 1, "b": {"c": "x"}, "list": [{"n": 1}, {"n": 1, "m": 1}]}),
            json!({"a": 1, "b": {"c": "x"}, "list": []}),
        ] {
            assert_ne!(of(&base), of(&other), "{other}");
        }
    }

    #[test]
    fn name_of_the_instance_does_not_count_as_a_value() {
        let of = |value: &Value, name: &str| {
            let mut hasher = DefaultHasher::new();
            values(value, name, &mut hasher);
            hasher.finish()
        };
        let selector = |name: &str| json!({"matchLabels": {"app": name, "operetta.dev/instance": name}});
        assert_eq!(of(&selector("one"), "one"), of(&selector("two"), "two"));
        assert_ne!(of(&selector("one"), "two"), of(&selector("two"), "two"));
    }
}
