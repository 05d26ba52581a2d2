//! The decision about an instance whose kind has plans.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::history::{History, NewOrigin, StoredOrigin, is_exclusive, item_id, origins};
use super::runs::Runs;
use super::schedule::{Kept, RunSchedule};
use super::{NoPackage, PlanSnapshot, RunAction, RunObject, RunRef};
use crate::children::decide::{Action, Decision, Verdict, decide_target, is_paused};
use crate::children::findings::Finding;
use crate::children::observed::Observed;
use crate::children::origins::{ItemId, NEWEST, Origin, Origins};
use crate::children::prune;
use crate::children::refs::{LookupResult, Refs, ResourceSelector};
use crate::children::state::ReconcileState;
use crate::children::status::Status;
use crate::children::target::{Item, Target, refs, target};
use crate::children::{Context, Snapshot, names};
use crate::package::plan::OnLoss;
use crate::package::{Package, Resource};
use crate::plan::{self, Cause, Cleanup, Member, Phase, PlanRun, Verb};
use crate::readiness::Readiness;
use crate::template::{Budget, Var};

/// What the runs say about the children, before anything is rendered.
struct Past<'a> {
    history: History<'a>,
    current: NewOrigin,
    /// The origins in use; the first is the newest if an active run has another than the instance.
    used: Vec<StoredOrigin>,
    /// The stored origins that are not in use.
    unused: Vec<StoredOrigin>,
    /// The instances of `used`.
    instances: Vec<Value>,
    /// The packages of `used`.
    packages: Vec<Result<(&'a Package, &'a Resource), NoPackage>>,
    /// The active runs that change no children and began with another revision than the newest origin has.
    beside: Vec<Beside<'a>>,
    /// Whether the newest origin is the first of `used`.
    is_fixed: bool,
    /// The name of the newest origin.
    newest: String,
    /// The earlier revisions that all these name.
    revisions: BTreeSet<String>,
    /// The refs of the instance as it is now.
    refs: Refs,
    record: Map<String, Value>,
}

/// An active run with a revision of its own.
struct Beside<'a> {
    run: &'a PlanRun,
    instance: Value,
    package: Result<(&'a Package, &'a Resource), NoPackage>,
}

/// What the items are rendered from, as the runs have it.
struct Ordered<'o> {
    origins: Origins<'o>,
    /// Whether a rollout has succeeded.
    has_previous: bool,
    /// The position of the origin of the last rollout that has succeeded, if its package is known.
    previous: Option<usize>,
    /// The positions of [`Past::used`]; none of an origin whose package is missing.
    positions: Vec<Option<usize>>,
    /// The items that were recorded with an origin whose package is missing.
    held: Vec<String>,
    /// The positions for the runs of [`Past::beside`], by the name of the run.
    beside: HashMap<String, Option<usize>>,
}

impl<'a> Past<'a> {
    fn of(snapshot: &'a Snapshot, plans: &'a PlanSnapshot, current: Origin<'a>) -> Self {
        let history = History::of(plans);
        let mut stored = origins(plans);
        let facts = plan::record(history.runs.iter().copied());
        let record: Map<String, Value> = facts.into_iter().map(|(key, fact)| (key, fact.value)).collect();
        let refs = refs_now(snapshot, current, &history, &stored, &record);
        let mut digests = refs.digests.clone();
        for (id, digest) in history.known_refs(&stored) {
            // While a ref is unknown, what it brought last counts.
            if current.resource.refs.iter().any(|reference| reference.id == *id) {
                digests.entry(id.clone()).or_insert_with(|| digest.clone());
            }
        }
        let new = NewOrigin::of(&current, digests);
        let revision_of = |run: &PlanRun| run.status.as_ref().and_then(|status| status.revision.clone());
        let is_earlier = |run: &PlanRun| revision_of(run).filter(|revision| *revision != new.revision);
        let is_exclusive = |run: &&PlanRun| {
            let own = is_earlier(run).and_then(|revision| plans.package(&revision, current).ok());
            is_exclusive(run, &own.map_or(current.resource, |(_, resource)| resource).plans)
        };
        let active = history.active().find(is_exclusive);
        let mut fixed = None;
        if let Some(run) = active
            && let Some(name) = run.status.as_ref().and_then(|status| status.origin.clone())
            && name != new.name
        {
            if let Some(revision) = is_earlier(run) {
                // Its ControllerRevision was deleted: the revision is known nevertheless.
                stored.entry(name.clone()).or_insert_with(|| new.of_revision(&name, &revision, current));
            }
            fixed = Some(name).filter(|name| stored.contains_key(name));
        }
        let newest = fixed.clone().unwrap_or_else(|| new.name.clone());
        let mut names: Vec<String> = fixed.into_iter().collect();
        let is_fixed = !names.is_empty();
        for name in history.rollouts().iter().filter_map(|run| run.status.as_ref()?.origin.clone()) {
            if name != newest && !names.contains(&name) && stored.contains_key(&name) {
                names.push(name);
            }
        }
        let newest_revision =
            stored.get(&newest).filter(|_| is_fixed).map_or(new.revision.clone(), |o| o.revision.clone());
        let mut beside = Vec::new();
        for run in history.active().filter(|run| active.is_none_or(|active| active.name != run.name)) {
            let Some(revision) = revision_of(run).filter(|revision| *revision != newest_revision) else {
                continue;
            };
            let origin = run.status.as_ref().and_then(|status| stored.get(status.origin.as_ref()?));
            let instance = origin.map(|origin| origin.input.restored(&snapshot.instance));
            let instance = instance.unwrap_or_else(|| snapshot.instance.clone());
            beside.push(Beside { run, instance, package: plans.package(&revision, current) });
        }
        let used: Vec<StoredOrigin> = names.iter().filter_map(|name| stored.remove(name)).collect();
        let instances = used.iter().map(|origin| origin.input.restored(&snapshot.instance)).collect();
        let unused = stored.into_values().collect();
        let packages = used.iter().map(|origin| plans.package(&origin.revision, current)).collect();
        let named = used.iter().map(|origin| origin.revision.clone());
        let named = named.chain(history.active().filter_map(revision_of));
        let revisions = named.filter(|revision| *revision != new.revision).collect();
        let current = new;
        Self {
            history,
            current,
            used,
            unused,
            instances,
            packages,
            beside,
            is_fixed,
            newest,
            revisions,
            refs,
            record,
        }
    }

    /// Whether a revision that it needs is being loaded.
    fn is_loading(&self) -> bool {
        let beside = self.beside.iter().map(|beside| &beside.package);
        self.packages.iter().chain(beside).any(|package| matches!(package, Err(NoPackage::Loading)))
    }

    /// The active run that changes children, if its revision cannot be loaded.
    fn held(&self) -> Option<(&'a PlanRun, Finding)> {
        let package = self.packages.first().filter(|_| self.is_fixed)?;
        let why = package.as_ref().err()?.reason()?;
        let is_its = |run: &&PlanRun| {
            run.status.as_ref().and_then(|status| status.origin.as_ref()) == Some(&self.newest)
        };
        let run = self.history.active().find(is_its)?;
        let (revision, name) = (self.used[0].revision.clone(), Some(run.name.clone()));
        Some((run, Finding::RevisionMissing { revision, run: name, why: why.to_string() }))
    }

    /// The revisions of children that cannot be loaded.
    fn missing(&self) -> Vec<Finding> {
        let mut found: BTreeMap<&str, Finding> = BTreeMap::new();
        for (origin, package) in self.used.iter().zip(&self.packages) {
            if let Some(why) = package.as_ref().err().and_then(NoPackage::reason) {
                let (revision, why) = (origin.revision.clone(), why.to_string());
                found.insert(&origin.revision, Finding::RevisionMissing { revision, run: None, why });
            }
        }
        found.into_values().collect()
    }

    /// All stored origins.
    fn stored(&self) -> Vec<plan::Origin<'_>> {
        self.used.iter().chain(&self.unused).map(StoredOrigin::selectable).collect()
    }

    /// The digests that the origin at a position was rolled out with.
    fn digests(&self, ordered: &Ordered<'_>, position: usize) -> &BTreeMap<String, String> {
        let index = ordered.positions.iter().position(|known| *known == Some(position));
        index.map_or(&self.current.refs, |index| &self.used[index].refs)
    }

    /// The items that exist and read an object which is another than when their origin was rolled out.
    fn outdated_refs(&self, ctx: &Context<'_>, ordered: &Ordered<'_>, target: &Target) -> HashSet<String> {
        let is_outdated = |item: &&Item| {
            let (then, now) = (self.digests(ordered, item.origin), target.digests.get(item.origin));
            let is_other = |id: &String| match (then.get(id), now.and_then(|now| now.get(id))) {
                (Some(then), Some(now)) => plan::is_other_digest(then, now),
                _ => false,
            };
            item.observed.is_some() && ctx.child(item).reads_refs.iter().any(is_other)
        };
        target.items.iter().filter(is_outdated).map(|item| item.name.clone()).collect()
    }

    /// What the items are rendered from. An origin whose package is missing renders nothing: the items that are of it keep
    /// what they have.
    fn ordered<'o>(&'o self, current: Origin<'o>) -> Ordered<'o> {
        let origin = |index: usize| {
            let (package, resource) = self.packages[index].as_ref().ok().copied()?;
            Some(Origin { package, resource, instance: &self.instances[index] })
        };
        let newest = self.is_fixed.then(|| origin(0)).flatten().unwrap_or(current);
        let mut earlier = Vec::new();
        let mut add = |origin: Origin<'o>| {
            earlier.push(origin);
            earlier.len()
        };
        let of_used = |index: usize| {
            if index == 0 && self.is_fixed { Some(NEWEST) } else { origin(index).map(&mut add) }
        };
        let positions: Vec<Option<usize>> = (0..self.used.len()).map(of_used).collect();
        let mut of_run = |beside: &'o Beside<'_>| {
            let (package, resource) = beside.package.as_ref().ok().copied()?;
            Some(add(Origin { package, resource, instance: &beside.instance }))
        };
        let beside = self.beside.iter().map(|one| (one.run.name.clone(), of_run(one))).collect();
        let (mut recorded, mut has_previous, mut previous) = (HashMap::new(), false, None);
        let mut previous_spec = None;
        for run in self.history.rollouts() {
            let Some(status) = &run.status else { continue };
            let Some(name) = &status.origin else { continue };
            let index = self.used.iter().position(|origin| origin.name == *name);
            let position = match index {
                Some(index) => positions[index],
                None if *name == self.newest => Some(NEWEST),
                None => continue,
            };
            if status.phase == Phase::Succeeded {
                (has_previous, previous) = (true, position);
                let instance = index.map_or(newest.instance, |index| &self.instances[index]);
                previous_spec = Some(instance["spec"].clone());
            } else {
                for member in &status.applied {
                    recorded.entry(item_id(member)).or_insert(position);
                }
            }
        }
        let held: Vec<ItemId> = recorded
            .iter()
            .filter(|(_, position)| position.is_none())
            .map(|(item, _)| item.clone())
            .collect();
        let recorded = recorded.into_iter().map(|(item, position)| (item, position.unwrap_or(NEWEST)));
        let origins = Origins::new(newest, earlier, recorded, previous)
            .with_absent(self.history.absent())
            .with_variable("record", Var::Json(Value::Object(self.record.clone())))
            .with_variable("previous", previous_spec.map_or(Var::Undefined, Var::Json))
            .with_plans();
        let held = held.into_iter().map(|item| origins.in_newest(item).to_string()).collect();
        Ordered { origins, has_previous, previous, positions, held, beside }
    }
}

/// The refs of the instance as it is now, whatever origin an active run has.
fn refs_now(
    snapshot: &Snapshot,
    current: Origin<'_>,
    history: &History<'_>,
    stored: &HashMap<String, StoredOrigin>,
    record: &Map<String, Value>,
) -> Refs {
    if current.resource.refs.iter().all(|reference| reference.gvk.is_none()) {
        return Refs::default();
    }
    let rollouts = history.rollouts();
    let last = rollouts.last().and_then(|run| run.status.as_ref());
    let previous = last.filter(|status| status.phase == Phase::Succeeded);
    let previous = previous.and_then(|status| stored.get(status.origin.as_ref()?));
    let previous = previous.map_or(Var::Undefined, |origin| Var::Json(origin.spec.clone()));
    let origins = Origins::one(current)
        .with_variable("record", Var::Json(Value::Object(record.clone())))
        .with_variable("previous", previous);
    refs(&Context::new(snapshot, &origins, Budget::new(snapshot.limits)))
}

/// Decides about an instance that is not being deleted.
pub(in crate::children) fn decide(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    current: Origin<'_>,
    at: (&ReconcileState, Duration),
) -> Decision {
    if let Some(reason) = &plans.unknown {
        let verdict = Verdict::Reconciling { reason: "RunsUnknown".into(), message: reason.clone() };
        let status = Status::unseen(&snapshot.instance, &verdict);
        let revisions = plans.revisions.keys().map(ToString::to_string).collect();
        let pending = plans.is_listing;
        return Decision { status: Some(status), revisions, pending, ..Decision::idle(verdict) };
    }
    let past = Past::of(snapshot, plans, current);
    if past.is_loading() {
        let message = "an earlier revision of the package is being loaded".to_owned();
        let verdict = Verdict::Reconciling { reason: "RevisionPending".into(), message };
        return Decision { pending: true, ..past.idle(verdict) };
    }
    if let Some((run, finding)) = past.held() {
        let actions =
            if run.spec.cancel { abandon(snapshot, plans, &past, current, run, at.0) } else { Vec::new() };
        let message = format!("{finding}; until then nothing of the instance is changed");
        let verdict = Verdict::Stalled { reason: finding.reason().to_owned(), message };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Decision { actions, status, ..past.idle(verdict) };
    }
    let is_pending = |want: &ResourceSelector| matches!(snapshot.lookup(want), LookupResult::Pending);
    if past.refs.wants.iter().any(is_pending) && past.history.exclusive(&current.resource.plans).is_none() {
        // A moment later it is known whether an object has changed, and so which rollout is needed.
        let verdict =
            Verdict::Reconciling { reason: "RefPending".into(), message: "refs are being read".into() };
        return Decision { pending: true, ..past.idle(verdict) };
    }
    let ordered = past.ordered(current);
    let Ordered { origins, previous, has_previous, .. } = &ordered;
    let ctx = Context::new(snapshot, origins, Budget::new(snapshot.limits));
    let mut target = target(&ctx);
    let has_rollouts = plan::has_rollouts(&current.resource.plans);
    let mut runs = Runs::new(&ctx, &target, plans, &past.history, is_paused(&ctx, &target), at.0);
    runs.beside.clone_from(&ordered.beside);
    let awaited = runs.awaited();
    let lost = if has_rollouts { lost(&ctx, &target, &past.history, (at.0, &awaited)) } else { Vec::new() };
    let mut losses: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    for (_, plan, member) in &lost {
        losses.entry(plan.clone()).or_default().push(member.clone());
    }
    let changed = changed_children(&ctx, &target, *previous);
    let needed = runs.needed(&past.current, &past.used, !has_previous, &changed, current);
    // What starts no rollout, such as another label, holds nothing back.
    let is_rolled_out = *previous == Some(NEWEST) || !has_rollouts || (*has_previous && needed.is_none());
    let is_needed = needed.is_some();
    runs.arrange(needed, losses, &awaited, &past.current, &past.stored(), at.1);
    let Runs { wants, actions, mut findings, permits, wake, conditions, summary, active, waits, .. } = runs;
    let (removals, asks) = deletions(&ctx, &permits);
    findings.extend(asks.iter().map(|asked| Finding::awaits_approval(snapshot, asked, at.0)));
    let mut kept = Kept::default();
    if is_needed || active.is_some() {
        kept.items = past.outdated_refs(&ctx, &ordered, &target);
    }
    if !is_rolled_out {
        kept.items.extend(ordered.held.iter().cloned());
        findings.extend(past.missing());
    }
    for (position, plan, _) in lost {
        target.items[position].lost = Some(plan);
    }
    for permit in permits.iter().filter(|permit| permit.verb == Verb::Apply) {
        let name = item_id(&permit.member).to_string();
        kept.items.remove(&name);
        if let Some(item) = target.items.iter_mut().find(|item| item.name == name) {
            item.lost = None;
        }
    }
    let waits_for = || active.clone().map_or("the next rollout".to_owned(), |run| format!("the run {run}"));
    let unreached = (!is_rolled_out).then(waits_for);
    let pruning = (!is_rolled_out || active.is_some()).then(waits_for);
    kept.awaited = waits_for();
    let schedule = RunSchedule::new(origins, &target, unreached, kept, pruning, findings);
    let mut decision = decide_target(&ctx, &target, &schedule, at);
    decision.revisions.clone_from(&past.revisions);
    if decision.exceeded.is_some() {
        return decision;
    }
    decision.wants.extend(past.refs.wants.iter().cloned());
    decision.wants.extend(wants.into_inner());
    decision.wants.sort();
    decision.wants.dedup();
    let recreated = recreated(&ctx, &target);
    if !recreated.is_empty() && target.open.is_empty() && !is_paused(&ctx, &target) {
        decision.actions.push(Action::Run(Box::new(RunAction::ForgetRecreations(recreated))));
    }
    decision.actions.extend(removals);
    decision.asks.extend(asks);
    decision.actions.extend(actions.into_iter().map(|action| Action::Run(Box::new(action))));
    decision.again = [decision.again, wake].into_iter().flatten().min();
    decision.waits_for_step = waits;
    decision.conditions = Some(conditions);
    decision.status = decision.status.map(|status| status.with_runs(summary));
    decision
}

impl Past<'_> {
    /// Only a verdict; what the instance reads is still followed.
    fn idle(&self, verdict: Verdict) -> Decision {
        let (wants, revisions) = (self.refs.wants.clone(), self.revisions.clone());
        Decision { wants, revisions, ..Decision::idle(verdict) }
    }
}

/// What ends a run whose revision cannot be loaded: its Jobs are deleted, and what it has in flight is not awaited.
fn abandon(
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

/// Decides about an instance that is being deleted while the revision of its active run cannot be loaded: the run is ended.
/// A cleanup is kept until its revision is restored, or a person releases the instance.
fn delete_held(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    past: &Past<'_>,
    current: Origin<'_>,
    (run, finding): (&PlanRun, &Finding),
    state: &ReconcileState,
) -> Decision {
    if run.cause() == Cause::Cleanup && !run.spec.cancel {
        let message = format!(
            "{finding}, or release the instance: annotation {}=true",
            crate::children::names::SKIP_CLEANUP
        );
        let verdict = Verdict::Stalled { reason: "CleanupFailed".into(), message };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Decision { status, ..past.idle(verdict) };
    }
    if matches!(past.packages.first(), Some(Err(NoPackage::Unreadable(_)))) && !run.spec.cancel {
        // It may be read again: then what the run has in flight is settled.
        let verdict = Verdict::Deleting { message: finding.to_string() };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Decision { status, ..past.idle(verdict) };
    }
    let actions = abandon(snapshot, plans, past, current, run, state);
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
    let has_cleanup = |plan: &crate::package::plan::Plan| {
        plan.triggers.iter().any(|trigger| matches!(trigger.event, crate::package::plan::Event::Deleted))
    };
    let skips = snapshot.instance["metadata"]["annotations"][names::SKIP_CLEANUP] == "true";
    // Runs that are unknown are not absent: the finalizer would be removed before them.
    if let Some(reason) = plans.unknown.as_ref().filter(|_| !skips || plans.is_listing) {
        let verdict = Verdict::Deleting { message: reason.clone() };
        return Decision { pending: plans.is_listing, ..Decision::idle(verdict) };
    }
    let has_work = plans.runs.iter().any(|run| run.phase() == Phase::Running)
        || current.resource.plans.iter().any(has_cleanup);
    if !skips && has_work {
        let past = Past::of(snapshot, plans, current);
        if past.is_loading() {
            let message = "an earlier revision of the package is being loaded".to_owned();
            return past.idle(Verdict::Deleting { message });
        }
        if let Some((run, finding)) = past.held() {
            return delete_held(snapshot, plans, &past, current, (run, &finding), at.0);
        }
        let ordered = past.ordered(current);
        let ctx = Context::new(snapshot, &ordered.origins, Budget::new(snapshot.limits));
        let target = target(&ctx);
        let mut runs = Runs::new(&ctx, &target, plans, &past.history, false, at.0);
        runs.beside.clone_from(&ordered.beside);
        runs.arrange(None, BTreeMap::new(), &[], &past.current, &past.stored(), at.1);
        let message = match &runs.cleanup {
            Cleanup::Done => None,
            Cleanup::Held(run, why) => Some(format!(
                "{run} failed: {why}; retry it, change the spec, or release the instance: annotation \
                 operetta.dev/skip-cleanup=true"
            )),
            Cleanup::Active => {
                let waits = runs.findings.iter().map(Finding::to_string).next();
                Some(waits.unwrap_or_else(|| "its runs are being ended".to_owned()))
            }
        };
        if let Some(message) = message {
            let held = matches!(runs.cleanup, Cleanup::Held(..));
            let verdict = if held {
                Verdict::Stalled { reason: "CleanupFailed".into(), message }
            } else {
                Verdict::Deleting { message }
            };
            let (mut actions, asks) = deletions(&ctx, &runs.permits);
            let pending: Vec<Finding> =
                asks.iter().map(|asked| Finding::awaits_approval(snapshot, asked, at.0)).collect();
            actions.extend(runs.actions.into_iter().map(|action| Action::Run(Box::new(action))));
            let status = Status::unseen(&snapshot.instance, &verdict).with_runs(runs.summary);
            return Decision {
                actions,
                asks,
                status: Some(status.pending(&prune::pending(&pending))),
                again: runs.wake,
                waits_for_step: runs.waits,
                polls: target.refs.polls.clone(),
                revisions: past.revisions.clone(),
                wants: target.selectors().iter().cloned().chain(runs.wants.into_inner()).collect(),
                ..Decision::idle(verdict)
            };
        }
    }
    let mut decision = prune::delete_instance(snapshot, at.0, at.1);
    if decision.actions.iter().any(|action| matches!(action, Action::RemoveFinalizer)) {
        let cleanup = plans.runs.iter().filter(|run| run.cause() == Cause::Cleanup && run.is_final());
        let cleanup: Vec<&PlanRun> = cleanup.collect();
        let left = leftovers(plans);
        if left.is_empty() {
            // Without it the instance would be cleaned up again, so it goes after the instance.
            let runs = cleanup.into_iter().map(super::effects::reference);
            decision.actions.extend(runs.map(|run| Action::Run(Box::new(RunAction::DeleteCleanup(run)))));
        } else {
            decision.actions.retain(|action| !matches!(action, Action::RemoveFinalizer));
            decision.actions.extend(left.into_iter().map(|action| Action::Run(Box::new(action))));
        }
    }
    decision
}

/// Deletes what belongs to runs, but for the runs that have cleaned up.
fn leftovers(plans: &PlanSnapshot) -> Vec<RunAction> {
    let is_left = |object: &&Value| object["metadata"]["deletionTimestamp"].is_null();
    let delete = |sort: RunObject| move |object: &Value| RunAction::Delete(sort, RunRef::of(object));
    let jobs = plans.jobs.iter().filter(is_left).map(delete(RunObject::Job));
    let origins = plans.origins.iter().filter(is_left).map(delete(RunObject::Origin));
    let is_cleanup = |run: &PlanRun| run.cause() == Cause::Cleanup && run.is_final();
    let runs = plans.runs.iter().chain(&plans.misnamed).filter(|run| !run.deleting && !is_cleanup(run));
    let runs = runs.map(|run| RunAction::Delete(RunObject::PlanRun, super::effects::reference(run)));
    jobs.chain(origins).chain(runs).collect()
}

/// The deletions that steps permit, and the objects among them that wait for approval.
fn deletions(ctx: &Context<'_>, permits: &[plan::Permit]) -> (Vec<Action>, Vec<Arc<Observed>>) {
    let (mut actions, mut asks) = (Vec::new(), Vec::new());
    for permit in permits.iter().filter(|permit| permit.verb == Verb::Delete) {
        let id = item_id(&permit.member);
        for observed in &ctx.snapshot.observed {
            let number = ctx.origins.number(&observed.child);
            let is_it = observed.is_made_by_us()
                && number.is_some_and(|number| ctx.origins.child_id(number) == id.child())
                && observed.key.as_deref() == id.key()
                && !observed.terminating;
            if is_it && ctx.snapshot.awaits_approval(observed) {
                actions.extend(prune::to_ask(observed));
                asks.push(Arc::clone(observed));
            } else if is_it {
                actions.push(Action::Delete(Arc::clone(observed)));
            }
        }
    }
    (actions, asks)
}

/// The lost items whose package names a plan for their loss: position, plan and member.
fn lost(
    ctx: &Context<'_>,
    target: &Target,
    history: &History<'_>,
    (state, awaited): (&ReconcileState, &[Member]),
) -> Vec<(usize, String, Member)> {
    let mut lost = Vec::new();
    let deleted = history.deleted();
    for (position, item) in target.items.iter().enumerate() {
        let plan = match &ctx.child(item).on_loss {
            OnLoss::Recreate => continue,
            OnLoss::Plan(plan) => plan.clone(),
            OnLoss::Computed(text) => match target.setting(ctx, item, text) {
                Ok(Some(Value::String(plan))) if plan != "Recreate" => plan,
                _ => continue,
            },
        };
        let is_of_rollout = item.origin != NEWEST
            || ctx.origins.recorded(&item.name).is_some()
            || ctx.origins.previous().is_none() && ctx.origins.is_rolled_out();
        let is_lost = match (&item.desired, &item.observed) {
            (Err(_), _) => false,
            (Ok(_), None) => !item.done && !is_recreating(ctx, state, item),
            (Ok(desired), Some(observed)) => {
                let gvk = &desired.object.gvk;
                let by_kind = match &observed.readiness {
                    // A container that crashes may recover; a pod in phase Failed does not.
                    Readiness::Failed { reason, .. } if gvk.is("v1", "Pod") => reason != "CrashLoopBackOff",
                    Readiness::Failed { .. } => gvk.is("v1", "PersistentVolumeClaim"),
                    _ => false,
                };
                (by_kind || item.meets_lost_when) && !observed.terminating
            }
        };
        let member = Member::new(ctx.origins.child_id(item.child), item.key.clone());
        if is_lost
            && is_of_rollout
            && !deleted.contains(item.name.as_str())
            && !history.is_coming(&member, awaited)
        {
            lost.push((position, plan, member));
        }
    }
    lost
}

/// Whether the object of an item was deleted to be created again, and is not yet.
pub(super) fn is_recreating(ctx: &Context<'_>, state: &ReconcileState, item: &Item) -> bool {
    let noted = &ctx.snapshot.instance["metadata"]["annotations"][names::recreating(&item.name)];
    item.observed.is_none()
        && item
            .desired
            .as_ref()
            .is_ok_and(|desired| state.is_recreating(&desired.object) || noted.is_string())
}

/// The annotations of the instance that note the recreation of items which exist again, or are not desired any more.
fn recreated(ctx: &Context<'_>, target: &Target) -> Vec<String> {
    let annotations = ctx.snapshot.instance["metadata"]["annotations"].as_object();
    let noted = annotations.into_iter().flatten().filter(|(key, _)| key.starts_with(names::RECREATING));
    let is_away = |name: &Value| {
        let mut items = target.items.iter().filter(|item| *name == item.name.as_str());
        items.any(|item| item.observed.as_ref().is_none_or(|live| live.terminating))
    };
    noted.filter(|(_, name)| !is_away(name)).map(|(key, _)| key.clone()).collect()
}

/// The children whose target is another than that which was rolled out.
fn changed_children(ctx: &Context<'_>, target: &Target, previous: Option<usize>) -> BTreeSet<String> {
    if previous == Some(NEWEST) {
        return BTreeSet::new();
    }
    let id = |number: usize| ctx.origins.child_id(number).to_owned();
    let in_newest: BTreeSet<&str> = target.newest.iter().map(|member| member.name.as_str()).collect();
    let mut changed = BTreeSet::new();
    for item in &target.items {
        if !target.is_newest(item) || !in_newest.contains(item.name.as_str()) {
            changed.insert(id(item.child));
        }
    }
    changed
}

/// The name of the active run that changes children.
pub(super) fn name_of(run: Option<&PlanRun>) -> Option<String> {
    run.map(|run| run.name.clone())
}
