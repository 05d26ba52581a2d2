//! The status that an instance should have.

use serde_json::Value;

use super::verdict::{Health, Summary, Verdict};

/// The condition of an instance whose CRD another manager keeps reverting.
const CONTESTED: &str = "CRDFieldManagerConflict";
pub(in crate::children) const RECONCILING: &str = "Reconciling";
pub(in crate::children) const STALLED: &str = "Stalled";
/// The condition that names fields left out of the status.
pub(in crate::children) const FAILED: &str = "StatusFailed";
/// How many objects a condition names.
pub(in crate::children) const NAMED: usize = 5;

/// A status as it should be. Times are left to `children::status::patch`, which knows the present status.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub(in crate::children) generation: i64,
    /// Whether the status is about the spec of this generation. It is not while the package is inactive: the
    /// spec is not reconciled.
    pub(in crate::children) observes: bool,
    /// `None` where the CRD's author has another use for the field.
    pub(in crate::children) revision: Option<String>,
    pub(in crate::children) conditions: Vec<Condition>,
    pub(in crate::children) projection: Projection,
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::children) struct Condition {
    pub(in crate::children) kind: String,
    pub(in crate::children) status: Option<bool>,
    pub(in crate::children) reason: String,
    pub(in crate::children) message: String,
}

impl Condition {
    /// Whether it is shown whatever the API server says of the rest.
    pub(in crate::children) fn is_standard(&self) -> bool {
        ["Ready", RECONCILING, STALLED, FAILED].contains(&self.kind.as_str())
    }
}

impl Status {
    /// This status with another verdict than that of the decision: what was decided could not be done.
    #[must_use]
    pub fn retold(mut self, verdict: &Verdict) -> Self {
        self.conditions
            .retain(|condition| !["Ready", RECONCILING, STALLED].contains(&condition.kind.as_str()));
        self.conditions.splice(0..0, standard(&verdict.summary()));
        self
    }

    /// The summary of the instance; for one that is Ready also what its status lacks.
    pub(in crate::children) fn summary(&self, summary: Summary) -> Summary {
        if summary.health != Health::Ready {
            return summary;
        }
        if let Some(failed) = self.failed() {
            return Summary { reason: failed.reason, message: failed.message, ..summary };
        }
        let ready = self.conditions.iter().find(|condition| condition.kind == "Ready");
        let message = ready.map_or(summary.message, |ready| ready.message.clone());
        Summary { message, ..summary }
    }

    /// The condition that says which fields are left out, if any are.
    pub(in crate::children) fn failed(&self) -> Option<Condition> {
        let faults = &self.projection.faults;
        let more = faults.len().saturating_sub(NAMED);
        let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
        (!faults.is_empty()).then(|| Condition {
            kind: FAILED.into(),
            status: Some(true),
            reason: FAILED.into(),
            message: format!("left out: {}{rest}", faults[..faults.len() - more].join("; ")),
        })
    }

    /// The message that says which fields are left out, if any are.
    pub fn failure(&self) -> Option<String> {
        self.failed().map(|failed| failed.message)
    }

    /// Adds the condition that another client replaces the CRD repeatedly; or, if the status has it, that no
    /// client does any more.
    pub fn crd_conflict(&mut self, by: Option<&str>, current: &Value) {
        let said = || {
            let all = current["conditions"].as_array().into_iter().flatten();
            all.into_iter().any(|c| c["type"] == CONTESTED && c["status"] == "True")
        };
        if by.is_some() || said() {
            self.conditions.push(Condition {
                kind: CONTESTED.into(),
                status: Some(by.is_some()),
                reason: if by.is_some() { "Reverted" } else { "Settled" }.into(),
                message: by.unwrap_or_default().into(),
            });
        }
    }

    /// The status of an instance that is being deleted, whether or not its package is known: the rest stays
    /// as it is.
    pub(in crate::children) fn deleting(instance: &Value, verdict: &Verdict) -> Self {
        Self { observes: true, ..Self::unseen(instance, verdict) }
    }

    /// The status of an instance whose spec is not reconciled: only what blocks it is shown.
    pub fn unseen(instance: &Value, verdict: &Verdict) -> Self {
        Self {
            generation: instance["metadata"]["generation"].as_i64().unwrap_or(0),
            observes: false,
            revision: None,
            conditions: standard(&verdict.summary()),
            projection: Projection::default(),
        }
    }
}

/// Ready, and Reconciling and Stalled as kstatus has them: they are there while they hold, and never beside Ready=True.
/// See `docs/design/0011-status-conditions.md`.
pub(in crate::children) fn standard(summary: &Summary) -> Vec<Condition> {
    let condition = |kind: &str, status: Option<bool>| Condition {
        kind: kind.into(),
        status,
        reason: summary.reason.clone(),
        message: summary.message.clone(),
    };
    let cause = match summary.health {
        Health::Ready | Health::Paused => None,
        Health::Reconciling | Health::Deleting => Some(RECONCILING),
        Health::Stalled => Some(STALLED),
    };
    let mut all = vec![condition("Ready", summary.ready)];
    all.extend(cause.map(|kind| condition(kind, Some(true))));
    all
}

/// The fields of a status, by dotted name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::children) struct Projection {
    /// The value of each field. `None` keeps the present value, null removes it.
    pub fields: Vec<(String, Option<Value>)>,
    /// What is left out, one sentence each, beginning with `status.NAME`.
    pub faults: Vec<String>,
}
