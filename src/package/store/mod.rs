//! Stored revisions of packages. The files of a package are stored in an `OperatorRevision` and the
//! `ConfigMaps` that it names, so that a run can end with the revision with which it began.
//!
//! [`pack()`] and [`unpack()`] convert the files, and [`objects`] creates the Kubernetes objects. Data that
//! is read from a cluster is not trusted: sizes are limited before anything is decompressed, and the digest
//! decides.

mod archive;
mod names;
pub mod objects;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

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
pub(crate) use names::revision;
pub use names::{name, name_of};

/// The format that this version writes, and the newest that it reads.
const FORMAT: u64 = 1;
/// The maximum size of one part in bytes.
pub const PART_BYTES: usize = 200 << 10;
/// The maximum number of parts, 10 MB in total.
const MOST_PARTS: usize = 50;
/// The compression level of zlib. It is high because a package is written once and read several times.
const LEVEL: u8 = 9;

/// The `spec` of an `OperatorRevision`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRevision {
    /// The name of the package.
    pub package: String,
    /// Its version.
    pub version: String,
    /// The SHA-256 of all files in hex, see [`Files::digest`].
    pub digest: String,
    /// The format of the parts.
    pub format: u64,
    /// The version of Operetta that wrote it.
    pub operetta: String,
    /// The parts, in the order in which they are joined.
    pub parts: Vec<Part>,
}

/// A revision with the data of its parts.
pub type Packed = (StoredRevision, Vec<Vec<u8>>);

/// A part of the compressed files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The name of its `ConfigMap`.
    pub name: String,
    /// The SHA-256 of its data in hex.
    pub digest: String,
}

/// The reason why a stored revision cannot be written or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A newer version of Operetta wrote it.
    #[error(
        "Operetta {operetta} has written it in format {format}, and this is Operetta {}, which reads formats up to {FORMAT}: \
         upgrade Operetta",
        env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// The format in which it is written.
        format: u64,
        /// The version of Operetta that wrote it.
        operetta: String,
    },
    /// Operetta does not write such a spec.
    #[error("its spec is invalid: {0}")]
    Invalid(String),
    /// The data of a part differs from what was stored.
    #[error("the data of the part {0} is not what was stored: its digest differs")]
    PartAltered(String),
    /// The parts are not an archive of a package.
    #[error("its files cannot be read: {0}")]
    Archive(String),
    /// The files do not have the digest of the revision.
    #[error("its files are not those of its digest")]
    OtherFiles,
    /// The files are too large.
    #[error("the compressed files of the package are larger than {} MB", MOST_PARTS * PART_BYTES / 1_000_000)]
    TooLarge,
    /// This version of Operetta does not accept the files as a package.
    #[error("this version of Operetta cannot load it: {0}")]
    Refused(String),
}

impl StoreError {
    /// Whether every attempt to read a revision with the same `spec` by this version of Operetta fails in the
    /// same way. Only an altered part can be repaired, because its digest is in the `spec`.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::PartAltered(_))
    }
}

impl StoredRevision {
    /// Parses the `spec` of the `OperatorRevision` with this name.
    ///
    /// # Errors
    /// This version of Operetta cannot read it.
    pub fn parse(name: &str, spec: &Value) -> Result<Self, StoreError> {
        // The format is checked first, because a newer one may have other fields.
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

    /// The revision in the form of [`Package::revision`].
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

/// Packs the files of a package: the stored revision, and the data of each part.
///
/// # Errors
/// [`StoreError::TooLarge`].
pub fn pack(package: &Package) -> Result<Packed, StoreError> {
    thread_local! {
        // Many managers begin with one package on one thread, in tests, and compressing it takes longer than most that they do.
        static LAST: RefCell<Option<Packed>> = const { RefCell::new(None) };
    }
    let is_it = |last: &Packed| last.0.package == package.name && last.0.digest == package.digest;
    if let Some(last) = LAST.with_borrow(|last| last.clone().filter(is_it)) {
        return Ok(last);
    }
    let packed = compress(package)?;
    LAST.set(Some(packed.clone()));
    Ok(packed)
}

fn compress(package: &Package) -> Result<Packed, StoreError> {
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

/// Unpacks the files of a stored revision. `parts`: the data of each part, in order.
///
/// # Errors
/// The data differs from what was stored.
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

/// Loads the package of a stored revision.
///
/// # Errors
/// The data of the parts differs from what was stored, or this version of Operetta does not accept the
/// package.
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
