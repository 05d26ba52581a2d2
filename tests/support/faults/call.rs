//! What a request asks for, derived from its method and path.

use http::{Method, Request};
use kube::client::Body;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    List,
    /// A list as a stream: a watch that begins with all existing objects.
    Stream,
    Watch,
    Create,
    Apply,
    Patch,
    Delete,
    /// A create, apply, patch or delete as a dry run.
    DryRun,
    /// Discovery of kinds, or of the version.
    Discover,
}

/// All verbs that change something.
pub const WRITES: &[Verb] = &[Verb::Create, Verb::Apply, Verb::Patch, Verb::Delete];

/// All verbs.
pub const ALL: &[Verb] = &[
    Verb::Get,
    Verb::List,
    Verb::Stream,
    Verb::Watch,
    Verb::Create,
    Verb::Apply,
    Verb::Patch,
    Verb::Delete,
    Verb::DryRun,
    Verb::Discover,
];

impl Verb {
    pub fn writes(self) -> bool {
        WRITES.contains(&self)
    }

    pub fn reads(self) -> bool {
        matches!(self, Self::Get) || self.lists()
    }

    /// Whether all objects of a kind are requested, as a list or as a stream.
    pub fn lists(self) -> bool {
        matches!(self, Self::List | Self::Stream)
    }
}

/// A request of a manager to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub verb: Verb,
    pub group: String,
    pub plural: String,
    pub namespace: String,
    pub name: String,
    pub subresource: String,
    pub uri: String,
}

impl Call {
    pub fn of(request: &Request<Body>) -> Self {
        let content = request.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        Self::parse(request.method(), &request.uri().to_string(), content)
    }

    pub fn parse(method: &Method, uri: &str, content: &str) -> Self {
        let parsed: http::Uri = uri.parse().expect("a URI");
        let query = parsed.query().unwrap_or_default();
        let mut parts = parsed.path().split('/').filter(|part| !part.is_empty());
        let group = match parts.next() {
            // `/apis` alone is the discovery of all groups but the core group.
            Some("apis") => parts.next().unwrap_or("*"),
            _ => "",
        };
        let mut rest: Vec<&str> = parts.skip(1).collect();
        let mut namespace = "";
        // `namespaces/x` alone is the path of the namespace itself.
        if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            namespace = rest[1];
            rest.drain(..2);
        }
        let at = |i: usize| rest.get(i).copied().unwrap_or_default().to_owned();
        let verb = match *method {
            _ if rest.is_empty() => Verb::Discover,
            Method::GET if query.contains("sendInitialEvents=true") => Verb::Stream,
            Method::GET if query.contains("watch=true") => Verb::Watch,
            Method::GET if rest.len() == 1 => Verb::List,
            Method::GET => Verb::Get,
            _ if query.contains("dryRun=All") => Verb::DryRun,
            Method::POST => Verb::Create,
            Method::DELETE => Verb::Delete,
            _ if content.starts_with("application/apply-patch") => Verb::Apply,
            _ => Verb::Patch,
        };
        Self {
            verb,
            group: group.into(),
            plural: at(0),
            namespace: namespace.into(),
            name: at(1),
            subresource: at(2),
            uri: uri.into(),
        }
    }

    pub(super) fn lists_crds(&self) -> bool {
        self.verb == Verb::List && self.plural == "customresourcedefinitions"
    }
}

#[test]
fn method_and_path_give_the_verb() {
    let call = |method: Method, uri: &str, content: &str| {
        let call = Call::parse(&method, uri, content);
        (call.verb, call.plural, call.namespace, call.name, call.subresource)
    };
    let is = |verb: Verb, plural: &str, namespace: &str, name: &str, sub: &str| {
        (verb, plural.to_owned(), namespace.to_owned(), name.to_owned(), sub.to_owned())
    };
    let apply = "application/apply-patch+yaml";
    assert_eq!(
        call(Method::PATCH, "/api/v1/namespaces/n/secrets/s?force=true", apply),
        is(Verb::Apply, "secrets", "n", "s", "")
    );
    assert_eq!(
        call(Method::PATCH, "/apis/a.b/v1/namespaces/n/things/s/status", "application/merge-patch+json"),
        is(Verb::Patch, "things", "n", "s", "status")
    );
    assert_eq!(
        call(Method::GET, "/api/v1/secrets?&watch=true&resourceVersion=5", ""),
        is(Verb::Watch, "secrets", "", "", "")
    );
    assert_eq!(
        call(Method::GET, "/api/v1/secrets?&watch=true&sendInitialEvents=true&resourceVersion=", ""),
        is(Verb::Stream, "secrets", "", "", "")
    );
    assert_eq!(call(Method::GET, "/api/v1/secrets?limit=500", ""), is(Verb::List, "secrets", "", "", ""));
    assert_eq!(call(Method::PATCH, "/api/v1/namespaces/n/secrets/s?dryRun=All", apply).0, Verb::DryRun);
    assert_eq!(call(Method::GET, "/api/v1/namespaces/n", ""), is(Verb::Get, "namespaces", "", "n", ""));
    for uri in ["/version", "/apis/apps/v1", "/api/v1"] {
        assert_eq!(call(Method::GET, uri, "").0, Verb::Discover, "{uri}");
    }
}
