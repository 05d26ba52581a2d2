//! The record of the last accepted target: the children of an instance, and their spec, when a change was
//! refused. An annotation of the instance holds it while the refusal lasts, so it survives a restart of the
//! manager. See `docs/design/0016-field-ownership-and-refused-edits.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::accepted_key::AcceptedKey;
use super::model::{InstanceInput, Observed};
use super::names;

/// A record with more bytes than this omits the spec.
const MOST_WITH_SPEC: usize = 128 << 10;
/// A record with more bytes than this is not written: an object's annotations may have 256 KiB together.
const MOST: usize = 192 << 10;

/// The children of the last accepted target, and what they were rendered from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct AcceptedTarget {
    /// The uid of the instance; a copy of the instance's manifest has another.
    uid: String,
    /// The hash of the desired object that each child was last applied with, by item name.
    pub children: BTreeMap<String, String>,
    /// The input that the children were rendered from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<InstanceInput>,
}

impl AcceptedTarget {
    /// Reads the record from an instance's annotation. The record is empty if the annotation is about another
    /// instance, or has no valid seal: then its spec has passed no validation.
    pub(super) fn read(instance: &Value, key: &AcceptedKey) -> Self {
        let meta = &instance["metadata"];
        let uid = meta["uid"].as_str().unwrap_or_default();
        let record = annotation(instance).and_then(|text| key.open(text));
        let record: Option<Self> = record.and_then(|text| serde_json::from_str(&text).ok());
        record
            .filter(|record| record.uid == uid)
            .unwrap_or_else(|| Self { uid: uid.to_owned(), ..Self::default() })
    }

    /// The text of the annotation, without its seal; `None` if there is nothing to record.
    pub(super) fn text(&self) -> Option<String> {
        if self.children.is_empty() {
            return None;
        }
        let text = json!(self).to_string();
        if text.len() <= MOST_WITH_SPEC {
            return Some(text);
        }
        let text = json!(Self { origin: None, ..self.clone() }).to_string();
        (text.len() <= MOST).then_some(text)
    }
}

/// The record of an instance, with its seal.
pub(super) fn annotation(instance: &Value) -> Option<&str> {
    instance["metadata"]["annotations"][names::ACCEPTED].as_str()
}

/// The hash of the desired object that each existing child was last applied with, by item name.
pub(super) fn there(observed: &[Arc<Observed>]) -> BTreeMap<String, String> {
    let ours = observed.iter().filter(|o| o.is_to_go() && !o.terminating);
    ours.filter_map(|child| {
        let name = names::item_name(&child.child, child.key.as_deref());
        Some((name, child.desired.as_deref()?.to_owned()))
    })
    .collect()
}

/// The instance as its templates see it: without the annotations that Operetta keeps on it.
pub(super) fn shown(instance: &Value) -> Value {
    let mut shown = instance.clone();
    let is_ours = |key: &String| key == names::ACCEPTED || key.starts_with(names::RECREATING);
    if let Some(annotations) = shown["metadata"].get_mut("annotations").and_then(Value::as_object_mut)
        && annotations.keys().any(is_ours)
        && {
            annotations.retain(|key, _| !is_ours(key));
            annotations.is_empty()
        }
        && let Some(meta) = shown["metadata"].as_object_mut()
    {
        meta.remove("annotations");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_bound_to_one_instance_and_limited_in_size() {
        let mut instance = json!({"metadata": {"uid": "u", "labels": {"a": "b"}}, "spec": {"text": "x"}});
        let key = AcceptedKey::new(b"key");
        let mut record = AcceptedTarget::read(&instance, &key);
        assert_eq!(record.text(), None);
        record.children.insert("config".into(), "hash".into());
        record.origin = Some(InstanceInput::of(&instance));
        instance["metadata"]["annotations"] = json!({names::ACCEPTED: record.text().unwrap()});
        assert_eq!(AcceptedTarget::read(&instance, &key).children.len(), 0, "it has no proof");
        instance["metadata"]["annotations"][names::ACCEPTED] = key.seal(&record.text().unwrap()).into();
        assert_eq!(AcceptedTarget::read(&instance, &key), record);
        assert_eq!(shown(&instance)["metadata"], json!({"uid": "u", "labels": {"a": "b"}}));
        let mut edited = instance.clone();
        edited["spec"] = json!({"text": "y"});
        edited["metadata"]["labels"] = json!({"c": "d"});
        assert_eq!(record.origin.as_ref().unwrap().restored(&edited), instance);
        edited["metadata"]["uid"] = "another".into();
        assert_eq!(AcceptedTarget::read(&edited, &key).children.len(), 0);

        // A large spec is left out, and very many children are not recorded at all.
        instance["spec"]["text"] = "x".repeat(MOST_WITH_SPEC).into();
        record.origin = Some(InstanceInput::of(&instance));
        assert!(record.text().unwrap().len() < 200);
        for number in 0..5_000 {
            record.children.insert(format!("many[{number}]"), "h".repeat(40));
        }
        assert_eq!(record.text(), None);
    }
}
