//! Runs that name something that does not exist: a plan, or an instance. It may be created yet, so they wait for an hour, unless they are cancelled.
//! A run in a namespace where runs of its instance do not belong fails at once.

use std::time::Duration;

use jiff::Timestamp;

use super::run::{Known, Phase, PlanRun, RunStatus, short};

/// The reason of a run that names a plan that does not exist.
pub(super) const PLAN_MISSING: &str = "PlanMissing";
/// The reason of a run that names an instance that does not exist.
const INSTANCE_MISSING: &str = "InstanceMissing";
/// The reason of a run in a namespace where runs of its instance do not belong.
const WRONG_NAMESPACE: &str = "WrongNamespace";
/// How long a run waits for what it names, in seconds.
const PATIENCE: i64 = 60 * 60;

/// What becomes of a run that names something that does not exist.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Missing {
    /// Its new status, if it has changed.
    pub status: Option<RunStatus>,
    /// When to decide again.
    pub wake: Option<Duration>,
}

impl PlanRun {
    /// Whether it is to be admitted: it has no status yet, or named something that did not exist.
    pub fn is_new(&self) -> bool {
        if self.known != Known::No {
            return false;
        }
        let is_waiting = |status: &RunStatus| {
            status.phase == Phase::Pending
                && [PLAN_MISSING, INSTANCE_MISSING].contains(&status.reason.as_str())
        };
        self.status.as_ref().is_none_or(is_waiting)
    }

    /// Whether it has started.
    pub fn has_started(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.started_at.is_some())
    }

    /// The state of a run that was started before and has lost its state: it never runs again.
    pub fn state_lost(&self, now: Timestamp) -> RunStatus {
        let message = "the run was started before, and its state is lost: it does not run again. Request another run of \
                       the plan";
        self.failed("StateLost", message, now)
    }

    /// The state of a run that had not ended when its object was deleted. It counts as started, also if it was about to start: a
    /// rollout is not started again by itself then, and a person can retry it.
    pub(super) fn deleted(&self, now: Timestamp) -> RunStatus {
        let failed = self.failed("", "", now);
        RunStatus {
            phase: Phase::Cancelled,
            reason: "Deleted".to_owned(),
            message: "the PlanRun was deleted before it had ended".to_owned(),
            started_at: failed.started_at.or_else(|| failed.finished_at.clone()),
            ..failed
        }
    }

    pub(super) fn failed(&self, reason: &str, message: &str, now: Timestamp) -> RunStatus {
        RunStatus {
            phase: Phase::Failed,
            reason: reason.to_owned(),
            message: short(message),
            cause: self.cause(),
            finished_at: Some(now.to_string()),
            ..self.status.clone().unwrap_or_default()
        }
    }
}

/// Why an instance cannot run what a `PlanRun` asks for.
#[derive(Debug, Clone, Copy)]
pub enum Stray<'a> {
    /// The instance does not exist.
    NoInstance {
        /// The kind of the instance.
        kind: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// The kind of the instance has no plans.
    NoPlans {
        /// The kind.
        kind: &'a str,
        /// The revision of its package that the instance keeps, if it is not the active one.
        revision: Option<&'a str>,
    },
    /// Runs of the kind belong in another namespace. The answer does not tell whether the instance exists.
    WrongNamespace {
        /// The kind, which is cluster-scoped.
        kind: &'a str,
        /// The namespace where runs of the kind belong.
        home: &'a str,
    },
}

/// What becomes of a run that cannot run.
pub fn stray(run: &PlanRun, why: Stray<'_>, now: Timestamp) -> Missing {
    if !run.is_new() {
        return Missing::default();
    }
    let (reason, message) = match why {
        Stray::WrongNamespace { kind, home } => {
            let message =
                format!("{kind} is cluster-scoped: runs of this kind belong in the namespace {home}");
            return Missing { status: Some(run.failed(WRONG_NAMESPACE, &message, now)), wake: None };
        }
        Stray::NoInstance { kind, name } => (INSTANCE_MISSING, format!("there is no {kind} {name}")),
        Stray::NoPlans { kind, revision: None } => (PLAN_MISSING, format!("{kind} has no plans")),
        Stray::NoPlans { kind, revision: Some(kept) } => {
            let message =
                format!("{kind} has no plans in revision {kept} of its package, which the instance keeps");
            (PLAN_MISSING, message)
        }
    };
    // A restored run, whose instance may be restored after it.
    if run.taken().is_some() {
        return Missing { status: Some(run.state_lost(now)), wake: None };
    }
    missing(run, reason, &message, now)
}

/// What becomes of a new run that names something that does not exist.
pub(super) fn missing(run: &PlanRun, reason: &str, message: &str, now: Timestamp) -> Missing {
    if run.spec.cancel {
        let ended = run.failed("Cancelled", "the run was cancelled", now);
        return Missing { status: Some(RunStatus { phase: Phase::Cancelled, ..ended }), wake: None };
    }
    let created = run.created.parse::<Timestamp>().unwrap_or(now);
    let rest = PATIENCE - now.as_second().saturating_sub(created.as_second()).max(0);
    if rest <= 0 {
        return Missing { status: Some(run.failed(reason, message, now)), wake: None };
    }
    let known = run.status.clone().unwrap_or_default();
    let status = RunStatus {
        cause: run.cause(),
        reason: reason.to_owned(),
        message: short(&format!("{message}; the run fails an hour after its creation")),
        request_digest: known.request_digest,
        answers: known.answers,
        ..RunStatus::default()
    };
    let rest = Duration::from_secs(u64::try_from(rest).unwrap_or_default());
    let is_said = run.status.as_ref().is_some_and(|known| known.says_same(&status));
    Missing { status: (!is_said).then_some(status), wake: Some(rest) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{SeenApproval, TAKEN};

    const DESK: Stray<'_> = Stray::NoInstance { kind: "Desk", name: "a" };

    #[test]
    fn a_run_waits_an_hour_for_what_it_names() {
        let at = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).unwrap();
        let mut run = PlanRun { created: at(0).to_string(), ..PlanRun::default() };
        let first = stray(&run, DESK, at(600));
        assert_eq!(first.wake, Some(Duration::from_secs(3_000)));
        let status = first.status.unwrap();
        assert_eq!((status.phase, &*status.reason), (Phase::Pending, "InstanceMissing"));
        assert!(status.message.starts_with("there is no Desk a"), "{}", status.message);
        run.status = Some(RunStatus { sequence: 1, ..status });
        assert!(run.is_new(), "its instance may be created yet");
        let again = stray(&run, DESK, at(700));
        assert_eq!((again.status, again.wake), (None, Some(Duration::from_secs(2_900))));
        let last = stray(&run, DESK, at(3_600)).status.unwrap();
        assert_eq!((last.phase, &*last.message), (Phase::Failed, "there is no Desk a"));
        run.status = Some(last);
        assert_eq!(stray(&run, DESK, at(4_000)), Missing::default());
    }

    /// Another status is written to note an answer: this one must not undo that, or both are written for ever.
    #[test]
    fn a_run_that_waits_for_what_it_names_keeps_its_answers() {
        let mut run = PlanRun::default();
        let mut status = stray(&run, DESK, Timestamp::UNIX_EPOCH).status.unwrap();
        let seen =
            SeenApproval { by: "eve".into(), ignored: Some("not checked".into()), ..SeenApproval::default() };
        status.answers.push(seen);
        status.request_digest = Some("d".into());
        run.status = Some(status.clone());
        assert_eq!(stray(&run, DESK, Timestamp::UNIX_EPOCH).status, None);
        let other = Stray::NoPlans { kind: "Desk", revision: None };
        let found = stray(&run, other, Timestamp::UNIX_EPOCH).status.unwrap();
        assert_eq!((found.answers, found.request_digest), (status.answers, status.request_digest));
    }

    #[test]
    fn a_run_that_waits_for_what_it_names_is_cancelled_at_once() {
        let mut run = PlanRun::default();
        run.spec.cancel = true;
        for why in [DESK, Stray::NoPlans { kind: "Desk", revision: None }] {
            let found = stray(&run, why, Timestamp::UNIX_EPOCH);
            let status = found.status.unwrap();
            assert_eq!((status.phase, &*status.reason, found.wake), (Phase::Cancelled, "Cancelled", None));
        }
    }

    #[test]
    fn a_restored_run_never_runs_though_its_instance_is_restored_later() {
        let mut run = PlanRun::default();
        run.annotations.insert(TAKEN.into(), "an earlier uid".into());
        let status = stray(&run, DESK, Timestamp::UNIX_EPOCH).status.unwrap();
        assert_eq!((status.phase, &*status.reason), (Phase::Failed, "StateLost"));
    }

    #[test]
    fn a_run_waits_for_the_plans_of_a_kind_without_plans() {
        let run = PlanRun::default();
        let found = stray(&run, Stray::NoPlans { kind: "Desk", revision: None }, Timestamp::UNIX_EPOCH);
        let status = found.status.unwrap();
        assert_eq!((status.phase, &*status.reason), (Phase::Pending, "PlanMissing"));
        assert!(status.message.starts_with("Desk has no plans"), "{}", status.message);
        assert!(found.wake.is_some());
    }

    #[test]
    fn a_run_in_a_wrong_namespace_fails_once() {
        let why = Stray::WrongNamespace { kind: "Desk", home: "operetta" };
        let mut run = PlanRun::default();
        // A restored run as well.
        run.annotations.insert(TAKEN.into(), "an earlier uid".into());
        let found = stray(&run, why, Timestamp::UNIX_EPOCH);
        assert_eq!(found.wake, None);
        let status = found.status.unwrap();
        assert_eq!((status.phase, &*status.reason), (Phase::Failed, "WrongNamespace"));
        let message = "Desk is cluster-scoped: runs of this kind belong in the namespace operetta";
        assert_eq!(status.message, message);
        run.status = Some(status);
        assert_eq!(stray(&run, why, Timestamp::UNIX_EPOCH), Missing::default());
    }
}
