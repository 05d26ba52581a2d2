//! Jobs of steps: outputs, failures, attempts, timeouts, and Jobs that disappear.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{PROCEDURE, Stage};
use crate::support::plans::{PLAN_RUN, story_of};
use crate::support::{CONFIG_MAP, JOB, LONG, POD, condition, eventually, is_ready, name_of};

const KIND: (&str, crate::support::ext::Kind) = ("Procedure", PROCEDURE);

async fn stage_with(name: &str) -> Stage {
    Stage::with(KIND, name, json!({})).await
}

/// Requests a Job that never ends, and waits for its pod. Returns the run.
async fn endless_job(stage: &Stage) -> String {
    let run = stage.request(KIND, "p", "job", &json!({"end": "never"})).await;
    eventually("a pod", LONG, async || if stage.list(POD).await.is_empty() { Err("none") } else { Ok(()) })
        .await;
    run
}

async fn no_job_is_left(stage: &Stage) {
    eventually("no Job and no pod", LONG, async || {
        match (stage.list(JOB).await.len(), stage.list(POD).await.len()) {
            (0, 0) => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn outputs_come_from_the_termination_message() {
    let stage = stage_with("p").await;
    let params = json!({"message": "{\"id\": \"m-17\"}"});
    stage.requested(KIND, "p", "job", &params, "Succeeded").await;
    let holds = |o: &Value| o["status"]["jobId"] == "m-17" && o["status"]["note"] == "m-17";
    stage.until("record and output", PROCEDURE, "p", holds).await;
    let jobs = stage.jobs().await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let job = stage.get(JOB, jobs.keys().next().unwrap()).await;
    // Once the result is stored, the Job gets a TTL.
    stage.until("a TTL", JOB, name_of(&job), |job| job["spec"]["ttlSecondsAfterFinished"].is_u64()).await;
    // A message that is not JSON is stored as text.
    stage.requested(KIND, "p", "text-job", &json!({"message": "plain text"}), "Succeeded").await;
    stage.until("the text", PROCEDURE, "p", |o| o["status"]["note"] == "plain text").await;
}

/// A user who may create pods can label them as pods of a Job.
#[tokio::test]
async fn only_pods_that_the_job_controls_have_results() {
    let stage = stage_with("p").await;
    let params = json!({"message": "{\"id\": \"own\"}", "after": "4s"});
    let run = stage.request(KIND, "p", "job", &params).await;
    let job = eventually("a Job", LONG, async || stage.jobs().await.into_keys().next().ok_or("none")).await;
    let uid = stage.get(JOB, &job).await["metadata"]["uid"].clone();
    // The pod gets another owner, because the Job controller adopts pods without a controller.
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}});
    stage.apply(&config.to_string()).await;
    let owner = stage.get(CONFIG_MAP, "other").await["metadata"]["uid"].clone();
    let forged = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "zzz", "labels": {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": job},
            "annotations": {"script.example.com/end": "succeed", "script.example.com/after": "0s",
                "script.example.com/message": "{\"id\": \"forged\"}"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": owner, "controller": true}]},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.com/none:1"}]}});
    stage.apply(&forged.to_string()).await;
    stage.until("the end of the forged pod", POD, "zzz", |pod| pod["status"]["phase"] == "Succeeded").await;
    stage.run_is(&run, "Succeeded").await;
    stage.until("the output", PROCEDURE, "p", |o| o["status"]["jobId"].is_string()).await;
    assert_eq!(stage.get(PROCEDURE, "p").await["status"]["jobId"], "own");
}

/// A missing declared output fails the step; the Job is not run again.
#[tokio::test]
async fn a_missing_output_fails_the_step_without_a_rerun() {
    for message in ["", "no JSON", "{\"other\": 1}"] {
        let stage = stage_with("p").await;
        let run = stage.request(KIND, "p", "job", &json!({"message": message})).await;
        let run = stage.run_is(&run, "Failed").await;
        let story = story_of(&run);
        assert!(story.contains("work") && story.contains("id"), "{message:?}: {story}");
        assert_eq!(stage.jobs().await.len(), 1, "{message:?}: {story}");
    }
}

/// Every attempt has its own Job, and there are no more Jobs than attempts.
#[tokio::test]
async fn failed_job_is_retried_as_often_as_declared() {
    for (failures, ends, jobs) in [(2, "Succeeded", 3), (3, "Failed", 3)] {
        let stage = stage_with("p").await;
        let run = stage
            .request(KIND, "p", "retried-job", &json!({"failures": failures, "message": "out of coal"}))
            .await;
        let run = stage.run_is(&run, ends).await;
        let found = stage.jobs().await;
        assert_eq!(found.len(), jobs, "{failures} failures: {found:?} {}", story_of(&run));
        if ends == "Failed" {
            assert!(story_of(&run).contains("out of coal"), "{}", story_of(&run));
            let told = |o: &Value| {
                let told = condition(o, "RunFailed")["message"].to_string();
                is_ready(o) && told.contains("retried-job") && told.contains("work")
            };
            stage.until("the failure, and Ready", PROCEDURE, "p", told).await;
        }
    }
}

/// A Job that does not end, and one whose pod never starts, are ended by the timeout of the step, and their
/// pods are deleted.
#[tokio::test]
async fn endless_job_is_ended_by_the_timeout() {
    for end in ["never", "stuck"] {
        let stage = stage_with("p").await;
        let run = stage.request(KIND, "p", "slow-job", &json!({"end": end})).await;
        let run = stage.run_is(&run, "Failed").await;
        let story = story_of(&run);
        assert!(story.contains("work") && story.contains("timed out"), "{end}: {story}");
        eventually("no pod to run on", LONG, async || {
            let pods = stage.list(POD).await;
            let active: Vec<&str> = pods
                .iter()
                .filter(|pod| {
                    !["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default())
                })
                .map(name_of)
                .collect();
            if active.is_empty() { Ok(()) } else { Err(format!("{end}: {active:?}")) }
        })
        .await;
    }
}

/// A Job that is deleted while it runs counts as a failed attempt; the attempt gets no second Job.
#[tokio::test]
async fn a_job_that_disappears_is_a_failed_attempt() {
    let stage = stage_with("p").await;
    let uids = stage.watch_uids(JOB).await;
    let run = stage.request(KIND, "p", "job", &json!({"end": "never"})).await;
    let job = eventually("a Job", LONG, async || stage.jobs().await.into_keys().next().ok_or("none")).await;
    stage.until("its uid in the run", PLAN_RUN, &run, |run| run["status"].to_string().contains(&job)).await;
    stage.kubectl(&["delete", "job", &job]).await;
    let run = stage.run_is(&run, "Failed").await;
    assert!(story_of(&run).contains(&job), "{}", story_of(&run));
    let seen: BTreeMap<String, usize> = uids.counts();
    assert_eq!(seen, BTreeMap::from([(job, 1)]));
}

/// The pods of a Job are deleted with it.
#[tokio::test]
async fn a_cancelled_run_leaves_no_job_running() {
    let stage = stage_with("p").await;
    let run = endless_job(&stage).await;
    stage.cancel(&run).await;
    stage.run_is(&run, "Cancelled").await;
    no_job_is_left(&stage).await;
}

#[tokio::test]
async fn items_run_side_by_side_and_each_has_its_job() {
    let stage = stage_with("p").await;
    let params = json!({"message": "{\"id\": 1}", "end": "never"});
    let run = stage.request(KIND, "p", "each-job", &params).await;
    for pod in stage.running_pods(3).await {
        stage.end_pod(&pod).await;
    }
    assert_eq!(stage.jobs().await.len(), 3);
    stage.run_is(&run, "Succeeded").await;
    stage.until("the items", PROCEDURE, "p", |o| o["status"]["note"] == "1,2,3").await;
}

/// A Job of a deleted instance is deleted with it.
#[tokio::test]
async fn a_deleted_instance_leaves_no_job_and_no_run() {
    let stage = stage_with("p").await;
    let run = endless_job(&stage).await;
    stage.kubectl(&["delete", "procedures.fixtures.operetta.dev", "p"]).await;
    stage.gone(PLAN_RUN, &run).await;
    no_job_is_left(&stage).await;
}
