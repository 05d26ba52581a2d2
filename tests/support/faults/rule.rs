//! Rules: which requests a fault strikes, and which fault.

use std::time::Duration;

use http::Response;
use serde_json::json;

use super::body::Reply;
use super::{Call, Life, Verb};

/// A fault that strikes a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The server is not asked; the manager gets this answer.
    Answer(Answer),
    /// The connection is refused: the server never sees the request.
    Refused,
    /// The server carries out the request, and the connection breaks before its reply arrives, or after the
    /// first line of a stream.
    Cut,
    /// The request reaches the server this much later.
    Delay(Duration),
    /// The request reaches the server once this is over.
    Held(Life),
    /// The connection is accepted, and no reply ever comes; the server never sees the request.
    Never,
    /// The server carries out the request, and no reply ever comes; a stream is silent after its first line.
    Lost,
    /// A read gets the answer that the first such read got. A stream ends after it.
    Stale,
    /// A watch ends after this time, as when the server closes it.
    WatchEnds(Duration),
    /// A watch reports an error after this time: 410, or that the resourceVersion is too large.
    WatchFails(Duration, u16),
    /// The process ends before the request is sent.
    DieBefore,
    /// The process ends when the server has carried out the request, before it sees the reply.
    DieAfter,
}

/// An answer that a test makes up instead of the server.
#[derive(Debug, Clone)]
pub struct Answer {
    code: u16,
    retry_after: Option<u32>,
    status: bool,
    reason: &'static str,
    message: String,
}

impl Answer {
    /// An answer with a `Status` as body.
    pub fn status(code: u16, reason: &'static str) -> Self {
        Self { code, retry_after: None, status: true, reason, message: format!("{code}, made up by a test") }
    }

    /// An answer with a text as body, as from the filters before the API.
    pub fn text(code: u16) -> Self {
        Self { status: false, ..Self::status(code, "") }
    }

    /// Sets the message.
    pub fn saying(self, message: &str) -> Self {
        Self { message: message.into(), ..self }
    }

    /// Adds `Retry-After`: the header, and in a `Status` also the field.
    pub fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    pub(super) fn into_response(self) -> Response<Reply> {
        let body = if self.status {
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code,
                "reason": self.reason, "message": self.message,
                "details": {"retryAfterSeconds": self.retry_after.unwrap_or(0)}})
            .to_string()
        } else {
            self.message
        };
        let mut response = Response::builder().status(self.code);
        if let Some(seconds) = self.retry_after {
            response = response.header("retry-after", seconds);
        }
        response.body(Reply::whole(body)).expect("a response")
    }
}

/// A fault, and the requests that it strikes.
#[derive(Debug, Clone)]
pub struct Rule {
    verbs: &'static [Verb],
    group: Option<String>,
    plural: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    /// Parts of URIs, one of which the URI must contain; empty for any URI.
    mentions: &'static [&'static str],
    pub(super) skip: usize,
    pub(super) times: usize,
    pub(super) chance: f64,
    pub(super) fault: Fault,
}

impl Rule {
    /// A rule for every request with one of these verbs, except about Events.
    pub fn on(verbs: &'static [Verb], fault: Fault) -> Self {
        Self {
            verbs,
            group: None,
            plural: None,
            namespace: None,
            name: None,
            subresource: None,
            mentions: &[],
            skip: 0,
            times: usize::MAX,
            chance: 1.0,
            fault,
        }
    }

    /// Limits the rule to an API group, including its discovery.
    pub fn group(self, group: &str) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    pub fn plural(self, plural: &str) -> Self {
        Self { plural: Some(plural.into()), ..self }
    }

    pub fn namespace(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// Limits the rule to objects with this name, or with a name that begins with what precedes a final `*`.
    pub fn name(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Limits the rule to a subresource such as `status`; an empty text means requests without one.
    pub fn subresource(self, subresource: &str) -> Self {
        Self { subresource: Some(subresource.into()), ..self }
    }

    /// Limits the rule to commands that are executed in containers and whose URI contains one of these parts.
    pub fn commands(self, mentions: &'static [&'static str]) -> Self {
        Self { mentions, ..self.plural("pods").subresource("exec") }
    }

    /// Spares the first `skip` requests.
    pub fn skip(self, skip: usize) -> Self {
        Self { skip, ..self }
    }

    /// Lets the rule strike at most this many times.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Lets the rule strike with this probability.
    pub fn chance(self, chance: f64) -> Self {
        Self { chance, ..self }
    }

    /// A stream counts as a list, and for faults of running watches as a watch.
    fn strikes(&self, verb: Verb) -> bool {
        let begun = matches!(self.fault, Fault::WatchEnds(_) | Fault::WatchFails(..));
        let also = if begun { Verb::Watch } else { Verb::List };
        self.verbs.contains(&verb) || verb == Verb::Stream && self.verbs.contains(&also)
    }

    pub(super) fn matches(&self, call: &Call) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|w| w == found);
        let begins = |wanted: &str| wanted.strip_suffix('*').is_some_and(|w| call.name.starts_with(w));
        self.strikes(call.verb)
            && (self.plural.is_some() || call.plural != "events")
            && is(&self.group, &call.group)
            && is(&self.plural, &call.plural)
            && is(&self.namespace, &call.namespace)
            && (is(&self.name, &call.name) || self.name.as_deref().is_some_and(begins))
            && is(&self.subresource, &call.subresource)
            && (self.mentions.is_empty() || self.mentions.iter().any(|part| call.uri.contains(part)))
    }
}
