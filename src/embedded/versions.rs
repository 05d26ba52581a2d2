//! Objects in the version that is asked for. Versions of a CRD differ in their schema only.

use serde_json::{Map, Value};

use crate::kinds::Kind;
use crate::store::Object;

/// Fields of events, in their old and their new group.
const EVENT_FIELDS: [(&str, &str); 6] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// A stored object in the version of a kind.
pub(crate) fn read(kind: &Kind, object: &Object) -> Value {
    let mut value = object.value();
    convert(kind, &mut value);
    value
}

/// A stored object with the fields by which it is selected: those of events have the names of the old group.
pub(crate) fn selectable(object: &Object) -> Value {
    let mut value = object.value();
    if value["apiVersion"] == "events.k8s.io/v1" {
        event(&mut value, true);
    }
    value
}

/// Whether a stored object can be passed on as it is.
pub(crate) fn is_current(kind: &Kind, object: &Object) -> bool {
    // `apiVersion` is the first key of every object.
    let head = object.json.strip_prefix("{\"apiVersion\":\"");
    let version = head.and_then(|rest| rest.split_once('"')).map(|(version, _)| version);
    version.is_some_and(|version| {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        group == kind.group && version == kind.version
    }) && kind.custom().is_none_or(|custom| custom.is_first)
}

/// Converts an object to the version of a kind.
pub(crate) fn convert(kind: &Kind, value: &mut Value) {
    if kind.plural == "events" && value["apiVersion"] != kind.api_version() {
        event(value, kind.group.is_empty());
        // A group writes empty fields that the other does not have.
        crate::decode::decode(kind.typed(), value).ok();
    }
    value["apiVersion"] = kind.api_version().into();
    if let Some(custom) = kind.custom() {
        custom.settle(value);
    }
}

fn event(value: &mut Value, to_old: bool) {
    let Some(map) = value.as_object_mut() else { return };
    let rename = |from: &str, to: &str, map: &mut Map<String, Value>| {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    };
    for (old, new) in EVENT_FIELDS.iter().copied().chain([("reportingComponent", "reportingController")]) {
        if to_old { rename(new, old, map) } else { rename(old, new, map) }
    }
}
