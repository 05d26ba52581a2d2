//! Requests to a Kubernetes API server: every call has a deadline, and every failure a [`Class`].
//!
//! Objects are plain JSON: a typed round trip would add empty defaults, which server-side apply would then own.

mod apis;
mod clients;
mod delete;
mod error;
mod exec;
mod fence;
mod http;
mod kinds;
mod lease;
mod limits;
mod list;
mod outside;
mod path;
mod pods;
mod reply;
mod requests;
mod streams;
mod tenants;
mod transport;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::http::{Method, Request};
use bytes::Bytes;
use kube::core::Status;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{ApiKind, CallError, Class, MAX_BODY};
use crate::children::names;

pub use self::http::{AllowedTarget, HttpClient};
pub use clients::{Accounts, Clients};
pub use delete::Propagation;
pub use error::call_error;
pub use fence::Fence;
pub use kinds::Kinds;
pub use lease::{Election, Leadership, Settings as LeaseSettings};
pub use limits::{ConcurrencyLimits, PackageLimit, Permit};
pub use list::Query;
pub use outside::Outside;
pub use path::path;
pub use reply::{MAX_EVENT, MAX_OBJECT, MAX_PAGE, MAX_REPLY};
pub use requests::Requests;
pub use streams::{Streams, refuses_streams};
pub use tenants::{Tenant, TenantLimits, TenantPermit};
pub use transport::ConnectError;

/// The deadline of a call. Lists of large collections are paged.
const DEADLINE: Duration = Duration::from_secs(30);

/// The most bytes of a log that are read.
const MAX_LOG: usize = 16 << 10;

/// The requested content type of replies.
const JSON: &str = "application/json";

/// An object without spec, status and data.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// The content type of server-side apply. The server reads it with its YAML reader, JSON or not.
const APPLY: &str = "application/apply-patch+yaml";

/// A connection to one API server, with one identity.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    fence: Fence,
    share: Option<PackageLimit>,
    deadline: Duration,
    streams: Streams,
    /// The host of the API server, as configured.
    host: Option<Arc<str>>,
    /// The client of the process itself, if this one acts as another user.
    itself: Option<kube::Client>,
    /// What answers the HTTP requests of packages; without it the network.
    outside: Option<Arc<dyn Outside>>,
}

/// The settings of a connection.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The fence that every write passes.
    pub fence: Fence,
    /// Counts requests.
    pub requests: Requests,
    /// Sent with each request, so that audit logs distinguish processes.
    pub identity: String,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { fence: Fence::open(), requests: Requests::default(), identity: String::new() }
    }
}

/// Which validation an apply needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// The server refuses unknown fields.
    None,
    /// The apply is a dry run, which refuses unknown fields.
    This,
    /// An apply of the same shape had no unknown fields. The server does not check them again, which saves it parsing
    /// the text twice.
    Passed,
}

impl Cluster {
    /// The cluster that KUBECONFIG, `~/.kube/config` or the pod's service account names.
    pub async fn connect() -> Result<Self, ConnectError> {
        let config = kube::Config::infer().await.map_err(|e| ConnectError::Config(e.to_string()))?;
        Self::of_config(&config, &ConnectOptions::default())
    }

    /// The cluster of a kubeconfig's current context.
    pub async fn of_kubeconfig(path: &Path) -> Result<Self, ConnectError> {
        let unreadable = |e: kube::config::KubeconfigError| ConnectError::Client(e.to_string());
        let kubeconfig = kube::config::Kubeconfig::read_from(path).map_err(unreadable)?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(unreadable)?;
        Self::of_config(&config, &ConnectOptions::default())
    }

    /// The cluster of a configuration.
    pub fn of_config(config: &kube::Config, options: &ConnectOptions) -> Result<Self, ConnectError> {
        let mut config = config.clone();
        let comment: String =
            options.identity.chars().filter(|c| c.is_ascii_graphic() && !"()\\".contains(*c)).collect();
        let agent = concat!("operetta/", env!("CARGO_PKG_VERSION"));
        let agent = if comment.is_empty() { agent.to_owned() } else { format!("{agent} ({comment})") };
        let agent = ::http::HeaderValue::from_str(&agent).map_err(|e| ConnectError::Client(e.to_string()))?;
        config.headers.push((::http::header::USER_AGENT, agent));
        let client = transport::client(&config, options.fence.clone(), &options.requests)?;
        let host = config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).into());
        Ok(Self { host, ..Self::new(client).fenced(options.fence.clone()) })
    }

    /// A connection over an existing client, such as a simulated one.
    pub fn new(client: kube::Client) -> Self {
        let (fence, streams) = (Fence::open(), Streams::default());
        Self {
            client,
            fence,
            share: None,
            deadline: DEADLINE,
            streams,
            host: None,
            itself: None,
            outside: None,
        }
    }

    /// A connection over the client of a simulated cluster, in which `outside` answers the HTTP requests of packages.
    pub fn over(client: kube::Client, outside: Arc<dyn Outside>) -> Self {
        Self { outside: Some(outside), ..Self::new(client) }
    }

    /// The host of the API server, as configured.
    fn server_host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// This connection with another fence: no write passes it while it is closed.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self { fence, ..self.clone() }
    }

    /// This connection, with every request made as another user, if the API server lets this one impersonate
    /// it. The server adds the groups of that user. Call it within a runtime.
    ///
    /// # Errors
    /// No header can hold the name.
    pub fn acting_as(&self, user: &str) -> Result<Self, ConnectError> {
        let header = ::http::HeaderValue::from_str(user).map_err(|e| ConnectError::Client(e.to_string()))?;
        let itself = self.itself.clone().unwrap_or_else(|| self.client.clone());
        let client = transport::impersonate(itself.clone(), header);
        Ok(Self { client, itself: Some(itself), ..self.clone() })
    }

    /// This connection as the process itself, without impersonation.
    #[must_use]
    pub fn as_itself(&self) -> Self {
        let client = self.itself.clone().unwrap_or_else(|| self.client.clone());
        Self { client, itself: None, ..self.clone() }
    }

    /// This connection, with each call waiting for a permit.
    #[must_use]
    pub(super) fn within(&self, share: PackageLimit) -> Self {
        Self { share: Some(share), ..self.clone() }
    }

    /// This connection with another deadline for each call than the usual 30 s, such as in tests of servers
    /// that never answer.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// How long one call may take.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// What is known about streaming lists of this server.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// The kube client, for watches.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The server's version, `1.36`.
    pub async fn version(&self) -> Result<String, CallError> {
        let info: Value = self.call(Method::GET, "/version", None, None).await?;
        let part = |key: &str| info[key].as_str().unwrap_or_default().trim_end_matches('+').to_owned();
        Ok(format!("{}.{}", part("major"), part("minor")))
    }

    /// The kube API of a collection, for watches: of one namespace, or of all.
    ///
    /// # Errors
    /// No namespace can have that name.
    pub fn api<K>(&self, kind: &ApiKind, namespace: Option<&str>) -> Result<kube::Api<K>, CallError>
    where
        K: kube::Resource<DynamicType = kube::core::ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        path::path(kind, namespace, None)?;
        Ok(match namespace.filter(|_| kind.namespaced) {
            Some(namespace) => kube::Api::namespaced_with(self.client(), namespace, &kind.resource()),
            None => kube::Api::all_with(self.client(), &kind.resource()),
        })
    }

    /// A live read; `None` if there is no such object.
    pub async fn get(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, CallError> {
        let path = path::path(kind, namespace, Some(name))?;
        let reply: Value = match self.call(Method::GET, &path, None, None).await {
            Ok(object) => object,
            Err(e) if e.class == Class::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        reply::check(kind, namespace, Some(name), &reply)?;
        Ok(Some(reply))
    }

    /// A live read of the metadata alone, for objects that may be large; `None` if there is no such object.
    ///
    /// # Errors
    /// The request fails.
    pub async fn get_metadata(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, CallError> {
        let path = path::path(kind, namespace, Some(name))?;
        let _permit = self.leave().await;
        match self.send(Method::GET, &path, METADATA, (None, None), reply::MAX_OBJECT).await {
            Ok(object) => Ok(Some(object)),
            Err(e) if e.class == Class::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The last lines of the log of a pod.
    pub async fn log(&self, namespace: &str, pod: &str, lines: u32) -> Result<String, CallError> {
        let mut path = path::path(&ApiKind::built_in("v1", "Pod"), Some(namespace), Some(pod))?;
        path::push(&mut path, "log");
        let request = Request::get(format!("{path}?tailLines={lines}&limitBytes={MAX_LOG}"));
        let request = request.body(Vec::new()).map_err(|e| call_error(&kube::Error::HttpError(e)))?;
        let text = tokio::time::timeout(self.deadline, self.client.request_text(request)).await;
        text.map_err(|_| CallError::timeout(self.deadline))?.map_err(|e| call_error(&e))
    }

    /// Server-side apply. Unknown fields are refused, not dropped.
    pub async fn apply(
        &self,
        kind: &ApiKind,
        body: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, CallError> {
        self.apply_as(kind, body, manager, force, Trial::None).await
    }

    /// Server-side apply, as a dry run or after one.
    pub async fn apply_as(
        &self,
        kind: &ApiKind,
        body: &Value,
        manager: &str,
        force: bool,
        trial: Trial,
    ) -> Result<Value, CallError> {
        let query = format!(
            "fieldManager={}&force={force}&fieldValidation={}",
            encode(manager),
            match trial {
                Trial::None => "Strict",
                Trial::This => "Strict&dryRun=All",
                Trial::Passed => "Ignore",
            },
        );
        let (namespace, name) = named(body);
        let reply =
            self.write(Method::PATCH, (kind, namespace, Some(name)), None, &query, (APPLY, body)).await;
        reply.map_err(|error| error.about(names::may_hold_secrets(body)))
    }

    /// Creates an object. It is a conflict if there is one of that name.
    pub async fn create(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        body: &Value,
        manager: &str,
    ) -> Result<Value, CallError> {
        self.create_checked(kind, namespace, body, manager, false).await
    }

    /// Creates an object, or with `dry_run` only checks it, and then refuses unknown fields.
    pub async fn create_checked(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        body: &Value,
        manager: &str,
        dry_run: bool,
    ) -> Result<Value, CallError> {
        let dry = if dry_run { "&dryRun=All&fieldValidation=Strict" } else { "" };
        let path = format!("{}?fieldManager={}{dry}", path::path(kind, namespace, None)?, encode(manager));
        let reply: Result<Value, CallError> = self.call(Method::POST, &path, Some(JSON), Some(body)).await;
        let reply = reply.map_err(|error| error.about(names::may_hold_secrets(body)))?;
        reply::check(kind, namespace, body["metadata"]["name"].as_str(), &reply)?;
        Ok(reply)
    }

    /// Asks the server for a review, which is an answer and no object.
    pub async fn review(&self, kind: &ApiKind, body: &Value) -> Result<Value, CallError> {
        self.call(Method::POST, &path::path(kind, None, None)?, Some(JSON), Some(body)).await
    }

    /// Replaces an object; its resourceVersion is the precondition.
    pub async fn replace(&self, kind: &ApiKind, body: &Value, manager: &str) -> Result<Value, CallError> {
        let query = format!("fieldManager={}", encode(manager));
        let (namespace, name) = named(body);
        self.write(Method::PUT, (kind, namespace, Some(name)), None, &query, (JSON, body)).await
    }

    /// A JSON merge patch of an object or a subresource of it.
    pub async fn merge_patch(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        patch: &Value,
        manager: &str,
    ) -> Result<Value, CallError> {
        let query = format!("fieldManager={}", encode(manager));
        let content = ("application/merge-patch+json", patch);
        self.write(Method::PATCH, (kind, namespace, Some(name)), subresource, &query, content).await
    }

    /// A JSON merge patch of an object that may be too deep or too large to be read, or of a subresource of it: only the
    /// name of the object is kept of the reply.
    pub(crate) async fn merge_patch_unread(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        patch: &Value,
        manager: &str,
    ) -> Result<(), CallError> {
        let query = format!("fieldManager={}", encode(manager));
        let path = path_to((kind, namespace, Some(name)), subresource, &query)?;
        let content = Some("application/merge-patch+json");
        let reply: reply::Identity = self.call(Method::PATCH, &path, content, Some(patch)).await?;
        reply::check(kind, namespace, Some(name), &reply.to_json())
    }

    /// A JSON patch (RFC 6902) of an object.
    pub async fn json_patch(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        patch: &Value,
        manager: &str,
    ) -> Result<Value, CallError> {
        let query = format!("fieldManager={}", encode(manager));
        let content = ("application/json-patch+json", patch);
        self.write(Method::PATCH, (kind, namespace, Some(name)), subresource, &query, content).await
    }

    /// A write of one object, whose reply is the object.
    async fn write(
        &self,
        method: Method,
        (kind, namespace, name): (&ApiKind, Option<&str>, Option<&str>),
        subresource: Option<&str>,
        query: &str,
        (content, body): (&str, &Value),
    ) -> Result<Value, CallError> {
        let path = path_to((kind, namespace, name), subresource, query)?;
        let reply: Value = self.call(method, &path, Some(content), Some(body)).await?;
        reply::check(kind, namespace, name, &reply)?;
        Ok(reply)
    }

    /// One call: with a permit, and through the fence if it writes.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content: Option<&str>,
        body: Option<&Value>,
    ) -> Result<T, CallError> {
        let _permit = self.leave().await;
        if method == Method::GET {
            return self.send(method, path, JSON, (content, body), reply::MAX_OBJECT).await;
        }
        if !self.fence.is_open() {
            return Err(CallError::fenced());
        }
        tokio::select! {
            biased;
            () = self.fence.closed() => Err(CallError::fenced()),
            answer = self.send(method, path, JSON, (content, body), reply::MAX_OBJECT) => answer,
        }
    }

    /// Waits for a permit. The deadline begins afterwards.
    async fn leave(&self) -> Option<Permit> {
        match &self.share {
            Some(share) => Some(share.permit().await),
            None => None,
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        (content, body): (Option<&str>, Option<&Value>),
        most: usize,
    ) -> Result<T, CallError> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let bytes = if content == Some(APPLY) { yaml_safe(text) } else { text }.into_bytes();
        let mut request = Request::builder().method(method).uri(path).header(::http::header::ACCEPT, accept);
        if let Some(content) = content {
            request = request.header(::http::header::CONTENT_TYPE, content);
        }
        let size = bytes.len();
        if size > MAX_BODY {
            return Err(CallError::too_large(size));
        }
        let request = request.body(bytes).map_err(|e| call_error(&kube::Error::HttpError(e)))?;
        match tokio::time::timeout(self.deadline, self.answer(request, most)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::timeout(self.deadline)),
        }
    }

    /// The reply as JSON. kube's own request drops the headers, and with them `Retry-After`, which is all that an
    /// overloaded server sends.
    async fn answer<T: DeserializeOwned>(
        &self,
        request: Request<Vec<u8>>,
        most: usize,
    ) -> Result<T, CallError> {
        let answer = self.client.send(request.map(Into::into)).await.map_err(|e| call_error(&e))?;
        let code = answer.status();
        let header = answer.headers().get(::http::header::RETRY_AFTER);
        let retry_after = header.and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
        if code.is_success() {
            let body = reply::read(answer.into_body(), most).await?;
            return serde_json::from_slice(&body)
                .map_err(|e| CallError::unreachable(&format!("the answer is no JSON ({:?})", e.classify())));
        }
        // If the message is too long, the code is enough.
        let body = match reply::read(answer.into_body(), reply::MAX_REFUSAL).await {
            Err(error) if reply::is_reply_too_large(&error) => Bytes::new(),
            body => body?,
        };
        let status = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Status::failure(&String::from_utf8_lossy(&body), ""))
            .with_code(code.as_u16());
        let mut error = CallError::from_status(&status);
        if error.class == Class::Retry {
            error.retry_after = retry_after.map(Duration::from_secs).or(error.retry_after).map(bounded);
        }
        Err(error)
    }
}

/// The path of an object or a subresource of it, with a query.
fn path_to(
    (kind, namespace, name): (&ApiKind, Option<&str>, Option<&str>),
    subresource: Option<&str>,
    query: &str,
) -> Result<String, CallError> {
    let mut path = path::path(kind, namespace, name)?;
    if let Some(subresource) = subresource {
        path::push(&mut path, subresource);
    }
    Ok(format!("{path}?{query}"))
}

/// The namespace and the name of an object.
fn named(body: &Value) -> (Option<&str>, &str) {
    let meta = &body["metadata"];
    (meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default())
}

/// The longest wait that a server can ask for.
fn bounded(wait: Duration) -> Duration {
    wait.min(Duration::from_secs(300))
}

/// A JSON text that a YAML parser reads as the same value: it would turn the line breaks of YAML 1.1 beyond ASCII
/// into spaces, and refuse characters that are not printable.
fn yaml_safe(json: String) -> String {
    use std::fmt::Write as _;
    let differs = |c: char| {
        matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    };
    if !json.contains(differs) {
        return json;
    }
    // In JSON these characters occur in strings only.
    json.chars().fold(String::with_capacity(json.len() + 64), |mut out, c| {
        if differs(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
        out
    })
}

/// Percent-encodes a value in a query.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn characters_that_yaml_reads_differently_are_escaped() {
        let body =
            json!({"a\u{2028}": "b\u{85}\u{7f}\u{feff}\u{ffff}", "c": "\u{e9}\u{e000}\u{1F680}\n\"\\u2028"});
        let text = yaml_safe(body.to_string());
        assert_eq!(
            text,
            r#"{"a\u2028":"b\u0085\u007f\ufeff\uffff","c":"é🚀\n\"\\u2028"}"#.replace('é', "\u{e9}\u{e000}")
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), body);
    }
}
