//! Which requests something goes wrong with, and what.

use std::time::Duration;

use http::Response;
use serde_json::json;

use super::body::Reply;
use super::{Call, Verb};

/// What goes wrong.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The server is not asked; this is its answer.
    Answer(Answer),
    /// The connection is refused: the server never sees the request.
    Refused,
    /// The server does what is asked, and the connection breaks before its reply arrives; of a stream, after the
    /// first line.
    Cut,
    /// The request arrives that much later.
    Delay(Duration),
    /// The connection is accepted and nothing ever comes; the server never sees the request.
    Never,
    /// The server does what is asked, and nothing ever comes; of a stream, nothing after the first line.
    Lost,
    /// A read is answered with what it was answered the first time. A stream ends there.
    Stale,
    /// A watch ends after that time, as when the server closes it.
    WatchEnds(Duration),
    /// A watch brings an error after that time: 410, or that the resourceVersion is too large.
    WatchFails(Duration, u16),
    /// The process ends before the request is sent.
    DieBefore,
    /// The process ends when the server has done what was asked, and has not seen the reply.
    DieAfter,
}

/// An answer of the server, made up.
#[derive(Debug, Clone)]
pub struct Answer {
    code: u16,
    retry_after: Option<u32>,
    status: bool,
    reason: &'static str,
    message: String,
}

impl Answer {
    /// With a `Status` as body.
    pub fn status(code: u16, reason: &'static str) -> Self {
        Self { code, retry_after: None, status: true, reason, message: format!("{code}, made up by a test") }
    }

    /// With a text as body, as the filters before the API answer.
    pub fn text(code: u16) -> Self {
        Self { status: false, ..Self::status(code, "") }
    }

    /// With these words.
    pub fn saying(self, message: &str) -> Self {
        Self { message: message.into(), ..self }
    }

    /// With `Retry-After`: the header, and in a `Status` also the field.
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

/// When something goes wrong, and what.
#[derive(Debug, Clone)]
pub struct Rule {
    verbs: &'static [Verb],
    group: Option<String>,
    plural: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    /// Parts of URIs, one of which must be there; none for any URI.
    mentions: &'static [&'static str],
    pub(super) skip: usize,
    pub(super) times: usize,
    pub(super) chance: f64,
    pub(super) fault: Fault,
}

impl Rule {
    /// For every request of one of these verbs, unless it is about Events.
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

    /// An API group, also its discovery.
    pub fn group(self, group: &str) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    pub fn plural(self, plural: &str) -> Self {
        Self { plural: Some(plural.into()), ..self }
    }

    pub fn namespace(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// The name of the object; with a `*` at its end the beginning of it.
    pub fn name(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// `status`, or none with an empty text.
    pub fn subresource(self, subresource: &str) -> Self {
        Self { subresource: Some(subresource.into()), ..self }
    }

    /// The commands that are executed in containers whose URI has one of these parts.
    pub fn commands(self, mentions: &'static [&'static str]) -> Self {
        Self { mentions, ..self.plural("pods").subresource("exec") }
    }

    /// Not the first so many.
    pub fn skip(self, skip: usize) -> Self {
        Self { skip, ..self }
    }

    /// At most so often.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// By chance.
    pub fn chance(self, chance: f64) -> Self {
        Self { chance, ..self }
    }

    /// What strikes lists strikes those that are streams; they are watches, too, once they have begun.
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
