//! The runs of one decision: which are active, which begin, and what their steps do.

pub(super) mod abandon;
mod inner;
mod needed;
mod reasons;
mod report;
pub(super) mod tidy;
mod triggers;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::lost::{LostItem, losses, lost};
use super::past::{Ordered, Past};
use super::recover::unneeded;
use super::refused::hold;
use super::run_view::RunView;
use super::runs::reasons::Reasons;
use crate::children::decide_target::is_paused;
use crate::children::model::{
    Action, Context, Decision, Finding, NEWEST, Needs, Origin, PlanSnapshot, ReconcileState,
    ResourceSelector, Target,
};
use crate::children::names;
use crate::crd;
use crate::package::plan::Plan;
use crate::plan::{
    self, Agenda, Cause, Cleanup, Conditions, Directive, Guard, Instance, JobState, Known, Member, NewRun,
    Permit, Phase, PlanRun, Progress, RECOVER, RUN_FINALIZER, RecordedFact, RunAction, RunObject, RunWrite,
    SCHEDULED_AT, SHOWN_AFTER, Selected, Situation, TAKEN, World, reference,
};
use crate::template::Budget;

/// What the runs of an instance demand of it, and what is done for them.
#[derive(Default)]
pub(super) struct RunsOutcome {
    actions: Vec<RunAction>,
    pub(super) findings: Vec<Finding>,
    /// What the steps of runs may write now.
    pub(super) permits: Vec<Permit>,
    /// The lost items that are not simply created again.
    pub(super) lost: Vec<LostItem>,
    /// Whether the instance needs a rollout.
    pub(super) is_rollout_needed: bool,
    /// The name of the active run that changes children.
    pub(super) active: Option<String>,
    pub(super) cleanup: Cleanup,
    pub(super) is_namespace_terminating: bool,
    /// The selectors of the objects that the steps of the runs read.
    wants: Vec<ResourceSelector>,
    wake: Option<Duration>,
    /// Whether a step waits.
    waits: bool,
    conditions: Conditions,
    /// `plan` and `history` of the status.
    summary: (Option<Value>, Value),
    /// The budgets of the steps.
    budgets: Vec<Arc<Budget>>,
}

impl RunsOutcome {
    /// What children wait for that no run has reached.
    pub(super) fn awaited(&self) -> String {
        self.active.as_ref().map_or("the next rollout".to_owned(), |run| format!("the run {run}"))
    }

    /// Adds the outcome to the decision about the children.
    pub(super) fn add_to(self, mut decision: Decision) -> Decision {
        decision.needs.add(Needs { watches: self.wants, fresh_polls: self.waits, ..Needs::default() });
        decision.actions.extend(self.actions.into_iter().map(|action| Action::Run(Box::new(action))));
        decision.again = [decision.again, self.wake].into_iter().flatten().min();
        for budget in self.budgets {
            decision.evaluation.used = decision.evaluation.used.plus(budget.used());
            decision.evaluation.is_partial |= budget.exceeded().is_some();
        }
        decision.conditions = Some(self.conditions);
        decision.status = decision.status.map(|status| status.with_runs(self.summary));
        decision
    }
}

/// Decides about the runs of an instance: which begin, go on or end, and what their steps do. `target`: before anything of it is
/// held back for them.
pub(super) fn decide(
    ctx: &Context<'_>,
    target: &Target,
    past: &Past<'_>,
    ordered: &Ordered<'_>,
    (state, now): (&ReconcileState, Duration),
) -> RunsOutcome {
    let mut runs = Runs::new(ctx, target, past, &ordered.beside, (state, now));
    if ctx.snapshot.is_deleting() {
        runs.arrange(None, BTreeMap::new(), &[]);
        return runs.finish();
    }
    runs.is_paused = is_paused(ctx, target);
    let awaited = runs.awaited();
    let has_rollouts = plan::has_rollouts(&ctx.origin.resource.plans);
    let lost = if has_rollouts { lost(ctx, target, &past.history, (state, &awaited)) } else { Vec::new() };
    let needed = runs.needed(ordered);
    let is_rollout_needed = needed.is_some();
    runs.arrange(needed, losses(&lost), &awaited);
    RunsOutcome { lost, is_rollout_needed, ..runs.finish() }
}

/// The runs of one decision.
struct Runs<'a> {
    ctx: &'a Context<'a>,
    target: &'a Target,
    plans: &'a PlanSnapshot,
    past: &'a Past<'a>,
    /// The active runs with another origin than the newest: see [`Ordered::beside`].
    beside: &'a HashMap<String, Option<usize>>,
    state: &'a ReconcileState,
    /// Since the manager started.
    now: Duration,
    record: BTreeMap<String, RecordedFact>,
    instance: Instance,
    is_paused: bool,
    /// How the active runs go on, computed once a decision, by name.
    progresses: HashMap<&'a str, Progress>,
    /// What the active runs wait for now, by name.
    messages: HashMap<String, String>,
    /// What the steps of each run may compute in this decision, by name.
    budgets: RefCell<HashMap<String, Arc<Budget>>>,
    wants: RefCell<Vec<ResourceSelector>>,
    outcome: RunsOutcome,
}

impl<'a> Runs<'a> {
    fn new(
        ctx: &'a Context<'a>,
        target: &'a Target,
        past: &'a Past<'a>,
        beside: &'a HashMap<String, Option<usize>>,
        (state, now): (&'a ReconcileState, Duration),
    ) -> Self {
        let active = past.history.exclusive(&ctx.origin.resource.plans).map(|run| run.name.clone());
        Self {
            ctx,
            target,
            plans: past.plans,
            past,
            beside,
            state,
            now,
            record: past.plans.facts(),
            instance: past.plans.instance(ctx.origin),
            is_paused: false,
            progresses: HashMap::new(),
            messages: HashMap::new(),
            budgets: RefCell::default(),
            wants: RefCell::default(),
            outcome: RunsOutcome { active, ..RunsOutcome::default() },
        }
    }

    /// What comes of the runs.
    fn finish(self) -> RunsOutcome {
        let is_namespace_terminating = self.is_namespace_terminating();
        let budgets = self.budgets.into_inner().into_values().collect();
        RunsOutcome { wants: self.wants.into_inner(), budgets, is_namespace_terminating, ..self.outcome }
    }

    /// Applies the rules between runs, and advances those that are active.
    fn arrange(
        &mut self,
        rollout: Option<Selected>,
        losses: BTreeMap<String, Vec<Member>>,
        awaited: &[Member],
    ) {
        let resource = self.ctx.origin.resource;
        let instance = &self.ctx.snapshot.instance;
        self.ctx.budget.about("the triggers of plans");
        self.outcome.conditions = self.state.conditions();
        let conditions = self.watch_conditions(self.now, awaited);
        let stay = |plan: &&Plan| self.outcome.conditions.stay(&plan.name);
        let staying = resource.plans.iter().filter(stay).map(|plan| plan.name.clone()).collect();
        let due = self.due();
        let reasons = Reasons::of(rollout.is_some(), losses.keys().cloned(), &conditions);
        let wrong_params = |plan: &Plan, params: &Value| wrong_params(plan, params);
        let annotations = &instance["metadata"]["annotations"];
        let strangers = self.plans.strangers.iter().map(|run| run.name.clone());
        let occupied = self.plans.occupied.iter().cloned().chain(strangers).collect();
        let situation = Situation {
            plans: &resource.plans,
            runs: &self.plans.runs,
            instance: self.ctx.origin.name(),
            occupied: &occupied,
            deleting: self.ctx.snapshot.is_deleting(),
            skip_cleanup: annotations[names::SKIP_CLEANUP] == "true",
            namespace_terminating: self.is_namespace_terminating(),
            has_memory: self.plans.state.object.is_some(),
            paused: self.is_paused,
            active: self.plans.state.memory.active.as_deref(),
            number: self.plans.state.memory.number,
            newest: self.past.current.compared(),
            origins: &self.past.stored(),
            rollout,
            is_read: &|id| self.is_read(id),
            losses: losses.into_iter().collect(),
            conditions,
            staying,
            due,
            wrong_params: &wrong_params,
            is_refused: &|subject| self.state.refused_run(subject, self.now).is_some(),
            protection: &self.plans.protection,
            now: self.plans.now,
        };
        let agenda = plan::agenda(&situation);
        self.fail_misnamed();
        self.fail_strangers();
        self.restore_altered();
        self.carry_out(agenda);
        self.report(&reasons);
    }

    /// Ends the runs that name the instance by another resource.
    fn fail_misnamed(&mut self) {
        for run in self.plans.misnamed.iter().filter(|run| !run.is_final()) {
            let message = format!("spec.of.resource is not {}", self.instance.of.resource);
            let status = plan::RunStatus {
                phase: Phase::Failed,
                reason: "InvalidInstance".to_owned(),
                message,
                finished_at: Some(self.plans.now.to_string()),
                ..plan::RunStatus::default()
            };
            self.outcome.actions.push(RunAction::store(run, &status, Vec::new()));
        }
    }

    /// Restores the states of ended runs that somebody has altered or deleted.
    fn restore_altered(&mut self) {
        for run in self.plans.runs.iter().filter(|run| run.known == Known::Altered && !run.deleting) {
            if let Some(status) = &run.status {
                self.outcome.actions.push(RunAction::store(run, status, Vec::new()));
            }
        }
    }

    /// Ends the runs that were started before and that the memory of the instance does not name.
    fn fail_strangers(&mut self) {
        for run in self.plans.strangers.iter().filter(|run| !run.is_final()) {
            let status = if run.spec.plan == RECOVER {
                unneeded(run, self.plans.now)
            } else {
                run.state_lost(self.plans.now)
            };
            self.outcome.actions.push(RunAction::store(run, &status, Vec::new()));
        }
    }

    /// Carries out what the rules between runs demand.
    fn carry_out(&mut self, agenda: Agenda) {
        self.outcome.wake = [self.outcome.wake, agenda.wake].into_iter().flatten().min();
        self.outcome.cleanup = agenda.cleanup;
        for (name, why) in &agenda.waiting {
            if let Some(run) = self.run(name) {
                self.waits_at(run, "", why);
            }
        }
        for write in &agenda.refused {
            self.report_refused(write);
        }
        let mut repeating = agenda.repeating;
        repeating.sort_by_key(|repeating| repeating.is_in_vain);
        self.outcome.findings.extend(repeating.into_iter().map(Finding::Repeating));
        // A write may change the rest: after the first one the runs are decided again.
        if let Some(write) = agenda.writes.first() {
            self.write(write);
        } else {
            for (name, directive) in &agenda.active {
                if let Some(run) = self.run(name) {
                    self.advance(run, directive);
                }
            }
        }
        self.hold_refused();
        self.remember_stored();
        self.show();
        self.outcome.actions.extend(self.plans.in_the_way(&self.ctx.snapshot.observed));
        self.hold_refused();
        if self.outcome.actions.is_empty() {
            self.tidy();
        }
        self.prune();
    }

    /// Leaves out what the API server has refused a moment ago.
    fn hold_refused(&mut self) {
        let again = hold(&mut self.outcome.actions, (self.state, self.now));
        self.outcome.wake = [self.outcome.wake, again].into_iter().flatten().min();
    }

    /// Adds to the memory what the actions are about to store. If a run goes on, the same write does both;
    /// the end of a run is added afterwards, because its `PlanRun` is written first.
    fn remember_stored(&mut self) {
        if self.remember_inner() {
            return;
        }
        let current = &self.past.current;
        if let [RunAction::Store { run, status, memory, .. }] = &mut self.outcome.actions[..]
            && let Some(known) = self.plans.runs.iter().find(|known| known.uid == run.uid)
            && known.known == Known::Yes
            && known.phase() == Phase::Running
            && status["phase"] == "Running"
            && let Ok(next) = plan::RunStatus::deserialize(&**status)
        {
            let absorbed = self.plans.absorbed(&[(&run.uid, &next)], current);
            *memory = absorbed.map(|absorbed| Box::new(self.plans.state_write(&absorbed)));
            return;
        }
        let stored = |action: &RunAction| match action {
            RunAction::Store { run, status, .. } => {
                Some((run.uid.clone(), plan::RunStatus::deserialize(&**status).ok()?))
            }
            _ => None,
        };
        let inner = |action: &'_ RunAction| match action {
            RunAction::If { then, .. } => stored(then),
            action => stored(action),
        };
        let next: Vec<(String, plan::RunStatus)> = self.outcome.actions.iter().filter_map(inner).collect();
        if next.is_empty() {
            return;
        }
        let next: Vec<(&str, &plan::RunStatus)> =
            next.iter().map(|(uid, status)| (uid.as_str(), status)).collect();
        if let Some(memory) = self.plans.absorbed(&next, current) {
            self.outcome.actions.push(self.plans.remember(&memory));
        }
    }

    /// Shows people, in the PlanRuns, the states that only the memory has: those of quick steps are never
    /// shown.
    fn show(&mut self) {
        for run in self.plans.runs.iter().filter(|run| run.is_behind) {
            let shown = self.outcome.actions.iter().any(|action| match action {
                RunAction::Store { run: stored, .. } => stored.uid == run.uid,
                _ => false,
            });
            if shown {
                continue;
            }
            let elapsed = self.plans.elapsed.get(&run.uid).copied().unwrap_or_default();
            if elapsed < SHOWN_AFTER && !self.is_paused {
                let rest = SHOWN_AFTER.saturating_sub(elapsed);
                self.outcome.wake = Some(self.outcome.wake.map_or(rest, |known| known.min(rest)));
            } else if let Some(status) = &run.status {
                let mut shown = status.to_json();
                if let Some(message) = self.messages.remove(&run.name) {
                    shown["message"] = message.into();
                }
                self.outcome.actions.push(RunAction::Show(reference(run), Box::new(shown)));
            }
        }
    }

    fn run(&self, name: &str) -> Option<&'a PlanRun> {
        self.plans.runs.iter().find(|run| run.name == name)
    }

    /// The members that active runs have changed and still await.
    fn awaited(&mut self) -> Vec<Member> {
        let (mut awaited, mut progresses) = (Vec::new(), HashMap::new());
        for run in self.past.history.active().filter(|run| run.is_taken() && !self.has_no_revision(run)) {
            let progress = self.progress(run, &Directive::Continue);
            awaited.extend(progress.awaited.iter().cloned());
            progresses.insert(&*run.name, progress);
        }
        self.progresses = progresses;
        awaited
    }

    fn write(&mut self, write: &RunWrite) {
        let current = &self.past.current;
        match write {
            RunWrite::Create(new) => {
                let body = self.new_run(new);
                self.outcome.actions.push(RunAction::Create(RunObject::PlanRun, Box::new(body)));
            }
            RunWrite::Take { run } => {
                if let Some(run) = self.run(run) {
                    let mut finalizers = run.finalizers.clone();
                    if !run.has_finalizer() {
                        finalizers.push(RUN_FINALIZER.to_owned());
                    }
                    let patch =
                        json!({"metadata": {"annotations": {TAKEN: run.uid}, "finalizers": finalizers}});
                    self.outcome.actions.push(RunAction::Change(
                        RunObject::PlanRun,
                        reference(run),
                        Box::new(patch),
                    ));
                }
            }
            RunWrite::Register { run, exclusive } => {
                if let Some(run) = self.run(run) {
                    let memory = &self.plans.state.memory;
                    let digest = || {
                        let known = memory.origin_digest(&current.name).map(str::to_owned);
                        known.unwrap_or_else(|| plan::content_digest(&current.data()))
                    };
                    let is_retry = run.spec.retry_of.is_some();
                    let origin = (!is_retry).then(|| (current.name.as_str(), digest()));
                    let memory = memory.with_run(run, *exclusive, origin);
                    self.outcome.actions.push(self.plans.remember(&memory));
                }
            }
            RunWrite::StartInner(new) => {
                let started = self.start_inner(new);
                self.outcome.actions.push(started);
            }
            RunWrite::EndGone { run, status } => {
                if let Some(run) = self.run(run) {
                    let memory = self.plans.state.memory.with_gone(&run.uid, (**status).clone());
                    let then = Box::new(self.plans.remember(&memory));
                    let mut object = reference(run);
                    object.namespace.clone_from(&self.plans.namespace);
                    self.outcome.actions.push(RunAction::If { guard: Guard::RunIsGone(object), then });
                }
            }
            RunWrite::Status { run, status } => {
                let Some(run) = self.run(run) else { return };
                let is_stored = |name: &String| {
                    self.plans.origins.iter().any(|origin| origin["metadata"]["name"] == name.as_str())
                };
                if status.origin.as_ref() == Some(&current.name) && !is_stored(&current.name) {
                    let number = u64::try_from(self.plans.origins.len()).unwrap_or_default() + 1;
                    let body = self.instance.revision(&current.name, &current.data(), number);
                    self.outcome.actions.push(RunAction::Create(RunObject::Origin, Box::new(body)));
                }
                self.outcome.actions.push(RunAction::store(run, status, Vec::new()));
            }
        }
    }

    fn new_run(&self, new: &NewRun) -> Value {
        let at = new.scheduled_at.map(|at| (SCHEDULED_AT, at.to_string()));
        let annotations: Vec<(&str, String)> = at.into_iter().collect();
        let mut body = self.instance.plan_run(&new.name, &new.plan, new.cause, &annotations);
        if let Some(retry_of) = &new.retry_of {
            body["spec"]["retryOf"] = retry_of.as_str().into();
        }
        body
    }

    /// Whether the revision of a run cannot be loaded.
    fn has_no_revision(&self, run: &PlanRun) -> bool {
        self.beside.get(&run.name).is_some_and(Option::is_none)
    }

    fn advance(&mut self, run: &PlanRun, directive: &Directive) {
        if self.has_no_revision(run) {
            if *directive != Directive::Continue {
                return self.outcome.actions.extend(self.abandoned(run));
            }
            let revision = run.status.as_ref().and_then(|status| status.revision.clone()).unwrap_or_default();
            let package = self.plans.package(&revision, self.ctx.origin);
            let why = package.err().and_then(|why| Some(why.reason()?.to_owned())).unwrap_or_default();
            let run = Some(run.name.clone());
            return self.outcome.findings.push(Finding::RevisionMissing { revision, run, why });
        }
        // With the placeholder in place of a secret a step would send a wrong request.
        if *directive == Directive::Continue
            && let Some(message) = self.run_view(run).unread_secrets()
        {
            self.outcome.waits = true;
            return self.waits_at(run, "", &message);
        }
        let known = self.progresses.remove(&*run.name).filter(|_| *directive == Directive::Continue);
        let mut progress = known.unwrap_or_else(|| self.progress(run, directive));
        let before = self.outcome.actions.len();
        let mut actions = progress.actions(run).into_iter();
        if matches!(directive, Directive::Settle(ending) if ending.phase == Phase::Superseded) {
            // An outdated instance may lack the very change that the run rolls out. If the guard does not
            // hold, the actions behind it are not carried out either.
            if let Some(first) = actions.next() {
                self.outcome.actions.push(RunAction::If { guard: Guard::IsCurrent, then: Box::new(first) });
            }
        }
        self.outcome.actions.extend(actions);
        if !progress.waiting.is_empty() {
            self.outcome.waits = true;
            self.messages.insert(run.name.clone(), progress.message());
        }
        let refused = |action: &RunAction| {
            let (error, _) = self.state.refused_run(&action.subject()?, self.now)?;
            Some(match action {
                RunAction::Create(sort, body) => {
                    let (kind, name) =
                        (sort.kind().kind, body["metadata"]["name"].as_str().unwrap_or_default());
                    format!("{kind} {name} cannot be created: {error}")
                }
                _ => format!("what it writes is refused: {error}"),
            })
        };
        if let Some(message) = self.outcome.actions[before..].iter().find_map(refused) {
            self.messages.insert(run.name.clone(), message.clone());
            self.waits_at(run, "", &message);
        }
        for waiting in &progress.waiting {
            self.waits_at(run, &waiting.step, &waiting.message);
        }
        self.outcome.permits.extend(progress.permits);
        self.outcome.wake = [self.outcome.wake, progress.wake].into_iter().flatten().min();
        let objects = run.status.iter().flat_map(|status| &status.steps).flat_map(|step| &step.objects);
        let named: Vec<&str> = objects.map(|object| object.name.as_str()).collect();
        let view = self.run_view(run);
        let is_own = |name: &str| {
            named.contains(&name) && matches!(plan::ClusterView::job(&view, name), JobState::Found(_))
        };
        let unread = self.plans.unread_jobs(is_own);
        self.outcome.actions.extend(unread);
    }

    fn waits_at(&mut self, run: &PlanRun, step: &str, message: &str) {
        let affects_ready = self.affects_ready(run);
        let (run, step, message) = (run.name.clone(), step.to_owned(), message.to_owned());
        self.outcome.findings.push(Finding::RunWaits { run, step, message, affects_ready });
    }

    /// Whether the instance is not Ready while a run is active or waits. During a rollout the instance is not
    /// yet what its spec says.
    fn affects_ready(&self, run: &PlanRun) -> bool {
        let plans = &self.origin_of(run).1.resource.plans;
        let plan = plans.iter().find(|plan| plan.name == run.spec.plan);
        matches!(run.cause(), Cause::Rollout | Cause::Cleanup)
            || plan.map_or_else(|| plan::is_exclusive(run, plans), |plan| plan.affects_ready)
    }

    fn progress(&self, run: &PlanRun, directive: &Directive) -> Progress {
        let plans = &self.origin_of(run).1.resource.plans;
        self.in_world(run, |world| plan::advance(run, plans, world, directive))
    }

    fn run_view<'s>(&'s self, run: &'s PlanRun) -> RunView<'s> {
        RunView {
            ctx: self.ctx,
            target: self.target,
            plans: self.plans,
            instance: &self.instance,
            run,
            is_rollout: run.cause() == Cause::Rollout,
            state: self.state,
            wants: &self.wants,
        }
    }

    /// The origin that the steps of a run read, and its position.
    fn origin_of(&self, run: &PlanRun) -> (usize, Origin<'a>) {
        match self.beside.get(&run.name) {
            Some(Some(position)) => (*position, self.ctx.origins.at(*position)),
            _ => (NEWEST, self.ctx.origin),
        }
    }

    /// The budget of the steps of a run in this decision. If it is exceeded a step fails, and nothing else of
    /// the instance stops.
    fn budget_of(&self, run: &PlanRun) -> Arc<Budget> {
        let mut budgets = self.budgets.borrow_mut();
        let new = || Arc::new(Budget::of_run(self.ctx.snapshot.limits));
        Arc::clone(budgets.entry(run.name.clone()).or_insert_with(new))
    }

    fn in_world<T>(&self, run: &PlanRun, f: impl FnOnce(&World<'_>) -> T) -> T {
        let view = self.run_view(run);
        let (position, origin) = self.origin_of(run);
        f(&World {
            engine: &origin.package.engine,
            scope: &self.target.scope_at(position).with_budget(self.budget_of(run)),
            record: &self.record,
            instance: &self.instance,
            reach: self.ctx.reach_of(origin),
            cluster: &view,
            has_observations: !self.target.refs.polls.is_empty(),
            paused: self.is_paused,
            namespace_terminating: self.is_namespace_terminating(),
            protection: &self.plans.protection,
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
