//! Proof that a manager has handled all earlier events, for tests in which it must do nothing.
//!
//! A wait of some seconds also passes when the manager hangs. A marker does not: its events come after those
//! in question, through the same watches and the same queue, which is first in, first out for each package.

use serde_json::Value;

use super::ext::{Kind, LONG, Scene, is_ready, uid_of};
use super::{Operetta, eventually};

impl Scene {
    /// Waits until the manager has handled all events so far of instances of this kind and of children of these kinds.
    ///
    /// `marker` is the manifest of another instance of the kind, `kind`. It is created, becomes Ready, loses a child of
    /// each of `children`, gets them back, and is deleted.
    pub async fn handled(&self, manager: &Address, marker: &str, kind: Kind, children: &[Kind]) {
        let marker: Value = serde_json::from_str(marker).expect("a manifest in JSON");
        let name = marker["metadata"]["name"].as_str().expect("a name");
        self.apply(&marker.to_string()).await;
        let instance = self.until("Ready, as a marker", kind, name, is_ready).await;
        for child in children {
            let own = async || {
                let uid = uid_of(&instance);
                let is_own = |o: &Value| o["metadata"]["labels"]["operetta.dev/instance-uid"] == uid;
                self.list(*child).await.into_iter().filter(is_own).collect::<Vec<_>>()
            };
            let lost =
                own().await.into_iter().next().unwrap_or_else(|| panic!("{name} has no {}", child.plural));
            let (lost_name, lost_uid) = (lost["metadata"]["name"].clone(), uid_of(&lost));
            self.delete_recreated(*child, &[lost_name.as_str().expect("a name")]).await;
            eventually("the child of a marker to be created again", LONG, async || {
                let is_back = |o: &Value| o["metadata"]["name"] == lost_name && uid_of(o) != lost_uid;
                if own().await.iter().any(is_back) { Ok(()) } else { Err(format!("no {lost_name}")) }
            })
            .await;
        }
        self.idle(manager).await;
        self.kubectl(&["delete", &kind.resource_name(), name, "--wait=false"]).await;
    }

    /// Waits until the manager's queues hold no instance of this namespace that is due now.
    pub async fn idle(&self, manager: &Address) {
        let here = format!("/{}/", self.namespace());
        eventually("the queues to be empty", LONG, async || {
            let state = manager.state().await;
            let queues = state["queues"].as_object().expect("queues");
            let is_idle = |queue: &Value| {
                let running = queue["running"].as_array().expect("what runs");
                queue["ready"] == 0 && !running.iter().any(|key| key.to_string().contains(&here))
            };
            if queues.values().all(is_idle) { Ok(()) } else { Err(state["queues"].to_string()) }
        })
        .await;
    }
}

/// The address at which a manager serves `/debug/state`.
#[derive(Debug, Clone)]
pub struct Address(String);

impl Address {
    /// The address that a manager has printed.
    pub fn of(manager: &Operetta) -> Self {
        let output = manager.output();
        let line = output.lines().find(|line| line.contains("serving /metrics")).expect("it serves");
        let (_, address) = line.split_once("address=").expect("an address");
        Self(address.split_whitespace().next().unwrap_or_default().to_owned())
    }

    /// The metrics, as Prometheus reads them.
    pub async fn metrics(&self) -> String {
        get(&self.0, "/metrics").await.1
    }

    /// The status line and the body of an answer.
    pub async fn get(&self, path: &str) -> (String, String) {
        get(&self.0, path).await
    }

    /// The manager's state of its watches and queues.
    pub async fn state(&self) -> Value {
        let (_, body) = get(&self.0, "/debug/state").await;
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }
}

/// The status line and the body of an answer of a manager.
pub async fn get(address: &str, path: &str) -> (String, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}
