//! Proof that a manager has handled all earlier events, for tests in which it must do nothing.
//!
//! A wait of some seconds also passes when the manager hangs. A marker does not: its events come after those
//! in question, through the same watches and the same queue, which is first in, first out for each package.
//! Where another instance would change what is compared, [`Rest`] counts looks at the manager instead.

use std::sync::Arc;
use std::time::Duration;

use operetta::manager::Monitor;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Actor, Kind, LONG, Operetta, SERVICE, Scene, eventually, is_ready, uid_of};

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

    /// Waits until the garbage collector has seen all objects of these kinds so far: one that it sees later than
    /// `--cascade=orphan` is deleted.
    pub async fn collector_knows(&self, kinds: &[Kind]) {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"});
        for kind in kinds {
            let mut probe = json!({"metadata": {"name": "probe", "ownerReferences": [owner]}});
            if kind.plural == SERVICE.plural {
                probe["spec"]["clusterIP"] = "None".into();
            }
            let created = Actor::admin(self.plane()).create(*kind, Some(self.namespace()), &probe).await;
            created.unwrap_or_else(|error| panic!("{error}"));
            self.gone(*kind, "probe").await;
        }
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

/// Tells by looks at a manager's state whether it is at rest. Looks are counted, and not time: on a machine that pauses, time
/// passes in which neither the manager nor the test does anything.
#[derive(Debug, Default)]
pub struct Rest {
    /// Looks in a row that have seen nothing.
    looks: usize,
    /// When the retries that these looks have seen are due.
    due: Option<Instant>,
}

impl Rest {
    /// How many looks in a row must see nothing.
    const LOOKS: usize = 15;

    /// Retries that are due within this time, in seconds, are awaited. The first one after most failures waits for two; later
    /// ones, and those of what fails for ever, wait for longer.
    const SOON: f64 = 2.5;

    /// The pause between two looks.
    pub const PAUSE: Duration = Duration::from_millis(100);

    /// Takes a look: the manager's state, and whether it has asked for something since the last one. Returns whether it is at
    /// rest.
    pub fn sees(&mut self, state: &Value, has_asked: bool) -> bool {
        let queues = || state["queues"].as_object().into_iter().flat_map(serde_json::Map::values);
        let delayed = || queues().filter_map(|queue| queue["delayed"].as_array()).flatten();
        let waits = || delayed().filter_map(|key| key["dueInSeconds"].as_f64());
        let works = |queue: &Value| {
            queue["ready"] != 0 || queue["running"].as_array().is_some_and(|all| !all.is_empty())
        };
        // What is overdue has not begun yet.
        if has_asked || queues().any(works) || waits().any(|wait| wait <= 0.0) {
            *self = Self::default();
            return false;
        }
        if self.looks < Self::LOOKS {
            let soon = waits().filter(|wait| *wait <= Self::SOON).map(Duration::from_secs_f64);
            self.due = soon.map(|wait| Instant::now() + wait).chain(self.due).max();
        }
        self.looks += 1;
        self.looks >= Self::LOOKS && self.due.is_none_or(|due| due < Instant::now())
    }
}

/// Where a manager shows its state.
#[derive(Clone)]
pub enum Address {
    /// The address at which a process serves it.
    Served(String),
    /// A manager in the thread of the test.
    Here(Arc<Monitor>),
}

impl Address {
    /// Where a manager shows its state.
    pub fn of(manager: &Operetta) -> Self {
        if let Some(monitor) = manager.monitor() {
            return Self::Here(monitor);
        }
        let output = manager.output();
        let line = output.lines().find(|line| line.contains("serving /metrics")).expect("it serves");
        let (_, address) = line.split_once("address=").expect("an address");
        Self::Served(address.split_whitespace().next().unwrap_or_default().to_owned())
    }

    /// The metrics, as Prometheus reads them.
    pub async fn metrics(&self) -> String {
        match self {
            Self::Served(address) => get(address, "/metrics").await.1,
            Self::Here(monitor) => monitor.metrics(),
        }
    }

    /// Whether the manager is ready, and what it waits for.
    pub async fn ready(&self) -> String {
        match self {
            Self::Served(address) => get(address, "/readyz").await.1,
            Self::Here(monitor) => monitor.ready().unwrap_or_else(|waits| waits),
        }
    }

    /// The status line and the body of an answer of a process.
    pub async fn get(&self, path: &str) -> (String, String) {
        match self {
            Self::Served(address) => get(address, path).await,
            Self::Here(_) => panic!("a manager in the thread of the test serves nothing"),
        }
    }

    /// Waits until the manager is at rest. `asked` returns what it has asked for since the last call; empty if nothing.
    pub async fn at_rest(&self, mut asked: impl FnMut() -> String) {
        let (started, mut rest) = (Instant::now(), Rest::default());
        loop {
            let told = asked();
            if rest.sees(&self.state().await, !told.is_empty()) {
                return;
            }
            assert!(started.elapsed() < LONG, "it does not come to rest:\n{told}");
            tokio::time::sleep(Rest::PAUSE).await;
        }
    }

    /// The manager's state of its watches and queues.
    pub async fn state(&self) -> Value {
        match self {
            Self::Served(address) => {
                let (_, body) = get(address, "/debug/state").await;
                serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
            }
            Self::Here(monitor) => monitor.state(),
        }
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

#[test]
fn rest_is_a_number_of_looks_in_a_row_that_see_nothing() {
    let queue = |ready: u32, running: &[&str], due: &[f64]| {
        let delayed: Vec<Value> = due.iter().map(|due| json!({"dueInSeconds": due})).collect();
        json!({"queues": {"a": {"ready": ready, "running": running, "delayed": delayed}}})
    };
    let never = |state: &Value, has_asked: bool| {
        let mut rest = Rest::default();
        (0..2 * Rest::LOOKS).all(|_| !rest.sees(state, has_asked))
    };
    let after = |state: &Value| {
        let mut rest = Rest::default();
        (1..9 * Rest::LOOKS).find(|_| rest.sees(state, false))
    };
    assert_eq!(after(&queue(0, &[], &[])), Some(Rest::LOOKS));
    assert_eq!(after(&queue(0, &[], &[60.0])), Some(Rest::LOOKS), "what fails for ever is not awaited");
    assert!(never(&queue(0, &[], &[]), true));
    assert!(never(&queue(1, &[], &[]), false) && never(&queue(0, &["x"], &[]), false));
    assert!(never(&queue(0, &[], &[0.0, 60.0]), false), "what is overdue has not begun");
}
