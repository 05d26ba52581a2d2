//! Restored objects: from `kubectl get -o yaml | kubectl apply`, from a backup without status, with new uids;
//! and deleted statuses. No run is repeated, and recorded facts are kept.

use serde_json::{Value, json};

use super::{DESK, PROCEDURE, Stage};
use crate::support::plans::{CONTROLLER_REVISION, INSTANCE_STATE, PLAN_RUN, phase, story_of};
use crate::support::{CONFIG_MAP, LONG, eventually, is_ready, name_of};

const PROCEDURES: (&str, crate::support::ext::Kind) = ("Procedure", PROCEDURE);
const DESKS: (&str, crate::support::ext::Kind) = ("Desk", DESK);

/// An object from `kubectl get -o yaml`, without the fields that a backup drops.
fn saved(mut object: Value) -> Value {
    let map = object.as_object_mut().expect("an object");
    map.remove("status");
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    for key in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "generation",
        "deletionTimestamp",
        "finalizers",
        "ownerReferences",
    ] {
        metadata.remove(key);
    }
    object
}

/// The `InstanceState`s of the namespace, as a backup has them.
async fn states(stage: &Stage) -> Vec<Value> {
    let state = |state: Value| {
        let mut state = saved(state);
        state["apiVersion"] = INSTANCE_STATE.api_version().into();
        state["kind"] = "InstanceState".into();
        state
    };
    stage.list(INSTANCE_STATE).await.into_iter().map(state).collect()
}

/// Waits until a deleted instance has left no state, no run and no Job: a backup that is applied before changes objects that go.
async fn nothing_left(stage: &Stage, name: &str) {
    eventually("nothing of its runs to be left", LONG, async || {
        let left = (stage.list(INSTANCE_STATE).await.len(), counts(stage, name).await);
        if left == (0, (0, 0)) { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// The numbers of Jobs and of runs, neither of which may grow.
async fn counts(stage: &Stage, name: &str) -> (usize, usize) {
    (stage.jobs().await.len(), stage.runs(name).await.len())
}

#[tokio::test]
async fn restored_runs_never_run_again() {
    let stage = Stage::with(PROCEDURES, "p", json!({})).await;
    let run = stage.request(PROCEDURES, "p", "job", &json!({"message": "{\"id\": \"m-1\"}"})).await;
    stage.run_is(&run, "Succeeded").await;
    stage.until("recorded", PROCEDURE, "p", |o| o["status"]["jobId"] == "m-1").await;

    let runs: Vec<Value> = stage.runs("p").await.into_iter().map(saved).collect();
    let instance = saved(stage.get(PROCEDURE, "p").await);
    let states = states(&stage).await;
    // Restore everything at once, with new uids.
    stage.kubectl(&["delete", "procedures.fixtures.operetta.dev", "p"]).await;
    stage.gone(CONFIG_MAP, "p-config").await;
    nothing_left(&stage, "p").await;
    let jobs = stage.watch_uids(crate::support::ext::JOB).await;
    let mut items: Vec<Value> = runs.clone();
    for run in &mut items {
        run["apiVersion"] = PLAN_RUN.api_version().into();
        run["kind"] = "PlanRun".into();
    }
    items.extend(states);
    let mut instance = instance;
    instance["apiVersion"] = PROCEDURE.api_version().into();
    instance["kind"] = "Procedure".into();
    items.push(instance);
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    stage.ready(PROCEDURE, "p").await;
    stage.until("the record is there", PROCEDURE, "p", |o| o["status"]["jobId"] == "m-1").await;
    assert!(jobs.counts().is_empty(), "{:?}", jobs.counts());
    for run in &runs {
        let back = stage.run_is(name_of(run), "Failed").await;
        assert!(story_of(&back).contains("StateLost"), "{}", story_of(&back));
    }
    // Nor is a person asked what to do without the state, which the manager may see after the instance.
    assert_eq!(stage.runs("p").await.len(), runs.len(), "a rollout that had succeeded is not repeated");
}

/// The objects are restored while the run was active: the run is lost, even if it could continue now.
#[tokio::test]
async fn restored_active_run_does_not_continue() {
    let stage = Stage::with(DESKS, "d", json!({})).await;
    let held = stage.requested(DESKS, "d", "hold", &Value::Null, "Running").await;
    let mut items: Vec<Value> = stage.runs("d").await.into_iter().map(saved).collect();
    items.push(saved(stage.get(DESK, "d").await));
    let states = states(&stage).await;
    for item in &mut items {
        let is_run = item["spec"]["of"].is_object();
        (item["apiVersion"], item["kind"]) = if is_run {
            (PLAN_RUN.api_version().into(), "PlanRun".into())
        } else {
            (DESK.api_version().into(), "Desk".into())
        };
    }
    items.splice(0..0, states);
    stage.kubectl(&["delete", "desks.fixtures.operetta.dev", "d"]).await;
    nothing_left(&stage, "d").await;
    stage.flag("d-gate", json!({"open": "yes"})).await;
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    let back = stage.run_is(&held, "Failed").await;
    assert!(story_of(&back).contains("StateLost"), "{}", story_of(&back));
    // The record of before; what the instance reads is another than then, so it is rolled out.
    let is_rolled_out = |o: &Value| is_ready(o) && o["status"]["trace"] == "deploy:one deploy:one ";
    stage.until("rolled out", DESK, "d", is_rolled_out).await;
    assert!(stage.get(DESK, "d").await["status"]["note"].is_null(), "the held run has gone on");
}

/// The status of an instance is only a summary: if it is deleted, during a run or not, nothing runs twice.
#[tokio::test]
async fn wiped_instance_status_repeats_no_run() {
    let stage = Stage::with(DESKS, "d", json!({})).await;
    let wipe = async || {
        let mut object = stage.get(DESK, "d").await;
        object["status"] = json!({});
        let input = object.to_string();
        stage.kubectl_input(&["replace", "--subresource=status", "-f", "-"], &input).await.map(drop)
    };
    let wiped = async || {
        // Another client may have written the status first.
        crate::support::eventually("a wiped status", crate::support::ext::LONG, wipe).await;
    };
    wiped().await;
    let o =
        stage.until("as before", DESK, "d", |o| is_ready(o) && o["status"]["trace"] == "deploy:one ").await;
    assert!(!o["status"]["history"].is_null(), "{:#}", o["status"]);
    assert_eq!(counts(&stage, "d").await, (0, 1));

    let held = stage.requested(DESKS, "d", "hold", &Value::Null, "Running").await;
    wiped().await;
    let shown = |o: &Value| o["status"]["plan"].to_string().contains("hold");
    stage.until("what runs", DESK, "d", shown).await;
    stage.flag("d-gate", json!({"open": "yes"})).await;
    stage.run_is(&held, "Succeeded").await;
    stage.ready(DESK, "d").await;
    assert_eq!(counts(&stage, "d").await, (0, 2));
}

/// A run whose status is deleted never runs again, because it is unknown what it did.
#[tokio::test]
async fn run_with_wiped_status_never_runs_again() {
    let stage = Stage::with(DESKS, "d", json!({})).await;
    let held = stage.requested(DESKS, "d", "hold", &Value::Null, "Running").await;
    stage.wipe(&held).await;
    let run = stage.run_is(&held, "Failed").await;
    assert!(story_of(&run).contains("StateLost"), "{}", story_of(&run));
}

/// The status of an ended run is deleted: it does not run again, and the facts that it recorded are kept.
#[tokio::test]
async fn ended_run_with_wiped_status_is_not_repeated() {
    let stage = Stage::with(PROCEDURES, "p", json!({})).await;
    let run = stage.request(PROCEDURES, "p", "job", &json!({"message": "{\"id\": \"m-1\"}"})).await;
    stage.run_is(&run, "Succeeded").await;
    let jobs = stage.jobs().await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let seen = stage.watch_uids(crate::support::ext::JOB).await;
    stage.wipe(&run).await;
    stage.run_is(&run, "Succeeded").await;
    // A later run begins and ends: a run that is going to be repeated would have begun by now.
    stage.requested(PROCEDURES, "p", "apply", &Value::Null, "Succeeded").await;
    stage.until("what was recorded", PROCEDURE, "p", |o| o["status"]["jobId"] == "m-1").await;
    assert_eq!(stage.jobs().await, jobs);
    assert!(seen.counts().values().all(|count| *count == 1), "{:?}", seen.counts());
}

/// The `InstanceState` is lost: nothing runs, changes or is deleted until a person decides; after that no run
/// is repeated.
#[tokio::test]
async fn instance_without_its_state_waits_for_a_person() {
    let stage = Stage::with(DESKS, "d", json!({})).await;
    let state = stage.list(INSTANCE_STATE).await.into_iter().next().expect("a state");
    let name = name_of(&state).to_owned();
    let marked = |o: &Value| o["metadata"]["annotations"]["operetta.dev/state"] == o["metadata"]["uid"];
    stage.until("marked", DESK, "d", marked).await;
    stage.kubectl(&["delete", "instancestate", &name, "--wait=false"]).await;
    stage
        .kubectl(&[
            "patch",
            "instancestate",
            &name,
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ])
        .await;
    stage.until("lost", DESK, "d", |o| o["status"]["conditions"].to_string().contains("StateMissing")).await;
    stage.edit(DESK, "d", json!({"stage": "two"})).await;
    let question = eventually("the question", LONG, async || {
        let runs = stage.list(PLAN_RUN).await;
        let asked = |run: &&Value| {
            run["spec"]["plan"] == "operetta.dev/recover" && run["status"]["steps"][0]["asked"] == 0
        };
        runs.into_iter().find(|run| asked(&run)).ok_or("none")
    })
    .await;
    let step = question["status"]["steps"][0]["path"].as_str().expect("a path");
    assert_eq!(stage.get(CONFIG_MAP, "d-config").await["data"]["stage"], "one");
    stage.answer(name_of(&question), step, "Approve").await;
    stage.until("the edit", CONFIG_MAP, "d-config", |o| o["data"]["stage"] == "two").await;
    stage.ready(DESK, "d").await;
    stage.run_is(name_of(&question), "Succeeded").await;
}

/// The stored origins are lost: the next rollout is right, and nothing is created twice.
#[tokio::test]
async fn lost_origins_do_not_disturb_the_next_rollout() {
    let stage = Stage::with(DESKS, "d", json!({})).await;
    let origins = stage.list(CONTROLLER_REVISION).await;
    assert!(!origins.is_empty(), "a rollout has an origin");
    let before = stage.get(CONFIG_MAP, "d-config").await;
    for origin in &origins {
        let told = stage
            .kubectl_input(
                &[
                    "patch",
                    "controllerrevision",
                    name_of(origin),
                    "--type=merge",
                    "-p",
                    "{\"data\":{\"a\":1}}",
                ],
                "",
            )
            .await;
        assert!(told.is_err(), "a ControllerRevision is immutable");
        stage.kubectl(&["delete", "controllerrevision", name_of(origin)]).await;
    }
    stage.edit(DESK, "d", json!({"stage": "two"})).await;
    stage.until("the edit", CONFIG_MAP, "d-config", |o| o["data"]["stage"] == "two").await;
    stage.ready(DESK, "d").await;
    assert_eq!(stage.get(CONFIG_MAP, "d-config").await["metadata"]["uid"], before["metadata"]["uid"]);
}

/// All ended PlanRuns are deleted: no run is repeated, and the recorded facts are kept.
#[tokio::test]
async fn deleting_ended_runs_repeats_none() {
    let stage = Stage::with(PROCEDURES, "p", json!({})).await;
    let run = stage.request(PROCEDURES, "p", "job", &json!({"message": "{\"id\": \"m-1\"}"})).await;
    stage.run_is(&run, "Succeeded").await;
    stage.until("recorded", PROCEDURE, "p", |o| o["status"]["jobId"] == "m-1").await;
    let jobs = stage.watch_uids(crate::support::ext::JOB).await;
    stage.kubectl(&["delete", "planruns", "--all"]).await;
    // A later run begins and ends: a run that is going to be repeated would have begun by now.
    stage.requested(PROCEDURES, "p", "apply", &Value::Null, "Succeeded").await;
    let o = stage.ready(PROCEDURE, "p").await;
    assert_eq!(o["status"]["jobId"], "m-1");
    assert_eq!(stage.runs("p").await.len(), 1, "{:#?}", stage.runs("p").await);
    assert!(jobs.counts().values().all(|count| *count == 1), "{:?}", jobs.counts());
}

/// An active run that is deleted is cancelled first; nobody else can remove its finalizer.
#[tokio::test]
async fn deleting_an_active_run_cancels_it() {
    let stage = Stage::with(DESKS, "d", json!({})).await;
    let held = stage.requested(DESKS, "d", "hold", &Value::Null, "Running").await;
    stage.kubectl(&["delete", "planrun", &held, "--wait=false"]).await;
    stage.gone(PLAN_RUN, &held).await;
    stage.flag("d-gate", json!({"open": "yes"})).await;
    let cancelled = |o: &Value| {
        let runs = o["status"]["history"].as_array().into_iter().flatten();
        is_ready(o) && runs.into_iter().any(|run| run["name"] == held && run["phase"] == "Cancelled")
    };
    let o = stage.until("cancelled", DESK, "d", cancelled).await;
    assert!(o["status"]["note"].is_null(), "the deleted run has gone on: {:#}", o["status"]);
}

/// PlanRuns are restored without the InstanceState: they set no fact.
#[tokio::test]
async fn restored_runs_without_state_set_no_fact() {
    let stage = Stage::new().await;
    let forged = json!({
        "apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun",
        "metadata": {
            "name": "p-1",
            "annotations": {
                "operetta.dev/taken": "an earlier uid", "operetta.dev/cause": "Rollout",
                "operetta.dev/record": json!({"jobId": {"value": "forged", "sequence": 9}}).to_string(),
            },
        },
        "spec": {
            "of": {
                "apiVersion": PROCEDURE.api_version(), "kind": "Procedure", "resource": "procedures", "name": "p",
            },
            "plan": "deploy",
        },
    });
    stage.apply(&forged.to_string()).await;
    let o = stage.ready_with(PROCEDURES, "p", json!({})).await;
    assert!(o["status"]["jobId"].is_null(), "{:#}", o["status"]);
    let run = stage.run_is("p-1", "Failed").await;
    assert!(story_of(&run).contains("StateLost"), "{}", story_of(&run));
}

/// Everything is re-applied with its status by `kubectl get | kubectl apply`: nothing happens.
#[tokio::test]
async fn reapplying_everything_changes_nothing() {
    let stage = Stage::with(DESKS, "d", json!({})).await;
    let runs = stage.runs("d").await;
    let all =
        stage.kubectl(&["get", "desks.fixtures.operetta.dev,planruns.operetta.dev", "-o", "yaml"]).await;
    stage.apply(&all).await;
    stage.requested(DESKS, "d", "broken", &json!({"mode": "good"}), "Failed").await;
    let after = stage.runs("d").await;
    assert_eq!(after.len(), runs.len() + 1, "{after:#?}");
    // Runs that are made within one second have no order.
    let first = after.iter().find(|run| name_of(run) == name_of(&runs[0]));
    assert_eq!(first.map(phase), Some("Succeeded"));
}
