//! What is done for the runs of an instance. Each action is one request, or one that runs beside the queue.

use std::fmt;

use serde_json::{Map, Value, json};

use super::crds::{INSTANCE_STATE, PLAN_RUN};
use super::ended::{Ended, ended};
use super::request::Request;
use super::run::{Of, PRUNABLE, Phase, PlanRun, RunStatus};
use crate::api::{ApiKind, ObjectRef};

/// The type of an object that belongs to runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunObject {
    /// A PlanRun, of the instance that its spec names.
    PlanRun,
    /// A ControllerRevision, of the instance whose uid is on its label.
    Origin,
    /// A Job of a step, of the instance whose uid is on its label.
    Job,
    /// The `InstanceState` of the instance that its spec names.
    State,
}

impl RunObject {
    /// All types.
    pub const ALL: [Self; 4] = [Self::PlanRun, Self::Origin, Self::Job, Self::State];

    /// The kind of such an object.
    pub fn kind(self) -> ApiKind {
        match self {
            Self::PlanRun => plan_run_kind(),
            Self::Origin => ApiKind::built_in("apps/v1", "ControllerRevision"),
            Self::Job => ApiKind::built_in("batch/v1", "Job"),
            Self::State => INSTANCE_STATE.api_kind(),
        }
    }
}

/// A reference to an object that exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion; empty if any will do.
    pub resource_version: String,
}

impl RunRef {
    /// The reference to this object.
    pub fn of(object: &Value) -> Self {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        Self {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }
    }
}

/// What a live read must show before something is done that cannot be undone: what watches have brought may be old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// The object with that uid is no child of the instance any more.
    IsGone(ObjectRef, String),
    /// The instance is the one that was decided about, of the same generation, and is being deleted only if it was then.
    IsCurrent,
    /// There is no PlanRun of that name and uid any more.
    RunIsGone(RunRef),
}

/// Identifies an attempt of a step of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallKey {
    /// The uid of the run.
    pub run: Box<str>,
    /// The path of the step.
    pub step: Box<str>,
    /// The attempt.
    pub attempt: u32,
}

impl CallKey {
    /// The key of an attempt.
    pub fn new(run: &str, step: &str, attempt: u32) -> Self {
        Self { run: run.into(), step: step.into(), attempt }
    }
}

/// The secret outputs of a step.
#[derive(Clone)]
pub struct SecretOutputs(pub Map<String, Value>);

impl fmt::Debug for SecretOutputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretOutputs")
    }
}

/// How a Job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// The Job has completed.
    Completed,
    /// The Job has failed, for the reason that its condition gives.
    Failed(String),
}

/// What is done for a run.
#[derive(Debug, Clone)]
pub enum RunAction {
    /// Create an object. If there is one of that name, it is read: the next decision sees it.
    Create(RunObject, Box<Value>),
    /// Store the state of a run, under the resourceVersion of the object that it goes to. After that, the requests are intended.
    Store {
        /// The run.
        run: RunRef,
        /// Its status.
        status: Box<Value>,
        /// The memory that holds the status, if it goes there and not to the `PlanRun`.
        memory: Option<Box<StateWrite>>,
        /// The requests that the status intends.
        intents: Vec<(CallKey, Request)>,
        /// Its Event.
        event: Option<RunEvent>,
        /// The plan, and what of it the status ends, for metrics.
        ended: (String, Vec<Ended>),
    },
    /// Another action, if a live read shows that it is right. If not, the next decision knows what was read.
    If {
        /// What must hold.
        guard: Guard,
        /// The action.
        then: Box<Self>,
    },
    /// Show in the `PlanRun` what the memory says of its run.
    Show(RunRef, Box<Value>),
    /// Write the memory of the instance.
    Remember(StateWrite),
    /// Change an object by a merge patch, under its resourceVersion.
    Change(RunObject, RunRef, Box<Value>),
    /// Set annotations of the instance; those without a value are removed.
    Annotate(Vec<(String, Option<String>)>),
    /// Delete exactly this object; a Job with its pods.
    Delete(RunObject, RunRef),
    /// Delete the memory of the instance, once the instance is gone.
    DeleteState(RunRef),
    /// Send a request, unless it is sent already. Its answer queues the instance, and is kept until the step has ended.
    Call(CallKey, Box<Request>),
    /// Read what a finished Job has left: the termination message of its pod, or the last lines of its log.
    ReadJob(RunRef, JobEnd),
    /// Store the secret outputs of a step in the Secret of its run.
    StoreSecrets {
        /// The step; the attempt is 0.
        step: CallKey,
        /// The outputs.
        values: SecretOutputs,
        /// The Secret with these outputs alone.
        secret: Box<Value>,
    },
    /// Add keys to the data of a Secret, under its resourceVersion. The values are encoded.
    StoreInChild {
        /// The step; the attempt is 0.
        step: CallKey,
        /// The Secret.
        secret: RunRef,
        /// The keys and their values.
        data: SecretOutputs,
    },
    /// Remove the data of this Secret, if there is one.
    EmptySecret(Box<Value>),
}

impl RunAction {
    /// Whether it writes the status of a run, or deletes its object.
    pub(crate) fn writes_status_of(&self, uid: &str) -> bool {
        match self {
            Self::If { then, .. } => then.writes_status_of(uid),
            Self::Store { memory: None, run, .. } | Self::Show(run, _) | Self::Delete(_, run) => {
                run.uid == uid
            }
            _ => false,
        }
    }

    /// Stores the next state of a run.
    pub(crate) fn store(run: &PlanRun, status: &RunStatus, intents: Vec<(CallKey, Request)>) -> Self {
        let status = &RunStatus { sequence: status.sequence + 1, ..status.clone() };
        Self::Store {
            run: reference(run),
            status: Box::new(status.to_json()),
            memory: None,
            intents,
            event: event(run, status),
            ended: (run.spec.plan.clone(), ended(run, status)),
        }
    }
}

/// A write of the memory of an instance, under the resourceVersion of its `InstanceState`, which is created
/// if there is none.
#[derive(Debug, Clone)]
pub struct StateWrite {
    /// The `InstanceState`.
    pub state: Option<RunRef>,
    /// The whole object.
    pub body: Box<Value>,
    /// The reason and the message of an Event about the write, if there is one.
    pub note: Option<(&'static str, &'static str)>,
}

/// An Event about a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEvent {
    /// Whether it is a warning.
    pub is_warning: bool,
    /// The reason of the Event, in camel case.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// The kind of PlanRuns.
pub fn plan_run_kind() -> ApiKind {
    PLAN_RUN.api_kind()
}

/// A PlanRun by which a person requests a run. Of `spec` all but the instance is given. The API server cuts a name that is too long.
pub fn run_request(of: &Of, namespace: &str, mut spec: Value) -> Value {
    let kind = plan_run_kind();
    spec["of"] = json!(of);
    if spec["params"].is_null()
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("params");
    }
    let name = format!("{}-{}-", of.name, spec["plan"].as_str().unwrap_or_default());
    json!({
        "apiVersion": kind.api_version(), "kind": kind.kind,
        "metadata": {"generateName": name, "namespace": namespace, "annotations": {PRUNABLE: "true"}},
        "spec": spec,
    })
}

/// The merge patch that appends an approval to a PlanRun, unless that has changed.
pub fn approval_patch(run: &Value, approval: &Value) -> Value {
    let mut approvals = run["spec"]["approvals"].as_array().cloned().unwrap_or_default();
    approvals.push(approval.clone());
    let metadata = &run["metadata"];
    json!({
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"approvals": approvals},
    })
}

/// The reference to the PlanRun of a run.
pub(crate) fn reference(run: &PlanRun) -> RunRef {
    RunRef {
        namespace: run.namespace.clone().unwrap_or_default(),
        name: run.name.clone(),
        uid: run.uid.clone(),
        resource_version: run.resource_version.clone(),
    }
}

/// The Event of a transition of a run; `None` if it has none.
fn event(run: &PlanRun, status: &RunStatus) -> Option<RunEvent> {
    let before = run.phase();
    let plans = run.spec.plans(Some(status)).join(", ");
    let (is_warning, reason, message) = match status.phase {
        phase if phase == before && run.status.is_some() => return None,
        Phase::Pending => return None,
        Phase::Running if before == Phase::Interrupted => (false, "RunResumed", "resumed".to_owned()),
        Phase::Running => {
            let lost: Vec<String> = status.lost.iter().map(ToString::to_string).collect();
            let what = if lost.is_empty() { String::new() } else { format!(" of {}", lost.join(", ")) };
            (false, "RunStarted", format!("started ({}{what})", status.cause.as_str().to_lowercase()))
        }
        Phase::Succeeded => (false, "RunSucceeded", "succeeded".to_owned()),
        Phase::Failed => (true, "RunFailed", format!("failed: {}: {}", status.reason, status.message)),
        Phase::Interrupted => (false, "RunInterrupted", format!("interrupted: {}", status.message)),
        Phase::Cancelled => (false, "RunCancelled", format!("cancelled: {}", status.message)),
        Phase::Superseded => (false, "RunSuperseded", format!("superseded: {}", status.message)),
    };
    Some(RunEvent { is_warning, reason, message: format!("run {} of plan {plans} {message}", run.name) })
}
