//! What a package requires of others: kinds, and the packages that were chosen for them.

use std::fmt;

use semver::{Version, VersionReq};

use crate::api::Gvk;
use crate::diag::Location;

/// A kind that another package or operator brings.
#[derive(Debug, Clone)]
pub struct RequiredApi {
    /// The kind.
    pub gvk: Gvk,
    /// The repository of a package that brings it, `oci://HOST/PATH`.
    pub package: Option<String>,
    /// The supported versions of that package.
    pub range: Option<VersionReq>,
    /// Whether the package does without it.
    pub optional: bool,
    /// Its location in `operator.yaml`.
    pub location: Location,
}

impl RequiredApi {
    /// Whether it supports a version of the package that brings the kind. Pre-releases are supported if the range names one.
    pub fn accepts(&self, version: &Version) -> bool {
        self.range.as_ref().map_or(version.pre.is_empty(), |range| range.matches(version))
    }

    /// The range in words.
    pub fn range_text(&self) -> String {
        self.range.as_ref().map_or("any version".to_owned(), ToString::to_string)
    }
}

impl fmt::Display for RequiredApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.gvk.kind, self.gvk.api_version)
    }
}

/// A package that was chosen for what another one requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: Version,
    /// Its repository, `oci://HOST/PATH`.
    pub package: String,
    /// The digest of its manifest, `sha256:...`.
    pub digest: String,
}

impl Locked {
    /// Its reference with the digest.
    pub fn reference(&self) -> String {
        format!("{}@{}", self.package, self.digest)
    }
}
