//! Edits of twenty kinds, made in every way that people and controllers use: owned fields are restored and
//! fields of others are kept, with few requests, and afterwards no more requests are made.
//!
//! Each case has a child of its own that is edited once. `OPERETTA_TEST_ONLY` runs only the cases whose name
//! contains it.

// A table reads better with values than with references to them.
mod cases;
mod trial;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::support::ControlPlane;
use crate::support::barrier::Address;
use crate::support::ext::{DEPLOYMENT, LONG, SHELF, Scene, fixture, list, managers_requests, run};
use crate::support::{Operetta, eventually, own_plane};
use futures::StreamExt;
use http::Request;
use operetta::local::{AuditEvent, AuditLog, Mark};
use serde_json::{Value, json};
use trial::{Trial, shelf, shelves, snapshot, trials};

/// The manager answers a foreign change that metadata cannot explain at most once in this time, so a conflict
/// that repeats at this rate shows only after it.
const REAPPLY_EVERY: Duration = Duration::from_secs(30);

/// The manager; if the test fails, its warnings are shown.
struct Manager(Mutex<Operetta>);

impl Manager {
    async fn start(plane: &ControlPlane) -> Self {
        let manager = run(plane, &["edits"]).watching(1).await;
        Self(Mutex::new(manager))
    }

    fn stop(self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).kill9();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = self.0.lock().unwrap_or_else(PoisonError::into_inner).output();
            let lines: Vec<&str> = output
                .lines()
                .filter(|l| l.contains("WARN") || l.contains("ERROR") || l.contains("panic"))
                .collect();
            eprintln!("the manager:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

/// The manager's requests about objects, by plural and name.
fn about_objects(requests: &[AuditEvent]) -> BTreeMap<(String, String), Vec<&AuditEvent>> {
    let mut by_object: BTreeMap<_, Vec<_>> = BTreeMap::new();
    // A dry run is for a signature and not for an object, so it does not count.
    let counts = |r: &&AuditEvent| r.verb != "watch" && r.subresource.is_empty() && !r.uri.contains("dryRun");
    for request in requests.iter().filter(counts) {
        by_object.entry((request.resource.clone(), request.name.clone())).or_default().push(request);
    }
    by_object
}

/// Waits until the manager is at rest and has stopped writing.
async fn comes_to_rest(manager: &Manager, audit: &AuditLog) {
    let address = Address::of(&manager.0.lock().unwrap_or_else(PoisonError::into_inner));
    let mut mark = audit.mark().unwrap();
    let writes = || {
        let from = std::mem::replace(&mut mark, audit.mark().unwrap());
        let mut written = managers_requests(audit, from);
        written.retain(AuditEvent::writes);
        list(&written)
    };
    address.at_rest(writes).await;
}

async fn prepare() -> Scene {
    let gauge = format!("{}/needs/gauge.yaml", fixture("edits"));
    let scene = Scene::on(&own_plane().await).await;
    scene.kubectl(&["apply", "-f", &gauge]).await;
    let established = ["wait", "--for=condition=Established", "--timeout=300s"];
    scene.kubectl(&[&established[..], &["crd/gauges.fixtures.operetta.dev"]].concat()).await;
    scene
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_edit_is_restored_or_kept_without_repeated_writes() {
    let scene = prepare().await;
    let manager = Manager::start(scene.plane()).await;
    let trials = trials();
    let items = shelves(&trials);
    let list_of = |items: &[Value]| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    scene.kubectl_input(&["create", "-f", "-"], &list_of(&items)).await.unwrap();
    let audit = scene.plane().audit();
    eventually("all children", LONG, async || {
        let now = snapshot(&scene).await;
        let missing: Vec<_> = trials.iter().filter(|t| !now.contains_key(&t.key())).map(Trial::key).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    })
    .await;
    comes_to_rest(&manager, &audit).await;
    let before = snapshot(&scene).await;
    let mark = audit.mark().unwrap();
    let started = Instant::now();
    let edits = trials.iter().map(async |trial| {
        let result = trial.inflict(&scene).await;
        result.err().map(|error| format!("{} cannot be made: {error}", trial.case.name()))
    });
    let edits = futures::stream::iter(edits).buffer_unordered(6).collect::<Vec<_>>().await;
    let impossible: Vec<String> = edits.into_iter().flatten().collect();
    assert!(impossible.is_empty(), "{}", impossible.join("\n"));
    eprintln!("{} edits in {:.1} s", trials.len(), started.elapsed().as_secs_f32());

    let edited = Instant::now();
    let wrong = async || {
        let now = snapshot(&scene).await;
        let wrong: Vec<String> = trials
            .iter()
            .filter_map(|t| Some(format!("{} ({}): {}", t.case.name(), t.name, t.judge(&before, &now)?)))
            .collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("{} of {}:\n{}", wrong.len(), trials.len(), wrong.join("\n")))
        }
    };
    let result = tokio::time::timeout(LONG, async {
        while wrong().await.is_err() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
    eprintln!("all answered after {:.1} s: {}", edited.elapsed().as_secs_f32(), result.is_ok());
    let rest = (REAPPLY_EVERY + Duration::from_secs(4)).saturating_sub(edited.elapsed());
    tokio::join!(tokio::time::sleep(rest), what_is_yielded(&scene));
    let mut failures = wrong().await.err().unwrap_or_default();
    failures += &too_many(&audit, &trials, mark);
    assert!(failures.is_empty(), "{failures}");

    // A restarted manager writes nothing, whatever others have left on the objects.
    manager.stop();
    let mark = audit.mark().unwrap();
    let manager = Manager::start(scene.plane()).await;
    comes_to_rest(&manager, &audit).await;
    let mut writes = managers_requests(&audit, mark);
    writes.retain(AuditEvent::writes);
    assert!(writes.is_empty(), "everything was right, and yet it wrote:\n{}", list(&writes));
    wrong().await.unwrap();
    manager.stop();
}

/// A yielded field belongs to an autoscaler while the template lists it, and never loses its last owner.
async fn what_is_yielded(scene: &Scene) {
    let name = |n: usize| format!("y-{n}-scaled");
    for n in 0..3 {
        scene.apply(&shelf(&format!("y-{n}"), json!({"children": ["scaled"]})).to_string()).await;
        scene.until("there", DEPLOYMENT, &name(n), |o| o["spec"]["replicas"] == 2).await;
    }
    let scale = async |n: usize, manager: &str, replicas: u32| {
        let path = DEPLOYMENT.path(Some(scene.namespace()), &name(n));
        let request = Request::patch(format!("{path}/scale?fieldManager={manager}"))
            .header("content-type", "application/merge-patch+json")
            .body(json!({"spec": {"replicas": replicas}}).to_string().into_bytes())
            .unwrap();
        scene.client().request::<Value>(request).await.unwrap();
    };
    // Each new greeting makes the manager apply the desired object.
    let greet = async |n: usize, greeting: &str, replicas: u32, mut spec: Value| {
        spec["greeting"] = greeting.into();
        scene.patch(SHELF, &format!("y-{n}"), "merge", &json!({"spec": spec})).await;
        let what = format!("{replicas} replicas, {greeting}");
        let holds = |o: &Value| o["spec"]["template"]["metadata"]["labels"]["greeting"] == greeting;
        let deployment = scene.until(&what, DEPLOYMENT, &name(n), holds).await;
        assert_eq!(deployment["spec"]["replicas"], replicas, "{what}");
    };
    // An autoscaler that is listed has the field until it is no longer listed.
    scale(0, "horizontal-pod-autoscaler", 5).await;
    greet(0, "one", 5, json!({})).await;
    scale(0, "horizontal-pod-autoscaler", 7).await;
    greet(0, "two", 7, json!({})).await;
    greet(0, "three", 2, json!({"yields": false})).await;
    // The spec no longer sets the field and nobody else owns it: it stays as it is, also across repairs.
    greet(1, "one", 2, json!({"scaled": true})).await;
    let label = json!({"metadata": {"labels": {"operetta.dev/child": "x"}}});
    scene.patch(DEPLOYMENT, &name(1), "merge", &label).await;
    let repaired = |o: &Value| o["metadata"]["labels"]["operetta.dev/child"] == "scaled";
    let deployment = scene.until("repaired", DEPLOYMENT, &name(1), repaired).await;
    assert_eq!(deployment["spec"]["replicas"], 2);
    scale(1, "horizontal-pod-autoscaler", 4).await;
    greet(1, "two", 4, json!({})).await;
    // A person may own the field just like an autoscaler.
    scale(2, "kubectl", 3).await;
    greet(2, "one", 3, json!({})).await;
}

/// The trials that have caused more requests than allowed.
fn too_many(audit: &AuditLog, trials: &[Trial], mark: Mark) -> String {
    let requests = managers_requests(audit, mark);
    let by_object = about_objects(&requests);
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    let mut text = String::new();
    for trial in trials {
        let asked = by_object.get(&(trial.kind.plural.to_owned(), trial.name.clone()));
        let asked: Vec<AuditEvent> = asked.into_iter().flatten().map(|r| (*r).clone()).collect();
        // A request that changes managedFields may conflict with a controller's write of the status; it is
        // then read and sent again.
        let met = asked.iter().filter(|r| r.code == 409 && r.uri.ends_with("fieldManager=operetta")).count();
        let number = asked.len() - 2 * met;
        *counts.entry(number).or_default() += 1;
        if number > trial.case.most {
            let _ = writeln!(
                text,
                "{} ({}): {} requests, not {}:\n{}",
                trial.case.name(),
                trial.name,
                number,
                trial.case.most,
                list(&asked)
            );
        }
    }
    let all: usize = requests.iter().filter(|r| r.verb != "watch").count();
    eprintln!("requests an edit: {counts:?}; {all} in all");
    text
}
