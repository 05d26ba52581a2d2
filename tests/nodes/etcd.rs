//! `operators/etcd` with real etcd. A client writes numbered keys all the time: no write that etcd has acknowledged may be
//! lost, and none invented.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use crate::support::Operetta;
use crate::support::ext::{
    ETCD, Kind, POD, SERVICE, Scene, VOLUME_CLAIM, condition, is_pod_ready, is_ready, kind, name_of,
    run_flags, uid_of, watching,
};
use crate::support::plans::{phase, story_of};

const BACKUP: Kind = kind("etcd.database.coreos.com/v1beta2", "etcdbackups");
const RESTORE: Kind = kind("etcd.database.coreos.com/v1beta2", "etcdrestores");

/// How long one attempt of the client may take.
const ATTEMPT: Duration = Duration::from_secs(2);

static MANAGER: OnceCell<Mutex<Operetta>> = OnceCell::const_new();

/// A namespace on the node, with a manager of the package.
struct Stage {
    scene: Scene,
    started: Instant,
}

impl Stage {
    async fn new() -> Self {
        let node = crate::pods::node().await;
        MANAGER
            .get_or_init(async || {
                let flags = ["--leader-elect=false", "--leader-elect-resource-name=etcd"];
                let mut manager = run_flags(&node, &flags, &["operators/etcd"]);
                watching(&mut manager, 3).await;
                Mutex::new(manager)
            })
            .await;
        Self { scene: Scene::on(&node).await, started: Instant::now() }
    }

    /// Creates a cluster and waits until it is Ready.
    async fn cluster(&self, name: &str, spec: Value) {
        let cluster = json!({"apiVersion": ETCD.api_version(), "kind": "EtcdCluster", "metadata": {"name": name}, "spec": spec});
        self.scene.apply(&cluster.to_string()).await;
        self.settled(name).await;
        self.tell("created");
    }

    /// Changes the spec and waits until it is so.
    async fn edit(&self, name: &str, spec: Value) {
        let what = format!("{spec}");
        let begun = Instant::now();
        self.scene.patch(ETCD, name, "merge", &json!({"spec": spec})).await;
        self.settled(name).await;
        eprintln!("{what} took {:.1} s", begun.elapsed().as_secs_f64());
    }

    /// Waits until the cluster is Ready with all its members.
    async fn settled(&self, name: &str) {
        let is_settled = |o: &Value| is_ready(o) && o["status"]["readyMembers"] == o["spec"]["size"];
        self.scene.until("Ready with all members", ETCD, name, is_settled).await;
    }

    fn tell(&self, what: &str) {
        eprintln!("{:.1} s: {what}", self.started.elapsed().as_secs_f64());
    }

    /// The uids of the members' pods.
    async fn members(&self) -> BTreeMap<String, String> {
        let pods = self.scene.list(POD).await;
        let members = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "etcd");
        members.map(|pod| (name_of(pod).to_owned(), uid_of(pod).to_owned())).collect()
    }

    /// Runs etcdctl in a member.
    async fn etcdctl(&self, pod: &str, args: &[&str]) -> Result<String, String> {
        self.scene.kubectl_input(&[&["exec", pod, "-c", "etcd", "--", "etcdctl"], args].concat(), "").await
    }

    /// etcd's own list of members, all of them voting.
    async fn etcd_members(&self, pod: &str) -> Vec<String> {
        let text = self.etcdctl(pod, &["member", "list", "-w", "json"]).await.expect("it answers");
        let list: Value = serde_json::from_str(&text).expect("JSON");
        let members = list["members"].as_array().expect("a list");
        assert!(members.iter().all(|member| member["isLearner"] != true), "{list:#}");
        let mut names: Vec<String> =
            members.iter().map(|member| member["name"].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        names
    }

    /// Starts the client of a cluster.
    async fn writer(&self, cluster: &str) -> Writer {
        let service = self.scene.get(SERVICE, &format!("{cluster}-client")).await;
        Writer::start(service["spec"]["clusterIP"].as_str().expect("an address"))
    }
}

fn names(cluster: &str, size: usize) -> Vec<String> {
    (0..size).map(|i| format!("{cluster}-{i}")).collect()
}

/// A spec with volumes.
fn durable(size: usize, version: &str) -> Value {
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    json!({"size": size, "version": version, "pod": {"persistentVolumeClaimSpec": claim}})
}

#[derive(Default)]
struct Log {
    /// The numbers that were sent, with whether etcd has acknowledged them.
    sent: BTreeMap<u64, bool>,
    longest_gap: Duration,
}

/// A client that writes `k/N` = `vN` for one N after another.
struct Writer {
    address: String,
    log: Arc<Mutex<Log>>,
    task: JoinHandle<()>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Writer {
    fn start(address: &str) -> Self {
        let log = Arc::<Mutex<Log>>::default();
        let (shared, to) = (Arc::clone(&log), address.to_owned());
        let task = tokio::spawn(async move {
            let mut last = Instant::now();
            for number in 0_u64.. {
                let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
                lock().sent.insert(number, false);
                let body = json!({"key": STANDARD.encode(format!("k/{number:08}")), "value": STANDARD.encode(format!("v{number}"))});
                while call(&to, "put", &body).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                {
                    let mut log = lock();
                    log.sent.insert(number, true);
                    log.longest_gap = log.longest_gap.max(last.elapsed());
                }
                last = Instant::now();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        Self { address: address.to_owned(), log, task }
    }

    /// How many writes etcd has acknowledged.
    fn acknowledged(&self) -> usize {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.sent.values().filter(|is_acknowledged| **is_acknowledged).count()
    }

    /// Waits until more writes are acknowledged.
    async fn goes_on(&self) {
        let before = self.acknowledged();
        crate::support::eventually("more writes", crate::support::ext::LONG, async || {
            if self.acknowledged() > before + 20 { Ok(()) } else { Err(self.acknowledged()) }
        })
        .await;
    }

    /// The keys that etcd has.
    async fn stored(&self) -> BTreeMap<u64, String> {
        let mut stored = BTreeMap::new();
        let mut from = "k/".to_owned();
        loop {
            let body =
                json!({"key": STANDARD.encode(&from), "range_end": STANDARD.encode("k0"), "limit": 5_000});
            let reply = crate::support::eventually("a read", crate::support::ext::LONG, async || {
                call(&self.address, "range", &body).await
            })
            .await;
            let text = |value: &Value| {
                let bytes = STANDARD.decode(value.as_str().unwrap_or_default()).expect("base64");
                String::from_utf8(bytes).expect("UTF-8")
            };
            let found = reply["kvs"].as_array().cloned().unwrap_or_default();
            for kv in &found {
                let key = text(&kv["key"]);
                stored.insert(key["k/".len()..].parse().expect("a number"), text(&kv["value"]));
                from = format!("{key}\0");
            }
            if found.len() < 5_000 {
                return stored;
            }
        }
    }

    /// Stops, and checks that etcd has what it has acknowledged, and nothing else.
    async fn check(self, what: &str) {
        self.goes_on().await;
        self.task.abort();
        let stored = self.stored().await;
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let acknowledged = log.sent.iter().filter(|(_, is)| **is).map(|(number, _)| *number);
        let lost: Vec<u64> = acknowledged.filter(|number| !stored.contains_key(number)).collect();
        assert!(lost.is_empty(), "{what}: lost {lost:?}");
        for (number, value) in &stored {
            assert!(
                log.sent.contains_key(number) && *value == format!("v{number}"),
                "{what}: {number} is {value}"
            );
        }
        eprintln!(
            "{what}: {} writes acknowledged, 0 lost, the longest gap {:.2} s",
            log.sent.values().filter(|is| **is).count(),
            log.longest_gap.as_secs_f64()
        );
    }
}

/// A call of etcd's JSON API.
async fn call(address: &str, what: &str, body: &Value) -> Result<Value, String> {
    let request = hyper::Request::post(format!("http://{address}:2379/v3/kv/{what}"));
    let request =
        request.body(Full::new(Bytes::from(body.to_string()))).map_err(|error| error.to_string())?;
    // A connection of its own: the Service chooses a member for each.
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(ATTEMPT));
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let answer = async {
        let response = client.request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if !status.is_success() {
            return Err(text);
        }
        serde_json::from_str(&text).map_err(|error| error.to_string())
    };
    tokio::time::timeout(ATTEMPT, answer).await.map_err(|_| "no answer".to_owned())?
}

#[tokio::test]
async fn a_cluster_grows_and_shrinks() {
    let stage = Stage::new().await;
    stage.cluster("c", json!({"size": 3, "version": "3.6.8"})).await;
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
async fn one_member_grows_to_three() {
    let stage = Stage::new().await;
    stage.cluster("c", json!({"size": 1, "version": "3.6.8"})).await;
    let writer = stage.writer("c").await;
    stage.edit("c", json!({"size": 3})).await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("resize 1 -> 3").await;
}

#[tokio::test]
async fn a_deleted_pod_without_a_volume_is_another_member() {
    let stage = Stage::new().await;
    stage.cluster("c", json!({"size": 3, "version": "3.6.8"})).await;
    let writer = stage.writer("c").await;
    let before = stage.members().await;
    let begun = Instant::now();
    stage.scene.kubectl(&["delete", "pod", "c-1", "--wait=false"]).await;
    stage
        .scene
        .until("another pod", POD, "c-1", |pod| uid_of(pod) != before["c-1"] && is_pod_ready(pod))
        .await;
    eprintln!("the member was replaced after {:.1} s", begun.elapsed().as_secs_f64());
    stage.settled("c").await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("pod deleted").await;
}

#[tokio::test]
async fn a_deleted_pod_with_a_volume_is_the_same_member() {
    let stage = Stage::new().await;
    stage.cluster("c", durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    let before = stage.members().await;
    let list = stage.etcdctl("c-0", &["member", "list"]).await.unwrap();
    stage.scene.kubectl(&["delete", "pod", "c-1", "--wait=false"]).await;
    stage
        .scene
        .until("another pod", POD, "c-1", |pod| uid_of(pod) != before["c-1"] && is_pod_ready(pod))
        .await;
    stage.settled("c").await;
    assert_eq!(stage.etcdctl("c-0", &["member", "list"]).await.unwrap(), list);
    writer.check("pod deleted, volume kept").await;
}

#[tokio::test]
async fn a_deleted_pod_and_volume_is_another_member() {
    let stage = Stage::new().await;
    stage.cluster("c", durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    let before = uid_of(&stage.scene.get(VOLUME_CLAIM, "c-2").await).to_owned();
    stage.scene.kubectl(&["delete", "pvc", "c-2", "--wait=false"]).await;
    stage.scene.kubectl(&["delete", "pod", "c-2", "--wait=false"]).await;
    stage.scene.until("another volume", VOLUME_CLAIM, "c-2", |claim| uid_of(claim) != before).await;
    stage.settled("c").await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("pod and volume deleted").await;
}

#[tokio::test]
async fn without_a_quorum_nothing_is_removed() {
    let stage = Stage::new().await;
    stage.cluster("c", json!({"size": 3, "version": "3.6.8"})).await;
    let before = stage.members().await;
    stage.scene.kubectl(&["delete", "pod", "c-0", "c-2", "--wait=false"]).await;
    let is_lost = |o: &Value| condition(o, "QuorumLost")["status"] == "True";
    stage.scene.until("QuorumLost", ETCD, "c", is_lost).await;
    let run = stage.scene.run_of("c", "failover", |run| phase(run) == "Failed").await;
    assert!(story_of(&run).contains("too few members are ready for a quorum"), "{}", story_of(&run));
    let after = stage.members().await;
    assert_eq!(after, BTreeMap::from([("c-1".to_owned(), before["c-1"].clone())]));
}

#[tokio::test]
async fn all_pods_deleted_at_once_come_back_with_their_volumes() {
    let stage = Stage::new().await;
    stage.cluster("c", durable(3, "3.6.8")).await;
    let writer = stage.writer("c").await;
    writer.goes_on().await;
    stage.scene.kubectl(&["delete", "pod", "c-0", "c-1", "c-2"]).await;
    stage.settled("c").await;
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    writer.check("all pods deleted").await;
}

#[tokio::test]
async fn an_upgrade_goes_from_minor_version_to_minor_version() {
    let stage = Stage::new().await;
    stage.cluster("c", json!({"size": 3, "version": "3.4.23"})).await;
    let writer = stage.writer("c").await;
    let before = stage.members().await;
    // Refused, and nothing is touched.
    stage.scene.patch(ETCD, "c", "merge", &json!({"spec": {"version": "3.6.8"}})).await;
    let message = stage.scene.stalled(ETCD, "c").await;
    assert!(message.contains("one minor version at a time"), "{message}");
    stage.edit("c", json!({"version": "3.5.35"})).await;
    stage.edit("c", json!({"version": "3.6.8"})).await;
    for pod in names("c", 3) {
        let status = stage.etcdctl(&pod, &["endpoint", "status", "-w", "json"]).await.unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status[0]["Status"]["version"], "3.6.8", "{status:#}");
    }
    assert_eq!(stage.members().await, before, "the containers restart, the pods stay");
    writer.check("upgrade 3.4 -> 3.5 -> 3.6").await;
}

#[tokio::test]
async fn an_image_that_does_not_exist_stops_at_the_first_member() {
    let stage = Stage::new().await;
    stage.cluster("c", json!({"size": 3, "version": "3.5.35"})).await;
    let writer = stage.writer("c").await;
    stage.scene.patch(ETCD, "c", "merge", &json!({"spec": {"version": "3.6.99"}})).await;
    let is_bad = |pod: &Value| pod["spec"]["containers"][0]["image"] == "quay.io/coreos/etcd:v3.6.99";
    crate::support::eventually("one bad member", crate::support::ext::LONG, async || {
        let pods = stage.scene.list(POD).await;
        let waits = |pod: &&Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].is_object();
        if pods.iter().filter(|pod| is_bad(pod)).any(|pod| waits(&pod)) { Ok(()) } else { Err("not yet") }
    })
    .await;
    writer.goes_on().await;
    let pods = stage.scene.list(POD).await;
    assert_eq!(pods.iter().filter(|pod| is_bad(pod)).count(), 1);
    stage.edit("c", json!({"version": "3.6.8"})).await;
    writer.check("upgrade to a missing image, corrected").await;
}

#[tokio::test]
async fn a_backup_is_restored() {
    let stage = Stage::new().await;
    stage.cluster("c", durable(3, "3.6.8")).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    stage.scene.apply(&claim.to_string()).await;
    let writer = stage.writer("c").await;
    writer.goes_on().await;
    let acknowledged = writer.acknowledged();
    let backup = json!({"apiVersion": BACKUP.api_version(), "kind": "EtcdBackup", "metadata": {"name": "b"},
        "spec": {"clusterName": "c", "volume": {"claimName": "backups", "path": "c/etcd.db"}}});
    stage.scene.apply(&backup.to_string()).await;
    let done = stage.scene.until("succeeded", BACKUP, "b", |o| o["status"]["succeeded"] == true).await;
    assert_eq!(done["status"]["path"], "c/etcd.db");
    stage.tell("backed up");
    writer.check("backup").await;

    let writer = stage.writer("c").await;
    writer.task.abort();
    stage.etcdctl("c-0", &["del", "--prefix", "k/"]).await.unwrap();
    assert!(writer.stored().await.is_empty());
    let restore = |name: &str, path: &str| {
        json!({"apiVersion": RESTORE.api_version(), "kind": "EtcdRestore", "metadata": {"name": name},
            "spec": {"etcdCluster": {"name": "c"}, "volume": {"claimName": "backups", "path": path}}})
        .to_string()
    };
    // What is not there, or is damaged, changes nothing.
    let before = stage.members().await;
    stage.scene.apply(&restore("missing", "c/nothing.db")).await;
    let message = stage.scene.stalled(RESTORE, "missing").await;
    assert!(message.contains("verify"), "{message}");
    assert_eq!(stage.members().await, before);

    stage.scene.apply(&restore("r", "c/etcd.db")).await;
    stage.scene.until("succeeded", RESTORE, "r", |o| o["status"]["succeeded"] == true).await;
    stage.settled("c").await;
    stage.tell("restored");
    let stored = writer.stored().await;
    assert!(stored.len() >= acknowledged, "{} of {acknowledged}", stored.len());
    assert!(stored.iter().all(|(number, value)| *value == format!("v{number}")));
    assert_eq!(stage.etcd_members("c-0").await, names("c", 3));
    let claims = stage.scene.list(VOLUME_CLAIM).await;
    let mut claims: Vec<&str> = claims.iter().map(name_of).collect();
    claims.sort_unstable();
    assert_eq!(claims, ["backups", "c-0-g1", "c-1-g1", "c-2-g1"]);
}
