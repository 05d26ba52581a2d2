//! Which of the runs that have not ended are active.

use std::cmp::Reverse;

use super::super::condition::ConditionState;
use super::super::progress::{Directive, Ending};
use super::super::run::{Cause, Known, Phase, PlanRun, RunStatus};
use super::super::start::{Start, answered, resumed, retried, started};
use super::{
    CLEARED, NEWER_REVISION, PAUSED, REFS_CHANGED, Rules, RunWrite, cause_of, goes_first, is_exclusive,
};
use crate::package::plan::Concurrency;

impl<'a> Rules<'a> {
    pub(super) fn order(&mut self) {
        let open = self.open();
        // They are reported, and tried again later.
        for run in open.iter().filter(|run| !run.is_new()) {
            if !self.is_held(run) {
                continue;
            }
            let status = Box::new(run.status.clone().unwrap_or_default());
            self.propose(RunWrite::Status { run: run.name.clone(), status });
        }
        let (exclusive, others): (Vec<&PlanRun>, Vec<&PlanRun>) =
            open.into_iter().partition(|run| is_exclusive(run, self.situation.plans));
        self.beside(&others);
        self.exclusive(&exclusive);
    }

    /// Runs that change no children are active beside others.
    fn beside(&mut self, runs: &[&'a PlanRun]) {
        for run in runs.iter().filter(|run| run.phase() == Phase::Running) {
            self.keep(run);
        }
        for (index, run) in runs.iter().enumerate() {
            if run.is_new() || run.phase() == Phase::Running || self.is_held(run) {
                continue;
            }
            let queues = self.plan(run).is_some_and(|plan| plan.concurrency != Concurrency::Forbid);
            let is_before = |(at, other): &(usize, &&PlanRun)| {
                other.spec.plan == run.spec.plan
                    && !self.is_held(other)
                    && (*at < index || other.phase() == Phase::Running)
                    && *at != index
            };
            if queues && let Some((at, other)) = runs.iter().enumerate().find(is_before) {
                let why = goes_first(&other.name);
                if other.phase() == Phase::Running
                    && !runs[at + 1..index].iter().any(|between| between.spec.plan == run.spec.plan)
                {
                    self.say(run, &why);
                }
                self.wait(run, why);
            } else {
                self.start_or_wait(run);
            }
        }
    }

    /// Decides which of the runs that change children is active: at most one.
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
            .filter(|run| !run.is_new() && run.phase() != Phase::Running && !self.is_held(run))
            .filter(|run| run.phase() != Phase::Interrupted || self.may_go_on(run))
            .copied()
            .collect();
        candidates.sort_by_key(|run| self.rank(run));
        let first = candidates.first().copied();
        let precedes = |first: &PlanRun, active: &PlanRun| {
            let only_asks = active.status.as_ref().is_some_and(RunStatus::only_asks);
            self.is_interruptible(active) && (only_asks || self.rank(first) < self.rank(active))
        };
        let chosen = match (ending, active, first) {
            (Some(ending), active, _) => {
                if let Some(active) = active {
                    self.keep(active);
                }
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
                self.keep(active);
                Err(active.name.clone())
            }
            (None, None, Some(first)) => {
                self.start_or_wait(first);
                Ok(first.name.clone())
            }
            (None, None, None) => return,
        };
        let (Ok(chosen) | Err(chosen)) = &chosen;
        let why = goes_first(chosen);
        if let Some(next) = candidates.iter().find(|run| run.name != *chosen) {
            self.say(next, &why);
        }
        for run in runs {
            if run.name != *chosen && !run.is_new() && run.phase() != Phase::Running && !self.is_held(run) {
                self.wait(run, why.clone());
            }
        }
    }

    /// Lets an active run go on, once it is marked as taken.
    fn keep(&mut self, active: &PlanRun) {
        if active.is_taken() {
            self.agenda.active.push((active.name.clone(), Directive::Continue));
        } else {
            self.take(active);
        }
    }

    pub(super) fn start_or_wait(&mut self, run: &'a PlanRun) {
        if self.situation.paused {
            return self.wait(run, PAUSED);
        }
        let situation = self.situation;
        let cause = cause_of(run, situation.runs);
        // What a rollout has done is known from its children, so it begins anew if its steps are not known any more.
        let retried = self.retried_by(run);
        let begins_anew = retried.is_some_and(|retried| retried.is_rollout() && retried.has_unknown_steps);
        let is_new = run.phase() == Phase::Pending && (run.spec.retry_of.is_none() || begins_anew);
        if is_new && cause == Cause::Condition {
            let verdict = situation.conditions.iter().find(|(plan, _)| *plan == run.spec.plan);
            if verdict.is_none_or(|(_, verdict)| *verdict == ConditionState::Cleared) {
                return self.end(run, Phase::Cancelled, CLEARED, "the condition does not hold any more");
            }
        }
        let mut start = self.start(run);
        let in_row = start.in_row;
        if is_new && cause == Cause::Loss {
            start.lost = match situation.losses.iter().find(|(plan, _)| *plan == run.spec.plan) {
                Some((_, lost)) if !lost.is_empty() => lost.clone(),
                _ => return self.end(run, Phase::Cancelled, CLEARED, "no child is lost any more"),
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
            start.key = self.key(run);
        }
        if !self.begin(run) {
            return;
        }
        start.exclusive = Some(is_exclusive(run, situation.plans));
        start.interruptible = Some(self.allows_interruption(&start.plans));
        let status = match (&run.status, &run.spec.retry_of) {
            (Some(status), _) if run.phase() == Phase::Interrupted => resumed(status),
            (_, Some(failed)) if !begins_anew => match self.retried(run) {
                Some(status) => RunStatus { repeats: in_row.0, yields: in_row.1, ..status },
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
            cause: cause_of(run, self.situation.runs),
            plans: vec![run.spec.plan.clone()],
            origin: Some(newest.name.to_owned()),
            revision: Some(newest.revision.to_owned()),
            in_row: self.in_row(run),
            ..Start::default()
        }
    }

    /// The run that a run retries.
    pub(super) fn retried_by(&self, run: &PlanRun) -> Option<&'a PlanRun> {
        let failed = run.spec.retry_of.as_ref()?;
        self.runs.iter().find(|run| run.name == *failed).copied()
    }

    /// The state with which a run begins that retries another.
    pub(super) fn retried(&self, run: &PlanRun) -> Option<RunStatus> {
        let failed = self.retried_by(run)?;
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

    /// Whether a run may start: it requests what was admitted, and is in the memory, which names it before it starts. A run that has
    /// started and that the memory does not name counts as restored.
    pub(super) fn begin(&mut self, run: &'a PlanRun) -> bool {
        if self.end_changed(run) {
            return false;
        }
        let exclusive = is_exclusive(run, self.situation.plans);
        let is_active = || self.situation.active == Some(run.uid.as_str());
        let is_registered = run.known != Known::No && (!exclusive || is_active());
        if !is_registered {
            self.propose(RunWrite::Register { run: run.name.clone(), exclusive });
        }
        is_registered
    }

    /// The key of a rollout: that of the newest one if it had the same origin and has not succeeded, so that
    /// repeated effects meet the first ones.
    /// A newer revision of the package alone, or another object that the instance reads, which took the place of a rollout that
    /// waited for approval, keeps the key too.
    fn key(&self, run: &PlanRun) -> Option<String> {
        let is_earlier_rollout = |other: &&&PlanRun| {
            let status = other.status.as_ref();
            other.uid != run.uid
                && other.cause() == Cause::Rollout
                && status.is_some_and(|status| status.origin.is_some() && !status.id.is_empty())
        };
        let last = self.runs.iter().rev().find(is_earlier_rollout)?;
        let status = last.status.as_ref()?;
        let newest = &self.situation.newest;
        let origin =
            self.situation.origins.iter().find(|origin| Some(origin.name) == status.origin.as_deref());
        let is_replaced = [NEWER_REVISION, REFS_CHANGED].contains(&status.reason.as_str())
            && origin.is_some_and(|origin| origin.spec == newest.spec);
        let is_same = is_replaced || status.origin.as_deref() == Some(newest.name);
        (is_same && !last.has_rolled_out()).then(|| status.key().to_owned())
    }
}

impl Rules<'_> {
    /// Runs with a lower rank go first; of one rank the older. One that is interrupted keeps its rank, so that it does not go on
    /// before the run that has interrupted it.
    pub(super) fn rank(&self, run: &PlanRun) -> (u8, Reverse<u8>, bool) {
        let class = match run.cause() {
            Cause::Cleanup => 0,
            Cause::Loss | Cause::Condition if self.in_row(run).1 => 3,
            Cause::Loss | Cause::Condition => 1,
            Cause::Rollout | Cause::Request | Cause::Schedule | Cause::Deletion => 2,
        };
        let named = run.plans().iter();
        let plans = named.filter_map(|name| self.situation.plans.iter().find(|plan| plan.name == *name));
        // A rollout with several plans is as urgent as the most urgent of them.
        let priority = plans.map(|plan| plan.priority).max().unwrap_or_default();
        let lets_others_in =
            run.status.as_ref().is_some_and(|status| status.step_interruptible == Some(true));
        (class, Reverse(priority), lets_others_in)
    }
}
