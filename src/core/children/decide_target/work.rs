//! What the stages of a decision have found and decided so far.

use std::time::Duration;

use crate::children::apply;
use crate::children::findings::soonest;
use crate::children::model::{
    Action, Check, Context, Desired, Finding, Item, Needs, ReconcileState, Target, TargetChange, Why,
};
use crate::children::prune::Pruned;

/// What the stages have decided so far.
#[derive(Default)]
pub(super) struct Work {
    pub(super) checks: Vec<Check>,
    pub(super) actions: Vec<Action>,
    pub(super) findings: Vec<Finding>,
    pub(super) again: Option<Duration>,
    pub(super) target_changes: Vec<TargetChange>,
    pub(super) needs: Needs,
}

impl Work {
    pub(super) fn apply(
        &mut self,
        ctx: &Context<'_>,
        target: &Target,
        item: &Item,
        desired: &Desired,
        why: Why,
        at: (&ReconcileState, Duration),
    ) {
        self.actions.push(Action::Apply(Box::new(apply::apply(ctx, target, item, desired, why, at))));
    }

    /// Reports that another manager keeps changing fields of an object, and that they are restored less often.
    pub(super) fn report_conflict(&mut self, item: &Item, (state, now): (&ReconcileState, Duration)) {
        let (Some(observed), Ok(desired)) = (&item.observed, &item.desired) else { return };
        if observed.desired.as_deref() != Some(&desired.hash) {
            return;
        }
        let corrections = state.corrections(&observed.object);
        if let Some((corrections, rest)) = corrections.and_then(|c| Some((c, c.rest(now)?))) {
            self.findings.push(Finding::field_manager_conflict(item, observed, corrections.conflict()));
            self.wake(Some(rest));
        }
    }

    pub(super) fn add(&mut self, pruned: Pruned) {
        self.actions.extend(pruned.actions);
        self.findings.extend(pruned.findings);
        self.needs.add(pruned.needs);
        self.wake(pruned.again);
    }

    pub(super) fn wake(&mut self, after: Option<Duration>) {
        self.again = soonest([self.again, after]);
    }
}
