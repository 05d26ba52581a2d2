//! The record of the last accepted target: which children an instance had, and of what spec, when a change of it was
//! refused. An annotation of the instance holds it while the refusal lasts, so it survives a restart of the manager.
//! See `docs/design/0016-fields-of-others-and-refused-edits.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::names;
use super::observed::Observed;

/// Above this many bytes the record does without the spec.
const MOST_WITH_SPEC: usize = 128 << 10;
/// Above this many bytes there is none: an object's annotations may have 256 KiB together.
const MOST: usize = 192 << 10;

/// What is recorded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Accepted {
    /// The uid of the instance; a copy of the instance's manifest has another.
    uid: String,
    /// The hash of the intent that each child was last applied with, by item name.
    pub children: BTreeMap<String, String>,
    /// What of the instance the children were rendered from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// What of an instance a person edits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Origin {
    spec: Value,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    labels: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    annotations: Map<String, Value>,
}

impl Origin {
    pub(super) fn of(instance: &Value) -> Self {
        let meta = &instance["metadata"];
        let map = |field: &str| meta[field].as_object().cloned().unwrap_or_default();
        let mut annotations = map("annotations");
        annotations.retain(|key, _| {
            key != names::ACCEPTED && key != "kubectl.kubernetes.io/last-applied-configuration"
        });
        Self { spec: instance["spec"].clone(), labels: map("labels"), annotations }
    }

    /// The instance as it was.
    pub(super) fn restored(&self, instance: &Value) -> Value {
        let mut restored = instance.clone();
        restored["spec"].clone_from(&self.spec);
        for (field, map) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            if let Some(meta) = restored["metadata"].as_object_mut() {
                if map.is_empty() {
                    meta.remove(field);
                } else {
                    meta.insert(field.to_owned(), Value::Object(map.clone()));
                }
            }
        }
        restored
    }
}

impl Accepted {
    /// What the annotation of an instance says; nothing if it is not about this instance.
    pub(super) fn read(instance: &Value) -> Self {
        let meta = &instance["metadata"];
        let uid = meta["uid"].as_str().unwrap_or_default();
        let record = meta["annotations"][names::ACCEPTED].as_str();
        let record: Option<Self> = record.and_then(|text| serde_json::from_str(text).ok());
        record
            .filter(|record| record.uid == uid)
            .unwrap_or_else(|| Self { uid: uid.to_owned(), ..Self::default() })
    }

    /// The value of the annotation; `None` if there is nothing to record.
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

/// The children that are there, with the hash of the intent that each was last applied with, by item name.
pub(super) fn there(observed: &[Arc<Observed>]) -> BTreeMap<String, String> {
    let ours = observed.iter().filter(|o| o.is_to_go() && !o.terminating);
    ours.filter_map(|child| {
        let name = names::item_name(&child.child, child.key.as_deref());
        Some((name, child.intent.as_deref()?.to_owned()))
    })
    .collect()
}

/// The instance as its templates see it: without what Operetta keeps there.
pub(super) fn shown(instance: &Value) -> Value {
    let mut shown = instance.clone();
    if let Some(annotations) = shown["metadata"].get_mut("annotations").and_then(Value::as_object_mut)
        && annotations.remove(names::ACCEPTED).is_some()
        && annotations.is_empty()
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
    fn a_record_is_of_one_instance_and_bounded() {
        let mut instance = json!({"metadata": {"uid": "u", "labels": {"a": "b"}}, "spec": {"text": "x"}});
        let mut record = Accepted::read(&instance);
        assert_eq!(record.text(), None);
        record.children.insert("config".into(), "hash".into());
        record.origin = Some(Origin::of(&instance));
        instance["metadata"]["annotations"] = json!({names::ACCEPTED: record.text().unwrap()});
        assert_eq!(Accepted::read(&instance), record);
        assert_eq!(shown(&instance)["metadata"], json!({"uid": "u", "labels": {"a": "b"}}));
        let mut edited = instance.clone();
        edited["spec"] = json!({"text": "y"});
        edited["metadata"]["labels"] = json!({"c": "d"});
        assert_eq!(record.origin.as_ref().unwrap().restored(&edited), shown(&instance));
        edited["metadata"]["uid"] = "another".into();
        assert_eq!(Accepted::read(&edited).children.len(), 0);

        // A large spec is left out, and very many children are not recorded at all.
        instance["spec"]["text"] = "x".repeat(MOST_WITH_SPEC).into();
        record.origin = Some(Origin::of(&instance));
        assert!(record.text().unwrap().len() < 200);
        for number in 0..5_000 {
            record.children.insert(format!("many[{number}]"), "h".repeat(40));
        }
        assert_eq!(record.text(), None);
    }
}
