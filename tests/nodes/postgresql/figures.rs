//! Measurements for the README of the package, without a verdict but for lost rows:
//!
//! ```sh
//! cargo test --test nodes postgresql::figures -- --ignored --nocapture
//! ```
//!
//! Run nothing else at the same time. `OPERETTA_FAILOVERS` is the number of failovers in a row.

use std::time::Instant;

use serde_json::{Value, json};

use super::operations::{
    another_pod, change, create, delete_by_force, hibernate, lose, no_row_is_lost, number, only_primary,
    request, standby, whole,
};
use super::{
    BACKUP, CLUSTER, IMAGE, MAJOR, MANAGER, NEWER, insert_records, is_whole, primary, replicated, rows, stage,
};
use crate::database::{Stage, is_restored, patience};
use crate::figures::{Line, median, print};
use crate::support::eventually;
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

/// Checks that the primary has each row that is acknowledged so far. Returns how many there are.
async fn acknowledged(stage: &Stage) -> usize {
    let acknowledged = stage.acknowledged().await;
    let found = rows(&stage.scene, &only_primary(stage).await).await;
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    acknowledged.len()
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

/// Deletes the pod of the primary by force, and waits until the cluster is whole again. Returns how many seconds it took until another
/// instance was the primary; `None` if too few standbys were ready, and the primary went on in another pod.
async fn fail_over(stage: &Stage, name: &str) -> Option<f64> {
    let before = uid_of(&stage.scene.get(POD, name).await).to_owned();
    let begun = Instant::now();
    delete_by_force(stage, name).await;
    let is_promoted = eventually("another primary", patience(), async || {
        let pod = stage.scene.find(POD, name).await;
        let is_back = pod.is_some_and(|pod| uid_of(&pod) != before && is_pod_ready(&pod));
        let cluster = stage.scene.get(stage.kind, stage.name).await;
        if primary(&cluster) != name {
            return Ok(true);
        }
        if is_back { Ok(false) } else { Err(format!("{:#}", cluster["status"])) }
    })
    .await;
    let took = begun.elapsed().as_secs_f64();
    another_pod(stage, name, &before).await;
    whole(stage).await;
    is_promoted.then_some(took)
}

/// Failovers in a row, while the client writes. Returns `None` if there are to be none.
async fn failovers(stage: &Stage) -> Option<Line> {
    let count: usize =
        std::env::var("OPERETTA_FAILOVERS").map_or(5, |count| count.parse().expect("a number"));
    let before = acknowledged(stage).await;
    let mut line = Line::of("failover of a killed primary");
    let mut promotions: Vec<f64> = Vec::new();
    for _ in 0..count {
        let first = only_primary(stage).await;
        stage.measure(&mut line, async || promotions.extend(fail_over(stage, &first).await)).await;
    }
    let rows = acknowledged(stage).await - before;
    println!("{count} killed primaries, {} failovers, {rows} rows acknowledged, 0 lost", promotions.len());
    for (what, seconds) in [("another primary", &promotions), ("a whole cluster", &line.seconds)] {
        if !seconds.is_empty() {
            let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let most = seconds.iter().copied().fold(0.0, f64::max);
            println!("from a deletion to {what}: {least:.1} to {most:.1} s, median {:.1} s", median(seconds));
        }
    }
    (count > 0).then_some(line)
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
    lines.extend(failovers(&stage).await);

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
