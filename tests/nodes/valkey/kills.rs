//! The manager is killed before and after the effects of every operation: no acknowledged key is lost, and each shard has one
//! primary.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{BACKUP, CLUSTER, IMAGE, NEWER, WRITE, is_whole, records, run};
use crate::database::{CLIENT, Stage, is_restored, patience};
use crate::mortals::{self, Left, System, left};
use crate::support::plans::{phase, plans_of, story_of};
use crate::support::{POD, Scene, VOLUME_CLAIM, eventually, is_pod_ready, uid_of};

const SYSTEM: System = System {
    folder: "operators/valkey",
    group: "valkey.io",
    commands: &[
        "meet.sh",
        "command=replicate",
        "command=addslotsrange",
        "forget.sh",
        "failover.sh",
        "migrate.sh",
        "live.sh",
        "backup.sh",
        "backed.sh",
    ],
};

/// The pods of the cluster.
const PREFIX: &str = "valkey-kv-";

/// What each node says of itself, by the name of its pod.
pub(super) type Views = BTreeMap<String, Value>;

/// The spec of a cluster.
pub(super) fn spec(shards: u64, replicas: u64) -> Value {
    json!({
        "shards": shards, "replicas": replicas, "image": IMAGE, "persistence": {"size": "1Gi"},
        "podSecurityContext": {"runAsUser": 0},
    })
}

/// Asks all nodes of a cluster.
async fn views(stage: &Stage, prefix: &str) -> Result<Views, String> {
    let mut views = Views::new();
    for pod in stage.pods().await.into_iter().filter(|pod| pod.starts_with(prefix)) {
        let text = stage.scene.kubectl_input(&["exec", &pod, "--", "sh", "/scripts/view.sh"], "").await?;
        let view: Value = serde_json::from_str(&text).map_err(|error| format!("{pod}: {error}: {text}"))?;
        views.insert(pod, view);
    }
    Ok(views)
}

/// The shard of a pod.
fn shard_of(pod: &str) -> &str {
    pod.rsplit('-').nth(1).unwrap_or_default()
}

/// The pods of the primaries.
pub(super) fn primaries(views: &Views) -> Vec<&str> {
    views.iter().filter(|(_, view)| view["primary"] == "").map(|(pod, _)| pod.as_str()).collect()
}

/// Whether the nodes are the cluster that the spec wants: each knows just the others, each shard has one primary, and these
/// have all slots.
fn agree(spec: &Value, views: &Views) -> bool {
    let number = |field: &str| spec[field].as_u64().unwrap_or_default();
    let (shards, nodes) = (number("shards"), views.len());
    let primaries = primaries(views);
    let led: BTreeSet<&str> = primaries.iter().map(|pod| shard_of(pod)).collect();
    let slots: u64 = primaries.iter().filter_map(|pod| views[*pod]["count"].as_u64()).sum();
    let is_well = |view: &Value| {
        let known = view["known"].as_object().map_or(0, serde_json::Map::len);
        view["state"] == "ok" && view["link"] == "up" && known == nodes
    };
    nodes as u64 == shards * (number("replicas") + 1)
        && led.len() as u64 == shards
        && led.len() == primaries.len()
        && slots == 16_384
        && views.values().all(is_well)
}

/// Waits until the nodes of a cluster are as its spec wants them.
pub(super) async fn whole_of(stage: &Stage, prefix: &str) -> Views {
    eventually("one cluster", patience(), async || {
        let cluster = stage.settled().await;
        let views = views(stage, prefix).await?;
        if agree(&cluster["spec"], &views) { Ok(views) } else { Err(format!("{views:#?}")) }
    })
    .await
}

pub(super) async fn whole(stage: &Stage) -> Views {
    whole_of(stage, PREFIX).await
}

pub(super) async fn create(stage: &Stage, spec: Value) -> Views {
    stage.create("ValkeyCluster", &spec).await;
    whole(stage).await
}

pub(super) async fn change(stage: &Stage, spec: Value) -> Views {
    stage.edit(spec).await;
    whole(stage).await
}

/// Deletes pods, with their volumes or without, as if their nodes were gone, and waits until the cluster is whole again.
pub(super) async fn lose(stage: &Stage, pods: &[&str], with_volumes: bool) -> Views {
    let uid = async |kind, name: &str| uid_of(&stage.scene.get(kind, name).await).to_owned();
    let mut before = Vec::new();
    for pod in pods {
        if with_volumes {
            let claim = format!("{pod}-data");
            before.push((VOLUME_CLAIM, claim.clone(), uid(VOLUME_CLAIM, &claim).await));
            stage.scene.kubectl(&["delete", "pvc", &claim, "--wait=false"]).await;
        }
        before.push((POD, (*pod).to_owned(), uid(POD, pod).await));
    }
    let force = ["--force", "--grace-period=0", "--wait=false"];
    stage.scene.kubectl(&[&["delete", "pod"], pods, &force[..]].concat()).await;
    // Until the container has ended, a command for the new pod would reach that of the old one.
    for (kind, name, uid) in &before {
        let is_new =
            |object: &Value| uid_of(object) != uid && (kind.plural != POD.plural || is_pod_ready(object));
        stage.until("another one", *kind, name, is_new).await;
    }
    whole(stage).await
}

/// The primary of the shard 0.
fn first_primary(views: &Views) -> &str {
    primaries(views).into_iter().find(|pod| shard_of(pod) == "0").expect("a primary")
}

/// Checks that there are the pods and volumes of so many nodes, and otherwise what there was before.
async fn is_tidy(stage: &Stage, before: &Left, shards: usize, replicas: usize) {
    let mut pods: Vec<String> = (0..shards)
        .flat_map(|shard| (0..=replicas).map(move |node| format!("{PREFIX}{shard}-{node}")))
        .collect();
    let volumes = pods.iter().map(|pod| format!("{pod}-data")).collect();
    pods.push(CLIENT.to_owned());
    mortals::is_tidy(&stage.scene, before, pods, volumes).await;
}

/// Ends the client, and checks that the primaries have what was acknowledged. Returns what they have.
pub(super) async fn no_key_is_lost(stage: &Stage) -> BTreeSet<u64> {
    let written = stage.stop_client().await;
    let found = records(stage, PREFIX).await;
    written.is_found(&found);
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_of_slots_and_a_lost_primary_resume_after_kills() {
    let (stage, mut mortals, _end) = mortals::stage(&SYSTEM, CLUSTER, "kv", is_whole).await;
    mortals.during("create 3 shards", create(&stage, spec(3, 1))).await;
    stage.start_client(NEWER, 1, WRITE, json!([])).await;
    let created = left(&stage.scene).await;

    mortals.during("3 -> 4 shards", change(&stage, json!({"shards": 4}))).await;
    stage.goes_on().await;
    is_tidy(&stage, &created, 4, 1).await;
    let views = mortals.during("4 -> 3 shards", change(&stage, json!({"shards": 3}))).await;
    stage.goes_on().await;
    is_tidy(&stage, &created, 3, 1).await;

    let lost = first_primary(&views);
    let after = mortals.during("a lost primary", lose(&stage, &[lost], true)).await;
    assert_ne!(first_primary(&after), lost);
    stage.goes_on().await;
    is_tidy(&stage, &created, 3, 1).await;
    let lost = format!("{lost}-data");
    for (name, count) in mortals.volumes() {
        assert_eq!(count, if name == lost { 2 } else { 1 }, "{name}");
    }
    no_key_is_lost(&stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_shard_resumes_after_kills() {
    let (stage, mut mortals, _end) = mortals::stage(&SYSTEM, CLUSTER, "kv", is_whole).await;
    let mut spec = spec(1, 1);
    spec["persistence"]["reclaimPolicy"] = "Delete".into();
    spec["config"] = json!({"maxmemory": "50mb"});
    let views = mortals.during("create 1 shard", create(&stage, spec)).await;
    stage.start_client(NEWER, 1, WRITE, json!([])).await;
    let created = left(&stage.scene).await;

    // No other primary could elect the replica: a plan lets it take over.
    let lost = first_primary(&views);
    let after = mortals.during("failover", lose(&stage, &[lost], true)).await;
    assert_ne!(first_primary(&after), lost);
    let runs = stage.scene.runs(stage.name).await;
    let took_over = runs.iter().any(|run| plans_of(run).contains(&"failover") && phase(run) == "Succeeded");
    assert!(took_over, "{}", runs.iter().map(story_of).collect::<String>());
    stage.goes_on().await;

    // The replica that has taken over is the one that goes.
    mortals.during("1 -> 0 replicas", change(&stage, json!({"replicas": 0}))).await;
    is_tidy(&stage, &created, 1, 0).await;
    mortals.during("0 -> 1 replicas", change(&stage, json!({"replicas": 1}))).await;
    is_tidy(&stage, &created, 1, 1).await;
    stage.goes_on().await;

    mortals.during("settings", change(&stage, json!({"config": {"maxmemory": "60mb"}}))).await;
    for pod in views.keys() {
        let setting = run(&stage, pod, ". /scripts/common.sh; cli config get maxmemory").await;
        assert!(setting.contains("62914560"), "{pod}: {setting}");
    }
    mortals.during("upgrade", change(&stage, json!({"image": NEWER}))).await;
    for pod in views.keys() {
        assert_eq!(stage.scene.get(POD, pod).await["spec"]["containers"][0]["image"], NEWER, "{pod}");
    }
    stage.goes_on().await;
    is_tidy(&stage, &created, 1, 1).await;
    no_key_is_lost(&stage).await;

    mortals.during("delete", stage.remove()).await;
    let kept = left(&stage.scene).await;
    assert_eq!(kept[POD.plural], [CLIENT]);
    assert!(kept[VOLUME_CLAIM.plural].is_empty(), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_and_restore_resume_after_kills() {
    let (stage, mut mortals, _end) = mortals::stage(&SYSTEM, CLUSTER, "kv", is_whole).await;
    let mut spec = spec(2, 1);
    spec["backup"] = json!({"volume": {"size": "1Gi"}});
    mortals.during("create 2 shards", create(&stage, spec)).await;
    stage.start_client(NEWER, 1, WRITE, json!([])).await;
    let acknowledged = stage.acknowledged().await;

    let kind = mortals.kind(BACKUP);
    let backup = mortals.during("backup", stage.back_up(kind, "ValkeyBackup", "first")).await;
    // One run for the backup, which has started one run of the cluster.
    assert_eq!(stage.scene.runs("first").await.len(), 1);
    let runs = stage.scene.runs(stage.name).await;
    assert_eq!(runs.iter().filter(|run| plans_of(run).contains(&"backup")).count(), 1);
    // One copy, and nothing beside it.
    stage.has_only(&backup, "valkey-kv-0-0", &["--", "ls", "-A", "/backup"]).await;
    stage.goes_on().await;
    let original = no_key_is_lost(&stage).await;

    let scene = Scene::existing(stage.scene.plane(), stage.scene.namespace());
    let copy = Stage::of(scene, stage.kind, "copy", is_whole);
    let spec = json!({
        "shards": 3, "replicas": 0, "image": NEWER, "persistence": {"size": "1Gi"},
        "podSecurityContext": {"runAsUser": 0}, "restore": {"backup": {"name": "first"}},
    });
    let restore = async {
        copy.create("ValkeyCluster", &spec).await;
        whole_of(&copy, "valkey-copy-").await;
    };
    mortals.during("restore", restore).await;
    // The data of each shard are made by one Job.
    let jobs = mortals.jobs();
    assert!(jobs.len() == 3, "{jobs:?}");
    is_restored(&acknowledged, &records(&copy, "valkey-copy-").await, &original);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: bash .ci/long node"]
async fn a_lost_majority_and_other_addresses_resume_after_kills() {
    let (stage, mut mortals, _end) = mortals::stage(&SYSTEM, CLUSTER, "kv", is_whole).await;
    let views = mortals.during("create 3 shards", create(&stage, spec(3, 1))).await;
    stage.start_client(NEWER, 1, WRITE, json!([])).await;
    let created = left(&stage.scene).await;

    let lost = primaries(&views);
    let after = mortals.during("a lost majority", lose(&stage, &lost[..2], true)).await;
    stage.goes_on().await;
    is_tidy(&stage, &created, 3, 1).await;
    let all: Vec<&str> = after.keys().map(String::as_str).collect();
    mortals.during("other addresses", lose(&stage, &all, false)).await;
    stage.goes_on().await;
    is_tidy(&stage, &created, 3, 1).await;
    let settings = json!({"config": {"tcp-backlog": "128"}});
    mortals.during("other settings", change(&stage, settings)).await;
    stage.goes_on().await;
    no_key_is_lost(&stage).await;
}
