//! Which of the runs that have not ended are active.

use super::super::condition::Verdict;
use super::super::progress::{Directive, Ending};
use super::super::run::{Cause, Phase, PlanRun, RunStatus};
use super::super::start::{Start, answered, resumed, retried, started};
use super::{Rules, RunWrite, is_exclusive};
use crate::package::plan::Concurrency;

impl<'a> Rules<'a> {
    pub(super) fn order(&mut self) {
        let (exclusive, others): (Vec<&PlanRun>, Vec<&PlanRun>) =
            self.open().into_iter().partition(|run| is_exclusive(run, self.situation.plans));
        self.beside(&others);
        self.exclusive(&exclusive);
    }

    /// Runs that change no children are active beside others.
    fn beside(&mut self, runs: &[&'a PlanRun]) {
        for run in runs.iter().filter(|run| run.phase() == Phase::Running) {
            self.agenda.active.push((run.name.clone(), Directive::Continue));
        }
        for (index, run) in runs.iter().enumerate() {
            if run.is_new() || run.phase() == Phase::Running {
                continue;
            }
            let queues = self.plan(run).is_some_and(|plan| plan.concurrency != Concurrency::Forbid);
            let is_before = |(at, other): &(usize, &&PlanRun)| {
                other.spec.plan == run.spec.plan
                    && (*at < index || other.phase() == Phase::Running)
                    && *at != index
            };
            if queues && let Some((_, other)) = runs.iter().enumerate().find(is_before) {
                let message = format!("run {} of the same plan goes first", other.name);
                self.wait(run, message);
            } else {
                self.start_or_wait(run);
            }
        }
    }

    /// At most one of the others is active.
    fn exclusive(&mut self, runs: &[&'a PlanRun]) {
        let active = runs.iter().find(|run| run.phase() == Phase::Running).copied();
        // A run that is being ended keeps the others waiting.
        let ending = self.runs.iter().find(|run| {
            run.phase() == Phase::Running
                && self.ended.contains(run.name.as_str())
                && is_exclusive(run, self.situation.plans)
        });
        let ending = ending.map(|run| run.name.clone());
        let mut candidates: Vec<&PlanRun> = runs
            .iter()
            .filter(|run| !run.is_new() && run.phase() != Phase::Running)
            .filter(|run| run.phase() != Phase::Interrupted || self.may_go_on(run))
            .copied()
            .collect();
        candidates.sort_by_key(|run| rank(run));
        let first = candidates.first().copied();
        let precedes = |first: &PlanRun, active: &PlanRun| {
            let only_asks = active.status.as_ref().is_some_and(RunStatus::only_asks);
            only_asks || rank(first) < rank(active) && self.is_interruptible(active)
        };
        let chosen = match (ending, active, first) {
            (Some(ending), active, _) => {
                self.keep(active);
                Err(ending)
            }
            (None, Some(active), Some(first)) if precedes(first, active) => {
                let parked = active.status.as_ref().is_some_and(RunStatus::only_asks);
                let message = format!("run {} goes first", first.name);
                // The number of answers is stored when it has ended, by `advance`.
                let reason = if parked { "AwaitsApproval" } else { "Interrupted" };
                let ending = Ending { phase: Phase::Interrupted, reason, message };
                self.agenda.active.push((active.name.clone(), Directive::Settle(ending)));
                Err(active.name.clone())
            }
            (None, Some(active), _) => {
                self.keep(Some(active));
                Err(active.name.clone())
            }
            (None, None, Some(first)) => {
                self.start_or_wait(first);
                Ok(first.name.clone())
            }
            (None, None, None) => return,
        };
        let (Ok(goes_first) | Err(goes_first)) = &chosen;
        for run in runs {
            if run.name != *goes_first && !run.is_new() && run.phase() != Phase::Running {
                self.wait(run, format!("run {goes_first} goes first"));
            }
        }
    }

    fn keep(&mut self, active: Option<&PlanRun>) {
        if let Some(active) = active {
            self.agenda.active.push((active.name.clone(), Directive::Continue));
        }
    }

    fn start_or_wait(&mut self, run: &'a PlanRun) {
        if self.situation.paused {
            return self.wait(run, "the instance is paused");
        }
        let cause = run.cause();
        let situation = self.situation;
        let is_new = run.phase() == Phase::Pending && run.spec.retry_of.is_none();
        if is_new && cause == Cause::Condition {
            let verdict = situation.conditions.iter().find(|(plan, _)| *plan == run.spec.plan);
            if verdict.is_none_or(|(_, verdict)| *verdict == Verdict::Cleared) {
                return self.end(run, Phase::Cancelled, "Cleared", "the condition does not hold any more");
            }
        }
        let mut start = self.start(run);
        if is_new && cause == Cause::Loss {
            start.lost = match situation.losses.iter().find(|(plan, _)| *plan == run.spec.plan) {
                Some((_, lost)) if !lost.is_empty() => lost.clone(),
                _ => return self.end(run, Phase::Cancelled, "Cleared", "no child is lost any more"),
            };
        }
        if is_new && cause == Cause::Rollout {
            match &situation.rollout {
                Some(rollout) => start.plans.clone_from(&rollout.plans),
                None => {
                    return self.end(
                        run,
                        Phase::Superseded,
                        "NothingToDo",
                        "nothing is left to be rolled out",
                    );
                }
            }
            start.approvals = self.carried();
        }
        if !self.begin(run) {
            return;
        }
        start.exclusive = Some(is_exclusive(run, situation.plans));
        start.interruptible = Some(self.allows_interruption(&start.plans));
        let status = match (&run.status, &run.spec.retry_of) {
            (Some(status), _) if run.phase() == Phase::Interrupted => resumed(status),
            (_, Some(failed)) => match self.retried(failed) {
                Some(status) => status,
                None => {
                    return self.end(run, Phase::Failed, "NotRetryable", format!("run `{failed}` is gone"));
                }
            },
            _ => started(run, start, situation.now),
        };
        self.write(run, status);
    }

    /// What a run starts with.
    pub(super) fn start(&self, run: &PlanRun) -> Start {
        let newest = &self.situation.newest;
        Start {
            cause: run.cause(),
            plans: vec![run.spec.plan.clone()],
            origin: Some(newest.name.to_owned()),
            revision: Some(newest.revision.to_owned()),
            ..Start::default()
        }
    }

    pub(super) fn retried(&self, failed: &str) -> Option<RunStatus> {
        let failed = self.runs.iter().find(|run| run.name == failed)?;
        failed.status.as_ref().map(|_| retried(failed, self.situation.now))
    }

    /// The approvals of rollouts that were decided again and did not end by themselves.
    fn carried(&self) -> Vec<super::super::run::Approval> {
        let rollouts = self
            .runs
            .iter()
            .rev()
            .filter(|run| run.cause() == Cause::Rollout && run.phase() != Phase::Pending);
        let replaced =
            rollouts.take_while(|run| matches!(run.phase(), Phase::Superseded | Phase::Interrupted));
        let mut found = Vec::new();
        for run in replaced {
            found.extend(answered(run));
        }
        found.dedup();
        found
    }

    /// The writes before a run becomes active. `true`: all are done.
    pub(super) fn begin(&mut self, run: &PlanRun) -> bool {
        if run.taken() != Some(run.uid.as_str()) {
            self.agenda.writes.push(RunWrite::Take { run: run.name.clone() });
            return false;
        }
        if is_exclusive(run, self.situation.plans) && self.situation.announced != Some(run.uid.as_str()) {
            self.agenda.writes.push(RunWrite::Announce { run: run.name.clone() });
            return false;
        }
        true
    }
}

/// Runs with a lower rank go first; of one rank the older.
fn rank(run: &PlanRun) -> u8 {
    match run.cause() {
        Cause::Cleanup => 0,
        Cause::Loss | Cause::Condition => 1,
        Cause::Rollout | Cause::Request | Cause::Schedule | Cause::Deletion => 2,
    }
}
