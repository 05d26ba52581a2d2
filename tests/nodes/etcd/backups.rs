//! Backups to volumes and to S3, and restores from them.

use serde_json::{Value, json};

use super::{PATIENCE, Stage, claim_spec, durable, is_long, names};
use crate::support::plans::{PLAN_RUN, phase};
use crate::support::{POD, SECRET, SERVICE, condition, eventually, is_pod_ready};

impl Stage {
    /// Creates a volume for backups.
    async fn backup_volume(&self) {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"}, "spec": claim_spec()});
        self.scene.apply(&claim.to_string()).await;
    }

    /// Starts an S3 server with the buckets `backups` and `full`; the latter has room for 200 KiB.
    async fn s3(&self) {
        let serve = "mkdir -p /data/backups && exec rclone serve s3 --auth-key key,secret --addr :9000 /data";
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "s3", "labels": {"app": "s3"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "s3", "image": "rclone/rclone:1.73.5", "command": ["sh", "-c", serve],
                    "readinessProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "full", "mountPath": "/data/full"}]}],
                "volumes": [{"name": "data", "emptyDir": {}}, {"name": "full", "emptyDir": {"medium": "Memory", "sizeLimit": "8Ki"}}],
            },
        });
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s3"},
            "spec": {"selector": {"app": "s3"}, "ports": [{"port": 9000}]}});
        let secret = |name: &str, key: &str| {
            let text = format!("[default]\naws_access_key_id = key\naws_secret_access_key = {key}\n");
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"credentials": text}})
        };
        for object in [pod, service, secret("aws", "secret"), secret("wrong", "wrong-key-7d1")] {
            self.scene.apply(&object.to_string()).await;
        }
        self.until("ready", POD, "s3", is_pod_ready).await;
        self.scene.get(SERVICE, "s3").await;
        self.scene.get(SECRET, "aws").await;
    }

    /// The files of a bucket on the server.
    async fn stored_in(&self, bucket: &str) -> Vec<String> {
        let folder = format!("/data/{bucket}");
        let list = self.scene.kubectl(&["exec", "s3", "--", "find", &folder, "-type", "f"]).await;
        let mut files: Vec<String> =
            list.lines().filter_map(|line| line.strip_prefix("/data/")).map(ToOwned::to_owned).collect();
        files.sort();
        files
    }

    /// Waits until the newest backup is newer than another. Returns its path.
    async fn newer_backup(&self, than: &str) -> String {
        let is_newer = |o: &Value| o["status"]["path"].as_str().is_some_and(|path| path > than);
        let object = self.until("a newer path", self.backup, "b", is_newer).await;
        object["status"]["path"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a backup or a restore is Stalled. Returns the message.
    async fn failed(&self, kind: super::Kind, name: &str) -> String {
        let is_stalled = |o: &Value| condition(o, "Stalled")["status"] == "True";
        let object = self.until("Stalled", kind, name, is_stalled).await;
        condition(&object, "Stalled")["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// The S3 destination of a backup, with these credentials.
fn s3(path: &str, secret: &str) -> Value {
    json!({"path": path, "awsSecret": secret, "endpoint": "http://s3:9000"})
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn a_backup_to_a_volume_is_restored_in_place() {
    let stage = Stage::with(durable(3, "3.6.8")).await;
    stage.backup_volume().await;
    let writer = stage.writer("c").await;
    writer.goes_on().await;
    let acknowledged = writer.acknowledged();
    let place = json!({"claimName": "backups", "path": "c/etcd.db"});
    stage.back_up("b", &json!({"clusterName": "c", "volume": place})).await;
    let done = stage.succeeded(stage.backup, "b").await;
    assert_eq!(done["status"]["path"], "c/etcd.db");
    stage.tell("backed up");
    writer.check("backup").await;

    let writer = stage.writer("c").await;
    writer.stop();
    stage.etcdctl("c-0", &["del", "--prefix", "k/"]).await.unwrap();
    assert!(writer.stored().await.is_empty());
    // Restores from a missing file, and from a truncated one, change nothing.
    let before = stage.members().await;
    stage.restore("missing", &json!({"etcdCluster": {"name": "c"}, "volume": {"claimName": "backups", "path": "c/nothing.db"}})).await;
    let message = stage.failed(stage.restore, "missing").await;
    assert!(message.contains("verify"), "{message}");
    let cut = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cut"}, "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "cut", "image": "busybox:1.35.0", "command": ["sh", "-c", "head -c 10000 /backup/c/etcd.db >/backup/c/cut.db"],
            "volumeMounts": [{"name": "backup", "mountPath": "/backup"}]}],
        "volumes": [{"name": "backup", "persistentVolumeClaim": {"claimName": "backups"}}]}});
    stage.scene.apply(&cut.to_string()).await;
    stage.until("done", POD, "cut", |pod| pod["status"]["phase"] == "Succeeded").await;
    stage
        .restore(
            "cut",
            &json!({"etcdCluster": {"name": "c"}, "volume": {"claimName": "backups", "path": "c/cut.db"}}),
        )
        .await;
    let message = stage.failed(stage.restore, "cut").await;
    assert!(message.contains("verify"), "{message}");
    eprintln!("a truncated file: {message}");
    assert_eq!(stage.members().await, before);

    stage.restore("r", &json!({"etcdCluster": {"name": "c"}, "volume": place})).await;
    stage.succeeded(stage.restore, "r").await;
    stage.settled("c").await;
    stage.tell("restored");
    let stored = writer.stored().await;
    assert!(stored.len() >= acknowledged, "{} of {acknowledged}", stored.len());
    assert!(stored.iter().all(|(number, value)| *value == format!("v{number}")));
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    assert_eq!(stage.volumes().await, ["backups", "c-0-g1", "c-1-g1", "c-2-g1"]);
}

#[tokio::test]
async fn s3_backups_are_limited_and_restored_into_a_new_cluster() {
    let stage = Stage::new().await;
    stage.s3().await;
    stage.cluster("c", json!({"size": 1, "version": "3.5.35"})).await;
    let writer = stage.writer("c").await;
    writer.goes_on().await;
    let acknowledged = writer.acknowledged();
    let policy = json!({"backupIntervalInSecond": 86400, "maxBackups": 2});
    stage
        .back_up(
            "b",
            &json!({"clusterName": "c", "s3": s3("backups/c/etcd.db", "aws"), "backupPolicy": policy}),
        )
        .await;
    let mut newest = String::new();
    for _ in 0..3 {
        let run = stage.scene.request(("EtcdBackup", stage.backup), "b", "take", &Value::Null).await;
        stage.until("Succeeded", PLAN_RUN, &run, |run| phase(run) == "Succeeded").await;
        newest = stage.newer_backup(&newest).await;
    }
    let two = async |newest: &str| {
        eventually("two backups, the newest among them", PATIENCE, async || {
            let files = stage.stored_in("backups").await;
            let is_good = files.len() == 2 && files.iter().any(|file| file == newest);
            if is_good { Ok(()) } else { Err(format!("{files:?}, not {newest}")) }
        })
        .await;
    };
    two(&newest).await;
    if is_long() {
        // The schedule also makes backups. Requests at the same moment would be refused, so this comes last.
        let policy = json!({"backupPolicy": {"backupIntervalInSecond": 60}});
        stage.scene.patch(stage.backup, "b", "merge", &json!({"spec": policy})).await;
        newest = stage.newer_backup(&newest).await;
        two(&newest).await;
    }
    writer.check("periodic backups to S3").await;

    stage.cluster("new", durable(1, "3.5.35")).await;
    stage.restore("r", &json!({"etcdCluster": {"name": "new"}, "s3": s3(&newest, "aws")})).await;
    stage.succeeded(stage.restore, "r").await;
    stage.settled("new").await;
    let writer = stage.writer("new").await;
    writer.stop();
    let stored = writer.stored().await;
    assert!(stored.len() > acknowledged, "{} of {acknowledged}", stored.len());
}

#[tokio::test]
#[ignore = "takes minutes: bash .ci/long node"]
async fn failed_backups_say_why_and_change_nothing() {
    let stage = Stage::new().await;
    stage.s3().await;
    stage.cluster("c", json!({"size": 1, "version": "3.6.8"})).await;
    let writer = stage.writer("c").await;
    stage.back_up("good", &json!({"clusterName": "c", "s3": s3("backups/etcd.db", "aws")})).await;
    stage.succeeded(stage.backup, "good").await;
    let before = (stage.members().await, stage.stored_in("backups").await);
    let elsewhere =
        json!({"path": "backups/etcd.db", "awsSecret": "aws", "endpoint": "http://nothing.invalid:9000"});
    for (name, place) in [
        ("credentials", s3("backups/etcd.db", "wrong")),
        ("unreachable", elsewhere),
        ("full", s3("full/etcd.db", "aws")),
        ("bucket", s3("nothing/etcd.db", "aws")),
    ] {
        stage.back_up(name, &json!({"clusterName": "c", "s3": place})).await;
    }
    for (name, words) in [
        ("credentials", "Forbidden"),
        ("unreachable", "no such host"),
        ("full", "InternalError"),
        ("bucket", "NoSuchBucket"),
    ] {
        let message = stage.failed(stage.backup, name).await;
        eprintln!("{name}: {message}");
        assert!(message.contains(words), "{name}: {message}");
        assert!(!message.contains("wrong-key-7d1"), "{message}");
        let object = stage.scene.get(stage.backup, name).await;
        assert_ne!(object["status"]["succeeded"], true);
    }
    assert!(stage.stored_in("full").await.is_empty(), "{:?}", stage.stored_in("full").await);
    assert_eq!((stage.members().await, stage.stored_in("backups").await), before);
    writer.check("backups that fail").await;
}
