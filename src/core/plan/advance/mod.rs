//! The state machine of one run: from its stored state and the inputs to its next state.
//!
//! The steps are walked from the first. A step that is done costs a look at its state; the walk stops at the steps that
//! wait. All transitions that need no effect in between are made in one walk, and written together. An effect is made only
//! if the state that was stored intends it.

mod approve;
mod attempts;
mod calls;
mod children;
mod each;
mod jobs;
mod other;
mod repeat;
mod scope;
mod simple;
mod step;
mod store;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) use jobs::{START_LIMIT, STARTING};
pub(crate) use step::SECRET;

use super::action::{CallKey, RunAction, RunObject};
use super::answers::note_answers;
use super::inputs::{JobState, RunInputs};
use super::member::Member;
use super::progress::{Directive, Permit, Progress, Waiting};
use super::request::Request;
use super::run::{Cause, Phase, PlanRun, RecordedFact, RunStatus, short};
use super::step_state::{StepPhase, StepState};
use crate::package::plan::{CleanupFailure, Plan, Step, Strategy};
use crate::template::Scope;

/// The path of the implicit last step of a rollout. No step of a package can have this name.
pub const REMAINING: &str = "(remaining)";
/// The reason of a step that waits for people.
const APPROVAL: &str = "ApprovalNeeded";
/// How deep plans may call plans.
const MAX_DEPTH: usize = 16;
/// How often at most, for each timeout, the time that a step has waited is stored, so that it survives the manager.
const CHECKPOINTS: u32 = 8;
/// The least time between a stored state and the next one that only stores how long a step has waited.
const CHECKPOINT: Duration = Duration::from_secs(30);
/// For how long a run must not change before people see it: before its `PlanRun` shows what only the memory
/// has, and before the own message of a step that waits is shown.
pub const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// How long a finished Job stays once its result is recorded.
const TTL_SECONDS: u64 = 600;
/// The most steps that the state of a run can hold.
pub const MAX_STEPS: usize = 3_000;

/// The next state of an active run, what its current steps permit, and what is to be done.
///
/// `plans` are all plans of the resource, of the run's revision.
pub fn advance(run: &PlanRun, plans: &[Plan], inputs: &RunInputs<'_>, directive: &Directive) -> Progress {
    let Some(stored) = run.status.as_ref().filter(|status| status.phase == Phase::Running) else {
        return Progress::default();
    };
    let mut advancer = Advancer::new(run, stored, plans, inputs, directive);
    note_answers(run, &mut advancer.status, inputs.protection, inputs.now);
    let flow = match directive {
        Directive::Abandon(_) => {
            advancer.delete_jobs();
            Flow::Waiting
        }
        Directive::Continue | Directive::Settle(_) => advancer.run(),
    };
    advancer.finish(flow, directive)
}

/// The result of a walk over a step, or over several.
#[derive(Debug, Clone, PartialEq)]
enum Flow {
    /// The step has ended: what follows may start.
    Done,
    /// The step goes on later.
    Waiting,
    /// The step has failed, and with it the phase or plan that it is part of.
    Failed(Failure),
}

/// Why a step, or an attempt, has failed.
#[derive(Debug, Clone, PartialEq)]
struct Failure {
    /// The path of the step.
    step: String,
    reason: String,
    message: String,
    /// Whether another attempt may succeed.
    retryable: bool,
    /// How long the server asks to wait.
    retry_after: Option<Duration>,
    /// Whether it may have been carried out nevertheless.
    unanswered: bool,
}

impl Failure {
    /// A failure that another attempt would not change.
    fn new(step: &str, reason: &str, message: impl Into<String>) -> Self {
        Self {
            step: step.to_owned(),
            reason: reason.to_owned(),
            message: short(&message.into()),
            retryable: false,
            retry_after: None,
            unanswered: false,
        }
    }

    /// A failure that another attempt may overcome.
    fn retryable(step: &str, reason: &str, message: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::new(step, reason, message) }
    }
}

/// What the steps of one list share, whether they run side by side or one after another.
#[derive(Clone)]
struct At<'p> {
    /// The prefix of their paths: `grow[0]/`.
    prefix: String,
    /// The variables, with the items of the loops around.
    scope: Scope,
    /// The plan that they belong to.
    plan: &'p Plan,
    /// The prefix of the paths of this plan: outputs of steps outside are not seen.
    root: String,
    /// `run.params`.
    params: Value,
    /// How many plans have called each other to reach this one.
    depth: usize,
}

#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
struct Advancer<'a> {
    run: &'a PlanRun,
    stored: &'a RunStatus,
    plans: &'a [Plan],
    inputs: &'a RunInputs<'a>,
    /// The members that are applied according to the stored state.
    applied: HashSet<&'a Member>,
    /// For how long the run has been running.
    used: Duration,
    /// Whether nothing starts.
    hold: bool,
    /// Whether running Jobs are deleted, and unanswered requests repeated.
    settle: bool,
    /// Whether the run is cancelled, and with it what it has started elsewhere.
    cancel: bool,
    status: RunStatus,
    index: HashMap<String, usize>,
    /// Facts that this walk has recorded.
    fresh: BTreeMap<String, Value>,
    /// Whether any step has outputs.
    has_outputs: bool,
    /// Whether the run may be interrupted at the steps that wait, where they say so.
    interruptible: Option<bool>,
    /// How long after another state the time that steps have waited is stored.
    checkpoint: Option<Duration>,
    progress: Progress,
}

impl<'a> Advancer<'a> {
    fn new(
        run: &'a PlanRun,
        stored: &'a RunStatus,
        plans: &'a [Plan],
        inputs: &'a RunInputs<'a>,
        directive: &Directive,
    ) -> Self {
        let index = stored.steps.iter().enumerate().map(|(at, step)| (step.path.clone(), at)).collect();
        let settle = matches!(directive, Directive::Settle(_));
        let cancel = match directive {
            Directive::Settle(ending) | Directive::Abandon(ending) => ending.phase == Phase::Cancelled,
            Directive::Continue => false,
        };
        Self {
            run,
            stored,
            plans,
            inputs,
            applied: stored.applied.iter().collect(),
            used: Duration::from_millis(stored.used_milliseconds) + inputs.elapsed,
            hold: settle || inputs.paused,
            settle,
            cancel,
            status: stored.clone(),
            index,
            fresh: BTreeMap::new(),
            has_outputs: stored.steps.iter().any(|step| !step.outputs.is_empty() || step.items.is_some()),
            interruptible: None,
            checkpoint: None,
            progress: Progress::default(),
        }
    }

    /// Walks the plans one after another, then what no step has applied.
    fn run(&mut self) -> Flow {
        let names = self.stored.plans.clone();
        for name in &names {
            let prefix = if names.len() > 1 { format!("{name}/") } else { String::new() };
            let params = self.run.spec.params.clone();
            match self.plan(name, prefix, params, 0) {
                Flow::Done => {}
                other => return other,
            }
        }
        if self.stored.cause == Cause::Rollout { self.remaining() } else { Flow::Done }
    }

    /// Walks the steps of a plan.
    fn plan(&mut self, name: &str, prefix: String, params: Value, depth: usize) -> Flow {
        let Some(plan) = self.plans.iter().find(|plan| plan.name == name) else {
            // A kind without `deploy` has an empty one.
            if depth == 0 && self.stored.cause == Cause::Rollout {
                return Flow::Done;
            }
            let message = format!("the package has no plan `{name}`");
            return Flow::Failed(Failure::new(prefix.trim_end_matches('/'), "PlanMissing", message));
        };
        if depth > MAX_DEPTH {
            let message = format!("plans call each other more than {MAX_DEPTH} deep");
            return Flow::Failed(Failure::new(prefix.trim_end_matches('/'), "PlansTooDeep", message));
        }
        let scope = self.inputs.scope.clone();
        let at = At { root: prefix.clone(), prefix, scope, plan, params, depth };
        let flow = self.steps(plan.strategy, &plan.steps, &at);
        if flow == Flow::Waiting && depth > 0 && !plan.interruptible {
            self.interruptible = self.interruptible.or(Some(false));
        }
        flow
    }

    /// Walks steps side by side or one after another.
    fn steps<'p>(&mut self, strategy: Strategy, steps: &'p [Step], at: &At<'p>) -> Flow {
        match strategy {
            Strategy::Serial => {
                for step in steps {
                    match self.step(step, at) {
                        Flow::Done => {}
                        other => return other,
                    }
                }
                Flow::Done
            }
            Strategy::Parallel => {
                let paths: Vec<String> =
                    steps.iter().map(|step| format!("{}{}", at.prefix, step.name)).collect();
                self.side_by_side(&paths, usize::MAX, |advancer, index| advancer.step(&steps[index], at))
            }
        }
    }

    /// Walks several steps, at most `most` of them at once. After a failure the others are settled.
    fn side_by_side(
        &mut self,
        paths: &[String],
        most: usize,
        mut walk_one: impl FnMut(&mut Self, usize) -> Flow,
    ) -> Flow {
        // The first step that has failed before, unless its failure does not count.
        let failed = (0..paths.len()).find_map(|index| {
            self.state(&paths[index]).filter(|state| state.phase == StepPhase::Failed && !state.ignored)?;
            match walk_one(self, index) {
                Flow::Failed(failure) => Some(failure),
                Flow::Done | Flow::Waiting => None,
            }
        });
        let (hold, settle) = (self.hold, self.settle);
        let in_flight = std::mem::take(&mut self.progress.in_flight);
        if failed.is_some() {
            (self.hold, self.settle) = (true, true);
        }
        let (mut waiting, mut newly_failed) = (0, None);
        for index in 0..paths.len() {
            if waiting >= most {
                break;
            }
            match walk_one(self, index) {
                Flow::Done => {}
                Flow::Waiting => waiting += 1,
                Flow::Failed(failure) => {
                    newly_failed.get_or_insert(failure);
                    (self.hold, self.settle) = (true, true);
                }
            }
        }
        let still_in_flight = self.progress.in_flight;
        self.progress.in_flight |= in_flight;
        (self.hold, self.settle) = (hold, settle);
        match (failed, newly_failed) {
            (Some(failure), _) | (None, Some(failure)) if !still_in_flight => Flow::Failed(failure),
            (None, None) if waiting == 0 => Flow::Done,
            _ => Flow::Waiting,
        }
    }

    /// The outcome of the walk.
    fn finish(mut self, flow: Flow, directive: &Directive) -> Progress {
        let end = |status: &mut RunStatus, phase, reason: &str, message: &str| {
            status.phase = phase;
            reason.clone_into(&mut status.reason);
            status.message = short(message);
            if phase.is_final() {
                status.finished_at = Some(self.inputs.now.to_string());
                status.request_digest = None;
            }
        };
        match (flow, directive) {
            (Flow::Done, _) => end(&mut self.status, Phase::Succeeded, "", ""),
            (Flow::Failed(failure), _) => {
                let message = if failure.step.is_empty() {
                    failure.message.clone()
                } else {
                    format!("step `{}`: {}", failure.step, failure.message)
                };
                end(&mut self.status, Phase::Failed, &failure.reason, &message);
            }
            (Flow::Waiting, Directive::Settle(ending) | Directive::Abandon(ending))
                if !self.progress.in_flight =>
            {
                // A run that only waits for approval lets the others go first until it is answered.
                let parks = ending.phase == Phase::Interrupted && self.status.only_asks();
                self.status.parked = parks.then_some(self.run.spec.approvals.len());
                end(&mut self.status, ending.phase, ending.reason, &ending.message);
            }
            (Flow::Waiting, _) => {}
        }
        self.progress.awaits_approval = !self.progress.in_flight
            && !self.progress.waiting.is_empty()
            && self.progress.waiting.iter().all(|waiting| waiting.reason == APPROVAL);
        self.status.step_interruptible = self.interruptible.filter(|_| !self.status.phase.is_final());
        let is_due = |after: Duration| self.inputs.elapsed >= after;
        if self.status == *self.stored && !self.checkpoint.is_some_and(is_due) {
            if let Some(after) = self.checkpoint {
                self.wake_after(after.saturating_sub(self.inputs.elapsed));
            }
            let releases = releases(self.stored, self.inputs);
            self.progress.effects.extend(releases);
            self.progress.intents.clear();
        } else {
            self.status.used_milliseconds = millis(self.used);
            self.note_uncreated();
            if self.status.phase == Phase::Running {
                self.status.reason.clear();
                self.status.message = self.progress.message();
            }
            self.progress.permits.clear();
            self.progress.effects.clear();
            self.progress.status = Some(self.status);
        }
        self.progress
    }

    /// Keeps account of which recorded members do not exist yet.
    fn note_uncreated(&mut self) {
        let was_uncreated: HashSet<&Member> = self.stored.uncreated.iter().collect();
        let may_be_new =
            |member: &&Member| !self.applied.contains(*member) || was_uncreated.contains(*member);
        let applied = self.status.applied.iter().filter(may_be_new);
        let uncreated = applied.filter(|member| !self.inputs.cluster.member(member).exists);
        self.status.uncreated = uncreated.cloned().collect();
    }

    /// Deletes the Jobs that run, without rendering anything.
    fn delete_jobs(&mut self) {
        for step in self.stored.steps.iter().filter(|step| !step.phase.is_final()) {
            let Some(object) = step.objects.last().filter(|_| step.in_flight) else { continue };
            match self.inputs.cluster.job(&object.name) {
                JobState::Unknown(why) => {
                    self.wait_in_flight(&step.path, "JobUnknown", why);
                }
                JobState::Found(job)
                    if job.result.is_none()
                        && object.uid.as_ref().is_none_or(|uid| *uid == job.object.uid) =>
                {
                    if !job.terminating {
                        self.progress.effects.push(RunAction::Delete(RunObject::Job, job.object));
                    }
                    let message = format!("Job {} is being deleted", object.name);
                    self.wait_in_flight(&step.path, "DeletingJob", message);
                }
                JobState::Absent | JobState::Foreign | JobState::Found(_) => {}
            }
        }
    }

    fn state(&self, path: &str) -> Option<&StepState> {
        self.index.get(path).and_then(|index| self.status.steps.get(*index))
    }

    /// The state of a step, which is added if the step was not reached before.
    fn state_mut(&mut self, path: &str) -> &mut StepState {
        let next = self.status.steps.len();
        let index = *self.index.entry(path.to_owned()).or_insert(next);
        if index == next {
            self.status.steps.push(StepState {
                path: path.to_owned(),
                since_milliseconds: millis(self.used),
                started_at: Some(self.inputs.now.to_string()),
                ..StepState::default()
            });
        }
        &mut self.status.steps[index]
    }

    fn wait(&mut self, step: &str, reason: &'static str, message: impl Into<String>) {
        let message = short(&message.into());
        self.progress.waiting.push(Waiting { step: step.to_owned(), reason, message });
    }

    fn wait_in_flight(&mut self, step: &str, reason: &'static str, message: impl Into<String>) {
        self.progress.in_flight = true;
        self.wait(step, reason, message);
    }

    /// Decides again after that time, at the latest.
    fn wake_after(&mut self, wait: Duration) {
        if self.inputs.paused {
            return;
        }
        let wait = wait.max(Duration::from_millis(1));
        self.progress.wake = Some(self.progress.wake.map_or(wait, |known| known.min(wait)));
    }

    /// Decides again when the run has been running for this time in total.
    fn wake_at(&mut self, used: Duration) {
        self.wake_after(used.saturating_sub(self.used));
    }

    /// Decides again when a step that waits since `since` has waited for `limit`, and stores from time to
    /// time how long it has waited.
    fn await_end(&mut self, since: Duration, limit: Duration) {
        self.wake_at(since + limit);
        let after = CHECKPOINT.max(limit / CHECKPOINTS);
        self.checkpoint = Some(self.checkpoint.map_or(after, |known| known.min(after)));
    }

    fn permit(&mut self, permit: Permit) {
        if !self.progress.permits.contains(&permit) {
            self.progress.permits.push(permit);
        }
    }

    fn call(&mut self, step: &str, attempt: u32, request: Request) {
        let call = CallKey::new(&self.run.uid, step, attempt);
        self.progress.effects.push(RunAction::Call(call, Box::new(request)));
    }

    fn intend(&mut self, step: &str, attempt: u32, request: Request) {
        self.progress.intents.push((CallKey::new(&self.run.uid, step, attempt), request));
    }

    /// The record of the instance, with what this run has set.
    fn record(&self) -> BTreeMap<String, Value> {
        let mut all: BTreeMap<String, Value> =
            self.inputs.record.iter().map(|(key, fact)| (key.clone(), fact.value.clone())).collect();
        all.extend(self.fresh.clone());
        all
    }

    fn set_record(&mut self, key: &str, value: Value) {
        let known = self.inputs.record.values().chain(self.status.record.values());
        let sequence = known.map(|fact| fact.sequence).max().unwrap_or_default() + 1;
        self.fresh.insert(key.to_owned(), value.clone());
        self.status.record.insert(key.to_owned(), RecordedFact { value, sequence });
    }

    /// Whether failures of the run's cleanup hold the deletion: then its steps have no default timeout.
    fn holds_deletion(&self, plan: &Plan) -> bool {
        self.stored.cause == Cause::Cleanup
            && !self.inputs.namespace_terminating
            && plan.on_cleanup_failure != Some(CleanupFailure::Skip)
    }

    fn applied(&mut self, member: &Member) {
        self.status.deleted.retain(|deleted| deleted != member);
        if !self.status.applied.contains(member) {
            self.status.applied.push(member.clone());
        }
    }
}

/// The Jobs of a run whose results are recorded, and that have no TTL yet.
pub fn releases(status: &RunStatus, inputs: &RunInputs<'_>) -> Vec<RunAction> {
    let mut effects = Vec::new();
    for step in &status.steps {
        let settled =
            step.objects.len().saturating_sub(usize::from(step.in_flight && !status.phase.is_final()));
        for object in &step.objects[..settled] {
            let Some(uid) = &object.uid else { continue };
            if let JobState::Found(job) = inputs.cluster.job(&object.name)
                && job.object.uid == *uid
                && job.result.is_some()
                && !job.has_ttl
                && !job.terminating
            {
                let patch = json!({"spec": {"ttlSecondsAfterFinished": TTL_SECONDS}});
                effects.push(RunAction::Change(RunObject::Job, job.object, Box::new(patch)));
            }
        }
    }
    effects
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
