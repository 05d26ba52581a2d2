//! The result of a decision.

use std::time::Duration;

use serde_json::Value;

use super::action::Action;
use super::check::Check;
use super::finding::Finding;
use super::item::Item;
use super::needs::Needs;
use super::oscillation::TargetChange;
use super::status::Status;
use super::target::Target;
use super::verdict::{Summary, Verdict};
use crate::api::ObjectRef;
use crate::plan::Conditions;
use crate::template::{Exceeded, Totals};

/// What to do next.
#[derive(Debug)]
pub struct Decision {
    /// One check for each shape of what is about to be created or changed, blocked or not. A dry run of each must have
    /// passed before the first action.
    pub checks: Vec<Check>,
    /// What to do now; the finalizer first, applies in any order, deletions last.
    pub actions: Vec<Action>,
    /// What differs from the target, or blocks it.
    pub findings: Vec<Finding>,
    /// The state of the instance.
    pub verdict: Verdict,
    /// The status to write once there is nothing to do now. During deletion there is one only if something blocks it.
    pub status: Option<Status>,
    /// When to decide again, if no event comes first.
    pub again: Option<Duration>,
    /// The line about each child; `None` if the decision has not looked at the children.
    pub children: Option<Vec<ChildLine>>,
    /// What it needs to know beyond the snapshot.
    pub needs: Needs,
    /// Whether all that it reads is there.
    pub input: Input,
    /// Whether all of the target was applied.
    pub accepted: bool,
    /// Changes of the target among the actions that no change of the instance explains.
    pub target_changes: Vec<TargetChange>,
    /// For how long the conditions of plans have held, to be remembered.
    pub conditions: Option<Conditions>,
    /// What its evaluations cost.
    pub evaluation: Evaluation,
}

/// Whether all that a decision reads is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Input {
    /// Everything that it reads is there.
    #[default]
    Complete,
    /// The decision says only that observations have no answer yet. A status that says more is then kept.
    Unanswered,
    /// Refs, a revision or runs are still loading: the status is not written yet.
    Loading,
}

/// What the evaluations of a decision have used of [`super::snapshot::Snapshot::limits`].
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// What they have used.
    pub used: Totals,
    /// Whether the limits have cut the decision: some bodies were too large to be kept together and are written by a later
    /// decision, or a step of a run has failed at them.
    pub is_partial: bool,
    /// The limit at which evaluation stopped. Then there are no actions.
    pub exceeded: Option<Exceeded>,
}

impl Evaluation {
    /// Nothing was evaluated.
    const NONE: Self = Self { used: Totals::NONE, is_partial: false, exceeded: None };

    /// Whether the small budget is enough.
    pub fn is_small(&self) -> bool {
        let is_total = self.exceeded.as_ref().is_some_and(|exceeded| exceeded.is_total);
        !is_total && !self.is_partial && self.used.fits(Totals::SMALL)
    }
}

/// The line about a child: its name, its object, and what it waits for.
pub type ChildLine = (String, Option<ObjectRef>, Result<(), String>);

impl Decision {
    /// The summary that all outputs share: the verdict, and for a Ready instance the fields that its status lacks.
    pub fn summary(&self) -> Summary {
        let summary = self.verdict.summary();
        match &self.status {
            Some(status) => status.summary(summary),
            None => summary,
        }
    }

    /// A decision that has a verdict and nothing else.
    pub fn idle(verdict: Verdict) -> Self {
        Self {
            checks: Vec::new(),
            actions: Vec::new(),
            findings: Vec::new(),
            verdict,
            status: None,
            again: None,
            children: None,
            needs: Needs::default(),
            input: Input::Complete,
            accepted: false,
            target_changes: Vec::new(),
            conditions: None,
            evaluation: Evaluation::NONE,
        }
    }

    /// The package is not active: children are left unchanged.
    pub(in crate::children) fn not_loaded(instance: &Value, message: String) -> Self {
        let verdict = Verdict::NotLoaded { message };
        Self { status: Some(Status::unseen(instance, &verdict)), ..Self::idle(verdict) }
    }
}

/// The lines of a target, for [`Decision::children`].
pub(in crate::children) fn lines(target: &Target) -> Vec<ChildLine> {
    let line = |item: &Item| {
        let object = item.desired.as_ref().ok().map(|desired| desired.object.clone());
        (item.name.clone(), object, item_state(item))
    };
    target.items.iter().map(line).collect()
}

fn item_state(item: &Item) -> Result<(), String> {
    match &item.desired {
        Err(error) => Err(error.to_string()),
        Ok(_) if item.observed.is_some() && !item.is_current() => Err("awaits its update".into()),
        Ok(_) => item.ready.clone(),
    }
}
