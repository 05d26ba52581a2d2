//! What there is at the end of a play, in a form in which two plays of a case can be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::view::View;
use crate::children::names::MANAGER_NAMESPACE;
use crate::plan::crds::INSTANCE_STATE;

/// Objects by their kind and name, without what differs between two plays that end the same.
pub(crate) type End = BTreeMap<String, Vec<Value>>;

/// Values that depend on when something was made, and how often: times, hashes of them, uids, suffixes of names, addresses.
static GENERATED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+Z|\b[0-9a-f]{8,64}\b|\b10\.\d+\.\d+\.\d+\b|-[bcdfghjklmnpqrstvwxz2456789]{5}\b",
    )
    .ok()
});

/// Whether a text has a value that each play makes anew.
pub(super) fn is_generated(text: &str) -> bool {
    GENERATED.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

/// Kinds that belong to the end beside those of the package.
const KINDS: [&str; 6] = ["Pod", "PersistentVolumeClaim", "Job", "ConfigMap", "Secret", INSTANCE_STATE.kind];

/// Kinds of which only the names are compared: what is in them differs from play to play.
const NAMES_ONLY: [&str; 3] = ["Pod", "Secret", INSTANCE_STATE.kind];

/// Fields of a spec that the API server or a controller chooses.
const CHOSEN: [&str; 6] =
    ["clusterIP", "clusterIPs", "nodeName", "volumeName", "nodePort", "healthCheckNodePort"];

pub(super) fn of(view: &View<'_>) -> End {
    let resources = view.packages.iter().flat_map(|package| &package.resources);
    let mut kinds: BTreeSet<String> = KINDS.iter().map(|kind| (*kind).to_owned()).collect();
    let mut instances = BTreeSet::new();
    for resource in resources {
        instances.insert(resource.kind.kind.clone());
        kinds.extend(resource.children.iter().flat_map(|child| &child.kinds).map(|gvk| gvk.kind.to_string()));
    }
    let mut end = End::new();
    for kind in kinds.union(&instances) {
        for object in view.list(kind, "") {
            let object = object.value;
            let meta = &object["metadata"];
            if meta["namespace"] == MANAGER_NAMESPACE {
                continue; // what managers keep for themselves
            }
            let name = cleaned(meta["name"].as_str().unwrap_or_default());
            let mut value = Map::new();
            for key in ["spec", "data", "rules", "subjects"] {
                if !NAMES_ONLY.contains(&kind.as_str()) && !object[key].is_null() {
                    value.insert(key.to_owned(), clean(&object[key]));
                }
            }
            if instances.contains(kind) {
                value.insert("status".to_owned(), status(&object["status"]));
            }
            if !meta["deletionTimestamp"].is_null() {
                value.insert("isDeleting".to_owned(), true.into());
            }
            let place = format!("{kind} {}/{name}", meta["namespace"].as_str().unwrap_or_default());
            end.entry(place).or_default().push(value.into());
        }
    }
    for run in view.runs() {
        let place = format!("runs of plan {}", run["spec"]["plan"].as_str().unwrap_or_default());
        end.entry(place).or_default().push(run["status"]["phase"].clone());
    }
    end
}

/// The status of an instance: of its conditions only what they say.
fn status(status: &Value) -> Value {
    let mut status = clean(status);
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let said =
        conditions.iter().filter_map(|one| Some((one["type"].as_str()?.to_owned(), one["status"].clone())));
    let said: Map<String, Value> = said.collect();
    status["conditions"] = json!(said);
    status
}

pub(super) fn cleaned(text: &str) -> String {
    match &*GENERATED {
        Some(pattern) => pattern.replace_all(text, "~").into_owned(),
        None => text.to_owned(),
    }
}

fn clean(value: &Value) -> Value {
    match value {
        Value::String(text) => cleaned(text).into(),
        Value::Array(items) => items.iter().map(clean).collect(),
        Value::Object(map) => map
            .iter()
            .filter(|(key, _)| !CHOSEN.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), clean(value)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// How an end differs from the undisturbed one, a line each.
pub(super) fn differences(undisturbed: &End, found: &End) -> Vec<String> {
    let places: BTreeSet<&String> = undisturbed.keys().chain(found.keys()).collect();
    let mut lines = Vec::new();
    for place in places {
        let none = Vec::new();
        let (before, now) = (undisturbed.get(place).unwrap_or(&none), found.get(place).unwrap_or(&none));
        if before == now {
            continue;
        }
        if before.len() != now.len() {
            lines.push(format!(
                "{place}: {} at the end, and {} without disturbance",
                now.len(),
                before.len()
            ));
            continue;
        }
        for (before, now) in before.iter().zip(now) {
            for difference in super::matching::differences(before, Some(now), "") {
                let found = difference.found.map_or_else(|| "absent".to_owned(), |found| found.to_string());
                lines.push(format!(
                    "{place}: {} is {found}, and {} without disturbance",
                    difference.path, difference.expected
                ));
            }
        }
    }
    lines
}
