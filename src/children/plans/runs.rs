//! The runs of one decision: which are active, which begin, and what their steps do.

mod tell;
mod tidy;
mod triggers;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde_json::{Value, json};

use tell::{Reasons, announcement, rolled_out};

use super::effects::{Naming, reference};
use super::history::{History, NewOrigin, StoredOrigin};
use super::observed::Seen;
use super::{Guard, PlanSnapshot, RunAction, RunObject};
use crate::children::Context;
use crate::children::decide::{Action, Decision};
use crate::children::findings::Finding;
use crate::children::names;
use crate::children::origins::{NEWEST, Origin};
use crate::children::refs::ResourceSelector;
use crate::children::state::ReconcileState;
use crate::children::target::Target;
use crate::crd;
use crate::package::plan::Plan;
use crate::plan::{
    self, Agenda, Cause, Change, Cleanup, Conditions, Directive, Ending, Instance, Member, NewRun, Permit,
    Phase, PlanRun, Progress, Recorded, RunWrite, SCHEDULED_AT, Selected, Situation, TAKEN, World,
};
use crate::template::Expr;

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
        let rollouts = self.history.rollouts();
        let unfinished = rollouts.first().filter(|run| !run.has_rolled_out());
        plan::select(&Change {
            unfinished: unfinished.and_then(|run| Some(run.status.as_ref()?.plans.as_slice())),
            plans: &origin.resource.plans,
            newest: current.selectable(),
            in_use: &in_use,
            initial,
            changed_children: changed,
            holds: &holds,
        })
    }

    /// Applies the rules between runs, and moves those that are active.
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
        let reasons = Reasons::of(rollout.is_some(), losses.keys().cloned(), &conditions);
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
            rollout,
            losses: losses.into_iter().collect(),
            conditions,
            due,
            wrong_params: &wrong_params,
            now: self.plans.now,
        };
        let agenda = plan::agenda(&situation);
        self.fail_misnamed();
        self.follow(agenda, current);
        self.tell(&reasons);
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
        let mut actions = self.naming.actions(run, &progress).into_iter();
        if matches!(directive, Directive::Settle(ending) if ending.phase == Phase::Superseded) {
            // An old instance may lack the very change that the run rolls out. A guard that does not hold ends all that
            // follows.
            if let Some(first) = actions.next() {
                self.actions.push(RunAction::If { guard: Guard::IsCurrent, then: Box::new(first) });
            }
        }
        self.actions.extend(actions);
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
