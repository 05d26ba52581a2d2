//! Replies of the API server: their size limits, and whether they are about the requested object.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use serde_json::{Value, json};
use tower::BoxError;

use crate::api::{ApiKind, CallError, Class};

/// The largest reply about one object, in bytes. etcd accepts 1.5 MiB for an object by default.
pub const MAX_OBJECT: usize = 16 << 20;
/// The largest page of a list. A larger page is requested again with fewer objects.
pub const MAX_PAGE: usize = 32 << 20;
/// The largest reply of any kind, such as a list that cannot come in pages.
pub const MAX_REPLY: usize = 256 << 20;
/// The largest event of a watch.
pub const MAX_EVENT: usize = 16 << 20;
/// The largest error reply.
pub(super) const MAX_REFUSAL: usize = 1 << 20;

/// Reads a reply to its end.
pub(super) async fn read<B>(body: B, most: usize) -> Result<Bytes, CallError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    match Limited::new(body, most).collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() || is_too_large(&*error) => Err(too_large(most)),
        Err(error) => Err(CallError::unreachable(&super::error::chain(&*error))),
    }
}

fn too_large(most: usize) -> CallError {
    let message = format!("the reply of the API server is larger than {} MiB and was not read", most >> 20);
    CallError::new(Class::Permanent, 0, TOO_LARGE, message)
}

const TOO_LARGE: &str = "ReplyTooLarge";

/// Whether an error says that a reply was too large.
pub(super) fn is_reply_too_large(error: &CallError) -> bool {
    error.reason == TOO_LARGE
}

fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<TooLarge>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// The identity of the object of a reply. The rest is not kept.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Identity {
    api_version: String,
    kind: String,
    metadata: Name,
}

#[derive(Deserialize)]
struct Name {
    name: String,
    namespace: Option<String>,
}

impl Identity {
    /// The identity as an object without content.
    pub(super) fn to_json(&self) -> Value {
        let Name { name, namespace } = &self.metadata;
        json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": {"name": name, "namespace": namespace}})
    }
}

/// Checks that a reply is the object of that kind, namespace and name. Nothing of another reply is used or shown.
///
/// # Errors It is about another object.
pub(super) fn check(
    kind: &ApiKind,
    namespace: Option<&str>,
    name: Option<&str>,
    reply: &Value,
) -> Result<(), CallError> {
    let meta = &reply["metadata"];
    let is = |value: &Value, expected: Option<&str>| expected.is_none_or(|expected| value == expected);
    let wrong = if reply["kind"] != kind.kind.as_str() {
        "kind"
    } else if reply["apiVersion"] != kind.api_version().as_str() {
        "apiVersion"
    } else if !is(&meta["name"], name) {
        "name"
    } else if !is(&meta["namespace"], namespace.filter(|_| kind.namespaced)) {
        "namespace"
    } else {
        return Ok(());
    };
    Err(unexpected(&format!("the {} of another {wrong}", kind.kind)))
}

/// Whether the reply to a deletion is about that object: the object itself, or a Status.
pub(super) fn check_deletion(
    kind: &ApiKind,
    namespace: Option<&str>,
    name: &str,
    reply: &Value,
) -> Result<(), CallError> {
    if reply["kind"] != "Status" || reply["apiVersion"] != "v1" {
        return check(kind, namespace, Some(name), reply);
    }
    let told = &reply["details"]["name"];
    if told.is_null() || told == name { Ok(()) } else { Err(unexpected("a Status of another name")) }
}

fn unexpected(what: &str) -> CallError {
    let message = format!("the API server has answered with another object than asked for ({what})");
    CallError::new(Class::Retry, 0, "UnexpectedReply", message)
}

/// A reply body that ends with an error when it grows too large: for a watch an event counts, otherwise the whole.
pub(super) struct Bounded<B> {
    body: B,
    is_watch: bool,
    /// Bytes of the event, or of the reply, so far.
    size: usize,
    most: usize,
}

/// The reply was larger than allowed.
#[derive(Debug, thiserror::Error)]
#[error("the reply of the API server is larger than {0} MiB and was not read")]
struct TooLarge(usize);

impl<B> Bounded<B> {
    /// The reply with its body bounded.
    pub(super) fn wrap(reply: Response<B>, is_watch: bool) -> Response<Self> {
        let most = if is_watch { MAX_EVENT } else { MAX_REPLY };
        reply.map(|body| Self { body, is_watch, size: 0, most })
    }

    /// Counts received bytes.
    fn count(&mut self, data: &[u8]) -> Result<(), TooLarge> {
        let before = self.size;
        self.size = match data.iter().rposition(|byte| self.is_watch && *byte == b'\n') {
            Some(last) => data.len() - last - 1,
            None => before.saturating_add(data.len()),
        };
        // An event that ends in these data may have been too large as well.
        let first = data.iter().position(|byte| self.is_watch && *byte == b'\n').unwrap_or(data.len());
        if before.saturating_add(first) > self.most || self.size > self.most {
            return Err(TooLarge(self.most >> 20));
        }
        Ok(())
    }
}

impl<B> Body for Bounded<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        if let Some(data) = frame.data_ref()
            && let Err(error) = self.count(data)
        {
            return Poll::Ready(Some(Err(error.into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use serde_json::json;

    use super::*;

    fn map() -> ApiKind {
        ApiKind {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            namespaced: true,
        }
    }

    #[test]
    fn a_reply_is_about_the_object_that_was_asked_for() {
        let right =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}});
        assert!(check(&map(), Some("n"), Some("a"), &right).is_ok());
        assert!(check(&map(), Some("n"), None, &right).is_ok(), "the server has made up the name");
        for (path, value) in [
            ("/kind", "Secret"),
            ("/apiVersion", "v2"),
            ("/metadata/name", "b"),
            ("/metadata/namespace", "m"),
        ] {
            let mut wrong = right.clone();
            *wrong.pointer_mut(path).unwrap() = value.into();
            wrong["data"] = json!({"token": "s3cret"});
            let error = check(&map(), Some("n"), Some("a"), &wrong).unwrap_err();
            assert_eq!(error.class, Class::Retry);
            assert!(!format!("{error} {error:?} {}", error.whole()).contains("s3cret"), "{error}");
        }
        for wrong in [json!({}), json!("x"), json!([right]), json!({"kind": "Status", "apiVersion": "v1"})] {
            assert!(check(&map(), Some("n"), Some("a"), &wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_deletion_is_answered_with_the_object_or_a_status() {
        let is_taken = |reply: Value| check_deletion(&map(), Some("n"), "a", &reply).is_ok();
        let status = |details: Value| json!({"kind": "Status", "apiVersion": "v1", "details": details});
        assert!(is_taken(status(json!({"name": "a", "kind": "configmaps"}))));
        assert!(is_taken(status(Value::Null)));
        assert!(!is_taken(status(json!({"name": "b"}))));
        let object = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}});
        assert!(is_taken(object("a")) && !is_taken(object("b")));
    }

    #[tokio::test]
    async fn a_reply_is_read_up_to_its_limit() {
        let of = async |length: usize| read(Full::new(Bytes::from(vec![b'x'; length])), 1 << 20).await;
        assert_eq!(of(1 << 20).await.unwrap().len(), 1 << 20);
        let error = of((1 << 20) + 1).await.unwrap_err();
        assert!(is_reply_too_large(&error) && error.class == Class::Permanent);
    }

    #[test]
    fn a_watch_is_bounded_by_its_events_and_not_by_its_length() {
        let mut body = Bounded { body: (), is_watch: true, size: 0, most: 10 };
        for _ in 0..100 {
            body.count(b"12345678\n12").unwrap();
            body.count(b"345678\n").unwrap();
        }
        body.count(b"12345678901").unwrap_err();
        let mut body = Bounded { body: (), is_watch: true, size: 0, most: 10 };
        body.count(b"1234567890").unwrap();
        body.count(b"1\n1").unwrap_err();
        let mut body = Bounded { body: (), is_watch: false, size: 0, most: 10 };
        body.count(b"12345\n").unwrap();
        body.count(b"12345\n").unwrap_err();
    }
}
