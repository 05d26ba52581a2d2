//! Upgrades in stages: what fails pauses the rest, or is left behind, instances may keep their revision, a rollback returns those that
//! were moved, and another manager continues at the same point.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{dies_at, start};
use crate::support::barrier::Address;
use crate::support::faults::Wire;
use crate::support::fleets::{all, children, create, fails_for_13, is_paused, set_upgrade, value};
use crate::support::operators::{Cluster, Package, Part, SIZE, is_active, scene};
use crate::support::{CONFIG_MAP, EVENT, LONG, OPERATOR, Scene, condition, eventually, is_ready, name_of};

/// Installs a package and sets its upgrade settings. Returns it with a second revision, which fails for
/// instances of size 13.
async fn installed(cluster: &Cluster, name: &str, upgrade: &Value) -> Package {
    let package = cluster.with(Package::new(name, "0.1.0", "old")).await;
    set_upgrade(cluster, name, upgrade).await;
    package.write("0.2.0", &[Part::new(name, SIZE, &fails_for_13("new"))]);
    package
}

/// The fields of a child that do not change with every write.
fn essence(child: &Value) -> Value {
    let meta = &child["metadata"];
    let owned = meta["managedFields"].as_array().into_iter().flatten();
    let owned: Vec<Value> = owned.map(|e| json!([e["manager"], e["operation"], e["fieldsV1"]])).collect();
    json!([meta["uid"], meta["labels"], meta["annotations"], meta["ownerReferences"], child["data"], owned])
}

/// The values of the children, in the order of their names.
async fn values(scene: &Scene) -> Vec<String> {
    children(scene).await.values().map(|child| value(child).to_owned()).collect()
}

/// Uses 200 instances.
#[tokio::test]
async fn failing_instance_pauses_the_upgrade_and_rollback_works() {
    let cluster = Cluster::start().await;
    let package = installed(&cluster, "fleets", &json!({"maxUnavailable": 7})).await;
    let scene = scene(&cluster).await;
    create(&scene, &package, (0..200).map(|index| if index == 100 { 13 } else { 1 })).await;
    let before = children(&scene).await;
    let statuses = async || {
        let of = |o: &Value| (name_of(o).to_owned(), o["status"]["revision"].clone());
        scene.list(package.kind()).await.iter().map(of).collect::<BTreeMap<_, _>>()
    };
    let recorded = statuses().await;
    assert_eq!(before.len(), 200);

    let first = cluster.find(OPERATOR, "fleets").await.unwrap()["spec"]["revision"].clone();
    cluster.put(&package).await;
    // The failing one alone still changes.
    let is_settled = |o: &Value| is_paused(o) && o["status"]["upgrade"]["changing"] == 1;
    let operator = cluster.until("fleets", "paused", is_settled).await;
    assert!(condition(&operator, "Ready")["message"].as_str().unwrap().contains("i-100"), "{operator:#}");
    let upgrade = &operator["status"]["upgrade"];
    assert!(upgrade["failing"].as_array().unwrap().len() == 1, "{operator:#}");
    let count = |field: &str| upgrade[field].as_u64().unwrap();
    assert_eq!(count("moved") + count("waiting"), 200, "{operator:#}");
    let revisions = operator["status"]["revisions"].as_array().unwrap();
    let counts: Vec<u64> = revisions.iter().map(|one| one["instances"].as_u64().unwrap()).collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (2, 200), "{operator:#}");
    // The instances before the failing one are upgraded, and at most one stage beyond it; the others are
    // unchanged.
    let untouched = async || {
        let now = children(&scene).await;
        let moved = now.values().filter(|child| value(child) == "new").count();
        assert!((100..=106).contains(&moved), "{moved}");
        for (name, child) in &now {
            let is_same = child["metadata"]["resourceVersion"] == before[name]["metadata"]["resourceVersion"];
            assert!(is_same || value(child) == "new", "{name}");
        }
        assert_eq!(value(&now["i-100"]), "old", "what fails is not half applied");
        now
    };
    let paused = untouched().await;
    eventually("the Event", LONG, async || {
        let events = cluster.kubectl(&["get", "events", "-n", "default", "-o", "json"], "").await.ok();
        if events.contains("UpgradePaused") { Ok(()) } else { Err(events) }
    })
    .await;
    // It stays so with another manager, which repairs each child with its instance's revision.
    cluster.restart(async || {}).await;
    for (name, expected) in [("i-050", "new"), ("i-150", "old")] {
        scene.kubectl(&["delete", "configmap", name]).await;
        scene.until("made anew", CONFIG_MAP, name, |o| value(o) == expected).await;
    }
    let address = Address::of(&cluster.manager.lock().unwrap());
    scene.idle(&address).await;
    let after = children(&scene).await;
    for (name, child) in &after {
        assert_eq!(value(child), value(&paused[name]), "{name}");
    }
    cluster.until("fleets", "still paused", is_paused).await;

    cluster.patch("fleets", &json!({"spec": {"revision": first}})).await;
    let is_whole = |o: &Value| {
        is_active(o)
            && o["status"]["upgrade"].is_null()
            && o["status"]["revisions"].as_array().unwrap().len() == 1
    };
    cluster.until("fleets", "rolled back", is_whole).await;
    all(&scene, &package, "Ready", is_ready).await;
    let after = children(&scene).await;
    for (name, child) in &after {
        let mut expected = essence(&before[name]);
        if ["i-050", "i-150"].contains(&name.as_str()) {
            expected[0].clone_from(&child["metadata"]["uid"]);
        }
        assert_eq!(essence(child), expected, "{name}");
        // The rollback did not change instances that were not upgraded.
        if value(&paused[name]) == "old" && name != "i-150" {
            let version = |child: &Value| child["metadata"]["resourceVersion"].clone();
            assert_eq!(version(child), version(&before[name]), "{name}");
        }
    }
    assert_eq!(statuses().await, recorded);
}

#[tokio::test]
async fn upgrade_continues_when_the_failing_instance_is_corrected() {
    let cluster = &*Cluster::shared().await;
    let package = installed(cluster, "mends", &json!({"maxUnavailable": 1})).await;
    let scene = scene(cluster).await;
    create(&scene, &package, [13, 1, 1]).await;
    cluster.put(&package).await;
    cluster.until("mends", "paused", is_paused).await;
    assert_eq!(values(&scene).await, ["old", "old", "old"]);
    scene.patch(package.kind(), "i-000", "merge", &json!({"spec": {"size": 2}})).await;
    cluster.until("mends", "upgraded", is_active).await;
    assert_eq!(values(&scene).await, ["new", "new", "new"]);
    let operator = cluster.find(OPERATOR, "mends").await.unwrap().to_string();
    assert!(!operator.contains("UpgradePaused"), "{operator}");
}

#[tokio::test]
async fn upgrade_without_pause_skips_failing_instances() {
    let cluster = &*Cluster::shared().await;
    let upgrade = json!({"maxUnavailable": "50%", "pauseOnFailure": false});
    let package = installed(cluster, "goes", &upgrade).await;
    let scene = scene(cluster).await;
    create(&scene, &package, [13, 1, 1]).await;
    cluster.put_active(&package).await;
    assert_eq!(values(&scene).await, ["old", "new", "new"]);
    let is_stalled = |o: &Value| condition(o, "Stalled")["status"] == "True";
    scene.until("Stalled", package.kind(), "i-000", is_stalled).await;
}

#[tokio::test]
async fn a_pinned_instance_keeps_its_revision() {
    let cluster = Cluster::start().await;
    let pin = json!({"pin": {"matchLabels": {"keep": "yes"}}});
    let package = installed(&cluster, "pins", &pin).await;
    let scene = scene(&cluster).await;
    create(&scene, &package, [1, 1]).await;
    let pause = async |value: Value| {
        let patch =
            json!({"metadata": {"labels": {"keep": "yes"}, "annotations": {"operetta.dev/paused": value}}});
        scene.patch(package.kind(), "i-000", "merge", &patch).await;
    };
    // The pause shows that the manager has seen the label.
    let is_held = |o: &Value| condition(o, "Ready")["reason"] == "Paused";
    pause(json!("true")).await;
    scene.until("paused", package.kind(), "i-000", is_held).await;
    pause(Value::Null).await;
    scene.ready(package.kind(), "i-000").await;
    cluster.put_active(&package).await;
    assert_eq!(values(&scene).await, ["old", "new"]);
    let operator = cluster.until("pins", "active", is_active).await;
    let ready = condition(&operator, "Ready");
    let told = "1 instance keeps an earlier revision: 1 pinned by spec.upgrade.pin";
    assert_eq!(
        (&ready["reason"], &ready["status"]),
        (&json!("InstancesKept"), &json!("True")),
        "{operator:#}"
    );
    assert!(ready["message"].as_str().unwrap().ends_with(told), "{operator:#}");
    assert_eq!(operator["status"]["revisions"].as_array().unwrap().len(), 2, "{operator:#}");
    // The instance also keeps it after a restart, when the revision must be read.
    cluster.restart(async || {}).await;
    scene.kubectl(&["delete", "configmap", "i-000"]).await;
    scene.until("made anew", CONFIG_MAP, "i-000", |o| value(o) == "old").await;
    assert_eq!(values(&scene).await, ["old", "new"]);
    // Neither the label nor a pause keeps the revision longer than the Operator says.
    pause(json!("true")).await;
    scene.until("paused", package.kind(), "i-000", is_held).await;
    let held = json!({"pin": {"matchLabels": {"keep": "yes"}}, "maxHoldSeconds": 0});
    set_upgrade(&cluster, "pins", &held).await;
    let one = |operator: &Value| {
        is_active(operator) && operator["status"]["revisions"].as_array().unwrap().len() == 1
    };
    cluster.until("pins", "of one revision", one).await;
    let moved = scene.get(package.kind(), "i-000").await;
    assert_eq!(condition(&moved, "Ready")["reason"], "Paused", "{moved:#}");
    assert_eq!(values(&scene).await, ["old", "new"], "it is paused");
    pause(Value::Null).await;
    scene.until("upgraded", CONFIG_MAP, "i-000", |o| value(o) == "new").await;
    // The API server or the manager refuses invalid selectors and numbers.
    for wrong in
        [json!({"maxUnavailable": 0}), json!({"maxUnavailable": "200%"}), json!({"pin": {"matchLabels": 1}})]
    {
        let patch = json!({"spec": {"upgrade": wrong}}).to_string();
        cluster.kubectl(&["patch", "operator", "pins", "--type=merge", "-p", &patch], "").await.fails();
    }
}

/// An instance is neither Ready nor Stalled, because its tenant or its revision lets it wait for ever.
#[tokio::test]
async fn never_ready_instance_pauses_the_upgrade_after_the_deadline() {
    let cluster = &*Cluster::shared().await;
    let upgrade = json!({"maxUnavailable": 1, "progressDeadlineSeconds": 3});
    let package = installed(cluster, "waits", &upgrade).await;
    let waits = "      readyWhen: spec.size != 13\n".to_owned();
    package.write("0.2.0", &[Part { plans: waits, ..Part::new("waits", SIZE, "new") }]);
    let scene = scene(cluster).await;
    create(&scene, &package, [13, 1, 1]).await;
    cluster.put(&package).await;
    let operator = cluster.until("waits", "paused", is_paused).await;
    let told = condition(&operator, "Ready")["message"].as_str().unwrap();
    assert!(told.contains("i-000 (not ready within the deadline: "), "{told}");
    assert_eq!(values(&scene).await, ["new", "old", "old"]);
    // With `pauseOnFailure: false` the upgrade leaves the instance behind.
    set_upgrade(cluster, "waits", &json!({"pauseOnFailure": false})).await;
    cluster.until("waits", "upgraded", is_active).await;
    assert_eq!(values(&scene).await, ["new", "new", "new"]);
}

/// Upgrades and rolls back, each with a manager that ends at its kth write, until a manager makes fewer than
/// k writes.
#[tokio::test]
async fn upgrade_is_resumed_after_a_kill_at_any_write() {
    let cluster = Cluster::start().await;
    let package = installed(&cluster, "dies", &json!({"maxUnavailable": 1})).await;
    let scene = scene(&cluster).await;
    create(&scene, &package, [1, 13, 1]).await;
    let first =
        cluster.find(OPERATOR, "dies").await.unwrap()["spec"]["revision"].as_str().unwrap().to_owned();
    let old = children(&scene).await;
    // Both revisions are stored, and the end of an undisturbed upgrade is known.
    let second = cluster.put(&package).await;
    cluster.until("dies", "paused", is_paused).await;
    let new = children(&scene).await;
    assert_eq!(new.values().map(value).collect::<Vec<_>>(), ["new", "old", "old"]);
    cluster.manager.lock().unwrap().kill9();

    let wire = Wire::new(1, "ops.example.org", &[]);
    let name = async |revision: &str| {
        cluster.patch("dies", &json!({"spec": {"revision": revision}})).await;
    };
    let is_at = |operator: &Value, revision: &str, holds: &dyn Fn(&Value) -> bool| {
        let seen = operator["status"]["observedGeneration"] == operator["metadata"]["generation"];
        seen && operator["status"]["activeRevision"] == revision && holds(operator)
    };
    let mut most = 0;
    for k in 1.. {
        let mut died = false;
        let back: (&str, &dyn Fn(&Value) -> bool, _) = (&first, &is_active, &old);
        let forth: (&str, &dyn Fn(&Value) -> bool, _) = (&second, &is_paused, &new);
        for (revision, holds, expected) in [back, forth] {
            name(revision).await;
            let done = async || {
                cluster.until("dies", "done", |operator| is_at(operator, revision, holds)).await;
            };
            died |= dies_at(k, &wire, &cluster.plane, &done).await;
            let process = start(&wire, &cluster.plane).await.expect("it lives");
            done().await;
            eventually(&format!("the end of an undisturbed one, k = {k}"), LONG, async || {
                let now = children(&scene).await;
                let differs = now.iter().find(|(name, child)| essence(child) != essence(&expected[*name]));
                match differs {
                    Some((name, child)) => Err(format!("{name}: {child:#}\n{:#}", expected[name])),
                    None => Ok(()),
                }
            })
            .await;
            // No instance is upgraded after it.
            let instances = scene.list(package.kind()).await;
            let changing = instances.iter().filter(|o| condition(o, "RevisionChanging")["status"] == "True");
            assert_eq!(changing.count(), usize::from(revision == second), "k = {k}");
            process.manager.stop().await;
        }
        if !died {
            most = k;
            break;
        }
    }
    assert!(most > 8, "there are more than {most} writes");
    assert!(!scene.list(EVENT).await.is_empty());
}
