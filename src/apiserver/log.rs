//! A log of answered requests, for tests that count them.

use bytes::Bytes;
use http::Request;
use http::header::{HeaderName, USER_AGENT};
use jiff::Timestamp;
use operetta_embedded::User;

use super::reply::header;

pub(super) type Log = Box<dyn Fn(&Answered) + Send + Sync>;

/// A request that was answered.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The method.
    pub method: String,
    /// The path and query.
    pub uri: String,
    /// The user who sent it.
    pub user: String,
    /// The user as whom it was to be carried out; empty without impersonation.
    pub acting_as: String,
    /// The header `User-Agent`.
    pub user_agent: String,
    /// The body as it was sent; empty if it was not read.
    pub body: Bytes,
    /// The status code.
    pub code: u16,
    /// When it arrived.
    pub received: Timestamp,
}

impl Answered {
    /// A request that has arrived.
    pub(super) fn of<B>(request: &Request<B>, user: &User, received: Timestamp) -> Self {
        let text = |name: HeaderName| header(request.headers(), &name).to_owned();
        let uri = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        Self {
            method: request.method().to_string(),
            uri,
            user: user.name.clone(),
            acting_as: text(HeaderName::from_static("impersonate-user")),
            user_agent: text(USER_AGENT),
            body: Bytes::new(),
            code: 0,
            received,
        }
    }
}
