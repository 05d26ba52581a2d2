//! What a run sees of the cluster: values and one trait. The engine asks nothing else.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::action::{RunRef, SecretOutputs};
use super::instance::Instance;
use super::member::Member;
use super::request::{CallFailure, ExecReply, HttpReply, Pod, Request};
use super::run::{Of, Phase, RecordedFact};
use crate::reach::Reach;
use crate::template::{Engine, Scope};

/// What a run sees at one moment.
#[derive(Clone, Copy)]
pub struct RunInputs<'a> {
    /// The templates of the run's revision.
    pub engine: &'a Engine,
    /// The variables of expressions: all but `run` and `outputs`. `record` is the record of the instance.
    pub scope: &'a Scope,
    /// The record of the instance, see [`super::Memory::facts`].
    pub record: &'a std::collections::BTreeMap<String, RecordedFact>,
    /// The instance.
    pub instance: &'a Instance,
    /// How far what the run writes may reach.
    pub reach: Reach<'a>,
    /// Children, Jobs, and the answers to requests.
    pub cluster: &'a dyn ClusterView,
    /// Whether the scope has answers of observations. They were made before the effects that this state shows.
    pub has_observations: bool,
    /// Whether the instance is paused.
    pub paused: bool,
    /// Whether its namespace is being deleted: no object can be created there.
    pub namespace_terminating: bool,
    /// Whether the API server checks who answers.
    pub protection: &'a super::Protection,
    /// For how long this process has run the run since it saw its stored `usedMilliseconds` first, see [`super::Stopwatch`].
    pub elapsed: Duration,
    /// The time of day, for what people read.
    pub now: Timestamp,
}

/// What is observed of children, Jobs, other runs and requests.
pub trait ClusterView {
    /// The ids of all children, in the order of the graph.
    fn children(&self) -> Vec<String>;

    /// The ids of the children that a child depends on directly.
    fn dependencies(&self, child: &str) -> Vec<String>;

    /// The members of a child in the target of the run, in order: `[None]` for one without forEach, none if its `when` is
    /// false.
    ///
    /// # Errors
    ///
    /// The reason why they are unknown.
    fn target(&self, child: &str) -> Result<Vec<Option<Value>>, String>;

    /// The members of a child that a delete step means: those that are live, in any target, or were there.
    ///
    /// # Errors
    ///
    /// The reason why they are unknown.
    fn existing(&self, child: &str) -> Result<Vec<Option<Value>>, String>;

    /// Why it is not known whether values of a step are stored; `None` if it is known.
    fn unread(&self, step: &str) -> Option<String> {
        let _ = step;
        None
    }

    /// What is known of one member.
    fn member(&self, member: &Member) -> MemberState;

    /// The pod for a command: the pod itself, or a ready pod of a workload (with an ordinal: that one).
    ///
    /// # Errors
    ///
    /// The reason why there is no such pod now.
    fn pod(&self, wanted: &PodQuery<'_>) -> Result<Pod, String>;

    /// The Job of that name in the namespace of the instance's Jobs.
    fn job(&self, name: &str) -> JobState;

    /// The `PlanRun` of that name, of another instance.
    fn run(&self, of: &Of, name: &str) -> OtherRun;

    /// What is known of an attempt of a step of this run.
    fn call(&self, step: &str, attempt: u32) -> CallState<'_>;

    /// The Secret of a member; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// The reason why it is not known.
    fn secret(&self, member: &Member) -> Result<Option<LiveSecret>, String> {
        let _ = member;
        Ok(None)
    }

    /// Whether this process has written into a Secret what a step stores.
    fn has_stored(&self, step: &str) -> bool {
        let _ = step;
        false
    }

    /// The values of the secret outputs of a step, once they are stored: see [`super::RunAction::StoreSecrets`].
    fn secrets(&self, step: &str) -> Option<Map<String, Value>> {
        let _ = step;
        None
    }
}

/// A Secret that is a member of a child.
#[derive(Debug, Clone)]
pub struct LiveSecret {
    /// The object.
    pub object: RunRef,
    /// Its data, encoded.
    pub data: SecretOutputs,
}

/// What is known of one member of a child.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct MemberState {
    /// Whether its object exists, terminating or not.
    pub exists: bool,
    /// Whether the object is being deleted.
    pub terminating: bool,
    /// Whether the object is what an apply step of this run renders.
    pub current: bool,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether its object was deleted to be created again, and the new one does not exist yet.
    pub recreating: bool,
    /// Which unavailable member it waits for, if `maxUnavailable` lets no other become unavailable.
    pub waits_for_turn: Option<String>,
    /// Why it is not written, not ready, or not gone.
    pub message: Option<String>,
}

/// Which pod is wanted.
#[derive(Debug, Clone, Copy)]
pub struct PodQuery<'a> {
    /// Of another instance of the package: the ref that reads it, and its uid.
    pub of: Option<(&'a str, &'a str)>,
    /// The child.
    pub child: &'a str,
    /// The key of a member.
    pub key: Option<&'a Value>,
    /// Of a workload: the ordinal of the pod.
    pub ordinal: Option<u64>,
}

/// What is known of a Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// Nothing is known of the Job, for this reason.
    Unknown(String),
    /// No Job has this name.
    Absent,
    /// A Job has this name that the manager has not made for this step.
    Foreign,
    /// The Job exists.
    Found(Job),
}

/// A Job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// The object.
    pub object: RunRef,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// How it ended.
    pub result: Option<JobResult>,
    /// Why its pod does not run: `container work: ErrImagePull`.
    pub message: Option<String>,
    /// Whether its pod may still be starting. Later [`Job::message`] says why it does not run.
    pub is_starting: bool,
    /// How much longer its pod may take to start. `None` if its pod has started.
    pub start_left: Option<Duration>,
    /// Whether it has a `ttlSecondsAfterFinished`.
    pub has_ttl: bool,
}

/// How a Job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobResult {
    /// The Job has completed, and its pods are still being read.
    Reading,
    /// The Job has completed; with the termination message of its pod.
    Completed(Option<String>),
    /// The Job has failed; says why, with the last lines of its log.
    Failed(String),
}

/// What is known of a `PlanRun` of another instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherRun {
    /// Nothing is known of the run, for this reason.
    Unknown(String),
    /// No run has this name.
    Absent,
    /// A `PlanRun` has this name that the manager has not created for this instance.
    Foreign,
    /// The run exists.
    Found {
        /// The object.
        object: RunRef,
        /// Its phase.
        phase: Phase,
        /// The message of its status.
        message: String,
        /// The facts that it has recorded.
        recorded: Map<String, Value>,
    },
}

/// What is known of an attempt of a step.
#[derive(Debug, Clone, Copy)]
pub enum CallState<'a> {
    /// This process knows nothing of the request: an earlier process may have sent it.
    Unknown,
    /// This process has stored its intent and not sent the request yet.
    Intended(&'a Request),
    /// The request is sent, and not answered yet.
    InFlight,
    /// The request is answered.
    Answered(&'a Reply),
    /// The request failed, and has no answer. It is given if this process has sent it.
    Failed(&'a CallFailure, Option<&'a Request>),
}

/// The answer to a request of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The answer of an HTTP server.
    Http(HttpReply),
    /// The result of a command.
    Exec(ExecReply),
    /// The object is patched.
    Patched,
}
