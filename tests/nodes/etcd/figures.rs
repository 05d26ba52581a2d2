//! Measurements for `docs/performance.md`, without a verdict:
//!
//! ```sh
//! cargo test --test nodes etcd::figures -- --ignored --nocapture
//! ```
//!
//! Run nothing else at the same time.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SpanRelativeTo, Timestamp};
use operetta::local::AuditEvent;
use serde_json::{Value, json};

use super::{PATIENCE, Stage, Writer, durable, names};
use crate::figures::{Line, median, print};
use crate::support::plans::PLAN_RUN;
use crate::support::{
    CONFIG_MAP, Kind, POD, SERVICE, Scene, condition, eventually, is_pod_ready, name_of, time_of, uid_of,
};

const ROUNDS: usize = 6;

/// Measures an operation of the manager while a client writes.
async fn measure(line: &mut Line, stage: &Stage, writer: &Writer, operation: impl AsyncFnOnce()) {
    writer.gap();
    line.measure(&stage.scene, operation).await;
    line.gap(writer.gap());
}

/// An object as a person would write it, for another namespace.
fn bare(object: &Value, kind: &str, namespace: [&str; 2]) -> Value {
    let mut metadata = json!({"name": name_of(object), "labels": {"app": "etcd"}});
    for label in ["app", "etcd_cluster", "etcd_node"] {
        let value = &object["metadata"]["labels"][label];
        if !value.is_null() {
            metadata["labels"][label] = value.clone();
        }
    }
    let mut bare = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
    for field in ["spec", "data"] {
        if !object[field].is_null() {
            bare[field] = object[field].clone();
        }
    }
    for field in ["nodeName", "clusterIP", "clusterIPs", "serviceAccount", "serviceAccountName"] {
        if bare["spec"][field] != "None"
            && let Some(spec) = bare["spec"].as_object_mut()
        {
            spec.remove(field);
        }
    }
    serde_json::from_str(&bare.to_string().replace(namespace[0], namespace[1])).expect("JSON")
}

/// The objects of a cluster for another namespace, with the pods at the end.
async fn bare_objects(stage: &Stage, to: &Scene, ordinals: std::ops::Range<usize>) -> Vec<Value> {
    let namespaces = [stage.scene.namespace(), to.namespace()];
    let mut objects = Vec::new();
    if ordinals.start == 0 {
        for (kind, word, name) in [
            (SERVICE, "Service", "c"),
            (SERVICE, "Service", "c-client"),
            (CONFIG_MAP, "ConfigMap", "c-bootstrap"),
        ] {
            objects.push(bare(&stage.scene.get(kind, name).await, word, namespaces));
        }
    }
    for i in ordinals {
        objects.push(bare(&stage.scene.get(POD, &format!("c-{i}")).await, "Pod", namespaces));
    }
    objects
}

async fn all_ready(scene: &Scene, kind: Kind, count: usize) {
    eventually("ready pods", PATIENCE, async || {
        let ready = scene.list(kind).await.iter().filter(|pod| is_pod_ready(pod)).count();
        if ready == count { Ok(()) } else { Err(ready) }
    })
    .await;
}

async fn apply(scene: &Scene, items: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    scene.kubectl_input(&["apply", "-f", "-"], &list).await.expect("it is applied");
}

/// Runs etcdctl until it succeeds, as a person would.
async fn by_hand(scene: &Scene, args: &[&str]) -> String {
    loop {
        let all = [&["exec", "c-0", "-c", "etcd", "--", "etcdctl"], args].concat();
        if let Ok(text) = scene.kubectl_input(&all, "").await {
            return text;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Adds two members with etcdctl and kubectl, as a person does.
async fn grow_by_hand(scene: &Scene, pods: &[Value]) {
    let peer = |i: usize| format!("http://c-{i}.c.{}.svc:2380", scene.namespace());
    for (i, pod) in (3..5).zip(pods) {
        let url = format!("--peer-urls={}", peer(i));
        let added =
            by_hand(scene, &["member", "add", &format!("c-{i}"), &url, "--learner", "-w", "json"]).await;
        let added: Value = serde_json::from_str(&added).expect("JSON");
        let id = format!("{:x}", added["member"]["ID"].as_u64().expect("an id"));
        let cluster: Vec<String> = (0..=i).map(|m| format!("c-{m}={}", peer(m))).collect();
        let data =
            json!({"data": {format!("{i}.state"): "existing", format!("{i}.cluster"): cluster.join(",")}});
        scene.kubectl(&["patch", "configmap", "c-bootstrap", "-p", &data.to_string()]).await;
        apply(scene, std::slice::from_ref(pod)).await;
        by_hand(scene, &["member", "promote", &id]).await;
        all_ready(scene, POD, i + 1).await;
    }
}

/// How many of the added members had to publish their address again. A publication that is part of the
/// snapshot from which a member starts gets no answer, and etcd repeats it after seven seconds. That happens
/// by chance, whoever adds the member.
async fn published_again(scene: &Scene) -> usize {
    let mut count = 0;
    for pod in ["c-3", "c-4"] {
        let log = scene.kubectl(&["logs", pod, "-c", "etcd"]).await;
        count += usize::from(log.contains("failed to publish local member"));
    }
    count
}

/// Resizes: their seconds, and how many members published again.
struct Resizes(Vec<(f64, usize)>);

impl Resizes {
    fn of(seconds: &[f64], again: &[usize]) -> Self {
        Self(seconds.iter().copied().zip(again.iter().copied()).collect())
    }

    fn all(&self) -> Vec<f64> {
        self.0.iter().map(|(seconds, _)| *seconds).collect()
    }

    /// The resizes in which no member published again.
    fn plain(&self) -> Vec<f64> {
        self.0.iter().filter(|(_, again)| *again == 0).map(|(seconds, _)| *seconds).collect()
    }

    fn print(&self, who: &str) {
        println!("resize 3 -> 5, {who}, seconds and members that published again: {:.1?}", self.0);
    }
}

/// Milliseconds between two requests.
fn between(first: &AuditEvent, then: &AuditEvent) -> f64 {
    let (first, then): (Timestamp, Timestamp) = (time_of(first), time_of(then));
    let span = then.since(first).expect("times");
    span.total((k8s_openapi::jiff::Unit::Microsecond, SpanRelativeTo::days_are_24_hours())).expect("a span")
        / 1000.0
}

#[tokio::test]
#[ignore = "measures: -- --ignored --nocapture"]
async fn figures() {
    // The first pods on a node take longer than later ones.
    let stage = Stage::new().await;
    stage.cluster("warm", json!({"size": 1, "version": "3.6.8"})).await;
    drop(stage);

    let mut create = Line::of("create 3");
    let mut bare_create = Vec::new();
    let (mut by_person, mut again_by_plan, mut again_by_person) = (Vec::new(), Vec::new(), Vec::new());
    let mut up = Line::of("resize 3 -> 5");
    let mut down = Line::of("resize 5 -> 3");
    let mut lost = Line::of("pod deleted, no volume");
    let mut beyond = Vec::new();
    for _ in 0..ROUNDS {
        let stage = Stage::new().await;
        create
            .measure(&stage.scene, async || stage.cluster("c", json!({"size": 3, "version": "3.6.8"})).await)
            .await;
        let other = stage.beside().await;
        let objects = bare_objects(&stage, &other.scene, 0..3).await;
        let begun = Instant::now();
        apply(&other.scene, &objects).await;
        all_ready(&other.scene, POD, 3).await;
        bare_create.push(begun.elapsed().as_secs_f64());

        let writer = stage.writer("c").await;
        writer.goes_on().await;
        // etcd refuses members until its peers have been connected for five seconds. Neither measurement
        // includes that.
        tokio::time::sleep(Duration::from_secs(10)).await;
        measure(&mut up, &stage, &writer, async || stage.edit("c", json!({"size": 5})).await).await;
        again_by_plan.push(published_again(&stage.scene).await);
        let pods = bare_objects(&stage, &other.scene, 3..5).await;
        let beside = other.writer("c").await;
        beside.goes_on().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        let begun = Instant::now();
        grow_by_hand(&other.scene, &pods).await;
        by_person.push(begun.elapsed().as_secs_f64());
        again_by_person.push(published_again(&other.scene).await);
        beside.check("by hand").await;
        assert_eq!(other.etcd_members("c-0").await, names("c", 5));
        measure(&mut down, &stage, &writer, async || stage.edit("c", json!({"size": 3})).await).await;

        let before = stage.members().await;
        let lose = async || {
            stage.scene.delete_recreated(POD, &["c-1"]).await;
            let gone = Instant::now();
            stage.another_pod("c-1", &before).await;
            stage.settled("c").await;
            beyond.push(gone.elapsed().as_secs_f64());
        };
        measure(&mut lost, &stage, &writer, lose).await;
        writer.check("round").await;
        for namespace in [stage.scene.namespace(), other.scene.namespace()] {
            stage.scene.kubectl(&["delete", "namespace", namespace]).await;
        }
    }

    let stage = Stage::with(durable(3, "3.4.23")).await;
    let writer = stage.writer("c").await;
    writer.goes_on().await;
    let mut upgrades = Line::of("upgrade 3.4 -> 3.5, and 3.5 -> 3.6");
    for version in ["3.5.35", "3.6.8"] {
        let edit = async || stage.edit("c", json!({"version": version})).await;
        measure(&mut upgrades, &stage, &writer, edit).await;
    }
    let mut kept = Line::of("pod deleted, volume kept");
    let before = stage.members().await;
    let lose = async || {
        stage.scene.delete_recreated(POD, &["c-1"]).await;
        stage.another_pod("c-1", &before).await;
        stage.settled("c").await;
    };
    measure(&mut kept, &stage, &writer, lose).await;
    let mut both = Line::of("pod and volume deleted");
    let before = uid_of(&stage.scene.get(crate::support::ext::VOLUME_CLAIM, "c-2").await).to_owned();
    let lose = async || {
        stage.delete("pvc", &["c-2"]).await;
        stage.delete("pod", &["c-2"]).await;
        stage.until("another", crate::support::ext::VOLUME_CLAIM, "c-2", |o| uid_of(o) != before).await;
        stage.settled("c").await;
    };
    measure(&mut both, &stage, &writer, lose).await;
    let mut all = Line::of("all pods deleted at once, volumes kept");
    let lose = async || {
        stage.scene.delete_recreated(POD, &["c-0", "c-1", "c-2"]).await;
        stage.settled("c").await;
    };
    measure(&mut all, &stage, &writer, lose).await;

    // The time from the request of a run to its first effect.
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups"}, "spec": super::claim_spec()});
    stage.scene.apply(&claim.to_string()).await;
    let place = json!({"claimName": "backups", "path": "c/etcd.db"});
    let mut backup = Line::of("backup to a volume");
    let take = async || {
        stage.back_up("b", &json!({"clusterName": "c", "volume": place, "backupPolicy": {"backupIntervalInSecond": 86400}})).await;
        let run = stage.scene.request(("EtcdBackup", stage.backup), "b", "periodic", &Value::Null).await;
        stage.until("Succeeded", PLAN_RUN, &run, |run| run["status"]["phase"] == "Succeeded").await;
    };
    measure(&mut backup, &stage, &writer, take).await;
    let mut first = Vec::new();
    for _ in 0..10 {
        let audit = stage.scene.plane().audit();
        let mark = audit.mark().expect("a log");
        let run = stage.scene.request(("EtcdBackup", stage.backup), "b", "periodic", &Value::Null).await;
        stage.until("Succeeded", PLAN_RUN, &run, |run| run["status"]["phase"] == "Succeeded").await;
        let requests = audit.requests_since(mark).expect("a log");
        let of = |resource: &str, verb: &[&str]| {
            let is = |e: &&AuditEvent| {
                e.resource == resource
                    && verb.contains(&e.verb.as_str())
                    && e.writes()
                    && e.namespace == stage.scene.namespace()
                    && e.code == 201
            };
            requests.iter().find(is).cloned().expect("a request")
        };
        first.push(between(&of("planruns", &["create"]), &of("jobs", &["create", "patch"])));
    }
    let mut restore = Line::of("restore of 3 members");
    writer.check("all").await;
    let newest = stage.scene.get(stage.backup, "b").await["status"]["path"].clone();
    let put_back = async || {
        let place = json!({"claimName": "backups", "path": newest});
        stage.restore("r", &json!({"etcdCluster": {"name": "c"}, "volume": place})).await;
        stage.succeeded(stage.restore, "r").await;
        stage.settled("c").await;
    };
    restore.measure(&stage.scene, put_back).await;
    assert_ne!(condition(&stage.scene.get(stage.cluster, "c").await, "Ready"), &Value::Null);

    print(&[&create, &up, &down, &lost, &kept, &both, &all, &upgrades, &backup, &restore]);
    println!(
        "create 3, by hand: {:.1} s, ratio {:.2}",
        median(&bare_create),
        median(&create.seconds) / median(&bare_create)
    );
    let by_plan = Resizes::of(&up.seconds, &again_by_plan);
    let by_person = Resizes::of(&by_person, &again_by_person);
    by_plan.print("plan");
    by_person.print("by hand");
    println!("of all rounds, ratio {:.2}", median(&by_plan.all()) / median(&by_person.all()));
    let (plan, person) = (by_plan.plain(), by_person.plain());
    if !plan.is_empty() && !person.is_empty() {
        let (plan, person) = (median(&plan), median(&person));
        println!(
            "of those where none published again: {plan:.1} s, by hand {person:.1} s, ratio {:.2}",
            plan / person
        );
    }
    println!("lost pod, from its end to a whole cluster: {:.1} s", median(&beyond));
    println!(
        "from a PlanRun to its Job: {:.0} ms, at most {:.0} ms",
        median(&first),
        first.iter().copied().fold(0.0, f64::max)
    );
}
