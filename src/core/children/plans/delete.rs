//! The decision about an instance that is being deleted and whose kind has plans.

use std::time::Duration;

use serde_json::Value;

use super::past::{Past, until_remembered};
use super::permits::deletions;
use super::recover;
use super::runs;
use super::runs::abandon::abandon;
use super::runs::tidy::released;
use crate::children::desired::target;
use crate::children::model::{
    Action, Context, Decision, Finding, Input, Needs, NoPackage, Origin, PlanSnapshot, ReconcileState,
    Snapshot, Status, Verdict, lines,
};
use crate::children::{names, prune};
use crate::package::plan::{Event, Plan};
use crate::plan::{Cause, Cleanup, PlanRun, RunAction, RunObject, RunRef, reference};
use crate::template::Budget;

/// Decides about an instance that is being deleted while the revision of its active run cannot be loaded: the run is ended.
/// A cleanup is kept until its revision is restored, or a person releases the instance.
fn delete_held(
    past: &Past<'_>,
    (run, finding): (&PlanRun, &Finding),
    at: (&ReconcileState, Duration),
) -> Decision {
    let snapshot = past.snapshot;
    if run.cause() == Cause::Cleanup && !run.spec.cancel {
        let message = format!("{finding}, or release the instance: annotation {}=true", names::SKIP_CLEANUP);
        let verdict = Verdict::Stalled { reason: "CleanupFailed".into(), message };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Decision { status, ..past.idle(verdict) };
    }
    let package = past.used.first().map(|(_, source)| &source.package);
    if matches!(package, Some(Err(NoPackage::Unreadable(_)))) && !run.spec.cancel {
        // The revision may be read again: then the requests in flight are settled.
        let verdict = Verdict::Deleting { message: finding.to_string() };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Decision { status, ..past.idle(verdict) };
    }
    let actions = abandon(past, run, at);
    Decision { actions, ..past.idle(Verdict::Deleting { message: "its runs are being ended".to_owned() }) }
}

/// Decides about an instance that is being deleted: its runs are ended, its cleanup runs, its children are deleted, and
/// what belongs to its runs goes last.
pub(in crate::children) fn delete(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    current: Origin<'_>,
    at: (&ReconcileState, Duration),
) -> Decision {
    let has_cleanup =
        |plan: &Plan| plan.triggers.iter().any(|trigger| matches!(trigger.event, Event::Deleted));
    let skips = snapshot.instance["metadata"]["annotations"][names::SKIP_CLEANUP] == "true";
    // Runs that are unknown are not absent: the finalizer would be removed before them.
    if let Some(reason) = plans.unknown.as_ref().filter(|_| !skips || plans.is_listing) {
        let verdict = Verdict::Deleting { message: reason.clone() };
        let input = if plans.is_listing { Input::Loading } else { Input::Complete };
        return Decision { input, ..Decision::idle(verdict) };
    }
    let has_work =
        plans.runs.iter().any(PlanRun::is_active) || current.resource.plans.iter().any(has_cleanup);
    if let Some(problem) = plans.key_problem.as_ref().filter(|_| !skips && has_work) {
        let verdict = Verdict::Deleting { message: problem.message.to_string() };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Decision { status, ..Decision::idle(verdict) };
    }
    if let Some(why) = plans.state.lost.as_ref().filter(|_| !skips && has_work) {
        return recover::decide(snapshot, plans, current, why);
    }
    let past = Past::of(snapshot, plans, current);
    if let Some(decision) = until_remembered(&past).filter(|_| plans.state.lost.is_none()) {
        return decision;
    }
    if !skips && has_work {
        if past.is_loading() {
            let message = "an earlier revision of the package is being loaded".to_owned();
            return past.idle(Verdict::Deleting { message });
        }
        if let Some((run, finding)) = past.held() {
            return delete_held(&past, (run, &finding), at);
        }
        if let Some(decision) = until_cleaned_up(&past, at) {
            return decision;
        }
    }
    delete_children(snapshot, plans, at)
}

/// The decision until the runs of an instance have ended and its cleanup has run; `None` once that is so.
fn until_cleaned_up(past: &Past<'_>, at: (&ReconcileState, Duration)) -> Option<Decision> {
    let snapshot = past.snapshot;
    let ordered = past.ordered();
    let ctx = Context::new(snapshot, &ordered.origins, Budget::new(snapshot.limits)).with_live(&past.live);
    let target = target(&ctx);
    let outcome = runs::decide(&ctx, &target, past, &ordered, at);
    let verdict = match &outcome.cleanup {
        Cleanup::Done => return None,
        Cleanup::Held(run, why) => {
            // In a namespace that is being deleted no run can be requested.
            let again = if outcome.is_namespace_terminating { "" } else { "retry it, change the spec, or " };
            let message = format!(
                "{run} failed: {why}; {again}release the instance: annotation {}=true",
                names::SKIP_CLEANUP
            );
            Verdict::Stalled { reason: "CleanupFailed".into(), message }
        }
        Cleanup::Active => {
            let waits = outcome.findings.first().map(Finding::to_string);
            Verdict::Deleting { message: waits.unwrap_or_else(|| "its runs are being ended".to_owned()) }
        }
    };
    let (actions, asks) = deletions(&ctx, &outcome.permits);
    let pending: Vec<Finding> =
        asks.iter().map(|asked| Finding::awaits_approval(snapshot, asked, at.0)).collect();
    let status = Status::unseen(&snapshot.instance, &verdict).pending(&prune::pending(&pending));
    let mut needs = target.needs();
    needs.add(Needs { revisions: past.revisions.clone(), approvals: asks, ..Needs::default() });
    let children = Some(lines(&target));
    Some(outcome.add_to(Decision {
        actions,
        status: Some(status),
        needs,
        children,
        ..Decision::idle(verdict)
    }))
}

/// Decides about an instance that is being deleted and whose runs have ended, or cannot go on because its package is not
/// loaded: its children are deleted, then what belongs to its runs.
pub(in crate::children) fn delete_children(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    at: (&ReconcileState, Duration),
) -> Decision {
    let mut decision = prune::delete_instance(snapshot, at.0, at.1);
    let is_forced = decision.actions.iter().any(|action| matches!(action, Action::ForceRemoveFinalizer));
    if decision.actions.iter().any(|action| matches!(action, Action::RemoveFinalizer)) {
        let mut left = leftovers(plans);
        if left.is_empty() {
            left.extend(plans.ended());
        }
        if left.is_empty() {
            decision.actions.extend(plans.forget().map(|action| Action::Run(Box::new(action))));
        } else {
            decision.actions.retain(|action| !matches!(action, Action::RemoveFinalizer));
            decision.actions.extend(left.into_iter().map(|action| Action::Run(Box::new(action))));
        }
    } else if is_forced {
        let runs =
            plans.runs.iter().chain(&plans.strangers).filter(|run| run.has_object() && run.has_finalizer());
        let released = runs.map(released).chain(plans.forget());
        decision.actions.extend(released.map(|action| Action::Run(Box::new(action))));
    }
    decision
}

/// Deletes what belongs to runs, but for the memory, which goes after the instance: without it the instance would be cleaned up
/// again.
fn leftovers(plans: &PlanSnapshot) -> Vec<RunAction> {
    let is_left = |object: &&Value| object["metadata"]["deletionTimestamp"].is_null();
    let delete = |sort: RunObject| move |object: &Value| RunAction::Delete(sort, RunRef::of(object));
    let jobs = plans.jobs.iter().filter(is_left).map(delete(RunObject::Job));
    let origins = plans.origins.iter().filter(is_left).map(delete(RunObject::Origin));
    let runs =
        plans.runs.iter().chain(&plans.misnamed).chain(&plans.strangers).filter(|run| run.has_object());
    let runs = runs.filter_map(|run| match (run.has_finalizer(), run.deleting) {
        (true, _) => Some(released(run)),
        (false, false) => Some(RunAction::Delete(RunObject::PlanRun, reference(run))),
        (false, true) => None,
    });
    jobs.chain(origins).chain(runs).collect()
}
