//! A process's end of the wire: it carries requests to the server, and replies back, unless a rule strikes.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use operetta::cluster::Cluster;
use serde_json::Value;
use tokio::sync::watch;

use super::body::{Break, Keep, Lines, Reply, Tap};
use super::wire::watch_error;
use super::{Call, Fault, Verb, Wire};
use crate::support::ControlPlane;
use crate::support::plane::outside_of;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Whether a simulated process still runs, with a way to end it.
#[derive(Debug, Clone)]
pub struct Life(Arc<watch::Sender<bool>>);

impl Life {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Ends the process: it sends nothing more and receives nothing more.
    pub fn end(&self) {
        self.0.send_replace(true);
    }

    pub fn is_over(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the end of the process.
    pub async fn over(&self) {
        let _ = self.0.subscribe().wait_for(|over| *over).await;
    }
}

impl Wire {
    /// Connects a new process to the cluster over this wire.
    pub async fn connect(&self, plane: &ControlPlane) -> (Cluster, Life) {
        let upstream = plane.managers_client().await;
        let life = Life::new();
        let line = Line { wire: self.clone(), upstream, life: life.clone() };
        let client = kube::Client::new(line, "default");
        let cluster = match plane.thread() {
            Some((server, _)) => {
                let of_calls = life.clone();
                Cluster::over(client, outside_of(server, move || !of_calls.is_over()))
            }
            None => Cluster::new(client),
        };
        (cluster, life)
    }
}

/// One process's end of the wire.
#[derive(Clone)]
struct Line {
    wire: Wire,
    upstream: kube::Client,
    life: Life,
}

impl tower::Service<Request<Body>> for Line {
    type Response = Response<Reply>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Reply>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let line = self.clone();
        Box::pin(async move {
            let life = line.life.clone();
            let reply = line.carry(request).await;
            // A process that has ended receives no replies.
            if life.is_over() { std::future::pending().await } else { reply }
        })
    }
}

impl Line {
    async fn carry(self, request: Request<Body>) -> Result<Response<Reply>, BoxError> {
        if self.life.is_over() {
            return std::future::pending().await;
        }
        let call = Call::of(&request);
        let (number, fault) = self.wire.decide(&call);
        match fault {
            Some(Fault::Answer(answer)) => return Ok(answer.into_response()),
            Some(Fault::Refused) => return Err(broken(std::io::ErrorKind::ConnectionRefused)),
            Some(Fault::Never) => return std::future::pending().await,
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::Held(ref gate)) => gate.over().await,
            Some(Fault::DieBefore) => {
                self.life.end();
                return std::future::pending().await;
            }
            Some(Fault::Stale) => {
                let earlier = self.wire.lock().answers.get(&call.uri).cloned();
                if let Some(bytes) = earlier {
                    let response = Response::builder().header("content-type", "application/json");
                    return Ok(response.body(Reply::whole(bytes)).expect("a response"));
                }
            }
            _ => {}
        }
        if matches!(call.verb, Verb::Watch | Verb::Stream) {
            return self.watch(request, call, number, fault.as_ref()).await;
        }
        // Send the request on a task of its own: the server must get it even if the caller stops waiting for
        // the reply.
        let (wire, upstream) = (self.wire.clone(), self.upstream.clone());
        let sent = tokio::spawn(async move {
            wire.lock().under_way += 1;
            let answer = async {
                let (parts, body) = upstream.send(request).await?.into_parts();
                let bytes = body.collect_bytes().await?;
                Ok::<_, kube::Error>((parts, bytes))
            };
            let answer = answer.await;
            wire.lock().under_way -= 1;
            if let Ok((parts, _)) = &answer {
                wire.note(number, parts.status.as_u16());
            }
            answer
        });
        let (parts, bytes) = sent.await??;
        match fault {
            Some(Fault::Cut) => return Err(broken(std::io::ErrorKind::ConnectionReset)),
            Some(Fault::Lost) => return std::future::pending().await,
            Some(Fault::DieAfter) => {
                self.life.end();
                return std::future::pending().await;
            }
            _ => {}
        }
        let bytes = if call.lists_crds() { self.own_crds(&bytes) } else { bytes };
        if call.verb.reads() && parts.status.is_success() {
            self.wire.lock().answers.entry(call.uri.clone()).or_insert_with(|| bytes.clone());
        }
        Ok(Response::from_parts(parts, Reply::whole(bytes)))
    }

    async fn watch(
        self,
        request: Request<Body>,
        call: Call,
        number: usize,
        fault: Option<&Fault>,
    ) -> Result<Response<Reply>, BoxError> {
        let (parts, body) = self.upstream.send(request).await?.into_parts();
        self.wire.note(number, parts.status.as_u16());
        let breaks = match fault {
            Some(Fault::Cut) => Some(Break::Cut),
            Some(Fault::Lost) => Some(Break::Silent),
            Some(Fault::DieAfter) => {
                self.life.end();
                return std::future::pending().await;
            }
            _ => None,
        };
        let tap = Arc::new(Tap::default());
        match fault {
            Some(Fault::WatchEnds(after)) => tap.clone().later(*after, Tap::end),
            Some(Fault::WatchFails(after, code)) => {
                let event = watch_error(*code);
                tap.clone().later(*after, move |tap| tap.inject(&event));
            }
            _ => {}
        }
        let hides = call.plural == "customresourcedefinitions";
        let hidden = hides.then(|| self.wire.0.group.clone());
        let wire = self.wire.clone();
        let uri = call.uri.clone();
        let keep = (call.verb == Verb::Stream && parts.status.is_success()).then(|| -> Keep {
            Box::new(move |list| {
                wire.lock().answers.entry(uri.clone()).or_insert(list);
            })
        });
        self.wire.lock().taps.push((call, Arc::clone(&tap)));
        let lines = Lines { shows: hidden, breaks, keep };
        Ok(Response::from_parts(parts, Reply::watch(body, tap, self.life.clone(), lines)))
    }

    /// Removes the CRDs of other cases' managers from a list.
    fn own_crds(&self, bytes: &Bytes) -> Bytes {
        let Ok(mut list) = serde_json::from_slice::<Value>(bytes) else { return bytes.clone() };
        if let Some(items) = list["items"].as_array_mut() {
            items.retain(|crd| is_own(crd, &self.wire.0.group));
        }
        list.to_string().into()
    }
}

/// Whether a CRD belongs to this group, or to no case of fault tests at all.
pub(super) fn is_own(crd: &Value, group: &str) -> bool {
    let found = crd["metadata"]["name"].as_str().unwrap_or_default();
    !found.ends_with(".faults.operetta.dev") || found.ends_with(&format!(".{group}"))
}

pub(super) fn broken(kind: std::io::ErrorKind) -> BoxError {
    Box::new(std::io::Error::new(kind, "the connection broke, says a test"))
}
