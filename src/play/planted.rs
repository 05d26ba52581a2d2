//! Bugs of the engine for tests of exploration: requests that lack what makes it safe to send them late or twice.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request};
use serde_json::Value;

/// What is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Deletions name neither the uid nor the resourceVersion of their object.
    Deletion,
    /// An apply names neither the uid of an object nor that there is none.
    Apply,
    /// Each attempt at a call of a package has an Idempotency-Key of its own.
    Key,
}

impl Bug {
    /// The request of an engine with this bug.
    pub(super) fn alter(self, parts: Parts, body: Bytes) -> (Parts, Bytes) {
        let Ok(mut value) = serde_json::from_slice::<Value>(&body) else { return (parts, body) };
        let is_apply = parts
            .headers
            .get("content-type")
            .is_some_and(|value| value.as_bytes().starts_with(b"application/apply"));
        match self {
            Self::Deletion if parts.method == Method::DELETE => {
                value.as_object_mut().map(|options| options.remove("preconditions"));
            }
            Self::Apply if is_apply => {
                for field in ["uid", "resourceVersion"] {
                    value["metadata"].as_object_mut().map(|meta| meta.remove(field));
                }
            }
            _ => return (parts, body),
        }
        let mut parts = parts;
        parts.headers.remove("content-length");
        (parts, value.to_string().into())
    }

    /// The call of an engine with this bug; `number` is another one for each.
    pub(super) fn alter_call(self, mut request: Request<Bytes>, number: u64) -> Request<Bytes> {
        if let (Self::Key, Some(key)) = (self, request.headers_mut().get_mut("idempotency-key")) {
            *key = HeaderValue::from(number);
        }
        request
    }
}
