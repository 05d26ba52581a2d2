//! What objects say: reading them without their types.

use serde_json::{Value, json};

/// The `ConfigMap` of each namespace with the certificates that pods trust.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";

/// The key of an object in the store.
pub(crate) fn key_of(object: &Value) -> String {
    format!("{}/{}", namespace(object), name(object))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

pub(crate) fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

pub(crate) fn namespace(object: &Value) -> &str {
    text(&object["metadata"]["namespace"])
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// A condition of an object.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == kind)
}

pub(crate) fn has_condition(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Whether a pod is ready.
pub(crate) fn is_ready(pod: &Value) -> bool {
    has_condition(pod, "Ready")
}

/// Whether a pod has ended.
pub(crate) fn is_terminal(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

/// The claims that a pod mounts.
pub(crate) fn claims(pod: &Value) -> Vec<String> {
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

/// The key of the volume of a claim.
pub(crate) fn volume_of(claim: &Value) -> Option<String> {
    claim["spec"]["volumeName"]
        .as_str()
        .filter(|volume| !volume.is_empty())
        .map(|volume| format!("/{volume}"))
}

/// Gives the spec of a pod the volumes of claims, given by the names of volume and claim: before its other volumes, and in place of those of
/// the same name.
pub(crate) fn put_claims(spec: &mut Value, claims: &[(&str, &str)]) {
    if claims.is_empty() {
        return;
    }
    let of_claim = |(volume, claim): &(&str, &str)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}});
    let others = items(&spec["volumes"]).iter();
    let others = others.filter(|other| !claims.iter().any(|(volume, _)| other["name"] == **volume));
    let volumes: Vec<Value> = claims.iter().map(of_claim).chain(others.cloned()).collect();
    spec["volumes"] = volumes.into();
}
