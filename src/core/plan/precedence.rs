//! The rules between the runs of one instance: which of them is active, which waits, ends or begins.

mod cleanup;
mod new_runs;
mod order;
mod protected;
mod rows;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::condition::ConditionState;
use super::history::sorted;
use super::member::Member;
use super::missing::{PLAN_MISSING, missing};
use super::origin::ComparedOrigin;
use super::progress::{Directive, Ending};
use super::protection::Protection;
use super::repeat::Repeating;
use super::run::{Cause, Known, Phase, PlanRun, RunStatus};
use super::select::Selected;
use super::subject::Subject;
use crate::package::plan::{Concurrency, Event, Plan};

/// The reason of a rollout that waited for approval when another revision of the package became active.
const NEWER_REVISION: &str = "NewerRevision";
/// The reason of a rollout that waited for approval when an object that the instance reads changed.
const REFS_CHANGED: &str = "RefsChanged";
/// The reason of a run that is not needed any more when its turn comes.
const CLEARED: &str = "Cleared";
/// Why nothing of an instance that is paused starts.
const PAUSED: &str = "the instance is paused";
/// The most requested runs of an instance that wait.
const MOST_WAITING: usize = 100;

/// What is known of the runs of an instance, and why runs should begin.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct Situation<'a> {
    /// The plans of the newest revision.
    pub plans: &'a [Plan],
    /// All runs of the instance, in any order.
    pub runs: &'a [PlanRun],
    /// The name of the instance.
    pub instance: &'a str,
    /// The names that its next runs would have, and that PlanRuns hold which are not runs of the instance.
    pub occupied: &'a BTreeSet<String>,
    /// Whether the instance is being deleted.
    pub deleting: bool,
    /// Whether a person has released the instance from its cleanup.
    pub skip_cleanup: bool,
    /// Whether its namespace is being deleted.
    pub namespace_terminating: bool,
    /// Whether its memory is stored.
    pub has_memory: bool,
    /// Whether it is paused.
    pub paused: bool,
    /// The uid of the run that may be active among those that change children, as the memory of the instance says.
    pub active: Option<&'a str>,
    /// The number of the newest run that the memory has seen.
    pub number: u64,
    /// The instance, its package and what it reads, as they are now.
    pub newest: ComparedOrigin<'a>,
    /// The origins that are stored.
    pub origins: &'a [ComparedOrigin<'a>],
    /// The rollout that is needed: see [`super::select()`].
    pub rollout: Option<Selected>,
    /// Whether a child that the steps of rollouts name reads a ref.
    pub is_read: &'a dyn Fn(&str) -> bool,
    /// The lost children, with the plan for their loss.
    pub losses: Vec<(String, Vec<Member>)>,
    /// The plans with conditions, and what is known of them.
    pub conditions: Vec<(String, ConditionState)>,
    /// The plans of which a condition has held ever since their last run has ended.
    pub staying: Vec<String>,
    /// The plans whose schedule is due, with the name of the run and its time.
    pub due: Vec<(String, String, Timestamp)>,
    /// What is wrong with the parameters of a request, against the schema of its plan.
    pub wrong_params: &'a dyn Fn(&Plan, &Value) -> Option<String>,
    /// Whether the API server has refused a write with that subject a moment ago: see [`super::RunAction::subject`].
    pub is_refused: &'a dyn Fn(&Subject) -> bool,
    /// Whether the API server checks who requests and answers runs.
    pub protection: &'a Protection,
    /// The time of day.
    pub now: Timestamp,
}

/// What the rules between runs demand.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Agenda {
    /// The runs to advance, by name.
    pub active: Vec<(String, Directive)>,
    /// What is to be written, in this order; after each the runs are decided again.
    pub writes: Vec<RunWrite>,
    /// The runs that wait, and for what.
    pub waiting: Vec<(String, String)>,
    /// How the cleanup of an instance that is being deleted stands.
    pub cleanup: Cleanup,
    /// What would be written if the API server had not refused it a moment ago.
    pub refused: Vec<RunWrite>,
    /// The plans that run again and again.
    pub repeating: Vec<Repeating>,
    /// When to decide again, if nothing happens before.
    pub wake: Option<Duration>,
}

/// A write of a `PlanRun`, or of the summary of the instance.
#[derive(Debug, Clone, PartialEq)]
pub enum RunWrite {
    /// Creates a run. After a 409 for a numbered name the runs are listed and decided again; for a scheduled
    /// name the run exists.
    Create(NewRun),
    /// Writes the status, under the run's `resourceVersion`. The origin that it names is stored first.
    Status {
        /// The name of the run.
        run: String,
        /// The status.
        status: Box<RunStatus>,
    },
    /// Adds a run that is about to start to the memory of the instance, under the `resourceVersion` of the `InstanceState`.
    Register {
        /// The name of the run.
        run: String,
        /// Whether it changes children: then it is the only such run that may be active.
        exclusive: bool,
    },
    /// Sets [`super::TAKEN`] to the uid of a run that has started, and [`super::RUN_FINALIZER`], under its `resourceVersion`.
    /// Only then its steps are followed.
    Take {
        /// The name of the run.
        run: String,
    },
    /// Adds a run to the memory of the instance that has no `PlanRun`, and starts it.
    StartInner(NewRun),
    /// Ends a run in the memory whose `PlanRun` is gone, if a live read shows that it is.
    EndGone {
        /// The name of the run.
        run: String,
        /// Its last status.
        status: Box<RunStatus>,
    },
}

impl RunWrite {
    /// The run that the write is for, and what it changes, if no other depends on it.
    pub fn subject(&self, runs: &[PlanRun]) -> Option<(&str, Subject)> {
        let of = |name: &String, subject: fn(String) -> Subject| {
            Some(subject(runs.iter().find(|run| run.name == *name)?.uid.clone()))
        };
        match self {
            Self::Create(new) => Some((&new.name, Subject::NewRun(new.plan.clone()))),
            Self::Status { run, .. } => Some((run, of(run, Subject::State)?)),
            Self::Take { run } => Some((run, of(run, Subject::Object)?)),
            Self::Register { .. } | Self::StartInner(_) | Self::EndGone { .. } => None,
        }
    }
}

/// How the cleanup of an instance stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Cleanup {
    /// The instance is not being deleted, or its plans have nothing more to do: its children may be deleted.
    #[default]
    Done,
    /// Runs are being ended, or the cleanup runs.
    Active,
    /// The cleanup has failed, and holds the deletion. Names the run, and says why.
    Held(String, String),
}

/// A run to create.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NewRun {
    /// Its name.
    pub name: String,
    /// Its plan.
    pub plan: String,
    /// What starts it: annotation [`super::CAUSE`].
    pub cause: Cause,
    /// The failed run that it resumes.
    pub retry_of: Option<String>,
    /// The time of its schedule: annotation [`super::SCHEDULED_AT`].
    pub scheduled_at: Option<Timestamp>,
}

/// Applies the rules between the runs of an instance.
pub fn agenda(situation: &Situation<'_>) -> Agenda {
    let mut rules = Rules {
        situation,
        // A request that is being deleted is none any more. What has begun counts, also once it has ended.
        runs: sorted(situation.runs.iter().filter(|run| !run.deleting || run.known != Known::No)),
        agenda: Agenda::default(),
        ended: BTreeSet::new(),
    };
    rules.end_invalid();
    if situation.deleting {
        rules.delete();
    } else {
        rules.replace();
        rules.note_answers();
        rules.conclude_rollouts();
        rules.create_runs();
        rules.order();
        rules.admit_next();
    }
    rules.agenda
}

/// What has started a run; a retry has the cause of the run that it resumes.
fn cause_of(run: &PlanRun, runs: &[PlanRun]) -> Cause {
    let retried = run.spec.retry_of.as_ref().filter(|_| run.is_new());
    let retried = retried.and_then(|name| runs.iter().find(|other| other.name == *name));
    retried.map_or_else(|| run.cause(), PlanRun::cause)
}

/// Whether a run changes children, so that only one such run is active at a time. For a run that has begun,
/// its own revision decides; `plans` are those of the newest revision, which may have dropped or changed the
/// plan.
pub fn is_exclusive(run: &PlanRun, plans: &[Plan]) -> bool {
    if let Some(exclusive) = run.status.as_ref().and_then(|status| status.exclusive) {
        return exclusive;
    }
    matches!(run.cause(), Cause::Rollout | Cause::Cleanup)
        || plans_of(run, plans).is_none_or(|plan| plan.exclusive)
}

fn goes_first(run: &str) -> String {
    format!("run {run} goes first")
}

/// Why a run cannot be retried.
pub fn not_retryable(run: &str, phase: Phase) -> String {
    let rest = match phase {
        Phase::Superseded => "another run has taken its place, which can be retried if it fails",
        Phase::Succeeded => "request another run of the plan",
        _ => "it has not ended",
    };
    format!("run `{run}` is {phase:?}, and only a failed or cancelled run can be retried: {rest}")
}

fn plans_of<'p>(run: &PlanRun, plans: &'p [Plan]) -> Option<&'p Plan> {
    plans.iter().find(|plan| plan.name == run.spec.plan)
}

struct Rules<'a> {
    situation: &'a Situation<'a>,
    /// All runs, from the oldest.
    runs: Vec<&'a PlanRun>,
    agenda: Agenda,
    /// The runs that end in this decision.
    ended: BTreeSet<&'a str>,
}

impl<'a> Rules<'a> {
    /// The runs that have not ended.
    fn open(&self) -> Vec<&'a PlanRun> {
        self.runs
            .iter()
            .filter(|run| !run.is_final() && !self.ended.contains(run.name.as_str()))
            .copied()
            .collect()
    }

    fn plan(&self, run: &PlanRun) -> Option<&'a Plan> {
        plans_of(run, self.situation.plans)
    }

    /// Ends a run that is not active.
    fn end(&mut self, run: &'a PlanRun, phase: Phase, reason: &str, message: impl Into<String>) {
        let status = RunStatus {
            phase,
            reason: reason.to_owned(),
            message: super::run::short(&message.into()),
            cause: cause_of(run, self.situation.runs),
            finished_at: Some(self.situation.now.to_string()),
            ..run.status.clone().unwrap_or_default()
        };
        self.ended.insert(&run.name);
        self.write(run, status);
    }

    fn write(&mut self, run: &PlanRun, mut status: RunStatus) {
        let admitted = run.status.as_ref().and_then(|known| known.request_digest.clone());
        // Nothing compares that of a run which has ended.
        let is_final = status.phase.is_final();
        status.request_digest = (!is_final).then(|| admitted.unwrap_or_else(|| run.spec.digest()));
        self.propose(RunWrite::Status { run: run.name.clone(), status: Box::new(status) });
    }

    /// Writes something, unless the API server has refused it a moment ago: nothing else waits for it.
    fn propose(&mut self, write: RunWrite) {
        let subject = write.subject(self.situation.runs);
        let is_refused = subject.is_some_and(|(_, subject)| (self.situation.is_refused)(&subject));
        let list = if is_refused { &mut self.agenda.refused } else { &mut self.agenda.writes };
        list.push(write);
    }

    /// Whether the API server has refused a moment ago what would let a run go on that is not active: no other waits for it. What a
    /// loss, a condition or a cleanup demands goes first nevertheless: a rollout would create what is lost without its plan.
    fn is_held(&self, run: &PlanRun) -> bool {
        let goes_first =
            matches!(cause_of(run, self.situation.runs), Cause::Loss | Cause::Condition | Cause::Cleanup);
        run.phase() != Phase::Running
            && !goes_first
            && (self.situation.is_refused)(&Subject::State(run.uid.clone()))
    }

    /// Ends an active run, after what it has in flight is settled.
    fn settle(&mut self, run: &'a PlanRun, phase: Phase, reason: &'static str, message: impl Into<String>) {
        self.ended.insert(&run.name);
        let ending = Ending { phase, reason, message: message.into() };
        self.agenda.active.push((run.name.clone(), Directive::Settle(ending)));
    }

    /// Ends a run, whether it is active or not.
    fn stop(&mut self, run: &'a PlanRun, phase: Phase, reason: &'static str, message: impl Into<String>) {
        if run.phase() == Phase::Running {
            self.settle(run, phase, reason, message);
        } else {
            self.end(run, phase, reason, message);
        }
    }

    /// Marks an active run as taken. Its steps are followed only then.
    fn take(&mut self, run: &PlanRun) {
        self.propose(RunWrite::Take { run: run.name.clone() });
    }

    fn wait(&mut self, run: &PlanRun, why: impl Into<String>) {
        self.agenda.waiting.push((run.name.clone(), why.into()));
    }

    fn wake_after(&mut self, wait: Duration) {
        let wait = wait.max(Duration::from_millis(1));
        self.agenda.wake = Some(self.agenda.wake.map_or(wait, |known| known.min(wait)));
    }

    /// Ends runs that are cancelled or deleted, whose state is lost, or whose parameters are not known, and active runs that were changed.
    fn end_invalid(&mut self) {
        for run in self.open() {
            let has_started = matches!(run.phase(), Phase::Running | Phase::Interrupted);
            if run.known == Known::Wiped {
                self.ended.insert(&run.name);
                self.write(run, run.state_lost(self.situation.now));
            } else if run.known == Known::Gone {
                self.ended.insert(&run.name);
                let status = Box::new(run.deleted(self.situation.now));
                self.propose(RunWrite::EndGone { run: run.name.clone(), status });
            } else if run.spec.cancel {
                self.stop(run, Phase::Cancelled, "Cancelled", "the run was cancelled");
            } else if run.deleting && !(run.cause() == Cause::Cleanup && run.phase() == Phase::Running) {
                // The end of a namespace deletes the PlanRun of a cleanup too.
                self.stop(run, Phase::Cancelled, "Deleted", "the PlanRun was deleted");
            } else if !has_started && let Some(why) = &run.left_out {
                self.stop(run, Phase::Failed, "InvalidParams", why);
            } else if run.phase() == Phase::Running {
                self.end_changed(run);
            }
        }
    }

    /// Takes note of new runs: of one in each decision, after everything else, those of the manager first. A tenant may
    /// request thousands.
    fn admit_next(&mut self) {
        let mut new: Vec<&PlanRun> = self.open().into_iter().filter(|run| run.is_new()).collect();
        new.sort_by_key(|run| run.cause() == Cause::Request);
        for run in new {
            if !self.agenda.writes.is_empty() {
                return;
            }
            if self.is_verified(run) {
                self.admit(run);
            }
        }
    }

    /// Admits a new run: it starts, is recorded as waiting, or ends.
    fn admit(&mut self, run: &'a PlanRun) {
        let cause = cause_of(run, self.situation.runs);
        let is_request = run.cause() == Cause::Request;
        if self.situation.deleting && cause != Cause::Cleanup {
            return;
        }
        let Some(plan) = self.plan(run) else {
            if matches!(cause, Cause::Rollout) {
                return self.pend(run);
            }
            let message = format!("the package has no plan `{}`", run.spec.plan);
            let found = missing(run, PLAN_MISSING, &message, self.situation.now);
            if let Some(status) = found.status {
                self.write(run, status);
            }
            if let Some(wake) = found.wake {
                self.wake_after(wake);
            }
            return;
        };
        if is_request && let Some(problem) = self.not_requestable(run, plan) {
            return self.end(run, Phase::Failed, "NotRequestable", problem);
        }
        if let Some(failed) = &run.spec.retry_of {
            let problem = match self.retried_by(run) {
                None => Some(format!("there is no run `{failed}` of this instance")),
                Some(target) if !target.phase().is_retryable() => Some(not_retryable(failed, target.phase())),
                Some(target) if !target.has_started() => {
                    Some(format!("run `{failed}` has not started: request another run of the plan"))
                }
                // It begins anew, with the plans that are needed now.
                Some(target) if target.has_unknown_steps && target.is_rollout() => None,
                Some(target) if target.spec.plan != run.spec.plan => {
                    Some(format!("run `{failed}` is of plan `{}`", target.spec.plan))
                }
                Some(target) if target.has_unknown_steps => Some(format!(
                    "what the steps of run `{failed}` have done is not known any more: request another run of the plan"
                )),
                Some(_) => None,
            };
            if let Some(problem) = problem {
                return self.end(run, Phase::Failed, "NotRetryable", problem);
            }
        } else if is_request && let Some(problem) = (self.situation.wrong_params)(plan, &run.spec.params) {
            return self.end(run, Phase::Failed, "InvalidParams", problem);
        }
        let others: Vec<&PlanRun> = self.open();
        let is_same =
            |other: &&&PlanRun| other.name != run.name && other.spec.plan == run.spec.plan && !other.is_new();
        let same = others.iter().find(is_same);
        let may_be_second = matches!(cause, Cause::Rollout | Cause::Cleanup | Cause::Loss | Cause::Condition);
        let refused = |reason| match cause {
            Cause::Schedule => (Phase::Cancelled, "Skipped"),
            _ => (Phase::Failed, reason),
        };
        if plan.concurrency == Concurrency::Forbid
            && !may_be_second
            && let Some(other) = same
        {
            let message = format!("run {} of plan `{}` has not ended", other.name, plan.name);
            let (phase, reason) = refused("AlreadyRunning");
            return self.end(run, phase, reason, message);
        }
        let waiting =
            others.iter().filter(|other| !other.is_new() && other.phase() == Phase::Pending).count();
        if !may_be_second && waiting >= MOST_WAITING {
            let message = format!("{MOST_WAITING} runs of this instance wait already");
            let (phase, reason) = refused("TooManyRuns");
            return self.end(run, phase, reason, message);
        }
        let waits = is_request || self.situation.deleting || self.situation.paused || same.is_some();
        if waits || self.goes_second(run) {
            self.pend(run);
        } else {
            // A state that says that it waits would cost one more write.
            self.start_or_wait(run);
        }
    }

    /// Ends runs whose place newer ones of the same plan take.
    fn replace(&mut self) {
        let mut open = self.open();
        // Creation times are whole seconds: a run that has started is older than one that waits.
        open.sort_by_key(|run| run.phase() == Phase::Pending);
        for (index, run) in open.iter().enumerate() {
            let is_such = self.plan(run).is_some_and(|plan| plan.concurrency == Concurrency::Replace)
                && !run.is_new()
                && matches!(run.cause(), Cause::Request | Cause::Schedule);
            if !is_such {
                continue;
            }
            for older in open[..index].iter().filter(|older| older.spec.plan == run.spec.plan) {
                if !self.ended.contains(older.name.as_str()) {
                    self.stop(
                        older,
                        Phase::Superseded,
                        "Replaced",
                        format!("run {} takes its place", run.name),
                    );
                }
            }
        }
    }

    /// Whether another run may go before a new one.
    fn goes_second(&self, run: &PlanRun) -> bool {
        let plans = self.situation.plans;
        let is_such = |other: &PlanRun| !other.is_final() && !other.is_new() && is_exclusive(other, plans);
        is_exclusive(run, plans) && self.runs.iter().copied().any(is_such)
    }

    fn pend(&mut self, run: &PlanRun) {
        let cause = cause_of(run, self.situation.runs);
        let lost = if cause == Cause::Loss { self.unattended(&run.spec.plan, Some(run)) } else { Vec::new() };
        let ((repeats, yields), message) = (self.in_row(run), self.awaited_by(run));
        self.write(run, RunStatus { message, cause, repeats, yields, lost, ..RunStatus::default() });
    }

    /// What a run waits for that is about to wait.
    fn awaited_by(&self, run: &PlanRun) -> String {
        if self.situation.paused {
            return PAUSED.to_owned();
        }
        let is_before = |other: &&&PlanRun| {
            other.name != run.name && !other.is_final() && !other.is_new() && self.goes_before(other, run)
        };
        let mut before: Vec<&PlanRun> = self.runs.iter().filter(is_before).copied().collect();
        before.sort_by_key(|other| (other.phase() != Phase::Running, self.rank(other)));
        before.first().map_or_else(String::new, |other| goes_first(&other.name))
    }

    /// Whether a run lets another one wait: both are of the same plan, or both change children.
    fn goes_before(&self, other: &PlanRun, run: &PlanRun) -> bool {
        let plans = self.situation.plans;
        let are_exclusive = is_exclusive(other, plans) && is_exclusive(run, plans);
        let is_same = other.spec.plan == run.spec.plan;
        (are_exclusive || is_same)
            && (other.phase() == Phase::Running || !are_exclusive || self.rank(other) <= self.rank(run))
    }

    /// Writes what a run waits for into its state, if the state says something else. This is done only for
    /// the next run of its kind: a tenant may let a hundred wait.
    fn say(&mut self, run: &PlanRun, why: &str) {
        if let Some(status) = run.status.as_ref().filter(|status| status.phase == Phase::Pending)
            && status.message != why
        {
            self.write(run, RunStatus { message: why.to_owned(), ..status.clone() });
        }
    }

    /// The plan that has a trigger of that kind, if there is one.
    fn triggered(&self, is_such: impl Fn(&Event) -> bool) -> Option<&'a Plan> {
        self.situation.plans.iter().find(|plan| plan.triggers.iter().any(|trigger| is_such(&trigger.event)))
    }
}
