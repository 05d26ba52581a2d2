//! What goes wrong in a play: requests of the manager that fail, and commands.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use jiff::Timestamp;
use kube::client::Body;
use operetta_embedded::{Call, Course, Exec, ExecResult, Objects, Programs, Reply as HttpReply};
use serde_json::Value;
use tokio::sync::Notify;
use tower::BoxError;

use crate::apiserver::reply::{Answer, boxed, status};
use crate::diag::Diagnostic;
use crate::package::test_file::Reply;

/// Requests that fail.
#[derive(Debug, Clone)]
pub(super) struct RequestFault {
    /// `write`, or a verb.
    pub verb: String,
    pub resource: Option<String>,
    pub answer: Reply,
    pub left: u32,
}

/// Commands that fail.
#[derive(Debug, Clone)]
pub(super) struct CommandFault {
    pub words: Vec<String>,
    pub exit_code: i32,
    pub stderr: String,
    pub left: u32,
}

/// One thing that goes wrong in a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Disturbance {
    /// The number of the write of the manager, from 1.
    pub write: u64,
    pub what: What,
}

/// What happens to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// The manager ends before it is sent.
    KillBefore,
    /// It is carried out, and the manager ends before the answer.
    KillAfter,
    /// It is carried out, and the answer is lost.
    Lost,
    /// It is not carried out, and the connection breaks.
    Cut,
    /// The answer is 409.
    Conflict,
    /// The answer is 429.
    Busy,
    /// The answer is 500.
    Broken,
    /// It is carried out, and all watches end.
    Watches,
}

impl What {
    pub(crate) const ALL: [Self; 8] = [
        Self::KillBefore,
        Self::KillAfter,
        Self::Lost,
        Self::Cut,
        Self::Conflict,
        Self::Busy,
        Self::Broken,
        Self::Watches,
    ];

    /// The word in files of schedules.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::KillBefore => "killBefore",
            Self::KillAfter => "killAfter",
            Self::Lost => "lost",
            Self::Cut => "cut",
            Self::Conflict => "conflict",
            Self::Busy => "busy",
            Self::Broken => "broken",
            Self::Watches => "watches",
        }
    }

    /// What happened, for people.
    pub(crate) fn story(self) -> &'static str {
        match self {
            Self::KillBefore => "the manager is killed before it sends this, and started again",
            Self::KillAfter => "the manager is killed when this is carried out, and started again",
            Self::Lost => "this is carried out, and its answer is lost",
            Self::Cut => "this is not carried out: the connection breaks",
            Self::Conflict => "this is answered with 409",
            Self::Busy => "this is answered with 429",
            Self::Broken => "this is answered with 500",
            Self::Watches => "this is carried out, and all watches end",
        }
    }
}

/// The faults of a play. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Arc<Mutex<State>>, Arc<Signals>);

#[derive(Debug, Default)]
struct Signals {
    killed: Notify,
    watches_end: Notify,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<RequestFault>,
    commands: Vec<CommandFault>,
    schedule: Vec<Disturbance>,
    /// The writes of managers so far.
    writes: u64,
    /// The disturbances that have struck, with the request that each has struck.
    struck: Vec<(Disturbance, String)>,
    /// Whether the manager has been killed: nothing that it sends arrives.
    generation: u64,
}

impl Faults {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add_requests(&self, fault: RequestFault) {
        self.with(|state| state.requests.push(fault));
    }

    pub(super) fn add_commands(&self, fault: CommandFault) {
        self.with(|state| state.commands.push(fault));
    }

    /// Cuts off all clients that were made before.
    pub(super) fn cut(&self) {
        self.with(|state| state.generation += 1);
    }

    pub(super) fn schedule(&self, schedule: &[Disturbance]) {
        self.with(|state| state.schedule = schedule.to_vec());
    }

    /// How many writes the managers have sent, and what has struck.
    pub(super) fn struck(&self) -> (u64, Vec<(Disturbance, String)>) {
        self.with(|state| (state.writes, state.struck.clone()))
    }

    /// Waits until a disturbance kills the manager.
    pub(super) async fn killed(&self) {
        self.1.killed.notified().await;
    }

    fn kill(&self) {
        self.cut();
        self.1.killed.notify_one();
    }

    /// Counts a write, and says what happens to it.
    fn of_write(&self, method: &Method, path: &str) -> Option<What> {
        if *method == Method::GET || path.contains("/events") || path.ends_with("reviews") {
            return None;
        }
        self.with(|state| {
            state.writes += 1;
            let write = state.writes;
            let found = *state.schedule.iter().find(|disturbance| disturbance.write == write)?;
            state.struck.push((found, format!("{method} {path}")));
            Some(found.what)
        })
    }

    fn of_request(&self, method: &Method, path: &str) -> Option<Reply> {
        let verb = match *method {
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => return None,
        };
        self.with(|state| {
            let fault = state.requests.iter_mut().find(|fault| {
                let is_verb = fault.verb == verb || fault.verb == "write" && verb != "get";
                let is_resource = |resource: &str| path.split('/').any(|part| part == resource);
                fault.left > 0 && is_verb && fault.resource.as_deref().is_none_or(is_resource)
            })?;
            fault.left -= 1;
            Some(fault.answer)
        })
    }

    /// A client through which these faults strike, until [`Faults::cut`].
    pub(super) fn client(&self, inner: kube::Client) -> kube::Client {
        let faults = self.clone();
        let generation = self.with(|state| state.generation);
        let namespace = inner.default_namespace().to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (faults, inner) = (faults.clone(), inner.clone());
            async move {
                if faults.with(|state| state.generation) != generation {
                    return std::future::pending().await;
                }
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let send = async |request| {
                    let answer = inner.send(request).await.map_err(BoxError::from)?;
                    Ok(if is_watch { faults.ending(answer) } else { answer.map(boxed) })
                };
                let disturbed = faults.of_write(request.method(), request.uri().path());
                let fault = match disturbed {
                    None => faults.of_request(request.method(), request.uri().path()),
                    Some(What::Lost) => Some(Reply::Lost),
                    Some(What::Cut) => Some(Reply::Cut),
                    Some(What::Conflict) => Some(Reply::Code(409)),
                    Some(What::Busy) => Some(Reply::Code(429)),
                    Some(What::Broken) => Some(Reply::Code(500)),
                    Some(What::KillBefore) => {
                        faults.kill();
                        return std::future::pending().await;
                    }
                    Some(What::KillAfter) => {
                        let _ = send(request).await?;
                        faults.kill();
                        return std::future::pending().await;
                    }
                    Some(What::Watches) => {
                        let answer = send(request).await?;
                        faults.1.watches_end.notify_waiters();
                        return Ok(answer);
                    }
                };
                match fault {
                    None => send(request).await,
                    Some(Reply::Code(code)) => Ok(refusal(code)),
                    Some(Reply::Cut) => Err(BoxError::from(broken())),
                    Some(Reply::Lost) => {
                        let answer = inner.send(request).await?;
                        let _ = answer.into_body().collect().await;
                        Err(broken().into())
                    }
                }
            }
        });
        kube::Client::new(service, namespace)
    }
}

impl Faults {
    /// The answer to a watch, which ends when all watches end.
    fn ending(&self, answer: Response<Body>) -> Response<Answer> {
        let signals = Arc::clone(&self.1);
        answer.map(|body| {
            let end = async move { signals.watches_end.notified().await };
            let frames = BodyStream::new(body).take_until(Box::pin(end));
            boxed(StreamBody::new(frames))
        })
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "connection reset by peer")
}

fn refusal(code: u16) -> Response<Answer> {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    status(code, reason, "this request fails, as the test says")
}

/// Programs of which some commands fail.
#[derive(Debug)]
pub(super) struct Faulty {
    pub inner: Box<dyn Programs>,
    pub faults: Faults,
}

impl Programs for Faulty {
    fn start(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) -> Course {
        self.inner.start(pod, objects, now)
    }

    fn ready(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) -> bool {
        self.inner.ready(pod, objects, now)
    }

    fn faults(&self) -> Vec<Diagnostic> {
        self.inner.faults()
    }

    fn has_readiness(&self) -> bool {
        self.inner.has_readiness()
    }

    fn stop(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) {
        self.inner.stop(pod, objects, now);
    }

    fn exec(&mut self, exec: &Exec<'_>, objects: &dyn Objects) -> ExecResult {
        let fault = self.faults.with(|state| {
            let fault = state
                .commands
                .iter_mut()
                .find(|fault| fault.left > 0 && exec.command.starts_with(&fault.words))?;
            fault.left -= 1;
            Some(fault.clone())
        });
        match fault {
            Some(fault) => {
                ExecResult { stderr: fault.stderr, exit_code: fault.exit_code, ..ExecResult::default() }
            }
            None => self.inner.exec(exec, objects),
        }
    }

    fn log(&mut self, pod: &Value, container: &str, objects: &dyn Objects) -> String {
        self.inner.log(pod, container, objects)
    }

    fn call(&mut self, call: &Call<'_>, objects: &dyn Objects) -> Result<HttpReply, String> {
        self.inner.call(call, objects)
    }
}
