//! A run as it is stored: a `PlanRun` object. While it is active, its state is in the status of the object and in the memory of the
//! instance; the one that was stored last counts.

use std::collections::BTreeMap;
use std::slice;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::member::Member;
use super::step_state::StepState;
use super::stored_number::{self, HIGHEST, is_zero};
use crate::{names, printable};

/// Annotation of a `PlanRun`: the uid of the object when it was taken for execution. A run that carries it and that the memory
/// of its instance does not name never runs.
pub const TAKEN: &str = "operetta.dev/taken";
/// Finalizer of a `PlanRun` while it is active: deleting it cancels the run, and what it has in flight is settled first.
pub const RUN_FINALIZER: &str = "operetta.dev/run";
/// Why parameters were left out: a field beside `spec`, which no object of the API server has.
pub(super) const LEFT_OUT: &str = "paramsLeftOut";
/// Annotation of a `PlanRun`: what started it, a [`Cause`]. The manager sets it when it creates the run.
pub const CAUSE: &str = "operetta.dev/cause";
/// Annotation of a `PlanRun`: the time that a schedule has set for it.
pub const SCHEDULED_AT: &str = "operetta.dev/scheduled-at";
/// Annotation of a `PlanRun`: `"true"` if the manager or the CLI has created it, so that it may be pruned.
pub const PRUNABLE: &str = "operetta.dev/prunable";

/// The built-in plan that deletes one child with `deletionPolicy: Ask`. No plan of a package has a slash in its name.
pub const DELETE_CHILD: &str = "operetta.dev/delete-child";

/// The built-in plan that asks how to go on with an instance whose memory is lost.
pub const RECOVER: &str = "operetta.dev/recover";
/// The name of the plan with the implied trigger `deleted`.
pub const CLEANUP: &str = "cleanup";

/// The most bytes of one output.
pub const MAX_OUTPUT: usize = 4 << 10;
/// The most bytes of all outputs of a run.
pub const MAX_OUTPUTS: usize = 64 << 10;
/// The most bytes of the record of an instance.
pub const MAX_RECORD: usize = 32 << 10;
/// The most bytes of a message.
pub(super) const MAX_MESSAGE: usize = 1 << 10;

/// A `PlanRun`.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanRun {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its uid.
    pub uid: String,
    /// Its version, for preconditions.
    pub resource_version: String,
    /// `creationTimestamp`: RFC 3339 in UTC, so that texts compare as times do.
    pub created: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The uids of its owners: the garbage collector deletes it with them.
    pub owners: Vec<String>,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// What the memory of its instance says of it.
    pub known: Known,
    /// Whether only the memory has it: no `PlanRun` can be created in a namespace that is being deleted.
    pub is_inner: bool,
    /// Whether its state is that of the memory, and its object has an older one.
    pub is_behind: bool,
    /// Whether the memory says that it, or one that it retries, has recorded facts.
    pub has_recorded: bool,
    /// Whether it has ended and its steps are gone, or are not those with which it ended.
    pub has_unknown_steps: bool,
    /// What the run is requested to do.
    pub spec: RunSpec,
    /// Its state; `None` until a manager has seen it.
    pub status: Option<RunStatus>,
    /// Why its parameters are not known, so that it cannot start: see [`super::bound`].
    pub left_out: Option<String>,
}

/// What the memory of an instance says of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Known {
    /// The memory does not name it: it is a new request.
    #[default]
    No,
    /// The memory names it: it has begun, or is about to.
    Yes,
    /// The memory names it, and the status of its object was deleted while it was active.
    Wiped,
    /// The memory says that it has ended, and its object says otherwise.
    Altered,
    /// The memory names it, and its object is gone.
    Gone,
}

/// The spec of a `PlanRun`: what is requested.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunSpec {
    /// The instance.
    pub of: Of,
    /// The plan; for a rollout the first of its plans.
    pub plan: String,
    /// Its parameters.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub params: Value,
    /// The name of a failed run that is resumed at its failed step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
    /// Whether it is to be cancelled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
    /// Who asks for it, as the admission policy has checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// Answers to its approve steps; entries are only ever added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
}

/// An instance, as a `PlanRun` names it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Of {
    /// `group/version`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// The plural of its kind, for the admission policy.
    pub resource: String,
    /// Its name.
    pub name: String,
}

/// An entry of `spec.approvals` as it was seen first. A user cannot set its time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeenApproval {
    /// The user who answers.
    pub by: String,
    /// When the manager saw it first.
    pub at: String,
    /// Why it never counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<String>,
}

/// The answer of a person to an approve step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Approval {
    /// The path of the step.
    pub step: String,
    /// The answer.
    pub verdict: ApprovalDecision,
    /// The user who answers.
    pub by: String,
    /// For an approval that another run was given: the question that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// For an approval that another run was given: groups, in one of which the API server has found the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// The answer to an approve step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApprovalDecision {
    /// The user rejects.
    #[default]
    Reject,
    /// The user approves.
    Approve,
}

/// The phase of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The run waits for its turn.
    #[default]
    Pending,
    /// The run is active.
    Running,
    /// A run that takes precedence has interrupted it. A request resumes, a rollout is decided again.
    Interrupted,
    /// All steps have succeeded.
    Succeeded,
    /// A step has failed, or the run could not start.
    Failed,
    /// A person has cancelled it, or its instance is being deleted.
    Cancelled,
    /// A newer run takes its place.
    Superseded,
}

impl Phase {
    /// Whether a run that has ended so can be resumed by another.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Failed | Self::Cancelled)
    }

    /// Whether a run in this phase never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::Superseded)
    }
}

/// What follows the path of a step that has failed in the paths of the plan for its failure.
pub(super) const ON_FAILURE: &str = "/onFailure/";

/// What starts a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// A person, or another program.
    #[default]
    Request,
    /// A change of the instance, of its package or of what it reads.
    Rollout,
    /// A condition of a trigger.
    Condition,
    /// A lost child.
    Loss,
    /// A point in time.
    Schedule,
    /// The deletion of the instance.
    Cleanup,
    /// The deletion of a child that waits for approval.
    Deletion,
}

impl Cause {
    /// The text of the cause.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "Request",
            Self::Rollout => "Rollout",
            Self::Condition => "Condition",
            Self::Loss => "Loss",
            Self::Schedule => "Schedule",
            Self::Cleanup => "Cleanup",
            Self::Deletion => "Deletion",
        }
    }

    /// The cause with that text.
    pub fn parse(text: &str) -> Option<Self> {
        use Cause::{Cleanup, Condition, Deletion, Loss, Request, Rollout, Schedule};
        let all = [Request, Rollout, Condition, Loss, Schedule, Cleanup, Deletion];
        all.into_iter().find(|cause| cause.as_str() == text)
    }
}

/// The state of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunStatus {
    /// The phase of the run.
    pub phase: Phase,
    /// The reason, one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message, a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What has started it.
    pub cause: Cause,
    /// The digest of what was requested when the run was admitted; `None` if it has ended, or an earlier version has admitted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_digest: Option<String>,
    /// The uid of the first run that this one retries, or its own. Names of Jobs derive from it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// What idempotency keys derive from: of a rollout that repeats one which has not succeeded the key of that one, else the
    /// id. Empty if it is the id.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Its plans, in the order in which they run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<String>,
    /// The name of the `ControllerRevision` of the origin that it renders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The revision of the package that it runs with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Whether it has gone on after an interruption or a failure. What other runs have rolled out meanwhile stays: its steps
    /// read its origin, and children have their own or that of the instance as it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub continued: bool,
    /// Whether it changes children, as the revision that it began with says; `None` for a run that has not
    /// begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<bool>,
    /// Whether a run that takes precedence may interrupt it, as that revision says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interruptible: Option<bool>,
    /// Whether a run that takes precedence may interrupt it at its current steps, if they say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_interruptible: Option<bool>,
    /// When it started first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// For how long it had been running at the last transition.
    #[serde(with = "stored_number")]
    pub used_milliseconds: u64,
    /// How often its state has been stored. Of the states in the `PlanRun` and in the memory the one with the higher number counts.
    #[serde(with = "stored_number", skip_serializing_if = "is_zero")]
    pub sequence: u64,
    /// How many runs of its plan with its cause went before it in a row: see [`super::Repeating`].
    #[serde(skip_serializing_if = "is_zero")]
    pub repeats: u32,
    /// Whether it lets all other runs go first, because it is one of many in a row.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub yields: bool,
    /// The children whose loss has started it. They count as lost until it has started, whatever the steps of other runs do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Member>,
    /// The steps that it has reached, in the order in which it reached them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepState>,
    /// The children that its steps have come to apply, recorded before they are applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<Member>,
    /// The members of `applied` that have never existed, as far as is known: their object was not there when they
    /// were recorded, nor at any transition since. A member that has never existed is not lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncreated: Vec<Member>,
    /// The children that its steps have deleted and not applied since, recorded before they are deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<Member>,
    /// The facts that its steps have recorded.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub record: BTreeMap<String, RecordedFact>,
    /// The entries of `spec.approvals`, in the same order, as they were seen first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<SeenApproval>,
    /// Approvals that a run which this one replaces was given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// The number of `spec.approvals` when it was interrupted while it only waited for approval: it goes on only after
    /// another one, or while no other run is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<usize>,
}

/// One recorded fact.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordedFact {
    /// Its value.
    pub value: Value,
    /// Of two values of one fact, the one with the higher number counts.
    #[serde(with = "stored_number")]
    pub sequence: u64,
}

impl RunSpec {
    /// The plans of a run with this status, in the order in which they run; the requested one while the status lists none.
    pub fn plans<'r>(&'r self, status: Option<&'r RunStatus>) -> &'r [String] {
        match status {
            Some(status) if !status.plans.is_empty() => &status.plans,
            _ => slice::from_ref(&self.plan),
        }
    }

    /// A digest of what is requested. Answers are added later, and so is a cancellation.
    pub(in crate::plan) fn digest(&self) -> String {
        let Self { of, plan, params, retry_of, requested_by, cancel: _, approvals: _ } = self;
        names::value_hash(&json!([of, plan, params, retry_of, requested_by]), 16)
    }
}

impl PlanRun {
    /// Reads the object of a `PlanRun`.
    ///
    /// # Errors
    ///
    /// Says which part of the object cannot be read.
    pub fn parse(object: &Value) -> Result<Self, String> {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let annotations = metadata["annotations"].as_object().into_iter().flatten();
        let annotations = annotations
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect();
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
        let part = |name: &str, error: &serde_json::Error| format!("{name} of the PlanRun: {error}");
        let status = match object.get("status") {
            Some(Value::Object(status)) if !status.is_empty() => {
                Some(RunStatus::deserialize(&object["status"]).map_err(|error| part("status", &error))?)
            }
            _ => None,
        };
        Ok(Self {
            name: text("name"),
            namespace: metadata["namespace"].as_str().map(str::to_owned),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            created: text("creationTimestamp"),
            annotations,
            deleting: !metadata["deletionTimestamp"].is_null(),
            owners: owners.filter_map(|owner| owner["uid"].as_str().map(str::to_owned)).collect(),
            finalizers: finalizers.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            known: Known::No,
            is_inner: false,
            is_behind: false,
            has_recorded: false,
            has_unknown_steps: false,
            spec: RunSpec::deserialize(&object["spec"]).map_err(|error| part("spec", &error))?,
            status,
            left_out: object[LEFT_OUT].as_str().map(str::to_owned),
        })
    }

    /// Its plans, in the order in which they run.
    pub fn plans(&self) -> &[String] {
        self.spec.plans(self.status.as_ref())
    }

    /// The phase of the run; Pending without a status.
    pub fn phase(&self) -> Phase {
        self.status.as_ref().map(|status| status.phase).unwrap_or_default()
    }

    /// Whether it has ended.
    pub fn is_final(&self) -> bool {
        self.phase().is_final()
    }

    /// The current steps that ask for approval.
    pub fn questions(&self) -> Vec<&StepState> {
        let steps = self.status.iter().flat_map(|status| &status.steps);
        let open = |step: &&StepState| !step.phase.is_final() && step.asked.is_some();
        if self.is_final() { Vec::new() } else { steps.filter(open).collect() }
    }

    /// What has started it: as its status says, or the annotation of a run that the manager has created.
    pub fn cause(&self) -> Cause {
        let annotated = || self.annotations.get(CAUSE).and_then(|text| Cause::parse(text));
        self.status.as_ref().map(|status| status.cause).or_else(annotated).unwrap_or_default()
    }

    /// Whether a schedule has set its time and it has not begun: the memory does not name it.
    pub fn is_new_of_schedule(&self) -> bool {
        self.known == Known::No && self.cause() == Cause::Schedule
    }

    /// Whether it is a rollout that has started.
    pub fn is_rollout(&self) -> bool {
        self.status.as_ref().is_some_and(|status| {
            status.cause == Cause::Rollout && status.origin.is_some() && status.phase != Phase::Pending
        })
    }

    /// Whether it is a rollout that has succeeded.
    pub fn has_rolled_out(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.cause == Cause::Rollout && status.phase == Phase::Succeeded)
    }

    /// Whether it is marked as one that may be active.
    pub fn is_taken(&self) -> bool {
        self.is_inner || self.taken() == Some(self.uid.as_str()) && self.has_finalizer()
    }

    /// Whether deleting it waits for the run to end.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|name| name == RUN_FINALIZER)
    }

    /// Whether the `PlanRun` object exists.
    pub fn has_object(&self) -> bool {
        self.known != Known::Gone && !self.is_inner
    }

    /// Whether it is active.
    pub fn is_active(&self) -> bool {
        self.phase() == Phase::Running && self.known != Known::Gone
    }

    /// The uid that it was taken with.
    pub fn taken(&self) -> Option<&str> {
        self.annotations.get(TAKEN).map(String::as_str)
    }

    /// The number at the end of a name `<instance>-<n>`, if it has one that can be counted on from.
    pub fn number(&self) -> Option<u64> {
        let number = self.name.strip_prefix(&self.spec.of.name)?.strip_prefix('-')?.parse().ok();
        // Users choose the names of the runs that they request.
        number.filter(|number| *number <= HIGHEST)
    }
}

impl RunStatus {
    /// The status as JSON.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Whether it says what another does, however often each was stored.
    pub fn says_same(&self, other: &Self) -> bool {
        *self == Self { sequence: self.sequence, ..other.clone() }
    }

    /// The state of the step with that path, if it is reached.
    pub fn step(&self, path: &str) -> Option<&StepState> {
        self.steps.iter().find(|step| step.path == path)
    }

    /// Whether a member that its steps have come to apply has existed since.
    pub fn has_created(&self, member: &Member) -> bool {
        self.applied.contains(member) && !self.uncreated.contains(member)
    }

    /// What idempotency keys derive from.
    pub fn key(&self) -> &str {
        if self.key.is_empty() { &self.id } else { &self.key }
    }

    /// Whether a step has come to apply that member.
    pub fn has_applied(&self, member: &Member) -> bool {
        self.applied.contains(member)
    }

    /// Whether a step has deleted that member, and none has applied it since.
    pub fn has_deleted(&self, member: &Member) -> bool {
        self.deleted.contains(member)
    }
}

/// A message as it stands in a status: on one line, without unsafe characters, and of at most [`MAX_MESSAGE`] bytes.
pub(super) fn short(text: &str) -> String {
    let text = printable::sentence(text);
    if text.len() <= MAX_MESSAGE {
        return text.into_owned();
    }
    let mut end = MAX_MESSAGE - 3;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}
