//! `operators/etcd` with pods whose containers do not run and an `etcdctl` that keeps a list of members: from a
//! manifest to a ready cluster, resizes, versions, losses, and manual changes of its objects.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::plans::{events_about, phase, story_of};
use crate::support::{
    CONFIG_MAP, DISRUPTION_BUDGET, ETCD, EVENT, LONG, POD, SERVICE, Scene, VOLUME_CLAIM, condition,
    eventually, file, is_pod_ready, is_ready, name_of, uid_of,
};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

const EXAMPLE: &str = "examples/etcd/example-etcd-cluster.yaml";

/// The hash of the manifest as etcd-operator's users have it.
const EXAMPLE_SHA256: &str = "964e8ec665f5627d88ad73c2653d6bb689c7679a99b943d147b92c732ab6cd54";

const NAME: &str = "example-etcd-cluster";

/// A namespace in which the example is applied and Ready.
async fn example() -> Scene {
    let scene = Scene::new().await;
    scene.kubectl(&["apply", "-f", EXAMPLE]).await;
    scene.ready(ETCD, NAME).await;
    scene
}

/// The uids of the members, by name.
async fn members(scene: &Scene) -> BTreeMap<String, String> {
    scene.list(POD).await.iter().map(|pod| (name_of(pod).to_owned(), uid_of(pod).to_owned())).collect()
}

/// Waits until the cluster is Ready with that many members.
async fn sized(scene: &Scene, size: usize) {
    let what = format!("{size} ready members");
    let status = |o: &Value| {
        is_ready(o)
            && o["status"]["readyMembers"] == size
            && o["status"]["size"] == size
            && o["spec"]["size"] == size
    };
    scene.until(&what, ETCD, NAME, status).await;
    let names: Vec<String> = members(scene).await.into_keys().collect();
    assert_eq!(names, (0..size).map(|i| format!("{NAME}-{i}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn unchanged_example_becomes_three_ready_members() {
    let bytes = std::fs::read(EXAMPLE).unwrap();
    let sha256 = format!("{:x}", Sha256::digest(&bytes));
    assert_eq!(sha256, EXAMPLE_SHA256, "{EXAMPLE} is not what users of etcd-operator apply");

    let scene = Scene::new().await;
    scene.kubectl(&["apply", "-f", EXAMPLE]).await;
    let waited = scene
        .kubectl(&[
            "wait",
            "--for=condition=Ready",
            "--timeout=300s",
            "etcdclusters.etcd.database.coreos.com",
            NAME,
        ])
        .await;
    assert!(waited.contains("condition met"), "{waited}");
    for i in 0..3 {
        assert!(is_pod_ready(&scene.get(POD, &format!("{NAME}-{i}")).await), "member {i}");
    }
    sized(&scene, 3).await;
    assert_eq!(scene.names(SERVICE).await, [NAME.to_owned(), format!("{NAME}-client")]);
    assert_eq!(scene.names(DISRUPTION_BUDGET).await, [NAME]);
    assert_eq!(scene.names(CONFIG_MAP).await, [format!("{NAME}-bootstrap")]);
    assert_eq!(scene.names(VOLUME_CLAIM).await, [""; 0]);

    let status = scene.get(ETCD, NAME).await["status"].clone();
    let namespace = scene.namespace();
    assert_eq!(status["endpoint"], format!("http://{NAME}-client.{namespace}.svc:2379"), "{status:#}");
    assert_eq!(status["currentVersion"], "3.2.13", "{status:#}");
    assert_eq!(status["members"]["unready"], json!([]), "{status:#}");

    table_says_how_it_stands(&scene).await;
    events_tell_the_story(&scene).await;
}

async fn table_says_how_it_stands(scene: &Scene) {
    let table = scene.kubectl(&["get", "etcdclusters.etcd.database.coreos.com"]).await;
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let (head, row) = (lines.next().unwrap(), lines.next().unwrap());
    let cells: BTreeMap<&str, &str> = head.iter().copied().zip(row.iter().copied()).collect();
    assert_eq!(head.len(), row.len(), "{table}");
    for (column, value) in [("NAME", NAME), ("SIZE", "3"), ("READY-MEMBERS", "3"), ("READY", "True")] {
        assert_eq!(cells.get(column), Some(&value), "{column} in\n{table}");
    }
    let age = cells.get("AGE").copied().unwrap_or_default();
    assert!(age.ends_with(['s', 'm']) && age.starts_with(|c: char| c.is_ascii_digit()), "{table}");
}

async fn events_tell_the_story(scene: &Scene) {
    // Events are sent in the background.
    let text = eventually("the Events", LONG, async || {
        let text = events_about(scene, NAME).await;
        let has = |reason: &str| text.lines().any(|line| line.starts_with(reason));
        if has("Created:") && has("Ready:") { Ok(text) } else { Err(text) }
    })
    .await;
    let told = scene.get(ETCD, NAME).await["status"]["conditions"].to_string();
    for word in ["Ready", "Available", "3 of 3 members are ready"] {
        assert!(told.contains(word), "{word:?} in\n{told}");
    }
    // There are Events for transitions only, not for each child or reconcile.
    let events = scene.list(EVENT).await;
    let ours = events.iter().filter(|e| e["involvedObject"]["name"] == NAME).count();
    assert!(ours <= 6, "{ours} Events for one rollout:\n{text}");
}

#[tokio::test]
async fn resizing_keeps_the_other_members() {
    let scene = example().await;
    let first = members(&scene).await;
    scene.patch(ETCD, NAME, "merge", &json!({"spec": {"size": 5}})).await;
    sized(&scene, 5).await;
    let grown = members(&scene).await;
    // Scale by the scale subresource, as an autoscaler does.
    scene.kubectl(&["scale", "etcdclusters.etcd.database.coreos.com", NAME, "--replicas=3"]).await;
    sized(&scene, 3).await;
    assert_eq!(members(&scene).await, first, "a member was replaced");
    assert!(first.iter().all(|(name, uid)| grown[name] == *uid), "a member was replaced while it grew");
    // etcd knows each new member before its pod exists, and forgets a member before its pod is deleted.
    let calls = scene.etcdctl_calls(NAME, "member ");
    let changes: Vec<&str> = calls.iter().filter_map(|call| call.split(' ').nth(1)).collect();
    let changes: Vec<&str> = changes.into_iter().filter(|change| *change != "list").collect();
    assert_eq!(changes, ["add", "add", "remove", "remove"], "{calls:#?}");
}

#[tokio::test]
async fn deleted_member_is_replaced() {
    let scene = example().await;
    let before = members(&scene).await;
    let name = format!("{NAME}-1");
    scene.kubectl(&["delete", "pod", &name, "--wait=false"]).await;
    let anew = scene.until("another pod", POD, &name, |pod| uid_of(pod) != before[&name]).await;
    assert_eq!(anew["metadata"]["labels"]["etcd_node"], name.as_str());
    sized(&scene, 3).await;
    let after = members(&scene).await;
    let changed: Vec<&String> = after.keys().filter(|n| after[*n] != before[*n]).collect();
    assert_eq!(changed, [&name]);
    // The data was in the pod, so etcd needs a new member.
    assert_eq!(scene.etcdctl_calls(NAME, "member remove").len(), 1);
    let added = scene.etcdctl_calls(NAME, "member add");
    assert!(
        added.len() == 1
            && added[0].starts_with(&format!("member add {name} --peer-urls=http://{name}.{NAME}."))
    );
    scene.run_of(NAME, "failover", |run| phase(run) == "Succeeded").await;
}

#[tokio::test]
async fn lost_quorum_removes_no_member() {
    let scene = example().await;
    let before = members(&scene).await;
    let lost = [format!("{NAME}-0"), format!("{NAME}-2")];
    scene.kubectl(&["delete", "pod", &lost[0], &lost[1], "--wait=false"]).await;
    let is_lost = |o: &Value| condition(o, "QuorumLost")["status"] == "True" && !is_ready(o);
    let cluster = scene.until("QuorumLost", ETCD, NAME, is_lost).await;
    let message = condition(&cluster, "QuorumLost")["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("1 of 3 members are ready") && message.contains("EtcdRestore"), "{message}");
    let run = scene.run_of(NAME, "failover", |run| phase(run) == "Failed").await;
    assert!(story_of(&run).contains("too few members are ready for a quorum"), "{}", story_of(&run));
    let stalled = scene.until("Stalled", ETCD, NAME, |o| condition(o, "Stalled")["status"] == "True").await;
    assert_eq!(condition(&stalled, "Available")["status"], "False");
    let after = members(&scene).await;
    assert_eq!(
        after.into_iter().collect::<Vec<_>>(),
        [(format!("{NAME}-1"), before[&format!("{NAME}-1")].clone())]
    );
    assert_eq!(scene.etcdctl_calls(NAME, "member remove"), [""; 0]);
}

#[tokio::test]
async fn a_minor_version_cannot_be_skipped() {
    let scene = example().await;
    scene.patch(ETCD, NAME, "merge", &json!({"spec": {"version": "3.4.27"}})).await;
    let message = scene.stalled(ETCD, NAME).await;
    assert!(
        message.contains("etcd goes up one minor version at a time and never down; members run 3.2"),
        "{message}"
    );
    let images = async || {
        let pods = scene.list(POD).await;
        let image =
            |pod: &Value| pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
        pods.iter().map(image).collect::<BTreeSet<_>>()
    };
    assert_eq!(images().await, BTreeSet::from(["quay.io/coreos/etcd:v3.2.13".to_owned()]));
    scene.patch(ETCD, NAME, "merge", &json!({"spec": {"version": "3.3.27"}})).await;
    let is_new = |o: &Value| is_ready(o) && o["status"]["currentVersion"] == "3.3.27";
    scene.until("the next version", ETCD, NAME, is_new).await;
    assert_eq!(images().await, BTreeSet::from(["quay.io/coreos/etcd:v3.3.27".to_owned()]));
}

#[tokio::test]
async fn size_and_version_change_in_one_edit() {
    let scene = example().await;
    let before = members(&scene).await;
    scene.patch(ETCD, NAME, "merge", &json!({"spec": {"version": "3.3.27", "size": 4}})).await;
    let run = scene.run_of(NAME, "resize", |run| phase(run) == "Succeeded").await;
    assert_eq!(run["status"]["plans"], json!(["upgrade", "resize"]), "{}", story_of(&run));
    sized(&scene, 4).await;
    let after = members(&scene).await;
    assert!(before.iter().all(|(name, uid)| after[name] == *uid), "a member was replaced");
}

#[tokio::test]
async fn version_is_rolled_out_one_member_at_a_time() {
    let scene = example().await;
    let before = members(&scene).await;
    let pods: kube::Api<Pod> = kube::Api::namespaced(scene.client(), scene.namespace());
    let watch = watcher(pods, watcher::Config::default())
        .applied_objects()
        .try_filter_map(async |pod| Ok(serde_json::to_value(pod).ok()));
    let mut watch = Box::pin(watch);

    let mut unready: BTreeSet<String> = BTreeSet::new();
    let (mut most, mut order) = (0, Vec::new());
    let mut images: BTreeMap<String, String> = BTreeMap::new();
    let mut asked = false;
    let started = Instant::now();
    while images.len() < 3 || !unready.is_empty() || images.values().any(|image| !image.ends_with(":v3.2.14"))
    {
        assert!(started.elapsed() < LONG, "images {images:?}, unready {unready:?}");
        let Ok(pod) = tokio::time::timeout(LONG, watch.next()).await else { continue };
        let pod: Value = pod.expect("the watch goes on").expect("a pod");
        let name = name_of(&pod).to_owned();
        let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
        if images.insert(name.clone(), image.clone()).is_some_and(|before| before != image) {
            order.push(name.clone());
        }
        // A pod that runs the old image still counts as not ready: its kubelet has not seen the change.
        let current = pod["status"]["containerStatuses"][0]["image"] == image.as_str();
        if is_pod_ready(&pod) && current {
            unready.remove(&name)
        } else {
            unready.insert(name)
        };
        most = most.max(unready.len());
        if images.len() == 3 && !asked {
            asked = true;
            scene.patch(ETCD, NAME, "merge", &json!({"spec": {"version": "3.2.14"}})).await;
        }
    }
    assert_eq!(most, 1, "members that were not ready at once");
    // The script reports the first member as the leader, so it comes last.
    assert_eq!(order, [1, 2, 0].map(|i| format!("{NAME}-{i}")));
    assert_eq!(scene.etcdctl_calls(NAME, "move-leader").len(), 1);
    let holds = |o: &Value| is_ready(o) && o["status"]["currentVersion"] == "3.2.14";
    scene.until("the new version", ETCD, NAME, holds).await;
    assert_eq!(members(&scene).await, before, "the container restarts, the pod stays");
}

#[tokio::test]
async fn edited_port_is_restored_and_foreign_label_kept() {
    let scene = example().await;
    let client = format!("{NAME}-client");
    let ports = scene.get(SERVICE, &client).await["spec"]["ports"].clone();
    scene.kubectl(&["label", "service", &client, "team=platform"]).await;
    scene
        .patch(
            SERVICE,
            &client,
            "json",
            &json!([{"op": "replace", "path": "/spec/ports/0/port", "value": 2380}]),
        )
        .await;
    let put_back = |service: &Value| service["spec"]["ports"] == ports;
    let service = scene.until("its one port again", SERVICE, &client, put_back).await;
    assert_eq!(service["metadata"]["labels"]["team"], "platform");
    assert_eq!(service["spec"]["ports"].as_array().map(Vec::len), Some(1));
    eventually("an Event about the repair", LONG, async || {
        let events = scene.list(EVENT).await;
        let told = events.iter().any(|e| e["reason"] == "Repaired" && e["involvedObject"]["name"] == NAME);
        if told { Ok(()) } else { Err(format!("{} others", events.len())) }
    })
    .await;
}

#[tokio::test]
async fn volumes_outlive_members_and_cluster() {
    let scene = Scene::new().await;
    let example = file("examples/etcd/volumes.yaml");
    let sized = example.lines().find(|line| line.starts_with("  size: ")).unwrap();
    // Without anti-affinity all members fit on the one node.
    let size = |size: usize| {
        example
            .replace(sized, &format!("  size: {size}"))
            .replace("antiAffinity: true", "antiAffinity: false")
    };
    scene.apply_ready(ETCD, "durable", &size(2)).await;
    let claims = |list: Vec<Value>| -> BTreeMap<String, String> {
        list.iter().map(|o| (name_of(o).to_owned(), uid_of(o).to_owned())).collect()
    };
    let before = claims(scene.list(VOLUME_CLAIM).await);
    assert_eq!(before.len(), 2);
    // A deleted pod comes back with its volume and is the same member.
    scene.delete_recreated(POD, &["durable-1"]).await;
    scene.until("another pod", POD, "durable-1", is_pod_ready).await;
    assert_eq!(claims(scene.list(VOLUME_CLAIM).await), before);
    assert_eq!(scene.etcdctl_calls("durable", "member add"), [""; 0]);
    // The volume of a removed member is deleted: its data must never be used again.
    scene.apply(&size(1)).await;
    scene.gone(POD, "durable-1").await;
    scene.gone(VOLUME_CLAIM, "durable-1").await;
    scene.apply(&size(2)).await;
    scene.until("another volume", VOLUME_CLAIM, "durable-1", |o| uid_of(o) != before["durable-1"]).await;
    scene.ready(ETCD, "durable").await;
    let before = claims(scene.list(VOLUME_CLAIM).await);

    scene.kubectl(&["delete", "etcdclusters.etcd.database.coreos.com", "durable"]).await;
    scene.gone(POD, "durable-0").await;
    assert_eq!(claims(scene.list(VOLUME_CLAIM).await), before, "volumes are data");
    let kept = |o: &Value| o["metadata"]["annotations"]["operetta.dev/retained"] == "true";
    scene.until("kept", VOLUME_CLAIM, "durable-1", kept).await;
    let ready = scene.apply_ready(ETCD, "durable", &size(2)).await;
    assert_eq!(condition(&ready, "EvenSize")["status"], "True");
    assert_eq!(claims(scene.list(VOLUME_CLAIM).await), before);
}
