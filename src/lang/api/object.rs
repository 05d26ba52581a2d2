//! References to objects.

use std::fmt;
use std::sync::Arc;

use super::Gvk;

/// Kind, namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// The kind. References to objects of one kind share its text.
    pub gvk: Gvk,
    /// The namespace; `None` for cluster-scoped objects.
    pub namespace: Option<Arc<str>>,
    /// The name.
    pub name: Box<str>,
}

impl ObjectRef {
    /// The identity of the object. It lacks the version because the API server serves an object in every
    /// version of its kind.
    pub fn identity(&self) -> (&str, &str, Option<&str>, &str) {
        (self.gvk.group(), &self.gvk.kind, self.namespace.as_deref(), &self.name)
    }
}

impl fmt::Display for ObjectRef {
    /// Writes `Kind namespace/name` or `Kind name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.gvk.kind, self.name),
            None => write!(f, "{} {}", self.gvk.kind, self.name),
        }
    }
}
