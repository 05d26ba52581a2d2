//! An HTTP API whose answers tests choose.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use operetta_embedded::CallResponse;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// How the API answers a request.
#[derive(Debug, Clone)]
pub enum Reaction {
    /// Answers with this status and body.
    Is(u16, Value),
    /// Answers as without a rule, but after this time.
    Later(Duration),
    /// Cuts the connection without doing anything.
    Cut,
    /// Carries out the request and cuts the connection before the answer.
    DoneAndCut,
    /// Carries out the request and does not answer until the rule is lifted.
    DoneAndSilent,
}

/// A request that the API has received.
#[derive(Debug, Clone)]
pub struct Call {
    pub method: String,
    /// The path and the query.
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// The body as JSON, or as a string if it is not JSON.
    pub body: Value,
    /// The value of the header `Idempotency-Key`.
    pub key: String,
}

/// How long a request takes that gets no answer in the thread of a test.
const SILENCE: Duration = Duration::from_secs(200);

/// An item that the API stores.
#[derive(Debug, Clone)]
pub struct Item {
    pub path: String,
    pub body: Value,
    pub deleted: bool,
    /// How many requests have changed it.
    pub effects: usize,
}

#[derive(Default)]
struct Inner {
    calls: Vec<Call>,
    rules: Vec<(String, String, VecDeque<Reaction>, Option<Reaction>)>,
    items: BTreeMap<String, Item>,
    keys: BTreeMap<(String, String), (u16, Value)>,
}

/// An HTTP API: POST creates an item below a path, GET reads it, PUT replaces it, DELETE marks it as deleted.
/// A POST with a known `Idempotency-Key` gets the first answer again. The first segment of a path is a
/// namespace, which keeps tests apart.
#[derive(Clone, Default)]
pub struct Api {
    inner: Arc<Mutex<Inner>>,
    port: u16,
}

impl Api {
    /// The one that all tests of this process use.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Api> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Answers a request of a package in the thread of the test.
    pub(super) fn answer(&self, call: &operetta_embedded::Call<'_>) -> Result<CallResponse, String> {
        let nobody = || format!("nothing answers at {}", call.url);
        let path = call.url.strip_prefix(&self.url()).ok_or_else(nobody)?;
        let asked = Call::new(call.method, path, call.headers.iter().cloned().collect(), call.body);
        match self.lock().react(&asked) {
            Outcome::Answered(takes, status, body) => Ok(CallResponse {
                status,
                body: text_of(&body).into_bytes(),
                takes,
                ..CallResponse::default()
            }),
            Outcome::Cut | Outcome::Silent => {
                Ok(CallResponse { status: 504, takes: SILENCE, ..CallResponse::default() })
            }
        }
    }

    /// Starts it on a free port, in a thread of its own, because each test has its own runtime, which ends
    /// with the test.
    pub fn start() -> Self {
        let (send, receive) = std::sync::mpsc::channel();
        let inner = Arc::<Mutex<Inner>>::default();
        let shared = Arc::clone(&inner);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                send.send(listener.local_addr().expect("an address").port()).expect("it is awaited");
                loop {
                    let Ok((stream, _)) = listener.accept().await else { continue };
                    let inner = Arc::clone(&shared);
                    tokio::spawn(async move {
                        let service =
                            hyper::service::service_fn(move |request| serve(Arc::clone(&inner), request));
                        let http = hyper::server::conn::http1::Builder::new();
                        let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            });
        });
        Self { inner, port: receive.recv().expect("a port") }
    }

    /// The base URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the next requests of a method for paths that begin with `path` with these answers, one after
    /// another.
    pub fn next(&self, method: &str, path: &str, answers: impl IntoIterator<Item = Reaction>) {
        let answers = answers.into_iter().collect();
        self.lock().rules.push((method.to_owned(), path.to_owned(), answers, None));
    }

    /// Answers all requests of a method for paths that begin with `path` with this answer.
    pub fn always(&self, method: &str, path: &str, answer: Reaction) {
        self.lock().rules.push((method.to_owned(), path.to_owned(), VecDeque::new(), Some(answer)));
    }

    /// Removes all rules for paths that begin with `path`.
    pub fn lift(&self, path: &str) {
        self.lock().rules.retain(|(_, of, _, _)| !of.starts_with(path));
    }

    /// The requests so far for paths that begin with `path`.
    pub fn calls(&self, method: &str, path: &str) -> Vec<Call> {
        let inner = self.lock();
        inner
            .calls
            .iter()
            .filter(|call| call.method == method && call.path.starts_with(path))
            .cloned()
            .collect()
    }

    /// The items whose path begins with `path`.
    pub fn items(&self, path: &str) -> Vec<Item> {
        self.lock().items.values().filter(|item| item.path.starts_with(path)).cloned().collect()
    }

    /// Stores an item as if another client had created it.
    pub fn put(&self, path: &str, body: Value) {
        let item = Item { path: path.to_owned(), body, deleted: false, effects: 0 };
        self.lock().items.insert(path.to_owned(), item);
    }
}

/// What becomes of a request.
enum Outcome {
    /// It is answered after this time.
    Answered(Duration, u16, Value),
    Cut,
    /// It is cut once the rule is lifted.
    Silent,
}

impl Inner {
    fn react(&mut self, call: &Call) -> Outcome {
        self.calls.push(call.clone());
        let reaction = self
            .rules
            .iter_mut()
            .filter(|(method, path, _, _)| *method == call.method && call.path.starts_with(path.as_str()))
            .find_map(|(_, _, next, always)| next.pop_front().or_else(|| always.clone()));
        let after = match reaction {
            Some(Reaction::Is(status, body)) => return Outcome::Answered(Duration::ZERO, status, body),
            Some(Reaction::Cut) => return Outcome::Cut,
            Some(Reaction::DoneAndCut) => {
                self.carry_out(call);
                return Outcome::Cut;
            }
            Some(Reaction::DoneAndSilent) => {
                self.carry_out(call);
                return Outcome::Silent;
            }
            Some(Reaction::Later(time)) => time,
            None => Duration::ZERO,
        };
        let (status, body) = self.carry_out(call);
        Outcome::Answered(after, status, body)
    }

    fn carry_out(&mut self, call: &Call) -> (u16, Value) {
        let inner = self;
        let path = call.path.split('?').next().unwrap_or_default().to_owned();
        match call.method.as_str() {
            "POST" => {
                if let Some(known) = inner.keys.get(&(path.clone(), call.key.clone())) {
                    return known.clone();
                }
                let below = format!("{path}/");
                let id =
                    format!("n{}", inner.items.keys().filter(|item| item.starts_with(&below)).count() + 1);
                let at = format!("{path}/{id}");
                let item = Item { path: at.clone(), body: call.body.clone(), deleted: false, effects: 1 };
                inner.items.insert(at, item);
                let reply = (201, json!({"id": id, "state": "made", "item": call.body}));
                if !call.key.is_empty() {
                    inner.keys.insert((path, call.key.clone()), reply.clone());
                }
                reply
            }
            "GET" => match inner.items.get(&path) {
                Some(item) if item.deleted => (410, json!({"state": "deleted"})),
                Some(item) => (200, json!({"state": "made", "item": item.body})),
                None => (404, json!({"state": "unknown"})),
            },
            "PUT" | "DELETE" => {
                let Some(item) = inner.items.get_mut(&path) else {
                    return (404, json!({"state": "unknown"}));
                };
                item.effects += 1;
                if call.method == "PUT" {
                    item.body = call.body.clone();
                } else {
                    item.deleted = true;
                }
                (200, json!({"state": if item.deleted { "deleted" } else { "made" }, "item": item.body}))
            }
            _ => (405, Value::Null),
        }
    }

    fn is_silent(&self, method: &str, path: &str) -> bool {
        self.rules.iter().any(|(of, from, _, _)| of == method && path.starts_with(from.as_str()))
    }
}

impl Call {
    fn new(method: &str, path: &str, headers: BTreeMap<String, String>, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body).into_owned();
        let body = serde_json::from_str(&text).unwrap_or_else(|_| text.into());
        let key = headers.get("idempotency-key").cloned().unwrap_or_default();
        Self { method: method.to_owned(), path: path.to_owned(), headers, body, key }
    }
}

/// The text of a body.
fn text_of(body: &Value) -> String {
    match body {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

async fn serve(inner: Arc<Mutex<Inner>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Gone> {
    let lock = || inner.lock().unwrap_or_else(PoisonError::into_inner);
    let method = request.method().to_string();
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let headers = request.headers().iter();
    let headers = headers
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let body = request.into_body().collect().await.map_err(|_| Gone)?.to_bytes();
    let outcome = lock().react(&Call::new(&method, &path, headers, &body));
    match outcome {
        Outcome::Answered(after, status, body) => {
            tokio::time::sleep(after).await;
            let body = Full::new(Bytes::from(text_of(&body)));
            Ok(Response::builder().status(status).body(body).expect("an answer"))
        }
        Outcome::Cut => Err(Gone),
        Outcome::Silent => {
            while lock().is_silent(&method, &path) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(Gone)
        }
    }
}

/// The error that makes the server cut the connection.
#[derive(Debug)]
struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("gone")
    }
}

impl std::error::Error for Gone {}

impl From<Infallible> for Gone {
    fn from(_: Infallible) -> Self {
        Self
    }
}
