//! The rules for claims.

use operetta_kube_model::Fault;
use operetta_kube_model::facts::{items, text};
use operetta_kube_model::quantity::Quantity;
use serde_json::{Map, Value};

use super::checks::{Faults, immutable, is_empty, rest};

/// The rules for the spec of a claim.
pub(super) fn claim(spec: &Value, path: &str, faults: &mut Faults) {
    let modes = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    if is_empty(&spec["accessModes"]) {
        faults.push(Fault::required(format!("{path}.accessModes"), "at least 1 access mode is required"));
    }
    for mode in items(&spec["accessModes"]).iter().filter(|mode| !modes.contains(&text(mode))) {
        faults.push(Fault::not_supported(format!("{path}.accessModes"), mode.clone(), &modes));
    }
    if spec["resources"]["requests"]["storage"].is_null() {
        faults.push(Fault::required(format!("{path}.resources[storage]"), ""));
    }
}

/// Checks the next state of a claim.
pub(super) fn update(live: &Value, claim: &Value, faults: &mut Faults) {
    let is_bound = live["status"]["phase"] == "Bound";
    let mut open = Vec::new();
    if text(&live["spec"]["volumeName"]).is_empty() {
        open.push("volumeName");
    }
    // A claim can get the class that it was made without.
    if live["spec"]["storageClassName"].is_null() {
        open.push("storageClassName");
    }
    if is_bound {
        open.push("volumeAttributesClassName");
    }
    let [mut old, mut new] = [live, claim].map(|claim| rest(&claim["spec"], &open));
    if is_bound && claim["spec"]["resources"]["requests"].is_object() {
        forget_size(&mut old);
        forget_size(&mut new);
    }
    if old != new {
        faults.push(Fault::forbidden("spec", "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"));
    }
    let size = |value: &Value| Quantity::saturating(text(value)).unwrap_or_default();
    let [before, after] = [live, claim].map(|claim| size(&claim["spec"]["resources"]["requests"]["storage"]));
    if after < before && after <= size(&live["status"]["capacity"]["storage"]) {
        let why = "field can not be less than status.capacity";
        faults.push(Fault::forbidden("spec.resources.requests.storage", why));
    }
    immutable("volumeMode", &live["spec"]["volumeMode"], &claim["spec"]["volumeMode"], faults);
}

fn forget_size(spec: &mut Map<String, Value>) {
    let requests = spec.get_mut("resources").and_then(|resources| resources.get_mut("requests"));
    if let Some(requests) = requests.and_then(Value::as_object_mut) {
        requests.remove("storage");
    }
}
