//! What is kept of runs that have ended.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::run::{Cause, PRUNABLE, Phase, PlanRun, RECORD, Recorded};

/// How many runs the status of an instance lists.
const LISTED: usize = 10;
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
    /// Where it stands.
    pub phase: Phase,
    /// What has started it.
    pub cause: Cause,
    /// Why, one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, a sentence.
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
    /// Of a run.
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

/// Runs from the oldest to the newest.
pub fn sorted<'r>(runs: impl IntoIterator<Item = &'r PlanRun>) -> Vec<&'r PlanRun> {
    let mut runs: Vec<&PlanRun> = runs.into_iter().collect();
    runs.sort_by_cached_key(|run| (&run.created, run.number().unwrap_or(u64::MAX), &run.name));
    runs
}

/// The last runs that have ended, newest first.
pub fn history(runs: &[PlanRun]) -> Vec<Summary> {
    let mut ended: Vec<&PlanRun> = runs.iter().filter(|run| run.is_final()).collect();
    ended.sort_by_key(|run| {
        // Texts with and without fractions of a second do not compare as times do.
        let finished = run.status.as_ref().and_then(|status| status.finished_at.as_ref());
        (finished.and_then(|text| text.parse::<Timestamp>().ok()), &run.created, run.number())
    });
    ended.iter().rev().take(LISTED).map(|run| Summary::of(run)).collect()
}

/// The runs that have ended and do not repeat the record of the instance yet.
pub fn without_record(runs: &[PlanRun]) -> impl Iterator<Item = &PlanRun> {
    runs.iter().filter(|run| run.is_final() && !run.deleting && !run.annotations.contains_key(RECORD))
}

/// The runs that are not needed any more.
pub fn prunable(runs: &[PlanRun], now: Timestamp) -> Vec<&PlanRun> {
    let sorted = sorted(runs);
    let needed = needed(&sorted);
    let oldest = now.checked_sub(SignedDuration::from_hours(KEPT_HOURS)).unwrap_or(now).to_string();
    let ended = sorted.iter().filter(|run| run.is_final()).count();
    let mut surplus = ended.saturating_sub(KEPT);
    let mut found = Vec::new();
    for run in &sorted {
        if !run.is_final()
            || run.deleting
            || run.annotations.get(PRUNABLE).is_none_or(|value| value != "true")
        {
            continue;
        }
        let is_old = run
            .status
            .as_ref()
            .and_then(|status| status.finished_at.as_ref())
            .is_some_and(|end| *end < oldest);
        if (surplus > 0 || is_old) && !needed.contains(run.name.as_str()) {
            surplus = surplus.saturating_sub(1);
            found.push(*run);
        }
    }
    let kept: BTreeSet<&str> = found.iter().map(|run| run.name.as_str()).collect();
    // Facts that only a pruned run holds would be lost.
    let held = facts(sorted.iter().filter(|run| !kept.contains(run.name.as_str())).copied());
    found.retain(|run| {
        run.recorded()
            .iter()
            .all(|(key, fact)| held.get(key).is_some_and(|known| known.sequence >= fact.sequence))
    });
    found
}

fn facts<'r>(runs: impl Iterator<Item = &'r PlanRun>) -> BTreeMap<String, Recorded> {
    super::record(runs)
}

/// The names of the runs that something is still decided from. `runs`: from the oldest.
fn needed<'r>(runs: &[&'r PlanRun]) -> BTreeSet<&'r str> {
    let mut needed = BTreeSet::new();
    let mut plans = BTreeSet::new();
    let mut is_rolled_out = false;
    for run in runs.iter().rev() {
        // The newest of all, of each plan and of each cause: numbers, cooldowns and schedules continue from it.
        if plans.insert((run.spec.plan.as_str(), run.cause().as_str())) {
            needed.insert(run.name.as_str());
        }
        let Some(status) = &run.status else { continue };
        let is_rollout = status.cause == Cause::Rollout;
        // Since the last rollout: origins of children, and children that are absent.
        if !is_rolled_out && (is_rollout || !status.deleted.is_empty() || !status.applied.is_empty()) {
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
    use crate::plan::{Of, RunSpec, RunStatus};
    use serde_json::json;

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
    fn old_runs_are_pruned_unless_something_is_decided_from_them() {
        let mut runs = vec![run(1, "deploy", Cause::Rollout, Phase::Succeeded)];
        runs.extend((2..50).map(|number| run(number, "backup", Cause::Schedule, Phase::Succeeded)));
        let record =
            |value: u64, sequence| [("a".to_owned(), Recorded { value: json!(value), sequence })].into();
        runs[3].status.as_mut().unwrap().record = record(1, 1);
        runs[4].annotations.remove(PRUNABLE);
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let names = |runs: &[PlanRun], now| {
            prunable(runs, now).iter().map(|run| run.name.clone()).collect::<Vec<_>>()
        };
        let pruned = names(&runs, now);
        assert_eq!(pruned.len(), 18);
        for kept in ["x-1", "x-4", "x-5", "x-49"] {
            assert!(!pruned.contains(&kept.to_owned()), "{kept}");
        }
        // Another one holds the fact now.
        let held: BTreeMap<String, Recorded> = record(2, 2);
        runs[40].annotations.insert(RECORD.into(), serde_json::to_string(&held).unwrap());
        assert!(names(&runs, now).contains(&"x-4".to_owned()));
        assert_eq!(super::super::record(&runs)["a"].value, json!(2));
        // By age. x-4 follows when the run that holds its fact is kept.
        assert_eq!(names(&runs, "2026-06-01T00:00:00Z".parse().unwrap()).len(), 44);
        assert_eq!(history(&runs).len(), 10);
        assert_eq!(history(&runs)[0].name, "x-49");
    }
}
