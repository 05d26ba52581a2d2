//! Disturbances of the node itself: its components stop, and it is drained.

use serde_json::json;

use operetta::local::Component;

use super::{Stage, durable, names};
use crate::support::ext::{POD, condition, is_pod_ready};

#[tokio::test]
async fn cluster_survives_stopped_components_and_a_drained_node() {
    let stage = Stage::alone().await;
    stage.cluster("c", durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    let before = stage.members().await;
    for component in [Component::Kubelet, Component::Containerd] {
        stage.scene.plane().kill(component).await.unwrap();
        writer.goes_on().await;
        stage.scene.plane().restart(component).await.unwrap();
        writer.goes_on().await;
        stage.settled("c").await;
        assert_eq!(stage.members().await, before, "{component}: a member was replaced");
    }
    writer.check("kubelet and containerd stopped").await;

    // An orderly drain evicts one member and waits: the disruption budget protects the others.
    let writer = stage.writer("c").await;
    let drain = ["drain", "node", "--ignore-daemonsets", "--delete-emptydir-data", "--force"];
    let refused = stage.scene.kubectl_input(&[&drain[..], &["--timeout=20s"]].concat(), "").await;
    assert!(refused.is_err(), "{refused:?}");
    writer.goes_on().await;
    let members = stage.scene.list(POD).await;
    assert!(members.iter().filter(|pod| is_pod_ready(pod)).count() == 2, "{members:#?}");
    stage.scene.kubectl(&["uncordon", "node"]).await;
    stage.settled("c").await;
    // A drain that ignores the budget evicts all at once.
    stage.scene.kubectl(&[&drain[..], &["--disable-eviction", "--timeout=120s"]].concat()).await;
    let is_lost = |o: &serde_json::Value| condition(o, "QuorumLost")["status"] == "True";
    stage.until("QuorumLost", stage.cluster, "c", is_lost).await;
    stage.scene.kubectl(&["uncordon", "node"]).await;
    stage.settled("c").await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("drained").await;
    stage.edit("c", json!({"size": 1})).await;
}
