//! The result of a decision about a run.

use std::time::Duration;

use super::action::{CallKey, RunAction};
use super::member::Member;
use super::request::Request;
use super::run::{Phase, PlanRun, RunStatus, short};

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
    pub intents: Vec<(CallKey, Request)>,
    /// What may be written now; everything else of the run waits.
    pub permits: Vec<Permit>,
    /// What is to be done. All of it may be repeated.
    pub effects: Vec<RunAction>,
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
    /// The actions that the decision about the run comes to.
    pub(crate) fn actions(&mut self, run: &PlanRun) -> Vec<RunAction> {
        match &self.status {
            Some(status) => vec![RunAction::store(run, status, std::mem::take(&mut self.intents))],
            None => std::mem::take(&mut self.effects),
        }
    }

    /// What the status of the run says about its current steps.
    pub fn message(&self) -> String {
        let first = self.waiting.first();
        first.map(|first| short(&format!("{}: {}", first.step, first.message))).unwrap_or_default()
    }
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
    /// The step deletes the member without a grace period.
    ForceDelete,
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
