//! The result of a decision about a run.

use std::time::Duration;

use serde_json::{Map, Value};

use super::request::{ExecRequest, HttpRequest};
use super::run::{Member, Of, Phase, RunStatus, short};
use crate::api::Gvk;

/// What to do with an active run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Directive {
    /// The run goes on.
    #[default]
    Continue,
    /// Nothing starts, and what is in flight is settled; then the run ends in this way.
    Settle(Ending),
    /// Nothing is rendered, and its Jobs are deleted; then the run ends in this way.
    Abandon(Ending),
}

/// How a run ends before its last step, or why it pauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Interrupted, Cancelled, Superseded or Failed.
    pub phase: Phase,
    /// The reason, one word.
    pub reason: &'static str,
    /// The message, a sentence.
    pub message: String,
}

/// The result of a decision about a run.
///
/// If `status` is set, it is written first, under the `resourceVersion` of the run, and there is nothing else to do:
/// `permits` and `effects` are empty. After a 409 the run is decided again.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The new state, if it has changed.
    pub status: Option<RunStatus>,
    /// The requests that the new state intends. Once it is stored, [`super::ClusterView::call`] returns them as
    /// [`super::CallState::Intended`], so that exactly what was hashed is sent.
    pub intents: Vec<Intent>,
    /// What may be written now; everything else of the run waits.
    pub permits: Vec<Permit>,
    /// What is to be done. All of it may be repeated.
    pub effects: Vec<Effect>,
    /// What its current steps wait for, in their order.
    pub waiting: Vec<Waiting>,
    /// The members that its current steps have changed or deleted and still await: a condition that reads them does not
    /// count.
    pub awaited: Vec<Member>,
    /// Whether an effect is in flight, so that its outcome is not known.
    pub in_flight: bool,
    /// Whether it waits for approvals and for nothing else.
    pub awaits_approval: bool,
    /// When to decide again, if nothing happens before.
    pub wake: Option<Duration>,
}

impl Progress {
    /// What the status of the run says about its current steps.
    pub fn message(&self) -> String {
        let first = self.waiting.first();
        first.map(|first| short(&format!("{}: {}", first.step, first.message))).unwrap_or_default()
    }
}

/// A request that the stored state is about to intend.
#[derive(Debug, Clone)]
pub struct Intent {
    /// The path of the step.
    pub step: String,
    /// The attempt.
    pub attempt: u32,
    /// The request.
    pub request: Request,
}

/// A member that a step may write now. Within one step, the graph of dependencies orders the writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The member.
    pub member: Member,
    /// Whether the step names this very member, by its key.
    pub is_named: bool,
    /// What may be done.
    pub verb: Verb,
    /// The path of the step.
    pub step: String,
}

/// What a step does to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// The step creates or changes the member.
    Apply,
    /// The step deletes the member.
    Delete,
}

/// What a step waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The path of the step.
    pub step: String,
    /// The reason, one word.
    pub reason: &'static str,
    /// The message, a sentence.
    pub message: String,
}

/// The request of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// A request to an HTTP server.
    Http(HttpRequest),
    /// A command in a container.
    Exec(ExecRequest),
    /// A patch of an object by the API server.
    Patch(PatchRequest),
}

/// A JSON merge patch of an object that is no child.
#[derive(Debug, Clone, PartialEq)]
pub struct PatchRequest {
    /// Its kind.
    pub gvk: Gvk,
    /// Its namespace, if its kind has one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The patch.
    pub merge: Value,
}

/// What is to be done for a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Sends a request. The answer is kept by (run, step, attempt) until the step has ended.
    Call {
        /// The path of the step.
        step: String,
        /// The attempt.
        attempt: u32,
        /// The request.
        request: Request,
    },
    /// Creates a Job. `AlreadyExists` is a success: the next decision looks at it.
    CreateJob {
        /// The path of the step.
        step: String,
        /// The attempt.
        attempt: u32,
        /// The Job, without the labels of the instance.
        job: Value,
    },
    /// Deletes a Job and its pods, with its uid as precondition.
    DeleteJob {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Sets the TTL of a Job whose result is recorded.
    ReleaseJob {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Creates a `PlanRun` of another instance.
    CreateRun {
        /// The path of the step.
        step: String,
        /// Its name.
        name: String,
        /// The instance; `resource` is empty.
        of: Of,
        /// The plan.
        plan: String,
        /// Its parameters.
        params: Value,
    },
    /// Cancels a `PlanRun` of another instance.
    CancelRun {
        /// The instance.
        of: Of,
        /// Its name.
        name: String,
    },
    /// Stores the secret outputs of a step in the Secret of the run.
    StoreSecrets {
        /// The path of the step.
        step: String,
        /// The outputs.
        values: Map<String, Value>,
    },
}
