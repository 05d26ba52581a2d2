//! Rules between runs: order, interruption, settling of unanswered requests, retries, cancellation, history,
//! records.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{DESK, Stage, api};
use crate::support::plans::{ADMIN, PLAN_RUN, Reaction, phase, steps, story_of};
use crate::support::{CONFIG_MAP, JOB, LONG, condition, eventually, is_ready, name_of};

const KIND: (&str, crate::support::ext::Kind) = ("Desk", DESK);

async fn desk() -> Stage {
    Stage::with(KIND, "d", json!({})).await
}

async fn request(stage: &Stage, plan: &str) -> String {
    stage.request(KIND, "d", plan, &Value::Null).await
}

/// Requests a run and waits until it is Running.
async fn running(stage: &Stage, plan: &str) -> String {
    let run = request(stage, plan).await;
    stage.run_is(&run, "Running").await;
    run
}

async fn open(stage: &Stage) {
    stage.flag("d-gate", json!({"open": "yes"})).await;
}

async fn alarm(stage: &Stage, on: &str) {
    stage.flag("d-alarm", json!({"on": on})).await;
}

/// Exclusive runs take turns in order of arrival; a run that is not exclusive runs beside them.
#[tokio::test]
async fn exclusive_runs_take_turns_and_others_run_beside_them() {
    let stage = desk().await;
    let first = running(&stage, "hold").await;
    let second = stage.request(KIND, "d", "broken", &json!({"mode": "good"})).await;
    let beside = request(&stage, "backup").await;
    stage.run_is(&beside, "Succeeded").await;
    assert_eq!(phase(&stage.get(PLAN_RUN, &first).await), "Running");
    let waits = stage.get(PLAN_RUN, &second).await;
    assert!(["", "Pending"].contains(&phase(&waits)), "{}", story_of(&waits));
    open(&stage).await;
    stage.run_is(&first, "Succeeded").await;
    let done = stage.run_is(&second, "Succeeded").await;
    let (ended, started) =
        (&stage.get(PLAN_RUN, &first).await["status"]["finishedAt"], &done["status"]["startedAt"]);
    assert!(ended.as_str() <= started.as_str(), "{ended} {started}");
}

/// A run of a condition's plan interrupts a requested one, which then resumes where it was.
#[tokio::test]
async fn a_failover_interrupts_a_request_which_resumes() {
    let stage = desk().await;
    let held = running(&stage, "hold").await;
    alarm(&stage, "yes").await;
    stage.run_of("d", "failover", |run| phase(run) == "Succeeded").await;
    alarm(&stage, "no").await;
    stage.until("the primary", CONFIG_MAP, "d-config", |o| o["data"]["primary"] == "1").await;
    stage.run_is(&held, "Running").await;
    open(&stage).await;
    stage.run_is(&held, "Succeeded").await;
}

/// A run of a condition's plan waits for a run that is not interruptible.
#[tokio::test]
async fn uninterruptible_run_is_not_interrupted() {
    let stage = desk().await;
    let held = running(&stage, "hold-tight").await;
    alarm(&stage, "yes").await;
    // The failover's hold time has passed once this run, which begins later, has succeeded.
    stage.requested(KIND, "d", "backup", &json!({"after": "3s"}), "Succeeded").await;
    assert_eq!(phase(&stage.get(PLAN_RUN, &held).await), "Running");
    assert!(stage.get(DESK, "d").await["status"]["primary"].is_null());
    open(&stage).await;
    stage.run_is(&held, "Succeeded").await;
    stage.run_of("d", "failover", |run| phase(run) == "Succeeded").await;
    alarm(&stage, "no").await;
}

/// A newer spec replaces a waiting rollout; its target is the newest spec.
#[tokio::test]
async fn a_newer_spec_supersedes_a_rollout() {
    let stage = desk().await;
    stage.edit(DESK, "d", json!({"gate": "shut", "stage": "two"})).await;
    let waits =
        |o: &Value| condition(o, "Reconciling")["message"].to_string().contains("the gate of d is shut");
    stage.until("it waits", DESK, "d", waits).await;
    stage.edit(DESK, "d", json!({"gate": "open", "stage": "three"})).await;
    let done = stage.ready(DESK, "d").await;
    assert!(
        done["status"]["trace"].as_str().unwrap().ends_with("deploy:two deploy:three "),
        "{:#}",
        done["status"]
    );
    assert_eq!(stage.get(CONFIG_MAP, "d-second").await["data"]["stage"], "three");
    let runs = stage.runs("d").await;
    let phases: Vec<&str> = runs.iter().map(phase).collect();
    assert_eq!(phases, ["Succeeded", "Superseded", "Succeeded"], "{runs:#?}");
}

/// Forbid: the second run fails. Queue: it waits. Replace: it ends the first.
#[tokio::test]
async fn second_run_is_refused_queued_or_replaces_the_first() {
    let stage = desk().await;
    let first = running(&stage, "hold").await;
    let second = request(&stage, "hold").await;
    let second = stage.run_is(&second, "Failed").await;
    assert!(story_of(&second).contains(&first), "{}", story_of(&second));
    stage.cancel(&first).await;
    stage.run_is(&first, "Cancelled").await;

    let first = running(&stage, "queue").await;
    let second = request(&stage, "queue").await;
    stage.until("pending", PLAN_RUN, &second, |run| phase(run) == "Pending").await;
    stage.cancel(&first).await;
    stage.run_is(&second, "Running").await;
    stage.cancel(&second).await;
    stage.run_is(&second, "Cancelled").await;

    let first = running(&stage, "replace").await;
    let second = running(&stage, "replace").await;
    stage.until("replaced", PLAN_RUN, &first, |run| ["Superseded", "Cancelled"].contains(&phase(run))).await;
    stage.cancel(&second).await;
    stage.run_is(&second, "Cancelled").await;
}

/// An unanswered POST is settled before the failover begins.
#[tokio::test]
async fn unanswered_request_is_settled_before_another_run_begins() {
    let stage = desk().await;
    let items = stage.items("d");
    api().always("POST", &items, Reaction::DoneAndSilent);
    let post = running(&stage, "post").await;
    eventually(
        "the POST",
        LONG,
        async || if api().calls("POST", &items).is_empty() { Err("none") } else { Ok(()) },
    )
    .await;
    alarm(&stage, "yes").await;
    stage.requested(KIND, "d", "backup", &json!({"after": "3s"}), "Succeeded").await;
    assert!(
        stage.get(DESK, "d").await["status"]["primary"].is_null(),
        "a request without an answer is in flight"
    );
    api().lift(&items);
    stage.run_of("d", "failover", |run| phase(run) == "Succeeded").await;
    alarm(&stage, "no").await;
    open(&stage).await;
    stage.run_is(&post, "Succeeded").await;
    let keys: BTreeSet<String> = api().calls("POST", &items).into_iter().map(|call| call.key).collect();
    assert_eq!((keys.len(), api().items(&items).len()), (1, 1));
}

/// A retry begins at the failed step.
#[tokio::test]
async fn a_retry_resumes_at_the_failed_step() {
    let stage = desk().await;
    let failed = stage.requested(KIND, "d", "broken", &json!({"mode": "good"}), "Failed").await;
    let told = stage.stalled(DESK, "d").await;
    for word in ["broken", "two", "the gate is not open"] {
        assert!(told.contains(word), "no {word} in {told}");
    }
    open(&stage).await;
    // This run ends once the manager has seen the gate.
    let waits = request(&stage, "queue").await;
    stage.run_is(&waits, "Succeeded").await;
    let again = stage.retry(&failed).await;
    stage.run_is(&again, "Succeeded").await;
    let done = stage.until("Ready", DESK, "d", |o| is_ready(o) && o["status"]["note"] == "one three").await;
    assert!(condition(&done, "Stalled").is_null(), "{done:#}");
    // A run that has not failed cannot be retried.
    let none = stage.retry(&again).await;
    let none = stage.run_is(&none, "Failed").await;
    assert!(story_of(&none).contains(&again), "{}", story_of(&none));
}

/// Runs can be cancelled while they wait to start, and while they run.
#[tokio::test]
async fn waiting_and_active_runs_can_be_cancelled() {
    let stage = desk().await;
    let first = running(&stage, "hold").await;
    let waiting = stage.request(KIND, "d", "broken", &json!({"mode": "good"})).await;
    stage.cancel(&waiting).await;
    let waiting = stage.run_is(&waiting, "Cancelled").await;
    assert!(steps(&waiting).is_empty(), "{}", story_of(&waiting));
    stage.cancel(&first).await;
    let first = stage.run_is(&first, "Cancelled").await;
    // Setting `cancel` back to false does not revive the run.
    let told = stage
        .kubectl_input(
            &["patch", "planrun", name_of(&first), "--type=merge", "-p", "{\"spec\":{\"cancel\":false}}"],
            "",
        )
        .await;
    open(&stage).await;
    let after = running_or_done(&stage, "hold").await;
    stage.run_is(&after, "Succeeded").await;
    assert_eq!(phase(&stage.get(PLAN_RUN, name_of(&first)).await), "Cancelled", "{told:?}");
}

async fn running_or_done(stage: &Stage, plan: &str) -> String {
    request(stage, plan).await
}

/// A long backup ends after a failover has set the primary: the end of the backup does not change the
/// primary.
#[tokio::test]
async fn each_run_writes_only_its_own_record_keys() {
    let stage = desk().await;
    let backup = stage.requested(KIND, "d", "backup", &json!({"end": "never"}), "Running").await;
    alarm(&stage, "yes").await;
    stage.run_of("d", "failover", |run| phase(run) == "Succeeded").await;
    alarm(&stage, "no").await;
    let primary = stage.until("the primary", DESK, "d", |o| !o["status"]["primary"].is_null()).await["status"]["primary"].clone();
    stage.end_pod(&stage.running_pods(1).await[0]).await;
    stage.run_is(&backup, "Succeeded").await;
    let o = stage.ready(DESK, "d").await;
    assert!(o["status"]["primary"].as_u64() >= primary.as_u64(), "{:#}", o["status"]);
}

/// The status lists the last ten runs; older `PlanRun`s are deleted, the newest and the records are kept.
#[tokio::test]
async fn history_is_bounded_and_records_stay() {
    let stage = desk().await;
    open(&stage).await;
    for _ in 0..12 {
        let run = request(&stage, "hold").await;
        stage.run_is(&run, "Succeeded").await;
    }
    let o =
        stage.until("ten", DESK, "d", |o| o["status"]["history"].as_array().map(Vec::len) == Some(10)).await;
    let history = o["status"]["history"].as_array().unwrap();
    for entry in history {
        assert_eq!(
            (&entry["plans"], &entry["phase"]),
            (&json!(["hold"]), &json!("Succeeded")),
            "{history:#?}"
        );
    }
    assert!(o["status"]["trace"].as_str().unwrap().starts_with("deploy:one"), "{:#}", o["status"]);
    assert_eq!(o["status"]["note"], "held");
}

/// While an instance is paused nothing starts and no timeout ends a step; afterwards it continues.
#[tokio::test]
async fn while_paused_no_step_starts() {
    let stage = desk().await;
    stage.ready_with(KIND, "e", json!({})).await;
    let plural = "desks.fixtures.operetta.dev";
    let held = running(&stage, "hold").await;
    stage.kubectl(&["annotate", plural, "d", "operetta.dev/paused=true"]).await;
    let paused = |o: &Value| o["status"]["conditions"].to_string().contains("aused");
    stage.until("paused", DESK, "d", paused).await;
    open(&stage).await;
    alarm(&stage, "yes").await;
    let beside = stage.request(KIND, "d", "backup", &Value::Null).await;
    // A later request for an instance that is not paused is carried out, so the manager has handled all
    // earlier ones.
    stage.requested(KIND, "e", "backup", &Value::Null, "Succeeded").await;
    stage.idle(&stage.address()).await;
    assert_eq!(phase(&stage.get(PLAN_RUN, &held).await), "Running");
    assert!(["", "Pending"].contains(&phase(&stage.get(PLAN_RUN, &beside).await)));
    let mut jobs = stage.list(JOB).await;
    jobs.retain(|job| job["metadata"]["labels"]["operetta.dev/instance"] != "e");
    assert!(jobs.is_empty(), "{jobs:#?}");
    assert!(stage.get(DESK, "d").await["status"]["primary"].is_null());
    stage.kubectl(&["annotate", plural, "d", "operetta.dev/paused-"]).await;
    stage.run_is(&held, "Succeeded").await;
    stage.run_is(&beside, "Succeeded").await;
    stage.run_of("d", "failover", |run| phase(run) == "Succeeded").await;
    alarm(&stage, "no").await;
}

/// A tenant makes ten thousand requests: only a limited number waits, and other instances are not delayed.
#[tokio::test]
async fn waiting_requests_are_bounded() {
    let stage = desk().await;
    stage.ready_with(KIND, "e", json!({})).await;
    let held = running(&stage, "hold").await;
    let mut list = Vec::new();
    for number in 0..130 {
        list.push(json!({"apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun", "metadata": {"name": format!("many-{number:03}")},
            "spec": {"of": {"apiVersion": DESK.api_version(), "kind": "Desk", "resource": DESK.plural, "name": "d"}, "plan": "queue", "requestedBy": ADMIN}}));
    }
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": list}).to_string()).await;
    let refused = eventually("those that are too many to be refused", LONG, async || {
        let runs = stage.runs("d").await;
        let refused: Vec<Value> = runs.into_iter().filter(|run| phase(run) == "Failed").collect();
        if refused.len() >= 29 { Ok(refused) } else { Err(refused.len()) }
    })
    .await;
    assert!(refused.len() <= 31, "{}", refused.len());
    assert!(story_of(&refused[0]).contains("100"), "{}", story_of(&refused[0]));
    stage.requested(KIND, "e", "broken", &json!({"mode": "good"}), "Failed").await;
    stage.cancel(&held).await;
    stage.run_is(&held, "Cancelled").await;
}

/// Attack, or a typing error: a run of a plan that does not exist blocks no rollout and no other run, and is not written again.
#[tokio::test]
async fn a_request_for_a_plan_that_does_not_exist_blocks_no_one() {
    let stage = desk().await;
    let wrong = request(&stage, "bakcup").await;
    let answered =
        stage.until("answered", PLAN_RUN, &wrong, |run| run["status"]["reason"] == "PlanMissing").await;
    let right = request(&stage, "backup").await;
    stage.run_is(&right, "Succeeded").await;
    stage.edit(DESK, "d", json!({"stage": "two"})).await;
    stage.until("the edit", CONFIG_MAP, "d-config", |o| o["data"]["stage"] == "two").await;
    stage.ready(DESK, "d").await;
    let after = stage.get(PLAN_RUN, &wrong).await;
    assert_eq!(after["metadata"]["resourceVersion"], answered["metadata"]["resourceVersion"], "{after:#}");
}
