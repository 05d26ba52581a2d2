//! OCI image layouts: a folder with manifests and blobs, for archives, sticks and mirrors.
//!
//! Files are written as a whole, the index last. A writer that is killed leaves a layout that is as it was, apart from blobs that
//! the next attempt finds. Writers of the same layout change its index one after another.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;

use crate::atomic::{PARTIAL, remove_abandoned, replace};
use crate::client::Options;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{BLOB_BYTES, Descriptor, ENTRIES, Index, MANIFEST_BYTES, REF_NAME, Stored};

/// The file that makes a folder a layout.
const MARKER: &str = "oci-layout";
const VERSION: &str = "1.0.0";
const INDEX_JSON: &str = "index.json";
const BLOBS: &str = "blobs/sha256";
/// The pause between two attempts to lock a layout.
const POLL: Duration = Duration::from_millis(20);

/// A layout.
#[derive(Debug, Clone)]
pub struct Layout {
    folder: PathBuf,
    timeout: Duration,
    on_wait: fn(&Path),
}

impl Layout {
    /// Whether a folder is a layout.
    pub fn is_one(folder: &Path) -> bool {
        folder.join(MARKER).is_file()
    }

    /// Opens a layout.
    ///
    /// # Errors
    /// The folder is none.
    pub fn open(folder: &Path, options: &Options) -> Result<Self, Error> {
        if Self::is_one(folder) {
            return Ok(Self::at(folder, options));
        }
        let what = format!("{} as an OCI layout", folder.display());
        Err(Error::NotFound { what })
    }

    fn at(folder: &Path, options: &Options) -> Self {
        Self { folder: folder.to_owned(), timeout: options.timeout, on_wait: options.on_wait }
    }

    /// Opens a layout, or creates an empty one in a folder that is empty or does not exist.
    ///
    /// # Errors
    /// The folder has other files, or cannot be written.
    pub fn create(folder: &Path, options: &Options) -> Result<Self, Error> {
        let layout = Self::at(folder, options);
        let blobs = folder.join(BLOBS);
        [folder, &blobs].into_iter().for_each(remove_abandoned);
        if Self::is_one(folder) {
            return Ok(layout);
        }
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let _lock = layout.lock()?;
        if Self::is_one(folder) {
            return Ok(layout);
        }
        let others = std::fs::read_dir(folder).into_iter().flatten().flatten();
        // What an attempt that was killed leaves.
        let is_ours = |name: &str| ["blobs", INDEX_JSON].contains(&name) || name.starts_with(PARTIAL);
        if others.into_iter().any(|entry| !is_ours(&entry.file_name().to_string_lossy())) {
            let reason = "it has files and is no OCI layout\n  help: name an empty or a new folder";
            return Err(Error::invalid(folder.display().to_string(), reason));
        }
        std::fs::create_dir_all(&blobs).map_err(Error::io("create", &blobs))?;
        if !folder.join(INDEX_JSON).exists() {
            layout.write_index(&Index::default())?;
        }
        replace(&folder.join(MARKER), json!({"imageLayoutVersion": VERSION}).to_string().as_bytes())?;
        Ok(layout)
    }

    /// Locks the layout until the file is dropped or the process ends. The folder itself is locked: a lock file would be copied and
    /// published with the layout. Everybody who may read the folder can lock it, so the wait has an end.
    fn lock(&self) -> Result<File, Error> {
        let folder = File::open(&self.folder).map_err(Error::io("open", &self.folder))?;
        let started = Instant::now();
        let mut is_told = false;
        loop {
            match folder.try_lock() {
                // Where a file system has no locks, users must not write at the same time.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(folder),
                Err(TryLockError::WouldBlock) if started.elapsed() >= self.timeout => {
                    return Err(Error::Locked { path: self.folder.clone(), waited: self.timeout });
                }
                Err(TryLockError::WouldBlock) => {
                    if !is_told {
                        (self.on_wait)(&self.folder);
                        is_told = true;
                    }
                    thread::sleep(POLL);
                }
            }
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn index(&self) -> Result<Index, Error> {
        let path = self.folder.join(INDEX_JSON);
        let bytes = read(&path, MANIFEST_BYTES)?;
        Index::parse(&path.display().to_string(), &bytes)
    }

    fn write_index(&self, index: &Index) -> Result<(), Error> {
        if index.manifests.len() > ENTRIES {
            let reason = format!("it would have more than {ENTRIES} manifests");
            return Err(Error::invalid(self.folder.display().to_string(), reason));
        }
        let path = self.folder.join(INDEX_JSON);
        let bytes = serde_json::to_vec_pretty(index)
            .map_err(|error| Error::invalid(path.display().to_string(), error.to_string()))?;
        replace(&path, &bytes)
    }

    /// Reads the index, changes it and writes it, if that changes anything. Other writers wait.
    fn change_index(
        &self,
        change: impl FnOnce(&mut Vec<Descriptor>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _lock = self.lock()?;
        let before = self.index()?;
        let mut index = before.clone();
        change(&mut index.manifests)?;
        if index == before { Ok(()) } else { self.write_index(&index) }
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(BLOBS).join(digest.hex())
    }

    /// The manifest of a tag or digest.
    ///
    /// # Errors
    /// There is none, or it does not have the digest.
    pub fn manifest(&self, reference: &str) -> Result<Stored, Error> {
        let what = format!("the manifest {reference} of {}", self.folder.display());
        let digest = if let Ok(digest) = reference.parse::<Digest>() {
            digest
        } else {
            let index = self.index()?;
            let tagged = index.manifests.into_iter().find(|listed| listed.tag() == Some(reference));
            tagged.ok_or_else(|| Error::NotFound { what: what.clone() })?.digest
        };
        let path = self.path(&digest);
        if !path.is_file() {
            return Err(Error::NotFound { what });
        }
        let bytes = self.checked(&what, &digest, MANIFEST_BYTES)?;
        Stored::parse(&what, None, bytes)
    }

    /// Writes a manifest, with a tag or only by its digest. Unless `force`, a tag that has another content is not moved.
    ///
    /// # Errors
    /// The files cannot be written, or the tag has another content.
    pub fn put_manifest(&self, manifest: &Stored, tag: Option<&str>, force: bool) -> Result<(), Error> {
        self.put_blob(&manifest.descriptor, &manifest.bytes)?;
        let mut entry = manifest.descriptor.clone();
        let Some(tag) = tag else { return self.list(vec![entry]) };
        self.change_index(|listed| {
            let tagged = listed.iter().find(|one| one.tag() == Some(tag) && self.path(&one.digest).is_file());
            if let (Some(found), false) = (tagged, force) {
                manifest.check_tag(tag, &found.digest)?;
            }
            listed.retain(|one| one.tag() != Some(tag));
            // The same manifest without a tag says nothing more.
            listed.retain(|one| one.digest != entry.digest || one.tag().is_some());
            entry.annotations.insert(REF_NAME.to_owned(), tag.to_owned());
            listed.push(entry);
            Ok(())
        })
    }

    /// Lists manifests whose bytes are there: all of them, or none. Those that are listed stay as they are.
    pub(crate) fn list(&self, manifests: Vec<Descriptor>) -> Result<(), Error> {
        self.change_index(|listed| {
            for manifest in manifests {
                if !listed.iter().any(|one| one.digest == manifest.digest) {
                    listed.push(manifest);
                }
            }
            Ok(())
        })
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// It is missing, or does not have its digest.
    pub fn blob(&self, blob: &Descriptor) -> Result<Bytes, Error> {
        let what = format!("the blob {} of {}", blob.digest, self.folder.display());
        if !self.path(&blob.digest).is_file() {
            return Err(Error::NotFound { what });
        }
        self.checked(&what, &blob.digest, blob.size.min(BLOB_BYTES))
    }

    fn checked(&self, what: &str, wanted: &Digest, limit: u64) -> Result<Bytes, Error> {
        let bytes = read(&self.path(wanted), limit)?;
        let found = Digest::of(&bytes);
        if found == *wanted {
            return Ok(bytes);
        }
        Err(Error::WrongDigest { what: what.to_owned(), wanted: wanted.clone(), found })
    }

    /// Whether there is a whole blob.
    pub fn has_blob(&self, blob: &Descriptor) -> bool {
        self.path(&blob.digest).metadata().is_ok_and(|file| file.is_file() && file.len() == blob.size)
    }

    /// Writes a blob.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_blob(&self, blob: &Descriptor, bytes: &[u8]) -> Result<(), Error> {
        if self.has_blob(blob) { Ok(()) } else { replace(&self.path(&blob.digest), bytes) }
    }

    /// All tags, sorted.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn tags(&self) -> Result<Vec<String>, Error> {
        let index = self.index()?;
        let mut tags: Vec<String> =
            index.manifests.iter().filter_map(|listed| listed.tag().map(str::to_owned)).collect();
        tags.sort_unstable();
        Ok(tags)
    }

    /// What refers to a manifest.
    ///
    /// # Errors
    /// A manifest cannot be read.
    pub fn referrers(&self, subject: &Digest) -> Result<Vec<Descriptor>, Error> {
        let mut found = Vec::new();
        for (listed, manifest) in self.manifests()? {
            let refers = manifest.manifest().and_then(|manifest| manifest.subject.as_ref());
            if refers.is_some_and(|refers| refers.digest == *subject) {
                found.push(Descriptor { annotations: listed.annotations, ..manifest.descriptor });
            }
        }
        Ok(found)
    }

    /// The digests of manifests that refer to no other one.
    ///
    /// # Errors
    /// A manifest cannot be read.
    pub fn roots(&self) -> Result<Vec<Digest>, Error> {
        let mut found: Vec<Digest> = Vec::new();
        for (listed, manifest) in self.manifests()? {
            let is_signature = listed.tag().is_some_and(|tag| tag.starts_with("sha256-"));
            let refers = manifest.manifest().is_some_and(|manifest| manifest.subject.is_some());
            if !refers && !is_signature && !found.contains(&listed.digest) {
                found.push(listed.digest);
            }
        }
        Ok(found)
    }

    fn manifests(&self) -> Result<Vec<(Descriptor, Stored)>, Error> {
        let listed = self.index()?.manifests.into_iter();
        listed.map(|entry| Ok((entry.clone(), self.manifest(&entry.digest.to_string())?))).collect()
    }
}

fn read(path: &Path, limit: u64) -> Result<Bytes, Error> {
    use std::io::Read as _;
    let file = std::fs::File::open(path).map_err(Error::io("read", path))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    if bytes.len() as u64 > limit {
        return Err(Error::TooLarge { what: path.display().to_string(), limit });
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// An index that differs from others by a text.
    fn manifest(of: &str) -> Stored {
        let text = json!({"schemaVersion": 2, "manifests": [], "of": of}).to_string();
        Stored::parse("a test", None, text.into()).unwrap()
    }

    #[test]
    fn partial_file_of_a_killed_writer_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(format!("{PARTIAL}abc")), "x").unwrap();
        Layout::create(folder.path(), &Options::default()).unwrap();
        assert_eq!(names(folder.path()), ["blobs", INDEX_JSON, MARKER]);
        assert!(names(&folder.path().join(BLOBS)).is_empty());
    }

    /// Without a lock, the last one to write the index would leave only what it has read.
    #[test]
    fn writers_at_the_same_time_lose_no_entry() {
        const WRITERS: usize = 8;
        const TAGS: usize = 5;
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("layout");
        let start = std::sync::Barrier::new(WRITERS);
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (folder, start) = (&folder, &start);
                scope.spawn(move || {
                    start.wait();
                    let layout = Layout::create(folder, &Options::default()).unwrap();
                    for number in 0..TAGS {
                        let tag = format!("{writer}.{number}");
                        layout.put_manifest(&manifest(&tag), Some(&tag), false).unwrap();
                    }
                });
            }
        });
        let layout = Layout::open(&folder, &Options::default()).unwrap();
        assert_eq!(layout.tags().unwrap().len(), WRITERS * TAGS);
        assert_eq!(names(&folder), ["blobs", INDEX_JSON, MARKER]);
        assert_eq!(names(&folder.join(BLOBS)).len(), WRITERS * TAGS);
    }

    /// The check of a copy is long before its write: another copy may have written the tag.
    #[test]
    fn tag_is_checked_where_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::create(folder.path(), &Options::default()).unwrap();
        let (first, second) = (manifest("first"), manifest("second"));
        let digest = || layout.manifest("1.0.0").unwrap().descriptor.digest;
        for _ in 0..2 {
            layout.put_manifest(&first, Some("1.0.0"), false).unwrap();
        }
        let error = layout.put_manifest(&second, Some("1.0.0"), false).unwrap_err();
        assert!(matches!(error, Error::TagExists { .. }) && digest() == first.descriptor.digest, "{error}");
        layout.put_manifest(&second, Some("1.0.0"), true).unwrap();
        assert_eq!(digest(), second.descriptor.digest);
    }

    #[test]
    fn folder_with_other_files_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".tmpabc"), "x").unwrap();
        let error = Layout::create(folder.path(), &Options::default()).unwrap_err();
        assert!(error.to_string().contains("no OCI layout"), "{error}");
    }
}
