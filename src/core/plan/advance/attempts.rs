//! Steps that consist of attempts: their intent is stored before each, and the outcome after it.

use std::time::Duration;

use super::super::eval::NoValue;
use super::super::run::short;
use super::step::{Acted, has_attempts};
use super::{Advancer, At, Failure, millis};
use crate::backoff::Backoff;
use crate::package::plan::{Action, Retries, Step};

/// The retries of a request that is being settled, if its step has none.
const SETTLING: Retries =
    Retries { limit: None, backoff: Duration::from_secs(5), max_backoff: Duration::from_secs(5 * 60) };

/// The retries of a patch, if its step has none: it is tried again until the timeout of the step, as what a
/// step applies or
/// deletes is.
const PATCHING: Retries =
    Retries { limit: None, backoff: Duration::from_secs(1), max_backoff: Duration::from_secs(60) };

/// What is known of an attempt.
pub(super) enum Attempt {
    /// The attempt has ended, with this outcome.
    Ended(Acted),
    /// The attempt has failed.
    Failed(Failure),
    /// The attempt counts as not made.
    Void,
    /// Its outcome is open.
    Open,
}

impl Advancer<'_> {
    pub(super) fn attempts<'p>(&mut self, step: &'p Step, path: &str, at: &At<'p>, expired: bool) -> Acted {
        if let Some(answer) = self.held_answer(step, path) {
            return Acted::Done(answer);
        }
        let state = self.state(path);
        let in_flight = state.is_some_and(|state| state.in_flight);
        // Its answer may be stored already: then the request is not sent again.
        if let Some(why) = step.store.as_ref().and_then(|_| self.inputs.cluster.unread(path)) {
            self.progress.in_flight |= in_flight;
            return self.no_value(step, path, at, expired, NoValue::Unknown(why));
        }
        if !in_flight {
            return self.next_attempt(step, path, at, expired);
        }
        let attempt = match &step.action {
            Action::Job { .. } => self.poll_job(step, path, at, expired),
            Action::Plan(call) => self.poll_run(step, call, path, at, expired),
            _ => self.poll_call(step, path, at, expired),
        };
        match attempt {
            Attempt::Ended(acted) => acted,
            Attempt::Open => Acted::Waiting,
            Attempt::Void => {
                let state = self.state_mut(path);
                state.in_flight = false;
                state.request = None;
                if expired {
                    return Acted::Failed(self.timed_out_in_attempt(step, path, at, "it was ended"));
                }
                self.wait(path, "Settling", "its last attempt was ended");
                Acted::Waiting
            }
            Attempt::Failed(failure) => self.failed_attempt(step, path, at, failure, expired),
        }
    }

    /// An attempt has failed: another one follows, or the step has failed.
    fn failed_attempt(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
        failure: Failure,
        expired: bool,
    ) -> Acted {
        let (used, settle) = (self.used, self.settle);
        let state = self.state_mut(path);
        state.in_flight = false;
        state.failures += 1;
        // An answer that allows another attempt does not say what became of an earlier one without an answer.
        state.unanswered = failure.unanswered || state.unanswered && failure.retryable;
        let failures = state.failures;
        let settles = state.unanswered && settle;
        // To be settled, a request is repeated until the timeout of the step, however many retries the step
        // has.
        let is_limited = |retries: Retries| retries.limit.is_some_and(|limit| failures > limit);
        let usual = matches!(step.action, Action::Patch(_)).then_some(PATCHING);
        let retries = step.retries.or(usual).filter(|retries| failure.retryable && !is_limited(*retries));
        let is_cut = expired && matches!(step.action, Action::Plan(_));
        let Some(retries) = retries.or(settles.then_some(SETTLING)).filter(|_| !is_cut) else {
            return Acted::Failed(if is_cut {
                self.timed_out_after(step, path, at, &failure.message)
            } else {
                failure
            });
        };
        if expired {
            // Without the timeout another attempt would follow.
            return Acted::Failed(self.timed_out_after(
                step,
                path,
                at,
                &format!("last attempt: {}", failure.message),
            ));
        }
        self.progress.in_flight |= settles;
        let backoff = Backoff::new(retries.backoff, retries.max_backoff).exact(failures);
        let next = used + backoff.max(failure.retry_after.unwrap_or_default());
        let state = self.state_mut(path);
        state.retry_milliseconds = Some(millis(next));
        failure.reason.clone_into(&mut state.reason);
        state.message = short(&failure.message);
        self.wake_at(next);
        self.wait_for(step, path, at, "Retrying", &format!("attempt {failures} failed: {}", failure.message));
        Acted::Waiting
    }

    /// Between attempts: decides whether the next one starts, and intends it.
    fn next_attempt<'p>(&mut self, step: &'p Step, path: &str, at: &At<'p>, expired: bool) -> Acted {
        let state = self.state_mut(path);
        let (failures, unanswered) = (state.failures, state.unanswered);
        let (next, last) = (state.retry_milliseconds, state.message.clone());
        if expired {
            let why = self.blocked_by(step, path, at).unwrap_or_else(|| "it has not started".to_owned());
            return Acted::Failed(self.timed_out_in_attempt(step, path, at, &why));
        }
        // A request that may have been carried out is in flight between its attempts, too: it is repeated until it is
        // answered.
        let settles = unanswered && self.settle;
        if let Some(next) = next.map(Duration::from_millis).filter(|next| self.used < *next) {
            self.progress.in_flight |= settles;
            self.wake_at(next);
            self.wait_for(step, path, at, "Retrying", &format!("attempt {failures} failed: {last}"));
            return Acted::Waiting;
        }
        // For other actions the condition was decided when the step was reached.
        let decided = if has_attempts(&step.action) { self.condition(step, path, at) } else { Ok(true) };
        match decided {
            Ok(true) => {}
            Ok(false) => return Acted::Skipped,
            Err(error) => {
                self.progress.in_flight |= settles;
                return self.no_value(step, path, at, false, error);
            }
        }
        if let Some(acted) = step.store.as_ref().and_then(|store| self.no_room(step, store, path, at)) {
            self.progress.in_flight |= settles;
            return acted;
        }
        if self.hold && (!settles || self.inputs.paused) {
            self.progress.in_flight |= settles;
            self.wait(path, if self.inputs.paused { "Paused" } else { "Settling" }, "no attempt is started");
            return Acted::Waiting;
        }
        let attempt = self.state(path).map_or(0, |state| state.attempt) + 1;
        self.state_mut(path).attempt = attempt;
        let intended = match &step.action {
            Action::Job { .. } | Action::Plan(_) => {
                self.intend_object(path, attempt);
                Ok(())
            }
            _ => self.intend_call(step, path, at, attempt),
        };
        match intended {
            Ok(()) => {
                self.progress.in_flight |= settles;
                let state = self.state_mut(path);
                state.in_flight = true;
                state.retry_milliseconds = None;
                self.wait_for(step, path, at, "Starting", &format!("attempt {attempt} is being started"));
                Acted::Waiting
            }
            Err(Blocked::NoValue(error)) => {
                // The attempt has not been made.
                self.state_mut(path).attempt = attempt - 1;
                self.progress.in_flight |= settles;
                self.no_value(step, path, at, false, error)
            }
            Err(Blocked::Failed(failure)) => Acted::Failed(failure),
        }
    }

    /// Why no attempt of a step can start, if an expression says so.
    fn blocked_by(&mut self, step: &Step, path: &str, at: &At<'_>) -> Option<String> {
        let found = match self.condition(step, path, at) {
            Err(error) => Err(error.into()),
            Ok(_) => match &step.action {
                Action::Job { .. } => self.job(step, path, at, "").map(drop).map_err(Blocked::from),
                Action::Plan(_) => Ok(()),
                _ => self.request(step, path, at).map(drop),
            },
        };
        match found.err()? {
            Blocked::NoValue(NoValue::Unknown(why) | NoValue::Wrong(why)) => Some(why),
            Blocked::Failed(failure) => Some(failure.message),
        }
    }

    /// The failure of a step whose time is over: it names the reason of its last attempt; `why` if there is none.
    fn timed_out_in_attempt(&mut self, step: &Step, path: &str, at: &At<'_>, why: &str) -> Failure {
        let known = self.state(path).map(|state| state.message.clone()).filter(|last| !last.is_empty());
        match known {
            Some(last) => self.timed_out_after(step, path, at, &format!("last attempt: {last}")),
            None => self.timed_out_after(step, path, at, why),
        }
    }

    pub(super) fn remaining_time(&mut self, step: &Step, path: &str, at: &At<'_>) -> Duration {
        let timeout = self.timeout(step, path, at).ok().flatten();
        let end = timeout.map(|timeout| self.since(path) + timeout);
        end.map_or(LONGEST_CALL, |end| end.saturating_sub(self.used)).min(LONGEST_CALL)
    }
}

/// How long one call may take without a timeout of its step.
const LONGEST_CALL: Duration = Duration::from_secs(60 * 60);

/// Why an attempt cannot start.
pub(super) enum Blocked {
    /// An expression has no value.
    NoValue(NoValue),
    /// The step fails.
    Failed(Failure),
}

impl From<NoValue> for Blocked {
    fn from(error: NoValue) -> Self {
        Self::NoValue(error)
    }
}
