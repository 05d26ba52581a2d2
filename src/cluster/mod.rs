//! Talking to a Kubernetes API server: every call has a deadline, and every failure a [`Class`].
//!
//! Objects go and come as plain JSON: a typed round trip would add empty defaults, which server-side
//! apply would then own.

mod apis;
mod clients;
mod error;
mod fence;
mod kinds;
mod lease;
mod list;
mod path;
mod refusal;
mod reply;
mod requests;
mod served;
mod shares;
mod streams;
mod transport;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use kube::core::Status;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use apis::Apis;
pub use clients::Clients;
pub use error::{CallError, Cause, Class, MAX_BODY, scattered};
pub use fence::Fence;
pub use kinds::{ApiKind, Kinds};
pub use lease::{Election, Leadership, Settings as LeaseSettings};
pub use list::Query;
pub use reply::{MAX_EVENT, MAX_OBJECT, MAX_PAGE, MAX_REPLY};
pub use requests::Requests;
pub use served::Served;
pub use shares::{Permit, Share, Shares};
pub use streams::{Streams, refuses_streams};

/// How long one call may take. Lists of large collections are paged, so this is ample.
const DEADLINE: Duration = Duration::from_secs(30);

/// What answers are asked for as.
const JSON: &str = "application/json";

/// The content type of server-side apply. The server reads it with its YAML reader, JSON or not.
const APPLY: &str = "application/apply-patch+yaml";

/// A connection to one API server, with one identity.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    fence: Fence,
    share: Option<Share>,
    deadline: Duration,
    streams: Streams,
}

/// What goes with a connection.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// What every write passes.
    pub fence: Fence,
    /// Where requests are counted.
    pub requests: Requests,
    /// Told to the server with each request, so that audit logs tell processes apart.
    pub identity: String,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { fence: Fence::open(), requests: Requests::default(), identity: String::new() }
    }
}

/// Why no connection could be configured.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No kubeconfig and not in a pod, or one that cannot be read.
    #[error(
        "no Kubernetes API server is configured: {0}; set KUBECONFIG, or try `operetta dev`, which brings its own"
    )]
    Config(String),
    /// The configuration was read, but no client could be made of it.
    #[error("the kubeconfig cannot be used: {0}")]
    Client(String),
}

/// How a deletion goes on to what the object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The garbage collector deletes dependents afterwards.
    Background,
    /// The object stays until its dependents are gone.
    Foreground,
}

/// What is known of an apply before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// Nothing: the server refuses fields that it does not know.
    None,
    /// It is the dry run.
    This,
    /// One of the same shape was found to have no unknown fields. The server need not look for them, which saves it
    /// reading the text twice.
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
        let agent = http::HeaderValue::from_str(&agent).map_err(|e| ConnectError::Client(e.to_string()))?;
        config.headers.push((http::header::USER_AGENT, agent));
        let client = transport::client(&config, options.fence.clone(), &options.requests)?;
        Ok(Self::new(client).fenced(options.fence.clone()))
    }

    /// Over a client that exists, such as a simulated one.
    pub fn new(client: kube::Client) -> Self {
        Self { client, fence: Fence::open(), share: None, deadline: DEADLINE, streams: Streams::default() }
    }

    /// The same, but no write passes a closed fence.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self { fence, ..self.clone() }
    }

    /// The same, but each call waits for leave of a share.
    #[must_use]
    pub(super) fn within(&self, share: Share) -> Self {
        Self { share: Some(share), ..self.clone() }
    }

    /// The same with another deadline for each call than the usual 30 s, such as in tests of servers that
    /// never answer.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// How long one call may take.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Whether lists come as streams.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// The client of the library, for watches and Events.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Whether a controller says in the status of a kind's objects how far they are; taken to, if that cannot be told
    /// now.
    pub async fn reports(&self, served: &Served) -> bool {
        served.has_status && kinds::reports(&self.client, &served.kind).await.unwrap_or(true)
    }

    /// The server's version, `1.36`.
    pub async fn version(&self) -> Result<String, CallError> {
        let info = self.call(Method::GET, "/version", None, None).await?;
        let part = |key: &str| info[key].as_str().unwrap_or_default().trim_end_matches('+').to_owned();
        Ok(format!("{}.{}", part("major"), part("minor")))
    }

    /// The library's way to a collection, for watches: of one namespace, or of all.
    ///
    /// # Errors
    /// No namespace can have that name.
    pub fn api<K>(&self, kind: &ApiKind, namespace: Option<&str>) -> Result<kube::Api<K>, CallError>
    where
        K: kube::Resource<DynamicType = kube::core::ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        kind.path(namespace, None)?;
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
        let path = kind.path(namespace, Some(name))?;
        let reply = match self.call(Method::GET, &path, None, None).await {
            Ok(object) => object,
            Err(e) if e.class == Class::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        reply::check(kind, namespace, Some(name), &reply)?;
        Ok(Some(reply))
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
        reply.map_err(|error| error.about(body))
    }

    /// Creates an object; a conflict if there is one of that name.
    pub async fn create(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        body: &Value,
        manager: &str,
    ) -> Result<Value, CallError> {
        self.create_checked(kind, namespace, body, manager, false).await
    }

    /// The same, as a dry run if asked, which refuses unknown fields.
    pub async fn create_checked(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        body: &Value,
        manager: &str,
        dry_run: bool,
    ) -> Result<Value, CallError> {
        let dry = if dry_run { "&dryRun=All&fieldValidation=Strict" } else { "" };
        let path = format!("{}?fieldManager={}{dry}", kind.path(namespace, None)?, encode(manager));
        let reply = self.call(Method::POST, &path, Some(JSON), Some(body)).await;
        let reply = reply.map_err(|error| error.about(body))?;
        reply::check(kind, namespace, body["metadata"]["name"].as_str(), &reply)?;
        Ok(reply)
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

    /// A JSON patch (RFC 6902) of an object.
    pub async fn json_patch(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
        patch: &Value,
        manager: &str,
    ) -> Result<Value, CallError> {
        let query = format!("fieldManager={}", encode(manager));
        let content = ("application/json-patch+json", patch);
        self.write(Method::PATCH, (kind, namespace, Some(name)), None, &query, content).await
    }

    /// Deletes exactly the object of that uid and resourceVersion. What comes back is the object where
    /// it lives on for its finalizers, or a `Status`.
    pub async fn delete(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
        (uid, resource_version): (&str, &str),
        propagation: Propagation,
    ) -> Result<Value, CallError> {
        let policy = match propagation {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        };
        let body = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy,
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        });
        let path = kind.path(namespace, Some(name))?;
        let reply = self.call(Method::DELETE, &path, Some(JSON), Some(&body)).await?;
        reply::check_deletion(kind, namespace, name, &reply)?;
        Ok(reply)
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
        let mut path = kind.path(namespace, name)?;
        if let Some(subresource) = subresource {
            path::push(&mut path, subresource);
        }
        let reply = self.call(method, &format!("{path}?{query}"), Some(content), Some(body)).await?;
        reply::check(kind, namespace, name, &reply)?;
        Ok(reply)
    }

    /// One call: with leave of the share, and through the fence if it writes.
    async fn call(
        &self,
        method: Method,
        path: &str,
        content: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value, CallError> {
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

    /// Leave of the share; the deadline counts from when it is given.
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
        let mut request = Request::builder().method(method).uri(path).header(http::header::ACCEPT, accept);
        if let Some(content) = content {
            request = request.header(http::header::CONTENT_TYPE, content);
        }
        let size = bytes.len();
        if size > MAX_BODY {
            return Err(CallError::too_large(size));
        }
        let request = request.body(bytes).map_err(|e| CallError::from_kube(&kube::Error::HttpError(e)))?;
        match tokio::time::timeout(self.deadline, self.answer(request, most)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::timeout(self.deadline)),
        }
    }

    /// The answer as JSON. The library's own way forgets the headers, and with them `Retry-After`: servers
    /// that shed load say no more than that.
    async fn answer<T: DeserializeOwned>(
        &self,
        request: Request<Vec<u8>>,
        most: usize,
    ) -> Result<T, CallError> {
        let answer = self.client.send(request.map(Into::into)).await.map_err(|e| CallError::from_kube(&e))?;
        let code = answer.status();
        let header = answer.headers().get(http::header::RETRY_AFTER);
        let retry_after = header.and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
        if code.is_success() {
            let body = reply::read(answer.into_body(), most).await?;
            return serde_json::from_slice(&body)
                .map_err(|e| CallError::unreachable(&format!("the answer is no JSON ({:?})", e.classify())));
        }
        // The code says enough where the words are too many.
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

/// The namespace and the name of the object that a body is.
fn named(body: &Value) -> (Option<&str>, &str) {
    let meta = &body["metadata"];
    (meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default())
}

/// What a server may make us wait at most.
fn bounded(wait: Duration) -> Duration {
    wait.min(Duration::from_secs(300))
}

/// A JSON text that a YAML reader takes for the same: the line breaks that YAML 1.1 knows beyond ASCII would
/// silently become spaces, and characters that it does not print be refused.
fn yaml_safe(json: String) -> String {
    use std::fmt::Write as _;
    let differs = |c: char| {
        matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    };
    if !json.contains(differs) {
        return json;
    }
    // None of them stands outside a string.
    json.chars().fold(String::with_capacity(json.len() + 64), |mut out, c| {
        if differs(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
        out
    })
}

/// Percent-encodes what stands in a query.
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

    #[test]
    fn what_yaml_reads_differently_is_escaped() {
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
