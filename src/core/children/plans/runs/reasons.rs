//! Why runs are wanted at this moment.

use std::collections::BTreeSet;

use crate::plan::{Cause, ConditionState, PlanRun, RunStatus};

/// Why runs are wanted at this moment.
pub(super) struct Reasons {
    /// Whether a rollout is needed.
    pub(super) is_rollout_needed: bool,
    /// The plans that are to restore lost children.
    pub(super) losses: BTreeSet<String>,
    /// The plans whose condition does not hold.
    pub(super) cleared: BTreeSet<String>,
}

impl Reasons {
    pub(super) fn of(
        is_rollout_needed: bool,
        losses: impl Iterator<Item = String>,
        conditions: &[(String, ConditionState)],
    ) -> Self {
        let is_cleared = |(_, verdict): &&(String, ConditionState)| *verdict == ConditionState::Cleared;
        let cleared = conditions.iter().filter(is_cleared).map(|(plan, _)| plan.clone()).collect();
        Self { is_rollout_needed, losses: losses.collect(), cleared }
    }

    /// Whether a run that has failed leaves something undone. A request whose steps have changed nothing of the instance
    /// leaves it as it was: what it was asked for is not done, but the instance is what its spec says.
    pub(super) fn leaves_undone(&self, run: &PlanRun, status: &RunStatus) -> bool {
        let has_changed = !(status.applied.is_empty()
            && status.deleted.is_empty()
            && status.record.is_empty()
            && !run.has_recorded);
        match run.cause() {
            Cause::Rollout => self.is_rollout_needed,
            Cause::Loss => has_changed || self.losses.contains(&run.spec.plan),
            Cause::Condition => has_changed || !self.cleared.contains(&run.spec.plan),
            Cause::Cleanup => true,
            Cause::Request | Cause::Schedule | Cause::Deletion => has_changed,
        }
    }
}
