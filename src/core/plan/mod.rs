//! Plans at run time: which plan a change selects, and the run as a state machine over values. Pure: time, children,
//! answers and stored runs come in as values; effects go out as values.
//!
//! # The interface
//!
//! - [`PlanRun::parse`] reads the stored runs of an instance. [`Memory`] is what is remembered of it: [`Memory::recall`] says
//!   which runs count, [`Memory::absorb`] takes in what active runs have stored, [`Memory::facts`] is the record.
//! - [`advance()`] moves one run: `advance(run, plans, inputs, directive) -> Progress`. The caller
//!   1. writes `progress.status`, if there is one, under the run's `resourceVersion`, keeps `progress.intents` once it is
//!      stored, and decides again;
//!   2. otherwise does `progress.effects`, lets `progress.permits` be written, shows `progress.waiting`, and decides again
//!      after `progress.wake` or when something has changed.
//! - [`RunInputs`] is what a run sees: the variables of expressions, the trait [`ClusterView`] for children, Jobs and answers.
//!   Answers are kept by (run, step, attempt) until the step has ended, see [`CallState`].
//! - [`Stopwatch`] measures `inputs.elapsed`.
//! - [`select()`] says which rollout a change of the instance needs: [`Change`] compares the newest [`ComparedOrigin`] with all in use.
//! - [`Conditions`] watches the conditions of triggers, [`Schedule`] says when a schedule is due.
//! - [`agenda`] applies the rules between the runs of an instance: `agenda(situation) -> Agenda` says which runs to advance
//!   with which [`Directive`], what to write (one write, then decide again), and how the cleanup of a deletion stands.
//! - [`history()`] is for the status of the instance, [`prunable`] for the `PlanRun`s that are kept.

mod action;
pub mod advance;
mod answers;
mod bounded;
mod condition;
pub mod crds;
mod ended;
pub(crate) mod eval;
mod expiry;
mod history;
mod inputs;
mod instance;
mod member;
mod memory;
mod missing;
mod names;
mod origin;
mod precedence;
mod progress;
mod protection;
pub(crate) mod render;
mod repeat;
pub mod request;
mod run;
mod schedule;
mod select;
mod start;
mod step_state;
mod stopwatch;
mod stored_number;
mod subject;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use action::reference;
pub use action::{
    CallKey, Guard, JobEnd, RunAction, RunEvent, RunObject, RunRef, SecretOutputs, StateWrite,
    approval_patch, plan_run_kind, run_request,
};
pub use advance::MAX_STEPS;
pub use advance::{REMAINING, SHOWN_AFTER, advance, releases};
pub use answers::note_answers;
pub use bounded::{MAX_WAITING_PARAMS, bound, too_large_params};
pub use condition::{ConditionState, Conditions, Noticed, Watch};
pub use ended::{Ended, ended};
pub use expiry::{first_end, pem};
pub use history::{Summary, history, prunable, sorted, start_time};
pub use inputs::{
    CallState, ClusterView, Job, JobResult, JobState, LiveSecret, MemberState, OtherRun, PodQuery, Reply,
    RunInputs,
};
pub use instance::Instance;
pub(crate) use instance::outputs_name;
pub use member::Member;
pub use memory::{Memory, Recalled, RememberedRun, content_digest, newer_format};
pub use missing::{Missing, Stray, stray};
pub use names::idempotency_key;
pub(crate) use names::keyed_digest;
pub use origin::{ComparedOrigin, is_other_digest};
pub use precedence::{Agenda, Cleanup, NewRun, RunWrite, Situation, agenda, is_exclusive, not_retryable};
pub use progress::{Directive, Ending, Permit, Progress, Verb, Waiting};
pub use protection::{Protection, SETTLE};
pub use repeat::Repeating;
pub use request::{PatchRequest, Pod, Request};
pub use run::{
    Approval, ApprovalDecision, CAUSE, CLEANUP, Cause, DELETE_CHILD, Known, MAX_OUTPUT, MAX_OUTPUTS,
    MAX_RECORD, Of, PRUNABLE, Phase, PlanRun, RECOVER, RUN_FINALIZER, RecordedFact, RunSpec, RunStatus,
    SCHEDULED_AT, SeenApproval, TAKEN,
};
pub use schedule::{Due, Schedule, last_scheduled, scheduled_name, scheduled_prefix};
pub use select::{Change, DEPLOY, Selected, has_rollouts, rollout_children, select};
pub use start::{Start, answered, resumed, retried, started};
pub use step_state::{AttemptObject, LoopItem, StepPhase, StepState};
pub use stopwatch::Stopwatch;
pub use subject::Subject;
