//! Packages that are upgraded, rolled back and paused while the manager runs, ends and starts.

use std::time::Duration;

use operetta::local::AuditEvent;
use serde_json::{Value, json};

use crate::support::barrier::Address;
use crate::support::operators::{Cluster, Package, Part, SIZE, is_active, kind_of, scene};
use crate::support::plans::{PLAN_RUN, phase};
use crate::support::{CONFIG_MAP, LONG, OPERATOR, Operetta, eventually, is_ready, managers_requests, uid_of};

/// Fault 20: an upgrade during a run reaches the instance after the run.
#[tokio::test]
async fn upgrade_waits_for_an_active_run() {
    let cluster = &*Cluster::shared().await;
    let plans = |version: &str| {
        format!(
            "      plans:
        deploy:
          steps: [{{name: all, apply: [config]}}]
        work:
          steps:
            - {{name: gate, wait: {{until: children.config.data.open == 'yes'}}, timeout: 10m}}
            - {{name: note, record: {{note: \"'{version}'\"}}}}
      status: {{note: record.note | default('')}}
"
        )
    };
    let part = |version: &str| Part { plans: plans(version), ..Part::new("works", SIZE, version) };
    let package = Package::of("works", "0.1.0", &[part("old")]);
    let first = cluster.put_active(&package).await;
    let scene = scene(cluster).await;
    for name in ["s", "t"] {
        package.ready(&scene, name, &json!({})).await;
    }
    let start_run = async || {
        let run = scene.request((&kind_of("works"), package.kind()), "s", "work", &Value::Null).await;
        scene.run_is(&run, "Running").await;
        run
    };
    let run = start_run().await;
    package.write("0.2.0", &[part("new")]);
    let second = cluster.put(&package).await;
    scene.until("upgraded", CONFIG_MAP, "t", |o| o["data"]["value"] == "new").await;
    let both = json!([{"name": first, "instances": 1}, {"name": second, "instances": 1}]);
    let sorted = |operator: &Value| {
        let mut revisions = operator["status"]["revisions"].as_array().cloned().unwrap_or_default();
        revisions.sort_by_key(|revision| revision["name"] != first.as_str());
        Value::Array(revisions)
    };
    cluster.until("works", "an instance of each revision", |operator| sorted(operator) == both).await;
    assert_eq!(scene.get(CONFIG_MAP, "s").await["data"]["value"], "old");
    scene.patch(CONFIG_MAP, "s", "merge", &json!({"data": {"open": "yes"}})).await;
    scene.until("the old plan has run", PLAN_RUN, &run, |run| phase(run) == "Succeeded").await;
    scene.until("upgraded", CONFIG_MAP, "s", |o| o["data"]["value"] == "new").await;
    let noted = |o: &Value| is_ready(o) && o["status"]["note"] == "old";
    scene.until("the note of the old plan", package.kind(), "s", noted).await;
    let is_one = |operator: &Value| operator["status"]["revisions"][0]["instances"] == 2;
    cluster.until("works", "one revision", is_one).await;

    // A rollback in the midst of a run waits for the run as well.
    scene.patch(CONFIG_MAP, "s", "merge", &json!({"data": {"open": null}})).await;
    let run = start_run().await;
    cluster.patch("works", &json!({"spec": {"revision": first}})).await;
    scene.until("rolled back", CONFIG_MAP, "t", |o| o["data"]["value"] == "old").await;
    assert_eq!(scene.get(CONFIG_MAP, "s").await["data"]["value"], "new");
    scene.patch(CONFIG_MAP, "s", "merge", &json!({"data": {"open": "yes"}})).await;
    scene.until("the new plan has run", PLAN_RUN, &run, |run| phase(run) == "Succeeded").await;
    scene.until("rolled back", CONFIG_MAP, "s", |o| o["data"]["value"] == "old").await;
    let noted = |o: &Value| is_ready(o) && o["status"]["note"] == "new";
    scene.until("the note of the new plan", package.kind(), "s", noted).await;
}

#[tokio::test]
async fn restart_changes_nothing() {
    let cluster = Cluster::start().await;
    let package = Package::new("starts", "0.1.0", "old {{ spec.size }}");
    let first = cluster.put_active(&package).await;
    let scene = scene(&cluster).await;
    package.ready(&scene, "one", &json!({"size": 2})).await;
    // A revision is refused because the instance would lose its size.
    package.write("0.2.0", &[Part::new("starts", "other: {type: string}", "new")]);
    cluster.put(&package).await;
    let refused = async || cluster.until_refused("starts", "CRDRefused").await;
    let told = refused().await;
    assert!(told.contains("one (spec.size") && told.contains("stays active"), "{told}");
    let operator = cluster.find(OPERATOR, "starts").await.unwrap();
    assert_eq!(operator["status"]["activeRevision"], first.as_str());
    let child = scene.get(CONFIG_MAP, "one").await;
    let mark = cluster.plane.audit().mark().unwrap();
    cluster.restart(async || {}).await;
    let address = Address::of(&cluster.manager.lock().unwrap());
    let marker = package.instance("marker", &json!({"size": 2}));
    scene.handled(&address, &marker, package.kind(), &[CONFIG_MAP]).await;
    assert!(refused().await.contains("one (spec.size"));
    let requests = managers_requests(&cluster.plane.audit(), mark);
    let writes: Vec<_> = requests
        .iter()
        .filter(|r| ["create", "update", "patch", "delete"].contains(&r.verb.as_str()))
        .collect();
    let is_of_it = |r: &AuditEvent| r.resource == "starts" && r.name == "one" && !r.uri.contains("dryRun");
    assert!(!writes.iter().any(|r| is_of_it(r)), "the status of an instance flaps:\n{writes:#?}");
    // The instance is repaired with the active revision.
    scene.kubectl(&["delete", "configmap", "one"]).await;
    scene.until("made anew", CONFIG_MAP, "one", |o| o["data"]["value"] == "old 2").await;
    assert_ne!(uid_of(&scene.get(CONFIG_MAP, "one").await), uid_of(&child));
    // The instance can be deleted, and then the revision is accepted by itself.
    scene.kubectl(&["delete", "starts.ops.example.org", "one"]).await;
    cluster.until("starts", "active by itself", is_active).await;
}

/// An upgrade whose manager is killed anywhere ends like an undisturbed one.
#[tokio::test]
async fn upgrade_is_resumed_after_the_manager_ends() {
    let cluster = Cluster::start().await;
    let package = cluster.with(Package::new("cuts", "0.1.0", "0")).await;
    let scene = scene(&cluster).await;
    for name in ["a", "b", "c"] {
        package.ready(&scene, name, &json!({})).await;
    }
    for round in 1..6 {
        let value = round.to_string();
        package.write(
            &format!("0.{round}.0"),
            &[Part::new("cuts", &format!("size: {{type: integer}}, f{round}: {{type: string}}"), &value)],
        );
        cluster.manager.lock().unwrap().kill9();
        cluster.put(&package).await;
        let mut manager = Operetta::run(&cluster.plane, &["run"]);
        manager.kill_after(&cluster.plane, 2 * round - 1, Duration::from_secs(20)).await;
        cluster.restart(async || {}).await;
        for name in ["a", "b", "c"] {
            scene.until("upgraded", CONFIG_MAP, name, |o| o["data"]["value"] == value.as_str()).await;
        }
        let operator = cluster.until("cuts", "active", is_active).await;
        assert_eq!(operator["status"]["version"], format!("0.{round}.0"));
    }
    // The active revision and five others are kept.
    let stored = eventually("old revisions to be pruned", LONG, async || {
        let names = cluster.kubectl(&["get", "operatorrevisions", "-o", "name"], "").await.ok();
        if names.lines().count() <= 6 { Ok(names) } else { Err(names) }
    })
    .await;
    assert!(stored.contains(&package.packed().0), "{stored}");
}

#[tokio::test]
async fn manager_at_rest_sends_no_requests() {
    let cluster = Cluster::start().await;
    let package = cluster.with(Package::new("calms", "0.1.0", "{{ spec.size }}")).await;
    let scene = scene(&cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    cluster.until("calms", "counts", |operator| operator["status"]["instances"] == 1).await;
    let address = Address::of(&cluster.manager.lock().unwrap());
    // In how many seconds the instances are counted again; 0 while they are.
    let due = async || {
        let state = address.state().await;
        let queues = state["queues"].as_object().into_iter().flat_map(serde_json::Map::values);
        let mut delayed = queues.filter_map(|queue| queue["delayed"].as_array()).flatten();
        let count = delayed.find(|key| key["instance"] == "operator calms");
        count.and_then(|count| count["dueInSeconds"].as_f64()).unwrap_or_default()
    };
    let (mut mark, mut last, mut counts) = (cluster.plane.audit().mark().unwrap(), f64::INFINITY, 0);
    eventually("two whole intervals of counting without a call", LONG, async || {
        let next = due().await;
        counts += usize::from(next > last);
        last = next;
        let mut calls = managers_requests(&cluster.plane.audit(), mark);
        calls.retain(|request| request.verb != "watch");
        if !calls.is_empty() {
            // The manager's watch may show what the test has seen a moment later, which costs a read.
            (mark, counts) = (cluster.plane.audit().mark().unwrap(), 0);
        }
        if counts == 3 { Ok(()) } else { Err(format!("{counts} times; {calls:#?}")) }
    })
    .await;
}
