//! Changes of the etcd version.

use serde_json::{Value, json};

use super::{PATIENCE, Stage, durable, names};
use crate::support::{POD, eventually};

#[tokio::test]
async fn an_upgrade_goes_from_minor_version_to_minor_version() {
    let stage = Stage::with(json!({"size": 3, "version": "3.4.23"})).await;
    let writer = stage.writer("c").await;
    let before = stage.members().await;
    // Skipping a minor version is refused, and nothing changes.
    stage.change("c", &json!({"version": "3.6.8"})).await;
    let message = stage.scene.stalled(stage.cluster, "c").await;
    assert!(message.contains("one minor version at a time"), "{message}");
    stage.edit("c", json!({"version": "3.5.35"})).await;
    stage.edit("c", json!({"version": "3.6.8"})).await;
    for pod in names("c", 3) {
        let status = stage.etcdctl(&pod, &["endpoint", "status", "-w", "json"]).await.unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status[0]["Status"]["version"], "3.6.8", "{status:#}");
    }
    assert_eq!(stage.members().await, before, "the containers restart, the pods stay");
    writer.check("upgrade 3.4 -> 3.5 -> 3.6").await;
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn an_image_that_does_not_exist_stops_at_the_first_member() {
    let stage = Stage::with(json!({"size": 3, "version": "3.5.35"})).await;
    let writer = stage.writer("c").await;
    stage.change("c", &json!({"version": "3.6.99"})).await;
    let is_bad = |pod: &Value| pod["spec"]["containers"][0]["image"] == "quay.io/coreos/etcd:v3.6.99";
    eventually("one bad member", PATIENCE, async || {
        let pods = stage.scene.list(POD).await;
        let waits = |pod: &&Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].is_object();
        if pods.iter().filter(|pod| is_bad(pod)).any(|pod| waits(&pod)) { Ok(()) } else { Err("not yet") }
    })
    .await;
    writer.goes_on().await;
    let pods = stage.scene.list(POD).await;
    assert_eq!(pods.iter().filter(|pod| is_bad(pod)).count(), 1);
    stage.edit("c", json!({"version": "3.6.8"})).await;
    writer.check("upgrade to a missing image, corrected").await;
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn size_and_version_change_in_one_edit() {
    let stage = Stage::with(durable(3, "3.5.35")).await;
    let writer = stage.writer("c").await;
    stage.edit("c", json!({"size": 5, "version": "3.6.8"})).await;
    assert_eq!(stage.etcd_members("c-4").await, names("c", 5));
    for pod in stage.scene.list(POD).await {
        assert_eq!(pod["spec"]["containers"][0]["image"], "quay.io/coreos/etcd:v3.6.8");
    }
    // The cluster has members that ran both versions, and members that joined later.
    let refused = stage.scene.runs("c").await;
    assert!(refused.iter().all(|run| run["status"]["phase"] == "Succeeded"), "{refused:#?}");
    // A downgrade is refused.
    stage.change("c", &json!({"version": "3.5.35"})).await;
    let message = stage.scene.stalled(stage.cluster, "c").await;
    assert!(message.contains("never down"), "{message}");
    stage.edit("c", json!({"version": "3.6.8"})).await;
    writer.check("size and version in one edit").await;
}
