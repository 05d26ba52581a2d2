//! How children go: in reverse order, a wave at a time, from what is observed. Nothing is rendered, so a
//! package that no longer compiles cannot hold a deletion.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::decide::{self, Action, Decision, Memory, Verdict};
use super::names;
use super::observed::Observed;
use super::status::Status;

/// Whether our finalizer is on the object.
pub(super) fn has_finalizer(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|f| f == names::FINALIZER))
}

/// Decides about an instance that is being deleted, with neither package nor schema: an instance whose
/// package cannot be loaded any more goes like any other.
pub fn decide_from(instance: &Value, observed: &[Arc<Observed>], memory: &Memory, now: Duration) -> Decision {
    let mut decision = Decision {
        checks: Vec::new(),
        actions: Vec::new(),
        verdict: Verdict::Deleting {
            message: "waits for the garbage collector or the finalizers of others".into(),
        },
        status: None,
        again: None,
        children: observed
            .iter()
            .map(|o| {
                (
                    names::item_name(&o.child, o.key.as_deref()),
                    Some(o.object.clone()),
                    Err("is being deleted".into()),
                )
            })
            .collect(),
    };
    if !has_finalizer(instance) {
        // All children carry ownerReferences.
        return decision;
    }
    let remaining = observed.iter().filter(|o| o.is_to_go());
    let (mut actions, waits) = wave(remaining);
    let resting = decide::rest(&mut actions, memory, now);
    decision.again = resting.iter().map(|(_, failure)| failure.retry_at.saturating_sub(now)).min();
    decision.actions = actions;
    if let Some((object, failure)) = resting.first() {
        let message = format!("{object} cannot be deleted: {}", failure.error);
        decision.verdict = Verdict::Deleting { message };
        decision.status = Some(Status::deleting(instance, &decision.verdict));
    } else if let Some(message) = waits {
        decision.verdict = Verdict::Deleting { message };
        // Only then is it worth a write: what merely takes a moment is gone before anybody looks.
        if observed.iter().any(|o| o.terminating && !o.held_by.is_empty()) {
            decision.status = Some(Status::deleting(instance, &decision.verdict));
        }
    } else if decision.actions.is_empty() {
        decision.actions.push(Action::RemoveFinalizer);
    }
    decision
}

/// The objects that may go now: of the highest order those not yet terminating. What is still on its way
/// holds the lower orders back, and is named.
pub(super) fn wave<'a>(objects: impl Iterator<Item = &'a Arc<Observed>>) -> (Vec<Action>, Option<String>) {
    let objects: Vec<_> = objects.collect();
    let mut actions: Vec<Action> =
        objects.iter().filter(|o| o.retained == Some(false)).map(|o| Action::Retain(Arc::clone(o))).collect();
    let going: Vec<_> = objects.iter().filter(|o| o.retained.is_none()).collect();
    let Some(highest) = going.iter().map(|o| o.order).max() else { return (actions, None) };
    let now: Vec<_> = going.iter().filter(|o| o.order == highest).collect();
    actions.extend(now.iter().filter(|o| !o.terminating).map(|o| Action::Delete(Arc::clone(o))));
    let waits = now.iter().find(|o| o.terminating).map(|o| {
        let held = if o.held_by.is_empty() {
            String::new()
        } else {
            format!(", held by finalizer {}", o.held_by.join(", "))
        };
        format!("{} is being deleted{held}", o.object)
    });
    (actions, waits.or_else(|| now.first().map(|o| format!("{} is being deleted", o.object))))
}
