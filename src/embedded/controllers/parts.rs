//! Functions that several controllers use: pods, conditions, times, numbers.

use jiff::{SignedDuration, Timestamp};
use operetta_kube_model::facts::{condition, is_deleting, is_terminal, name, number, text, time, uid};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::client::Resource;

/// A time later than another.
pub(super) fn after(time: Timestamp, span: SignedDuration) -> Timestamp {
    time.checked_add(span).unwrap_or(time)
}

pub(super) fn seconds_after(time: Timestamp, seconds: i64) -> Timestamp {
    after(time, SignedDuration::from_secs(seconds))
}

/// A time of an object.
pub(super) fn parse_time(value: &Value) -> Option<Timestamp> {
    text(value).parse().ok()
}

/// Whether a pod counts as a replica.
pub(super) fn is_active(pod: &Value) -> bool {
    !is_terminal(pod) && !is_deleting(pod)
}

/// The time from which a pod is available; `None` while it is not ready.
pub(super) fn available_at(pod: &Value, min_ready: i64) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|condition| condition["status"] == "True")?;
    let since = parse_time(&ready["lastTransitionTime"]).unwrap_or(Timestamp::UNIX_EPOCH);
    Some(seconds_after(since, min_ready))
}

pub(super) fn is_available(pod: &Value, min_ready: i64, now: Timestamp) -> bool {
    available_at(pod, min_ready).is_some_and(|at| at <= now)
}

/// When the next pod becomes available.
pub(super) fn next_available(pods: &[Value], min_ready: i64, now: Timestamp) -> Option<Timestamp> {
    pods.iter().filter_map(|pod| available_at(pod, min_ready)).filter(|at| *at > now).min()
}

/// The earlier one of two times.
pub(super) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}

/// The reference of the controller that owns an object.
pub(super) fn owner(resource: &Resource, object: &Value) -> Value {
    json!({"apiVersion": resource.version, "kind": resource.kind, "name": name(object), "uid": uid(object),
        "controller": true, "blockOwnerDeletion": true})
}

/// A pod from the template of a workload, with a generated name.
pub(super) fn pod(resource: &Resource, object: &Value, template: &Value) -> Value {
    let mut meta = Map::new();
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template["metadata"].get(field).filter(|value| !value.is_null()) {
            meta.insert(field.to_owned(), value.clone());
        }
    }
    meta.insert("namespace".to_owned(), object["metadata"]["namespace"].clone());
    meta.insert("generateName".to_owned(), format!("{}-", name(object)).into());
    meta.insert("ownerReferences".to_owned(), json!([owner(resource, object)]));
    json!({"metadata": meta, "spec": template["spec"]})
}

/// A number, or a percentage of the total.
pub(super) fn scaled(value: &Value, total: i64, up: bool) -> i64 {
    match value.as_str().and_then(|text| text.trim_end_matches('%').parse::<i64>().ok()) {
        Some(percent) if up => (percent * total + 99) / 100,
        Some(percent) => percent * total / 100,
        None => number(value),
    }
}

/// A short name of a value, as Kubernetes forms it of a hash.
pub(super) fn hash(value: &Value, collisions: i64) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut digest = Sha256::new();
    digest.update(value.to_string());
    if collisions > 0 {
        digest.update(collisions.to_be_bytes());
    }
    let digest = digest.finalize();
    let number = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    number.to_string().bytes().map(|digit| char::from(LETTERS[usize::from(digit) % 27])).collect()
}

/// A status without the numbers that are zero and named.
pub(super) fn without_zeros(mut status: Value, names: &[&str]) -> Value {
    if let Some(map) = status.as_object_mut() {
        map.retain(|name, value| !names.contains(&name.as_str()) || *value != 0);
    }
    status
}

/// Sets a condition as controllers of workloads do: one with the same status and reason stays.
pub(super) fn put_condition(conditions: &mut Vec<Value>, mut new: Value, now: Timestamp) {
    let old = conditions.iter().find(|known| known["type"] == new["type"]);
    new["lastTransitionTime"] = time(now).into();
    if let Some(old) = old {
        if old["status"] == new["status"] && old["reason"] == new["reason"] {
            return;
        }
        if old["status"] == new["status"] {
            new["lastTransitionTime"] = old["lastTransitionTime"].clone();
        }
    }
    conditions.retain(|known| known["type"] != new["type"]);
    conditions.push(new);
}

/// Puts a map of labels or annotations into another one.
pub(super) fn put_all(target: &mut Value, entries: &Value) {
    for (key, value) in entries.as_object().into_iter().flatten() {
        target[key] = value.clone();
    }
}
