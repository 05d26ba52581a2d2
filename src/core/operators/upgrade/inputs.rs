//! The inputs of a stage of an upgrade: what the status of an instance says of its revision, as a move writes it, and the
//! policy.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::facts::{condition, has_condition};

/// The condition of an instance that was moved to another revision and has not been ready since.
pub const CHANGING: &str = "RevisionChanging";
/// The reason of [`CHANGING`] if the instance was ready before: if it fails now, the revision may be the cause.
const MOVED: &str = "Moved";
/// The reason of [`CHANGING`] if the instance was not ready before: it is there until it was reconciled once.
const MOVED_UNREADY: &str = "MovedUnready";

/// The phases of a run that has not ended.
const ACTIVE: [&str; 3] = ["Pending", "Running", "Interrupted"];

/// What the status of an instance says of its revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Member {
    /// The revision that it is reconciled with; `None` if it was never reconciled.
    pub revision: Option<Box<str>>,
    pub(super) health: Health,
    /// A run of a plan is active: it ends with the revision that it began with.
    pub(super) is_busy: bool,
    pub(super) is_deleting: bool,
    pub(super) changing: Option<Changing>,
}

/// The states of an instance, in one word each.
pub const VERDICTS: [&str; 5] = ["ready", "reconciling", "stalled", "paused", "deleting"];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Health {
    Ready,
    #[default]
    Unready,
    Stalled,
    /// The instance is paused: only a person changes it.
    Paused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changing {
    /// The instance was ready before it was moved.
    Ready,
    /// The instance was not ready before it was moved.
    Unready,
}

impl Member {
    /// Reads the status of a live instance.
    pub fn of(instance: &Value) -> Self {
        let status = &instance["status"];
        let holds = |kind: &str| has_condition(instance, kind);
        let changing = condition(instance, CHANGING).filter(|condition| condition["status"] == "True");
        let health = if condition(instance, "Ready").is_some_and(|ready| ready["reason"] == "Paused") {
            Health::Paused
        } else if holds("Ready") {
            Health::Ready
        } else if holds("Stalled") {
            Health::Stalled
        } else {
            Health::Unready
        };
        Self {
            revision: status["revision"].as_str().map(Into::into),
            health,
            is_busy: status["plan"]["phase"].as_str().is_some_and(|phase| ACTIVE.contains(&phase)),
            is_deleting: !instance["metadata"]["deletionTimestamp"].is_null(),
            changing: changing.map(|condition| {
                if condition["reason"] == MOVED_UNREADY { Changing::Unready } else { Changing::Ready }
            }),
        }
    }

    /// The state of the instance, in one word of [`VERDICTS`].
    pub fn verdict(&self) -> &'static str {
        match self.health {
            _ if self.is_deleting => "deleting",
            Health::Ready => "ready",
            Health::Unready => "reconciling",
            Health::Stalled => "stalled",
            Health::Paused => "paused",
        }
    }

    /// Whether a run of a plan is active.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Whether the instance is stalled.
    pub fn is_stalled(&self) -> bool {
        self.health == Health::Stalled
    }

    /// Whether the instance was moved and has not settled since.
    pub fn is_changing(&self) -> bool {
        self.changing.is_some()
    }
}

/// How an upgrade proceeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How many instances change at a time.
    pub max_unavailable: MaxUnavailable,
    /// Whether no other instance is moved while one fails that was moved.
    pub pause_on_failure: bool,
    /// How long an instance that was ready before may be unready after it was moved until that is a failure.
    pub deadline: Duration,
    /// For how long instances may keep their revision because they are paused or pinned; `None` for ever.
    pub max_hold: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_unavailable: MaxUnavailable::Percent(10),
            pause_on_failure: true,
            // The same default as a Deployment has.
            deadline: Duration::from_secs(600),
            max_hold: None,
        }
    }
}

impl Policy {
    /// Whether instances no longer keep their revision because they are paused or pinned. `status`: that of the `Operator`,
    /// which records since when it names its revision.
    pub fn is_hold_over(&self, status: &Value, now: Timestamp) -> bool {
        let since = status["targetSince"].as_str().and_then(|since| since.parse::<Timestamp>().ok());
        let held = since.map(|since| Duration::try_from(now.duration_since(since)).unwrap_or_default());
        self.max_hold.zip(held).is_some_and(|(most, held)| held >= most)
    }
}

/// A number of instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// An absolute number.
    Count(usize),
    /// A percentage, and at least one.
    Percent(usize),
}

impl MaxUnavailable {
    /// Parses a number, or a text such as `10%`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let wrong = || format!("{value} is neither a number from 1 nor a percentage such as \"10%\"");
        let parsed = match value {
            Value::Number(number) => number.as_u64().and_then(|n| usize::try_from(n).ok()).map(Self::Count),
            Value::String(text) => {
                text.strip_suffix('%').and_then(|percent| percent.parse().ok()).map(Self::Percent)
            }
            _ => None,
        };
        match parsed {
            None | Some(Self::Count(0) | Self::Percent(0 | 101..)) => Err(wrong()),
            Some(parsed) => Ok(parsed),
        }
    }

    pub(super) fn of(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => (total * percent / 100).max(1),
        }
    }
}

/// The status of an instance that is moved to `target`, as a JSON merge patch. `status`: its present status.
/// `now` is RFC 3339.
pub fn moved(status: &Value, generation: i64, target: &str, now: &str) -> Value {
    let there = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_ready = there.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    let from = status["revision"].as_str().unwrap_or_default();
    let mut conditions: Vec<Value> = there.iter().filter(|c| c["type"] != CHANGING).cloned().collect();
    conditions.push(json!({
        "type": CHANGING, "status": "True", "reason": if is_ready { MOVED } else { MOVED_UNREADY },
        "message": format!("from revision {from} of the package to {target}"),
        "lastTransitionTime": now, "observedGeneration": generation,
    }));
    json!({"revision": target, "conditions": conditions})
}

/// Whether a condition [`CHANGING`] is over. `is_ready`: whether the instance is ready with the revision that its status
/// records. `is_reconciled`: whether it was reconciled with it.
pub fn is_changed(condition: &Value, is_ready: bool, is_reconciled: bool) -> bool {
    is_ready || is_reconciled && condition["reason"] == MOVED_UNREADY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_ends_after_max_hold() {
        let policy = |max_hold| Policy { max_hold, ..Policy::default() };
        let now = |text: &str| text.parse::<Timestamp>().unwrap();
        let status = json!({"targetSince": "2026-01-01T00:00:00Z"});
        let minute = Some(Duration::from_mins(1));
        assert!(!policy(minute).is_hold_over(&status, now("2026-01-01T00:00:59Z")));
        assert!(policy(minute).is_hold_over(&status, now("2026-01-01T00:01:00Z")));
        assert!(policy(Some(Duration::ZERO)).is_hold_over(&status, now("2025-01-01T00:00:00Z")));
        assert!(!policy(None).is_hold_over(&status, now("2036-01-01T00:00:00Z")));
        assert!(
            !policy(minute).is_hold_over(&json!({}), now("2036-01-01T00:00:00Z")),
            "it is not recorded yet"
        );
    }

    #[test]
    fn max_unavailable_is_a_number_or_a_percentage() {
        assert_eq!(MaxUnavailable::parse(&json!(3)), Ok(MaxUnavailable::Count(3)));
        assert_eq!(MaxUnavailable::parse(&json!("25%")), Ok(MaxUnavailable::Percent(25)));
        for wrong in [json!(0), json!(-1), json!("0%"), json!("101%"), json!("3"), json!("x%"), json!(1.5)] {
            assert!(MaxUnavailable::parse(&wrong).is_err(), "{wrong}");
        }
        assert_eq!((MaxUnavailable::Percent(10).of(5), MaxUnavailable::Percent(10).of(200)), (1, 20));
    }
}
