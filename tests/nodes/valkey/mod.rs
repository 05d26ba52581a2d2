//! `operators/valkey` with real servers. A client sets numbered keys all the time, each with WAIT: none that a replica has acknowledged
//! may be lost, and none may appear that was not sent.

mod figures;
mod kills;
mod users;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::database::{SharedManager, Stage, is_restored};
use crate::support::{Kind, LONG, POD, VOLUME_CLAIM, eventually, is_ready, kind, name_of};

static MANAGER: SharedManager = SharedManager::of("valkey");

const CLUSTER: Kind = kind("valkey.io/v1alpha1", "valkeyclusters");
const BACKUP: Kind = kind("valkey.io/v1alpha1", "valkeybackups");
const IMAGE: &str = "valkey/valkey:9.0.0";
const NEWER: &str = "valkey/valkey:9.1.2";

/// Sets `record:$n`, and prints the number if a replica has acknowledged it.
const WRITE: &str = r#"[ "$(printf 'set record:%s %s\nwait 1 2000\n' $n $n | timeout 5 valkey-cli -c -h valkey-kv 2>/dev/null | tail -n 2 | tr '\n' ' ')" = 'OK 1 ' ] && echo $n"#;

/// Prints the records of a primary as `KEY VALUE`.
const RECORDS: &str = r#"
. /scripts/common.sh
if cli role | head -n 1 | grep -q master; then
  cli --scan --pattern 'record:*' | while read -r key; do echo "$key $(cli get "$key" < /dev/null)"; done
fi
"#;

/// Whether all shards that a cluster has are ready.
fn is_whole(cluster: &Value) -> bool {
    cluster["status"]["readyShards"] == cluster["spec"]["shards"]
}

async fn run(stage: &Stage, pod: &str, script: &str) -> String {
    stage.scene.kubectl(&["exec", pod, "--", "sh", "-c", script]).await
}

/// The numbers that the primaries of a cluster have.
async fn records(stage: &Stage, prefix: &str) -> BTreeSet<u64> {
    let mut records = BTreeSet::new();
    for pod in stage.pods().await.iter().filter(|pod| pod.starts_with(prefix)) {
        for line in run(stage, pod, RECORDS).await.lines() {
            let (key, value) = line.split_once(' ').expect("a record");
            assert_eq!(key.strip_prefix("record:"), Some(value));
            records.insert(value.parse().expect("a number"));
        }
    }
    records
}

#[tokio::test]
async fn no_acknowledged_key_is_lost() {
    let node = MANAGER.node().await;
    let stage = Stage::on(&node, CLUSTER, "kv", is_whole).await;
    let spec = json!({
        "shards": 3, "replicas": 1, "image": IMAGE, "persistence": {"size": "1Gi"},
        "podSecurityContext": {"runAsUser": 0}, "config": {"maxmemory": "50mb"}, "backup": {"volume": {"size": "1Gi"}},
    });
    stage.create("ValkeyCluster", &spec).await;
    stage.start_client(NEWER, 1, WRITE, json!([])).await;

    stage.after("3 -> 4 shards", stage.edit(json!({"shards": 4}))).await;
    stage.after("4 -> 3 shards", stage.edit(json!({"shards": 3}))).await;
    let claims = stage.scene.list(VOLUME_CLAIM).await;
    assert_eq!(claims.iter().filter(|claim| name_of(claim).ends_with("-data")).count(), 6);
    // The node of a primary is gone as far as Kubernetes knows, its server is killed, and its volume is lost.
    let lose = async {
        stage.scene.kubectl(&["delete", "pvc", "valkey-kv-0-0-data", "--wait=false"]).await;
        stage.scene.kubectl(&["delete", "pod", "valkey-kv-0-0", "--force", "--grace-period=0"]).await;
    };
    stage.after("a lost primary", lose).await;
    let pods = stage.pods().await;
    stage.edit(json!({"config": {"maxmemory": "60mb"}})).await;
    eventually("the new setting", LONG, async || {
        let answer = run(&stage, "valkey-kv-2-1", ". /scripts/common.sh; cli config get maxmemory").await;
        if answer.contains("62914560") { Ok(()) } else { Err(answer) }
    })
    .await;
    stage.settled().await;
    assert_eq!(stage.pods().await, pods);
    stage.after("upgrade", stage.edit(json!({"image": NEWER}))).await;
    for pod in stage.scene.list(POD).await {
        assert_eq!(pod["spec"]["containers"][0]["image"], NEWER);
    }

    stage.back_up(BACKUP, "ValkeyBackup", "first").await;
    stage.goes_on().await;
    let written = stage.stop_client().await;
    let records = records(&stage, "valkey-kv-").await;
    written.is_found(&records);

    // A new cluster begins with a backup that is not the one before. A save takes a while, as one of more keys does.
    for pod in stage.pods().await.iter().filter(|pod| pod.starts_with("valkey-kv-")) {
        run(&stage, pod, ". /scripts/common.sh; cli config set rdb-key-save-delay 5000").await;
    }
    stage.back_up(BACKUP, "ValkeyBackup", "last").await;
    let copy = json!({
        "apiVersion": CLUSTER.api_version(), "kind": "ValkeyCluster", "metadata": {"name": "copy"},
        "spec": {
            "shards": 4, "image": NEWER, "persistence": {"size": "1Gi"}, "podSecurityContext": {"runAsUser": 0},
            "restore": {"backup": {"name": "last"}},
        },
    });
    stage.scene.apply(&copy.to_string()).await;
    stage.scene.until("whole", CLUSTER, "copy", |o| is_ready(o) && o["status"]["readyShards"] == 4).await;
    is_restored(&records, &self::records(&stage, "valkey-copy-").await, &records);
}
