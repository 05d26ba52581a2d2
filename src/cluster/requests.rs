//! Counts of requests to the API server, by verb, resource and result.

use std::time::Duration;

use http::{Method, Request};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The counts. Clones share them.
#[derive(Debug, Clone)]
pub struct Requests {
    total: Family<Ended, Counter>,
    seconds: Family<Verb, Histogram, fn() -> Histogram>,
}

/// The labels of a request that has ended. Names and namespaces are left out, so the number of label sets is
/// limited by the number of kinds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    verb: &'static str,
    resource: String,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
}

/// A request in flight.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestInfo {
    verb: &'static str,
    resource: String,
}

impl RequestInfo {
    /// Whether the reply is a stream without end.
    pub(super) fn is_watch(&self) -> bool {
        self.verb == "watch"
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            total: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16))),
        }
    }
}

impl Requests {
    /// Registers the counts.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "operetta_api_requests",
            "Requests to the API server; code 0 if there was no answer",
            self.total.clone(),
        );
        registry.register(
            "operetta_api_request_duration_seconds",
            "Time until the head of the answer; of a watch, until it began",
            self.seconds.clone(),
        );
    }

    #[expect(clippy::unused_self, reason = "the other half of `end`")]
    pub(super) fn begin<B>(&self, request: &Request<B>) -> RequestInfo {
        let apply = request
            .headers()
            .get(http::header::CONTENT_TYPE)
            .is_some_and(|content| content.as_bytes().starts_with(b"application/apply-patch"));
        let uri = request.uri();
        asked(request.method(), uri.path(), uri.query().unwrap_or_default(), apply)
    }

    /// Counts a request that was answered.
    #[cfg(test)]
    pub(crate) fn record(&self, request: &Request<()>) {
        self.end(self.begin(request), 200, Duration::ZERO);
    }

    pub(super) fn end(&self, asked: RequestInfo, code: u16, took: Duration) {
        let RequestInfo { verb, resource } = asked;
        self.seconds.get_or_create(&Verb { verb }).observe(took.as_secs_f64());
        self.total.get_or_create(&Ended { verb, resource, code: code.to_string() }).inc();
    }
}

/// What a request is for: `/apis/apps/v1/namespaces/a/deployments/b/status` is `deployments.apps/status`.
fn asked(method: &Method, path: &str, query: &str, apply: bool) -> RequestInfo {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let group = match parts.next() {
        Some("api") => "",
        Some("apis") => parts.next().unwrap_or_default(),
        _ => return RequestInfo { verb: verb(method, apply, true, false), resource: "other".into() },
    };
    let mut rest: Vec<&str> = parts.skip(1).collect();
    if rest.len() >= 3 && rest[0] == "namespaces" && !matches!(rest[2], "status" | "finalize") {
        rest.drain(..2);
    }
    let (resource, named) = match rest[..] {
        [] => return RequestInfo { verb: verb(method, apply, true, false), resource: "discovery".into() },
        [plural] => (plural.to_owned(), false),
        [plural, _] => (plural.to_owned(), true),
        [plural, _, sub, ..] => (format!("{plural}/{sub}"), true),
    };
    let resource = match (group, resource.split_once('/')) {
        ("", _) => resource,
        (group, Some((plural, sub))) => format!("{plural}.{group}/{sub}"),
        (group, None) => format!("{resource}.{group}"),
    };
    let watch = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"));
    RequestInfo { verb: verb(method, apply, named, watch), resource }
}

fn verb(method: &Method, apply: bool, named: bool, watch: bool) -> &'static str {
    match *method {
        Method::GET if watch => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH if apply => "apply",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_and_the_resource_of_a_request_are_recognized() {
        for (method, path, query, verb, resource) in [
            (Method::GET, "/api/v1/pods", "watch=true&x=1", "watch", "pods"),
            (Method::GET, "/api/v1/namespaces/n/pods", "", "list", "pods"),
            (Method::GET, "/api/v1/namespaces/n", "", "get", "namespaces"),
            (Method::PATCH, "/apis/apps/v1/namespaces/n/deployments/d", "", "patch", "deployments.apps"),
            (Method::PATCH, "/apis/a.b/v1/namespaces/n/things/t/status", "", "patch", "things.a.b/status"),
            (Method::GET, "/apis/apps/v1", "", "get", "discovery"),
            (Method::GET, "/version", "", "get", "other"),
            (Method::DELETE, "/apis/a.b/v1/things/t", "", "delete", "things.a.b"),
        ] {
            let expected = RequestInfo { verb, resource: resource.into() };
            assert_eq!(asked(&method, path, query, false), expected, "{path}");
        }
        assert_eq!(asked(&Method::PATCH, "/api/v1/namespaces/n/secrets/s", "", true).verb, "apply");
    }
}
