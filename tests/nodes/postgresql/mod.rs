//! `operators/postgresql` with real servers. A client inserts numbered rows all the time: with synchronous replication none that a
//! server has acknowledged may be lost. Backups on S3 are restored to a point in time.

mod certificates;
mod clients;
mod databases;
mod failovers;
mod figures;
mod kills;
mod operations;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;

use crate::database::{SharedManager, Stage};
use crate::pods::{self, Pods};
use crate::support::ext::{Kind, LONG, POD, Scene, VOLUME_CLAIM, condition, is_pod_ready, kind, name_of};
use crate::support::{eventually, is_long};

static MANAGER: SharedManager = SharedManager::of("postgresql");

const CLUSTER: Kind = kind("postgresql.cnpg.io/v1", "clusters");
const BACKUP: Kind = kind("postgresql.cnpg.io/v1", "backups");
const IMAGE: &str = "ghcr.io/cloudnative-pg/postgresql:15.18";
const NEWER: &str = "ghcr.io/cloudnative-pg/postgresql:15.20";
const MAJOR: &str = "ghcr.io/cloudnative-pg/postgresql:17.10";

/// Inserts the row `$n`. `PGCONNECT_TIMEOUT` and the like keep it from waiting for a pod that is gone.
const WRITE: &str = r#"timeout 5 psql -qc "insert into records values ($n)" 2>/dev/null && echo $n"#;

/// Writes hundred records over one connection, each in a transaction of its own, and prints the number of each one that is acknowledged.
const WRITE_MANY: &str = r"seq $((n - 99)) $n | sed 's/.*/insert into records values (&);\n\\echo &/' | timeout 5 psql -qv ON_ERROR_STOP=1 2>/dev/null";

/// Runs SQL in an instance.
const SQL: [&str; 12] =
    ["-c", "postgres", "--", "psql", "-U", "postgres", "-h", "/run/postgresql", "-d", "app", "-XqAt", "-c"];

fn primary(cluster: &Value) -> String {
    cluster["status"]["currentPrimary"].as_str().expect("a primary").to_owned()
}

/// Whether a cluster has as many instances that are ready as its spec wants.
fn is_whole(cluster: &Value) -> bool {
    cluster["status"]["readyInstances"] == cluster["spec"]["instances"]
}

/// The spec of a cluster that loses no acknowledged row.
fn replicated(instances: usize) -> Value {
    json!({
        "instances": instances, "imageName": IMAGE, "storage": {"size": "1Gi", "chown": true},
        "postgresql": {"synchronous": {"method": "any", "number": 1}},
    })
}

/// Makes the table of the records, and starts the client that inserts them.
async fn insert_records(stage: &Stage, primary: &str) {
    insert(stage, primary, 1, WRITE).await;
}

/// Makes the table of the records, and starts a client.
async fn insert(stage: &Stage, primary: &str, records: u64, write: &str) {
    let table = "create table records (n bigint primary key); alter table records owner to app";
    sql(&stage.scene, primary, table).await;
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let password =
        json!({"name": "PGPASSWORD", "valueFrom": {"secretKeyRef": {"name": "db-app", "key": "password"}}});
    let env = json!([
        variable("PGHOST", "db-rw"),
        variable("PGUSER", "app"),
        variable("PGCONNECT_TIMEOUT", "2"),
        password
    ]);
    stage.start_client(IMAGE, records, write, env).await;
}

/// The numbers of the records that an instance has.
async fn rows(scene: &Scene, pod: &str) -> BTreeSet<u64> {
    let rows = sql(scene, pod, "select n from records").await;
    rows.lines().map(|line| line.parse().expect("a number")).collect()
}

/// A stage for the cluster `db` on the shared node, and what ends with the test.
async fn stage() -> (Stage, (SemaphorePermit<'static>, Pods)) {
    let turn = pods::turn().await;
    let stage = Stage::on(&MANAGER.node().await, CLUSTER, "db", is_whole).await;
    let namespace = Pods::of(&stage.scene);
    (stage, (turn, namespace))
}

#[tokio::test]
async fn no_acknowledged_row_is_lost() {
    let node = MANAGER.node().await;
    let stage = Stage::on(&node, CLUSTER, "db", is_whole).await;
    let first = primary(&stage.create("Cluster", &replicated(3)).await);
    assert_eq!(first, "db-1");
    insert_records(&stage, &first).await;

    // The node of the primary is gone as far as Kubernetes knows, and its server is killed.
    let delete = async |pod: &str| {
        drop(stage.scene.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"]).await);
    };
    let second = primary(&stage.after("failover", delete(&first)).await);
    assert_ne!(second, first);
    // The volume of the primary is lost, too.
    let lose = async {
        stage.scene.kubectl(&["delete", "pvc", &second, "--wait=false"]).await;
        delete(&second).await;
    };
    let third = primary(&stage.after("failover without the volume", lose).await);
    assert_ne!(third, second);
    let edit = json!({"postgresql": {"parameters": {"max_connections": "120"}}});
    let cluster = stage.after("settings with a restart", stage.edit(edit)).await;
    assert_eq!(primary(&cluster), third);
    // An exporter in each pod, which comes to one after another.
    let cluster = stage.after("monitoring", stage.edit(json!({"monitoring": {}}))).await;
    assert_eq!(primary(&cluster), third);
    for pod in stage.scene.list(POD).await {
        let Some(address) = pod["status"]["podIP"].as_str().filter(|_| name_of(&pod).starts_with("db-"))
        else {
            continue;
        };
        let url = format!("http://{address}:9187/metrics");
        let fetch = ["exec", &third, "-c", "exporter", "--", "wget", "-qO-", &url];
        let metrics = stage.scene.kubectl(&fetch).await;
        assert!(metrics.lines().any(|line| line == "pg_up 1"), "{}: {metrics}", name_of(&pod));
    }
    // A dead exporter ends neither its container nor the role of the primary.
    let kill = ["exec", &third, "-c", "exporter", "--", "sh", "-c", "kill -9 $(pidof postgres_exporter)"];
    stage.scene.kubectl(&kill).await;
    assert_eq!(primary(&stage.settled().await), third);
    let edit = json!({"imageName": NEWER, "primaryUpdateMethod": "switchover"});
    let fourth = primary(&stage.after("upgrade", stage.edit(edit)).await);
    assert_ne!(fourth, third);
    let last = primary(&stage.after("scale to 2", stage.edit(json!({"instances": 2}))).await);
    let claims = stage.scene.list(VOLUME_CLAIM).await;
    assert_eq!(claims.iter().map(name_of).collect::<BTreeSet<_>>(), BTreeSet::from(["db-1", "db-2"]));
    let have_image = async |image: &str| {
        for pod in stage
            .scene
            .list(POD)
            .await
            .iter()
            .filter(|pod| pod["metadata"]["labels"]["cnpg.io/podRole"] == "instance")
        {
            assert_eq!(pod["spec"]["containers"][0]["image"], image, "{}", name_of(pod));
        }
    };
    have_image(NEWER).await;
    let cluster = stage.after("major upgrade", stage.edit(json!({"imageName": MAJOR}))).await;
    assert_eq!(cluster["status"]["pgDataImageInfo"]["majorVersion"], 17);
    assert_eq!(primary(&cluster), last);
    have_image(MAJOR).await;

    let written = stage.stop_client().await;
    written.is_found(&rows(&stage.scene, &last).await);
}

/// The primary has removed the WAL that a standby needs: `pg_rewind` finds nothing to do for it, and it could never stream again.
#[tokio::test]
async fn a_standby_that_is_too_far_behind_is_cloned() {
    let node = MANAGER.node().await;
    let scene = Scene::on(&node).await;
    let parameters = json!({"wal_keep_size": "0", "min_wal_size": "32MB", "max_wal_size": "32MB"});
    let spec = json!({"instances": 2, "postgresql": {"parameters": parameters}});
    scene.apply_ready(CLUSTER, "db", &cluster("db", spec)).await;
    sql(&scene, "db-1", "create table records (n bigint primary key)").await;
    // What receives WAL stands still until the WAL is gone.
    let receiver = async |signal: &str| {
        let script = format!(
            "kill -{signal} $(psql -U postgres -h /run/postgresql -XqAtc 'select pid from pg_stat_wal_receiver')"
        );
        scene.kubectl(&["exec", "db-2", "-c", "postgres", "--", "sh", "-c", &script]).await;
    };
    receiver("STOP").await;
    let last = "select pg_last_wal_receive_lsn()";
    let before = sql(&scene, "db-2", last).await;
    for number in 1..=8 {
        sql(&scene, "db-1", &format!("insert into records values ({number})")).await;
        sql(&scene, "db-1", "select pg_switch_wal()").await;
    }
    sql(&scene, "db-1", "checkpoint").await;
    let oldest = "select min(name) from pg_ls_waldir() where name ~ '^[0-9A-F]{24}$'";
    let needed = sql(&scene, "db-1", &format!("select pg_walfile_name('{before}')")).await;
    eventually("the WAL is removed", LONG, async || {
        sql(&scene, "db-1", "checkpoint").await;
        let oldest = sql(&scene, "db-1", oldest).await;
        if oldest > needed { Ok(()) } else { Err(format!("{oldest} {needed}")) }
    })
    .await;
    receiver("CONT").await;
    let is_stray = |cluster: &Value| condition(cluster, "NotStreaming")["status"] == "True";
    scene.until("noticed", CLUSTER, "db", is_stray).await;
    eventually("the rows on the standby", LONG, async || {
        let answer = try_sql(&scene, "db-2", "select count(*) from records").await?;
        if answer == "8" { Ok(()) } else { Err(answer) }
    })
    .await;
    scene.ready(CLUSTER, "db").await;
}

/// An S3 server with the bucket `backups`. What it has outlives its pod.
fn s3_server() -> Value {
    let serve = "mkdir -p /data/backups && exec rclone serve s3 --auth-key key,secret-7d1 --addr :9000 /data";
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "s3", "labels": {"app": "s3"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "s3", "image": "rclone/rclone:1.73.5", "command": ["sh", "-c", serve],
                "readinessProbe": {"tcpSocket": {"port": 9000}, "periodSeconds": 1},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "s3"}}],
        },
    })
}

/// The Secret with the keys of S3.
fn s3_keys(secret: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "aws"},
        "stringData": {"ACCESS_KEY_ID": "key", "ACCESS_SECRET_KEY": secret}})
    .to_string()
}

fn cluster(name: &str, mut spec: Value) -> String {
    spec["imageName"] = IMAGE.into();
    spec["storage"] = json!({"size": "1Gi", "chown": true});
    json!({"apiVersion": CLUSTER.api_version(), "kind": "Cluster", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

async fn sql(scene: &Scene, pod: &str, query: &str) -> String {
    try_sql(scene, pod, query).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn try_sql(scene: &Scene, pod: &str, query: &str) -> Result<String, String> {
    let answer = scene.kubectl_input(&[&["exec", pod], &SQL[..], &[query]].concat(), "").await?;
    Ok(answer.trim().to_owned())
}

/// Ends the present WAL file of an instance, and waits until it is stored.
async fn store_wal(scene: &Scene, pod: &str) {
    let file = sql(scene, pod, "select pg_walfile_name(pg_switch_wal())").await;
    let query = format!("select last_archived_wal >= '{file}' from pg_stat_archiver");
    eventually("stored WAL", LONG, async || match sql(scene, pod, &query).await {
        answer if answer == "t" => Ok(()),
        answer => Err(answer),
    })
    .await;
}

#[tokio::test]
async fn a_point_in_time_is_restored_from_s3() {
    let node = MANAGER.node().await;
    let scene = Scene::on(&node).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "s3"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s3"},
        "spec": {"selector": {"app": "s3"}, "ports": [{"port": 9000}]}});
    for object in [claim, service, s3_server()] {
        scene.apply(&object.to_string()).await;
    }
    scene.apply(&s3_keys("wrong-key-4f2")).await;
    scene.until("ready", POD, "s3", is_pod_ready).await;

    // A wrong key is a condition, and what was not stored meanwhile is stored with the right one.
    let key = |key: &str| json!({"name": "aws", "key": key});
    let store = json!({"destinationPath": "s3://backups/pg", "endpointURL": "http://s3:9000",
        "s3Credentials": {"accessKeyId": key("ACCESS_KEY_ID"), "secretAccessKey": key("ACCESS_SECRET_KEY")}});
    let backup = json!({"barmanObjectStore": store, "retentionPolicy": "7d"});
    scene.apply_ready(CLUSTER, "db", &cluster("db", json!({"instances": 2, "backup": backup}))).await;
    sql(&scene, "db-1", "create table records (n bigint primary key)").await;
    sql(&scene, "db-1", "insert into records select generate_series(1, 1000)").await;
    sql(&scene, "db-1", "select pg_switch_wal()").await;
    let is_true = |object: &Value, kind: &str| condition(object, kind)["status"] == "True";
    let failing = scene.until("failing", CLUSTER, "db", |cluster| is_true(cluster, "ArchiveFailing")).await;
    let message = condition(&failing, "ArchiveFailing")["message"].to_string();
    assert!(message.contains("S3: ") && !message.contains("wrong-key"), "{message}");
    scene.apply(&s3_keys("secret-7d1")).await;
    scene.until("archiving", CLUSTER, "db", |cluster| is_true(cluster, "ContinuousArchiving")).await;

    let back_up = json!({"apiVersion": BACKUP.api_version(), "kind": "Backup", "metadata": {"name": "first"},
        "spec": {"cluster": {"name": "db"}}});
    scene.apply(&back_up.to_string()).await;
    scene.until("completed", BACKUP, "first", |backup| backup["status"]["phase"] == "completed").await;
    sql(&scene, "db-1", "insert into records select generate_series(1001, 2000)").await;
    let format = r#"'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'"#;
    let now = format!("select to_char(clock_timestamp() at time zone 'utc', {format}), pg_sleep(1)");
    let answer = sql(&scene, "db-1", &now).await;
    let time = answer.split('|').next().expect("a time");
    sql(&scene, "db-1", "insert into records select generate_series(2001, 3000)").await;
    store_wal(&scene, "db-1").await;

    let restored = async |name: &str, target: Value| {
        let recovery = json!({"source": "db", "recoveryTarget": target});
        let spec = json!({"instances": 1, "bootstrap": {"recovery": recovery},
            "externalClusters": [{"name": "db", "barmanObjectStore": store}]});
        scene.apply_ready(CLUSTER, name, &cluster(name, spec)).await;
        sql(&scene, &format!("{name}-1"), "select count(*), max(n) from records").await
    };
    assert_eq!(restored("back", json!({"targetTime": time})).await, "2000|2000");
    if !is_long() {
        return;
    }

    // WAL that the primary has finished while S3 was away is stored by the standby that takes over.
    scene.kubectl(&["delete", "pod", "s3"]).await;
    for query in [
        "insert into records select generate_series(3001, 4000)",
        "select pg_switch_wal()",
        "insert into records select generate_series(4001, 5000)",
        "select pg_switch_wal()",
    ] {
        sql(&scene, "db-1", query).await;
    }
    let received = "select count(*) = 5000 from records";
    eventually("a standby that has all", LONG, async || match sql(&scene, "db-2", received).await {
        answer if answer == "t" => Ok(()),
        answer => Err(answer),
    })
    .await;
    scene.kubectl(&["delete", "pvc", "db-1", "--wait=false"]).await;
    scene.kubectl(&["delete", "pod", "db-1", "--force", "--grace-period=0"]).await;
    scene.until("another primary", CLUSTER, "db", |o| o["status"]["currentPrimary"] == "db-2").await;
    scene.apply(&s3_server().to_string()).await;
    scene.until("ready", POD, "s3", is_pod_ready).await;
    store_wal(&scene, "db-2").await;
    assert_eq!(restored("all", json!({})).await, "5000|5000");
}
