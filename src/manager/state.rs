//! What the manager remembers of an instance between its reconciles. Only [`InstanceState::record`] changes it.

use std::time::Duration;

use serde_json::Value;

use super::stopped::{Evaluate, Stopped};
use crate::api::{CallError, Class};
use crate::backoff::Backoff;
use crate::children::{self, ActionOutcome, ReconcileState, Refused, Snapshot, TargetChange};
use crate::plan;

/// How many decisions one reconcile makes. What is left to do then waits for the next reconcile.
pub(super) const MAX_DECISIONS: usize = 8;

/// How many decisions a step of a run needs at most, each of which ends with a write: the intent, the effect, the outcome.
const DECISIONS_A_STEP: usize = 4;

/// How many conflicts in a row are retried at once.
const FREE_CONFLICTS: u32 = 4;

/// How long until the next reconcile of an instance whose reconciles end with something left to do, and of one whose
/// writes conflict.
const INCOMPLETE: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(60));
const CONFLICTED: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(60));

/// How long until the status of an instance whose package is not active is written again. Another manager may have the
/// package active and write its own status.
const INACTIVE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// What the manager remembers of an instance. Losing it costs at most requests that change nothing.
#[derive(Debug, Default)]
pub(super) struct InstanceState {
    /// What decisions remember.
    pub(super) decisions: ReconcileState,
    /// The last Event about the verdict: reason and message. Each transition gets one.
    pub(super) last_event: Option<(String, String)>,
    /// The Event about children created in the reconcile that runs: its object and text. If the instance is Ready at
    /// once, the Event about that includes it.
    created_event: Option<(Value, String)>,
    /// A hash of the last status patch that changed nothing, and of the status before it. The server prunes or
    /// normalizes what the patch sets, and would do so again.
    pub(super) last_noop_patch: Option<String>,
    /// The part of the last status that the server has refused.
    pub(super) refused_status: Option<Refused>,
    /// Reconciles in a row in which a call failed that concerns the whole instance.
    call_failures: u32,
    /// Reconciles in a row that ended with something left to do.
    incomplete_reconciles: u32,
    /// Writes in a row that conflicted with those of others.
    conflict_retries: u32,
    /// The generation of the CRDs' schemas by which the server has refused or pruned something.
    schemas: u64,
    /// Whether the instance needs more than the small budget.
    pub(super) is_large: bool,
    /// Present if its last evaluation stopped at a limit.
    stopped: Option<Stopped>,
    /// Present if its package is not active: how often its status was written, and until when it is not written again.
    inactive_status: Option<(u32, Duration)>,
}

/// What happens in a reconcile, as far as it is remembered.
pub(super) enum Progress<'a> {
    /// The reconcile uses this generation of the CRDs' schemas.
    Schemas(u64),
    /// The small budget is not enough.
    ExceedsSmallBudget,
    /// A decision was made.
    Decided {
        /// Whether the small budget is enough.
        is_small: bool,
        /// Whether the evaluation stopped at a limit.
        has_stopped: bool,
        /// A hash of the input, if the evaluation stopped and the status reports the limit already.
        input: Option<u64>,
    },
    /// The whole target is applied.
    TargetAccepted,
    /// Nothing is left to do.
    NothingLeft(&'a Snapshot),
    /// Actions were executed.
    Acted(&'a Result<(), CallError>, &'a [ActionOutcome], Vec<TargetChange>),
    /// The reconcile made the last of its decisions.
    Incomplete,
    /// The status is up to date. No write was needed.
    StatusCurrent,
    /// The status was written. The value is a hash of the patch if that changed nothing.
    StatusWritten(Option<String>),
    /// The write of the status conflicted with another.
    StatusConflict,
    /// The server has refused some of the status.
    StatusRefused(Refused),
    /// The status of an instance was written while its package was not active.
    InactiveStatusWritten,
    /// The package is active, or the instance is being deleted.
    Active,
    /// Children were created, which no Event says yet.
    Created(Value, String),
    /// The last Event about the verdict; `None` if it need not be remembered.
    Event(Option<(String, String)>),
}

impl InstanceState {
    /// Whether forgetting it would change nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.last_event.is_none()
            && self.last_noop_patch.is_none()
            && self.refused_status.is_none()
            && self.call_failures == 0
            && self.incomplete_reconciles == 0
            && self.conflict_retries == 0
            && !self.is_large
            && self.stopped.is_none()
            && self.inactive_status.is_none()
            && self.decisions.is_empty()
    }

    /// Remembers what has happened.
    pub(super) fn record(&mut self, progress: Progress<'_>, now: Duration) {
        match progress {
            Progress::Schemas(schemas) if schemas == self.schemas => {}
            Progress::Schemas(schemas) => {
                self.schemas = schemas;
                self.decisions.record(&ActionOutcome::SchemasChanged, now);
                (self.last_noop_patch, self.refused_status) = (None, None);
            }
            Progress::ExceedsSmallBudget => self.is_large = true,
            Progress::Decided { is_small, has_stopped, input } => {
                self.is_large = !is_small;
                if has_stopped {
                    self.stopped.get_or_insert_default().note(input, now);
                } else {
                    self.stopped = None;
                }
            }
            Progress::TargetAccepted => self.decisions.record(&ActionOutcome::TargetAccepted, now),
            Progress::NothingLeft(snapshot) => {
                (self.incomplete_reconciles, self.call_failures) = (0, 0);
                if !self.decisions.is_empty() {
                    let objects = snapshot.observed.iter().chain(&snapshot.previous_children);
                    self.decisions.record(&ActionOutcome::Settled(objects.cloned().collect()), now);
                }
            }
            Progress::Acted(result, outcomes, changes) => {
                self.decisions.record_all(outcomes, changes, now);
                self.record_result(result, outcomes);
            }
            Progress::Incomplete => {
                self.incomplete_reconciles = self.incomplete_reconciles.saturating_add(1);
            }
            Progress::StatusCurrent => self.conflict_retries = 0,
            Progress::StatusWritten(noop_patch) => {
                (self.conflict_retries, self.last_noop_patch) = (0, noop_patch);
            }
            Progress::StatusConflict => self.conflict_retries = self.conflict_retries.saturating_add(1),
            Progress::StatusRefused(refused) => self.refused_status = Some(refused),
            Progress::InactiveStatusWritten => {
                let writes = self.inactive_status.map_or(0, |(writes, _)| writes).saturating_add(1);
                self.inactive_status = Some((writes, now + INACTIVE.exact(writes)));
            }
            Progress::Active => self.inactive_status = None,
            Progress::Created(object, text) => self.created_event = Some((object, text)),
            Progress::Event(event) => self.last_event = event,
        }
    }

    fn record_result(&mut self, result: &Result<(), CallError>, outcomes: &[ActionOutcome]) {
        match result {
            Ok(()) if outcomes.iter().any(|outcome| matches!(outcome, ActionOutcome::DryRunPending)) => {}
            Ok(()) => {
                self.call_failures = 0;
                let has_conflict = outcomes.iter().any(|outcome| matches!(outcome, ActionOutcome::Conflict));
                self.conflict_retries =
                    if has_conflict { self.conflict_retries.saturating_add(1) } else { 0 };
            }
            Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => {
                self.conflict_retries = self.conflict_retries.saturating_add(1);
            }
            Err(_) => self.call_failures = self.call_failures.saturating_add(1),
        }
    }

    /// Whether to evaluate this input, of which an earlier evaluation may have stopped at a limit.
    pub(super) fn evaluate(&self, input: impl FnOnce() -> u64, now: Duration) -> Evaluate {
        self.stopped.as_ref().map_or(Evaluate::Now, |stopped| stopped.evaluate(input, now))
    }

    /// The Event about created children, if it is not published yet.
    pub(super) fn take_created_event(&mut self) -> Option<(Value, String)> {
        self.created_event.take()
    }

    /// Whether calls keep failing. A single failure is not reported.
    pub(super) fn keeps_failing(&self) -> bool {
        self.call_failures > 1
    }

    /// Whether so many writes in a row conflicted that the next one waits.
    pub(super) fn must_yield(&self) -> bool {
        self.conflict_retries > FREE_CONFLICTS
    }

    /// How long until the next attempt after a conflict.
    pub(super) fn conflict_wait(&self) -> Duration {
        CONFLICTED.exact(self.conflict_retries.saturating_sub(FREE_CONFLICTS).saturating_add(1))
    }

    /// How long until the next reconcile after an incomplete one; `None` if it follows at once, because a run has moved
    /// on. The longest possible chain of children is not slowed down, nor is the longest run; an endless circle is.
    pub(super) fn incomplete_wait(&self, has_run_moved: bool) -> Option<Duration> {
        let decisions =
            if has_run_moved { DECISIONS_A_STEP * plan::MAX_STEPS } else { children::MAX_CHILDREN };
        let free = u32::try_from(decisions / MAX_DECISIONS).unwrap_or(u32::MAX);
        let over = self.incomplete_reconciles.saturating_sub(free);
        (!has_run_moved || over > 0).then(|| INCOMPLETE.exact(over.saturating_add(1)))
    }

    /// How long the status of an instance whose package is not active is not written again.
    pub(super) fn inactive_status_wait(&self, now: Duration) -> Option<Duration> {
        let (_, until) = self.inactive_status?;
        until.checked_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn long_chains_are_not_slowed_down_but_circles_are() {
        for (incomplete_reconciles, wait) in
            [(1, 50), (125, 50), (126, 100), (130, 1_600), (u32::MAX, 60_000)]
        {
            let state = InstanceState { incomplete_reconciles, ..InstanceState::default() };
            let found = state.incomplete_wait(false);
            assert_eq!(found, Some(Duration::from_millis(wait)), "{incomplete_reconciles}");
        }
        for (incomplete_reconciles, wait) in [(1, None), (1_500, None), (1_501, Some(100))] {
            let state = InstanceState { incomplete_reconciles, ..InstanceState::default() };
            let found = state.incomplete_wait(true);
            assert_eq!(found, wait.map(Duration::from_millis), "{incomplete_reconciles}");
        }
    }

    #[test]
    fn the_first_conflicts_are_retried_at_once_and_a_write_ends_them() {
        let mut state = InstanceState::default();
        for expected in [false, false, false, false, true, true] {
            state.record(Progress::StatusConflict, NOW);
            assert_eq!(state.must_yield(), expected);
        }
        assert_eq!(state.conflict_wait(), Duration::from_millis(40));
        state.record(Progress::StatusWritten(None), NOW);
        assert!(!state.must_yield() && state.is_empty());
    }

    #[test]
    fn writes_of_inactive_statuses_back_off() {
        let mut state = InstanceState::default();
        assert_eq!(state.inactive_status_wait(NOW), None);
        for seconds in [1, 2, 4] {
            state.record(Progress::InactiveStatusWritten, NOW);
            assert_eq!(state.inactive_status_wait(NOW), Some(Duration::from_secs(seconds)));
            assert_eq!(state.inactive_status_wait(Duration::from_secs(seconds + 1)), None);
        }
        state.record(Progress::Active, NOW);
        assert!(state.is_empty());
    }

    #[test]
    fn changed_schemas_forget_what_was_refused() {
        let mut state = InstanceState::default();
        state.record(Progress::StatusWritten(Some("hash".into())), NOW);
        state.record(Progress::Schemas(0), NOW);
        assert!(state.last_noop_patch.is_some(), "they have not changed");
        state.record(Progress::Schemas(1), NOW);
        assert!(state.last_noop_patch.is_none() && state.is_empty());
    }
}
