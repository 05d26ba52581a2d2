//! What starts plans: conditions, schedules, requests with parameters. Creation, edits, upgrades and losses are in
//! `rollouts`, deletion in `cleanup`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{DESK, Stage};
use crate::support::plans::{PLAN_RUN, phase, story_of};
use crate::support::{CONFIG_MAP, LONG, eventually};

const KIND: (&str, crate::support::ext::Kind) = ("Desk", DESK);

async fn desk(spec: Value) -> Stage {
    Stage::with(KIND, "d", spec).await
}

/// How many runs of a plan exist.
async fn count(stage: &Stage, plan: &str) -> usize {
    stage.runs("d").await.iter().filter(|run| run["spec"]["plan"] == plan).count()
}

#[tokio::test]
async fn condition_starts_its_plan_again_after_its_cooldown() {
    let stage = desk(json!({})).await;
    let started = Instant::now();
    stage.flag("d-alarm", json!({"on": "yes"})).await;
    let first = stage.run_of("d", "failover", |run| phase(run) == "Succeeded").await;
    assert!(started.elapsed() >= Duration::from_secs(1), "before its time");
    stage.until("the primary", CONFIG_MAP, "d-config", |o| o["data"]["primary"] == "1").await;
    // The condition is still true: there is a second run, but not before the cooldown is over.
    let second = eventually("the second run", LONG, async || {
        let mut runs = stage.runs("d").await;
        runs.retain(|run| run["spec"]["plan"] == "failover" && run["status"]["startedAt"].is_string());
        runs.retain(|run| run["metadata"]["uid"] != first["metadata"]["uid"]);
        runs.pop().ok_or("none")
    })
    .await;
    let at = |run: &Value, field: &str| -> jiff::Timestamp {
        run["status"][field].as_str().unwrap_or_default().parse().expect("a time")
    };
    let rest = at(&second, "startedAt").duration_since(at(&first, "finishedAt"));
    assert!(rest.as_secs() >= 4, "within the cooldown after {}", story_of(&first));
    stage.flag("d-alarm", json!({"on": "no"})).await;
}

/// The schedule starts a run each minute, named after that minute, and none while it is suspended.
#[tokio::test]
async fn a_schedule_starts_its_plan_once_a_minute() {
    let stage = desk(json!({"schedule": "* * * * *"})).await;
    stage.ready_with(KIND, "e", json!({"schedule": "* * * * *", "suspend": true})).await;
    let runs = eventually("two runs", LONG, async || {
        let mut runs = stage.runs("d").await;
        runs.retain(|run| run["spec"]["plan"] == "nightly" && phase(run) == "Succeeded");
        if runs.len() >= 2 { Ok(runs) } else { Err(runs.len()) }
    })
    .await;
    let minutes: BTreeSet<&str> = runs
        .iter()
        .map(|run| {
            run["status"]["startedAt"].as_str().unwrap_or_default().rsplit_once(':').unwrap_or_default().0
        })
        .collect();
    assert_eq!(minutes.len(), runs.len(), "{runs:#?}");
    assert_eq!(stage.runs("e").await.len(), 1, "it is suspended");
}

/// A schedule in the spec that is not a cron line is reported by a condition; nothing else changes.
#[tokio::test]
async fn an_invalid_schedule_is_reported() {
    let stage = desk(json!({})).await;
    for (line, word) in [("every day", "every day"), ("61 * * * *", "61"), ("@every banana", "banana")] {
        stage.edit(DESK, "d", json!({"schedule": line})).await;
        let says = |o: &Value| {
            let told = o["status"]["conditions"].to_string();
            told.contains("nightly") && told.contains(word)
        };
        stage.until(&format!("{line:?} is said"), DESK, "d", says).await;
    }
    stage.edit(DESK, "d", json!({"schedule": "0 3 * * *"})).await;
    stage.ready(DESK, "d").await;
    assert_eq!(count(&stage, "nightly").await, 0);
}

/// Parameters are checked against the plan's schema; a run with invalid parameters fails with the reason.
#[tokio::test]
async fn parameters_are_checked_against_the_schema_of_the_plan() {
    let stage = desk(json!({})).await;
    let cases = [
        (Value::Null, "mode"),
        (json!({}), "mode"),
        (json!({"mode": "ugly"}), "mode"),
        (json!({"mode": "good", "count": 0}), "count"),
        (json!({"mode": "good", "count": "three"}), "count"),
        (json!({"mode": "good", "colour": "red"}), "colour"),
    ];
    for (params, word) in cases {
        let run = stage.request(KIND, "d", "broken", &params).await;
        let run = stage.run_is(&run, "Failed").await;
        let story = run["status"].to_string();
        assert!(story.contains(word) && !story.contains("\"one\""), "{params}: {story}");
    }
    // A refused request is not a failure of the instance.
    stage.ready(DESK, "d").await;
}

#[tokio::test]
async fn request_for_a_missing_plan_or_instance_waits() {
    let stage = desk(json!({})).await;
    for (name, plan, word) in [("d", "sleep", "sleep"), ("nobody", "hold", "nobody")] {
        let run = stage.request(KIND, name, plan, &Value::Null).await;
        let says = |run: &Value| run["status"].to_string().contains(word);
        let run = stage.until("what is missing", PLAN_RUN, &run, says).await;
        // The plan or the instance may be created later: the request fails only after an hour.
        assert!(["", "Pending"].contains(&phase(&run)), "{}", story_of(&run));
    }
}

#[tokio::test]
async fn a_requested_run_is_immutable_but_can_be_cancelled() {
    let stage = desk(json!({"gate": "open"})).await;
    let run = stage.requested(KIND, "d", "hold", &Value::Null, "Running").await;
    for patch in [json!({"spec": {"plan": "queue"}}), json!({"spec": {"of": {"name": "other"}}})] {
        let told = stage
            .kubectl_input(&["patch", "planrun", &run, "--type=merge", "-p", &patch.to_string()], "")
            .await;
        let told = told.expect_err("it is immutable");
        assert!(told.contains("immutable"), "{patch}: {told}");
    }
    stage.cancel(&run).await;
    stage.run_is(&run, "Cancelled").await;
}
