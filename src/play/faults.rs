//! What goes wrong in a play: requests of the manager that fail, and commands.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::client::Body;
use operetta_embedded::{Call, Course, Exec, ExecResult, Objects, Programs, Reply as HttpReply};
use serde_json::{Value, json};
use tower::BoxError;

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

/// The faults of a play. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    requests: Vec<RequestFault>,
    commands: Vec<CommandFault>,
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
                let fault = faults.of_request(request.method(), request.uri().path());
                match fault {
                    None => inner.send(request).await.map_err(BoxError::from),
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

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "connection reset by peer")
}

fn refusal(code: u16) -> Response<Body> {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": "this request fails, as the test says",
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
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
