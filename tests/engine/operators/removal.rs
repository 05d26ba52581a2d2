//! Operators that are deleted while their package has instances.

use serde_json::{Value, json};

use crate::support::ext::{CONFIG_MAP, condition, identity, is_ready};
use crate::support::operators::{Cluster, Package, is_active, scene};

#[tokio::test]
async fn reapplied_operator_changes_no_child() {
    let cluster = &*Cluster::shared().await;
    let package = cluster.with(Package::new("leaves", "0.1.0", "{{ spec.size }}")).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({"size": 4})).await;
    let child = scene.get(CONFIG_MAP, "one").await;
    cluster.kubectl(&["delete", "operator", "leaves"], "").await.ok();
    // The instance reports it.
    let unmanaged = |o: &Value| {
        let told = condition(o, "Ready")["message"].as_str().unwrap_or_default();
        condition(o, "Ready")["status"] != "True" && told.contains("no Operator of the cluster brings it")
    };
    scene.until("unmanaged", package.kind(), "one", unmanaged).await;
    // No manager reconciles the spec of the instance.
    scene.patch(package.kind(), "one", "merge", &json!({"spec": {"size": 5}})).await;
    scene.apply(&package.instance("two", &json!({}))).await;
    scene.until("unmanaged", package.kind(), "two", unmanaged).await;
    assert!(scene.find(CONFIG_MAP, "two").await.is_none());
    scene.patch(package.kind(), "one", "merge", &json!({"spec": {"size": 4}})).await;
    let after = scene.get(CONFIG_MAP, "one").await;
    assert_eq!(identity(&after), identity(&child), "no child is touched");
    assert!(cluster.crd("leaves.ops.example.org").await.is_some());

    cluster.put_active(&package).await;
    scene.until("managed", package.kind(), "one", is_ready).await;
    scene.until("made", CONFIG_MAP, "two", |o| o["data"]["value"] == "1").await;
    let after = scene.get(CONFIG_MAP, "one").await;
    assert_eq!(identity(&after), identity(&child), "no child is touched");
    // An instance that is deleted while it is unmanaged is released by the manager.
    cluster.kubectl(&["delete", "operator", "leaves"], "").await.ok();
    scene.until("unmanaged", package.kind(), "one", unmanaged).await;
    scene.kubectl(&["delete", "leaves.ops.example.org", "one", "two"]).await;
    scene.gone(CONFIG_MAP, "one").await;
}

/// The Operator is deleted and created again while no manager runs.
#[tokio::test]
async fn operator_recreated_during_a_restart_is_loaded() {
    let cluster = Cluster::start().await;
    let package = cluster.with(Package::new("anews", "0.1.0", "{{ spec.size }}")).await;
    let scene = scene(&cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    let child = scene.get(CONFIG_MAP, "one").await;
    cluster
        .restart(async || {
            cluster.kubectl(&["delete", "operator", "anews"], "").await.ok();
            cluster.put(&package).await;
        })
        .await;
    cluster.until("anews", "active", is_active).await;
    scene.ready(package.kind(), "one").await;
    cluster.restart(async || drop(cluster.kubectl(&["delete", "operator", "anews"], "").await.ok())).await;
    let unmanaged = |o: &Value| condition(o, "Ready")["status"] != "True";
    scene.until("unmanaged", package.kind(), "one", unmanaged).await;
    let after = scene.get(CONFIG_MAP, "one").await;
    assert_eq!(identity(&after), identity(&child), "no child is touched");
}
