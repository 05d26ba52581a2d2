//! An instance whose memory is lost: nothing is run or deleted until a person says how to go on. The question is a `PlanRun` of
//! the built-in plan [`RECOVER`], which only users with the verb `approve` on the instance may answer.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::history::StoredOrigin;
use crate::children::model::{Action, Decision, Origin, PlanSnapshot, Snapshot, Status, Verdict, typed_key};
use crate::children::names;
use crate::plan::{
    self, Cause, Instance, Known, Member, Memory, Phase, PlanRun, RECOVER, RunAction, RunObject, RunStatus,
    StepPhase, StepState, content_digest, note_answers, reference,
};

/// The step that asks.
const ASK: &str = "approve";
/// The question that the person answers.
const QUESTION: &str = "Take the children as they are, as if the present spec had been rolled out (approve), or start as a new \
                        instance (reject)? The facts that plans recorded are lost either way.";

/// The decision while the memory is lost, for that reason.
pub(super) fn decide(snapshot: &Snapshot, plans: &PlanSnapshot, current: Origin<'_>, why: &str) -> Decision {
    if plans.state.is_newer {
        let message =
            format!("{why}: upgrade Operetta; until then nothing of the instance is run, changed or deleted");
        let verdict = Verdict::Stalled { reason: "StateNewer".into(), message };
        let status = Some(Status::unseen(&snapshot.instance, &verdict));
        return Decision { status, ..Decision::idle(verdict) };
    }
    let name = run_name(current);
    let is_it = |run: &&PlanRun| run.spec.plan == RECOVER && !run.is_final() && !run.deleting;
    let run = plans.strangers.iter().find(is_it);
    let message = format!(
        "{why}; until then nothing is run, changed or deleted. To go on without it: `operetta plan approve {name} -n {}` takes the \
         children as they are, with --reject it starts as a new instance",
        plans.namespace
    );
    let verdict = Verdict::Stalled { reason: "StateMissing".into(), message };
    let status = Some(Status::unseen(&snapshot.instance, &verdict));
    let is_paused = snapshot.instance["metadata"]["annotations"][names::PAUSED] == "true";
    let actions = if is_paused { Vec::new() } else { next(snapshot, plans, current, (run, name)) };
    let actions = actions.into_iter().map(|action| Action::Run(Box::new(action))).collect();
    Decision { actions, status, ..Decision::idle(verdict) }
}

/// One question for each object of the memory that was lost.
fn run_name(current: Origin<'_>) -> String {
    format!("{}-recover-{}", names::label_value(current.name()), names::short_hash(current.uid(), 5))
}

fn next(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    current: Origin<'_>,
    (run, name): (Option<&PlanRun>, String),
) -> Vec<RunAction> {
    let instance = plans.instance(current);
    let Some(run) = run else {
        // A question that has ended still has the name.
        let ended = plans.strangers.iter().find(|run| run.name == name);
        if let Some(ended) = ended {
            return vec![RunAction::Delete(RunObject::PlanRun, reference(ended))];
        }
        let body = instance.plan_run(&name, RECOVER, Cause::Request, &[]);
        return vec![RunAction::Create(RunObject::PlanRun, Box::new(body))];
    };
    let Some(status) = &run.status else {
        if plans.protection.is_awaited() && !run.spec.approvals.is_empty() {
            return Vec::new();
        }
        let mut first = asked(plans, run);
        note_answers(run, &mut first, &plans.protection, plans.now);
        return vec![RunAction::store(run, &first, Vec::new())];
    };
    let mut answers = status.counted(run).map(|(_, answer)| answer);
    let Some(answer) = answers.find(|answer| answer.step == ASK && !answer.is_by_account()) else {
        return Vec::new();
    };
    let ended = answered(status, &answer.by, plans);
    match answer.verdict {
        plan::ApprovalDecision::Approve => {
            let origin = StoredOrigin::new(&current, BTreeMap::new(), &plans.state.memory);
            let memory = as_it_is(snapshot, plans, &instance, (run, &origin));
            let is_stored = |known: &Value| known["metadata"]["name"] == *origin.name;
            let revision = || Box::new(instance.revision(&origin.name, &origin.data(), 1));
            let create = (!plans.origins.iter().any(is_stored))
                .then(|| RunAction::Create(RunObject::Origin, revision()));
            let rest = [plans.remember(&memory), RunAction::store(run, &ended, Vec::new())];
            create.into_iter().chain(rest).collect()
        }
        plan::ApprovalDecision::Reject => {
            let memory = Memory::new(instance.of, current.uid());
            vec![plans.remember(&memory), RunAction::store(run, &ended, Vec::new())]
        }
    }
}

fn asked(plans: &PlanSnapshot, run: &PlanRun) -> RunStatus {
    let now = Some(plans.now.to_string());
    RunStatus {
        phase: Phase::Running,
        id: run.uid.clone(),
        plans: vec![RECOVER.to_owned()],
        started_at: now.clone(),
        steps: vec![StepState {
            path: ASK.to_owned(),
            phase: StepPhase::Running,
            message: QUESTION.to_owned(),
            asked: Some(0),
            started_at: now,
            ..StepState::default()
        }],
        ..RunStatus::default()
    }
}

fn answered(status: &RunStatus, by: &str, plans: &PlanSnapshot) -> RunStatus {
    let now = Some(plans.now.to_string());
    let mut status = status.clone();
    for step in &mut status.steps {
        step.phase = StepPhase::Succeeded;
        step.finished_at.clone_from(&now);
    }
    RunStatus { phase: Phase::Succeeded, message: format!("answered by {by}"), finished_at: now, ..status }
}

/// The memory as if the present spec had been rolled out to the children that exist.
fn as_it_is(
    snapshot: &Snapshot,
    plans: &PlanSnapshot,
    instance: &Instance,
    (run, origin): (&PlanRun, &StoredOrigin),
) -> Memory {
    let now = Some(plans.now.to_string());
    let live = snapshot.observed.iter().filter(|observed| observed.is_made_by_us() && !observed.terminating);
    let member = |child: &str, key: Option<&str>| Member::new(child, key.map(typed_key));
    let status = RunStatus {
        phase: Phase::Succeeded,
        cause: Cause::Rollout,
        id: run.uid.clone(),
        origin: Some(origin.name.clone()),
        revision: Some(origin.revision.clone()),
        exclusive: Some(true),
        started_at: now.clone(),
        finished_at: now,
        applied: live.map(|observed| member(&observed.child, observed.key.as_deref())).collect(),
        ..RunStatus::default()
    };
    let known = PlanRun { known: Known::Yes, ..run.clone() };
    let memory = Memory::new(instance.of.clone(), &instance.uid).with_run(&known, false, None);
    let digest = content_digest(&origin.data());
    let digest_of = |name: &str| (name == origin.name).then(|| digest.clone());
    let rolled_out = memory.absorb([(&known, &status)], &digest_of);
    rolled_out.unwrap_or(memory)
}

/// The state of a question that need not be answered any more.
pub(super) fn unneeded(run: &PlanRun, now: Timestamp) -> RunStatus {
    let status = run.status.clone().unwrap_or_default();
    let message = "the state of the instance is there".to_owned();
    RunStatus { phase: Phase::Superseded, message, finished_at: Some(now.to_string()), ..status }
}
