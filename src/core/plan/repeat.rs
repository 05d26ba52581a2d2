//! Runs in a row: what starts a run is still there when it has ended, or comes back soon. Each of them waits longer than the one
//! before, and from some point on they let all other runs of the instance go first.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::history::LISTED;
use super::run::{Cause, Phase, RunStatus};
use crate::backoff::Backoff;

/// The wait after runs in a row that have succeeded.
const AFTER_SUCCESS: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(60 * 60));
/// The wait after runs in a row of which the last has failed or was cancelled.
const AFTER_FAILURE: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(5 * 60));
/// A run that begins within this time after another one, or within twice the wait, is in one row with it; and one whose condition has
/// held ever since, however long it has to hold.
const SOON: Duration = Duration::from_secs(30);
/// The number of runs in a row of which the last has succeeded, or has not, after which the next one lets all others go first.
const URGENT: (u32, u32) = (2, 6);

/// A plan that runs again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeating {
    /// The plan.
    pub plan: String,
    /// What starts it.
    pub cause: Cause,
    /// How many of its runs have ended in a row.
    pub count: u32,
    /// Whether the last of them has not succeeded.
    pub is_in_vain: bool,
    /// When the next one begins; `None` if it has begun, or waits for other runs.
    pub next: Option<Timestamp>,
}

/// How many rollouts of an instance may end within that time. It is at most the number of runs that are remembered.
const MOST_ROLLOUTS: (usize, Duration) = (LISTED, Duration::from_secs(2 * 60));

/// The runs of one plan and cause in a row, of which the last has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// How many they are.
    pub(super) count: u32,
    /// When the next one may begin.
    pub(super) next: Timestamp,
    /// Whether the next one lets all others go first.
    pub(super) yields: bool,
    /// Whether the last one has not succeeded.
    pub(super) is_in_vain: bool,
}

impl Row {
    /// The row of rollouts that have ended in a short time; `None` if they are few.
    pub(super) fn rush<'r>(rollouts: impl Iterator<Item = &'r RunStatus>, now: Timestamp) -> Option<Self> {
        let (most, within) = MOST_ROLLOUTS;
        let finished = |status: &RunStatus| status.finished_at.as_ref()?.parse::<Timestamp>().ok();
        let mut ends: Vec<Timestamp> = rollouts.filter_map(finished).filter(|end| *end <= now).collect();
        ends.sort_unstable();
        let first = ends.iter().rev().nth(most.checked_sub(1)?)?;
        let next = first.checked_add(SignedDuration::try_from(within).ok()?).ok()?;
        let count = u32::try_from(most).unwrap_or(u32::MAX);
        (next > now).then_some(Self { count, next, yields: false, is_in_vain: false })
    }

    /// The row that ends with a run in that state; `None` if a run that begins now is the first of another row. `free`: how many
    /// runs that have succeeded another one follows without a wait. `stays`: whether the reason has been there ever since.
    pub(super) fn after(last: &RunStatus, free: u32, stays: bool, now: Timestamp) -> Option<Self> {
        let (backoff, urgent, is_in_vain) = match last.phase {
            Phase::Succeeded => (AFTER_SUCCESS, URGENT.0, false),
            Phase::Failed | Phase::Cancelled => (AFTER_FAILURE, URGENT.1, true),
            Phase::Superseded | Phase::Pending | Phase::Running | Phase::Interrupted => return None,
        };
        let finished: Timestamp = last.finished_at.as_ref()?.parse().ok()?;
        let passed = now.duration_since(finished);
        let count = last.repeats.saturating_add(1);
        let waits = if is_in_vain { count } else { count.saturating_sub(free) };
        let wait = if waits == 0 { Duration::ZERO } else { backoff.exact(waits) };
        let window = SignedDuration::try_from(SOON.max(2 * wait)).ok()?;
        // After a clock was set back, the end is in the future.
        if passed < -window || (passed > window && !stays) {
            return None;
        }
        let next = finished.checked_add(SignedDuration::try_from(wait).ok()?).ok()?;
        Some(Self { count, next, yields: count >= urgent, is_in_vain })
    }

    /// How long the next run waits.
    pub(super) fn rest(self, now: Timestamp) -> Duration {
        Duration::try_from(self.next.duration_since(now)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(phase: Phase, repeats: u32, passed: i64) -> Option<(u32, u64, bool)> {
        row_of(phase, repeats, passed, 0)
    }

    fn row_of(phase: Phase, repeats: u32, passed: i64, free: u32) -> Option<(u32, u64, bool)> {
        let finished = Timestamp::from_second(1_800_000_000).unwrap();
        let last =
            RunStatus { phase, repeats, finished_at: Some(finished.to_string()), ..RunStatus::default() };
        let now = finished.checked_add(SignedDuration::from_secs(passed)).unwrap();
        let row = Row::after(&last, free, false, now)?;
        assert_eq!(row.next.duration_since(now).as_secs().max(0), row.rest(now).as_secs().cast_signed());
        Some((row.count, row.rest(now).as_secs(), row.yields))
    }

    #[test]
    fn each_run_in_a_row_waits_longer() {
        assert_eq!(row(Phase::Succeeded, 0, 0), Some((1, 10, false)));
        assert_eq!(row(Phase::Succeeded, 1, 5), Some((2, 15, true)));
        assert_eq!(row(Phase::Succeeded, 2, 100), None, "it is no row any more");
        assert_eq!(row(Phase::Succeeded, 20, 0), Some((21, 3600, true)));
        assert_eq!(row(Phase::Failed, 4, 0), Some((5, 160, false)));
        assert_eq!(row(Phase::Cancelled, 20, 0), Some((21, 300, true)));
        assert_eq!(row(Phase::Superseded, 20, 0), None);
    }

    #[test]
    fn some_runs_of_a_row_need_not_wait() {
        let rest = |phase, repeats| row_of(phase, repeats, 0, 3).map(|(_, rest, _)| rest);
        assert_eq!(
            [0, 2, 3, 4].map(|repeats| rest(Phase::Succeeded, repeats)),
            [Some(0), Some(0), Some(10), Some(20)]
        );
        assert_eq!(rest(Phase::Failed, 0), Some(10));
    }

    #[test]
    fn a_run_that_begins_soon_is_in_the_row() {
        assert_eq!(row(Phase::Succeeded, 0, 30), Some((1, 0, false)));
        assert_eq!(row(Phase::Succeeded, 0, 31), None);
        assert_eq!(row(Phase::Succeeded, 3, 160), Some((4, 0, true)));
        assert_eq!(row(Phase::Succeeded, 3, 161), None);
    }

    #[test]
    fn a_row_does_not_end_while_its_reason_stays() {
        let finished = Timestamp::from_second(1_800_000_000).unwrap();
        let (phase, finished_at) = (Phase::Succeeded, Some(finished.to_string()));
        let last = RunStatus { phase, repeats: 5, finished_at, ..RunStatus::default() };
        let count = |passed: i64, stays: bool| {
            let now = finished.checked_add(SignedDuration::from_secs(passed)).unwrap();
            Row::after(&last, 0, stays, now).map(|row| row.count)
        };
        assert_eq!([count(86_400, true), count(86_400, false), count(-86_400, true)], [Some(6), None, None]);
    }

    #[test]
    fn rollouts_have_a_highest_rate() {
        let end = |second: i64| {
            let end = Timestamp::from_second(1_800_000_000 + second).unwrap();
            RunStatus { finished_at: Some(end.to_string()), ..RunStatus::default() }
        };
        let rest = |count: i64, now: i64| {
            let ended: Vec<RunStatus> = (0..count).map(|number| end(number * 3)).collect();
            let now = Timestamp::from_second(1_800_000_000 + now).unwrap();
            Row::rush(ended.iter(), now).map(|row| row.rest(now).as_secs())
        };
        assert_eq!(rest(9, 30), None);
        assert_eq!(rest(10, 30), Some(90));
        assert_eq!(rest(12, 40), Some(86));
        assert_eq!(rest(10, 120), None);
    }

    #[test]
    fn a_clock_that_is_set_back_holds_nothing_back() {
        assert_eq!(row(Phase::Succeeded, 0, -3600), None);
        assert_eq!(row(Phase::Succeeded, 0, -1), Some((1, 11, false)));
    }
}
