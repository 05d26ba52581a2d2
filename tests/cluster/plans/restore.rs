//! Objects that come back: from `kubectl get -o yaml | kubectl apply`, from a backup without status, with new uids; and
//! statuses that are wiped. Nothing runs again, and what was recorded is there.

use serde_json::{Value, json};

use super::{DESK, PROCEDURE, Stage};
use crate::support::ext::{CONFIG_MAP, is_ready, name_of};
use crate::support::plans::{CONTROLLER_REVISION, PLAN_RUN, phase, story_of};

const PROCEDURES: (&str, crate::support::ext::Kind) = ("Procedure", PROCEDURE);
const DESKS: (&str, crate::support::ext::Kind) = ("Desk", DESK);

/// What `kubectl get -o yaml` gives, without what a backup drops.
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

/// All Jobs and all runs, that nothing is added to.
async fn counts(stage: &Stage, name: &str) -> (usize, usize) {
    (stage.jobs().await.len(), stage.runs(name).await.len())
}

#[tokio::test]
async fn runs_that_are_put_back_never_run_again() {
    let stage = Stage::new().await;
    stage.ready_with(PROCEDURES, "p", json!({})).await;
    let run = stage.request(PROCEDURES, "p", "job", &json!({"message": "{\"id\": \"m-1\"}"})).await;
    stage.run_is(&run, "Succeeded").await;
    stage.until("recorded", PROCEDURE, "p", |o| o["status"]["jobId"] == "m-1").await;

    let runs: Vec<Value> = stage.runs("p").await.into_iter().map(saved).collect();
    let instance = saved(stage.get(PROCEDURE, "p").await);
    // Everything at once, with new uids.
    stage.kubectl(&["delete", "procedures.fixtures.operetta.dev", "p"]).await;
    stage.gone(CONFIG_MAP, "p-config").await;
    let jobs = stage.watch_uids(crate::support::ext::JOB).await;
    let mut items: Vec<Value> = runs.clone();
    for run in &mut items {
        run["apiVersion"] = PLAN_RUN.api_version().into();
        run["kind"] = "PlanRun".into();
    }
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
}

/// The same in mid-run: the run that was active is lost, also if it could go on now.
#[tokio::test]
async fn a_run_that_is_put_back_in_mid_run_never_goes_on() {
    let stage = Stage::new().await;
    stage.ready_with(DESKS, "d", json!({})).await;
    let held = stage.request(DESKS, "d", "hold", &Value::Null).await;
    stage.run_is(&held, "Running").await;
    let mut items: Vec<Value> = stage.runs("d").await.into_iter().map(saved).collect();
    items.push(saved(stage.get(DESK, "d").await));
    for item in &mut items {
        let is_run = item["spec"]["of"].is_object();
        (item["apiVersion"], item["kind"]) = if is_run {
            (PLAN_RUN.api_version().into(), "PlanRun".into())
        } else {
            (DESK.api_version().into(), "Desk".into())
        };
    }
    stage.kubectl(&["delete", "desks.fixtures.operetta.dev", "d"]).await;
    stage.flag("d-gate", json!({"open": "yes"})).await;
    stage.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    let desk = stage.ready(DESK, "d").await;
    let back = stage.run_is(&held, "Failed").await;
    assert!(story_of(&back).contains("StateLost"), "{}", story_of(&back));
    assert_eq!(
        desk["status"]["trace"], "deploy:one deploy:one ",
        "the record of before, and what was rolled out again"
    );
    assert!(stage.get(DESK, "d").await["status"]["note"].is_null(), "the held run has gone on");
}

/// The status of an instance is a summary: wiped in peace and in mid-run, nothing runs twice.
#[tokio::test]
async fn a_wiped_status_of_an_instance_loses_nothing() {
    let stage = Stage::new().await;
    stage.ready_with(DESKS, "d", json!({})).await;
    let wipe = async || {
        let mut object = stage.get(DESK, "d").await;
        object["status"] = json!({});
        let input = object.to_string();
        stage.kubectl_input(&["replace", "--subresource=status", "-f", "-"], &input).await.map(drop)
    };
    let wiped = async || {
        // Somebody else may have been faster.
        crate::support::eventually("a wiped status", crate::support::ext::LONG, wipe).await;
    };
    wiped().await;
    let o =
        stage.until("as before", DESK, "d", |o| is_ready(o) && o["status"]["trace"] == "deploy:one ").await;
    assert!(!o["status"]["history"].is_null(), "{:#}", o["status"]);
    assert_eq!(counts(&stage, "d").await, (0, 1));

    let held = stage.request(DESKS, "d", "hold", &Value::Null).await;
    stage.run_is(&held, "Running").await;
    wiped().await;
    let shown = |o: &Value| o["status"]["plan"].to_string().contains("hold");
    stage.until("what runs", DESK, "d", shown).await;
    stage.flag("d-gate", json!({"open": "yes"})).await;
    stage.run_is(&held, "Succeeded").await;
    stage.ready(DESK, "d").await;
    assert_eq!(counts(&stage, "d").await, (0, 2));
}

/// The status of a run that is wiped: it never runs again, for nobody knows what it did.
#[tokio::test]
async fn a_wiped_status_of_a_run_ends_it() {
    let stage = Stage::new().await;
    stage.ready_with(DESKS, "d", json!({})).await;
    let held = stage.request(DESKS, "d", "hold", &Value::Null).await;
    stage.run_is(&held, "Running").await;
    crate::support::eventually("a wiped status", crate::support::ext::LONG, async || {
        let mut run = stage.get(PLAN_RUN, &held).await;
        run.as_object_mut().expect("a map").remove("status");
        stage.kubectl_input(&["replace", "--subresource=status", "-f", "-"], &run.to_string()).await.map(drop)
    })
    .await;
    let run = stage.run_is(&held, "Failed").await;
    assert!(story_of(&run).contains("StateLost"), "{}", story_of(&run));
}

/// The status of a run that has ended is wiped: it does not run again, and what it recorded is there.
#[tokio::test]
async fn a_wiped_status_of_a_run_that_has_ended_runs_nothing_twice() {
    let stage = Stage::new().await;
    stage.ready_with(PROCEDURES, "p", json!({})).await;
    let run = stage.request(PROCEDURES, "p", "job", &json!({"message": "{\"id\": \"m-1\"}"})).await;
    stage.run_is(&run, "Succeeded").await;
    let annotated = |run: &Value| run["metadata"]["annotations"]["operetta.dev/record"].is_string();
    stage.until("its record in an annotation", PLAN_RUN, &run, annotated).await;
    let jobs = stage.jobs().await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let seen = stage.watch_uids(crate::support::ext::JOB).await;
    crate::support::eventually("a wiped status", crate::support::ext::LONG, async || {
        let mut run = stage.get(PLAN_RUN, &run).await;
        run.as_object_mut().expect("a map").remove("status");
        stage.kubectl_input(&["replace", "--subresource=status", "-f", "-"], &run.to_string()).await.map(drop)
    })
    .await;
    let back = stage.run_is(&run, "Failed").await;
    assert!(story_of(&back).contains("StateLost"), "{}", story_of(&back));
    // Another run begins and ends after it: whatever would run again has.
    let next = stage.request(PROCEDURES, "p", "apply", &Value::Null).await;
    stage.run_is(&next, "Succeeded").await;
    stage.until("what was recorded", PROCEDURE, "p", |o| o["status"]["jobId"] == "m-1").await;
    assert_eq!(stage.jobs().await, jobs);
    assert!(seen.counts().values().all(|count| *count == 1), "{:?}", seen.counts());
}

/// The origins are lost: the next rollout is right, and nothing is created twice.
#[tokio::test]
async fn lost_origins_change_nothing() {
    let stage = Stage::new().await;
    stage.ready_with(DESKS, "d", json!({})).await;
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

/// `kubectl get | kubectl apply` of everything as it is, with its status: nothing happens.
#[tokio::test]
async fn an_apply_of_what_is_there_does_nothing() {
    let stage = Stage::new().await;
    stage.ready_with(DESKS, "d", json!({})).await;
    let runs = stage.runs("d").await;
    let all =
        stage.kubectl(&["get", "desks.fixtures.operetta.dev,planruns.operetta.dev", "-o", "yaml"]).await;
    stage.apply(&all).await;
    let next = stage.request(DESKS, "d", "broken", &json!({"mode": "good"})).await;
    stage.run_is(&next, "Failed").await;
    let after = stage.runs("d").await;
    assert_eq!(after.len(), runs.len() + 1, "{after:#?}");
    assert_eq!(phase(&after[0]), "Succeeded");
}
