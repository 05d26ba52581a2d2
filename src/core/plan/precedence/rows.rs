//! Runs that the manager starts again and again: how long the next one waits, and what is said of it.

use std::time::Duration;

use jiff::SignedDuration;

use super::super::member::Member;
use super::super::origin::is_other_digest;
use super::super::repeat::{Repeating, Row};
use super::super::run::{CAUSE, Cause, Phase, PlanRun, RunStatus};
use super::super::select::is_named;
use super::{CLEARED, Rules};

/// How many rollouts that nobody has asked for may follow each other at once: the facts of one may lead to another, and several
/// objects that it reads may come or change at a time.
const FREE: u32 = 3;

/// How an origin differs from the newest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Difference {
    /// By nothing that matters to a rollout.
    None,
    /// By what the instance reads.
    Refs,
    /// By the instance or its package.
    Instance,
}

impl<'a> Rules<'a> {
    /// The newest run of a plan that the manager has started for a cause, and that has ended. One that was not needed any more when
    /// its turn came does not count.
    fn last(&self, cause: Cause, plan: &str) -> Option<&'a RunStatus> {
        let ended = self.runs.iter().rev().filter(|run| run.is_final() && run.cause() == cause);
        let mut ended = ended.filter(|run| run.spec.plan == plan).filter_map(|run| run.status.as_ref());
        ended.find(|status| status.reason != CLEARED)
    }

    /// The newest rollout that has started.
    pub(super) fn last_rollout(&self) -> Option<&'a RunStatus> {
        let rollouts = self.runs.iter().rev().filter(|run| run.cause() == Cause::Rollout);
        rollouts.filter_map(|run| run.status.as_ref()).find(|status| status.origin.is_some())
    }

    /// The row that a run of a plan for its condition would continue.
    fn row_of_condition(&self, plan: &str) -> Option<Row> {
        let stays = self.situation.staying.iter().any(|staying| staying == plan);
        Row::after(self.last(Cause::Condition, plan)?, 0, stays, self.situation.now)
    }

    /// The row that a run for lost children would continue: that for none of them is another one, unless it has failed.
    fn row_of_loss(&self, plan: &str, is_same: impl Fn(&RunStatus) -> bool) -> Option<Row> {
        let last = self.last(Cause::Loss, plan)?;
        Row::after(last, 0, false, self.situation.now)
            .filter(|_| last.phase != Phase::Succeeded || is_same(last))
    }

    /// The row that a rollout would continue which nobody has asked for: the instance and its package are as they were.
    fn row_of_rollout(&self) -> Option<Row> {
        let last = self.last_rollout()?;
        let is_unasked = self.difference(last.origin.as_deref()?) != Difference::Instance;
        Row::after(last, FREE, false, self.situation.now).filter(|_| is_unasked)
    }

    /// The row of many rollouts in a short time, each of another spec: a plan may edit its own instance.
    fn rush(&self) -> Option<Row> {
        let ended = |run: &&PlanRun| run.is_final() && run.cause() == Cause::Rollout;
        let rollouts = self.runs.iter().copied().filter(ended).filter_map(|run| run.status.as_ref());
        Row::rush(rollouts, self.situation.now)
    }

    /// How many runs went before a run in a row, and whether it lets all others go first.
    pub(super) fn in_row(&self, run: &PlanRun) -> (u32, bool) {
        if let Some(status) = &run.status {
            return (status.repeats, status.yields);
        }
        if !run.annotations.contains_key(CAUSE) {
            return (0, false);
        }
        let plan = &run.spec.plan;
        let row = match run.cause() {
            Cause::Condition => self.row_of_condition(plan),
            Cause::Loss => self.row_of_loss(plan, |last| {
                let mut lost = self.lost(plan);
                lost.any(|member| last.lost.contains(member))
            }),
            Cause::Rollout => self.row_of_rollout(),
            Cause::Request | Cause::Schedule | Cause::Cleanup | Cause::Deletion => None,
        };
        row.map_or((0, false), |row| (row.count, row.yields))
    }

    /// The children that a plan is to restore.
    pub(super) fn lost(&self, plan: &str) -> impl Iterator<Item = &'a Member> {
        let losses = self.situation.losses.iter().filter(move |(name, _)| name == plan);
        losses.flat_map(|(_, lost)| lost)
    }

    /// Whether a run for a condition has to wait, because others of its plan have ended a moment ago.
    pub(super) fn condition_waits(&mut self, plan: &str) -> bool {
        self.waits(Cause::Condition, plan, self.row_of_condition(plan))
    }

    /// The same for a run for these lost children. Members that the last run was not for do not wait.
    pub(super) fn loss_waits(&mut self, plan: &str, unattended: &[Member]) -> bool {
        let is_same = |last: &RunStatus| unattended.iter().all(|member| last.lost.contains(member));
        self.waits(Cause::Loss, plan, self.row_of_loss(plan, is_same))
    }

    /// The same for a rollout.
    pub(super) fn rollout_waits(&mut self, plan: &str) -> bool {
        self.waits(Cause::Rollout, plan, self.row_of_rollout().or_else(|| self.rush()))
    }

    fn waits(&mut self, cause: Cause, plan: &str, row: Option<Row>) -> bool {
        let now = self.situation.now;
        let Some(row) = row.filter(|row| !row.rest(now).is_zero()) else { return false };
        self.wake_after(row.rest(now));
        let (plan, next) = (plan.to_owned(), Some(row.next));
        let Row { count, is_in_vain, .. } = row;
        self.agenda.repeating.push(Repeating { plan, cause, count, is_in_vain, next });
        true
    }

    /// Notes that a condition stays which counts again only after this time, once two runs for it have ended in a row.
    pub(super) fn note_staying(&mut self, plan: &str, rest: Duration) {
        let Some(row) = self.row_of_condition(plan).filter(|row| row.count > 1) else { return };
        let counts = self.situation.now.checked_add(SignedDuration::try_from(rest).unwrap_or_default());
        let (plan, next) = (plan.to_owned(), Some(row.next.max(counts.unwrap_or(row.next))));
        let Row { count, is_in_vain, .. } = row;
        self.agenda.repeating.push(Repeating { plan, cause: Cause::Condition, count, is_in_vain, next });
    }

    /// Notes the runs that have been started again and have not ended.
    pub(super) fn note_repeating(&mut self) {
        for run in self.open() {
            if let Some(status) = run.status.as_ref().filter(|status| status.repeats > 0) {
                let (plan, cause, count) = (run.spec.plan.clone(), status.cause, status.repeats);
                let is_in_vain = self.last(cause, &plan).is_some_and(|last| last.phase != Phase::Succeeded);
                self.agenda.repeating.push(Repeating { plan, cause, count, is_in_vain, next: None });
            }
        }
    }

    /// How the origin of that name differs from the newest.
    pub(super) fn difference(&self, name: &str) -> Difference {
        let newest = &self.situation.newest;
        let Some(origin) = self.situation.origins.iter().find(|origin| origin.name == name) else {
            return if name == newest.name { Difference::None } else { Difference::Instance };
        };
        let is_other =
            |id: &str, now: &str| origin.refs.get(id).is_none_or(|then| is_other_digest(then, now));
        let matters = |id: &str| is_named(self.situation.plans, id) || (self.situation.is_read)(id);
        if origin.revision != newest.revision
            || (origin.spec, origin.labels, origin.annotations)
                != (newest.spec, newest.labels, newest.annotations)
        {
            Difference::Instance
        } else if newest.refs.iter().any(|(id, now)| is_other(id, now) && matters(id)) {
            Difference::Refs
        } else {
            Difference::None
        }
    }
}
