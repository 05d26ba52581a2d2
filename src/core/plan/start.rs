//! How a run begins: as a new one, or at the failed step of another.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::advance::REMAINING;
use super::member::Member;
use super::run::{Approval, Cause, ON_FAILURE, Phase, PlanRun, RunStatus};
use super::step_state::{StepPhase, StepState};

/// What a run starts with.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// What has started it.
    pub cause: Cause,
    /// Its plans.
    pub plans: Vec<String>,
    /// The name of the origin that it renders, which is stored before the state is.
    pub origin: Option<String>,
    /// The revision of the package.
    pub revision: Option<String>,
    /// Whether it changes children.
    pub exclusive: Option<bool>,
    /// Whether a run that takes precedence may interrupt it.
    pub interruptible: Option<bool>,
    /// The children whose loss has started it.
    pub lost: Vec<Member>,
    /// Approvals that the runs which it replaces were given.
    pub approvals: Vec<Approval>,
    /// How many runs went before it in a row, and whether it lets all others go first.
    pub in_row: (u32, bool),
    /// For a rollout that repeats one which has not succeeded: the key of that one.
    pub key: Option<String>,
}

/// The state of a run that starts now.
pub fn started(run: &PlanRun, start: Start, now: Timestamp) -> RunStatus {
    RunStatus {
        phase: Phase::Running,
        cause: start.cause,
        id: run.uid.clone(),
        key: start.key.unwrap_or_default(),
        plans: start.plans,
        origin: start.origin,
        revision: start.revision,
        exclusive: start.exclusive,
        interruptible: start.interruptible,
        started_at: Some(now.to_string()),
        repeats: start.in_row.0,
        yields: start.in_row.1,
        lost: start.lost,
        approvals: start.approvals,
        ..RunStatus::default()
    }
}

/// The state of a run that resumes a failed one at its failed step: with its plans, origin, revision, Jobs and keys.
pub fn retried(failed: &PlanRun, now: Timestamp) -> RunStatus {
    let mut status = RunStatus {
        approvals: answered(failed),
        phase: Phase::Running,
        reason: String::new(),
        message: String::new(),
        started_at: Some(now.to_string()),
        finished_at: None,
        record: BTreeMap::new(),
        answers: Vec::new(),
        parked: None,
        ..failed.status.clone().unwrap_or_default()
    };
    status.continued = status.cause != Cause::Rollout;
    let used = status.used_milliseconds;
    for step in &mut status.steps {
        let is_handler = step.path.contains(ON_FAILURE);
        if is_handler || !step.phase.is_final() || (step.phase == StepPhase::Failed && !step.ignored) {
            reset(step, used, is_handler);
        }
    }
    status
}

/// The state of a run that goes on after an interruption.
pub fn resumed(status: &RunStatus) -> RunStatus {
    RunStatus {
        phase: Phase::Running,
        reason: String::new(),
        message: String::new(),
        parked: None,
        continued: status.cause != Cause::Rollout,
        ..status.clone()
    }
}

/// Resets a step that runs again. The attempts keep their numbers: the names of Jobs derive from them.
fn reset(step: &mut StepState, used: u64, is_handler: bool) {
    let keeps_items = !is_handler && step.items.is_some();
    *step = StepState {
        path: std::mem::take(&mut step.path),
        phase: if keeps_items || step.path == REMAINING { StepPhase::Running } else { StepPhase::Pending },
        started_at: step.started_at.take(),
        since_milliseconds: used,
        attempt: step.attempt,
        objects: std::mem::take(&mut step.objects),
        items: step.items.take().filter(|_| keeps_items),
        members: std::mem::take(&mut step.members),
        params: step.params.take().filter(|_| !is_handler),
        applied_before: step.applied_before,
        ..StepState::default()
    };
}

/// The approvals of a run, each with the question that it answers.
pub fn answered(run: &PlanRun) -> Vec<Approval> {
    let Some(status) = &run.status else { return Vec::new() };
    let own = status.counted(run).filter_map(|(index, answer)| {
        let step = status.step(&answer.step)?;
        step.asked.filter(|asked| index >= *asked)?;
        let (message, groups) = (Some(step.message.clone()), step.groups.clone());
        Some(Approval { message, groups, ..answer.clone() })
    });
    status.approvals.iter().cloned().chain(own).collect()
}

impl RunStatus {
    /// Whether all of its current steps wait for approvals, and the run waits for nothing else.
    pub fn only_asks(&self) -> bool {
        let open: Vec<&StepState> = self.steps.iter().filter(|step| !step.phase.is_final()).collect();
        let contains = |outer: &StepState, inner: &StepState| {
            let rest = inner.path.strip_prefix(&outer.path);
            rest.is_some_and(|rest| rest.starts_with(['/', '[']))
        };
        let mut leaves =
            open.iter().filter(|step| !open.iter().any(|inner| contains(step, inner))).peekable();
        leaves.peek().is_some() && leaves.all(|step| step.asked.is_some())
    }
}
