//! Runs under adverse conditions: a Job that is lost, a webhook that is down, two managers that both believe they lead, and a clock
//! that jumps.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::leader::LEASE;
use crate::support::ext::{
    ALARM, JOB, Kind, LONG, Scene, VOYAGE, condition, copy_package, fixture, name_of, run_flags, uid_of,
};
use crate::support::faults::case::{Case, FLEETS};
use crate::support::faults::{Fault, Rule, Verb};
use crate::support::plans::{
    Api, Commands, LOOPBACK, PLAN_RUN, RunWatch, TWELVE, effects, phase, story_of, with_api,
};
use crate::support::{Operetta, eventually, own_embedded_plane, plane, signal};
use rustix::process::Signal;

/// A finished Job is deleted before its outputs are read: the attempt fails, and the Job is not created
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_job_deleted_unread_is_a_failed_attempt() {
    // On the embedded API the Job has finished before the run knows its uid.
    let case = Case::on(plane().await, &TWELVE, 0).await;
    let scene = &case.scene;
    let process = case.start().await;
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(scene).await);
    let unread =
        Rule::on(&[Verb::Get, Verb::List], Fault::Refused).plural("pods").namespace(scene.namespace());
    case.wire.rule(unread);
    case.apply("i", &json!({})).await;
    let job = eventually("a finished Job", LONG, async || {
        let jobs = scene.list(JOB).await;
        jobs.into_iter().find(|job| condition(job, "Complete")["status"] == "True").ok_or("none")
    })
    .await;
    scene.run_of("i", "deploy", |run| run["status"].to_string().contains(uid_of(&job))).await;
    scene.kubectl(&["delete", "job", name_of(&job)]).await;
    case.wire.heal();
    let run = scene.run_of("i", "deploy", |run| phase(run) == "Failed").await;
    assert!(story_of(&run).contains("was deleted before its result was read"), "{}", story_of(&run));
    runs.check();
    assert_eq!(jobs.counts(), BTreeMap::from([(name_of(&job).to_owned(), 1)]));
    case.finish(process).await;
}

/// A webhook of the cluster does not answer that is asked about new runs of one plan, and about the states of another plan's runs. Runs of
/// other plans are carried out and released meanwhile, and these when it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_is_down_stops_no_other_run() {
    // The embedded API calls no webhooks.
    let case = Case::on(plane().await, &FLEETS, 3).await;
    let scene = &case.scene;
    let process = case.start().await;
    case.apply_ready("i", &json!({})).await;
    let webhook = |operation: &str, resource: &str, plan: &str| {
        json!({
            "name": format!("{plan}.example.com"), "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": ["operetta.dev"], "apiVersions": ["*"], "operations": [operation], "resources": [resource]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace()}},
            "matchConditions": [{"name": "plan", "expression": format!("object.spec.plan == '{plan}'")}],
            "admissionReviewVersions": ["v1"], "sideEffects": "None",
        })
    };
    let name = format!("down-{}", scene.namespace());
    let down = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": name},
        "webhooks": [webhook("CREATE", "planruns", "resize"), webhook("UPDATE", "planruns/status", "again")],
    });
    scene.apply(&down.to_string()).await;
    case.refuses_runs("i", "resize", "failed calling webhook").await;
    let fleets = ("Fleet", case.kind);
    let again = scene.request(fleets, "i", "again", &json!({})).await;
    scene.patch(case.kind, "i", "merge", &json!({"spec": {"size": 4}})).await;
    let says = |instance: &Value| {
        let message = condition(instance, "Reconciling")["message"].as_str().unwrap_or_default();
        message.contains("its PlanRun cannot be") && message.contains("failed calling webhook")
    };
    scene.until("refused", case.kind, "i", says).await;
    let promote = scene.requested(fleets, "i", "promote", &json!({"to": 1}), "Succeeded").await;
    scene.kubectl(&["delete", "planrun", &promote, "--timeout=300s"]).await;
    scene.gone(PLAN_RUN, &promote).await;
    assert_eq!(phase(&scene.get(PLAN_RUN, &again).await), "");
    scene.kubectl(&["delete", "validatingwebhookconfiguration", &name]).await;
    scene.run_is(&again, "Succeeded").await;
    scene.run_of("i", "resize", |run| phase(run) == "Succeeded").await;
    case.ready("i").await;
    case.finish(process).await;
}

/// A package of plans with its own API group, for managers in their own processes.
fn package(name: &str, group: &str) -> (tempfile::TempDir, Kind) {
    let copy = copy_package(&fixture(name), "fixtures.operetta.dev", group, |text| text);
    let with = with_api(copy.path(), Api::shared());
    (with, Kind::of(format!("{group}/v1"), VOYAGE.plural.to_owned()))
}

fn alarm(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": ALARM.api_version(), "kind": "Alarm", "metadata": {"name": name}, "spec": spec})
}

fn voyage(kind: Kind, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": kind.api_version(), "kind": "Voyage", "metadata": {"name": name}, "spec": spec})
}

/// Two managers both believe for a while that they lead: no run and no step is carried out twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_leader_repeats_no_step() {
    let plane = own_embedded_plane().await;
    let scene = Scene::on(&plane).await;
    let commands = Commands::new();
    commands.prints("say", "ahoy");
    let (folder, kind) = package("plans-twelve", "sleepy.plans.operetta.dev");
    let folder = folder.path().to_str().expect("UTF-8").to_owned() + "/";
    let start = |identity: &str| {
        let identity = format!("--leader-elect-identity={identity}");
        let flags = [&["--leader-elect", &identity, LOOPBACK][..], &LEASE].concat();
        run_flags(&plane, &flags, &[&folder])
    };
    let first = start("first").watching(1).await;
    let mut second = start("second");
    second.wait_for("standing by", LONG).await;
    let (jobs, runs) = (scene.watch_uids(JOB).await, RunWatch::start(&scene).await);
    let spec = json!({"script": commands.script()});
    let all: Vec<Value> = (0..10).map(|i| voyage(kind, &format!("v{i}"), &spec)).collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string()).await;
    eventually("some runs to be on their way", LONG, async || match jobs.counts().len() {
        4.. => Ok(()),
        n => Err(n),
    })
    .await;
    signal(first.pid(), Signal::STOP);
    let _second = second.watching(1).await;
    eventually("the second to go on", LONG, async || match jobs.counts().len() {
        8.. => Ok(()),
        n => Err(n),
    })
    .await;
    signal(first.pid(), Signal::CONT);
    for i in 0..10 {
        let name = format!("v{i}");
        scene.ready(kind, &name).await;
        effects(&scene, &name, &jobs, "two leaders").await;
    }
    runs.check();
}

/// The wall clock jumps a day forward and back during a timeout and a schedule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_jump_ends_no_timeout_and_repeats_no_schedule() {
    const HOUR: i64 = 3_600;
    let plane = own_embedded_plane().await;
    let scene = Scene::on(&plane).await;
    let offset = plane.folder().join("clock-offset");
    let set = |seconds: i64| {
        // Replace the file by a rename: the manager may be reading it now.
        let fresh = plane.folder().join("clock-offset.fresh");
        std::fs::write(&fresh, seconds.to_string()).expect("a file");
        std::fs::rename(fresh, &offset).expect("a file");
    };
    set(0);
    let args = ["run", "--leader-elect=false", &fixture("plans-clock")];
    let environment =
        [("KUBECONFIG", plane.kubeconfig_path()), ("OPERETTA_CLOCK_OFFSET_FILE", offset.as_path())];
    let _manager = Operetta::run_with(&args, &environment).watching(1).await;
    scene.apply_ready(ALARM, "a", &alarm("a", &json!({"schedule": "@every 1h"})).to_string()).await;
    let held = scene.requested(("Alarm", ALARM), "a", "hold", &Value::Null, "Running").await;
    let nightly =
        async || scene.runs("a").await.iter().filter(|run| run["spec"]["plan"] == "nightly").count();
    assert_eq!(nightly().await, 0);
    // One run makes up for the hours that seem to have passed. After the clock is set back, a day is not
    // waited for.
    for (jump, expected) in
        [(2, 1), (24, 2), (2, 2), (4, 3), (-24, 3), (4, 3), (5, 4)].map(|(hours, runs)| (hours * HOUR, runs))
    {
        set(jump);
        // A run that begins under the new time shows that everything is decided under it.
        let other = scene.request(("Alarm", ALARM), "a", "other", &Value::Null).await;
        let other = scene.run_is(&other, "Succeeded").await;
        let time = |value: &Value| value.as_str().expect("a time").parse::<Timestamp>().expect("a time");
        let created = time(&other["metadata"]["creationTimestamp"]);
        let ahead = time(&other["status"]["startedAt"]).duration_since(created).as_secs();
        assert!((ahead - jump).abs() < HOUR / 2, "{ahead} s ahead after a jump to {jump} s");
        let found = eventually("the runs of the schedule", LONG, async || {
            let count = nightly().await;
            if count >= expected { Ok(count) } else { Err(format!("{count} after a jump to {jump} s")) }
        })
        .await;
        assert_eq!(found, expected, "scheduled runs after a jump to {jump} s");
        let run = scene.get(PLAN_RUN, &held).await;
        assert_eq!(phase(&run), "Running", "after a jump to {jump} s: {run:#}");
    }
    scene.request(("Alarm", ALARM), "a", "open", &Value::Null).await;
    scene.run_is(&held, "Succeeded").await;
    assert_eq!(nightly().await, 4);
}
