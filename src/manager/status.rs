//! Writes the status of an instance once nothing is left to do now, with an Event for each transition.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::act::Executor;
use super::effects::Effects;
use super::index::InstanceKey;
use super::raw::Cut;
use super::registry::Registered;
use super::state::{InstanceState, Progress};
use super::store::Store;
use crate::api::{CallError, Class};
use crate::children::{self, Decision, Health, Status, Summary, Verdict};
use crate::clock::Clock;
use crate::facts::condition;
use crate::printable;

/// How often a status that the server refuses is written again without the refused parts.
const ATTEMPTS: usize = 3;

/// Writes statuses and publishes Events about them.
pub(super) struct StatusWriter {
    pub(super) store: Arc<Store>,
    pub(super) effects: Arc<Effects>,
    pub(super) executor: Arc<Executor>,
    pub(super) clock: Clock,
}

/// The end of a reconcile that has nothing left to do.
pub(super) enum Settled {
    /// The status is up to date, or must not be written now.
    Done,
    /// The status is written later.
    RetryAfter(Duration),
    /// A call failed.
    Failed(CallError),
}

/// The result of a write of a status.
enum Written {
    /// The status is up to date.
    Done {
        /// What is left out of the status, because the server refuses it.
        failure: Option<String>,
        /// The instance after the write, if there was one.
        live: Option<Box<Value>>,
    },
    /// The instance has changed and was read again: it is reconciled again after a wait.
    Conflict(Duration),
    /// The instance has changed and cannot be read.
    Unreadable(CallError),
    /// The write failed.
    Failed(CallError),
}

impl StatusWriter {
    fn record(&self, state: &mut InstanceState, progress: Progress<'_>) {
        state.record(progress, self.clock.elapsed());
    }

    /// Writes the status of a decision, and publishes an Event if it is a transition.
    pub(super) async fn settle(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        decision: Decision,
        state: &mut InstanceState,
    ) -> Settled {
        let summary = decision.verdict.summary();
        // While writes are on hold the status waits: all instances are listed again afterwards.
        let status = decision.status.as_ref().filter(|_| self.store.held(&key.crd).is_none());
        let Some(status) = status else {
            self.publish_verdict(instance, instance, &summary, state);
            return Settled::Done;
        };
        let is_inactive = registered.package.is_none() && instance["metadata"]["deletionTimestamp"].is_null();
        if !is_inactive {
            self.record(state, Progress::Active);
        }
        if let Some(wait) = state.inactive_status_wait(self.clock.elapsed()) {
            return Settled::RetryAfter(wait);
        }
        let mut status = status.clone();
        status.crd_conflict(registered.crd_conflict.as_deref(), &instance["status"]);
        match self.write_status(key, registered, instance, &status, state).await {
            Written::Done { failure, live } => {
                if is_inactive && live.is_some() {
                    self.record(state, Progress::InactiveStatusWritten);
                }
                self.publish_verdict(instance, live.as_deref().unwrap_or(instance), &summary, state);
                self.publish_status_failure(instance, failure.as_deref());
                if failure.is_some() {
                    if let Some(refused) = &state.refused_status {
                        status.leave_out(refused);
                    }
                    self.effects.notify(key, Some(&Decision { status: Some(status), ..decision }));
                }
                Settled::Done
            }
            Written::Conflict(wait) => Settled::RetryAfter(wait),
            Written::Unreadable(error) => Settled::Failed(error),
            Written::Failed(error) => {
                warn!(%error, "the status cannot be written");
                if error.class == Class::Permanent {
                    let message = format!("the API server refuses the status: {error}");
                    let event = ("StatusFailed".to_owned(), message);
                    if state.last_event.as_ref() != Some(&event) {
                        self.effects.events.publish(instance, true, &event.0, &event.1);
                        self.record(state, Progress::Event(Some(event)));
                    }
                }
                Settled::Failed(error)
            }
        }
    }

    /// Writes into the status that calls keep failing.
    pub(super) async fn report_failure(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        status: Status,
        error: &CallError,
        state: &mut InstanceState,
    ) {
        if error.is_fenced() || self.store.held(&key.crd).is_some() {
            return;
        }
        let (reason, message) = ("ApplyRetrying".to_owned(), error.to_string());
        let status = status.retold(&Verdict::Reconciling { reason, message });
        if let Written::Failed(error) = self.write_status(key, registered, instance, &status, state).await {
            debug!(%error, "the status cannot be written either");
        }
    }

    /// Writes a status if it changes anything, without what the server refuses of it.
    async fn write_status(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        status: &Status,
        state: &mut InstanceState,
    ) -> Written {
        let now = format!("{:.0}", self.clock.now());
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut trimmed = status.clone();
            if let Some(refused) = &state.refused_status {
                trimmed.leave_out(refused);
            }
            let failure = trimmed.failure();
            let Some(patch) = children::status_patch(&instance["status"], &trimmed, &now) else {
                self.record(state, Progress::StatusCurrent);
                return Written::Done { failure, live: None };
            };
            let attempt = children::names::short_hash(&format!("{}{patch}", instance["status"]), 16);
            if state.last_noop_patch.as_ref() == Some(&attempt) {
                return Written::Done { failure, live: None };
            }
            let meta = &instance["metadata"];
            let body = json!({"metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]}, "status": patch});
            let name = &*key.name;
            let namespace = key.namespace.as_deref();
            let written = self
                .effects
                .for_instances(registered)
                .merge_patch(&registered.kind, namespace, name, Some("status"), &body, "operetta")
                .await;
            self.effects.note_status(&registered.crd, written.as_ref().err());
            let error = match written {
                Ok(object) => {
                    let is_noop = object["metadata"]["resourceVersion"] == meta["resourceVersion"];
                    self.record(state, Progress::StatusWritten(is_noop.then_some(attempt)));
                    self.store.learn_instance(key, &object);
                    return Written::Done { failure, live: Some(Box::new(object)) };
                }
                Err(error) => error,
            };
            if matches!(error.class, Class::Conflict | Class::NotFound) {
                let live = match self.executor.refresh(key, registered).await {
                    Ok(live) => live,
                    Err(error) => return Written::Unreadable(error),
                };
                // The CRD has no status subresource, and nothing adds one while the package is not active.
                if error.class == Class::NotFound && registered.package.is_none() && live.is_some() {
                    return Written::Done { failure, live: None };
                }
                self.record(state, Progress::StatusConflict);
                return Written::Conflict(state.conflict_wait());
            }
            match status.refused(&error, state.refused_status.as_ref()).filter(|_| attempts < ATTEMPTS) {
                Some(refused) => {
                    debug!(%error, "the status is refused; writing it without the refused part");
                    self.record(state, Progress::StatusRefused(refused));
                }
                None => return Written::Failed(error),
            }
        }
    }

    /// Publishes one Event for each transition. `before` and `after`: the instance before and after the write of its
    /// status.
    fn publish_verdict(&self, before: &Value, after: &Value, summary: &Summary, state: &mut InstanceState) {
        let warning = summary.health == Health::Stalled;
        // Progress is in the conditions. An Event for each step would hide the others.
        if matches!(summary.health, Health::Reconciling | Health::Deleting) {
            self.record(state, Progress::Event(None));
            return;
        }
        let (reason, message) = (&summary.reason, &summary.message);
        let event = (reason.clone(), if warning { message.clone() } else { String::new() });
        if state.last_event.as_ref() == Some(&event) {
            return;
        }
        // After a restart the status shows whether this is a transition.
        let is_transition = state.last_event.is_some() || ready_reason(before) != Some(reason);
        self.record(state, Progress::Event(Some(event).filter(|event| !is_in_status(after, event))));
        if !is_transition {
            return;
        }
        let message = &*printable::sentence(message);
        if warning {
            warn!(%reason, %message, "stalled");
        } else {
            info!(%reason, "{message}");
        }
        // Children that were created in the same reconcile need no Event of their own.
        let is_ready = summary.health == Health::Ready;
        let created = if is_ready { state.take_created_event() } else { None };
        let message = created.map_or(message.to_owned(), |(_, created)| format!("{created}; {message}"));
        self.effects.events.publish(before, warning, reason, &message);
    }

    /// Publishes an Event if the server refuses a part of the status that it did not refuse before. `instance`: before the
    /// write.
    fn publish_status_failure(&self, instance: &Value, failure: Option<&str>) {
        let Some(message) = failure.map(printable::sentence) else { return };
        let message = &*message;
        let before = condition(instance, "StatusFailed");
        let reported = before.and_then(|condition| condition["message"].as_str());
        // The condition may have been shortened.
        if reported.is_some_and(|reported| reported == message || reported.contains("… (shortened)")) {
            return;
        }
        warn!(%message, "a part of the status is left out");
        self.effects.events.publish(instance, true, "StatusFailed", message);
    }
}

impl Effects {
    /// Reports that an instance is not reconciled because it was not read as a whole. `part`: what was read of it.
    pub(super) async fn report_unreadable(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        part: &Value,
        cut: Cut,
    ) {
        let (reason, what) = cut.reason();
        let message = format!("{what}: the instance is not read, and its children stay as they are");
        let reason = reason.to_owned();
        let verdict = Verdict::Stalled { reason, message };
        let status = Status::unseen(part, &verdict);
        let now = format!("{:.0}", self.clock.now());
        let Some(patch) = children::status_patch(&part["status"], &status, &now) else { return };
        let meta = &part["metadata"];
        let body = json!({"metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]}, "status": patch});
        let written = self
            .for_instances(registered)
            .merge_patch_unread(
                &registered.kind,
                key.namespace.as_deref(),
                &key.name,
                Some("status"),
                &body,
                "operetta",
            )
            .await;
        let summary = verdict.summary();
        match written {
            Ok(()) => {}
            // The next event of the instance reports it again.
            Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => return,
            Err(error) => {
                warn!(instance = %key, %error, "the status cannot be written");
                return;
            }
        }
        self.events.publish(part, true, &summary.reason, &summary.message);
    }
}

/// The reason of its condition Ready.
fn ready_reason(instance: &Value) -> Option<&str> {
    condition(instance, "Ready")?["reason"].as_str()
}

/// Whether the status contains as much as the Event. Then the Event is not remembered, so that ready instances take no
/// memory.
fn is_in_status(instance: &Value, (reason, message): &(String, String)) -> bool {
    message.is_empty() && ready_reason(instance) == Some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_the_status_contains_is_not_remembered() {
        let instance = json!({"status": {"conditions": [{"type": "Ready", "reason": "Ready"}]}});
        let event = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        assert!(is_in_status(&instance, &event("Ready", "")));
        assert!(!is_in_status(&instance, &event("Paused", "")));
        assert!(!is_in_status(&instance, &event("Ready", "the status may contain only a part of it")));
        assert!(!is_in_status(&json!({}), &event("Ready", "")));
    }
}
