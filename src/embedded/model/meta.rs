//! `metadata`: what every object has, and the rules for it.

use operetta_kube_model::Fault;
use operetta_kube_model::validation::{
    dns_label, dns_subdomain, label_key, label_value, path_segment, qualified_name,
};
use serde_json::{Value, json};

use super::{Context, Failure, Kind, Object, Outcome};

/// A text of the metadata; empty if it is absent.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// The version of an object, or the one that a write expects; 0 if there is none.
pub(crate) fn version(object: &Value) -> Outcome<u64> {
    match text(object, "resourceVersion") {
        "" => Ok(0),
        text => text
            .parse()
            .map_err(|_| Failure::plain(500, format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))),
    }
}

/// Whether the object is being deleted and nothing holds it back.
pub(crate) fn is_released(kind: &Kind, object: &Value) -> bool {
    let meta = &object["metadata"];
    let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    let held =
        kind.plural == "namespaces" && kind.group.is_empty() && !is_empty(&object["spec"]["finalizers"]);
    !meta["deletionTimestamp"].is_null()
        && is_empty(&meta["finalizers"])
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && !held
}

/// The name and namespace of the body must be those of the path.
pub(crate) fn check_path(context: &Context<'_>, object: &mut Value) -> Outcome<()> {
    let name = text(object, "name");
    if name.is_empty() {
        object["metadata"]["name"] = context.name().into();
    } else if name != context.name() {
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            context.name()
        )));
    }
    settle_namespace(context, object)
}

/// An object has the namespace of the path. One of a kind without namespaces loses the one that it names.
pub(crate) fn settle_namespace(context: &Context<'_>, object: &mut Value) -> Outcome<()> {
    if !context.kind.namespaced {
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("namespace");
        }
        return Ok(());
    }
    let namespace = text(object, "namespace");
    if namespace.is_empty() {
        object["metadata"]["namespace"] = context.namespace().into();
    } else if namespace != context.namespace() {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Fields that an update cannot change.
pub(crate) fn carry_over(live: &Value, object: &mut Value) {
    let Some(meta) = object["metadata"].as_object_mut() else { return };
    let old = &live["metadata"];
    for field in ["generation", "creationTimestamp", "deletionTimestamp"] {
        match old.get(field) {
            Some(value) => meta.insert(field.to_owned(), value.clone()),
            None if field != "creationTimestamp" => meta.remove(field),
            None => None,
        };
    }
    if let Some(grace) = old.get("deletionGracePeriodSeconds") {
        meta.entry("deletionGracePeriodSeconds").or_insert_with(|| grace.clone());
    }
    if meta.get("uid").and_then(Value::as_str).is_none_or(str::is_empty) {
        meta.insert("uid".to_owned(), old["uid"].clone());
    }
    meta.remove("selfLink");
}

/// The rules for the metadata of all objects.
pub(crate) fn check(kind: &Kind, object: &Value) -> Vec<Fault> {
    let meta = &object["metadata"];
    let mut faults = Vec::new();
    let name = text(object, "name");
    if let Some(generate) = meta["generateName"].as_str().filter(|generate| !generate.is_empty()) {
        let cut = generate.trim_end_matches('-');
        faults
            .extend(name_fault(kind, cut).map(|why| Fault::invalid("metadata.generateName", generate, why)));
    }
    if name.is_empty() {
        faults.push(Fault::required("metadata.name", "name or generateName is required"));
    } else if let Some(why) = name_fault(kind, name) {
        faults.push(Fault::invalid("metadata.name", name, why));
    }
    for (key, value) in meta["labels"].as_object().into_iter().flatten() {
        if let Some(why) = label_key(key) {
            faults.push(Fault::invalid("metadata.labels", key.as_str(), why));
        }
        let value = value.as_str().unwrap_or_default();
        if let Some(why) = label_value(value) {
            faults.push(Fault::invalid("metadata.labels", value, why));
        }
    }
    let mut size = 0;
    for (key, value) in meta["annotations"].as_object().into_iter().flatten() {
        if let Some(why) = label_key(&key.to_lowercase()) {
            faults.push(Fault::invalid("metadata.annotations", key.as_str(), why));
        }
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > 256 << 10 {
        faults.push(Fault::too_long("metadata.annotations", "may not be more than 262144 bytes"));
    }
    owners(meta, &mut faults);
    for (at, finalizer) in meta["finalizers"].as_array().into_iter().flatten().enumerate() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        let path = format!("metadata.finalizers[{at}]");
        if let Some(why) = qualified_name(finalizer) {
            faults.push(Fault::invalid(path, finalizer, why));
        } else if !finalizer.contains('/')
            && !["orphan", "foregroundDeletion", "kubernetes"].contains(&finalizer)
            && kind.custom().is_none()
        {
            faults.push(Fault::invalid(
                path,
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    faults
}

fn owners(meta: &Value, faults: &mut Vec<Fault>) {
    let mut controllers = Vec::new();
    for owner in meta["ownerReferences"].as_array().into_iter().flatten() {
        let path = "metadata.ownerReferences";
        let version = owner["apiVersion"].as_str().unwrap_or_default();
        if version.is_empty() {
            faults.push(Fault::invalid(format!("{path}.apiVersion"), version, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                faults.push(Fault::invalid(format!("{path}.{field}"), "", "must not be empty"));
            }
        }
        if version == "v1" && owner["kind"] == "Event" {
            faults.push(Fault::invalid(
                path,
                owner.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if owner["controller"] == true {
            let text = |field: &str| owner[field].as_str().unwrap_or_default();
            controllers.push(format!("{}/{}", text("kind"), text("name")));
        }
    }
    if let [.., first, second] = &controllers[..] {
        let all: Vec<String> =
            meta["ownerReferences"].as_array().into_iter().flatten().map(owner_text).collect();
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        faults.push(Fault::shown("metadata.ownerReferences", format!("[{}]", all.join(",")), why));
    }
}

/// An owner in the order of Go's fields.
fn owner_text(owner: &Value) -> String {
    let fields = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let fields = fields.iter().filter_map(|field| Some(format!("{field:?}:{}", owner.get(field)?)));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

/// The rules for changes of the metadata.
pub(crate) fn check_update(live: &Value, object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let (old, new) = (&live["metadata"], &object["metadata"]);
    if !old["deletionTimestamp"].is_null() {
        let old_list = old["finalizers"].as_array().cloned().unwrap_or_default();
        let added: Vec<Value> = new["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|finalizer| !old_list.contains(finalizer))
            .cloned()
            .collect();
        if !added.is_empty() {
            let quoted: Vec<String> = added.iter().map(ToString::to_string).collect();
            faults.push(Fault::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    quoted.join(", ")
                ),
            ));
        }
    }
    if old["uid"] != new["uid"] {
        faults.push(Fault::invalid("metadata.uid", new["uid"].clone(), "field is immutable"));
    }
    let (before, after) = (&old["deletionGracePeriodSeconds"], &new["deletionGracePeriodSeconds"]);
    if before != after && !before.is_null() {
        faults.push(Fault::invalid(
            "metadata.deletionGracePeriodSeconds",
            after.clone(),
            "field is immutable",
        ));
    }
    faults
}

/// Why a kind cannot have an object of this name.
fn name_fault(kind: &Kind, name: &str) -> Option<String> {
    match (&*kind.group, &*kind.plural) {
        ("rbac.authorization.k8s.io", _) => path_segment(name),
        ("", "namespaces" | "services") => dns_label(name),
        _ => dns_subdomain(name),
    }
}

/// The metadata of a stored object alone, as JSON.
pub(crate) fn partial_text(object: &Object) -> Option<String> {
    let meta = object.fields()?.get("metadata")?.get();
    Some(format!(
        "{{\"apiVersion\":\"meta.k8s.io/v1\",\"kind\":\"PartialObjectMetadata\",\"metadata\":{meta}}}"
    ))
}

/// The metadata of an object alone.
pub(crate) fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
