//! What a registry demands in `WWW-Authenticate`, and what it may redirect to.

use std::fmt::Write as _;

use http::Uri;
use http::uri::{Authority, Scheme};

/// How a registry wants to be authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// A name and password with each request.
    Basic,
    /// A token of another server.
    Bearer {
        /// The URL of the server.
        realm: String,
        /// The name of the registry there.
        service: Option<String>,
        /// The access that the request needs.
        scope: Option<String>,
    },
}

impl Challenge {
    /// The first challenge of a header that is supported.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let find = |name: &str| {
            parameters(rest).into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, v)| v)
        };
        Some(Self::Bearer { realm: find("realm")?, service: find("service"), scope: find("scope") })
    }
}

/// The parameters of a challenge: `a="b",c=d`.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', ',']).to_owned();
        let mut value = String::new();
        if let Some(quoted) = after.trim_start().strip_prefix('"') {
            let mut chars = quoted.char_indices();
            let mut end = quoted.len();
            while let Some((at, c)) = chars.next() {
                match c {
                    '"' => {
                        end = at + 1;
                        break;
                    }
                    '\\' => value.extend(chars.next().map(|(_, c)| c)),
                    c => value.push(c),
                }
            }
            rest = &quoted[end..];
        } else {
            let end = after.find(',').unwrap_or(after.len());
            after[..end].trim().clone_into(&mut value);
            rest = &after[end..];
        }
        found.push((name, value));
    }
    found
}

/// Whether two URLs are of one server: credentials for one may be sent to the other.
pub(crate) fn is_same_origin(one: &Uri, other: &Uri) -> bool {
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    one.scheme() == other.scheme() && host(one) == host(other) && port(one) == port(other)
}

fn port(uri: &Uri) -> Option<u16> {
    uri.port_u16().or(if uri.scheme() == Some(&Scheme::HTTPS) { Some(443) } else { Some(80) })
}

/// The target of a `Location` or `Link` in the answer of a URL.
pub(crate) fn resolve(base: &Uri, location: &str) -> Result<Uri, &'static str> {
    if location.starts_with('/') && !location.starts_with("//") {
        let mut parts = base.clone().into_parts();
        parts.path_and_query = Some(location.parse().map_err(|_| "its location is no URL")?);
        return Uri::from_parts(parts).map_err(|_| "its location is no URL");
    }
    let target: Uri = location.parse().map_err(|_| "its location is no URL")?;
    let is_plain = target.scheme() == Some(&Scheme::HTTP);
    if !is_plain && target.scheme() != Some(&Scheme::HTTPS) {
        return Err("its location is no URL of HTTP");
    }
    if is_plain && base.scheme() == Some(&Scheme::HTTPS) {
        return Err("it leads from HTTPS to plain HTTP");
    }
    if target.authority().map(Authority::as_str).is_some_and(|authority| authority.contains('@')) {
        return Err("its location contains credentials");
    }
    Ok(target)
}

/// Escapes a value of a query.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing into a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_parsed() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            Some(Challenge::Bearer { realm: realm.into(), service: own(service), scope: own(scope) })
        };
        for (header, expected) in [
            ("Basic realm=\"x\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://a/token\",service=\"b\",scope=\"repository:c/d:pull,push\"",
                bearer("https://a/token", Some("b"), Some("repository:c/d:pull,push")),
            ),
            ("bearer realm=https://a, service=b", bearer("https://a", Some("b"), None)),
            ("Bearer realm=\"a\\\"b\"", bearer("a\"b", None, None)),
            ("Bearer realm=\"https://a", bearer("https://a", None, None)),
            ("Bearer service=\"b\"", None),
            ("Negotiate x", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }

    #[test]
    fn locations_are_resolved() {
        let base: Uri = "https://a.example:8443/v2/x/blobs/y".parse().unwrap();
        let resolve = |location: &str| resolve(&base, location).map(|uri| uri.to_string());
        assert_eq!(resolve("/z?a=b").as_deref(), Ok("https://a.example:8443/z?a=b"));
        assert_eq!(resolve("https://b.example/z").as_deref(), Ok("https://b.example/z"));
        for location in [
            "http://a.example:8443/z",
            "//b.example/z",
            "z",
            "file:///etc/passwd",
            "https://u:p@b/z",
            "\u{7f}",
        ] {
            assert!(resolve(location).is_err(), "{location}");
        }
    }

    #[test]
    fn origins_are_scheme_host_and_port() {
        let same = |a: &str, b: &str| is_same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://a/x", "https://A:443/y") && same("http://a:80/", "http://a/"));
        assert!(!same("https://a/", "http://a/") && !same("https://a/", "https://a:8443/"));
        assert!(!same("https://a/", "https://b.a/"));
        assert_eq!(escape("repository:a/b:pull,push"), "repository%3Aa%2Fb%3Apull%2Cpush");
    }
}
