//! Members that join, leave, and are lost.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Stage, durable, names};
use crate::support::ext::{POD, VOLUME_CLAIM, condition, is_ready, uid_of};
use crate::support::plans::{phase, story_of};

#[tokio::test]
async fn a_cluster_grows_and_shrinks() {
    let stage = Stage::with(json!({"size": 3, "version": "3.6.8"})).await;
    let writer = stage.writer("c").await;
    let first = stage.members().await;
    stage.edit("c", json!({"size": 5})).await;
    assert_eq!(stage.etcd_members("c-4").await, names("c", 5));
    stage.edit("c", json!({"size": 3})).await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    assert_eq!(stage.members().await, first, "a member was replaced");
    writer.check("resize 3 -> 5 -> 3").await;
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn one_member_grows_to_three() {
    let stage = Stage::with(json!({"size": 1, "version": "3.6.8"})).await;
    let writer = stage.writer("c").await;
    stage.edit("c", json!({"size": 3})).await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("resize 1 -> 3").await;
}

#[tokio::test]
async fn deleted_pod_without_a_volume_becomes_a_new_member() {
    let stage = Stage::with(json!({"size": 3, "version": "3.6.8"})).await;
    let writer = stage.writer("c").await;
    let before = stage.members().await;
    let begun = Instant::now();
    stage.delete("pod", &["c-1"]).await;
    stage.another_pod("c-1", &before).await;
    eprintln!("the member was replaced after {:.1} s", begun.elapsed().as_secs_f64());
    stage.settled("c").await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("pod deleted").await;
}

#[tokio::test]
async fn deleted_pod_with_a_volume_stays_the_same_member() {
    let stage = Stage::with(durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    let before = stage.members().await;
    let list = stage.etcdctl("c-0", &["member", "list"]).await.unwrap();
    stage.delete("pod", &["c-1"]).await;
    stage.another_pod("c-1", &before).await;
    stage.settled("c").await;
    assert_eq!(stage.etcdctl("c-0", &["member", "list"]).await.unwrap(), list);
    writer.check("pod deleted, volume kept").await;
}

#[tokio::test]
async fn deleted_pod_and_volume_become_a_new_member() {
    let stage = Stage::with(durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    let before = uid_of(&stage.scene.get(VOLUME_CLAIM, "c-2").await).to_owned();
    stage.delete("pvc", &["c-2"]).await;
    stage.delete("pod", &["c-2"]).await;
    stage.until("another volume", VOLUME_CLAIM, "c-2", |claim| uid_of(claim) != before).await;
    stage.settled("c").await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("pod and volume deleted").await;
}

#[tokio::test]
async fn lost_quorum_removes_no_member() {
    let stage = Stage::with(json!({"size": 3, "version": "3.6.8"})).await;
    let before = stage.members().await;
    stage.delete("pod", &["c-0", "c-2"]).await;
    let is_lost = |o: &Value| condition(o, "QuorumLost")["status"] == "True";
    stage.until("QuorumLost", stage.cluster, "c", is_lost).await;
    let run = stage.scene.run_of("c", "failover", |run| phase(run) == "Failed").await;
    assert!(story_of(&run).contains("too few members are ready for a quorum"), "{}", story_of(&run));
    let after = stage.members().await;
    assert_eq!(after, BTreeMap::from([("c-1".to_owned(), before["c-1"].clone())]));
}

#[tokio::test]
async fn all_pods_deleted_at_once_come_back_with_their_volumes() {
    let stage = Stage::with(durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    writer.goes_on().await;
    stage.scene.delete_recreated(POD, &["c-0", "c-1", "c-2"]).await;
    stage.settled("c").await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("all pods deleted").await;
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn clusters_of_five_and_of_two_members_work() {
    let stage = Stage::new().await;
    stage.create("five", json!({"size": 5, "version": "3.6.8"})).await;
    stage.create("two", json!({"size": 2, "version": "3.6.8"})).await;
    stage.settled("five").await;
    assert_eq!(stage.etcd_members("five-0").await, names("five", 5));
    let is_even = |o: &Value| is_ready(o) && condition(o, "EvenSize")["status"] == "True";
    stage.until("EvenSize", stage.cluster, "two", is_even).await;
    let refused = stage
        .scene
        .kubectl_input(&["patch", "etcd", "two", "--type=merge", "-p", r#"{"spec": {"size": 0}}"#], "")
        .await;
    assert!(refused.unwrap_err().contains("spec.size"));
    let refused = stage
        .scene
        .kubectl_input(&["patch", "etcd", "two", "--type=merge", "-p", r#"{"spec": {"size": 100}}"#], "")
        .await;
    assert!(refused.unwrap_err().contains("spec.size"));
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn clusters_in_several_namespaces_are_independent() {
    let stage = Stage::new().await;
    let other = stage.beside().await;
    let clusters = [(&stage, "a", 3, 1), (&stage, "b", 1, 3), (&other, "a", 3, 5)];
    for (stage, name, size, _) in clusters {
        stage.create(name, json!({"size": size, "version": "3.6.8"})).await;
    }
    let mut writers = Vec::new();
    for (stage, name, ..) in clusters {
        stage.settled(name).await;
        writers.push(stage.writer(name).await);
    }
    for (stage, name, _, size) in clusters {
        stage.change(name, &json!({"size": size})).await;
    }
    for ((stage, name, _, size), writer) in clusters.into_iter().zip(writers) {
        stage.settled(name).await;
        assert_eq!(stage.etcd_members(&format!("{name}-0")).await, names(name, size));
        writer.check(&format!("{}/{name}", stage.scene.namespace())).await;
    }
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn a_paused_cluster_is_left_alone() {
    let stage = Stage::with(durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    stage.change("c", &json!({"paused": true})).await;
    let before = stage.members().await;
    stage.delete("pod", &["c-1"]).await;
    stage.scene.gone(crate::support::ext::POD, "c-1").await;
    // Requests wait meanwhile: the same manager creates another cluster in between.
    stage.change("c", &json!({"size": 5})).await;
    stage.cluster("marker", json!({"size": 1, "version": "3.6.8"})).await;
    let mut members = stage.members().await;
    members.remove("marker-0");
    assert_eq!(members.into_keys().collect::<Vec<_>>(), ["c-0", "c-2"]);
    stage.edit("c", json!({"paused": false})).await;
    assert_ne!(stage.members().await["c-1"], before["c-1"]);
    assert_eq!(stage.etcd_members("c-0").await, names("c", 5));
    writer.check("paused").await;
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn next_cluster_adopts_volumes_of_a_deleted_one() {
    let stage = Stage::with(durable(3, "3.6.8")).await;
    stage.cluster("bare", json!({"size": 1, "version": "3.6.8"})).await;
    let writer = stage.writer("c").await;
    writer.goes_on().await;
    writer.stop();
    let before = writer.stored().await;
    stage.scene.kubectl(&["delete", "etcd", "c", "bare"]).await;
    crate::support::eventually("no pods", super::PATIENCE, async || {
        let members = stage.members().await;
        if members.is_empty() { Ok(()) } else { Err(format!("{members:?}")) }
    })
    .await;
    assert_eq!(stage.volumes().await, names("c", 3));
    stage.cluster("c", durable(3, "3.6.8")).await;
    assert_eq!(stage.volumes().await, names("c", 3));
    let writer = stage.writer("c").await;
    writer.stop();
    let after = writer.stored().await;
    assert!(before.iter().all(|(number, value)| after.get(number) == Some(value)), "data is lost");
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn resources_of_members_with_volumes_change_one_after_another() {
    let stage = Stage::with(durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    let before = stage.members().await;
    let watch = stage.watch_replacements("c", 3);
    let resources = json!({"requests": {"cpu": "10m", "memory": "20Mi"}});
    stage
        .edit(
            "c",
            json!({"pod": {"resources": resources, "tolerations": [{"key": "a", "operator": "Exists"}]}}),
        )
        .await;
    let after = stage.members().await;
    assert!(after.iter().all(|(name, uid)| before[name] != *uid), "{before:?} {after:?}");
    let pod = stage.scene.get(crate::support::ext::POD, "c-2").await;
    assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"], resources["requests"]);
    watch.check();
    writer.check("resources changed").await;
    // Without volumes a new pod would be a member without data.
    stage.cluster("bare", json!({"size": 1, "version": "3.6.8"})).await;
    let change = r#"{"spec": {"pod": {"resources": {"requests": {"cpu": "10m"}}}}}"#;
    let refused =
        stage.scene.kubectl_input(&["patch", "etcd", "bare", "--type=merge", "-p", change], "").await;
    assert!(refused.unwrap_err().contains("persistentVolumeClaimSpec"));
}
