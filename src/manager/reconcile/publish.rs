//! Publishes the effects of a reconcile, as Events and metrics.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::InstanceReconciler;
use crate::children::{ActionOutcome, Effect};
use crate::manager::state::{InstanceState, Progress};

/// How many objects an Event names.
const MAX_NAMES: usize = 8;

impl InstanceReconciler {
    pub(super) fn count_failures(&self, outcomes: &[ActionOutcome]) {
        for outcome in outcomes {
            if let ActionOutcome::Refused(_, error) | ActionOutcome::DryRunRefused(_, error) = outcome {
                self.effects.health.metrics.child_error(error.class);
            }
        }
    }

    /// Publishes an Event for each kind of effect. That only children were created is published at the end
    /// of the reconcile: if the instance is Ready then, one Event says both.
    pub(super) fn publish_effects(
        &self,
        instance: &Value,
        outcomes: &[ActionOutcome],
        state: &mut InstanceState,
    ) {
        self.publish_created(state);
        let here = instance["metadata"]["namespace"].as_str();
        let mut effects: BTreeMap<Effect, Vec<_>> = BTreeMap::new();
        for (effect, object) in outcomes.iter().filter_map(ActionOutcome::effect) {
            effects.entry(effect).or_default().push(object);
        }
        let is_creation = effects.keys().all(|effect| *effect == Effect::Created);
        for (effect, objects) in effects {
            let verb = match effect {
                Effect::Created => "created ",
                Effect::Inherited if objects.len() == 1 => {
                    "adopted an object of a former instance of that name: "
                }
                Effect::Inherited => {
                    &format!("adopted {} objects of a former instance of that name: ", objects.len())
                }
                Effect::Adopted => "adopted ",
                Effect::Updated => "updated ",
                Effect::Repaired => "restored what another client changed in ",
                Effect::Recreated => "recreating ",
                Effect::Deleted => "deleted ",
                Effect::Retained => "retained ",
                Effect::DeletionPending => "waits for approval to delete ",
                Effect::Orphaned => "orphaned ",
            };
            let mut names: Vec<String> = objects
                .iter()
                .map(|object| match object.namespace.as_deref() {
                    Some(namespace) if Some(namespace) != here => object.to_string(),
                    _ => format!("{} {}", object.gvk.kind, object.name),
                })
                .collect();
            names.sort();
            let more = names.len().saturating_sub(MAX_NAMES);
            names.truncate(MAX_NAMES);
            let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
            let text = format!("{verb}{}{rest}", names.join(", "));
            if is_creation {
                self.record(state, Progress::Created(reference(instance), text));
            } else {
                self.effects.events.publish(instance, false, &effect.reason(), &text);
            }
        }
    }

    /// Publishes that children were created, if no other Event has said so.
    pub(super) fn publish_created(&self, state: &mut InstanceState) {
        if let Some((instance, text)) = state.take_created_event() {
            self.effects.events.publish(&instance, false, "Created", &text);
        }
    }
}

/// The fields of an instance that an Event needs.
fn reference(instance: &Value) -> Value {
    let meta = &instance["metadata"];
    let metadata = json!({"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]});
    json!({"apiVersion": instance["apiVersion"], "kind": instance["kind"], "metadata": metadata})
}
