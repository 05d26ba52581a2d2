//! What an apply makes of an object, for the next decision.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operetta_kube_model::fields::FieldSet;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::ObjectRef;
use crate::children::fields;
use crate::children::{Apply, Desired, Observed, Paths, RawObject, is_covered, names};
use crate::package::REPLICAS;
use crate::readiness::Readiness;

/// The text in place of a value that the manager would generate.
const GENERATED: &str = "Z2VuZXJhdGVk";

/// The body that is applied. Values that the desired object leaves open are those of the live object, or
/// placeholders for new ones.
pub(super) fn completed(desired: &Desired, body: Value, live: Option<&Value>) -> Value {
    let mut body = body;
    for generated in desired.generated.iter().filter(|generated| generated.is_kept()) {
        let there = live.and_then(|live| live["data"][&generated.key].as_str());
        let value = there.filter(|value| !value.is_empty()).unwrap_or(GENERATED);
        body["data"][&generated.key] = value.into();
    }
    for (key, text) in desired.texts(&body) {
        if let Some(text) = text {
            body["data"][key] = text.into();
        }
    }
    if !desired.generated.is_empty() {
        let proof =
            live.map_or(&Value::Null, |live| &live["metadata"]["annotations"][names::GENERATED_PROOF]);
        body["metadata"]["annotations"][names::GENERATED_PROOF] = proof.as_str().unwrap_or_default().into();
    }
    for path in &desired.keep {
        let path: Vec<&str> = path.split('.').collect();
        let value = live.and_then(|live| path.iter().try_fold(live, |value, name| value.get(name)));
        if let Some(value) = value {
            put(&mut body, &path, value);
        }
    }
    body
}

fn put(body: &mut Value, path: &[&str], value: &Value) {
    match path {
        [] => body.clone_from(value),
        [first, rest @ ..] => {
            if body.is_null() {
                *body = json!({});
            }
            if body.is_object() {
                put(&mut body[*first], rest, value);
            }
        }
    }
}

/// An object as an apply has made it.
pub(super) struct Made {
    pub(super) observed: Observed,
    pub(super) content: Value,
}

/// The live object after its fields were handed over from the former package to `manager`; `None` if there
/// are none to hand over.
fn taken_over(live: &Value, before: &Observed, manager: &str) -> Option<Value> {
    let former = names::field_manager(&before.package);
    let entries = fields::hand_over(&live["metadata"]["managedFields"], &former, manager);
    let entries = entries.filter(|_| former != manager)?;
    let mut live = live.clone();
    live["metadata"]["managedFields"] = entries;
    Some(live)
}

/// The object that an apply makes. `live`: the object before, `before`: what was observed of it. A child that
/// was written is taken to become ready. `None` if it would not be recognised as a child, which does not
/// happen to what we render.
pub(super) fn make(
    apply: &Apply,
    body: &Value,
    (live, before): (Option<&Value>, Option<&Observed>),
    number: u64,
    manager: &str,
    reads: impl Fn(&str) -> Paths,
) -> Option<Made> {
    let ObjectRef { gvk, .. } = &apply.desired.object;
    let taken_over = live.zip(before).and_then(|(live, before)| taken_over(live, before, manager));
    // If nothing else differs, only the label of the package changes.
    let is_same = |before: &Observed| {
        before.desired.as_deref() == Some(&*apply.desired.hash) && is_covered(&apply.desired, before)
    };
    let is_relabelled = taken_over.is_some() && before.is_some_and(is_same);
    let live = taken_over.as_ref().or(live);
    let mut content = match live {
        Some(live) if is_relabelled => {
            let mut content = live.clone();
            content["metadata"]["labels"][names::OPERATOR] =
                body["metadata"]["labels"][names::OPERATOR].clone();
            content
        }
        Some(live) => {
            let mut keep = apply.desired.keep.clone();
            keep.extend(apply.repair.omitted_replicas.then(|| REPLICAS.join(".")));
            fields::applied(live, body, &keep, manager)
        }
        None => body.clone(),
    };
    let version = format!("preview-{number}");
    let old = |field: &str| live.map(|live| live["metadata"][field].clone()).filter(|value| !value.is_null());
    let meta = content["metadata"].as_object_mut()?;
    meta.insert("uid".into(), old("uid").unwrap_or_else(|| version.as_str().into()));
    meta.insert("resourceVersion".into(), version.as_str().into());
    for field in ["creationTimestamp", "generation", "finalizers", "managedFields"] {
        if let Some(value) = old(field) {
            meta.insert(field.to_owned(), value);
        }
    }
    if let Some(status) = live.and_then(|live| live.get("status")) {
        content["status"] = status.clone();
    }
    let metadata = ObjectMeta::deserialize(&content["metadata"]).ok()?;
    let seen = RawObject { gvk, metadata: &metadata, body: Some(&content), reports: false };
    let mut observed = seen.observe(|_, child| reads(child))?;
    observed.owned =
        before.and_then(|before| before.owned.clone()).or_else(|| Some(Arc::new(FieldSet::default())));
    if let Some(before) = before {
        observed.foreign = Arc::clone(&before.foreign);
    }
    observed.readiness = Readiness::Ready;
    observed.baseline = observed.mark.clone();
    Some(Made { observed, content })
}
