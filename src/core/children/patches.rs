//! The merge patches that carry out actions: marks of objects that nothing wants, or wants again; finalizer and records
//! of the instance.

use serde_json::{Map, Value, json};

use super::model::{Action, Observed};
use super::names::{self, NOTES, Stamp};
use crate::package::DeletionPolicy;

/// Whether the patch of an action depends on the live object.
pub fn reads_live(action: &Action) -> bool {
    match action {
        Action::Orphan(_) => true,
        Action::Retain(observed) | Action::Ask(observed) => observed.owner_reference,
        _ => false,
    }
}

/// The merge patch that carries out an action; `None` if it has none, or if the live object, where it is
/// read, is not the one that the decision was about.
pub fn of_child(action: &Action, live: Option<&Value>) -> Option<Value> {
    let observed = action.removed()?;
    if reads_live(action) && live?["metadata"]["uid"] != *observed.uid {
        return None;
    }
    let mut change = match action {
        Action::Retain(_) => noted(observed, names::RETAINED, live),
        Action::Ask(_) => noted(observed, names::PENDING, live),
        Action::Unmark(_) => unmarked(observed),
        Action::Orphan(_) => {
            let meta = &live?["metadata"];
            if meta["labels"][names::INSTANCE_UID] != *observed.instance_uid {
                return None;
            }
            return Some(json!({"metadata": orphaned(meta, &observed.instance_uid)}));
        }
        _ => return None,
    };
    change["uid"] = Value::from(&*observed.uid);
    change["resourceVersion"] = Value::from(&*observed.resource_version);
    Some(json!({"metadata": change}))
}

/// The merge patch of the instance that carries out an action; `None` if there is nothing to write.
pub fn of_instance(action: &Action, instance: &Value) -> Option<Value> {
    let meta = &instance["metadata"];
    let annotation = |name: &str, value: Value| json!({"annotations": {name: value}});
    let mut change = match action {
        Action::AddFinalizer => finalizers(meta, true)?,
        Action::RemoveFinalizer | Action::ForceRemoveFinalizer => finalizers(meta, false)?,
        Action::MarkOrphaned => annotation(names::ORPHANED, "true".into()),
        Action::Record(record) => annotation(names::ACCEPTED, record.clone().into()),
        Action::RecordJobs(text) if text.is_empty() => annotation(names::COMPLETED_JOBS, Value::Null),
        Action::RecordJobs(text) => annotation(names::COMPLETED_JOBS, text.as_str().into()),
        _ => return None,
    };
    change["uid"] = meta["uid"].clone();
    change["resourceVersion"] = meta["resourceVersion"].clone();
    Some(json!({"metadata": change}))
}

fn finalizers(meta: &Value, wanted: bool) -> Option<Value> {
    let mut finalizers = meta["finalizers"].as_array().cloned().unwrap_or_default();
    let has = finalizers.iter().any(|finalizer| finalizer == names::FINALIZER);
    if has == wanted {
        return None;
    }
    if wanted {
        finalizers.push(names::FINALIZER.into());
    } else {
        finalizers.retain(|finalizer| finalizer != names::FINALIZER);
    }
    Some(json!({"finalizers": finalizers}))
}

/// Notes on an object why it stays. The garbage collector must not take it any more.
fn noted(observed: &Observed, annotation: &str, live: Option<&Value>) -> Value {
    let mut change = json!({"annotations": {annotation: "true"}});
    if let Some(live) = live {
        let owners = live["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        change["ownerReferences"] =
            owners.filter(|owner| owner["uid"] != *observed.instance_uid).cloned().collect();
        // Without the order in its hash, the object would look orphaned by a person.
        let hash = observed.desired.as_deref().unwrap_or_default();
        let hash = hash.split('.').next().unwrap_or_default();
        let asks = annotation == names::PENDING;
        let policy = if asks { DeletionPolicy::Ask } else { DeletionPolicy::Retain };
        let stamp = Stamp { order: Some(observed.order), policy: Some(policy) };
        change["annotations"][names::INTENT] = stamp.seal(hash).into();
    }
    change
}

/// Takes off what was noted on an object while nothing wanted it.
fn unmarked(observed: &Observed) -> Value {
    let mut annotations = Map::new();
    for (is_noted, annotation) in
        [(observed.noted.retained, names::RETAINED), (observed.noted.pending, names::PENDING)]
    {
        if is_noted {
            annotations.insert(annotation.to_owned(), Value::Null);
        }
    }
    json!({"annotations": annotations})
}

/// Removes our labels, annotations, ownerReference and field ownership from an object, so that no other client finds it
/// bound to an instance.
fn orphaned(meta: &Value, instance_uid: &str) -> Value {
    let nulls = |field: &str| -> Map<String, Value> {
        let map = meta[field].as_object().into_iter().flatten();
        map.filter(|(key, value)| {
            key.starts_with(names::DOMAIN) || (*key == names::MANAGED_BY && *value == NOTES)
        })
        .map(|(key, _)| (key.clone(), Value::Null))
        .collect()
    };
    let without = |field: &str, ours: &dyn Fn(&Value) -> bool| -> Vec<Value> {
        meta[field].as_array().into_iter().flatten().filter(|entry| !ours(entry)).cloned().collect()
    };
    let operator = meta["labels"][names::OPERATOR].as_str().unwrap_or_default();
    let manager = names::field_manager(operator);
    let mut patch = json!({
        "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
        "labels": nulls("labels"), "annotations": nulls("annotations"),
        "managedFields": without("managedFields", &|entry| entry["manager"] == manager.as_str()),
    });
    if !meta["ownerReferences"].is_null() {
        patch["ownerReferences"] = without("ownerReferences", &|owner| owner["uid"] == instance_uid).into();
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instance_is_patched_only_where_it_changes() {
        let bare = json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": ["other"]}});
        let patched = of_instance(&Action::AddFinalizer, &bare).unwrap();
        let all = json!(["other", names::FINALIZER]);
        assert_eq!(patched, json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": all}}));
        assert_eq!(of_instance(&Action::RemoveFinalizer, &bare), None);
        let held = json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": all}});
        assert_eq!(of_instance(&Action::AddFinalizer, &held), None);
        let patched = of_instance(&Action::ForceRemoveFinalizer, &held).unwrap();
        assert_eq!(patched["metadata"]["finalizers"], json!(["other"]));
        // An empty record removes the annotation.
        for (action, annotation) in [
            (Action::Record(None), names::ACCEPTED),
            (Action::RecordJobs(String::new()), names::COMPLETED_JOBS),
        ] {
            let patched = of_instance(&action, &bare).unwrap();
            assert_eq!(patched["metadata"]["annotations"], json!({annotation: null}));
        }
    }

    #[test]
    fn an_orphan_loses_what_is_ours_and_keeps_the_rest() {
        let meta = json!({"uid": "u", "resourceVersion": "7",
            "labels": {names::OPERATOR: "p", names::MANAGED_BY: NOTES, "app": "a"},
            "annotations": {names::INTENT: "h", "note": "n"},
            "ownerReferences": [{"uid": "i"}, {"uid": "other"}],
            "managedFields": [{"manager": names::field_manager("p")}, {"manager": "kubectl"}]});
        let patch = orphaned(&meta, "i");
        assert_eq!(patch["labels"], json!({names::OPERATOR: null, names::MANAGED_BY: null}));
        assert_eq!(patch["annotations"], json!({names::INTENT: null}));
        assert_eq!(patch["ownerReferences"], json!([{"uid": "other"}]));
        assert_eq!(patch["managedFields"], json!([{"manager": "kubectl"}]));
        assert_eq!((&patch["uid"], &patch["resourceVersion"]), (&meta["uid"], &meta["resourceVersion"]));
    }
}
