//! The one place where paths of requests are built. A name that could be more than one segment, or no segment, is
//! refused; what is left is percent-encoded.

use std::fmt::Write as _;

use crate::api::{ApiKind, CallError, Class};
use crate::naming;

/// The path of a collection, or of one object.
///
/// # Errors
/// The namespace or the name cannot be a segment of a path.
pub fn path(kind: &ApiKind, namespace: Option<&str>, name: Option<&str>) -> Result<String, CallError> {
    let mut path = if kind.group.is_empty() { "/api".to_owned() } else { "/apis".to_owned() };
    if !kind.group.is_empty() {
        push(&mut path, &kind.group);
    }
    push(&mut path, &kind.version);
    if let (true, Some(namespace)) = (kind.namespaced, namespace) {
        let refused = |error| invalid(format!("a namespace of this name cannot exist: {error}"));
        naming::check_namespace(namespace).map_err(refused)?;
        path.push_str("/namespaces");
        push(&mut path, namespace);
    }
    push(&mut path, &kind.plural);
    if let Some(name) = name {
        let refused = |error| invalid(format!("a {} of this name cannot exist: {error}", kind.kind));
        naming::check_segment(name).map_err(refused)?;
        push(&mut path, name);
    }
    Ok(path)
}

/// The error about a name with which no request is sent. It is permanent: the same name is always refused.
fn invalid(message: String) -> CallError {
    CallError::new(Class::Permanent, 0, "InvalidName", message)
}

/// Adds a segment.
pub(super) fn push(path: &mut String, segment: &str) {
    path.push('/');
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b':') {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(group: &str, plural: &str, namespaced: bool) -> ApiKind {
        ApiKind {
            group: group.into(),
            version: "v1".into(),
            kind: "Kind".into(),
            plural: plural.into(),
            namespaced,
        }
    }

    #[test]
    fn a_name_is_one_segment_of_the_path() {
        let map = kind("", "configmaps", true);
        let role = kind("rbac.authorization.k8s.io", "clusterroles", false);
        assert_eq!(path(&map, Some("n"), Some("a")).unwrap(), "/api/v1/namespaces/n/configmaps/a");
        assert_eq!(path(&map, None, None).unwrap(), "/api/v1/configmaps");
        for (name, segment) in [
            ("system:node", "system:node"),
            ("a?dryRun=All", "a%3FdryRun%3DAll"),
            ("a#b", "a%23b"),
            ("a b", "a%20b"),
            ("é&;", "%C3%A9%26%3B"),
        ] {
            let path = path(&role, Some("ignored"), Some(name)).unwrap();
            assert_eq!(path, format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{segment}"));
        }
    }

    #[test]
    fn names_that_could_change_the_path_are_refused() {
        let map = kind("", "configmaps", true);
        for name in ["", ".", "..", "a/proxy", "../secrets/b", "a%2Fproxy", "a\r\nb"] {
            for path in [path(&map, Some("n"), Some(name)), path(&map, Some(name), Some("a"))] {
                let error = path.unwrap_err();
                assert_eq!((error.class, &*error.reason), (Class::Permanent, "InvalidName"), "{name:?}");
            }
        }
        for namespace in ["a?b", "A", "a.b"] {
            assert!(path(&map, Some(namespace), None).is_err(), "{namespace}");
        }
    }
}
