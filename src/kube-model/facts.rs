//! Reads fields of objects without their types.

use jiff::Timestamp;
use serde_json::{Value, json};

/// The `ConfigMap` of each namespace with the certificates that pods trust.
pub const ROOT_CA: &str = "kube-root-ca.crt";

/// The annotation with what kubectl has applied from the client.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The capabilities that the Pod Security Standards allow at the level `baseline`.
pub const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// `NAMESPACE/NAME`, which no two objects of a kind have in common.
pub fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// A time as objects have it.
pub fn time(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The [`key`] of an object.
pub fn key_of(object: &Value) -> String {
    key(namespace(object), name(object))
}

/// A text; empty if it is absent.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// An integer; 0 if it is absent.
pub fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// The items of a list; none if it is absent.
pub fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The texts of a list.
pub fn texts(list: &Value) -> Vec<String> {
    items(list).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The name of an object.
pub fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

/// The uid of an object.
pub fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

/// The namespace of an object; empty if it has none.
pub fn namespace(object: &Value) -> &str {
    text(&object["metadata"]["namespace"])
}

/// Whether an object is being deleted.
pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The reference to an object's controller.
pub fn controller(object: &Value) -> Option<&Value> {
    items(&object["metadata"]["ownerReferences"]).iter().find(|owner| owner["controller"] == true)
}

/// The uid of an object's controller. Unlike labels, it distinguishes the pods of the controller from other pods with the
/// same labels.
pub fn controller_uid(object: &Value) -> Option<&str> {
    controller(object)?["uid"].as_str()
}

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == kind)
}

/// Whether a condition of an object is True.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Value) -> bool {
    has_condition(pod, "Ready")
}

/// Whether a pod has ended.
pub fn is_terminal(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

/// The claims that a pod mounts.
pub fn claims(pod: &Value) -> Vec<String> {
    let volumes = items(&pod["spec"]["volumes"]).iter();
    let names = volumes.filter_map(|volume| {
        let claim = volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned);
        let ephemeral = || {
            let is_ephemeral = volume["ephemeral"].is_object();
            is_ephemeral.then(|| format!("{}-{}", name(pod), text(&volume["name"])))
        };
        claim.or_else(ephemeral)
    });
    names.collect()
}

/// The key of the volume of a claim, as [`key_of`] has it.
pub fn volume_of(claim: &Value) -> Option<String> {
    claim["spec"]["volumeName"]
        .as_str()
        .filter(|volume| !volume.is_empty())
        .map(|volume| format!("/{volume}"))
}

/// Gives the spec of a pod the volumes of claims, given by the names of volume and claim: before its other volumes, and in place
/// of those of the same name.
pub fn put_claims(spec: &mut Value, claims: &[(&str, &str)]) {
    if claims.is_empty() {
        return;
    }
    let of_claim = |(volume, claim): &(&str, &str)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}});
    let others = items(&spec["volumes"]).iter();
    let others = others.filter(|other| !claims.iter().any(|(volume, _)| other["name"] == **volume));
    let volumes: Vec<Value> = claims.iter().map(of_claim).chain(others.cloned()).collect();
    spec["volumes"] = volumes.into();
}
