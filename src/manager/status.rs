//! What is told of an instance once there is nothing to do now: its status, and an Event where that is news.

use std::sync::Arc;

use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::Shared;
use super::index::InstanceKey;
use super::raw::DEPTH;
use super::reconcile::{Look, Mind, Outcome, after_clashes};
use super::registry::Registered;
use crate::children::{self, Decision, Health, Status, Summary, Verdict};
use crate::cluster::{CallError, Class};
use crate::printable;

/// How often a status is written with less of what the server refuses.
const ATTEMPTS: usize = 3;

/// What a write of a status came to.
enum Written {
    /// It says what it should.
    Done {
        /// What is left out of it.
        failure: Option<String>,
        /// The instance after the write, if there was one.
        live: Option<Box<Value>>,
    },
    /// Read anew: decided again soon.
    Again(Outcome),
    /// Not now, or not at all.
    Failed(CallError),
}

impl Shared {
    /// Nothing to do now: say so in the status, if that is news.
    pub(super) async fn settle(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Registered,
        look: &Look,
        decision: Decision,
        mind: &mut Mind,
    ) -> Outcome {
        if let Some(after) = decision.again {
            self.queue.add_after(key.clone(), after);
        }
        let summary = decision.verdict.summary();
        let instance = &look.instance;
        // It is told once the CRD is right again: then all instances are listed anew.
        let status = decision.status.as_ref().filter(|_| self.held(&key.crd).is_none());
        let Some(status) = status else {
            self.tell_verdict(instance, instance, &summary, mind);
            return Outcome::Done;
        };
        let mut status = status.clone();
        status.contested(registered.contested.as_deref(), &instance["status"]);
        match self.write_status(key, registered, instance, &status, mind).await {
            Written::Done { failure, live } => {
                self.tell_verdict(instance, live.as_deref().unwrap_or(instance), &summary, mind);
                self.tell_status_failure(instance, failure.as_deref());
                if failure.is_some()
                    && let Some(observer) = &self.observer
                {
                    if let Some(refused) = &mind.refused {
                        status.leave_out(refused);
                    }
                    observer(key, Some(&Decision { status: Some(status), ..decision }));
                }
                Outcome::Done
            }
            Written::Again(outcome) => outcome,
            Written::Failed(error) => {
                warn!(%error, "the status cannot be written");
                if error.class == Class::Permanent {
                    let message = format!("the API server refuses the status: {error}");
                    let told = ("StatusFailed".to_owned(), message);
                    if mind.told.as_ref() != Some(&told) {
                        self.events.publish(instance, true, &told.0, &told.1);
                        mind.told = Some(told);
                    }
                }
                self.failed(key, &error)
            }
        }
    }

    /// What was decided could not be done, and not for the first time: that must not be in the log alone.
    pub(super) async fn tell_failure(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Registered,
        look: &Look,
        status: Status,
        error: &CallError,
        mind: &mut Mind,
    ) {
        if error.is_fenced() || self.held(&key.crd).is_some() {
            return;
        }
        let (reason, message) = ("ApplyRetried".to_owned(), error.to_string());
        let status = status.retold(&Verdict::Reconciling { reason, message });
        if let Written::Failed(error) =
            self.write_status(key, registered, &look.instance, &status, mind).await
        {
            debug!(%error, "nor can the status be written");
        }
    }

    /// Says of an instance that is nested too deeply to be read that it is left as it is. `part`: what was read of it.
    pub(super) async fn tell_unreadable(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Registered,
        part: &Value,
    ) {
        let (reason, message) = (
            "NestedTooDeep".to_owned(),
            format!(
                "nested more than {DEPTH} levels deep: it is not read, and its children stay as they are"
            ),
        );
        let verdict = Verdict::Stalled { reason, message };
        let status = Status::unseen(part, &verdict);
        let now = format!("{:.0}", crate::clock::now());
        let Some(patch) = children::status_patch(&part["status"], &status, &now) else { return };
        let meta = &part["metadata"];
        let body = json!({"metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]}, "status": patch});
        let written = self
            .for_instances(registered)
            .merge_patch(
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
            Ok(_) => {}
            // The answer holds the instance, which cannot be read.
            Err(error) if error.code == 0 => {
                debug!(instance = %key, %error, "its status was written, mostly");
            }
            // Its next event tells again.
            Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => return,
            Err(error) => {
                warn!(instance = %key, %error, "the status cannot be written");
                return;
            }
        }
        self.events.publish(part, true, &summary.reason, &summary.message);
    }

    /// Writes a status, if it says anything new. What the server refuses of it is left out.
    async fn write_status(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        status: &Status,
        mind: &mut Mind,
    ) -> Written {
        let now = format!("{:.0}", crate::clock::now());
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut trimmed = status.clone();
            if let Some(refused) = &mind.refused {
                trimmed.leave_out(refused);
            }
            let failure = trimmed.failure();
            let Some(patch) = children::status_patch(&instance["status"], &trimmed, &now) else {
                mind.clashes = 0;
                return Written::Done { failure, live: None };
            };
            let attempt = children::names::short_hash(&format!("{}{patch}", instance["status"]), 16);
            if mind.vain.as_ref() == Some(&attempt) {
                return Written::Done { failure, live: None };
            }
            let meta = &instance["metadata"];
            let body = json!({"metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]}, "status": patch});
            let name = &*key.name;
            let namespace = key.namespace.as_deref();
            let written = self
                .for_instances(registered)
                .merge_patch(&registered.kind, namespace, name, Some("status"), &body, "operetta")
                .await;
            let error = match written {
                Ok(object) => {
                    mind.clashes = 0;
                    let changed = object["metadata"]["resourceVersion"] != meta["resourceVersion"];
                    mind.vain = (!changed).then_some(attempt);
                    self.learn_instance(key, &object);
                    return Written::Done { failure, live: Some(Box::new(object)) };
                }
                Err(error) => error,
            };
            if matches!(error.class, Class::Conflict | Class::NotFound) {
                let live = match self.refresh(key, registered).await {
                    Ok(live) => live,
                    Err(error) => return Written::Again(self.failed(key, &error)),
                };
                // Its CRD has no status, and nobody gives it one while the package is not active.
                if error.class == Class::NotFound && registered.package.is_none() && live.is_some() {
                    return Written::Done { failure, live: None };
                }
                // Read anew and decided anew; in a storm of other writers a little later each time.
                mind.clashes = mind.clashes.saturating_add(1);
                self.queue.add_after(key.clone(), after_clashes(mind.clashes));
                return Written::Again(Outcome::Done);
            }
            match status.refused(&error, mind.refused.as_ref()).filter(|_| attempts < ATTEMPTS) {
                Some(refused) => {
                    debug!(%error, "the status is refused; written without what is at fault");
                    mind.refused = Some(refused);
                }
                None => return Written::Failed(error),
            }
        }
    }

    /// One Event a transition. `before` and `after`: the instance before and after its status was written.
    fn tell_verdict(&self, before: &Value, after: &Value, summary: &Summary, mind: &mut Mind) {
        let warning = summary.health == Health::Stalled;
        // Progress is in the conditions; an Event a step would drown the rest.
        if matches!(summary.health, Health::Reconciling | Health::Deleting) {
            mind.told = None;
            return;
        }
        let (reason, message) = (&summary.reason, &summary.message);
        let told = (reason.clone(), if warning { message.clone() } else { String::new() });
        if mind.told.as_ref() == Some(&told) {
            return;
        }
        // After a restart the status tells whether this is news.
        let is_news = mind.told.is_some() || ready_reason(before) != Some(reason);
        mind.told = Some(told).filter(|told| !is_in_status(after, told));
        if !is_news {
            return;
        }
        let message = &*printable::sentence(message);
        if warning {
            warn!(%reason, %message, "stalled");
        } else {
            info!(%reason, "{message}");
        }
        self.events.publish(before, warning, reason, message);
    }

    /// An Event, if what is left out of the status was not left out before. `instance`: as it was before the write.
    fn tell_status_failure(&self, instance: &Value, failure: Option<&str>) {
        let Some(message) = failure.map(printable::sentence) else { return };
        let message = &*message;
        let before = children::condition(instance, "StatusFailed");
        let is_told = before.and_then(|told| told["message"].as_str());
        // The condition may have been shortened.
        if is_told.is_some_and(|told| told == message || told.contains("… (shortened)")) {
            return;
        }
        warn!(%message, "a part of the status is left out");
        self.events.publish(instance, true, "StatusFailed", message);
    }
}

/// The reason of its condition Ready.
fn ready_reason(instance: &Value) -> Option<&str> {
    children::condition(instance, "Ready")?["reason"].as_str()
}

/// Whether the status says as much as an Event did; then nobody needs to remember it, and ten thousand instances that
/// are well take no room.
fn is_in_status(instance: &Value, (reason, message): &(String, String)) -> bool {
    message.is_empty() && ready_reason(instance) == Some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_status_says_need_not_be_remembered() {
        let instance = json!({"status": {"conditions": [{"type": "Ready", "reason": "Ready"}]}});
        let told = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
        assert!(is_in_status(&instance, &told("Ready", "")));
        assert!(!is_in_status(&instance, &told("Paused", "")));
        assert!(!is_in_status(&instance, &told("Ready", "of which the status may tell only a part")));
        assert!(!is_in_status(&json!({}), &told("Ready", "")));
    }
}
