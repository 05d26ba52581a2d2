//! CRDs as objects: what the server sets in them, and what is wrong with them.

use operetta_kube_model::Fault;
use operetta_kube_model::crd::compile_rules;
use operetta_kube_model::facts;
use operetta_kube_model::schema::Notation;
use serde_json::{Value, json};

use super::Schema;

/// Instances of a CRD are deleted before it is.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

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

/// Changes the next state of a CRD before it is checked: objects will be stored in its storage version.
pub(crate) fn prepare_update(object: &mut Value) {
    let mut versions = object["spec"]["versions"].as_array().into_iter().flatten();
    let name = versions.find(|version| version["storage"] == true).map(|version| version["name"].clone());
    if let (Some(name), Some(stored)) = (name, object["status"]["storedVersions"].as_array_mut())
        && !stored.contains(&name)
    {
        stored.push(name);
    }
}

/// What is wrong with a CRD.
pub(crate) fn check(object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let spec = &object["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, plural, group) = (facts::name(object), text(&spec["names"]["plural"]), text(&spec["group"]));
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
    let stored = object["status"]["storedVersions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if stored.is_empty() {
        faults.push(Fault::invalid(
            "status.storedVersions",
            Value::Null,
            "must have at least one stored version",
        ));
    }
    for (at, name) in stored.iter().enumerate() {
        if versions.iter().any(|version| version["name"] == *name) {
            continue;
        }
        let shown = text(name);
        let why = format!(
            "missing from spec.versions; {shown} was previously a storage version, and must remain in spec.versions until a \
             storage migration ensures no data remains persisted in {shown} and removes {shown} from status.storedVersions"
        );
        faults.push(Fault::invalid(format!("status.storedVersions[{at}]"), shown, why));
    }
    faults
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
