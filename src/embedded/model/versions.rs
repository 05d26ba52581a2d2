//! Objects in the version that is asked for. Versions of a CRD differ in their schema only, unless it names a webhook.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Failure, Kind, Object, Outcome, Parsed};
use crate::crd::Hook;

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
pub(crate) fn read(kind: &Kind, object: &Object) -> Outcome<Value> {
    let mut value = object.value();
    if !is_current(kind, object) {
        convert(kind, &mut value)?;
    }
    Ok(value)
}

/// A stored object in the version of a kind, and its managers.
pub(crate) fn parsed(kind: &Kind, object: &Object) -> Outcome<Arc<Parsed>> {
    if is_current(kind, object) { Ok(object.parsed()) } else { Ok(Arc::new(Parsed::of(read(kind, object)?))) }
}

/// The object as it is stored. With a webhook, that is always in the version of storage.
pub(crate) fn for_storage(kind: &Kind, mut object: Value) -> Outcome<Value> {
    if let Some(hook) = hook(kind) {
        ask(kind, hook, &hook.storage, &mut object)?;
    }
    Ok(object)
}

pub(crate) fn hook(kind: &Kind) -> Option<&Hook> {
    kind.custom()?.hook.as_ref()
}

/// Lets a webhook convert an object to a version. Only labels and annotations of its metadata can change.
fn ask(kind: &Kind, hook: &Hook, version: &str, value: &mut Value) -> Outcome<()> {
    let wanted = format!("{}/{version}", kind.group);
    if value["apiVersion"] == *wanted {
        return Ok(());
    }
    let uid = value["metadata"]["uid"].clone();
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": [value]}});
    let failed = |why: &str| {
        let from = value["apiVersion"].as_str().unwrap_or_default();
        Failure::internal(format!("conversion webhook for {from}, Kind={} failed: {why}", kind.kind))
    };
    let answer = hook.webhook.convert(&review).map_err(|why| failed(&why))?;
    let response = &answer["response"];
    if response["result"]["status"] != "Success" {
        return Err(failed(response["result"]["message"].as_str().unwrap_or("no result")));
    }
    let mut converted = response["convertedObjects"][0].clone();
    if converted["apiVersion"] != *wanted || converted["kind"] != value["kind"] {
        return Err(failed("the converted object has another version or kind"));
    }
    let mut meta = value["metadata"].clone();
    for field in ["labels", "annotations"] {
        match converted["metadata"].get(field) {
            Some(found) => meta[field] = found.clone(),
            None => drop(meta.as_object_mut().and_then(|meta| meta.remove(field))),
        }
    }
    converted["metadata"] = meta;
    *value = converted;
    Ok(())
}

/// A stored object with the fields by which it is selected: those of events have the names of the old group.
pub(crate) fn selectable(object: &Object) -> Value {
    old_event(&object.value())
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
pub(crate) fn convert(kind: &Kind, value: &mut Value) -> Outcome<()> {
    translate(kind, value)?;
    if let Some(custom) = kind.custom() {
        custom.settle(value);
    }
    Ok(())
}

/// Converts an object to the version of a kind. A custom resource keeps fields that the version does not have.
pub(crate) fn translate(kind: &Kind, value: &mut Value) -> Outcome<()> {
    if let Some(hook) = hook(kind) {
        ask(kind, hook, &kind.version, value)?;
    }
    if kind.plural == "events" && value["apiVersion"] != kind.api_version() {
        event(value, kind.group.is_empty());
        // A group writes empty fields that the other does not have.
        crate::decode::decode(kind.typed(), value).ok();
    }
    if kind.plural == "horizontalpodautoscalers" && value["apiVersion"] != kind.api_version() {
        super::autoscalers::convert(value, kind.version == "v1");
        crate::decode::decode(kind.typed(), value).ok();
    }
    value["apiVersion"] = kind.api_version().into();
    Ok(())
}

/// An event with the fields of the old group.
pub(crate) fn old_event(value: &Value) -> Value {
    let mut value = value.clone();
    if value["apiVersion"] == "events.k8s.io/v1" {
        event(&mut value, true);
    }
    value
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
