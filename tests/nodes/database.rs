//! A database cluster on the real node, and a client that writes numbered records to it all the time and prints those that were
//! acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::figures::Line;
use crate::pods::{self, PATIENCE};
use crate::support::ext::{Kind, LONG, POD, Scene, is_ready, name_of, run_as, uid_of};
use crate::support::plans::INSTANCE_STATE;
use crate::support::{ControlPlane, Operetta, eventually, is_long};

pub(crate) const CLIENT: &str = "client";

/// Ends the client, and prints the last number that it has sent.
const STOP: &str = "touch /tmp/stop; until [ -e /tmp/stopped ]; do sleep 0.1; done; cat /tmp/sent";

/// A timeout for what managers do, which takes several times as long if each of them is killed after a write.
pub(crate) fn patience() -> Duration {
    if is_long() { PATIENCE * 3 } else { PATIENCE }
}

/// Waits until an object exists and `holds` is true of it.
pub(crate) async fn until(
    scene: &Scene,
    what: &str,
    kind: Kind,
    name: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    eventually(&format!("{} {name}: {what}", kind.plural), patience(), async || {
        match scene.find(kind, name).await {
            Some(object) if holds(&object) => Ok(object),
            Some(object) => Err(format!("{:#}\n{}", object["status"], story(scene, name).await)),
            None => Err("it does not exist".to_owned()),
        }
    })
    .await
}

/// The manager of a package on the shared node. A second one would work on the same clusters.
pub(crate) struct SharedManager {
    package: &'static str,
    started: OnceCell<Mutex<Operetta>>,
}

impl SharedManager {
    pub(crate) const fn of(package: &'static str) -> Self {
        Self { package, started: OnceCell::const_new() }
    }

    /// The shared node, once the manager works on it.
    pub(crate) async fn node(&self) -> Arc<ControlPlane> {
        let node = pods::node().await;
        let start = async || {
            let manager = run_as(self.package, &node, &[&format!("operators/{}", self.package)]);
            Mutex::new(manager.watching(1).await)
        };
        self.started.get_or_init(start).await;
        node
    }
}

/// The runs of an instance and the pods of its namespace as text, for messages.
pub(crate) async fn story(scene: &Scene, name: &str) -> String {
    let runs = scene.runs(name).await;
    let runs: Vec<String> = runs.iter().map(|run| format!("{} {:#}", name_of(run), run["status"])).collect();
    let pods = scene.list(POD).await;
    let pods: Vec<String> =
        pods.iter().map(|pod| format!("{} {}", name_of(pod), pod["status"]["containerStatuses"])).collect();
    format!("{}\n{}", runs.join("\n"), pods.join("\n"))
}

/// The pods with their containers, by name. They change if a container restarts or a pod is replaced.
pub(crate) fn containers(pods: &[Value]) -> BTreeMap<String, Value> {
    let containers = |pod: &Value| {
        let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        let ids = statuses.map(|status| json!([status["containerID"], status["restartCount"]]));
        json!([uid_of(pod), ids.collect::<Vec<_>>()])
    };
    pods.iter().map(|pod| (name_of(pod).to_owned(), containers(pod))).collect()
}

/// What a client has done.
pub(crate) struct Written {
    acknowledged: BTreeSet<u64>,
    sent: u64,
}

pub(crate) struct Stage {
    pub(crate) scene: Scene,
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    /// Whether a cluster that is Ready has all that its spec wants.
    is_whole: fn(&Value) -> bool,
}

impl Stage {
    pub(crate) async fn on(
        node: &Arc<ControlPlane>,
        kind: Kind,
        name: &'static str,
        is_whole: fn(&Value) -> bool,
    ) -> Self {
        Self::of(Scene::on(node).await, kind, name, is_whole)
    }

    /// The cluster with this name in a namespace that exists.
    pub(crate) fn of(scene: Scene, kind: Kind, name: &'static str, is_whole: fn(&Value) -> bool) -> Self {
        Self { scene, kind, name, is_whole }
    }

    /// Creates the cluster, and waits until it is as it should be.
    pub(crate) async fn create(&self, kind: &str, spec: &Value) -> Value {
        let cluster = json!({
            "apiVersion": self.kind.api_version(), "kind": kind, "metadata": {"name": self.name}, "spec": spec,
        });
        let begun = Instant::now();
        self.scene.apply(&cluster.to_string()).await;
        let cluster = self.settled().await;
        eprintln!("create took {:.1} s", begun.elapsed().as_secs_f64());
        cluster
    }

    /// Waits until the cluster is as it should be, and returns it.
    pub(crate) async fn settled(&self) -> Value {
        let is_settled = |cluster: &Value| is_ready(cluster) && (self.is_whole)(cluster);
        self.until("as it should be", self.kind, self.name, is_settled).await
    }

    /// Waits until an object exists and `holds` is true of it.
    pub(crate) async fn until(
        &self,
        what: &str,
        kind: Kind,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        until(&self.scene, what, kind, name, holds).await
    }

    /// Does something, waits until the cluster is as it should be, says how long this took, and returns the cluster.
    pub(crate) async fn after(&self, what: &str, action: impl Future<Output = ()>) -> Value {
        let begun = Instant::now();
        action.await;
        self.scene.until("noticed", self.kind, self.name, |o| !is_ready(o)).await;
        let cluster = self.settled().await;
        eprintln!("{what} took {:.1} s", begun.elapsed().as_secs_f64());
        self.goes_on().await;
        cluster
    }

    pub(crate) async fn edit(&self, spec: Value) {
        self.scene.patch(self.kind, self.name, "merge", &json!({"spec": spec})).await;
    }

    /// Deletes the cluster, and waits until it is gone with its pods and with what managers remember of it.
    pub(crate) async fn remove(&self) {
        let resource = self.kind.resource_name();
        self.scene.kubectl(&["delete", &resource, self.name, "--wait=false"]).await;
        eventually("the end", patience(), async || {
            let is_there = self.scene.find(self.kind, self.name).await.is_some();
            let (pods, runs) = (self.pods().await, self.scene.runs(self.name).await.len());
            let mut states = self.scene.list(INSTANCE_STATE).await;
            states.retain(|state| state["spec"]["of"]["name"] == self.name);
            if !is_there && pods.is_empty() && runs == 0 && states.is_empty() {
                Ok(())
            } else {
                Err(format!("the cluster: {is_there}, {pods:?}, {runs} runs, {} states", states.len()))
            }
        })
        .await;
    }

    /// Takes a backup of the cluster, and waits until it is completed.
    pub(crate) async fn back_up(&self, of: Kind, kind: &str, name: &str) -> Value {
        let backup = json!({
            "apiVersion": of.api_version(), "kind": kind, "metadata": {"name": name},
            "spec": {"cluster": {"name": self.name}},
        });
        self.scene.apply(&backup.to_string()).await;
        let has_ended = |o: &Value| o["status"]["phase"] == "completed" || o["status"]["phase"] == "failed";
        let backup = self.until("its end", of, name, has_ended).await;
        assert_eq!(backup["status"]["phase"], "completed", "{backup:#}");
        backup
    }

    /// Waits until a command in a pod prints the id of a backup, and nothing else.
    pub(crate) async fn has_only(&self, backup: &Value, pod: &str, command: &[&str]) {
        let exec = [&["exec", pod], command].concat();
        eventually("one copy", patience(), async || {
            let copies = self.scene.kubectl_input(&exec, "").await?;
            if copies.trim() == backup["status"]["backupId"] { Ok(()) } else { Err(copies) }
        })
        .await;
    }

    /// Starts the client, and waits until it writes. `write` sends the last `records` records up to `$n`, and prints the number of each
    /// that is acknowledged.
    pub(crate) async fn start_client(&self, image: &str, records: u64, write: &str, env: Value) {
        let script = format!(
            "n=0\nwhile [ ! -e /tmp/stop ]; do n=$((n + {records})); echo $n > /tmp/sent; {write}; done\n\
             touch /tmp/stopped\nsleep 100000"
        );
        let client = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": CLIENT},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": CLIENT, "image": image, "command": ["sh", "-c", script], "env": env}],
            },
        });
        self.scene.apply(&client.to_string()).await;
        self.scene.until("running", POD, CLIENT, |pod| pod["status"]["phase"] == "Running").await;
        self.goes_on().await;
    }

    /// The names of the pods of the cluster.
    pub(crate) async fn pods(&self) -> Vec<String> {
        let pods = self.scene.list(POD).await;
        pods.iter().map(name_of).filter(|name| *name != CLIENT).map(str::to_owned).collect()
    }

    /// Ends the client.
    pub(crate) async fn stop_client(&self) -> Written {
        let sent = self.scene.kubectl(&["exec", CLIENT, "--", "sh", "-c", STOP]).await;
        Written { acknowledged: self.acknowledged().await, sent: sent.trim().parse().expect("a number") }
    }

    /// The numbers that were acknowledged.
    pub(crate) async fn acknowledged(&self) -> BTreeSet<u64> {
        let log = self.scene.kubectl(&["logs", CLIENT]).await;
        log.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Measures an operation while the client writes.
    pub(crate) async fn measure(&self, line: &mut Line, operation: impl AsyncFnOnce()) {
        let before = self.times().await.len();
        line.measure(&self.scene, operation).await;
        self.goes_on().await;
        // The first gap may have begun before the operation.
        let times = self.times().await.split_off(before.saturating_sub(1));
        let gap = times.windows(2).map(|pair| pair[1].duration_since(pair[0])).max();
        line.gap(gap.expect("records").try_into().expect("later records come later"));
    }

    /// When the client has written each acknowledged record to its log.
    async fn times(&self) -> Vec<Timestamp> {
        let log = self.scene.kubectl(&["logs", CLIENT, "--timestamps"]).await;
        let time = |line: &str| line.split(' ').next().and_then(|time| time.parse().ok());
        log.lines().filter_map(time).collect()
    }

    /// Waits until more records are acknowledged.
    pub(crate) async fn goes_on(&self) {
        let before = self.acknowledged().await.len();
        eventually("more records", LONG, async || {
            let now = self.acknowledged().await.len();
            if now > before + 5 { Ok(()) } else { Err(now) }
        })
        .await;
    }
}

/// Checks that a restored cluster has what was acknowledged before its backup, and nothing that the original lacks.
pub(crate) fn is_restored(acknowledged: &BTreeSet<u64>, restored: &BTreeSet<u64>, original: &BTreeSet<u64>) {
    let lost: Vec<_> = acknowledged.difference(restored).collect();
    let invented: Vec<_> = restored.difference(original).collect();
    let (before, after, all) = (acknowledged.len(), restored.len(), original.len());
    eprintln!("{before} records acknowledged before the backup, {after} restored, {all} in the original");
    assert!(lost.is_empty() && invented.is_empty(), "lost: {lost:?}, invented: {invented:?}");
}

impl Written {
    /// Checks that no acknowledged record is lost, and that there is none that was never sent.
    pub(crate) fn is_found(&self, found: &BTreeSet<u64>) {
        let lost: Vec<_> = self.acknowledged.difference(found).collect();
        let invented: Vec<_> = found.iter().filter(|number| !(1..=self.sent).contains(*number)).collect();
        let (sent, acknowledged) = (self.sent, self.acknowledged.len());
        eprintln!(
            "{sent} records sent, {acknowledged} acknowledged, {} there, lost: {lost:?}, invented: {invented:?}",
            found.len()
        );
        assert!(lost.is_empty() && invented.is_empty(), "lost: {lost:?}, invented: {invented:?}");
    }
}
