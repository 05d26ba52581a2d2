//! A primary with replicas, as in `PostgreSQL`, when several things go wrong at once: each run ends, and all
//! outputs name the same missing members.

use serde_json::{Value, json};

use super::{DATABASE, Stage};
use crate::support::oracles::Recorder;
use crate::support::plans::{is_over, phase, steps, story_of};
use crate::support::{JOB, LONG, POD, QUOTA, condition, eventually, is_pod_ready, is_ready, name_of, uid_of};

const KIND: (&str, crate::support::ext::Kind) = ("Database", DATABASE);
const GOOD: &str = "registry.example.com/work:2";
/// An image whose pods do not start.
const BAD: &str = "registry.example.com/bad:1";

async fn database(spec: Value) -> Stage {
    ready(Stage::new().await, spec).await
}

/// The same, where commands can be run.
async fn database_with_commands(spec: Value) -> Stage {
    ready(Stage::with_commands().await, spec).await
}

async fn ready(stage: Stage, spec: Value) -> Stage {
    stage.ready_with(KIND, "d", spec).await;
    stage
}

impl Stage {
    /// Deletes members all at once. Returns their names and uids.
    async fn lose(&self, members: &[usize]) -> Vec<(String, String)> {
        let mut lost = Vec::new();
        for member in members {
            let name = format!("d-{member}");
            lost.push((name.clone(), uid_of(&self.get(POD, &name).await).to_owned()));
        }
        let names = lost.iter().map(|(name, _)| name.as_str());
        let args: Vec<&str> = ["delete", "pod", "--wait=false"].into_iter().chain(names).collect();
        self.kubectl(&args).await;
        lost
    }

    /// Waits until the lost members are replaced, everything is Ready, and no run is active.
    async fn is_whole(&self, lost: &[(String, String)]) -> Value {
        for (name, uid) in lost {
            self.until("another pod", POD, name, |pod| uid_of(pod) != uid && is_pod_ready(pod)).await;
        }
        let all = json!([0, 1, 2]);
        let object = self.until("whole", DATABASE, "d", |o| is_ready(o) && o["status"]["ready"] == all).await;
        let runs = self.runs("d").await;
        let wrong: Vec<String> =
            runs.iter().filter(|run| !is_over(run) || phase(run) == "Failed").map(story_of).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        object
    }

    /// Prevents the creation of pods by a quota.
    async fn hold_pods(&self) {
        let hard = json!({"hard": {"pods": "0"}});
        let quota =
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "held"}, "spec": hard});
        self.apply(&quota.to_string()).await;
        self.until("counted", QUOTA, "held", |quota| !quota["status"]["used"].is_null()).await;
    }

    /// The name of the newest run of a plan in this phase.
    async fn run_in(&self, plan: &str, wanted: &str) -> String {
        let run = self.run_of("d", plan, |run| phase(run) == wanted).await;
        name_of(&run).to_owned()
    }
}

/// The primary and a replica are lost at once: the remaining member takes over, and both are replaced.
#[tokio::test]
async fn two_members_lost_at_once_are_replaced() {
    let stage = database(json!({})).await;
    let lost = stage.lose(&[0, 1]).await;
    let object = stage.is_whole(&lost).await;
    assert_eq!(object["status"]["primary"], 2);
}

/// A replica is lost and cannot be replaced; then the primary is lost: the run for the primary does not wait
/// for that of the replica.
#[tokio::test]
async fn primary_is_replaced_while_a_replica_cannot_be() {
    let stage = database_with_commands(json!({})).await;
    stage.hold_pods().await;
    let mut lost = stage.lose(&[1]).await;
    let first = stage.run_in("failover", "Running").await;
    stage.said_alike(DATABASE, "d", &first, &["members[1]", "exceeded quota: held"]).await;
    lost.extend(stage.lose(&[0]).await);
    stage.until("the new primary", DATABASE, "d", |o| o["status"]["primary"] == 2).await;
    // Both are named, and the waiting run says which member it is for.
    let named = |o: &Value| {
        let ready = condition(o, "Ready")["message"].to_string();
        ready.contains("members[0]") && ready.contains("members[1]")
    };
    stage.until("both in Ready", DATABASE, "d", named).await;
    let second = stage.run_in("failover", "Running").await;
    assert_ne!(first, second);
    let status = stage.operetta(&["plan", "status", &first]).await.ok();
    assert!(status.contains(&format!("run {second} goes first")), "{status}");
    stage.kubectl(&["delete", "resourcequota", "held"]).await;
    stage.is_whole(&lost).await;
}

/// A switchover waits for clients while the primary and its designated successor are lost.
#[tokio::test]
async fn two_members_lost_during_a_switchover_are_replaced() {
    let stage = database(json!({})).await;
    stage.edit(DATABASE, "d", json!({"gate": "shut"})).await;
    // The rollout of the edit waits for the gate.
    stage.flag("d-gate", json!({"open": "yes"})).await;
    stage.is_whole(&[]).await;
    stage.flag("d-gate", json!({"open": "no"})).await;
    stage.until("the gate is known to be shut", DATABASE, "d", |o| o["status"]["gate"] == "no").await;
    let switchover = stage.requested(KIND, "d", "switchover", &Value::Null, "Running").await;
    let lost = stage.lose(&[0, 1]).await;
    let object = stage.until("the new primary", DATABASE, "d", |o| o["status"]["primary"] == 2).await;
    assert!(!is_ready(&object), "{:#}", object["status"]);
    for (name, uid) in &lost {
        stage.until("another pod", POD, name, |pod| uid_of(pod) != uid && is_pod_ready(pod)).await;
    }
    // The switchover continues at the same step.
    stage.run_is(&switchover, "Running").await;
    stage.flag("d-gate", json!({"open": "yes"})).await;
    stage.run_is(&switchover, "Succeeded").await;
    let object = stage.is_whole(&lost).await;
    assert_eq!(object["status"]["primary"], 0);
}

/// The first rollout is cancelled: all outputs report it and how to continue; a retry continues it, and so
/// does an edit.
#[tokio::test]
async fn a_cancelled_first_rollout_is_retried() {
    for way in ["run", "instance", "edit"] {
        let stage = Stage::with_commands().await;
        stage.create(KIND, "d", json!({"gate": "shut"})).await;
        let run = stage.run_in("deploy", "Running").await;
        stage.said_so_far("the gate of d is shut", &run).await;
        stage.cancel(&run).await;
        stage.run_is(&run, "Cancelled").await;
        stage.said_alike(DATABASE, "d", &run, &[&run, "ancelled"]).await;
        let stalled = stage.stalled(DATABASE, "d").await;
        assert!(stalled.contains(&format!("operetta plan retry {run}")), "{stalled}");
        if way == "edit" {
            stage.edit(DATABASE, "d", json!({"gate": "open"})).await;
        } else {
            stage.flag("d-gate", json!({"open": "yes"})).await;
            // A person has deleted the PlanRun: the rollout can be retried all the same.
            let target: &str = if way == "instance" {
                stage.kubectl(&["delete", "planruns", &run]).await;
                "database/d"
            } else {
                &run
            };
            stage.operetta(&["plan", "retry", target, "--wait"]).await.ok();
        }
        let object = stage.is_whole(&[]).await;
        assert!(condition(&object, "Stalled").is_null(), "{:#}", object["status"]);
        // A loss is repaired as before.
        let lost = stage.lose(&[0]).await;
        stage.is_whole(&lost).await;
    }
}

impl Stage {
    /// Waits until Ready, `tree` and `plan status` show this text. Events report transitions, not progress.
    async fn said_so_far(&self, words: &str, run: &str) {
        let says = |o: &Value| condition(o, "Ready")["message"].to_string().contains(words);
        self.until(words, DATABASE, "d", says).await;
        eventually(words, LONG, async || {
            let tree = self.operetta(&["tree", "database/d"]).await.ok();
            // A run of quick steps may be shown only once it waits.
            let status = self.operetta(&["plan", "status", run]).await.ok();
            let holds = tree.contains(words) && status.contains(words);
            if holds { Ok(()) } else { Err(format!("{tree}\n{status}")) }
        })
        .await;
    }
}

/// A backup runs for long: the instance stays Ready, except during a rollout and a loss.
#[tokio::test]
async fn long_backup_does_not_affect_rollout_and_loss() {
    let stage = database(json!({})).await;
    let recorder = Recorder::start(&stage, DATABASE).await;
    let backup = stage.request(KIND, "d", "backup", &json!({"end": "never"})).await;
    let pods = stage.running_pods(1).await;
    let says = |o: &Value| is_ready(o) && condition(o, "Ready")["message"].to_string().contains(&backup);
    stage.until("Ready, and the backup in its message", DATABASE, "d", says).await;
    let so_far = recorder.ready_of("d");
    assert!(so_far.iter().all(|ready| ready.starts_with("True ")), "{so_far:#?}");

    stage.edit(DATABASE, "d", json!({"image": GOOD})).await;
    stage.run_in("upgrade", "Succeeded").await;
    let lost = stage.lose(&[0, 2]).await;
    for (name, uid) in &lost {
        stage.until("another pod", POD, name, |pod| uid_of(pod) != uid && is_pod_ready(pod)).await;
    }
    stage.until("Ready beside the backup", DATABASE, "d", says).await;
    assert_eq!(phase(&stage.get(crate::support::plans::PLAN_RUN, &backup).await), "Running");
    let jobs = stage.list(JOB).await;
    assert_eq!(jobs.len(), 1, "{jobs:#?}");

    stage.end_pod(&pods[0]).await;
    stage.run_is(&backup, "Succeeded").await;
    let recorded = |o: &Value| is_ready(o) && o["status"]["backup"].is_string();
    stage.until("recorded", DATABASE, "d", recorded).await;
    stage.is_whole(&lost).await;
    // The backup alone never made the instance not Ready.
    let blamed =
        |ready: &&String| ready.starts_with("False RunActive") && ready.contains(&format!("{backup}, step"));
    let all = recorder.ready_of("d");
    assert!(!all.iter().any(|ready| blamed(&ready)), "{all:#?}");
}

/// The image of a rollout cannot be pulled: the rollout stops at the first member and all outputs say why;
/// the edit that corrects it is carried out.
#[tokio::test]
async fn an_image_that_cannot_be_pulled_stops_a_rollout() {
    let stage = database_with_commands(json!({})).await;
    stage.edit(DATABASE, "d", json!({"image": BAD})).await;
    stage.until("the bad image", POD, "d-1", |pod| pod["spec"]["containers"][0]["image"] == BAD).await;
    stage.cannot_pull("d-1").await;
    let run = stage.run_in("upgrade", "Running").await;
    stage.said_so_far("ImagePullBackOff", &run).await;
    stage.run_is(&run, "Failed").await;
    stage.said_alike(DATABASE, "d", &run, &["members[1]", "ImagePullBackOff"]).await;
    // The primary serves, and another loss is repaired.
    assert!(is_pod_ready(&stage.get(POD, "d-0").await));
    let lost = stage.lose(&[2]).await;
    stage.until("another pod", POD, "d-2", |pod| uid_of(pod) != lost[0].1 && is_pod_ready(pod)).await;
    stage.edit(DATABASE, "d", json!({"image": GOOD})).await;
    let all = json!([0, 1, 2]);
    let mended = |o: &Value| is_ready(o) && o["status"]["ready"] == all && condition(o, "Stalled").is_null();
    stage.until("mended", DATABASE, "d", mended).await;
    assert!(stage.runs("d").await.iter().all(is_over));
}

/// The image of a Job cannot be pulled: the run fails with that reason while the instance keeps serving.
#[tokio::test]
async fn an_image_that_cannot_be_pulled_fails_a_job() {
    let stage = database_with_commands(json!({})).await;
    let run = stage.request(KIND, "d", "verify", &json!({"end": "unpulled"})).await;
    let pod = eventually("its pod", LONG, async || {
        let pods = stage.list(POD).await;
        let is_it = |pod: &&Value| pod["metadata"]["labels"]["batch.kubernetes.io/job-name"].is_string();
        pods.iter().find(is_it).map(|pod| name_of(pod).to_owned()).ok_or("there is none")
    })
    .await;
    stage.cannot_pull(&pod).await;
    stage.said_so_far("ImagePullBackOff", &run).await;
    let failed = stage.run_is(&run, "Failed").await;
    assert!(
        steps(&failed)["check"]["message"].to_string().contains("ImagePullBackOff"),
        "{}",
        story_of(&failed)
    );
    // Events are written in the background.
    eventually("all places to say it", LONG, async || {
        let tree = stage.operetta(&["tree", "database/d"]).await.ok();
        let status = stage.operetta(&["plan", "status", &run]).await.ok();
        let events = crate::support::plans::events_about(&stage, "d").await;
        let object = stage.until("Ready", DATABASE, "d", is_ready).await;
        let told = condition(&object, "RunFailed").to_string();
        let all = [("tree", tree), ("plan status", status), ("Events", events), ("RunFailed", told)];
        let lacks = |(_, text): &&(&str, String)| !text.contains(&run) || !text.contains("ImagePullBackOff");
        all.iter().find(lacks).map_or(Ok(()), |(what, text)| Err(format!("{what}: {text}")))
    })
    .await;
    // The pod is deleted, and the next run is not blocked.
    stage.gone(POD, &pod).await;
    stage.requested(KIND, "d", "verify", &Value::Null, "Succeeded").await;
}
