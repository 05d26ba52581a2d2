//! A client that writes numbered keys all the time, and knows which of them etcd has acknowledged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::PATIENCE;
use super::certificates::Tls;
use crate::support::eventually;

/// The timeout of one attempt of the client.
const ATTEMPT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Log {
    /// The numbers that were sent, with whether etcd has acknowledged them.
    sent: BTreeMap<u64, bool>,
    longest_gap: Duration,
}

impl Log {
    fn acknowledged(&self) -> usize {
        self.sent.values().filter(|is| **is).count()
    }
}

/// An etcd cluster, as clients reach it.
#[derive(Clone)]
pub(super) struct Endpoint {
    /// An address that this machine can reach.
    pub(super) address: String,
    pub(super) tls: Option<Tls>,
}

/// A client that writes `k/N` = `vN` for one N after another.
pub(super) struct Writer {
    pub(super) endpoint: Endpoint,
    log: Arc<Mutex<Log>>,
    task: JoinHandle<()>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Writer {
    pub(super) fn start(endpoint: Endpoint) -> Self {
        let log = Arc::<Mutex<Log>>::default();
        let (shared, to) = (Arc::clone(&log), endpoint.clone());
        let task = tokio::spawn(async move {
            let mut last = Instant::now();
            for number in 0_u64.. {
                let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
                lock().sent.insert(number, false);
                let body = json!({"key": STANDARD.encode(format!("k/{number:08}")), "value": STANDARD.encode(format!("v{number}"))});
                while to.call("kv/put", &body).await.is_err() {
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
        Self { endpoint, log, task }
    }

    /// Stops writing. The last write may or may not be stored.
    pub(super) fn stop(&self) {
        self.task.abort();
    }

    /// How many writes etcd has acknowledged.
    pub(super) fn acknowledged(&self) -> usize {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).acknowledged()
    }

    /// Waits until more writes are acknowledged.
    pub(super) async fn goes_on(&self) {
        let before = self.acknowledged();
        eventually("more writes", PATIENCE, async || {
            if self.acknowledged() > before + 20 { Ok(()) } else { Err(self.acknowledged()) }
        })
        .await;
    }

    /// Returns the longest gap between acknowledged writes so far, and resets it.
    pub(super) fn gap(&self) -> Duration {
        std::mem::take(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner).longest_gap)
    }

    /// The keys that etcd has stored.
    pub(super) async fn stored(&self) -> BTreeMap<u64, String> {
        let mut stored = BTreeMap::new();
        let mut from = "k/".to_owned();
        loop {
            let body =
                json!({"key": STANDARD.encode(&from), "range_end": STANDARD.encode("k0"), "limit": 5_000});
            let reply =
                eventually("a read", PATIENCE, async || self.endpoint.call("kv/range", &body).await).await;
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

    /// Stops, and checks that etcd has exactly what it has acknowledged.
    pub(super) async fn check(self, what: &str) {
        self.goes_on().await;
        self.stop();
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
        let gap = log.longest_gap.as_secs_f64();
        eprintln!("{what}: {} writes acknowledged, 0 lost, the longest gap {gap:.2} s", log.acknowledged());
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Endpoint {
    /// A call of etcd's JSON API on its own connection: the Service chooses a member for each.
    pub(super) async fn call(&self, what: &str, body: &Value) -> Result<Value, String> {
        let answer = tokio::time::timeout(ATTEMPT, self.attempt(what, body)).await;
        answer.map_err(|_| "no answer".to_owned())?
    }

    async fn attempt(&self, what: &str, body: &Value) -> Result<Value, String> {
        fn text(error: impl std::fmt::Display) -> String {
            error.to_string()
        }
        let stream = TcpStream::connect((self.address.as_str(), 2379)).await.map_err(text)?;
        let stream: Box<dyn Stream> = match &self.tls {
            Some(tls) => Box::new(tls.connect(stream).await?),
            None => Box::new(stream),
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
        let request = hyper::Request::post(format!("/v3/{what}")).header("host", &self.address);
        let request = request.body(Full::new(Bytes::from(body.to_string()))).map_err(text)?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(text)?;
            let status = response.status();
            let bytes = response.into_body().collect().await.map_err(text)?.to_bytes();
            let body = String::from_utf8_lossy(&bytes).into_owned();
            if status.is_success() { serde_json::from_str(&body).map_err(text) } else { Err(body) }
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            // The connection ends after the answer, or breaks.
            end = connection => Err(end.err().map_or("the connection was closed".to_owned(), text)),
        }
    }
}
