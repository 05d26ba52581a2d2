//! How an instance stands, read from its status: what the manager has written there, and nothing else.

use serde_json::Value;

use super::columns::Tone;
use super::out::printable;
use crate::children::{Health, NOT_LOADED, condition};

/// In one word. Those come first that people should look at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Nothing will change until somebody does something.
    Stalled,
    /// Under way.
    Reconciling,
    Deleting,
    /// Somebody has stopped all writes.
    Paused,
    Ready,
    /// No manager has seen it, or not its newest generation.
    NotObserved,
    /// Gone, while somebody watched.
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
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::Paused => "Paused",
            Self::Deleting => "Deleting",
            Self::NotObserved => "NotObserved",
            Self::Deleted => "Deleted",
        }
    }

    pub(super) fn tone(self) -> Tone {
        match self {
            Self::Ready => Tone::Good,
            Self::Stalled => Tone::Bad,
            Self::Deleted => Tone::Dim,
            _ => Tone::Busy,
        }
    }
}

/// How it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    /// The condition Ready of the newest generation: True, False or Unknown.
    pub ready: String,
    pub state: State,
    /// One word more; empty if the state says it all.
    pub reason: String,
    /// A sentence; may be empty.
    pub message: String,
}

impl Standing {
    /// Of an instance.
    pub(super) fn of(instance: &Value) -> Self {
        let generation = instance["metadata"]["generation"].as_i64();
        let condition = |kind: &str| condition(instance, kind);
        let is_true = |kind: &str| condition(kind).filter(|condition| condition["status"] == "True");
        let text = |value: &Value| printable(value.as_str().unwrap_or_default());
        let ready = condition("Ready");
        let seen = instance["status"]["observedGeneration"].as_i64();
        let is_old = match (generation, seen) {
            (Some(generation), Some(seen)) => seen < generation,
            _ => ready.is_none() && seen.is_none(),
        };
        // Whatever the spec is now: nobody looks at it.
        let is_old = is_old && ready.is_none_or(|ready| ready["reason"] != NOT_LOADED);
        let deleting = !instance["metadata"]["deletionTimestamp"].is_null();
        let (state, about) = if deleting {
            (State::Deleting, ready.filter(|ready| ready["reason"] == "Deleting"))
        } else if is_old {
            (State::NotObserved, None)
        } else if let Some(stalled) = is_true("Stalled") {
            (State::Stalled, Some(stalled))
        } else if let Some(reconciling) = is_true("Reconciling") {
            (State::Reconciling, Some(reconciling))
        } else if ready.is_some_and(|ready| ready["status"] == "True") {
            // Nothing is wrong with it but what its status shows.
            (State::Ready, is_true("StatusFailed").or(ready))
        } else if ready.is_some_and(|ready| ready["reason"] == "Paused") {
            (State::Paused, ready)
        } else {
            (State::Reconciling, ready)
        };
        let mut message = about.map(|about| text(&about["message"])).unwrap_or_default();
        if state == State::NotObserved {
            message = match (generation, seen) {
                (Some(generation), Some(seen)) => {
                    format!("its manager has seen generation {seen}, the newest is {generation}")
                }
                _ => "no manager has seen it yet".to_owned(),
            };
        }
        let reason = about.map(|about| text(&about["reason"])).unwrap_or_default();
        let status =
            ready.filter(|_| !is_old).and_then(|ready| ready["status"].as_str()).unwrap_or("Unknown");
        Self {
            ready: printable(status),
            state,
            reason: if reason == state.text() { String::new() } else { reason },
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children::{Status, Verdict, status_patch};
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
        let standing = Standing::of(&instance);
        (standing.ready, standing.state.text(), standing.reason, standing.message)
    }

    #[test]
    fn the_status_says_how_it_stands() {
        let first = json!({"generation": 1});
        let going = json!({"generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let [ready, unready] = ["True", "False"].map(|status| condition("Ready", status, "Ready"));
        let waits = [condition("Ready", "False", "Waits"), condition("Reconciling", "True", "Waits")];
        let stalled = [condition("Ready", "False", "Forbidden"), condition("Stalled", "True", "Forbidden")];
        let failed = [condition("Ready", "True", "Ready"), condition("StatusFailed", "True", "StatusFailed")];
        let lost = [condition("Ready", "Unknown", NOT_LOADED), condition("Stalled", "True", NOT_LOADED)];
        let paused = [condition("Ready", "False", "Paused")];
        let deleting =
            [condition("Ready", "False", "Deleting"), condition("Reconciling", "True", "Deleting")];
        let late = "its manager has seen generation 1, the newest is 2";
        for (metadata, seen, conditions, expected) in [
            (&first, None, &[][..], ("Unknown", "NotObserved", "", "no manager has seen it yet")),
            (&first, Some(1), std::slice::from_ref(&ready), ("True", "Ready", "", "Ready here")),
            (&first, Some(1), &waits, ("False", "Reconciling", "Waits", "Waits here")),
            (&first, Some(1), &stalled, ("False", "Stalled", "Forbidden", "Forbidden here")),
            (&first, Some(1), &failed, ("True", "Ready", "StatusFailed", "StatusFailed here")),
            // Whatever the spec is now.
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
        ] {
            let (ready, state, reason, message) = of(metadata, seen, conditions);
            assert_eq!((&*ready, state, &*reason, &*message), expected, "{metadata} {conditions:?}");
        }
        // What the manager says of a verdict is what is read from the status that it writes.
        let because = |reason: &str| (reason.to_owned(), format!("{reason} here"));
        let (stalled, waiting) = (because("Forbidden"), because("ChildrenNotReady"));
        for verdict in [
            Verdict::Ready { children: 1 },
            Verdict::Ready { children: 2 },
            Verdict::Enough { children: 2 },
            Verdict::Reconciling { reason: waiting.0, message: waiting.1 },
            Verdict::Stalled { reason: stalled.0, message: stalled.1 },
            Verdict::Paused,
            Verdict::Deleting { message: "waits".to_owned() },
            Verdict::NotLoaded { message: "it is broken".to_owned() },
        ] {
            let mut instance = json!({"metadata": {"generation": 1}});
            let status = Status::unseen(&instance, &verdict);
            instance["status"] = status_patch(&Value::Null, &status, "now").unwrap();
            let summary = verdict.summary();
            if summary.health == Health::Deleting {
                instance["metadata"]["deletionTimestamp"] = "now".into();
            }
            let read = Standing::of(&instance);
            let ready = summary.ready.map_or("Unknown", |ready| if ready { "True" } else { "False" });
            let state = State::from(summary.health);
            let reason = if summary.reason == state.text() { String::new() } else { summary.reason };
            let expected = Standing { ready: ready.to_owned(), state, reason, message: summary.message };
            assert_eq!(read, expected, "{verdict:?}");
        }
        // A status of another shape is somebody else's.
        assert_eq!(Standing::of(&json!({"metadata": {}, "status": "fine"})).state, State::NotObserved);
    }
}
