//! Runs while replies are lost, while the watch of runs is late, across a restart after a failed rollout, under a quota, and among
//! objects of others.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::plans::api;
use crate::support::faults::case::{Case, FLEETS, PROCEDURES};
use crate::support::faults::{Fault, Life, Rule, Verb, WRITES};
use crate::support::plans::{Commands, PLAN_RUN, RunWatch, TWELVE, effects, outcome, phase};
use crate::support::{JOB, LONG, POD, condition, eventually, is_pod_ready, is_ready, name_of, uid_of};

/// Writes succeed whose replies are lost, again and again; or the watch of runs shows nothing for a while.
/// The run ends as without faults, each Job is created once, and each request is sent with one key.
#[tokio::test]
async fn runs_end_the_same_despite_lost_replies_and_late_watches() {
    let commands = Commands::new();
    commands.prints("say", "ahoy");
    let case =
        Case::of(&TWELVE, 7).await.with_change(|text| text.replace("http://api.invalid", &api().url()));
    let scene = &case.scene;
    let spec = json!({"script": commands.script()});
    let process = case.start().await;
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(scene).await);
    case.apply_ready("i-calm", &spec).await;
    let expected = outcome(scene, case.kind, "i-calm").await;
    for (name, chance) in [("i-few", 0.25), ("i-many", 0.4)] {
        let rule = case.wire.rule(Rule::on(WRITES, Fault::Cut).namespace(scene.namespace()).chance(chance));
        case.apply(name, &spec).await;
        scene.run_of(name, "deploy", |run| phase(run) == "Succeeded").await;
        assert!(case.wire.struck(rule) > 1, "{name}: {} replies were lost", case.wire.struck(rule));
        case.wire.heal();
        case.ready(name).await;
        assert_eq!(outcome(scene, case.kind, name).await, expected, "{name}");
        effects(scene, name, &jobs, name).await;
    }
    // The manager knows its own writes by their replies. It learns of the Job's end from another watch.
    case.wire.freeze("planruns");
    case.wire.freeze("controllerrevisions");
    case.apply("i-late", &spec).await;
    scene.run_of("i-late", "deploy", |run| phase(run) == "Succeeded").await;
    case.wire.thaw();
    case.ready("i-late").await;
    assert_eq!(outcome(scene, case.kind, "i-late").await, expected);
    effects(scene, "i-late", &jobs, "late watches").await;
    for name in ["i-few", "i-many", "i-late"] {
        let found = scene.runs(name).await;
        assert_eq!(found.iter().map(phase).collect::<Vec<_>>(), ["Succeeded"], "{found:#?}");
    }
    runs.check();
    case.finish(process).await;
}

/// An upgrade fails at the first member. While no manager runs, another member is lost. The next manager recreates it
/// with the old image, and the failed change is applied to no other member.
#[tokio::test]
async fn failed_rollout_changes_no_member_after_restart_and_loss() {
    let case = Case::of(&FLEETS, 0).await;
    let scene = &case.scene;
    let images = async || -> BTreeMap<String, String> {
        let pods = scene.list(POD).await;
        let image =
            |pod: &Value| pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
        pods.iter().map(|pod| (name_of(pod).to_owned(), image(pod))).collect()
    };
    let of = |first: &str, others: &str| {
        let image = |word: &str| format!("registry.example.com/{word}");
        BTreeMap::from([
            ("i-0".to_owned(), image(first)),
            ("i-1".to_owned(), image(others)),
            ("i-2".to_owned(), image(others)),
        ])
    };
    let process = case.start().await;
    case.apply_ready("i", &json!({})).await;
    scene.patch(case.kind, "i", "merge", &json!({"spec": {"image": "registry.example.com/bad:1"}})).await;
    scene.run_of("i", "upgrade", |run| phase(run) == "Failed").await;
    assert_eq!(images().await, of("bad:1", "work:1"));
    process.stop().await;
    for is_killed in [false, true] {
        let process = case.start().await;
        scene.until("Stalled", case.kind, "i", |o| condition(o, "Stalled")["status"] == "True").await;
        if is_killed {
            process.kill();
        } else {
            process.stop().await;
        }
        let lost = uid_of(&scene.get(POD, "i-2").await).to_owned();
        scene.kubectl(&["delete", "pod", "i-2", "--grace-period=0", "--force"]).await;
        scene.gone(POD, "i-2").await;
        let before = scene.list(PLAN_RUN).await.len();
        let process = case.start().await;
        scene.until("another pod", POD, "i-2", |pod| uid_of(pod) != lost && is_pod_ready(pod)).await;
        eventually("its plan to end", LONG, async || {
            let runs = scene.list(PLAN_RUN).await;
            let ended = runs.iter().filter(|run| phase(run) == "Succeeded").count();
            if runs.len() == before + 1 && ended == before { Ok(()) } else { Err(format!("{runs:#?}")) }
        })
        .await;
        assert_eq!(images().await, of("bad:1", "work:1"), "killed: {is_killed}");
        process.stop().await;
    }
    let process = case.start().await;
    scene.patch(case.kind, "i", "merge", &json!({"spec": {"image": "registry.example.com/work:2"}})).await;
    scene.until("mended", case.kind, "i", |o| is_ready(o) && condition(o, "Stalled").is_null()).await;
    assert_eq!(images().await, of("work:2", "work:2"));
    case.finish(process).await;
}

/// A namespace has a quota of runs, which the cluster has not counted yet.
#[tokio::test]
async fn a_quota_on_runs_is_said_and_waited_for() {
    let case = Case::of(&FLEETS, 5).await;
    let scene = &case.scene;
    let process = case.start().await;
    case.apply_ready("i", &json!({})).await;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "runs"},
        "spec": {"hard": {"count/planruns.operetta.dev": "1"}}});
    scene.apply(&quota.to_string()).await;
    case.refuses_runs("i", "resize", "quota").await;
    scene.patch(case.kind, "i", "merge", &json!({"spec": {"size": 4}})).await;
    let says = |instance: &Value| {
        let message = condition(instance, "Reconciling")["message"].as_str().unwrap_or_default();
        message.contains("its PlanRun cannot be created") && message.contains("quota")
    };
    scene.until("refused", case.kind, "i", says).await;
    scene.kubectl(&["delete", "resourcequota", "runs"]).await;
    scene.run_of("i", "resize", |run| phase(run) == "Succeeded").await;
    case.ready("i").await;
    case.finish(process).await;
}

/// Attack: a tenant reads the name of the Job of a step from the status of its run, and creates a Job under it before the
/// manager does, with the labels that the manager would give it.
#[tokio::test]
async fn a_job_that_a_tenant_has_made_is_not_taken_for_that_of_a_step() {
    let case = Case::of(&PROCEDURES, 0).await;
    let scene = &case.scene;
    let process = case.start().await;
    case.apply_ready("i", &json!({})).await;
    let kind = ("Procedure", case.kind);
    // What the labels are is no secret.
    scene.requested(kind, "i", "retried-job", &json!({}), "Succeeded").await;
    let labels = scene.list(JOB).await[0]["metadata"]["labels"].clone();
    assert!(labels["operetta.dev/run-of"].is_string(), "{labels}");
    for forged in [labels, json!({})] {
        let gate = Life::new();
        let held =
            case.wire.rule(Rule::on(&[Verb::Create], Fault::Held(gate.clone())).plural("jobs").times(1));
        let run = scene.request(kind, "i", "retried-job", &json!({"message": "{\"id\": \"m-2\"}"})).await;
        case.struck("the Job to be created", &[held]).await;
        let intended = scene.get(PLAN_RUN, &run).await;
        let name = intended["status"]["steps"][0]["objects"][0]["name"].as_str().unwrap().to_owned();
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": forged},
            "spec": {"template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "work", "image": "registry.example.com/another:1"}]}}},
        });
        scene.kubectl_input(&["create", "-f", "-"], &job.to_string()).await.unwrap();
        gate.end();
        // The next attempt has another name.
        let done = scene.run_is(&run, "Succeeded").await;
        let step = &done["status"]["steps"][0];
        assert_eq!((&step["failures"], &step["attempt"]), (&json!(1), &json!(2)), "{step:#}");
        assert_ne!(step["objects"][1]["name"], *name);
        let left = scene.get(JOB, &name).await;
        assert_eq!(left["metadata"]["labels"]["operetta.dev/run-of"], forged["operetta.dev/run-of"]);
        assert!(left["spec"]["ttlSecondsAfterFinished"].is_null(), "it is left alone: {left:#}");
    }
    case.finish(process).await;
}
