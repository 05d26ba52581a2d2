//! The runs of one decision: which are active and which begin, and what children know of them.

pub(super) mod abandon;
mod carry_out;
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

use serde_json::{Value, json};

use super::lost::{LostItem, losses, lost};
use super::past::{Ordered, Past};
use super::recover::unneeded;
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
    self, Cause, Cleanup, Conditions, Directive, Instance, Known, Member, Permit, Phase, PlanRun, Progress,
    RECOVER, RecordedFact, RunAction, RunInputs, Selected, Situation,
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

    /// Whether the revision of a run cannot be loaded.
    fn has_no_revision(&self, run: &PlanRun) -> bool {
        self.beside.get(&run.name).is_some_and(Option::is_none)
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
        self.with_inputs(run, |inputs| plan::advance(run, plans, inputs, directive))
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

    fn with_inputs<T>(&self, run: &PlanRun, f: impl FnOnce(&RunInputs<'_>) -> T) -> T {
        let view = self.run_view(run);
        let (position, origin) = self.origin_of(run);
        f(&RunInputs {
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
