//! References of packages: `oci://HOST[:PORT]/PATH[:TAG][@sha256:...]`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::digest::Digest;
use crate::error::Error;

/// The scheme of references.
pub(crate) const SCHEME: &str = "oci://";
/// The longest path of a repository.
const PATH_LENGTH: usize = 255;
/// The longest tag.
const TAG_LENGTH: usize = 128;

/// A repository of a registry, and which manifest of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The host, and the port if it is not the default.
    pub registry: String,
    /// The path of the repository.
    pub repository: String,
    /// The tag.
    pub tag: Option<String>,
    /// The digest, which decides if there is a tag, too.
    pub digest: Option<Digest>,
}

impl Reference {
    /// Whether a text names a registry rather than a file.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Whether the registry is on this machine.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.registry)
    }

    /// The same repository with another digest and no tag.
    #[must_use]
    pub fn at(&self, digest: &Digest) -> Self {
        Self { tag: None, digest: Some(digest.clone()), ..self.clone() }
    }

    /// The same repository with another tag and no digest.
    #[must_use]
    pub fn tagged(&self, tag: &str) -> Self {
        Self { tag: Some(tag.to_owned()), digest: None, ..self.clone() }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |reason| Error::NotAReference { text: Error::shown(text), reason };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong("it does not begin with oci://"))?;
        let (registry, path) = rest.split_once('/').ok_or_else(|| wrong("it has no path after the host"))?;
        if !is_host(registry) {
            return Err(wrong("its host is not valid"));
        }
        let (path, digest) = match path.split_once('@') {
            Some((path, digest)) => (path, Some(digest.parse()?)),
            None => (path, None),
        };
        let (path, tag) = match path.split_once(':') {
            Some((path, tag)) if is_tag(tag) => (path, Some(tag.to_owned())),
            Some(_) => return Err(wrong("its tag is not valid")),
            None => (path, None),
        };
        if !is_path(path) {
            return Err(wrong("its path consists of lower case letters, digits, and separators . _ - /"));
        }
        Ok(Self { registry: registry.to_owned(), repository: path.to_owned(), tag, digest })
    }
}

/// Whether a registry may have this tag.
pub fn is_tag(tag: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= TAG_LENGTH
        && tag.starts_with(is_word)
        && tag.chars().all(|c| is_word(c) || matches!(c, '.' | '-'))
}

/// The tag of a version.
///
/// # Errors
/// The version has build metadata, whose `+` no tag can have.
pub fn tag_of(version: &str) -> Result<&str, Error> {
    if is_tag(version) { Ok(version) } else { Err(Error::NotATag { version: version.to_owned() }) }
}

/// Whether a host, with or without port, is this machine.
pub(crate) fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
            ("v6", if port.is_empty() { None } else { port.strip_prefix(':').or(Some("")) })
        }
        Some(_) => return false,
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_name = !host.is_empty()
        && host.len() <= 253
        && host.split('.').all(|label| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-'))
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
    is_name && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

pub(crate) fn is_path(path: &str) -> bool {
    path.len() <= PATH_LENGTH && !path.is_empty() && path.split('/').all(is_component)
}

/// Lower case letters and digits, with one `.`, one or two `_`, or some `-` between them.
fn is_component(part: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    part.starts_with(is_word)
        && part.ends_with(is_word)
        && part
            .split(is_word)
            .all(|gap| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_parsed_and_printed() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for text in [
            "oci://localhost:5000/etcd",
            "oci://ghcr.io/acme/operators/etcd:1.2.0-rc.1",
            "oci://[::1]:5000/a__b/c--d:latest",
            "oci://127.0.0.1/x.y_z",
            &format!("oci://quay.io/a/b@{digest}"),
            &format!("oci://quay.io/a/b:1.0.0@{digest}"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
        let reference: Reference = format!("oci://quay.io:8443/a/b:t@{digest}").parse().unwrap();
        assert_eq!((reference.registry.as_str(), reference.tag.as_deref()), ("quay.io:8443", Some("t")));
        assert_eq!(reference.digest.unwrap().to_string(), digest);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "oci://",
            "oci://host",
            "oci://host/",
            "oci:///a",
            "oci://host/A",
            "oci://host/a//b",
            "oci://host/../a",
            "oci://host/a:b:c",
            "oci://host/a:",
            "oci://host/a:-b",
            "oci://host/a:1.0+build",
            "oci://host/a@sha256:00",
            "oci://host/a@sha512:00",
            "oci://user:password@host/a",
            "oci://host:0/a",
            "oci://host:99999/a",
            "oci://ho st/a",
            "oci://host/a?b",
            "oci://host/a___b",
            "oci://[::1/a",
            "oci://[x]/a",
            "https://host/a",
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains("help: "), "{text}: {error}");
        }
    }

    #[test]
    fn loopback_is_known() {
        for (host, expected) in [
            ("localhost", true),
            ("localhost:1", true),
            ("127.0.0.1:5000", true),
            ("127.9.9.9", true),
            ("[::1]:5000", true),
            ("10.0.0.1", false),
            ("localhost.example.com", false),
            ("127.0.0.1.example.com", false),
            ("[::2]", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }

    #[test]
    fn versions_with_build_metadata_are_no_tags() {
        assert_eq!(tag_of("1.2.3-rc.1").unwrap(), "1.2.3-rc.1");
        assert!(tag_of("1.2.3+linux").unwrap_err().to_string().contains("build metadata"));
    }
}
