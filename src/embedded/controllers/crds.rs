//! CRDs: which names are accepted, the conditions that say so, and the end of their instances.

use std::collections::BTreeSet;
use std::sync::Arc;

use operetta_kube_model::crd::unique_names;
use serde_json::{Map, Value, json};

use crate::crd::{CLEANUP, CRDS};
use crate::model::Parsed;
use crate::state::State;
use crate::state::stored::put;
use crate::verbs::delete::{DeleteOptions, delete_one};

/// Lets the controllers of CRDs act: names are accepted, instances of deleted ones go. Returns whether something changed.
pub(crate) fn tick(state: &mut State, now: &str) -> bool {
    let crds = state.store.range(CRDS, "", None);
    let crds: Vec<(Arc<str>, Arc<Parsed>)> =
        crds.map(|(key, object)| (key.clone(), object.parsed())).collect();
    let mut changed = false;
    for (key, crd) in &crds {
        changed |= if crd.value["metadata"]["deletionTimestamp"].is_null() {
            accept(state, key, crd, &crds, now)
        } else {
            clean(state, key, &crd.value, now)
        };
    }
    changed
}

fn accept(state: &mut State, key: &str, parsed: &Parsed, all: &[(Arc<str>, Arc<Parsed>)], now: &str) -> bool {
    let crd = &parsed.value;
    let names = &crd["spec"]["names"];
    if crd["status"]["acceptedNames"] == *names {
        return false;
    }
    let mut used = [BTreeSet::new(), BTreeSet::new()];
    for (known, other) in all {
        if **known != *key && other.value["spec"]["group"] == crd["spec"]["group"] {
            let names = unique_names(&other.value["status"]["acceptedNames"]);
            for (used, names) in used.iter_mut().zip(names) {
                used.extend(names);
            }
        }
    }
    let mut accepted = names.as_object().cloned().unwrap_or_default();
    let mut conflict = None;
    // The last conflict is the one that is reported.
    let fields = [
        ("plural", "PluralConflict", 0),
        ("singular", "SingularConflict", 0),
        ("shortNames", "ShortNamesConflict", 0),
        ("kind", "KindConflict", 1),
        ("listKind", "ListKindConflict", 1),
    ];
    for (field, reason, of) in fields {
        let wanted = names[field].as_array().map_or(std::slice::from_ref(&names[field]), Vec::as_slice);
        let is_used = |name: &&Value| name.as_str().is_some_and(|name| used[of].contains(name));
        if let Some(name) = wanted.iter().find(is_used) {
            conflict = Some((reason, name.clone()));
            match field {
                "plural" | "kind" => accepted.insert(field.to_owned(), "".into()),
                _ => accepted.remove(field),
            };
        }
    }
    let condition = |kind: &str, status: &str, reason: &str, message: String| json!({"type": kind, "status": status, "lastTransitionTime": now, "reason": reason, "message": message});
    let mut next = parsed.whole();
    let conditions = match &conflict {
        None => vec![
            condition("NamesAccepted", "True", "NoConflicts", "no conflicts found".to_owned()),
            condition(
                "Established",
                "True",
                "InitialNamesAccepted",
                "the initial names have been accepted".to_owned(),
            ),
        ],
        Some((reason, name)) => vec![
            condition("NamesAccepted", "False", reason, format!("{name} is already in use")),
            condition("Established", "False", "NotAccepted", "not all names are accepted".to_owned()),
        ],
    };
    if next["status"]["conditions"].as_array().is_some_and(|all| {
        all.len() == conditions.len()
            && all
                .iter()
                .zip(&conditions)
                .all(|(a, b)| a["status"] == b["status"] && a["reason"] == b["reason"])
    }) && conflict.is_some()
    {
        return false;
    }
    next["status"]["conditions"] = conditions.into();
    let mut owned = accepted.clone();
    owned.retain(|_, name| *name != "");
    let entry = status_manager(now, &["Established", "NamesAccepted"], &owned);
    next["status"]["acceptedNames"] = accepted.into();
    let managers = next["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    next["metadata"]["managedFields"] = managers.into_iter().chain([entry]).collect::<Vec<_>>().into();
    store(state, key, next);
    true
}

/// Deletes the instances of a CRD, and then lets it go.
fn clean(state: &mut State, key: &str, crd: &Value, now: &str) -> bool {
    let finalizers = crd["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == CLEANUP) {
        return false;
    }
    let storage = key.trim_start_matches('/');
    let instances: Vec<_> =
        state.store.range(storage, "", None).map(|(key, object)| (key.clone(), object.clone())).collect();
    let mut changed = false;
    if let Some(kind) = state.kinds.stored(storage).cloned() {
        for (key, object) in instances.iter().filter(|(_, object)| !object.is_deleting) {
            let options = DeleteOptions::background(&object.uid);
            changed |= delete_one(state, &kind, key, object, &options, now).is_ok();
        }
    }
    // It looks at once whether all are gone: a client that applies them again does not keep the CRD.
    if state.store.range(storage, "", None).next().is_none() {
        let mut next = crd.clone();
        let rest: Vec<Value> = finalizers.into_iter().filter(|finalizer| finalizer != CLEANUP).collect();
        next["metadata"]["finalizers"] = rest.into();
        store(state, key, next);
        changed = true;
    }
    changed
}

fn store(state: &mut State, key: &str, crd: Value) {
    if let Some(kind) = state.kinds.find("apiextensions.k8s.io", "v1", "customresourcedefinitions").cloned() {
        put(state, &kind, key, crd);
    }
}

/// The managers of what the server writes into the status of CRDs.
fn status_manager(now: &str, conditions: &[&str], names: &Map<String, Value>) -> Value {
    let fields: Map<String, Value> = conditions
        .iter()
        .map(|kind| {
            let item = json!({".": {}, "f:lastTransitionTime": {}, "f:message": {}, "f:reason": {}, "f:status": {}, "f:type": {}});
            (format!("k:{{\"type\":\"{kind}\"}}"), item)
        })
        .collect();
    let names: Map<String, Value> = names.keys().map(|name| (format!("f:{name}"), json!({}))).collect();
    json!({"manager": "kube-apiserver", "operation": "Update", "apiVersion": "apiextensions.k8s.io/v1", "time": now,
        "fieldsType": "FieldsV1", "subresource": "status",
        "fieldsV1": {"f:status": {"f:acceptedNames": names, "f:conditions": fields}}})
}
