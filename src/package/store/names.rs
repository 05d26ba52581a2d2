//! The names of stored revisions.

/// The number of characters of the digest that are part of names.
const PREFIX: usize = 10;

/// The name of the `OperatorRevision` of a package with this digest.
pub fn name(package: &str, digest: &str) -> String {
    format!("{package}-{}", digest.get(..PREFIX).unwrap_or(digest))
}

/// A version with the start of a digest.
pub(crate) fn revision(version: &str, digest: &str) -> String {
    format!("{version}-{}", digest.get(..PREFIX).unwrap_or(digest))
}

/// The name of the `OperatorRevision` of a package's revision, as [`crate::Package::revision`] writes it.
pub fn name_of(package: &str, revision: &str) -> String {
    name(package, revision.rsplit('-').next().unwrap_or_default())
}
