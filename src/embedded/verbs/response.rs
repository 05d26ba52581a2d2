//! Responses to requests.

use serde_json::Value;

use super::watch::Watch;
use crate::model::{Failure, printed};
use crate::state::Stored;

/// The body of a response.
#[derive(Debug)]
pub enum Body {
    /// The whole text, which is JSON unless the content type says otherwise.
    Text(Box<str>),
    /// The whole body, which is no text.
    Bytes(Box<[u8]>),
    /// A stream: [`crate::Api::events`] returns its lines.
    Watch(Box<Watch>),
}

/// A response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub code: u16,
    /// The header `Content-Type`.
    pub content_type: &'static str,
    /// The texts of the headers `Warning`.
    pub warnings: Vec<String>,
    /// The body.
    pub body: Body,
}

impl Response {
    /// An object as the response to a write.
    pub(crate) fn of(code: u16, object: Stored) -> Self {
        match object {
            Stored::Object(object) => Self::text(code, object.json.clone()),
            Stored::Parsed(parsed) => Self::json(code, &parsed.whole()),
        }
    }

    pub(crate) fn json(code: u16, value: &Value) -> Self {
        Self::text(code, printed(value).into())
    }

    /// The response to a request that was refused.
    pub(crate) fn refusal(failure: &Failure) -> Self {
        Self::json(failure.code, &failure.to_json())
    }

    pub(crate) fn plain(code: u16, text: &str) -> Self {
        Self { content_type: "text/plain; charset=utf-8", ..Self::text(code, text.into()) }
    }

    pub(crate) fn text(code: u16, text: Box<str>) -> Self {
        Self { code, content_type: "application/json", warnings: Vec::new(), body: Body::Text(text) }
    }
}
