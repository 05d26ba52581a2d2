//! Which packages own a kind.

use std::sync::Arc;

/// The package that a kind belongs to, and those that it belonged to before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindOwner {
    /// The package.
    pub package: Arc<str>,
    /// The packages that handed it over, oldest first.
    pub former: Arc<[Arc<str>]>,
}

impl KindOwner {
    /// A package that has the kind from the beginning.
    pub fn first(package: &str) -> Self {
        Self { package: package.into(), former: Arc::default() }
    }

    /// The package's name in the hashes of desired objects: the name of the first owner, so that a handover changes
    /// no hash and nothing is rolled out because of another name.
    pub fn hashed_name(&self) -> &str {
        self.former.first().unwrap_or(&self.package)
    }

    /// Whether the package of that name had the kind before, and does not have it now.
    pub fn is_former(&self, package: &str) -> bool {
        *package != *self.package && self.has_had(package)
    }

    /// Whether the package of that name has the kind, or had it before.
    pub fn has_had(&self, package: &str) -> bool {
        *package == *self.package || self.former.iter().any(|former| **former == *package)
    }
}
