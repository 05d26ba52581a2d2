//! The model of an instance and of other objects that all commands show. No I/O.

mod node;

use serde_json::Value;

use super::out::printable;
use super::show::{Cell, Severity};
use crate::api::ApiKind;
use crate::children::{Health, NOT_LOADED, Summary};
use crate::facts::condition;
use crate::readiness::Readiness;
#[cfg(test)]
pub(super) use node::tests as node_tests;
pub(super) use node::{Node, NodePosition, child_position, grow, is_spent, owner, selector};

/// The reasons of `Stalled` with which a deletion waits for a person. Others are from before the deletion.
const HOLD_DELETION: [&str; 3] = ["CleanupFailed", "StateMissing", "StateNewer"];

/// The state of an object in one word, in the order of urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// An instance that needs a change by a person.
    Stalled,
    /// A child that has failed.
    Failed,
    /// An instance whose change is in progress or awaited.
    Reconciling,
    /// A child that is not ready.
    NotReady,
    /// An instance that is being deleted.
    Deleting,
    /// A child that is being deleted.
    Terminating,
    /// An instance whose writes a person has stopped.
    Paused,
    Ready,
    /// No manager has observed the instance, or its newest generation.
    NotObserved,
    /// The object was deleted during a watch.
    Deleted,
}

impl From<Health> for State {
    fn from(health: Health) -> Self {
        match health {
            Health::Ready => Self::Ready,
            Health::Reconciling => Self::Reconciling,
            Health::Stalled => Self::Stalled,
            Health::Paused => Self::Paused,
            Health::Deleting => Self::Deleting,
        }
    }
}

impl State {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Stalled => "Stalled",
            Self::Failed => "Failed",
            Self::Reconciling => "Reconciling",
            Self::NotReady => "NotReady",
            Self::Deleting => "Deleting",
            Self::Terminating => "Terminating",
            Self::Paused => "Paused",
            Self::Ready => "Ready",
            Self::NotObserved => "NotObserved",
            Self::Deleted => "Deleted",
        }
    }

    /// The state in its colour.
    pub(super) fn cell(self) -> Cell {
        Cell::new(self.text(), self.severity())
    }

    pub(super) fn severity(self) -> Severity {
        match self {
            Self::Ready => Severity::Good,
            Self::Stalled | Self::Failed => Severity::Bad,
            Self::Deleted => Severity::Dim,
            _ => Severity::Busy,
        }
    }
}

/// The status of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    /// The condition Ready of the newest generation: True, False or Unknown.
    pub ready: String,
    pub state: State,
    /// Empty if it repeats the state.
    pub reason: String,
    /// May be empty.
    pub message: String,
}

impl Status {
    pub(super) const DELETED: Self =
        Self { ready: String::new(), state: State::Deleted, reason: String::new(), message: String::new() };

    fn new(ready: &str, state: State, reason: &str, message: &str) -> Self {
        let reason = if reason == state.text() { String::new() } else { printable(reason) };
        Self { ready: printable(ready), state, reason, message: printable(message) }
    }

    /// The status of an instance, from what the manager has written there.
    pub(super) fn of_instance(instance: &Value) -> Self {
        let generation = instance["metadata"]["generation"].as_i64();
        let condition = |kind: &str| condition(instance, kind);
        let is_true = |kind: &str| condition(kind).filter(|condition| condition["status"] == "True");
        let ready = condition("Ready");
        let observed = instance["status"]["observedGeneration"].as_i64();
        let is_old = match (generation, observed) {
            (Some(generation), Some(observed)) => observed < generation,
            _ => ready.is_none() && observed.is_none(),
        };
        // No manager observes an instance whose package is not loaded, so the generation does not matter.
        let is_old = is_old && ready.is_none_or(|ready| ready["reason"] != NOT_LOADED);
        let (state, about) = if !instance["metadata"]["deletionTimestamp"].is_null() {
            let holds = |stalled: &&Value| HOLD_DELETION.iter().any(|reason| stalled["reason"] == *reason);
            match is_true("Stalled").filter(holds) {
                Some(stalled) => (State::Stalled, Some(stalled)),
                None => (State::Deleting, ready.filter(|ready| ready["reason"] == "Deleting")),
            }
        } else if is_old {
            (State::NotObserved, None)
        } else if let Some(stalled) = is_true("Stalled") {
            (State::Stalled, Some(stalled))
        } else if let Some(reconciling) = is_true("Reconciling") {
            (State::Reconciling, Some(reconciling))
        } else if ready.is_some_and(|ready| ready["status"] == "True") {
            (State::Ready, is_true("StatusFailed").or(ready))
        } else if ready.is_some_and(|ready| ready["reason"] == "Paused") {
            (State::Paused, ready)
        } else {
            (State::Reconciling, ready)
        };
        let text = |key: &str| about.and_then(|about| about[key].as_str()).unwrap_or_default();
        let message = match (state, generation, observed) {
            (State::NotObserved, Some(generation), Some(observed)) => {
                format!("its manager has observed generation {observed}, the newest is {generation}")
            }
            (State::NotObserved, ..) => "no manager has observed it yet".to_owned(),
            _ => text("message").to_owned(),
        };
        let ready = ready.filter(|_| !is_old).and_then(|ready| ready["status"].as_str());
        Self::new(ready.unwrap_or("Unknown"), state, text("reason"), &message)
    }

    /// The status of an instance, from a decision of the manager.
    pub(super) fn of_summary(summary: &Summary) -> Self {
        let ready = summary.ready.map_or("Unknown", |ready| if ready { "True" } else { "False" });
        Self::new(ready, State::from(summary.health), &summary.reason, &summary.message)
    }

    /// The status of an object that is not an instance.
    pub(super) fn of_object(readiness: &Readiness) -> Self {
        match readiness {
            Readiness::Ready => Self::new("True", State::Ready, "", ""),
            Readiness::NotReady { reason, message } => Self::new("False", State::NotReady, reason, message),
            Readiness::Failed { reason, message } => Self::new("False", State::Failed, reason, message),
            Readiness::Terminating => Self::new("False", State::Terminating, "", ""),
        }
    }

    /// Reason and message in one line.
    pub(super) fn sentence(&self) -> String {
        if self.reason.is_empty() {
            self.message.clone()
        } else {
            format!("{}: {}", self.reason, self.message)
        }
    }
}

/// Sets the kind, which objects in lists lack.
pub(super) fn complete(kind: &ApiKind, object: &mut Value) {
    object["kind"] = kind.kind.as_str().into();
    object["apiVersion"] = kind.api_version().into();
}

/// The name of an object.
pub(super) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// An object of the API server, as the commands show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub api_version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
    pub created: Option<String>,
    pub status: Status,
}

impl Object {
    pub(super) fn new(object: &Value, status: Status) -> Self {
        let meta = &object["metadata"];
        let text = |value: &Value| value.as_str().map(printable);
        Self {
            api_version: text(&object["apiVersion"]).unwrap_or_default(),
            kind: text(&object["kind"]).unwrap_or_default(),
            namespace: text(&meta["namespace"]),
            name: text(&meta["name"]).unwrap_or_default(),
            uid: text(&meta["uid"]).unwrap_or_default(),
            created: meta["creationTimestamp"].as_str().map(str::to_owned),
            status,
        }
    }

    pub(super) fn instance(object: &Value) -> Self {
        Self::new(object, Status::of_instance(object))
    }

    pub(super) fn is_ready(&self) -> bool {
        self.status.state == State::Ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children::{self, Verdict, status_patch};
    use serde_json::json;

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": format!("{reason}\nhere")})
    }

    fn of(
        metadata: &Value,
        seen: Option<i64>,
        conditions: &[Value],
    ) -> (String, &'static str, String, String) {
        let instance =
            json!({"metadata": metadata, "status": {"observedGeneration": seen, "conditions": conditions}});
        let status = Status::of_instance(&instance);
        (status.ready, status.state.text(), status.reason, status.message)
    }

    #[test]
    fn the_state_is_read_from_the_conditions() {
        let first = json!({"generation": 1});
        let going = json!({"generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let [ready, unready] = ["True", "False"].map(|status| condition("Ready", status, "Ready"));
        let waits = [condition("Ready", "False", "Waits"), condition("Reconciling", "True", "Waits")];
        let stalled = [condition("Ready", "False", "Forbidden"), condition("Stalled", "True", "Forbidden")];
        let held =
            [condition("Ready", "False", "CleanupFailed"), condition("Stalled", "True", "CleanupFailed")];
        let failed = [condition("Ready", "True", "Ready"), condition("StatusFailed", "True", "StatusFailed")];
        let lost = [condition("Ready", "Unknown", NOT_LOADED), condition("Stalled", "True", NOT_LOADED)];
        let paused = [condition("Ready", "False", "Paused")];
        let deleting =
            [condition("Ready", "False", "Deleting"), condition("Reconciling", "True", "Deleting")];
        let late = "its manager has observed generation 1, the newest is 2";
        for (metadata, seen, conditions, expected) in [
            (&first, None, &[][..], ("Unknown", "NotObserved", "", "no manager has observed it yet")),
            (&first, Some(1), std::slice::from_ref(&ready), ("True", "Ready", "", "Ready here")),
            (&first, Some(1), &waits, ("False", "Reconciling", "Waits", "Waits here")),
            (&first, Some(1), &stalled, ("False", "Stalled", "Forbidden", "Forbidden here")),
            (&first, Some(1), &failed, ("True", "Ready", "StatusFailed", "StatusFailed here")),
            // Without a loaded package the generation does not matter.
            (
                &json!({"generation": 2}),
                Some(1),
                &lost,
                ("Unknown", "Stalled", NOT_LOADED, "PackageNotLoaded here"),
            ),
            (&first, Some(1), &paused, ("False", "Paused", "", "Paused here")),
            (
                &first,
                Some(1),
                std::slice::from_ref(&unready),
                ("False", "Reconciling", "Ready", "Ready here"),
            ),
            (
                &json!({"generation": 2}),
                Some(1),
                std::slice::from_ref(&ready),
                ("Unknown", "NotObserved", "", late),
            ),
            (&going, Some(2), &deleting, ("False", "Deleting", "", "Deleting here")),
            (&going, Some(1), std::slice::from_ref(&ready), ("Unknown", "Deleting", "", "")),
            (&going, Some(1), &held, ("Unknown", "Stalled", "CleanupFailed", "CleanupFailed here")),
            (&going, Some(1), &stalled, ("Unknown", "Deleting", "", "")),
        ] {
            let (ready, state, reason, message) = of(metadata, seen, conditions);
            assert_eq!((&*ready, state, &*reason, &*message), expected, "{metadata} {conditions:?}");
        }
        // A verdict and the status that the manager writes for it show the same.
        let because = |reason: &str| (reason.to_owned(), format!("{reason} here"));
        let (stalled, waiting) = (because("Forbidden"), because("ChildrenNotReady"));
        for verdict in [
            Verdict::Ready { children: 1 },
            Verdict::Ready { children: 2 },
            Verdict::Enough { children: 2 },
            Verdict::Reconciling { reason: waiting.0, message: waiting.1 },
            Verdict::Stalled { reason: stalled.0, message: stalled.1 },
            Verdict::Paused { message: "paused".to_owned() },
            Verdict::Deleting { message: "waits".to_owned() },
            Verdict::NotLoaded { message: "it is broken".to_owned() },
        ] {
            let mut instance = json!({"metadata": {"generation": 1}});
            let status = children::Status::unseen(&instance, &verdict);
            instance["status"] = status_patch(&Value::Null, &status, "now").unwrap();
            let summary = verdict.summary();
            if summary.health == Health::Deleting {
                instance["metadata"]["deletionTimestamp"] = "now".into();
            }
            let read = Status::of_instance(&instance);
            assert_eq!(read, Status::of_summary(&summary), "{verdict:?}");
        }
        // A status of another shape is not the manager's.
        assert_eq!(Status::of_instance(&json!({"metadata": {}, "status": "fine"})).state, State::NotObserved);
    }
}
