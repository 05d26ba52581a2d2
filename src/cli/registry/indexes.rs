//! The indexes of packages that `search` and `show` read: files, and artifacts of registries, which are cached by their digests.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use operetta_registry::index::{self, Depth, Entry, PackageIndex};
use operetta_registry::{
    BLOB_BYTES, Descriptor, Digest, Options, Place, PublicKey, Reference, Signers, signatures,
};

use super::access::{public_keys, read, read_at_most};
use super::catalog::signature_of;
use super::fetch::is_place;
use crate::cli::command::Failure;
use crate::cli::out;
use crate::diag::did_you_mean;
use crate::local::Environment;

/// How many indexes are kept in the cache.
const CACHED: usize = 8;

/// Which indexes are read.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Catalogues")]
pub(super) struct Catalogs {
    /// An index of packages: a file, or `oci://HOST/PATH[:TAG]`; repeatable, or with commas
    #[arg(long = "catalog", value_name = "FILE|REF", value_delimiter = ',', env = "OPERETTA_CATALOG")]
    places: Vec<String>,

    /// Read an index only if one of these public keys has signed it; repeatable, or with commas
    #[arg(long = "catalog-key", value_name = "FILE", value_delimiter = ',', env = "OPERETTA_CATALOG_KEY")]
    catalog_keys: Vec<PathBuf>,
}

/// An index that was read.
struct Read {
    /// Where it is.
    what: String,
    bytes: Bytes,
    /// What was asked for.
    index: PackageIndex,
}

/// The packages of all indexes that could be read.
pub(super) struct Packages {
    indexes: Vec<Read>,
    /// Whether an index could not be read.
    pub(super) is_partial: bool,
}

impl Packages {
    /// Each repository once: the first index that has it counts.
    pub(super) fn all(&self) -> Vec<&Entry> {
        let mut seen = std::collections::HashSet::new();
        let entries = self.indexes.iter().flat_map(|read| &read.index.packages);
        entries.filter(|entry| seen.insert(&*entry.repository)).collect()
    }

    /// The name that may be meant by one that is not there, of all packages.
    pub(super) fn near(&self, name: &str) -> Option<String> {
        let names = |read: &Read| PackageIndex::names(&read.what, &read.bytes).unwrap_or_default();
        let names: Vec<String> = self.indexes.iter().flat_map(names).collect();
        did_you_mean(name, names.iter().map(String::as_str)).map(out::printable)
    }
}

impl Catalogs {
    /// Reads the indexes. One that cannot be read is reported, and the others count. Packages that have not all of the words anywhere
    /// may be left out.
    pub(super) async fn read(
        &self,
        words: &[String],
        depth: Depth,
        options: &Options,
    ) -> Result<Packages, Failure> {
        let given = |text: &&String| !text.trim().is_empty();
        let places: Vec<&str> = self.places.iter().filter(given).map(|text| text.trim()).collect();
        if places.is_empty() {
            return Err(Failure::usage(
                "no index of packages is given\n  help: --catalog FILE, --catalog oci://HOST/PATH or OPERETTA_CATALOG names one; \
                 `operetta catalog build` makes one",
            ));
        }
        let keys: Vec<PathBuf> =
            self.catalog_keys.iter().filter(|path| !path.as_os_str().is_empty()).cloned().collect();
        let keys = public_keys(&keys)?;
        let mut found = Packages { indexes: Vec::new(), is_partial: false };
        let mut failures = Vec::new();
        for place in places {
            let read = read_one(place, &keys, options).await.and_then(|bytes| {
                let index = PackageIndex::parse_with(place, &bytes, words, depth)?;
                Ok(Read { what: place.to_owned(), bytes, index })
            });
            match read {
                Ok(read) => found.indexes.push(read),
                Err(failure) => failures.push(failure),
            }
        }
        let only = failures.pop_if(|_| found.indexes.is_empty());
        for failure in &failures {
            out::note(format!("error: {}", failure.message));
        }
        if let Some(failure) = only {
            return Err(failure);
        }
        found.is_partial = !failures.is_empty();
        Ok(found)
    }
}

async fn read_one(place: &str, keys: &[PublicKey], options: &Options) -> Result<Bytes, Failure> {
    let path = Path::new(place);
    if !is_place(path) {
        let bytes = read_at_most(path, BLOB_BYTES)?;
        if !keys.is_empty() {
            let signature = read(&signature_of(path)).map_err(|failure| {
                let why = format!("{place} has no signature beside it: {}", failure.message);
                Failure { message: why, code: 1 }
            })?;
            index::verify(place, &bytes, &signature, keys)?;
        }
        return Ok(bytes.into());
    }
    let opened = Place::open(place, options)?;
    let (manifest, layer) = index::resolve(&opened).await?;
    if !keys.is_empty() {
        let found = signatures::find(&opened.store, &manifest).await?;
        signatures::check(place, &manifest, &found, &Signers::of_keys(keys.to_vec()))?;
    }
    let cache = cache().filter(|_| Reference::is_one(place));
    let cached = cache.as_deref().and_then(|folder| cached(folder, &layer));
    if let Some(bytes) = cached {
        return Ok(bytes);
    }
    let bytes = opened.store.blob(&layer).await?;
    if let Some(folder) = &cache {
        keep(folder, &layer, &bytes);
    }
    Ok(bytes)
}

/// The folder of the cached indexes.
fn cache() -> Option<PathBuf> {
    Environment::of_process().cache.map(|folder| folder.join("indexes"))
}

fn file(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join(format!("{}.json", digest.hex()))
}

/// The bytes of an index in the cache, if they are whole.
fn cached(folder: &Path, layer: &Descriptor) -> Option<Bytes> {
    let bytes = read_at_most(&file(folder, &layer.digest), BLOB_BYTES).ok()?;
    (Digest::of(&bytes) == layer.digest).then(|| bytes.into())
}

/// Keeps an index in the cache, and removes the oldest ones. A cache that cannot be written does no harm.
fn keep(folder: &Path, layer: &Descriptor, bytes: &[u8]) {
    let written = file(folder, &layer.digest);
    let is_written =
        std::fs::create_dir_all(folder).is_ok() && operetta_registry::write(&written, bytes).is_ok();
    if !is_written {
        return;
    }
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // Times of files are coarse: the new one is never among the oldest.
    let mut others: Vec<(SystemTime, PathBuf)> = files
        .filter(|path| path.extension() == Some(OsStr::new("json")) && *path != written)
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .collect();
    others.sort_unstable_by(|a, b| b.cmp(a));
    for (_, old) in others.iter().skip(CACHED - 1) {
        let _ = std::fs::remove_file(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_packages_that_were_not_read() {
        let bytes: Bytes = [
            r#"{"format":1,"packages":["#,
            r#"{"name":"etcd","repository":"oci://r/etcd","versions":[]},"#,
            r#"{"name":"web\u001b","repository":"oci://r/web","versions":[]}"#,
            "]}\n",
        ]
        .join("\n")
        .into();
        let words = ["etdc".to_owned()];
        let index = PackageIndex::parse_with("x", &bytes, &words, Depth::Newest).unwrap();
        let packages =
            Packages { indexes: vec![Read { what: "x".to_owned(), bytes, index }], is_partial: false };
        assert!(packages.all().is_empty());
        assert_eq!(packages.near("etdc").as_deref(), Some("etcd"));
        assert_eq!(packages.near("web").as_deref(), Some("web\\u{1b}"));
        assert_eq!(packages.near("postgres"), None);
    }

    #[test]
    fn the_cache_keeps_some_indexes_and_no_damaged_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("indexes");
        let layers: Vec<(Descriptor, String)> = (0..CACHED + 3)
            .map(|at| (Descriptor::of("x", at.to_string().as_bytes()), at.to_string()))
            .collect();
        for (layer, text) in &layers {
            keep(&folder, layer, text.as_bytes());
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), CACHED);
        let (last, text) = layers.last().unwrap();
        assert_eq!(cached(&folder, last).unwrap(), text.as_bytes());
        std::fs::write(file(&folder, &last.digest), "other").unwrap();
        assert_eq!(cached(&folder, last), None);
    }
}
