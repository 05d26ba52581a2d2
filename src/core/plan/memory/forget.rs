//! What the memory of an instance forgets, so that it does not grow with the number of runs.

use std::collections::{BTreeSet, HashSet};

use super::super::history::{LISTED, needed, sorted, start_time};
use super::super::run::{Cause, Phase, PlanRun};
use super::{Memory, RememberedRun};

impl Memory {
    /// Forgets the runs that nothing is decided from, and the children of ended runs that newer ones decide about.
    pub(super) fn pruned(mut self) -> Self {
        self.drop_repeated();
        self.drop_overtaken();
        let runs: Vec<PlanRun> = self.runs.iter().map(|run| run.run(&self.of)).collect();
        let sorted = sorted(&runs);
        let mut kept = needed(&sorted);
        kept.extend(sorted.iter().filter(|run| !run.is_final()).map(|run| run.name.as_str()));
        let ended = || sorted.iter().rev().filter(|run| run.is_final());
        kept.extend(ended().take(LISTED).map(|run| run.name.as_str()));
        // The highest rate of rollouts is measured by these: `Row::rush`.
        let rollouts = ended().filter(|run| run.cause() == Cause::Rollout);
        kept.extend(rollouts.take(LISTED).map(|run| run.name.as_str()));
        let kept: BTreeSet<String> = kept.into_iter().map(str::to_owned).collect();
        self.runs.retain(|run| kept.contains(&run.name));
        self
    }

    /// The positions of the runs that have ended, from the one that started first.
    fn ended(&self, is_such: impl Fn(&RememberedRun) -> bool) -> Vec<usize> {
        let is_ended = |run: &RememberedRun| run.state.phase.is_final() && is_such(run);
        let mut order: Vec<usize> = (0..self.runs.len()).filter(|at| is_ended(&self.runs[*at])).collect();
        order.sort_by_key(|at| start_time(Some(&self.runs[*at].state), &self.runs[*at].created));
        order
    }

    /// Of the rollouts since the last that has succeeded, the newest that has applied a child names it.
    fn drop_repeated(&mut self) {
        let mut order = self.ended(|run| run.state.cause == Cause::Rollout);
        while let Some(newest) = order.pop() {
            if self.runs[newest].state.phase == Phase::Succeeded {
                return;
            }
            let applied = self.runs[newest].state.applied.clone();
            for older in &order {
                let state = &mut self.runs[*older].state;
                let existed: Vec<_> = state
                    .applied
                    .iter()
                    .filter(|member| applied.contains(member) && !state.uncreated.contains(member))
                    .cloned()
                    .collect();
                if state.phase == Phase::Succeeded {
                    self.runs[newest].state.uncreated.retain(|member| !existed.contains(member));
                    continue;
                }
                state.applied.retain(|member| !applied.contains(member));
                state.uncreated.retain(|member| !applied.contains(member));
                self.runs[newest].state.uncreated.retain(|member| !existed.contains(member));
            }
        }
    }

    /// Runs that are no rollouts decide only whether a child is away: for each child the newest that has applied it, and after that one
    /// that has deleted it and succeeded, and one that has not.
    fn drop_overtaken(&mut self) {
        let order = self.ended(|_| true);
        let (mut applied, mut deleted, mut left) = (HashSet::new(), HashSet::new(), HashSet::new());
        for at in order.into_iter().rev() {
            let state = &mut self.runs[at].state;
            let has_succeeded = state.phase == Phase::Succeeded;
            if state.cause != Cause::Rollout {
                let by_newer = if has_succeeded { &deleted } else { &left };
                state.applied.retain(|member| !applied.contains(member));
                state.uncreated.retain(|member| !applied.contains(member));
                state.deleted.retain(|member| !applied.contains(member) && !by_newer.contains(member));
            } else if has_succeeded {
                return;
            }
            applied.extend(state.applied.iter().cloned());
            deleted.extend(state.deleted.iter().cloned());
            if !has_succeeded {
                left.extend(state.deleted.iter().cloned());
            }
        }
    }
}
