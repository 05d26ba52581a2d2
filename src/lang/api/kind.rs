//! Kinds and how they are named.

use std::fmt;
use std::sync::Arc;

use kube_core::{ApiResource, GroupVersionKind};
use serde_json::Value;

use super::BuiltIn;

/// A kind as the server serves it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Kind, singular and in camel case.
    pub kind: String,
    /// Resource name in paths.
    pub plural: String,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
}

impl ApiKind {
    /// A kind that Kubernetes itself brings.
    pub fn built_in(api_version: &str, kind: &str) -> Self {
        let (group, version) = split_api_version(api_version);
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Self {
            group: resource.group,
            version: resource.version,
            kind: resource.kind,
            plural: resource.plural,
            namespaced: BuiltIn::find(group, kind).is_some_and(|known| known.namespaced),
        }
    }

    /// The kind `CustomResourceDefinition`.
    pub fn crd() -> Self {
        Self::built_in("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    }

    /// Its group, version and kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::new(self.api_version(), self.kind.as_str())
    }

    /// `group/version`, or `version` in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The kind as a type of the client library.
    pub fn resource(&self) -> ApiResource {
        let mut resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(&self.group, &self.version, &self.kind),
            &self.plural,
        );
        resource.api_version = self.api_version();
        resource
    }
}

impl fmt::Display for ApiKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.api_version())
    }
}

/// Group, version and kind, as the `apiVersion` and `kind` of an object state them. It does not imply that a
/// server serves the kind: see [`ApiKind`]. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// `group/version`, or `version` in the core group.
    pub api_version: Arc<str>,
    /// The kind.
    pub kind: Arc<str>,
}

impl Gvk {
    /// Creates it from an `apiVersion` and a `kind`.
    pub fn new(api_version: impl Into<Arc<str>>, kind: impl Into<Arc<str>>) -> Self {
        Self { api_version: api_version.into(), kind: kind.into() }
    }

    /// The kind of an object; `None` if `apiVersion` or `kind` is missing.
    pub fn of(object: &Value) -> Option<Self> {
        Some(Self::new(object["apiVersion"].as_str()?, object["kind"].as_str()?))
    }

    /// Parses the form `apiVersion/Kind`.
    pub fn parse(text: &str) -> Option<Self> {
        text.rsplit_once('/').map(|(api_version, kind)| Self::new(api_version, kind))
    }

    /// `apiVersion` and `kind` as strings, for pattern matching.
    pub fn parts(&self) -> (&str, &str) {
        (&self.api_version, &self.kind)
    }

    /// Whether it is the kind with this `apiVersion` and `kind`.
    pub fn is(&self, api_version: &str, kind: &str) -> bool {
        self.parts() == (api_version, kind)
    }

    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        group_of(&self.api_version)
    }

    /// The version within the group.
    pub fn version(&self) -> &str {
        split_api_version(&self.api_version).1
    }

    /// Whether both are the same kind, possibly in different versions of its group.
    pub fn is_version_of(&self, other: &Self) -> bool {
        self.kind == other.kind && self.group() == other.group()
    }
}

impl fmt::Display for Gvk {
    /// Writes `Deployment of apps/v1`, the form used in sentences.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.kind, self.api_version)
    }
}

/// Splits an `apiVersion` into group and version; the group is empty for the core group.
pub fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// The group of an `apiVersion`; empty for the core group.
pub fn group_of(api_version: &str) -> &str {
    split_api_version(api_version).0
}
