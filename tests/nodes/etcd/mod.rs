//! `operators/etcd` with real etcd. A client writes numbered keys all the time: no write that etcd has
//! acknowledged may be lost, and no other may appear.

mod backups;
mod certificates;
mod disturbed;
mod figures;
mod kills;
mod losses;
mod members;
mod upgrades;
mod writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::database;
use crate::pods::{PATIENCE, Pods, turn};
use crate::support::{
    ControlPlane, ETCD, Kind, LONG, Operetta, POD, SERVICE, Scene, VOLUME_CLAIM, eventually, is_long,
    is_pod_ready, is_ready, kind, name_of, run_flags, uid_of,
};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, SemaphorePermit};
use tokio::task::JoinHandle;

use writer::{Endpoint, Writer};

const CLUSTER: Kind = ETCD;
const BACKUP: Kind = kind("etcd.database.coreos.com/v1beta2", "etcdbackups");
const RESTORE: Kind = kind("etcd.database.coreos.com/v1beta2", "etcdrestores");

/// A namespace on a node, with a manager of the package.
struct Stage {
    scene: Scene,
    started: Instant,
    /// The kinds of the package, which a copy of it has in another API group.
    cluster: Kind,
    backup: Kind,
    restore: Kind,
    /// The manager, unless it is the shared one.
    _manager: Option<Operetta>,
    _pods: Pods,
    _turn: Option<SemaphorePermit<'static>>,
}

/// Starts a manager of the package.
async fn manager(node: &Arc<ControlPlane>) -> Operetta {
    let flags = ["--leader-elect=false", "--leader-elect-resource-name=etcd"];
    run_flags(node, &flags, &["operators/etcd"]).watching(3).await
}

/// The manager of the shared node.
static MANAGER: OnceCell<Mutex<Operetta>> = OnceCell::const_new();

impl Stage {
    /// A stage on the shared node.
    async fn new() -> Self {
        let node = crate::pods::node().await;
        MANAGER.get_or_init(async || Mutex::new(manager(&node).await)).await;
        Self::on(&node).await
    }

    /// A stage on the shared node, with the cluster `c`.
    async fn with(spec: Value) -> Self {
        let stage = Self::new().await;
        stage.cluster("c", spec).await;
        stage
    }

    /// A stage in another namespace, for the same test.
    async fn beside(&self) -> Self {
        Self::without_turn(self.scene.plane()).await
    }

    /// A stage on a node of its own.
    async fn alone() -> Self {
        let turn = turn().await;
        let node = crate::pods::start().await;
        let manager = manager(&node).await;
        Self { _manager: Some(manager), _turn: Some(turn), ..Self::without_turn(&node).await }
    }

    /// A stage on a node, without a manager.
    async fn on(node: &Arc<ControlPlane>) -> Self {
        let turn = turn().await;
        Self { _turn: Some(turn), ..Self::without_turn(node).await }
    }

    async fn without_turn(node: &Arc<ControlPlane>) -> Self {
        let scene = Scene::on(node).await;
        let (cluster, backup, restore) = (CLUSTER, BACKUP, RESTORE);
        let pods = Pods::of(&scene);
        let started = Instant::now();
        Self { scene, started, cluster, backup, restore, _manager: None, _pods: pods, _turn: None }
    }

    fn instance(of: Kind, kind: &str, name: &str, spec: &Value) -> String {
        json!({"apiVersion": of.api_version(), "kind": kind, "metadata": {"name": name}, "spec": spec})
            .to_string()
    }

    /// Creates a cluster.
    async fn create(&self, name: &str, spec: Value) {
        self.scene.apply(&Self::instance(self.cluster, "EtcdCluster", name, &spec)).await;
    }

    /// Creates a cluster and waits until it is Ready.
    async fn cluster(&self, name: &str, spec: Value) {
        self.create(name, spec).await;
        self.settled(name).await;
        self.tell("created");
    }

    /// Creates a backup.
    async fn back_up(&self, name: &str, spec: &Value) {
        self.scene.apply(&Self::instance(self.backup, "EtcdBackup", name, spec)).await;
    }

    /// Creates a restore.
    async fn restore(&self, name: &str, spec: &Value) {
        self.scene.apply(&Self::instance(self.restore, "EtcdRestore", name, spec)).await;
    }

    /// Changes the spec of a cluster.
    async fn change(&self, name: &str, spec: &Value) {
        self.scene.patch(self.cluster, name, "merge", &json!({"spec": spec})).await;
    }

    /// Changes the spec, and waits until the cluster matches it.
    async fn edit(&self, name: &str, spec: Value) {
        let what = format!("{spec}");
        let begun = Instant::now();
        self.change(name, &spec).await;
        self.settled(name).await;
        eprintln!("{what} took {:.1} s", begun.elapsed().as_secs_f64());
    }

    /// Waits until the cluster is Ready with all its members.
    async fn settled(&self, name: &str) {
        let is_settled = |o: &Value| is_ready(o) && o["status"]["readyMembers"] == o["spec"]["size"];
        self.until("Ready with all members", self.cluster, name, is_settled).await;
    }

    /// Waits until a backup or a restore has succeeded.
    async fn succeeded(&self, kind: Kind, name: &str) -> Value {
        self.until("succeeded", kind, name, |o| o["status"]["succeeded"] == true).await
    }

    /// Waits until an object exists and `holds` is true of it.
    async fn until(&self, what: &str, kind: Kind, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        database::until(&self.scene, what, kind, name, holds).await
    }

    /// The runs of an instance and its pods as text, for messages.
    async fn story(&self, name: &str) -> String {
        database::story(&self.scene, name).await
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

    /// The names of the volumes.
    async fn volumes(&self) -> Vec<String> {
        let claims = self.scene.list(VOLUME_CLAIM).await;
        let mut names: Vec<String> = claims.iter().map(|claim| name_of(claim).to_owned()).collect();
        names.sort();
        names
    }

    /// Waits until a pod was replaced and the new one is ready.
    async fn another_pod(&self, name: &str, before: &BTreeMap<String, String>) {
        self.until("another pod", POD, name, |pod| uid_of(pod) != before[name] && is_pod_ready(pod)).await;
    }

    /// Deletes objects without waiting.
    async fn delete(&self, kind: &str, names: &[&str]) {
        self.scene.kubectl(&[&["delete", kind, "--wait=false"], names].concat()).await;
    }

    /// Runs etcdctl in a member.
    async fn etcdctl(&self, pod: &str, args: &[&str]) -> Result<String, String> {
        self.scene.kubectl_input(&[&["exec", pod, "-c", "etcd", "--", "etcdctl"], args].concat(), "").await
    }

    /// The names in etcd's own list of members, once all of them vote.
    async fn etcd_members(&self, pod: &str) -> Vec<String> {
        let text = eventually("a list of members", LONG, async || {
            self.etcdctl(pod, &["member", "list", "-w", "json"]).await
        })
        .await;
        let list: Value = serde_json::from_str(&text).expect("JSON");
        let members = list["members"].as_array().expect("a list");
        assert!(members.iter().all(|member| member["isLearner"] != true), "{list:#}");
        let mut names: Vec<String> =
            members.iter().map(|member| member["name"].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        names
    }

    /// The address for clients of a cluster.
    async fn endpoint(&self, cluster: &str) -> Endpoint {
        let service = self.scene.get(SERVICE, &format!("{cluster}-client")).await;
        let address = service["spec"]["clusterIP"].as_str().expect("an address").to_owned();
        Endpoint { address, tls: None }
    }

    /// Starts the client of a cluster.
    async fn writer(&self, cluster: &str) -> Writer {
        Writer::start(self.endpoint(cluster).await)
    }

    /// Watches from now on that members are replaced one at a time: when a pod is deleted, all others exist
    /// and have been ready.
    fn watch_replacements(&self, cluster: &str, size: usize) -> ReplacementWatch {
        use futures::StreamExt;
        use kube::runtime::watcher::{Config, Event, watcher};
        let (client, namespace) = (self.scene.client(), self.scene.namespace().to_owned());
        let selector = format!("etcd_cluster={cluster}");
        let wrong = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&wrong);
        let task = tokio::spawn(async move {
            let api =
                kube::Api::<kube::api::DynamicObject>::namespaced_with(client, &namespace, &POD.resource());
            let mut events = Box::pin(watcher(api, Config::default().labels(&selector)));
            // For each name: the uid, whether it has been ready, and whether it is being deleted.
            let mut pods: BTreeMap<String, (String, bool, bool)> = BTreeMap::new();
            while let Some(event) = events.next().await {
                let pod = match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => serde_json::to_value(pod).expect("JSON"),
                    Ok(Event::Delete(pod)) => {
                        pods.remove(&kube::ResourceExt::name_any(&pod));
                        continue;
                    }
                    _ => continue,
                };
                let (name, uid) = (name_of(&pod).to_owned(), uid_of(&pod).to_owned());
                let before = pods.get(&name).filter(|(known, ..)| *known == uid).cloned();
                let (_, was_ready, was_deleted) = before.unwrap_or((String::new(), false, false));
                let is_deleted = !pod["metadata"]["deletionTimestamp"].is_null();
                pods.insert(name.clone(), (uid, was_ready || is_pod_ready(&pod), is_deleted));
                let others = pods.iter().filter(|(other, _)| **other != name);
                let good =
                    others.filter(|(_, (_, has_been_ready, deleted))| *has_been_ready && !deleted).count();
                if is_deleted && !was_deleted && good + 1 < size {
                    let pods = format!("{name} is deleted while there is {pods:?}");
                    told.lock().unwrap_or_else(PoisonError::into_inner).push(pods);
                }
            }
        });
        ReplacementWatch { wrong, task }
    }
}

/// Records violations of replacing members one at a time.
struct ReplacementWatch {
    wrong: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for ReplacementWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ReplacementWatch {
    fn check(&self) {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(wrong.is_empty(), "too few members: {wrong:#?}");
    }
}

fn names(cluster: &str, size: usize) -> Vec<String> {
    (0..size).map(|i| format!("{cluster}-{i}")).collect()
}

/// The spec of a volume claim.
fn claim_spec() -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
}

/// The spec of a cluster with volumes.
fn durable(size: usize, version: &str) -> Value {
    json!({"size": size, "version": version, "pod": {"persistentVolumeClaimSpec": claim_spec()}})
}
