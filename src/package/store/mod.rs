//! Stored revisions of packages: the files of a package in an `OperatorRevision` and the `ConfigMaps` that it names, so
//! that a run can end with the revision that it began with.
//!
//! [`pack()`] and [`unpack()`] convert, [`objects`] gives the Kubernetes objects. What is read from a cluster is not
//! trusted: sizes are bounded before anything is decompressed, and the digest decides.

mod archive;
pub mod objects;
#[cfg(test)]
mod tests;

use data_encoding::HEXLOWER;
use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::load::contained;
use super::{Files, Package, compile};
use crate::diag::Diagnostic;

/// The format that this version writes, and the newest that it reads.
const FORMAT: u64 = 1;
/// The most bytes of one part.
pub const PART_BYTES: usize = 200 << 10;
/// The most parts: 10 MB.
const MOST_PARTS: usize = 50;
/// The compression level of zlib: a package is written once and read a few times.
const LEVEL: u8 = 9;
/// How much of the digest is part of names.
const PREFIX: usize = 10;

/// The `spec` of an `OperatorRevision`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRevision {
    /// The name of the package.
    pub package: String,
    /// Its version.
    pub version: String,
    /// SHA-256 in hex of all files, see [`Files::digest`].
    pub digest: String,
    /// The format of the parts.
    pub format: u64,
    /// The version of Operetta that has written it.
    pub operetta: String,
    /// Where the files are, in this order.
    pub parts: Vec<Part>,
}

/// A part of the compressed files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The name of its `ConfigMap`.
    pub name: String,
    /// SHA-256 in hex of its data.
    pub digest: String,
}

/// Why a stored revision cannot be written or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A newer Operetta has written it.
    #[error(
        "Operetta {operetta} has written it in format {format}, and this is Operetta {}, which reads formats up to {FORMAT}: \
         upgrade Operetta",
        env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// Its format.
        format: u64,
        /// The version of Operetta that has written it.
        operetta: String,
    },
    /// Its spec is not one that Operetta writes.
    #[error("its spec is invalid: {0}")]
    Invalid(String),
    /// The data of a part is not what was stored.
    #[error("the data of the part {0} is not what was stored: its digest differs")]
    PartAltered(String),
    /// The parts are not an archive of a package.
    #[error("its files cannot be read: {0}")]
    Archive(String),
    /// The files are not those of the digest.
    #[error("its files are not those of its digest")]
    OtherFiles,
    /// The files are too large.
    #[error("the compressed files of the package are larger than {} MB", MOST_PARTS * PART_BYTES / 1_000_000)]
    TooLarge,
    /// The files are no package that this version of Operetta accepts.
    #[error("this version of Operetta cannot load it: {0}")]
    Refused(String),
}

impl StoreError {
    /// Whether this version of Operetta finds it whenever it reads a revision of the same `spec`. The digest of each part is
    /// in the `spec`, so only a part that was altered can be mended.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::PartAltered(_))
    }
}

/// The name of the `OperatorRevision` of a package with that digest.
pub fn name(package: &str, digest: &str) -> String {
    format!("{package}-{}", digest.get(..PREFIX).unwrap_or(digest))
}

/// A version with the start of a digest.
pub(super) fn revision(version: &str, digest: &str) -> String {
    format!("{version}-{}", digest.get(..PREFIX).unwrap_or(digest))
}

/// The name of the `OperatorRevision` of a package's revision, as [`Package::revision`] writes it.
pub fn name_of(package: &str, revision: &str) -> String {
    name(package, revision.rsplit('-').next().unwrap_or_default())
}

impl StoredRevision {
    /// The `spec` of the `OperatorRevision` of that name.
    ///
    /// # Errors
    /// It is not one that this version of Operetta reads.
    pub fn parse(name: &str, spec: &Value) -> Result<Self, StoreError> {
        // First, because a newer format may have other fields.
        if let Some(format) = spec["format"].as_u64().filter(|format| *format > FORMAT) {
            let operetta = spec["operetta"].as_str().unwrap_or("of a newer version").to_owned();
            return Err(StoreError::Newer { format, operetta });
        }
        let revision: Self =
            serde_json::from_value(spec.clone()).map_err(|error| StoreError::Invalid(error.to_string()))?;
        let is_digest = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let problem = if revision.format != FORMAT {
            format!("there is no format {}", revision.format)
        } else if Version::parse(&revision.version).is_err() {
            "version is not a semantic version".to_owned()
        } else if !is_digest(&revision.digest) || !revision.parts.iter().all(|part| is_digest(&part.digest)) {
            "a digest is not a SHA-256 in hex".to_owned()
        } else if revision.name() != name {
            format!("an object of this spec has the name {}", revision.name())
        } else if revision.parts.is_empty() || revision.parts.len() > MOST_PARTS {
            format!("it has {} parts, and must have 1 to {MOST_PARTS}", revision.parts.len())
        } else if revision.parts.iter().enumerate().any(|(index, part)| part.name != part_name(name, index)) {
            format!("its parts must have the names {}, ...", part_name(name, 0))
        } else {
            return Ok(revision);
        };
        Err(StoreError::Invalid(problem))
    }

    /// The name of its `OperatorRevision`.
    pub fn name(&self) -> String {
        name(&self.package, &self.digest)
    }

    /// The revision as [`Package::revision`] writes it.
    pub fn revision(&self) -> String {
        revision(&self.version, &self.digest)
    }
}

fn part_name(name: &str, index: usize) -> String {
    format!("{name}-{index}")
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

/// The files of a package, and the data of each part.
///
/// # Errors
/// [`StoreError::TooLarge`].
pub fn pack(package: &Package) -> Result<(StoredRevision, Vec<Vec<u8>>), StoreError> {
    let compressed = compress_to_vec_zlib(&archive::write(&package.files), LEVEL);
    let parts: Vec<Vec<u8>> = compressed.chunks(PART_BYTES).map(<[u8]>::to_vec).collect();
    if parts.len() > MOST_PARTS {
        return Err(StoreError::TooLarge);
    }
    let name = name(&package.name, &package.digest);
    let part =
        |(index, data): (usize, &Vec<u8>)| Part { name: part_name(&name, index), digest: sha256(data) };
    let revision = StoredRevision {
        package: package.name.clone(),
        version: package.version.to_string(),
        digest: package.digest.clone(),
        format: FORMAT,
        operetta: env!("CARGO_PKG_VERSION").to_owned(),
        parts: parts.iter().enumerate().map(part).collect(),
    };
    Ok((revision, parts))
}

/// The files of a stored revision. `parts`: the data of each part, in order.
///
/// # Errors
/// They are not what was stored.
pub fn unpack(revision: &StoredRevision, parts: &[Vec<u8>]) -> Result<Files, StoreError> {
    if parts.len() != revision.parts.len() {
        let message = format!("{} parts of {}", parts.len(), revision.parts.len());
        return Err(StoreError::Archive(message));
    }
    for (part, data) in revision.parts.iter().zip(parts) {
        if data.len() > PART_BYTES || sha256(data) != part.digest {
            return Err(StoreError::PartAltered(part.name.clone()));
        }
    }
    let bytes = decompress_to_vec_zlib_with_limit(&parts.concat(), archive::MOST_BYTES)
        .map_err(|error| StoreError::Archive(format!("they cannot be decompressed: {error}")))?;
    if sha256(&bytes) != revision.digest {
        return Err(StoreError::OtherFiles);
    }
    let root = format!("{}@{}", revision.package, revision.version);
    archive::read(&root, &bytes).map_err(StoreError::Archive)
}

/// The package of a stored revision.
///
/// # Errors
/// The parts are not what was stored, or this version of Operetta does not accept the package.
pub fn restore(revision: &StoredRevision, parts: &[Vec<u8>]) -> Result<Package, StoreError> {
    let files = unpack(revision, parts)?;
    let refused = |errors: Vec<Diagnostic>| {
        let first = errors.iter().find(|error| error.is_error()).or(errors.first());
        StoreError::Refused(first.map_or_else(String::new, ToString::to_string))
    };
    let (package, _) = contained(files.root(), || compile(&files)).map_err(refused)?;
    if package.name != revision.package || package.version.to_string() != revision.version {
        let message = format!("its files are of package {} {}", package.name, package.version);
        return Err(StoreError::Invalid(message));
    }
    Ok(package)
}
