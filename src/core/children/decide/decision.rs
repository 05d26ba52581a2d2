//! The result of a decision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{Action, Summary, TargetChange, Verdict};
use crate::api::ObjectRef;
use crate::children::findings::Finding;
use crate::children::observed::Observed;
use crate::children::refs::{Poll, ResourceSelector};
use crate::children::shape::Check;
use crate::children::status::Status;
use crate::children::target::{Item, Target};
use crate::plan::Conditions;
use crate::template::{Exceeded, Totals};

/// What to do next.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub struct Decision {
    /// One check for each shape of what is about to be created or changed, blocked or not. A dry run of each must have
    /// passed before the first action.
    pub checks: Vec<Check>,
    /// What to do now; the finalizer first, applies in any order, deletions last.
    pub actions: Vec<Action>,
    /// The `Ask` children whose deletion waits for approval: the runs that delete them must be watched.
    pub asks: Vec<Arc<Observed>>,
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
    /// The objects that its refs name, which must be watched.
    pub wants: Vec<ResourceSelector>,
    /// What is to be observed by requests.
    pub polls: Vec<Arc<Poll>>,
    /// Namespaces whose users [`crate::children::Snapshot::namespace_users`] must contain before the next
    /// decision.
    pub namespaces: Vec<String>,
    /// The earlier revisions of the package that its origins and runs name, which must be loaded.
    pub revisions: BTreeSet<String>,
    /// Whether refs are still loading: the status is not written yet.
    pub pending: bool,
    /// Whether the decision says only that observations have no answer yet. A status that says more is then
    /// kept.
    pub awaits_answers: bool,
    /// Whether all of the target was applied.
    pub accepted: bool,
    /// Changes of the target among the actions that no change of the instance explains.
    pub target_changes: Vec<TargetChange>,
    /// Whether the decision depends on [`crate::children::Snapshot::record_key`], which must be read.
    pub needs_record_key: bool,
    /// Whether a step of a run waits.
    pub waits_for_step: bool,
    /// For how long the conditions of plans have held, to be remembered.
    pub conditions: Option<Conditions>,
    /// Whether the limits have cut the decision: some bodies were too large to be kept together and are
    /// written by a later decision, or a step of a run has failed at them.
    pub is_partial: bool,
    /// What its evaluations have used of [`crate::children::Snapshot::limits`].
    pub used: Totals,
    /// The limit at which evaluation stopped. Then there are no actions.
    pub exceeded: Option<Exceeded>,
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
            asks: Vec::new(),
            findings: Vec::new(),
            verdict,
            status: None,
            again: None,
            children: None,
            wants: Vec::new(),
            polls: Vec::new(),
            namespaces: Vec::new(),
            revisions: BTreeSet::new(),
            used: Totals::NONE,
            pending: false,
            awaits_answers: false,
            accepted: false,
            target_changes: Vec::new(),
            needs_record_key: false,
            waits_for_step: false,
            conditions: None,
            is_partial: false,
            exceeded: None,
        }
    }

    /// The package is not active: children are left unchanged.
    pub(super) fn not_loaded(instance: &Value, message: String) -> Self {
        let verdict = Verdict::NotLoaded { message };
        Self { status: Some(Status::unseen(instance, &verdict)), ..Self::idle(verdict) }
    }
}

/// The lines of a target, for [`Decision::children`].
pub(super) fn lines(target: &Target) -> Vec<ChildLine> {
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
