//! The annotation with which kubectl applies from the client.

use operetta_kube_model::facts::LAST_APPLIED;
use serde_json::Value;

use crate::fields::{Conflicts, field_paths};
use crate::schema::Typed;

/// Whether all conflicts are about fields that kubectl applied from the client.
pub(crate) fn allows(typed: Typed<'_>, live: &Value, conflicts: &Conflicts) -> bool {
    let text = live["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap_or_default();
    let Ok(applied) = serde_json::from_str::<Value>(text) else { return false };
    let known = field_paths(typed, &applied);
    conflicts.0.iter().all(|(_, paths)| paths.iter().all(|path| known.contains(path)))
}

/// Writes the annotation if the object has it.
pub(crate) fn record(object: &mut Value, config: &Value) {
    if !object["metadata"]["annotations"][LAST_APPLIED].is_string() {
        return;
    }
    let mut config = config.clone();
    let annotations = config.get_mut("metadata").and_then(|meta| meta.get_mut("annotations"));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    object["metadata"]["annotations"][LAST_APPLIED] = format!("{config}\n").into();
}
