//! The manager is killed before and after the effects of every operation: the result is the same, and no
//! acknowledged write is lost.

use std::collections::BTreeMap;

use serde_json::json;

use super::{BACKUP, CLUSTER, PATIENCE, RESTORE, Stage, claim_spec, durable, names};
use crate::mortals::{Mortals, System, left};
use crate::support::{POD, VOLUME_CLAIM, eventually, uid_of};

const SYSTEM: System = System {
    folder: "operators/etcd",
    group: "etcd.database.coreos.com",
    commands: &["command=add", "command=remove", "command=promote", "command=move-leader", "command=defrag"],
};

/// A stage, and managers of a copy of the package that are killed.
async fn stage() -> (Stage, Mortals) {
    let stage = Stage::on(&crate::pods::node().await).await;
    let mortals = Mortals::new(&SYSTEM, &stage.scene).await;
    let (cluster, backup, restore) = (mortals.kind(CLUSTER), mortals.kind(BACKUP), mortals.kind(RESTORE));
    (Stage { cluster, backup, restore, ..stage }, mortals)
}

/// Checks that there are the pods and volumes of so many members, and no others.
async fn is_tidy(stage: &Stage, size: usize) {
    let left = left(&stage.scene).await;
    assert_eq!((&left["pods"], &left["persistentvolumeclaims"]), (&names("c", size), &names("c", size)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creation_resizing_and_deletion_resume_after_kills() {
    let (stage, mut mortals) = stage().await;
    mortals.during("create 3", stage.cluster("c", durable(3, "3.6.8"))).await;
    let writer = stage.writer("c").await;
    let first = stage.members().await;
    mortals.during("3 -> 5", stage.edit("c", json!({"size": 5}))).await;
    assert_eq!(stage.etcd_members("c-4").await, names("c", 5));
    mortals.during("5 -> 3", stage.edit("c", json!({"size": 3}))).await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    assert_eq!(stage.members().await, first, "a member was replaced");
    is_tidy(&stage, 3).await;
    writer.check("resize, managers killed").await;
    let delete = async {
        let resource = stage.cluster.resource_name();
        stage.scene.kubectl(&["delete", &resource, "c", "--wait=false"]).await;
        eventually("the end", PATIENCE, async || {
            let gone =
                stage.scene.find(stage.cluster, "c").await.is_none() && stage.members().await.is_empty();
            if gone { Ok(()) } else { Err("it is there") }
        })
        .await;
    };
    mortals.during("delete", delete).await;
    assert_eq!(stage.volumes().await, names("c", 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_and_upgrade_resume_after_kills() {
    let (stage, mut mortals) = stage().await;
    mortals.during("create 3", stage.cluster("c", durable(3, "3.5.35"))).await;
    let writer = stage.writer("c").await;
    let before = uid_of(&stage.scene.get(VOLUME_CLAIM, "c-2").await).to_owned();
    let lose = async {
        stage.delete("pvc", &["c-2"]).await;
        stage.delete("pod", &["c-2"]).await;
        stage.until("another volume", VOLUME_CLAIM, "c-2", |claim| uid_of(claim) != before).await;
        stage.settled("c").await;
    };
    mortals.during("failover", lose).await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    let pods = stage.members().await;
    mortals.during("upgrade", stage.edit("c", json!({"version": "3.6.8"}))).await;
    assert_eq!(stage.members().await, pods, "the containers restart, the pods stay");
    for pod in stage.scene.list(POD).await {
        assert_eq!(pod["spec"]["containers"][0]["image"], "quay.io/coreos/etcd:v3.6.8");
    }
    is_tidy(&stage, 3).await;
    writer.check("failover and upgrade, managers killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_and_restore_resume_after_kills() {
    let (stage, mut mortals) = stage().await;
    mortals.during("create 3", stage.cluster("c", durable(3, "3.6.8"))).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"}, "spec": claim_spec()});
    stage.scene.apply(&claim.to_string()).await;
    let writer = stage.writer("c").await;
    writer.goes_on().await;
    let acknowledged = writer.acknowledged();
    let place = json!({"claimName": "backups", "path": "c/etcd.db"});
    let back_up = async {
        stage.back_up("b", &json!({"clusterName": "c", "volume": place})).await;
        stage.succeeded(stage.backup, "b").await;
    };
    mortals.during("backup", back_up).await;
    writer.check("backup, managers killed").await;
    let restore = async {
        stage.restore("r", &json!({"etcdCluster": {"name": "c"}, "volume": place})).await;
        stage.succeeded(stage.restore, "r").await;
        stage.settled("c").await;
    };
    mortals.during("restore", restore).await;
    // The backup, its check, and the data: each Job once.
    let jobs = mortals.jobs();
    assert!(jobs.len() == 3, "{jobs:?}");
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    assert_eq!(stage.volumes().await, ["backups", "c-0-g1", "c-1-g1", "c-2-g1"]);
    let writer = stage.writer("c").await;
    writer.stop();
    let stored: BTreeMap<u64, String> = writer.stored().await;
    let is_whole = (0..acknowledged as u64).all(|number| stored.get(&number) == Some(&format!("v{number}")));
    assert!(is_whole, "{} of {acknowledged}", stored.len());
}
