//! Requests that steps and observations send, and what comes back. `cluster::http` and `cluster::exec` carry them out.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::api::Gvk;

/// A pod that a command runs in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The request of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// A request to an HTTP server.
    Http(HttpRequest),
    /// A command in a container.
    Exec(ExecRequest),
    /// A patch of an object by the API server.
    Patch(PatchRequest),
}

/// A JSON merge patch of an object that is no child.
#[derive(Debug, Clone, PartialEq)]
pub struct PatchRequest {
    /// Its kind.
    pub gvk: Gvk,
    /// Its namespace, if its kind has one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The patch.
    pub merge: Value,
}

/// An HTTP request, rendered.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HttpRequest {
    /// The method, for example POST.
    pub method: String,
    /// The pod that is called, whatever the host of the URL is.
    pub pod: Option<Pod>,
    /// The URL.
    pub url: String,
    /// The hosts that may be called, redirects included: `api.example.com`, `*.example.com` for one label
    /// more. If it is empty: the host of the URL alone. The client decides which addresses they may have.
    pub hosts: Vec<String>,
    /// All headers, `Idempotency-Key` and `Authorization` included.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// PEM of the CA, of our certificate and of its key.
    pub tls: Tls,
    /// How many redirects are followed; each is checked as the first URL is.
    pub redirects: u8,
    /// The most bytes of an answer.
    pub max_bytes: usize,
    /// How long until the whole answer must be there.
    pub timeout: Duration,
}

/// TLS material, PEM.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Tls {
    /// The CA; without it the system's.
    pub ca: Option<String>,
    /// Our certificate.
    pub cert: Option<String>,
    /// Its key.
    pub key: Option<String>,
}

/// Headers, body and TLS may be secret: only method and host are shown.
impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRequest")
            .field("method", &self.method)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// The answer to an HTTP request.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpReply {
    /// The status code, for example 200.
    pub status: u16,
    /// The headers by lower-case name; several values of one name are joined by `, `.
    pub headers: Vec<(String, String)>,
    /// The body: JSON if it can be parsed, else text; null if it is empty.
    pub body: Value,
    /// `Retry-After`, if the answer has it.
    pub retry_after: Option<Duration>,
}

/// A command in a container of a pod, rendered.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ExecRequest {
    /// The namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// Its uid: another pod of that name is not asked.
    pub uid: String,
    /// The container; without it the pod's only one, or its default.
    pub container: Option<String>,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Its input; may be secret.
    pub stdin: Option<String>,
    /// The most bytes of stdout, and of stderr.
    pub max_bytes: usize,
    /// How long it may take.
    pub timeout: Duration,
}

impl fmt::Debug for ExecRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, pod, .. } = self;
        f.debug_struct("ExecRequest").field("namespace", namespace).field("pod", pod).finish_non_exhaustive()
    }
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecReply {
    /// Its exit code.
    pub exit_code: i32,
    /// Its output, lossy UTF-8.
    pub stdout: String,
    /// Its error output, lossy UTF-8.
    pub stderr: String,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// Nothing was sent, or it certainly did not arrive: refused connections, names that do not resolve. Says why.
    #[error("{0}")]
    NotSent(String),
    /// The request may have been carried out: the connection was cut, or the time is over. Says why.
    #[error("{0}")]
    Unanswered(String),
    /// The API server asks to try again, or the connection to it was cut. The call may be repeated without
    /// harm. Says why, and how long the server asks to wait.
    #[error("{0}")]
    TryAgain(String, Option<Duration>),
    /// The request must not be sent, or its answer is not acceptable; a repetition would fail as well. Says why and
    /// what to do.
    #[error("{0}")]
    Refused(String),
}
