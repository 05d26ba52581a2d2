//! The decision about the target of an instance: what may be written now, what is pruned, and what it comes to.

mod accepted;
mod verdict;
mod work;

use std::collections::HashSet;
use std::time::Duration;

use crate::children::accepted::annotation;
use crate::children::apply::{self, failure};
use crate::children::model::{
    Action, Block, Context, Decision, Desired, Difference, Evaluation, Finding, Input, Item, Observed,
    ReconcileState, Status, Target, TargetChange, Verdict, Why, lines,
};
use crate::children::write_order::{self, Gates, Permit, WriteOrder};
use crate::children::{jobs, names, prune};
use crate::plan::PlanRun;
use crate::template::{EvalError, Exceeded};

use work::Work;

/// Decides about the target of an instance that is not being deleted, whose children come in a given order.
pub(in crate::children) fn decide_target(
    ctx: &Context<'_>,
    target: &Target,
    order: &dyn WriteOrder,
    (state, now): (&ReconcileState, Duration),
) -> Decision {
    if let Some(exceeded) = ctx.budget.exceeded() {
        return stopped(ctx, target, exceeded);
    }
    let pause = pause(ctx, target);
    let work = Work::of(ctx, target, order, pause.is_some(), (state, now));
    let verdict = match pause {
        None => verdict::verdict(ctx, target, &work.actions, &work.findings),
        Some(Pause::Asked) => verdict::paused(&work.findings),
        Some(Pause::Unknown(verdict)) => verdict,
    };
    let status = Status::project(ctx, target, &verdict).pending(&prune::pending(&work.findings));
    let status = status.failed_runs(&work.findings).beside(&work.findings);
    if let Some(exceeded) = ctx.budget.exceeded() {
        return stopped(ctx, target, exceeded);
    }
    let awaits_answers = target.refs.is_delayed
        && target.items.iter().all(|item| item.ready.is_ok())
        && work.findings.iter().all(Finding::is_silent);
    let is_loading = target.refs.pending || ctx.origin.resource.reads_cluster && ctx.snapshot.apis.is_none();
    let input = if is_loading {
        Input::Loading
    } else if awaits_answers {
        Input::Unanswered
    } else {
        Input::Complete
    };
    let Work { checks, actions, findings, again, target_changes, mut needs } = work;
    needs.add(target.needs());
    let is_partial = target.items.iter().any(|item| item.is_later);
    Decision {
        checks,
        actions,
        findings,
        verdict,
        status: Some(status),
        again,
        children: Some(lines(target)),
        needs,
        input,
        accepted: target.is_applied(),
        target_changes,
        conditions: None,
        evaluation: Evaluation { used: ctx.budget.used(), is_partial, exceeded: None },
    }
}

impl Work {
    fn of(
        ctx: &Context<'_>,
        target: &Target,
        order: &dyn WriteOrder,
        is_paused: bool,
        at: (&ReconcileState, Duration),
    ) -> Self {
        let mut work = Self { findings: order.findings(), ..Self::default() };
        for (number, error) in &target.open {
            let is_awaiting = order.awaited_by_child(*number).is_some();
            let finding = if is_awaiting { Finding::no_value_yet } else { Finding::no_value };
            work.findings.push(finding(ctx.origins.child_id(*number), error, target));
        }
        let unchanged = work.write(ctx, target, order, is_paused, at);
        if is_paused {
            work.findings.extend(Finding::unknown_refs(target, &work.findings));
            let undesired = prune::undesired(ctx.snapshot, &identities(target));
            let removed = undesired.remove.iter().filter(|o| !may_be_desired(ctx, target, o));
            let what = removed.map(|o| o.object.to_string());
            work.findings.extend(what.map(|what| Finding::Paused { write: "prune", what }));
            return work;
        }
        let is_refused = |item: &Item| match &item.desired {
            Ok(_) => failure(ctx, target, item, at.0).is_some_and(|f| f.rest(at.1).is_some()),
            Err(error) => !error.is_waiting(),
        };
        let keeps_accepted = target.open.values().any(|error| !error.is_waiting())
            || (!unchanged.is_empty() && target.items.iter().any(is_refused));
        let record = if keeps_accepted { work.maintain_accepted(ctx, target, &unchanged, at) } else { None };
        work.findings.extend(Finding::unknown_refs(target, &work.findings));
        work.prune(ctx, target, order, at);
        work.add(prune::outdated_notes(target, at.0, at.1));
        work.finalizer(ctx, target);
        work.record_accepted(ctx, target, record, at.0);
        work.actions.extend(jobs::to_record(ctx, target).map(Action::RecordJobs));
        work
    }

    /// Creates, updates and repairs children as far as that is permitted. Returns the positions of those that
    /// keep what they had.
    fn write(
        &mut self,
        ctx: &Context<'_>,
        target: &Target,
        order: &dyn WriteOrder,
        is_paused: bool,
        at: (&ReconcileState, Duration),
    ) -> HashSet<usize> {
        let limits = write_order::max_unavailable(ctx, target, &mut self.findings);
        let items: Vec<_> = in_order(target).map(|(i, item)| (i, item, item.difference(at.0))).collect();
        let is_change = |difference: &Option<Difference>| difference.is_some_and(Difference::is_change);
        let changes: Vec<_> = items
            .iter()
            .filter(|(_, item, difference)| is_change(difference) && !item.is_later)
            .map(|(_, item, _)| *item)
            .collect();
        let mut gates = Gates::new(ctx, order, target, &changes, &limits, at);
        gates.is_paused = is_paused;
        let mut unchanged = HashSet::new();
        for (position, item, difference) in &items {
            let (desired, difference) = match (&item.desired, difference) {
                (Ok(desired), Some(difference)) => (desired, *difference),
                (Err(error), _) => {
                    unchanged.insert(*position);
                    self.findings.push(match order.awaited(item) {
                        // It has no value because what it reads does not exist yet.
                        Some(block) => Finding::waiting(item, block),
                        None => Finding::no_value(&item.name, error, target),
                    });
                    continue;
                }
                (Ok(_), None) => continue,
            };
            if !is_paused {
                self.report_conflict(item, at);
            }
            let Some(why) = Why::of(difference) else {
                if difference == (Difference::Terminating { is_outdated: true }) {
                    self.findings.push(Finding::terminating(item));
                }
                continue;
            };
            let permit = gates.permit(target, item, difference);
            self.report_refusal(ctx, target, item, desired, &permit, at);
            match permit {
                Permit::Now => {
                    if difference == Difference::Outdated {
                        self.target_changes.extend(TargetChange::of_item(ctx, item));
                    }
                    self.apply(ctx, target, item, desired, why, at);
                }
                Permit::Blocked(Block::Paused) => self.findings.extend(Finding::paused(item, why)),
                Permit::Blocked(block) => {
                    if difference.is_change() && block.keeps_accepted() {
                        unchanged.insert(*position);
                    }
                    self.wake(block.ends_after());
                    self.findings.extend(block.is_reported().then(|| Finding::waiting(item, block)));
                }
            }
        }
        if self.actions.iter().any(|action| matches!(action, Action::Apply(apply) if apply.why.is_change())) {
            self.checks = apply::dry_runs(ctx, target, &changes, at.0, &mut self.actions);
        }
        unchanged
    }

    /// Reports that the server has refused an item, also while it is tried again.
    fn report_refusal(
        &mut self,
        ctx: &Context<'_>,
        target: &Target,
        item: &Item,
        desired: &Desired,
        permit: &Permit,
        (state, now): (&ReconcileState, Duration),
    ) {
        let Some(failure) = failure(ctx, target, item, state) else { return };
        let rest = failure.rest(now);
        let is_reported = match permit {
            Permit::Blocked(Block::DryRun) => failure.is_dry_run && rest.is_some(),
            Permit::Blocked(block) => block.comes_after_refusals(),
            Permit::Now => true,
        };
        if is_reported {
            self.findings.push(Finding::refused(ctx, target, item, desired, failure));
            self.wake(rest);
        }
    }

    /// Prunes what is not in the target, once all of the target is applied.
    fn prune(
        &mut self,
        ctx: &Context<'_>,
        target: &Target,
        order: &dyn WriteOrder,
        (state, now): (&ReconcileState, Duration),
    ) {
        let undesired = prune::undesired(ctx.snapshot, &identities(target));
        let block = order.awaited_by_pruning();
        let is_applying = self.actions.iter().any(|action| matches!(action, Action::Apply(_)));
        if undesired.is_empty() {
            self.findings.extend(prune::kinds_not_listed(ctx.snapshot, ctx.origins));
        } else if is_applying || !target.is_applied() || block.is_some() {
            let object = undesired.remove.iter().find(|o| !may_be_desired(ctx, target, o));
            let object = object.map(|o| o.object.clone());
            self.findings.extend(object.map(|object| Finding::PruningWaits { object, block }));
        } else {
            let mut pruned = prune::prune(ctx.snapshot, &undesired, state, now);
            if !pruned.findings.iter().any(Finding::is_hidden) {
                self.findings.extend(prune::kinds_not_listed(ctx.snapshot, ctx.origins));
            }
            if !pruned.actions.is_empty() && annotation(&ctx.snapshot.instance).is_some() {
                // If a later change were refused, what is pruned now would be restored from the record.
                pruned.actions = vec![Action::Record(None)];
            }
            pruned.actions.retain(|action| match action {
                Action::Delete(observed) | Action::Retain(observed) => {
                    self.permit_removal(ctx, observed, (state, now))
                }
                _ => true,
            });
            self.add(pruned);
        }
    }

    /// Whether a member may be removed now: members that come and go too often stay. Notes the change, or
    /// reports the block.
    fn permit_removal(
        &mut self,
        ctx: &Context<'_>,
        observed: &Observed,
        (state, now): (&ReconcileState, Duration),
    ) -> bool {
        let Some(change) = TargetChange::of_removal(ctx, observed) else { return true };
        let rest = state.oscillation().held(&change, now);
        self.wake(rest);
        match rest {
            None => self.target_changes.push(change),
            Some(rest) => {
                let (item, block) = (observed.child.to_string(), Block::Oscillation(rest));
                self.findings.push(Finding::Waiting { item, block });
            }
        }
        rest.is_none()
    }

    /// Adds the finalizer before the first child that the garbage collector must not delete, and removes it
    /// with the last.
    fn finalizer(&mut self, ctx: &Context<'_>, target: &Target) {
        let has = prune::has_finalizer(&ctx.snapshot.instance);
        let observed = ctx.snapshot.observed.iter().any(|o| o.outlives_instance() && o.is_to_go());
        let is_unowned = |desired: &Desired| desired.body["metadata"].get("ownerReferences").is_none();
        let snapshot = ctx.snapshot;
        // Nothing else deletes unowned runs with the instance.
        let is_unowned_run = |run: &PlanRun| run.owners.is_empty();
        let has_runs = snapshot.plans.is_some()
            || snapshot.deletions.as_ref().is_some_and(|all| all.runs.iter().any(is_unowned_run));
        let planned = has_runs || target.items.iter().any(|item| item.desired.as_ref().is_ok_and(is_unowned));
        if (observed || planned) && !has {
            self.actions.insert(0, Action::AddFinalizer);
        } else if has && !observed && !planned && target.is_applied() {
            self.actions.push(Action::RemoveFinalizer);
        }
    }
}

/// The objects of a target.
fn identities(target: &Target) -> HashSet<prune::Identity<'_>> {
    let desired = target.items.iter().filter_map(|item| item.desired.as_ref().ok());
    desired.map(|desired| desired.object.identity()).collect()
}

/// The items in graph order; among the members of a child, those that are not ready come first.
fn in_order(target: &Target) -> impl Iterator<Item = (usize, &Item)> {
    let mut items: Vec<_> = target.items.iter().enumerate().collect();
    items.sort_by_key(|(_, item)| (item.child, item.ready.is_ok()));
    items.into_iter()
}

/// Whether an object belongs to a child whose desired state is not known now: it will not be deleted, so do
/// not report that it will.
fn may_be_desired(ctx: &Context<'_>, target: &Target, observed: &Observed) -> bool {
    let mut unknown = target.items.iter().filter(|item| item.desired.is_err());
    unknown.any(|item| item.observed.as_ref().is_some_and(|live| live.object == observed.object))
        || ctx.origins.number(&observed.child).is_some_and(|number| target.open.contains_key(&number))
}

/// The decision when evaluation stopped at a limit: nothing is done about a target that is known only in
/// part.
fn stopped(ctx: &Context<'_>, target: &Target, exceeded: Exceeded) -> Decision {
    let Exceeded { subject, error, .. } = &exceeded;
    let message = format!("{subject}: {error}; nothing of it is written until it changes");
    let verdict = Verdict::Stalled { reason: "LimitExceeded".into(), message };
    Decision {
        status: Some(Status::unfinished(ctx, &verdict)),
        children: Some(lines(target)),
        needs: target.needs(),
        evaluation: Evaluation { used: ctx.budget.used(), is_partial: false, exceeded: Some(exceeded) },
        ..Decision::idle(verdict)
    }
}

/// Why nothing is written.
enum Pause {
    /// The annotation of the instance, or `paused` of the package, asks for the pause.
    Asked,
    /// Whether `paused` holds is not known.
    Unknown(Verdict),
}

/// Whether nothing is written.
pub(in crate::children) fn is_paused(ctx: &Context<'_>, target: &Target) -> bool {
    pause(ctx, target).is_some()
}

/// Whether the instance is paused. If that is not known, nothing is written either.
fn pause(ctx: &Context<'_>, target: &Target) -> Option<Pause> {
    if ctx.snapshot.instance["metadata"]["annotations"][names::PAUSED].as_str() == Some("true") {
        return Some(Pause::Asked);
    }
    let message =
        |error: &EvalError| format!("paused: {error}; nothing is written until it can be evaluated");
    ctx.budget.about("paused");
    match ctx.origin.package.engine.truthy(ctx.origin.resource.paused.as_ref()?, &target.scope) {
        Ok(true) => Some(Pause::Asked),
        Ok(false) => None,
        Err(error @ (EvalError::Unknown { .. } | EvalError::NotYet(_))) if !error.is_mixed() => {
            let message = message(&error);
            Some(Pause::Unknown(Verdict::Reconciling { reason: "PausedUnknown".into(), message }))
        }
        Err(error) => {
            let message = message(&error);
            Some(Pause::Unknown(Verdict::Stalled { reason: "PausedFailed".into(), message }))
        }
    }
}
