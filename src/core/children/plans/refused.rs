//! Writes for runs that the API server has refused: each is tried again later, and meanwhile nothing else waits for it.

use std::time::Duration;

use crate::children::model::{Action, Decision, ReconcileState};
use crate::plan::RunAction;

/// How long until an action is tried again that the API server has refused; `None`: now.
fn rest(action: &RunAction, (state, now): (&ReconcileState, Duration)) -> Option<Duration> {
    let (_, rest) = state.refused_run(&action.subject()?, now)?;
    Some(rest)
}

/// Leaves out the actions that the API server has refused a moment ago. Returns how long until the first of them is tried again.
pub(super) fn hold(actions: &mut Vec<RunAction>, at: (&ReconcileState, Duration)) -> Option<Duration> {
    let mut again: Option<Duration> = None;
    actions.retain(|action| {
        let rest = rest(action, at);
        again = [again, rest].into_iter().flatten().min();
        rest.is_none()
    });
    again
}

/// Leaves out of a decision the writes for runs that the API server has refused a moment ago.
pub(in crate::children) fn hold_all(decision: &mut Decision, at: (&ReconcileState, Duration)) {
    let mut again = decision.again;
    decision.actions.retain(|action| {
        let Action::Run(run) = action else { return true };
        let rest = rest(run, at);
        again = [again, rest].into_iter().flatten().min();
        rest.is_none()
    });
    decision.again = again;
}
