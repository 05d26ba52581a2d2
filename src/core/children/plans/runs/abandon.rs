//! The end of a run whose revision cannot be loaded.

use std::collections::HashMap;
use std::time::Duration;

use super::Runs;
use crate::children::desired::target;
use crate::children::model::{Action, Context, Origins, ReconcileState};
use crate::children::plans::past::Past;
use crate::plan::{Directive, Ending, Phase, PlanRun, RunAction};
use crate::template::Budget;

impl Runs<'_> {
    /// Ends a run without its revision: its Jobs are deleted, and its requests in flight are not awaited.
    pub(super) fn abandoned(&self, run: &PlanRun) -> Vec<RunAction> {
        let message =
            "the run was ended, and the revision of the package with which it began cannot be loaded"
                .to_owned();
        let ending = Ending { phase: Phase::Cancelled, reason: "Cancelled", message };
        self.progress(run, &Directive::Abandon(ending)).actions(run)
    }
}

/// The actions that end a run whose revision cannot be loaded: its Jobs are deleted, and its requests in
/// flight are not awaited.
pub(in crate::children::plans) fn abandon(
    past: &Past<'_>,
    run: &PlanRun,
    at: (&ReconcileState, Duration),
) -> Vec<Action> {
    let (snapshot, beside) = (past.snapshot, HashMap::new());
    let origins = Origins::one(past.origin);
    let ctx = Context::new(snapshot, &origins, Budget::new(snapshot.limits)).with_live(&past.live);
    let target = target(&ctx);
    let runs = Runs::new(&ctx, &target, past, &beside, at);
    runs.abandoned(run).into_iter().map(|action| Action::Run(Box::new(action))).collect()
}
