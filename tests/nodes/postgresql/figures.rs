//! Measurements for the README of the package, without a verdict but for lost rows:
//!
//! ```sh
//! cargo test --test nodes postgresql::figures -- --ignored --nocapture
//! ```
//!
//! Run nothing else at the same time.

use serde_json::{Value, json};

use super::failovers::{fail_over, failovers};
use super::operations::{
    another_pod, change, create, hibernate, lose, no_row_is_lost, number, only_primary, request, standby,
    whole,
};
use super::{
    BACKUP, CLUSTER, IMAGE, MAJOR, MANAGER, NEWER, insert_records, is_whole, replicated, rows, stage,
};
use crate::database::{Stage, is_restored};
use crate::figures::{Line, print};
use crate::support::ext::{POD, Scene, condition, is_pod_ready, is_ready, uid_of};

/// The spec of a cluster of one instance.
fn alone(image: &str) -> Value {
    json!({"instances": 1, "imageName": image, "storage": {"size": "1Gi", "chown": true}})
}

/// Measures an operation while the client writes.
async fn measured(stage: &Stage, what: &str, operation: impl AsyncFnOnce()) -> Line {
    let mut line = Line::of(what);
    stage.measure(&mut line, operation).await;
    eprintln!("{what}: {:.1} s", line.seconds[0]);
    line
}

/// Measures an operation without a client that could write.
async fn measured_alone(stage: &Stage, what: &str, operation: impl AsyncFnOnce()) -> Line {
    let mut line = Line::of(what);
    line.measure(&stage.scene, operation).await;
    eprintln!("{what}: {:.1} s", line.seconds[0]);
    line
}

/// The id of the container of the server of a pod.
fn container(pod: &Value) -> Value {
    let mut statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let server = statuses.find(|status| status["name"] == "postgres");
    server.map(|status| status["containerID"].clone()).unwrap_or_default()
}

/// Kills the server of an instance, and waits until another container runs and the cluster is whole again.
async fn kill_server(stage: &Stage, name: &str) {
    let before = container(&stage.scene.get(POD, name).await);
    let kill = "kill -9 $(head -n 1 $PGDATA/postmaster.pid)";
    // The container ends with its server, and may take the command with it.
    let _ = stage.scene.kubectl_input(&["exec", name, "-c", "postgres", "--", "sh", "-c", kill], "").await;
    stage.until("another server", POD, name, |pod| container(pod) != before && is_pod_ready(pod)).await;
    whole(stage).await;
}

/// Deletes the pod of an instance, and waits until another one is ready and the cluster is whole again.
async fn delete_pod(stage: &Stage, name: &str) {
    let before = uid_of(&stage.scene.get(POD, name).await).to_owned();
    stage.scene.kubectl(&["delete", "pod", name, "--wait=false"]).await;
    another_pod(stage, name, &before).await;
    whole(stage).await;
}

#[tokio::test]
#[ignore = "measures: -- --ignored --nocapture"]
async fn figures() {
    // The first pods of an image take longer than later ones.
    let node = MANAGER.node().await;
    for image in [NEWER, MAJOR, IMAGE] {
        let warm = Stage::on(&node, CLUSTER, "warm", is_whole).await;
        create(&warm, alone(image)).await;
        warm.remove().await;
    }

    let (stage, _end) = stage().await;
    let mut lines = Vec::new();
    let found = async || {
        let mut spec = replicated(3);
        spec["backup"] = json!({"volume": {"size": "1Gi"}});
        create(&stage, spec).await;
    };
    lines.push(measured_alone(&stage, "create 3", found).await);
    insert_records(&stage, &only_primary(&stage).await).await;

    // Losses.
    let first = only_primary(&stage).await;
    let kill = async || kill_server(&stage, &first).await;
    lines.push(measured(&stage, "the server of the primary is killed", kill).await);
    let first = only_primary(&stage).await;
    let delete = async || delete_pod(&stage, &first).await;
    lines.push(measured(&stage, "the pod of the primary is deleted", delete).await);
    let first = only_primary(&stage).await;
    let delete = async || {
        fail_over(&stage, &first).await;
    };
    lines.push(measured(&stage, "its pod is deleted by force", delete).await);
    let first = only_primary(&stage).await;
    let delete = async || drop(lose(&stage, &first).await);
    lines.push(measured(&stage, "its pod and its volume are deleted", delete).await);
    let other = standby(&stage, &only_primary(&stage).await).await;
    let delete = async || delete_pod(&stage, &other).await;
    lines.push(measured(&stage, "the pod of a standby is deleted", delete).await);
    let delete = async || drop(lose(&stage, &other).await);
    lines.push(measured(&stage, "pod and volume of a standby are deleted", delete).await);
    lines.push(failovers(&stage, 5).await);

    // Plans on request.
    for (what, plan) in [
        ("switchover", "switchover"),
        ("the certificate is renewed", "certificate"),
        ("the CA is replaced", "rotate"),
    ] {
        let run = async || drop(request(&stage, plan, Value::Null).await);
        lines.push(measured(&stage, what, run).await);
    }
    let params = json!({"instance": number(&standby(&stage, &only_primary(&stage).await).await)});
    let run = async || drop(request(&stage, "reclone", params.clone()).await);
    lines.push(measured(&stage, "a standby is cloned anew", run).await);

    // Edits of the spec.
    for (what, spec) in [
        ("a setting that is reloaded", json!({"postgresql": {"parameters": {"work_mem": "8MB"}}})),
        ("a setting that needs a restart", json!({"postgresql": {"parameters": {"max_connections": "120"}}})),
        ("3 -> 4 instances", json!({"instances": 4})),
        ("4 -> 3 instances", json!({"instances": 3})),
        ("15.18 -> 15.20, `switchover`", json!({"imageName": NEWER, "primaryUpdateMethod": "switchover"})),
        ("other resources, `switchover`", json!({"resources": {"requests": {"cpu": "20m"}}})),
    ] {
        let edit = async || drop(change(&stage, spec.clone()).await);
        lines.push(measured(&stage, what, edit).await);
    }

    // A backup, and a cluster of one instance that begins with it.
    let written = stage.acknowledged().await;
    let back_up = async || drop(stage.back_up(BACKUP, "Backup", "first").await);
    lines.push(measured(&stage, "backup to the volume", back_up).await);
    let scene = Scene::existing(stage.scene.plane(), stage.scene.namespace());
    let copy = Stage::of(scene, CLUSTER, "copy", is_whole);
    let restore = async || {
        let mut spec = alone(NEWER);
        spec["bootstrap"] = json!({"recovery": {"backup": {"name": "first"}}});
        create(&copy, spec).await;
    };
    lines.push(measured(&stage, "restore of one instance into another cluster", restore).await);
    let restored = rows(&copy.scene, &only_primary(&copy).await).await;
    is_restored(&written, &restored, &rows(&stage.scene, &only_primary(&stage).await).await);
    stage.scene.kubectl(&["delete", &CLUSTER.resource_name(), "copy"]).await;
    stage.scene.gone(POD, "copy-1").await;

    let sleep = async || {
        hibernate(&stage, "on").await;
        let is_asleep = |o: &Value| condition(o, "Hibernated")["status"] == "True" && is_ready(o);
        stage.until("asleep", stage.kind, stage.name, is_asleep).await;
    };
    lines.push(measured_alone(&stage, "hibernation", sleep).await);
    let wake = async || {
        hibernate(&stage, "off").await;
        whole(&stage).await;
    };
    lines.push(measured_alone(&stage, "back from it", wake).await);
    stage.goes_on().await;
    let upgrade = async || drop(change(&stage, json!({"imageName": MAJOR})).await);
    lines.push(measured(&stage, "15.20 -> 17.10", upgrade).await);

    no_row_is_lost(&stage).await;
    print(&lines.iter().collect::<Vec<_>>());
}
