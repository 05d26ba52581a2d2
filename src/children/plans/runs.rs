//! The runs of one decision: which are active, which begin, and what their steps do.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::effects::{Naming, reference};
use super::history::{History, NewOrigin, StoredOrigin, item_id};
use super::observed::Seen;
use super::{PlanSnapshot, RunAction, RunObject, RunRef};
use crate::children::Context;
use crate::children::decide::{Action, Decision};
use crate::children::findings::Finding;
use crate::children::names;
use crate::children::origins::{ItemId, NEWEST, Origin};
use crate::children::refs::ResourceSelector;
use crate::children::state::ReconcileState;
use crate::children::target::{Item, Target};
use crate::crd;
use crate::package::plan::{Event, OnLoss, Plan};
use crate::plan::{
    self, Agenda, Cause, Change, Cleanup, Conditions, Directive, Ending, Instance, Member, NewRun, Permit,
    Phase, PlanRun, Progress, RECORD, Recorded, RunWrite, SCHEDULED_AT, Schedule, Selected, Situation, TAKEN,
    Watch, World,
};
use crate::template::{Expr, Scope, Var};

/// The runs of one decision, and what comes of them.
pub(super) struct Runs<'a> {
    ctx: &'a Context<'a>,
    target: &'a Target,
    plans: &'a PlanSnapshot,
    history: &'a History<'a>,
    record: BTreeMap<String, Recorded>,
    naming: Naming<'a>,
    is_paused: bool,
    /// How the active runs go on, computed once a decision, by name.
    progresses: HashMap<&'a str, Progress>,
    /// Objects that its steps want to know.
    pub(super) wants: RefCell<Vec<ResourceSelector>>,
    state: &'a ReconcileState,
    pub(super) actions: Vec<RunAction>,
    pub(super) findings: Vec<Finding>,
    pub(super) permits: Vec<Permit>,
    pub(super) wake: Option<Duration>,
    /// Whether a step waits.
    pub(super) waits: bool,
    pub(super) conditions: Conditions,
    pub(super) cleanup: Cleanup,
    /// `plan` and `history` of the status.
    pub(super) summary: (Option<Value>, Value),
    /// The name of the active run that changes children.
    pub(super) active: Option<String>,
    /// The active runs with a revision other than that of the newest origin: the position of an origin with theirs, or none
    /// if the revision cannot be loaded.
    pub(super) beside: HashMap<String, Option<usize>>,
}

/// What comes of the runs of one decision. See [`Runs`].
pub(super) struct RunsOutcome {
    wants: Vec<ResourceSelector>,
    actions: Vec<RunAction>,
    pub(super) findings: Vec<Finding>,
    pub(super) permits: Vec<Permit>,
    wake: Option<Duration>,
    conditions: Conditions,
    summary: (Option<Value>, Value),
    pub(super) active: Option<String>,
    waits: bool,
}

impl RunsOutcome {
    /// What children wait for that no run has reached.
    pub(super) fn awaited(&self) -> String {
        self.active.as_ref().map_or("the next rollout".to_owned(), |run| format!("the run {run}"))
    }

    /// Adds it to the decision about the children.
    pub(super) fn add_to(self, mut decision: Decision) -> Decision {
        decision.wants.extend(self.wants);
        decision.wants.sort();
        decision.wants.dedup();
        decision.actions.extend(self.actions.into_iter().map(|action| Action::Run(Box::new(action))));
        decision.again = [decision.again, self.wake].into_iter().flatten().min();
        decision.waits_for_step = self.waits;
        decision.conditions = Some(self.conditions);
        decision.status = decision.status.map(|status| status.with_runs(self.summary));
        decision
    }
}

impl<'a> Runs<'a> {
    pub(super) fn new(
        ctx: &'a Context<'a>,
        target: &'a Target,
        plans: &'a PlanSnapshot,
        history: &'a History<'a>,
        is_paused: bool,
        state: &'a ReconcileState,
    ) -> Self {
        let active = history.exclusive(&ctx.origin.resource.plans);
        Self {
            ctx,
            target,
            plans,
            history,
            record: plan::record(history.runs.iter().copied()),
            naming: Naming { origin: ctx.origin, plans },
            is_paused,
            progresses: HashMap::new(),
            wants: RefCell::default(),
            state,
            actions: Vec::new(),
            findings: Vec::new(),
            permits: Vec::new(),
            wake: None,
            waits: false,
            conditions: Conditions::default(),
            cleanup: Cleanup::Done,
            summary: (None, json!([])),
            active: super::decide::name_of(active),
            beside: HashMap::new(),
        }
    }

    /// The rollout that the instance needs.
    pub(super) fn needed(
        &self,
        current: &NewOrigin,
        used: &[StoredOrigin],
        initial: bool,
        changed: &BTreeSet<String>,
        origin: Origin<'_>,
    ) -> Option<Selected> {
        let in_use: Vec<_> = used.iter().map(StoredOrigin::selectable).collect();
        let engine = &origin.package.engine;
        let scope = &self.target.scope;
        let holds = |when: &Expr| engine.truthy(when, scope).unwrap_or(false);
        plan::select(&Change {
            plans: &origin.resource.plans,
            newest: current.selectable(),
            in_use: &in_use,
            initial,
            changed_children: changed,
            holds: &holds,
        })
    }

    /// Applies the rules between runs, and moves those that are active.
    #[expect(clippy::needless_pass_by_value, reason = "it is made for this call")]
    pub(super) fn arrange(
        &mut self,
        rollout: Option<Selected>,
        losses: BTreeMap<String, Vec<Member>>,
        awaited: &[Member],
        current: &NewOrigin,
        stored: &[plan::Origin<'_>],
        now: Duration,
    ) {
        let resource = self.ctx.origin.resource;
        let instance = &self.ctx.snapshot.instance;
        self.conditions = self.state.conditions();
        let conditions = self.watch_conditions(now, awaited);
        let due = self.due();
        let wrong_params = |plan: &Plan, params: &Value| wrong_params(plan, params);
        let annotations = &instance["metadata"]["annotations"];
        let situation = Situation {
            plans: &resource.plans,
            runs: &self.plans.runs,
            instance: self.ctx.origin.name(),
            succeeded: rolled_out(&instance["status"]),
            occupied: &self.plans.occupied,
            deleting: self.ctx.snapshot.is_deleting(),
            skip_cleanup: annotations[names::SKIP_CLEANUP] == "true",
            namespace_terminating: self.state.is_namespace_terminating(),
            paused: self.is_paused,
            announced: self.announced(),
            newest: current.selectable(),
            origins: stored,
            rollout: rollout.clone(),
            losses: losses.into_iter().collect(),
            conditions,
            due,
            wrong_params: &wrong_params,
            now: self.plans.now,
        };
        let agenda = plan::agenda(&situation);
        self.fail_misnamed();
        self.follow(agenda, current);
        self.tell(rollout.is_some());
    }

    /// Ends the runs that name the instance by another resource.
    fn fail_misnamed(&mut self) {
        for run in self.plans.misnamed.iter().filter(|run| !run.is_final()) {
            let message = format!("spec.of.resource is not {}", self.naming.of().resource);
            let status = plan::RunStatus {
                phase: Phase::Failed,
                reason: "InvalidInstance".to_owned(),
                message,
                finished_at: Some(self.plans.now.to_string()),
                ..plan::RunStatus::default()
            };
            self.actions.push(RunAction::store(run, &status, Vec::new()));
        }
    }

    /// Does what the rules between runs come to.
    fn follow(&mut self, agenda: Agenda, current: &NewOrigin) {
        self.wake = [self.wake, agenda.wake].into_iter().flatten().min();
        self.cleanup = agenda.cleanup;
        for (name, why) in agenda.waiting {
            self.findings.push(Finding::RunWaits { run: name, step: String::new(), message: why });
        }
        // What is written first may change the rest: the runs are decided again after it.
        if let Some(write) = agenda.writes.first() {
            self.write(write, current);
        } else {
            for (name, directive) in &agenda.active {
                if let Some(run) = self.run(name) {
                    self.advance(run, directive);
                }
            }
        }
        if self.actions.is_empty() {
            self.tidy();
        }
    }

    /// The uid of the run that the status of the instance announces.
    fn announced(&self) -> Option<&'a str> {
        let resource = self.ctx.origin.resource;
        if crd::taken(&resource.crd, &resource.kind.version).contains(&"plan") {
            // The status has no room for it, so nothing is announced.
            let is_taken = |run: &&&PlanRun| run.taken() == Some(run.uid.as_str()) && !run.is_final();
            return self.history.runs.iter().find(is_taken).map(|run| run.uid.as_str());
        }
        self.ctx.snapshot.instance["status"]["plan"]["uid"].as_str()
    }

    fn run(&self, name: &str) -> Option<&'a PlanRun> {
        self.plans.runs.iter().find(|run| run.name == name)
    }

    /// What comes of them.
    pub(super) fn outcome(self) -> RunsOutcome {
        let Self { wants, actions, findings, permits, wake, conditions, summary, active, waits, .. } = self;
        let wants = wants.into_inner();
        RunsOutcome { wants, actions, findings, permits, wake, conditions, summary, active, waits }
    }

    /// The members that active runs have changed and still await.
    pub(super) fn awaited(&mut self) -> Vec<Member> {
        let (mut awaited, mut progresses) = (Vec::new(), HashMap::new());
        for run in self.history.active().filter(|run| !self.has_no_revision(run)) {
            let progress = self.progress(run, &Directive::Continue);
            awaited.extend(progress.awaited.iter().cloned());
            progresses.insert(&*run.name, progress);
        }
        self.progresses = progresses;
        awaited
    }

    fn write(&mut self, write: &RunWrite, current: &NewOrigin) {
        match write {
            RunWrite::Create(new) => {
                let body = self.new_run(new);
                self.actions.push(RunAction::Create(RunObject::PlanRun, Box::new(body)));
            }
            RunWrite::Take { run } => {
                if let Some(run) = self.run(run) {
                    let patch = json!({"metadata": {"annotations": {TAKEN: run.uid}}});
                    self.actions.push(RunAction::Change(RunObject::PlanRun, reference(run), Box::new(patch)));
                }
            }
            RunWrite::Announce { run } => {
                if let Some(run) = self.run(run) {
                    self.actions.push(RunAction::Announce(Box::new(announcement(run))));
                }
            }
            RunWrite::Status { run, status } => {
                let Some(run) = self.run(run) else { return };
                let is_stored = |name: &String| {
                    self.plans.origins.iter().any(|origin| origin["metadata"]["name"] == name.as_str())
                };
                if let Some(origin) = status.origin.as_ref().filter(|name| !is_stored(name))
                    && *origin == current.name
                {
                    let number = u64::try_from(self.plans.origins.len()).unwrap_or_default() + 1;
                    let body = self.naming.revision(origin, &current.data, number);
                    self.actions.push(RunAction::Create(RunObject::Origin, Box::new(body)));
                }
                self.actions.push(RunAction::store(run, status, Vec::new()));
            }
        }
    }

    fn new_run(&self, new: &NewRun) -> Value {
        let at = new.scheduled_at.map(|at| (SCHEDULED_AT, at.to_string()));
        let annotations: Vec<(&str, String)> = at.into_iter().collect();
        let mut body = self.naming.plan_run(&new.name, &new.plan, new.cause, &annotations);
        if let Some(retry_of) = &new.retry_of {
            body["spec"]["retryOf"] = retry_of.as_str().into();
        }
        body
    }

    /// Whether the revision of a run cannot be loaded.
    fn has_no_revision(&self, run: &PlanRun) -> bool {
        self.beside.get(&run.name).is_some_and(Option::is_none)
    }

    /// Ends a run without its revision: its Jobs are deleted, and what it has in flight is not awaited.
    pub(super) fn abandoned(&self, run: &PlanRun) -> Vec<RunAction> {
        let message =
            "the run was ended, and the revision of the package with which it began cannot be loaded"
                .to_owned();
        let ending = Ending { phase: Phase::Cancelled, reason: "Cancelled", message };
        self.naming.actions(run, &self.progress(run, &Directive::Abandon(ending)))
    }

    fn advance(&mut self, run: &PlanRun, directive: &Directive) {
        if self.has_no_revision(run) {
            if *directive != Directive::Continue {
                return self.actions.extend(self.abandoned(run));
            }
            let revision = run.status.as_ref().and_then(|status| status.revision.clone()).unwrap_or_default();
            let package = self.plans.package(&revision, self.ctx.origin);
            let why = package.err().and_then(|why| Some(why.reason()?.to_owned())).unwrap_or_default();
            let run = Some(run.name.clone());
            return self.findings.push(Finding::RevisionMissing { revision, run, why });
        }
        // With a note in place of a secret a step would send a wrong request.
        if *directive == Directive::Continue
            && let Some(message) = self.seen(run).unread_secrets()
        {
            let (run, step) = (run.name.clone(), String::new());
            self.waits = true;
            return self.findings.push(Finding::RunWaits { run, step, message });
        }
        let known = self.progresses.remove(&*run.name).filter(|_| *directive == Directive::Continue);
        let progress = known.unwrap_or_else(|| self.progress(run, directive));
        self.actions.extend(self.naming.actions(run, &progress));
        self.waits |= !progress.waiting.is_empty();
        for waiting in &progress.waiting {
            self.findings.push(Finding::RunWaits {
                run: run.name.clone(),
                step: waiting.step.clone(),
                message: waiting.message.clone(),
            });
        }
        self.permits.extend(progress.permits);
        self.wake = [self.wake, progress.wake].into_iter().flatten().min();
        let objects = run.status.iter().flat_map(|status| &status.steps).flat_map(|step| &step.objects);
        let named: Vec<&str> = objects.map(|object| object.name.as_str()).collect();
        self.actions.extend(self.naming.unread_jobs(|name| named.contains(&name)));
    }

    fn progress(&self, run: &PlanRun, directive: &Directive) -> Progress {
        let plans = &self.origin_of(run).1.resource.plans;
        self.in_world(run, |world| plan::advance(run, plans, world, directive))
    }

    fn seen<'s>(&'s self, run: &'s PlanRun) -> Seen<'s> {
        Seen {
            ctx: self.ctx,
            target: self.target,
            plans: self.plans,
            run,
            is_rollout: run.cause() == Cause::Rollout,
            state: self.state,
            wants: &self.wants,
        }
    }

    /// An origin with the revision of a run, and its position.
    fn origin_of(&self, run: &PlanRun) -> (usize, Origin<'a>) {
        match self.beside.get(&run.name) {
            Some(Some(position)) => (*position, self.ctx.origins.at(*position)),
            _ => (NEWEST, self.ctx.origin),
        }
    }

    fn in_world<T>(&self, run: &PlanRun, f: impl FnOnce(&World<'_>) -> T) -> T {
        let seen = self.seen(run);
        let (position, origin) = self.origin_of(run);
        let instance = Instance {
            of: self.naming.of(),
            uid: origin.uid().to_owned(),
            namespace: self.plans.namespace.clone(),
            digest_key: self.plans.digest_key.clone(),
        };
        f(&World {
            engine: &origin.package.engine,
            scope: self.target.scope_at(position),
            record: &self.record,
            instance: &instance,
            observed: &seen,
            has_observations: !self.target.refs.polls.is_empty(),
            paused: self.is_paused,
            namespace_terminating: self.state.is_namespace_terminating(),
            elapsed: self.plans.elapsed.get(&run.uid).copied().unwrap_or_default(),
            now: self.plans.now,
        })
    }

    /// The variables, without the members that active runs have changed and still await.
    fn scope_without(&self, awaited: &[Member]) -> Scope {
        if awaited.is_empty() {
            return self.target.scope.clone();
        }
        let mut children = self.target.children.clone();
        for member in awaited {
            let Some(var) = children.get_mut(&member.child) else { continue };
            let unknown = Var::Unknown(format!("a run awaits {member}"));
            let members = match (std::mem::replace(var, Var::Undefined), &member.key) {
                (_, None) => {
                    *var = unknown;
                    continue;
                }
                (Var::Map(members), Some(_)) => {
                    members.into_iter().map(|(key, live)| (key, Var::Object(live))).collect()
                }
                (Var::Keyed(members), Some(_)) => members,
                (other, Some(_)) => {
                    *var = other;
                    continue;
                }
            };
            let mut members: Vec<(Value, Var)> = members;
            let key = member.key.clone().unwrap_or_default();
            members.retain(|(known, _)| *known != key);
            members.push((key, unknown));
            *var = Var::Keyed(members);
        }
        self.target.scope.with("children", Var::Vars(children))
    }

    fn watch_conditions(
        &mut self,
        now: Duration,
        awaited: &[Member],
    ) -> Vec<(String, plan::ConditionVerdict)> {
        let (origin, scope_always) = (self.ctx.origin, &self.target.scope);
        let scope = &self.scope_without(awaited);
        self.conditions.pass(now, self.is_paused);
        let mut found = Vec::new();
        for plan in &origin.resource.plans {
            let is_own = |run: &&&PlanRun| run.spec.plan == plan.name;
            let runs = self.history.runs.iter().rev().filter(is_own);
            let ended = runs.clone().find(|run| run.is_final()).map(|run| run.uid.as_str());
            let active = runs.clone().any(|run| !run.is_final());
            let engine = &origin.package.engine;
            let watch = Watch { plan, engine, scope, scope_always, ended, active };
            if let Some(verdict) = self.conditions.watch(&watch) {
                found.push((plan.name.clone(), verdict));
            }
        }
        found
    }

    /// The plans whose schedule is due.
    fn due(&mut self) -> Vec<(String, String, Timestamp)> {
        let origin = self.ctx.origin;
        let engine = &origin.package.engine;
        let scope = &self.target.scope;
        let created = self.ctx.snapshot.instance["metadata"]["creationTimestamp"].as_str();
        let Some(created) = created.and_then(|text| text.parse::<Timestamp>().ok()) else {
            return Vec::new();
        };
        let share = crate::children::state::share(&origin.uid());
        let mut due = Vec::new();
        for plan in &origin.resource.plans {
            for trigger in &plan.triggers {
                let Event::Schedule { schedule, time_zone, starting_deadline, suspend } = &trigger.event
                else {
                    continue;
                };
                let holds = |when: &Option<Expr>, otherwise: bool| match when {
                    Some(when) => engine.truthy(when, scope).unwrap_or(false),
                    None => otherwise,
                };
                if !holds(&trigger.when, true) || holds(suspend, false) {
                    continue;
                }
                let text = |text: &crate::template::Text| {
                    engine
                        .eval_text(text, scope)
                        .ok()
                        .flatten()
                        .and_then(|value| value.as_str().map(str::to_owned))
                };
                let Some(line) = text(schedule) else { continue };
                let zone = time_zone.as_ref().and_then(text);
                let parsed = match Schedule::parse(&line, zone.as_deref()) {
                    Ok(parsed) => parsed,
                    Err(message) => {
                        let (run, reason) = (plan.name.clone(), "InvalidSchedule".to_owned());
                        self.findings.push(Finding::RunFailed { run, reason, message });
                        continue;
                    }
                };
                let last = self.history.runs.iter().filter(|run| run.spec.plan == plan.name);
                let last = last.filter_map(|run| run.annotations.get(SCHEDULED_AT)?.parse().ok());
                let last = plan::last_scheduled(last, self.plans.now);
                let found = parsed.due(last, created, self.plans.now, *starting_deadline, share);
                self.wake = [self.wake, found.wake].into_iter().flatten().min();
                if let Some(at) = found.at {
                    let name = plan::scheduled_name(origin.name(), &plan.name, at);
                    due.push((plan.name.clone(), name, at));
                }
            }
        }
        due
    }

    /// Notes on runs that have ended which items exist since, if a plan restores them when they are lost: an object that is
    /// gone cannot say that it was there.
    fn note_created(&mut self) {
        let origins = self.ctx.origins;
        let is_there = |item: &&Item| {
            let live = item.observed.as_ref().filter(|live| live.is_made_by_us() && !live.terminating);
            item.desired.is_ok()
                && live.is_some()
                && !matches!(self.ctx.child(item).on_loss, OnLoss::Recreate)
        };
        let mut there = self.target.items.iter().filter(is_there).peekable();
        if there.peek().is_none() {
            return;
        }
        let created = self.history.created(origins);
        let new: BTreeMap<ItemId, Member> = there
            .filter(|item| !created.contains(item.name.as_str()))
            .map(|item| (item.id(), Member::new(origins.child_id(item.child), item.key.clone())))
            .collect();
        if new.is_empty() {
            return;
        }
        let mut unrecorded = new.clone();
        let rollouts = self.history.rollouts();
        for run in &rollouts {
            let Some(status) = &run.status else { continue };
            for member in &status.applied {
                unrecorded.remove(&origins.in_newest(item_id(member)));
            }
        }
        for run in rollouts.into_iter().filter(|run| run.is_final()) {
            let Some(mut status) = run.status.clone() else { continue };
            status.uncreated.retain(|member| !new.contains_key(&origins.in_newest(item_id(member))));
            if run.has_rolled_out() {
                // The record, or what is observed, has added them to what was rolled out.
                status.applied.extend(std::mem::take(&mut unrecorded).into_values());
            }
            if run.status.as_ref() != Some(&status) {
                self.actions.push(RunAction::store(run, &status, Vec::new()));
            }
        }
    }

    /// Notes what exists, repeats the record on the newest run that has ended, releases Jobs, and prunes.
    fn tidy(&mut self) {
        self.note_created();
        if !self.actions.is_empty() {
            return;
        }
        let newest = self.history.runs.iter().rev().find(|run| run.is_final());
        if let Some(run) = newest
            && !self.record.is_empty()
            && !run.annotations.contains_key(RECORD)
            && !run.deleting
        {
            let record = serde_json::to_string(&self.record).unwrap_or_default();
            let patch = json!({"metadata": {"annotations": {RECORD: record}}});
            self.actions.push(RunAction::Change(RunObject::PlanRun, reference(run), Box::new(patch)));
        }
        for run in &self.plans.runs {
            if let Some(status) = &run.status {
                let effects = self.in_world(run, |world| plan::releases(status, world));
                self.actions.extend(effects.iter().filter_map(|effect| self.naming.action(run, effect)));
            }
        }
        for run in plan::prunable(&self.plans.runs, self.plans.now) {
            self.actions.push(RunAction::Delete(RunObject::PlanRun, reference(run)));
        }
        for origin in &self.plans.origins {
            let name = origin["metadata"]["name"].as_str().unwrap_or_default();
            let is_used = |run: &PlanRun| {
                run.status.as_ref().is_some_and(|status| status.origin.as_deref() == Some(name))
            };
            if !self.plans.runs.iter().any(is_used) && origin["metadata"]["deletionTimestamp"].is_null() {
                self.actions.push(RunAction::Delete(RunObject::Origin, RunRef::of(origin)));
            }
        }
    }

    /// What the status and the conditions say.
    fn tell(&mut self, is_rollout_needed: bool) {
        let plans = &self.ctx.origin.resource.plans;
        let active = self.history.exclusive(plans);
        let last = self.history.runs.iter().rev().find(|run| {
            run.status.as_ref().is_some_and(|status| status.started_at.is_some())
                && super::history::is_exclusive(run, plans)
        });
        let shown = active.or(last.copied());
        self.summary.0 = shown.map(announcement);
        self.summary.1 = json!(plan::history(&self.plans.runs));
        for (name, message) in &self.plans.unreadable {
            let (run, reason) = (name.clone(), "Unreadable".to_owned());
            self.findings.push(Finding::RunFailed { run, reason, message: message.clone() });
        }
        if let Some(run) = last.filter(|run| active.is_none() && run.phase() == Phase::Failed)
            && let Some(status) = &run.status
            && (if run.cause() == Cause::Rollout {
                is_rollout_needed
            } else {
                // What the package has no more cannot be run again.
                plans.iter().any(|plan| plan.name == run.spec.plan)
            })
        {
            let plans = if status.plans.is_empty() { run.spec.plan.clone() } else { status.plans.join(", ") };
            self.findings.push(Finding::RunFailed {
                run: format!("plan {plans} (run {})", run.name),
                reason: status.reason.clone(),
                message: status.message.clone(),
            });
        }
        let absent: Vec<String> = self.history.absent().iter().map(ToString::to_string).collect();
        if active.is_none() && !absent.is_empty() && !plans.is_empty() {
            self.findings.push(Finding::StaysDeleted { items: absent });
        }
    }
}

/// The rollouts that have succeeded as the status of an instance says.
fn rolled_out(status: &Value) -> BTreeSet<String> {
    let listed = status["history"].as_array().into_iter().flatten();
    let succeeded = listed
        .chain([&status["plan"]])
        .filter(|run| run["cause"] == Cause::Rollout.as_str() && run["phase"] == "Succeeded");
    succeeded.filter_map(|run| run["name"].as_str().map(str::to_owned)).collect()
}

/// What `status.plan` says of a run.
fn announcement(run: &PlanRun) -> Value {
    let mut shown = json!(plan::Summary::of(run));
    shown["uid"] = run.uid.as_str().into();
    let status = run.status.as_ref();
    let open = status.iter().flat_map(|status| &status.steps).rfind(|step| !step.phase.is_final());
    if let Some(step) = open {
        shown["step"] = step.path.as_str().into();
    }
    shown
}

/// What is wrong with the parameters of a request.
fn wrong_params(plan: &Plan, params: &Value) -> Option<String> {
    let empty = json!({});
    let params = if params.is_null() { &empty } else { params };
    match &plan.params {
        None if params == &empty => None,
        None => Some(format!("plan `{}` takes no parameters", plan.name)),
        Some(schema) => {
            let found = crd::validate_part(schema, params, "params");
            let messages: Vec<String> =
                found.iter().map(|one| format!("{}: {}", one.path, one.message)).collect();
            (!messages.is_empty()).then(|| messages.join("; "))
        }
    }
}
