//! Several versions of a CRD: stored objects are migrated to another storage version, also if the manager is
//! killed, and afterwards a version is removed.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::barrier::Address;
use crate::support::crds::{config, live, package, until_event, until_versions, versions};
use crate::support::ext::{Kind, LONG, Scene, kind, managers_requests, name_of, run_as};

fn instances(version: &str, kind: &str, count: usize) -> String {
    let items: Vec<Value> = (0..count)
        .map(|number| {
            json!({
                "apiVersion": format!("crds.example.org/{version}"), "kind": kind,
                "metadata": {"name": format!("i{number}")}, "spec": {"size": number},
            })
        })
        .collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[tokio::test]
async fn objects_are_migrated_when_the_storage_version_changes() {
    const OLD: Kind = kind("crds.example.org/v1alpha1", "moves");
    const NEW: Kind = kind("crds.example.org/v1", "moves");
    let size = || json!({"size": {"type": "integer"}});
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::unmanaged().await;
    let shown = config("spec.size");
    let write = |list: &[(&str, bool, Value)]| {
        package(root.path(), "moves", &versions("moves", "Move", list), false, &[&shown])
    };
    let folder = write(&[("v1alpha1", true, size())]);
    let mut manager = run_as("moves", scene.plane(), &[&folder]);
    manager.wait_for("watching instances", LONG).await;
    scene.apply_ready(OLD, "i2", &instances("v1alpha1", "Move", 3)).await;
    manager.kill9();

    let folder = write(&[("v1alpha1", false, size()), ("v1", true, size())]);
    let mut manager = run_as("moves", scene.plane(), &[&folder]);
    until_versions("moves", &["v1alpha1", "v1"], &["v1"]).await;
    until_event("moves", "StorageMigrated").await;
    scene.ready(NEW, "i0").await;
    let metrics = Address::of(&manager).metrics().await;
    let told = "operetta_migrated_objects_total{kind=\"moves.crds.example.org\"} 3";
    assert!(metrics.contains(told), "{metrics}");
    assert!(!metrics.contains("operetta_migration_objects_left{"), "{metrics}");
    manager.kill9();

    // No object is stored in the former version, so it can be removed at once.
    let folder = write(&[("v1", true, size())]);
    let mut manager = run_as("moves", scene.plane(), &[&folder]);
    until_versions("moves", &["v1"], &["v1"]).await;
    assert_eq!(scene.ready(NEW, "i2").await["spec"]["size"], 2);
    assert!(!manager.output().contains("migrating stored objects"), "{}", manager.output());
    manager.kill9();
}

#[tokio::test]
async fn version_is_removed_after_migration_despite_killed_managers() {
    const OLD: Kind = kind("crds.example.org/v1alpha1", "leaps");
    const NEW: Kind = kind("crds.example.org/v1", "leaps");
    const COUNT: usize = 200;
    let size = || json!({"size": {"type": "integer"}});
    let root = tempfile::tempdir().unwrap();
    let scene = Scene::unmanaged().await;
    let shown = config("spec.size");
    let write = |list: &[(&str, bool, Value)]| {
        package(root.path(), "leaps", &versions("leaps", "Leap", list), false, &[&shown])
    };
    let folder = write(&[("v1alpha1", true, size())]);
    let mut manager = run_as("leaps", scene.plane(), &[&folder]);
    manager.wait_for("watching instances", LONG).await;
    scene.apply_ready(OLD, "i199", &instances("v1alpha1", "Leap", COUNT)).await;
    manager.kill9();

    let folder = write(&[("v1", true, size())]);
    let audit = scene.plane().audit();
    let mark = audit.mark().unwrap();
    // The first manager is killed before it writes an object, the last after the turn whose end it has recorded.
    for writes in [1, 3, 40, 110] {
        run_as("leaps", scene.plane(), &[&folder]).kill_after(scene.plane(), writes, LONG).await;
        let crd = live("leaps").await.unwrap();
        let stored: BTreeSet<&str> =
            crd["status"]["storedVersions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let kept: BTreeSet<&str> =
            crd["spec"]["versions"].as_array().unwrap().iter().filter_map(|v| v["name"].as_str()).collect();
        assert!(stored.is_subset(&kept), "{stored:?} {kept:?}");
    }
    let mut manager = run_as("leaps", scene.plane(), &[&folder]);
    until_versions("leaps", &["v1"], &["v1"]).await;
    for name in ["i0", "i199"] {
        scene.ready(NEW, name).await;
    }
    let all = scene.list(NEW).await;
    assert_eq!(all.len(), COUNT);
    for instance in &all {
        assert_eq!(name_of(instance), format!("i{}", instance["spec"]["size"]));
    }
    // Each object was written.
    let written: BTreeSet<String> = managers_requests(&audit, mark)
        .into_iter()
        .filter(|e| e.resource == "leaps" && e.verb == "patch" && e.subresource.is_empty())
        .map(|e| e.name)
        .collect();
    assert_eq!(written.len(), COUNT);
    manager.kill9();
}
