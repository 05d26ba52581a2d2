//! What a transition of a run has ended, for metrics.

use std::time::Duration;

use jiff::Timestamp;

use super::run::{PlanRun, RunStatus};
use super::step_state::{StepPhase, StepState};

/// A run, or a step of it, that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The path of the step without the keys of items; `None` for the run itself.
    pub step: Option<String>,
    /// How long it took, pauses included.
    pub duration: Duration,
}

/// What has ended when a run gets its next status. Steps that were skipped, and those that a run takes over from the run
/// that it retries, have not run.
pub fn ended(run: &PlanRun, next: &RunStatus) -> Vec<Ended> {
    let mut ended = Vec::new();
    if let Some(before) = &run.status {
        let was_final = |path: &str| before.step(path).is_some_and(|step| step.phase.is_final());
        // A loop has the path of its items.
        let has_run = |step: &&StepState| {
            matches!(step.phase, StepPhase::Succeeded | StepPhase::Failed) && step.items.is_none()
        };
        let steps = next.steps.iter().filter(has_run).filter(|step| !was_final(&step.path));
        ended.extend(steps.map(|step| Ended {
            step: Some(without_keys(&step.path)),
            duration: between(step.started_at.as_deref(), step.finished_at.as_deref()),
        }));
    }
    if next.phase.is_final() && !run.is_final() {
        let duration = between(next.started_at.as_deref(), next.finished_at.as_deref());
        ended.push(Ended { step: None, duration });
    }
    ended
}

fn between(start: Option<&str>, end: Option<&str>) -> Duration {
    let time = |text: Option<&str>| text.and_then(|text| text.parse::<Timestamp>().ok());
    let (Some(start), Some(end)) = (time(start), time(end)) else { return Duration::ZERO };
    Duration::try_from(end.duration_since(start)).unwrap_or_default()
}

/// The path without item keys: `leaving/sure` for `leaving[prod]/sure`. Keys contain no brackets.
fn without_keys(path: &str) -> String {
    let mut parts = path.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |path, part| path + part.split_once(']').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(status: &serde_json::Value) -> PlanRun {
        PlanRun::parse(&json!({"metadata": {"name": "a-1"}, "spec": {"plan": "move"}, "status": status}))
            .unwrap()
    }

    #[test]
    fn ended_steps_and_runs_are_measured_once() {
        let step = |path: &str, phase: &str, end: &str| json!({"path": path, "phase": phase, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": end});
        let before = run(&json!({"phase": "Running", "startedAt": "2026-01-01T00:00:00Z", "steps": [
            step("done", "Succeeded", "2026-01-01T00:00:01Z"), step("leaving[a.b]/sure[0]", "Running", ""),
        ]}));
        let mut next = run(&json!({"phase": "Failed", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z",
            "steps": [
                step("done", "Succeeded", "2026-01-01T00:00:01Z"),
                step("leaving[a.b]/sure[0]", "Failed", "2026-01-01T00:00:02.5Z"),
                step("skipped", "Skipped", "2026-01-01T00:00:02Z"),
                json!({"path": "leaving", "phase": "Failed", "items": []}),
            ]}))
        .status
        .unwrap();
        let of = |step: Option<&str>, milliseconds| Ended {
            step: step.map(str::to_owned),
            duration: Duration::from_millis(milliseconds),
        };
        assert_eq!(ended(&before, &next), [of(Some("leaving/sure"), 2_500), of(None, 60_000)]);
        // A step or run that had ended before is not measured again.
        let after = PlanRun { status: Some(next.clone()), ..before.clone() };
        assert_eq!(ended(&after, &next), []);
        // A retry takes over steps. The clock may go back.
        next.finished_at = Some("2025-01-01T00:00:00Z".to_owned());
        assert_eq!(ended(&PlanRun { status: None, ..before }, &next), [of(None, 0)]);
    }
}
