//! `decide(snapshot, state, now) -> Decision`: what to do next for one instance.
//!
//! One call looks at one moment. What can be done now is in [`Decision::actions`]; what waits is in the [`Verdict`], and
//! an event or [`Decision::again`] brings the next call.
//!
//! The stages: [`Snapshot`] is what is known, `desired` renders what should be, `diff` compares, `write_order` permits or
//! blocks each write, `prune` removes what nothing desires, `findings` tell what is missing, and the verdict follows.

use std::time::Duration;

use super::decide_target::decide_target;
use super::desired::target;
use super::model::{Action, Context, Decision, Input, Origins, ReconcileState, Snapshot, Verdict};
use super::plans::decide::decide as decide_with_plans;
use super::plans::delete::{delete, delete_children};
use super::plans::refused::hold_all;
use super::write_order::Graph;
use super::{deletion_runs, prune};
use crate::plan::RunAction;
use crate::template::{Budget, Totals};

/// Decides about an instance. `now` is time since the manager started.
pub fn decide(snapshot: &Snapshot, state: &ReconcileState, now: Duration) -> Decision {
    let mut decision = decide_children(snapshot, state, now);
    deletion_runs::arrange(snapshot, state, &mut decision);
    note_answers(snapshot, &mut decision);
    hold_all(&mut decision, (state, now));
    decision.needs.full_budget = snapshot.limits != Totals::FULL && !decision.evaluation.is_small();
    decision
}

/// Notes the answers of runs about which nothing else is written, whatever the instance waits for: answers have no time of their own, so
/// one that nobody has checked would count if it was noted only once they are checked again.
fn note_answers(snapshot: &Snapshot, decision: &mut Decision) {
    for (run, status) in snapshot.noted() {
        let writes =
            |action: &Action| matches!(action, Action::Run(action) if action.writes_status_of(&run.uid));
        if !decision.actions.iter().any(writes) {
            decision.actions.insert(0, Action::Run(Box::new(RunAction::store(run, &status, Vec::new()))));
        }
    }
}

fn decide_children(snapshot: &Snapshot, state: &ReconcileState, now: Duration) -> Decision {
    if snapshot.is_deleting() {
        return match (&snapshot.plans, snapshot.origin()) {
            (Some(plans), Ok(origin)) => delete(snapshot, plans, origin, (state, now)),
            (Some(plans), Err(_)) if plans.is_listing => {
                let message = "what belongs to its runs is being listed".to_owned();
                Decision { input: Input::Loading, ..Decision::idle(Verdict::Deleting { message }) }
            }
            (Some(plans), Err(_)) => delete_children(snapshot, plans, (state, now)),
            _ => prune::delete_instance(snapshot, state, now),
        };
    }
    let origin = match snapshot.origin() {
        Ok(origin) => origin,
        Err(why) => return Decision::not_loaded(&snapshot.instance, why.to_owned()),
    };
    if let Some(plans) = &snapshot.plans {
        return decide_with_plans(snapshot, plans, origin, (state, now));
    }
    let origins = Origins::one(origin);
    let ctx = Context::new(snapshot, &origins, Budget::new(snapshot.limits));
    let target = target(&ctx);
    decide_target(&ctx, &target, &Graph::of(&origins, &target), (state, now))
}
