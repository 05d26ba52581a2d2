//! The decision about an instance whose kind has plans.

use std::time::Duration;

use super::lost::{mark_lost, recreated};
use super::past::{Ordered, Past, until_remembered};
use super::permits::{deletions, permit_applies};
use super::recover;
use super::run_order::{Kept, RunOrder};
use super::runs;
use super::runs::abandon::abandon;
use crate::children::decide_target::{decide_target, is_paused};
use crate::children::desired::target;
use crate::children::model::{
    Action, Context, Decision, Finding, Input, LookupResult, NEWEST, Needs, Origin, PlanSnapshot,
    ReconcileState, ResourceSelector, Snapshot, Status, Verdict,
};
use crate::plan::{self, RunAction};
use crate::template::Budget;

/// Decides about an instance that is not being deleted.
pub(in crate::children) fn decide(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    current: Origin<'_>,
    at: (&ReconcileState, Duration),
) -> Decision {
    if let Some(decision) = without_known_runs(snapshot, plans) {
        return decision;
    }
    if let Some(why) = &plans.state.lost {
        return recover::decide(snapshot, plans, current, why);
    }
    let past = Past::of(snapshot, plans, current);
    if let Some(decision) = until_remembered(&past) {
        return decision;
    }
    if let Some(decision) = until_past_is_known(&past, at) {
        return decision;
    }
    let ordered = past.ordered();
    let Ordered { origins, has_previous, .. } = &ordered;
    let previous = origins.rolled_out();
    let ctx = Context::new(snapshot, origins, Budget::new(snapshot.limits)).with_live(&past.live);
    let mut target = target(&ctx);
    let has_rollouts = plan::has_rollouts(&ctx.origin.resource.plans);
    let mut outcome = runs::decide(&ctx, &target, &past, &ordered, at);
    let is_needed = outcome.is_rollout_needed;
    // What starts no rollout, such as another label, holds nothing back.
    let is_rolled_out = previous == Some(NEWEST) || !has_rollouts || (*has_previous && !is_needed);
    let (removals, asks) = deletions(&ctx, &outcome.permits);
    outcome.findings.extend(asks.iter().map(|asked| Finding::awaits_approval(snapshot, asked, at.0)));
    let mut kept = Kept { awaited: outcome.awaited(), ..Kept::default() };
    if is_needed || outcome.active.is_some() {
        kept.items = past.outdated_refs(&ctx, &ordered, &target);
    }
    if !is_rolled_out {
        let held = origins.memories().filter(|(_, memory)| memory.is_held);
        kept.items.extend(held.map(|(item, _)| item.to_string()));
        outcome.findings.extend(past.missing());
    }
    outcome.findings.extend(mark_lost(&mut target, std::mem::take(&mut outcome.lost)));
    permit_applies(&mut target, &mut kept, &outcome.permits);
    let unreached = (!is_rolled_out).then(|| outcome.awaited());
    let pruning = (!is_rolled_out || outcome.active.is_some()).then(|| outcome.awaited());
    let findings = std::mem::take(&mut outcome.findings);
    let order = RunOrder::new(origins, &target, unreached, kept, pruning, findings);
    let mut decision = decide_target(&ctx, &target, &order, at);
    decision.needs.revisions.clone_from(&past.revisions);
    if decision.evaluation.exceeded.is_some() {
        return decision;
    }
    let recreated = recreated(&ctx, &target);
    if !recreated.is_empty() && target.open.is_empty() && !is_paused(&ctx, &target) {
        let annotations = recreated.into_iter().map(|name| (name, None)).collect();
        decision.actions.push(Action::Run(Box::new(RunAction::Annotate(annotations))));
    }
    decision.actions.extend(removals);
    let watches = past.refs.wants.clone();
    decision.needs.add(Needs { watches, approvals: asks, ..Needs::default() });
    outcome.add_to(decision)
}

/// The decision while runs, or the key of what they have stored, are unknown: nothing is done.
fn without_known_runs(snapshot: &Snapshot, plans: &PlanSnapshot) -> Option<Decision> {
    let verdict = match (&plans.unknown, &plans.key_problem) {
        (Some(reason), _) => Verdict::Reconciling { reason: "RunsUnknown".into(), message: reason.clone() },
        (None, Some(problem)) => {
            let (reason, message) = ("DigestKeyUnreadable".to_owned(), problem.message.to_string());
            if problem.is_permanent {
                Verdict::Stalled { reason, message }
            } else {
                Verdict::Reconciling { reason, message }
            }
        }
        (None, None) => return None,
    };
    let status = Some(Status::unseen(&snapshot.instance, &verdict));
    let revisions = plans.revisions.keys().map(ToString::to_string).collect();
    let is_loading = plans.unknown.is_some() && plans.is_listing;
    let input = if is_loading { Input::Loading } else { Input::Complete };
    let needs = Needs { revisions, ..Needs::default() };
    Some(Decision { status, needs, input, ..Decision::idle(verdict) })
}

/// The decision while a revision that the runs need, or what a rollout depends on, is not known.
fn until_past_is_known(past: &Past<'_>, at: (&ReconcileState, Duration)) -> Option<Decision> {
    let snapshot = past.snapshot;
    if past.is_loading() {
        let message = "an earlier revision of the package is being loaded".to_owned();
        let verdict = Verdict::Reconciling { reason: "RevisionPending".into(), message };
        return Some(Decision { input: Input::Loading, ..past.idle(verdict) });
    }
    if let Some((run, finding)) = past.held() {
        let actions = if run.spec.cancel { abandon(past, run, at) } else { Vec::new() };
        let message = format!("{finding}; until then nothing of the instance is changed");
        let verdict = Verdict::Stalled { reason: finding.reason().to_owned(), message };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Some(Decision { actions, status, ..past.idle(verdict) });
    }
    let is_pending = |want: &ResourceSelector| matches!(snapshot.lookup(want), LookupResult::Pending);
    if past.refs.wants.iter().any(is_pending) && past.history.exclusive(&past.origin.resource.plans).is_none()
    {
        // Refs are still loading: it is not known yet whether an object has changed, and so which rollout is
        // needed.
        let verdict =
            Verdict::Reconciling { reason: "RefPending".into(), message: "refs are being read".into() };
        return Some(Decision { input: Input::Loading, ..past.idle(verdict) });
    }
    None
}
