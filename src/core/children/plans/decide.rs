//! The decision about an instance whose kind has plans.

use std::collections::BTreeSet;
use std::time::Duration;

use super::lost::{losses, lost, mark_lost, recreated};
use super::past::{Ordered, Past, until_remembered};
use super::permits::{deletions, permit_applies};
use super::recover;
use super::run_order::{Kept, RunOrder};
use super::runs::Runs;
use super::runs::abandon::abandon;
use crate::children::decide_target::{decide_target, is_paused};
use crate::children::desired::target;
use crate::children::model::{
    Action, Context, Decision, Finding, Input, Item, LookupResult, NEWEST, Needs, Origin, PlanSnapshot,
    ReconcileState, ResourceSelector, RunAction, Snapshot, Status, Target, Verdict,
};
use crate::plan;
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
    if let Some(decision) = until_remembered(plans, &past) {
        return decision;
    }
    if let Some(decision) = until_past_is_known(snapshot, plans, &past, current, at.0) {
        return decision;
    }
    let ordered = past.ordered(current);
    let Ordered { origins, previous, has_previous, .. } = &ordered;
    let ctx = Context::new(snapshot, origins, Budget::new(snapshot.limits));
    let mut target = target(&ctx);
    let has_rollouts = plan::has_rollouts(&ctx.origin.resource.plans);
    let mut runs = Runs::new(&ctx, &target, plans, &past.history, is_paused(&ctx, &target), at.0);
    runs.beside.clone_from(&ordered.beside);
    let awaited = runs.awaited();
    let lost = if has_rollouts { lost(&ctx, &target, &past.history, (at.0, &awaited)) } else { Vec::new() };
    let changed = changed_children(&ctx, &target, *previous);
    let needed = runs.needed(&past.current, &past.used, !has_previous, &changed, current);
    // What starts no rollout, such as another label, holds nothing back.
    let is_rolled_out = *previous == Some(NEWEST) || !has_rollouts || (*has_previous && needed.is_none());
    let is_needed = needed.is_some();
    runs.arrange(needed, losses(&lost), &awaited, &past.current, &past.stored(), at.1);
    let mut outcome = runs.outcome();
    let (removals, asks) = deletions(&ctx, &outcome.permits);
    outcome.findings.extend(asks.iter().map(|asked| Finding::awaits_approval(snapshot, asked, at.0)));
    let mut kept = Kept { awaited: outcome.awaited(), ..Kept::default() };
    if is_needed || outcome.active.is_some() {
        kept.items = past.outdated_refs(&ctx, &ordered, &target);
    }
    if !is_rolled_out {
        kept.items.extend(ordered.held.iter().cloned());
        outcome.findings.extend(past.missing());
    }
    outcome.findings.extend(mark_lost(&mut target, lost));
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
fn until_past_is_known(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    past: &Past<'_>,
    current: Origin<'_>,
    state: &ReconcileState,
) -> Option<Decision> {
    if past.is_loading() {
        let message = "an earlier revision of the package is being loaded".to_owned();
        let verdict = Verdict::Reconciling { reason: "RevisionPending".into(), message };
        return Some(Decision { input: Input::Loading, ..past.idle(verdict) });
    }
    if let Some((run, finding)) = past.held() {
        let actions =
            if run.spec.cancel { abandon(snapshot, plans, past, current, run, state) } else { Vec::new() };
        let message = format!("{finding}; until then nothing of the instance is changed");
        let verdict = Verdict::Stalled { reason: finding.reason().to_owned(), message };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Some(Decision { actions, status, ..past.idle(verdict) });
    }
    let is_pending = |want: &ResourceSelector| matches!(snapshot.lookup(want), LookupResult::Pending);
    if past.refs.wants.iter().any(is_pending) && past.history.exclusive(&current.resource.plans).is_none() {
        // Refs are still loading: it is not known yet whether an object has changed, and so which rollout is
        // needed.
        let verdict =
            Verdict::Reconciling { reason: "RefPending".into(), message: "refs are being read".into() };
        return Some(Decision { input: Input::Loading, ..past.idle(verdict) });
    }
    None
}

/// The children whose target is another than that which was rolled out.
fn changed_children(ctx: &Context<'_>, target: &Target, previous: Option<usize>) -> BTreeSet<String> {
    if previous == Some(NEWEST) {
        return BTreeSet::new();
    }
    let id = |number: usize| ctx.origins.child_id(number).to_owned();
    let in_newest: BTreeSet<&str> = target.newest.iter().map(|member| member.name.as_str()).collect();
    // The absence of an object is no change of its target: a lost one has its plan, and any other is created
    // again.
    let is_same =
        |item: &Item| target.is_newest(item) || Some(item.origin) == previous && target.keeps_target(item);
    let mut changed = BTreeSet::new();
    for item in &target.items {
        if !is_same(item) || !in_newest.contains(item.name.as_str()) {
            changed.insert(id(item.child));
        }
    }
    changed
}
