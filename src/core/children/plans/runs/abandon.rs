//! The end of a run whose revision cannot be loaded.

use super::Runs;
use crate::children::desired::target;
use crate::children::model::{
    Action, Context, Origin, Origins, PlanSnapshot, ReconcileState, RunAction, Snapshot,
};
use crate::children::plans::past::Past;
use crate::plan::{Directive, Ending, Phase, PlanRun};
use crate::template::Budget;

impl Runs<'_> {
    /// Ends a run without its revision: its Jobs are deleted, and its requests in flight are not awaited.
    pub(super) fn abandoned(&self, run: &PlanRun) -> Vec<RunAction> {
        let message =
            "the run was ended, and the revision of the package with which it began cannot be loaded"
                .to_owned();
        let ending = Ending { phase: Phase::Cancelled, reason: "Cancelled", message };
        self.naming.actions(run, &self.progress(run, &Directive::Abandon(ending)))
    }
}

/// The actions that end a run whose revision cannot be loaded: its Jobs are deleted, and its requests in
/// flight are not awaited.
pub(in crate::children::plans) fn abandon(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    past: &Past<'_>,
    current: Origin<'_>,
    run: &PlanRun,
    state: &ReconcileState,
) -> Vec<Action> {
    let origins = Origins::one(current);
    let ctx = Context::new(snapshot, &origins, Budget::new(snapshot.limits));
    let target = target(&ctx);
    let runs = Runs::new(&ctx, &target, plans, &past.history, false, state);
    runs.abandoned(run).into_iter().map(|action| Action::Run(Box::new(action))).collect()
}
