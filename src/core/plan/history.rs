//! What is kept of runs that have ended.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::run::{Cause, PRUNABLE, Phase, PlanRun, RunStatus};

/// How many runs the status of an instance lists.
pub(super) const LISTED: usize = 10;
/// How many ended runs of an instance are kept.
const KEPT: usize = 30;
/// For how many hours an ended run is kept.
const KEPT_HOURS: i64 = 30 * 24;

/// A run, as the status of its instance shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The name of the `PlanRun`.
    pub name: String,
    /// Its plans.
    pub plans: Vec<String>,
    /// Its phase.
    pub phase: Phase,
    /// What has started it.
    pub cause: Cause,
    /// The reason, one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message, a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
}

impl Summary {
    /// The summary of a run.
    pub fn of(run: &PlanRun) -> Self {
        let status = run.status.clone().unwrap_or_default();
        Self {
            name: run.name.clone(),
            plans: run.plans().to_vec(),
            phase: status.phase,
            cause: run.cause(),
            reason: status.reason,
            message: status.message,
            started_at: status.started_at,
            finished_at: status.finished_at,
        }
    }
}

/// When a run started, or was created if it has not started. Texts with and without fractions of a second do not compare as
/// times do.
pub fn start_time(status: Option<&RunStatus>, created: &str) -> Option<Timestamp> {
    status.and_then(|status| status.started_at.as_deref()).unwrap_or(created).parse().ok()
}

/// Runs from the oldest to the newest.
pub fn sorted<'r>(runs: impl IntoIterator<Item = &'r PlanRun>) -> Vec<&'r PlanRun> {
    let mut runs: Vec<&PlanRun> = runs.into_iter().collect();
    runs.sort_by_cached_key(|run| (&run.created, run.number().unwrap_or(u64::MAX), &run.name));
    runs
}

/// The last runs that have ended, newest first.
pub fn history<'r>(runs: impl IntoIterator<Item = &'r PlanRun>) -> Vec<Summary> {
    let mut ended: Vec<&PlanRun> = runs.into_iter().filter(|run| run.is_final()).collect();
    ended.sort_by_key(|run| {
        // Texts with and without fractions of a second do not compare as times do.
        let finished = run.status.as_ref().and_then(|status| status.finished_at.as_ref());
        (finished.and_then(|text| text.parse::<Timestamp>().ok()), &run.created, run.number())
    });
    ended.iter().rev().take(LISTED).map(|run| Summary::of(run)).collect()
}

/// The `PlanRun`s that have ended and may be deleted. They are history: nothing is decided from them, unless
/// a run resumes them.
pub fn prunable<'r>(runs: impl IntoIterator<Item = &'r PlanRun>, now: Timestamp) -> Vec<&'r PlanRun> {
    let sorted = sorted(runs);
    let oldest = now.checked_sub(SignedDuration::from_hours(KEPT_HOURS)).unwrap_or(now).to_string();
    let is_resumed = |run: &PlanRun| {
        let mut open = sorted.iter().filter(|other| !other.is_final());
        open.any(|other| other.spec.retry_of.as_ref() == Some(&run.name))
    };
    let is_kept_by_user = |run: &PlanRun| run.annotations.get(PRUNABLE).is_none_or(|value| value != "true");
    let ended: Vec<&PlanRun> =
        sorted.iter().filter(|run| run.is_final() && run.has_object() && !run.deleting).copied().collect();
    let mut surplus = ended.len().saturating_sub(KEPT);
    let mut found = Vec::new();
    for run in ended {
        let finished = run.status.as_ref().and_then(|status| status.finished_at.as_ref());
        let is_old = finished.is_some_and(|end| *end < oldest);
        if (surplus > 0 || is_old) && !is_kept_by_user(run) && !is_resumed(run) {
            surplus = surplus.saturating_sub(1);
            found.push(run);
        }
    }
    found
}

/// The names of the runs that are to be remembered, because something is still decided from them. `runs`:
/// from the oldest.
pub(super) fn needed<'r>(runs: &[&'r PlanRun]) -> BTreeSet<&'r str> {
    let mut needed = BTreeSet::new();
    let mut plans = BTreeSet::new();
    let mut is_rolled_out = false;
    for run in runs.iter().rev() {
        // The newest of all, of each plan and of each cause: numbers, cooldowns and schedules continue from it.
        if plans.insert((run.spec.plan.as_str(), run.cause().as_str())) {
            needed.insert(run.name.as_str());
        }
        let Some(status) = &run.status else { continue };
        // Since the last rollout: origins of children, and children that are absent.
        let has_changed = !status.deleted.is_empty() || !status.applied.is_empty();
        if !is_rolled_out && (run.has_rolled_out() || has_changed) {
            needed.insert(&run.name);
        }
        is_rolled_out |= run.has_rolled_out();
        // A run that another one retries.
        if let Some(retried) = &run.spec.retry_of
            && !run.is_final()
            && let Some(retried) = runs.iter().find(|other| other.name == *retried)
        {
            needed.insert(&retried.name);
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Known, Of, RunSpec};

    fn run(number: usize, plan: &str, cause: Cause, phase: Phase) -> PlanRun {
        let time = format!("2026-01-01T00:00:{number:02}Z");
        let of = Of { name: "x".into(), ..Of::default() };
        PlanRun {
            name: format!("x-{number}"),
            created: time.clone(),
            annotations: [(PRUNABLE.to_owned(), "true".to_owned())].into(),
            spec: RunSpec { of, plan: plan.into(), ..RunSpec::default() },
            status: Some(RunStatus { phase, cause, finished_at: Some(time), ..RunStatus::default() }),
            ..PlanRun::default()
        }
    }

    #[test]
    fn old_runs_are_pruned() {
        let mut runs = vec![run(1, "deploy", Cause::Rollout, Phase::Succeeded)];
        runs.extend((2..50).map(|number| run(number, "backup", Cause::Schedule, Phase::Succeeded)));
        runs[4].annotations.remove(PRUNABLE);
        runs[5].known = Known::Gone;
        let mut retry = run(50, "backup", Cause::Request, Phase::Running);
        retry.spec.retry_of = Some("x-4".into());
        runs.push(retry);
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let names = |runs: &[PlanRun], now| {
            prunable(runs, now).iter().map(|run| run.name.clone()).collect::<Vec<_>>()
        };
        let pruned = names(&runs, now);
        assert_eq!(pruned.len(), 18);
        for kept in ["x-4", "x-5", "x-6", "x-49", "x-50"] {
            assert!(!pruned.contains(&kept.to_owned()), "{kept}");
        }
        // Old runs are pruned whatever their number.
        assert_eq!(names(&runs, "2026-06-01T00:00:00Z".parse().unwrap()).len(), 46);
        assert_eq!(history(&runs).len(), 10);
        assert_eq!(history(&runs)[0].name, "x-49");
    }

    #[test]
    fn runs_that_decisions_depend_on_are_remembered() {
        let mut runs = vec![
            run(1, "deploy", Cause::Rollout, Phase::Succeeded),
            run(2, "deploy", Cause::Rollout, Phase::Succeeded),
            run(3, "backup", Cause::Schedule, Phase::Succeeded),
            run(4, "update", Cause::Rollout, Phase::Failed),
            run(5, "backup", Cause::Schedule, Phase::Succeeded),
        ];
        runs[3].status.as_mut().unwrap().applied = vec![crate::plan::Member::new("a", None)];
        let needed = needed(&sorted(&runs));
        assert_eq!(needed.into_iter().collect::<Vec<_>>(), ["x-2", "x-4", "x-5"]);
    }
}
