//! A booking API over HTTP, with state, idempotency keys and failures on demand.
//!
//! | request | |
//! | --- | --- |
//! | `GET /bookings`, `/bookings/{number}`, `/bookings/by-reference/{reference}` | |
//! | `POST /bookings` | `{reference, order}`: books; 409 if the reference has a booking |
//! | `PUT /bookings/{number}` | `{order}`: changes it; 410 if it was cancelled |
//! | `DELETE /bookings/{number}` | cancels it; 410 if it was cancelled |
//! | `POST /admin/cancel/{number}` | the airline cancels it |
//! | `GET`, `PUT /admin/faults` | which failures happen, see [`Faults`] |
//! | `GET /admin/log` | all requests to `/bookings` |

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// One failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// None: the request is served.
    None,
    /// Status 500; nothing is done.
    Error,
    /// Status 503, though it is done.
    ErrorAfter,
    /// Status 429 with `Retry-After`; nothing is done.
    Throttle,
    /// The connection is closed; nothing is done.
    CutBefore,
    /// The connection is closed, though it is done.
    CutAfter,
}

/// Which failures happen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Faults {
    /// How long each request takes, in milliseconds.
    pub latency: u64,
    /// The seconds of `Retry-After`.
    pub retry_after: u64,
    /// The failures of the next requests, in order; after them the rates count.
    pub next: Vec<Fault>,
    /// How many of 1,000 requests have a failure.
    pub rates: BTreeMap<String, u32>,
    /// The failure of every request.
    pub always: Option<Fault>,
}

/// A booking.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Booking {
    /// Its number.
    pub number: String,
    /// What the customer calls it.
    pub reference: String,
    /// What was ordered.
    pub order: Value,
    /// `booked` or `cancelled`.
    pub state: &'static str,
}

/// A request to `/bookings`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
    /// Its `Idempotency-Key`.
    pub key: Option<String>,
    /// The status that it came to, sent or not.
    pub status: u16,
    /// Whether it was answered from the key.
    pub is_replay: bool,
    /// Its failure.
    pub fault: Fault,
}

#[derive(Default)]
struct State {
    bookings: Vec<Booking>,
    /// The request and the answer of each key.
    keys: HashMap<String, (String, u16, Value)>,
    faults: Faults,
    log: Vec<Seen>,
}

/// A running server; it ends when dropped.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Reply = (u16, Value);

impl Server {
    /// Listens. With a token, requests to `/bookings` must carry it.
    pub async fn start(listen: SocketAddr, token: Option<String>, faults: Faults) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State { faults, ..State::default() }));
        let (shared, token) = (Arc::clone(&state), token.map(|token| format!("Bearer {token}")));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (state, token) = (Arc::clone(&shared), token.clone());
                let service = service_fn(move |request| serve(request, token.clone(), Arc::clone(&state)));
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, state, task })
    }

    /// `http://127.0.0.1:8080`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All bookings.
    pub fn bookings(&self) -> Vec<Booking> {
        lock(&self.state).bookings.clone()
    }

    /// Books without a request; the number.
    pub fn book(&self, reference: &str, order: &Value) -> String {
        let body = json!({"reference": reference, "order": order});
        let (_, booking) = lock(&self.state).handle(&Method::POST, &["bookings"], &body);
        booking["number"].as_str().unwrap_or_default().to_owned()
    }

    /// All requests to `/bookings`.
    pub fn log(&self) -> Vec<Seen> {
        lock(&self.state).log.clone()
    }

    /// Changes which failures happen.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// The airline cancels a booking; `false` if there is none.
    pub fn cancel(&self, number: &str) -> bool {
        lock(&self.state).cancel(number)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes the connection without an answer.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut")
    }
}

impl std::error::Error for Cut {}

async fn serve(
    request: Request<Incoming>,
    token: Option<String>,
    state: Arc<Mutex<State>>,
) -> Result<Response<String>, Cut> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = parts.uri.path().to_owned();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    if segments[0] == "admin" {
        return Ok(answer(admin(&parts.method, &segments[1..], body, &mut lock(&state)), 0));
    }
    let (fault, latency, retry_after) = {
        let mut state = lock(&state);
        (state.faults.draw(), state.faults.latency, state.faults.retry_after)
    };
    tokio::time::sleep(Duration::from_millis(latency)).await;
    let text = |name: &str| parts.headers.get(name)?.to_str().ok().map(str::to_owned);
    let key = text("idempotency-key");
    let is_allowed = token.is_none() || text(AUTHORIZATION.as_str()) == token;
    let mut state = lock(&state);
    let mut is_replay = false;
    let reply = match fault {
        Fault::Error => (500, json!({"error": "this is a failure on demand"})),
        Fault::Throttle => (429, json!({"error": "too many requests"})),
        Fault::CutBefore => (0, Value::Null),
        _ if !is_allowed => (401, json!({"error": "the token is wrong"})),
        _ => {
            let is_read = parts.method == Method::GET;
            let request = format!("{} {path} {body}", parts.method);
            let known = key.as_ref().filter(|_| !is_read).and_then(|key| state.keys.get(key)).cloned();
            match known {
                Some((known, ..)) if known != request => {
                    (422, json!({"error": "this key was used for another request"}))
                }
                Some((_, status, body)) => {
                    is_replay = true;
                    (status, body)
                }
                None => {
                    let reply = state.handle(&parts.method, &segments, &body);
                    if let Some(key) = key.as_ref().filter(|_| !is_read && reply.0 < 300) {
                        state.keys.insert(key.clone(), (request, reply.0, reply.1.clone()));
                    }
                    reply
                }
            }
        }
    };
    let method = parts.method.to_string();
    state.log.push(Seen { method, path: path.clone(), key, status: reply.0, is_replay, fault });
    match fault {
        Fault::CutBefore | Fault::CutAfter => Err(Cut),
        Fault::ErrorAfter => Ok(answer((503, json!({"error": "done, but not confirmed"})), 0)),
        Fault::Throttle => Ok(answer(reply, retry_after)),
        _ => Ok(answer(reply, 0)),
    }
}

fn answer((status, body): Reply, retry_after: u64) -> Response<String> {
    let mut response = Response::new(if body.is_null() { String::new() } else { body.to_string() });
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    if retry_after > 0 {
        response.headers_mut().insert(RETRY_AFTER, retry_after.into());
    }
    response
}

fn admin(method: &Method, segments: &[&str], body: Value, state: &mut State) -> Reply {
    match (method.as_str(), segments) {
        ("POST", ["cancel", number]) if state.cancel(number) => (200, json!({"number": number})),
        ("GET", ["faults"]) => (200, json!(state.faults)),
        ("PUT", ["faults"]) => match serde_json::from_value(body) {
            Ok(faults) => {
                state.faults = faults;
                (200, json!(state.faults))
            }
            Err(error) => (400, json!({"error": error.to_string()})),
        },
        ("GET", ["log"]) => (200, json!(state.log)),
        _ => (404, json!({"error": "there is no such thing"})),
    }
}

impl Faults {
    fn draw(&mut self) -> Fault {
        if let Some(always) = self.always {
            return always;
        }
        if !self.next.is_empty() {
            return self.next.remove(0);
        }
        let mut drawn = fastrand::u32(..1000);
        for (name, rate) in &self.rates {
            match drawn.checked_sub(*rate) {
                Some(rest) => drawn = rest,
                None => return serde_json::from_value(json!(name)).unwrap_or(Fault::Error),
            }
        }
        Fault::None
    }
}

impl State {
    fn find(&mut self, number: &str) -> Option<&mut Booking> {
        self.bookings.iter_mut().find(|booking| booking.number == number)
    }

    fn cancel(&mut self, number: &str) -> bool {
        self.find(number).map(|booking| booking.state = "cancelled").is_some()
    }

    fn handle(&mut self, method: &Method, segments: &[&str], body: &Value) -> Reply {
        let missing = || (404, json!({"error": "there is no such booking"}));
        match (method.as_str(), segments) {
            ("GET", ["bookings"]) => (200, json!(self.bookings)),
            ("GET", ["bookings", "by-reference", reference]) => {
                let newest = self.bookings.iter().rev().find(|booking| booking.reference == *reference);
                newest.map_or_else(missing, |booking| (200, json!(booking)))
            }
            ("GET", ["bookings", number]) => {
                self.find(number).map_or_else(missing, |booking| (200, json!(booking)))
            }
            ("POST", ["bookings"]) => {
                let (Some(reference), Some(order)) = (body["reference"].as_str(), body.get("order")) else {
                    return (400, json!({"error": "reference and order are required"}));
                };
                let booked = self.bookings.iter().find(|b| b.reference == reference && b.state == "booked");
                if let Some(booking) = booked {
                    return (409, json!({"error": "the reference has a booking", "number": booking.number}));
                }
                let number = format!("B{:05}", self.bookings.len() + 1);
                let order = order.clone();
                let booking = Booking { number, reference: reference.to_owned(), order, state: "booked" };
                self.bookings.push(booking.clone());
                (201, json!(booking))
            }
            ("PUT" | "DELETE", ["bookings", number]) => match self.find(number) {
                None => missing(),
                Some(booking) if booking.state == "cancelled" => {
                    (410, json!({"error": "the booking was cancelled"}))
                }
                Some(booking) if *method == Method::DELETE => {
                    booking.state = "cancelled";
                    (200, json!(booking))
                }
                Some(booking) => {
                    booking.order = body["order"].clone();
                    (200, json!(booking))
                }
            },
            _ => (404, json!({"error": "there is no such path"})),
        }
    }
}
