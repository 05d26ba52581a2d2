//! Checks that the rules of several kinds share.

use operetta_kube_model::Fault;
use serde_json::{Map, Value};

pub(crate) type Faults = Vec<Fault>;

/// The fields of a spec but some.
pub(super) fn rest(spec: &Value, open: &[&str]) -> Map<String, Value> {
    let mut map = spec.as_object().cloned().unwrap_or_default();
    map.retain(|name, _| !open.contains(&name.as_str()));
    map
}

pub(super) fn immutable(path: &str, old: &Value, new: &Value, faults: &mut Faults) {
    if old != new && !(is_empty(old) && is_empty(new)) {
        faults.push(Fault::invalid(path, new.clone(), "field is immutable"));
    }
}

pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

pub(super) fn not_negative(spec: &Value, field: &str, path: &str, faults: &mut Faults) {
    if let Some(number) = spec[field].as_i64().filter(|number| *number < 0) {
        faults.push(Fault::invalid(format!("{path}.{field}"), number, "must be greater than or equal to 0"));
    }
}

pub(crate) fn port(value: &Value, path: &str, faults: &mut Faults) {
    if let Some(number) = value.as_i64().filter(|number| !(1..=65_535).contains(number)) {
        faults.push(Fault::invalid(path, number, "must be between 1 and 65535, inclusive"));
    }
}
