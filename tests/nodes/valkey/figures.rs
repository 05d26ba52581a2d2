//! Figures for the table in `operators/valkey/README.md`, without a verdict on times:
//!
//! ```sh
//! cargo test --test nodes valkey::figures -- --ignored --nocapture
//! ```
//!
//! Run nothing else at the same time.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::kills::{change, create, lose, no_key_is_lost, primaries, spec, whole, whole_of};
use super::{BACKUP, CLUSTER, MANAGER, NEWER, WRITE, is_whole, records, run};
use crate::database::{Stage, is_restored, patience};
use crate::figures::{Line, print};
use crate::pods::Pods;
use crate::support::{POD, Scene, eventually, is_pod_ready, signal};

/// The lines of the table of a cluster.
struct Table<'a> {
    stage: &'a Stage,
    lines: &'a mut Vec<Line>,
}

impl Table<'_> {
    /// Measures an operation while the client writes.
    async fn line(&mut self, what: &str, operation: impl AsyncFnOnce()) {
        let mut line = Line::of(what);
        // On the heap, for it is large.
        Box::pin(self.stage.measure(&mut line, operation)).await;
        self.lines.push(line);
    }

    /// Measures a change of the spec.
    async fn change(&mut self, what: &str, spec: Value) {
        let stage = self.stage;
        let operation = async || {
            change(stage, spec).await;
        };
        self.line(what, operation).await;
    }

    /// Measures a loss of pods, with their volumes or without.
    async fn lose(&mut self, what: &str, pods: &[String], with_volumes: bool) {
        let (stage, pods): (_, Vec<&str>) = (self.stage, pods.iter().map(String::as_str).collect());
        let operation = async || {
            lose(stage, &pods, with_volumes).await;
        };
        self.line(what, operation).await;
    }
}

/// The pods of the primaries, in the order of their shards.
async fn led(stage: &Stage) -> Vec<String> {
    primaries(&whole(stage).await).into_iter().map(str::to_owned).collect()
}

/// The process of a server, by a line of its configuration. It is killed from outside: the first process of a container ignores
/// signals from within.
fn server_of(line: &str) -> u32 {
    let is_it = |pid: &u32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("comm").trim() == "valkey-server" && read("root/run/valkey/valkey.conf").contains(line)
    };
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // A server saves its data in another process, which is a later one.
    pids.filter(is_it).min().unwrap_or_else(|| panic!("no server has {line}"))
}

/// Kills a server, and waits until it runs again in its pod and the cluster is whole.
async fn kill_server(stage: &Stage, pod: &str) {
    let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
    let before = restarts(&stage.scene.get(POD, pod).await);
    let line =
        format!("cluster-announce-hostname {pod}.valkey-{}.{}.svc", stage.name, stage.scene.namespace());
    signal(server_of(&line), Signal::KILL);
    stage.until("a restart", POD, pod, |pod| restarts(pod) > before && is_pod_ready(pod)).await;
    whole(stage).await;
}

/// The operations of a cluster with volumes, except those with backups.
async fn operations(stage: &Stage, lines: &mut Vec<Line>) {
    let mut table = Table { stage, lines };
    table.change("3 -> 5 shards", json!({"shards": 5})).await;
    table.change("5 -> 3 shards", json!({"shards": 3})).await;
    table.change("`maxmemory`", json!({"config": {"maxmemory": "60mb"}})).await;
    for pod in stage.pods().await {
        let setting = run(stage, &pod, ". /scripts/common.sh; cli config get maxmemory").await;
        assert!(setting.contains("62914560"), "{pod}: {setting}");
    }
    let settings = json!({"config": {"tcp-backlog": "128"}});
    table.change("all pods replaced, for another setting", settings).await;
    let lost = led(stage).await;
    let kill = async || kill_server(stage, &lost[0]).await;
    table.line("the server of a primary is killed (`kill -9` from outside of the pod)", kill).await;
    let lost = led(stage).await;
    table.lose("the pod of a primary is deleted by force", &lost[..1], false).await;
    let lost = led(stage).await;
    table.lose("its pod and its volume are deleted", &lost[..1], true).await;
    let all: Vec<String> = whole(stage).await.into_keys().collect();
    table.lose("all pods are deleted by force at once", &all, false).await;
    let lost = led(stage).await;
    table.lose("pods and volumes of two of three primaries are deleted", &lost[..2], true).await;
    table.change("9.0.0 -> 9.1.2", json!({"image": NEWER})).await;
}

/// A backup, and a new cluster that begins with it. Checks that the new one has what was acknowledged before, and that the old
/// one has lost nothing.
async fn backup_and_restore(stage: &Stage, lines: &mut Vec<Line>) {
    let mut table = Table { stage, lines };
    let acknowledged = stage.acknowledged().await;
    let back_up = async || {
        stage.back_up(BACKUP, "ValkeyBackup", "first").await;
    };
    table.line("a `ValkeyBackup`", back_up).await;
    let scene = Scene::existing(stage.scene.plane(), stage.scene.namespace());
    let copy = Stage::of(scene, CLUSTER, "copy", is_whole);
    let mut spec = spec(3, 1);
    spec["image"] = NEWER.into();
    spec["restore"] = json!({"backup": {"name": "first"}});
    let restore = async || {
        copy.create("ValkeyCluster", &spec).await;
        whole_of(&copy, "valkey-copy-").await;
    };
    table.line("a new cluster of 3 shards with a replica each from it", restore).await;
    let original = no_key_is_lost(stage).await;
    is_restored(&acknowledged, &records(&copy, "valkey-copy-").await, &original);
}

#[tokio::test]
#[ignore = "measures: -- --ignored --nocapture"]
async fn figures() {
    let node = MANAGER.node().await;
    // The first pods on a node take longer than later ones.
    let warm = Stage::on(&node, CLUSTER, "warm", is_whole).await;
    warm.create("ValkeyCluster", &spec(1, 0)).await;
    warm.remove().await;

    let stage = Stage::on(&node, CLUSTER, "kv", is_whole).await;
    let pods = Pods::of(&stage.scene);
    let mut with_volumes = spec(3, 1);
    with_volumes["config"] = json!({"maxmemory": "50mb"});
    with_volumes["backup"] = json!({"volume": {"size": "1Gi"}});
    let mut created = Line::of("create 3 shards");
    let create_all = async || {
        create(&stage, with_volumes).await;
    };
    Box::pin(created.measure(&stage.scene, create_all)).await;
    stage.start_client(NEWER, 1, WRITE, json!([])).await;
    let mut lines = vec![created];
    operations(&stage, &mut lines).await;
    backup_and_restore(&stage, &mut lines).await;
    drop(pods);
    eventually("the end of all pods", patience(), async || {
        let left = stage.scene.list(POD).await.len();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;

    let single = Stage::on(&node, CLUSTER, "kv", is_whole).await;
    let _pods = Pods::of(&single.scene);
    let mut without_volume = spec(1, 1);
    without_volume.as_object_mut().expect("an object").remove("persistence");
    create(&single, without_volume).await;
    single.start_client(NEWER, 1, WRITE, json!([])).await;
    let lost = led(&single).await;
    let what = "one shard: the pod of the primary is deleted by force, no volume";
    Table { stage: &single, lines: &mut lines }.lose(what, &lost, false).await;
    no_key_is_lost(&single).await;
    print(&lines.iter().collect::<Vec<_>>());
}
