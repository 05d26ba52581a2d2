//! The names of CRDs: which are accepted, and the conditions that say so.

use std::collections::BTreeSet;
use std::sync::Arc;

use operetta_kube_model::Fault;
use operetta_kube_model::crd::{compile_rules, unique_names};
use operetta_kube_model::schema::Notation;
use serde_json::{Value, json};

use super::{CRDS, Schema, status_manager};
use crate::api::Api;
use crate::store::Parsed;
use crate::{deletion, meta, stored};

/// Instances of a CRD are deleted before it is.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Changes a new CRD before it is checked.
pub(crate) fn prepare(object: &mut Value) {
    let versions = object["spec"]["versions"].as_array().into_iter().flatten();
    let stored: Vec<Value> = versions
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    let stored = if stored.is_empty() { Value::Null } else { stored.into() };
    object["status"] =
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
}

/// What is wrong with a CRD.
pub(crate) fn check(object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let spec = &object["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, plural, group) =
        (meta::text(object, "name"), text(&spec["names"]["plural"]), text(&spec["group"]));
    if name != format!("{plural}.{group}") {
        faults.push(Fault::invalid("metadata.name", name, "must be spec.names.plural+\".\"+spec.group"));
    }
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (at, version) in versions.iter().enumerate() {
        let schema = &version["schema"]["openAPIV3Schema"];
        let path = format!("spec.versions[{at}].schema.openAPIV3Schema");
        if !schema.is_object() {
            faults.push(Fault::required(path, ""));
        } else if schema["type"].is_null() {
            let path = if versions.len() == 1 { "spec.validation.openAPIV3Schema".to_owned() } else { path };
            faults.push(Fault::required(format!("{path}.type"), "must not be empty at the root"));
        } else if !Schema::of(schema).is_valid {
            let path = if versions.len() == 1 { "spec.validation.openAPIV3Schema" } else { &*path };
            let (_, refused) = compile_rules(schema, path, Notation::Keyed);
            faults.extend(refused.into_iter().map(|refusal| refusal.fault));
        }
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let shown = if versions.is_empty() { json!([]) } else { spec["versions"].clone() };
        faults.push(Fault::invalid(
            "spec.versions",
            shown,
            "must have exactly one version marked as storage version",
        ));
    }
    if object["status"]["storedVersions"].as_array().is_none_or(Vec::is_empty) {
        faults.push(Fault::invalid(
            "status.storedVersions",
            Value::Null,
            "must have at least one stored version",
        ));
    }
    faults
}

/// Lets the controllers of CRDs act: names are accepted, instances of deleted ones go. Returns whether something changed.
pub(crate) fn tick(api: &mut Api, now: &str) -> bool {
    let crds = api.store.range(CRDS, "", None);
    let crds: Vec<(Arc<str>, Arc<Parsed>)> =
        crds.map(|(key, object)| (key.clone(), object.parsed())).collect();
    let mut changed = false;
    for (key, crd) in &crds {
        changed |= if crd.value["metadata"]["deletionTimestamp"].is_null() {
            accept(api, key, crd, &crds, now)
        } else {
            clean(api, key, &crd.value, now)
        };
    }
    changed
}

fn accept(api: &mut Api, key: &str, parsed: &Parsed, all: &[(Arc<str>, Arc<Parsed>)], now: &str) -> bool {
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
    store(api, key, next);
    true
}

/// Marks a CRD as being deleted: its instances go first.
pub(crate) fn begin_delete(object: &mut Value, now: &str) {
    let meta = &mut object["metadata"];
    meta["deletionTimestamp"] = now.into();
    let finalizers = meta["finalizers"].as_array().cloned().unwrap_or_default();
    meta["finalizers"] = finalizers.into_iter().chain([CLEANUP.into()]).collect::<Vec<Value>>().into();
    let terminating = json!({"type": "Terminating", "status": "True", "lastTransitionTime": now, "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"});
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    object["status"]["conditions"] = conditions.into_iter().chain([terminating]).collect::<Vec<_>>().into();
}

/// Deletes the instances of a CRD, and then lets it go.
fn clean(api: &mut Api, key: &str, crd: &Value, now: &str) -> bool {
    let finalizers = crd["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == CLEANUP) {
        return false;
    }
    let storage = key.trim_start_matches('/');
    let instances: Vec<_> =
        api.store.range(storage, "", None).map(|(key, object)| (key.clone(), object.clone())).collect();
    if instances.is_empty() {
        let mut next = crd.clone();
        let rest: Vec<Value> = finalizers.into_iter().filter(|finalizer| finalizer != CLEANUP).collect();
        next["metadata"]["finalizers"] = rest.into();
        store(api, key, next);
        return true;
    }
    let mut changed = false;
    if let Some(kind) = api.kinds.stored(storage).cloned() {
        for (key, object) in instances.iter().filter(|(_, object)| !object.is_deleting) {
            let options = deletion::DeleteOptions::background(&object.uid);
            changed |= deletion::delete_one(api, &kind, key, object, &options, now).is_ok();
        }
    }
    changed
}

fn store(api: &mut Api, key: &str, crd: Value) {
    if let Some(kind) = api.kinds.find("apiextensions.k8s.io", "v1", "customresourcedefinitions").cloned() {
        stored::put(api, &kind, key, crd);
    }
}
