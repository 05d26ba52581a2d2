//! A database cluster on the real node, and a client that writes numbered records to it all the time and prints those that were
//! acknowledged.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::ext::{Kind, LONG, POD, Scene, is_ready, name_of};
use crate::support::{ControlPlane, eventually};

const CLIENT: &str = "client";

/// Ends the client, and prints the last number that it has sent.
const STOP: &str = "touch /tmp/stop; until [ -e /tmp/stopped ]; do sleep 0.1; done; cat /tmp/sent";

/// What a client has done.
pub(crate) struct Written {
    acknowledged: BTreeSet<u64>,
    sent: u64,
}

pub(crate) struct Stage {
    pub(crate) scene: Scene,
    kind: Kind,
    name: &'static str,
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
        Self { scene: Scene::on(node).await, kind, name, is_whole }
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
        self.scene.until("as it should be", self.kind, self.name, is_settled).await
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

    /// Starts the client, and waits until it writes. `write` sends the record `$n`, and succeeds if it is acknowledged.
    pub(crate) async fn start_client(&self, image: &str, write: &str, env: Value) {
        let script = format!(
            "n=0\nwhile [ ! -e /tmp/stop ]; do n=$((n + 1)); echo $n > /tmp/sent; if {write}; then echo $n; fi; done\n\
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
    async fn acknowledged(&self) -> BTreeSet<u64> {
        let log = self.scene.kubectl(&["logs", CLIENT]).await;
        log.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Waits until more records are acknowledged.
    async fn goes_on(&self) {
        let before = self.acknowledged().await.len();
        eventually("more records", LONG, async || {
            let now = self.acknowledged().await.len();
            if now > before + 5 { Ok(()) } else { Err(now) }
        })
        .await;
    }
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
