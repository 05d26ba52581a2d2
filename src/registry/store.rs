//! A repository of a registry, or a layout: what packages are read from and written to.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use semver::Version;

use crate::client::Options;
use crate::digest::Digest;
use crate::error::Error;
use crate::layout::Layout;
use crate::manifest::{Descriptor, Stored};
use crate::reference::{Reference, is_tag};
use crate::repository::Repository;

/// Where packages are.
#[derive(Debug)]
pub enum Store {
    /// A repository of a registry.
    Registry(Box<Repository>),
    /// A layout in a folder.
    Layout(Layout),
}

/// A store, and which manifest of it.
#[derive(Debug)]
pub struct Place {
    /// The store.
    pub store: Store,
    /// The tag.
    pub tag: Option<String>,
    /// The digest, which decides if there is a tag, too.
    pub digest: Option<Digest>,
    name: String,
}

impl Place {
    /// Opens `oci://...`, or a layout: `FOLDER`, `FOLDER:TAG` or `FOLDER@sha256:...`.
    ///
    /// # Errors
    /// The text is neither.
    pub fn open(text: &str, options: &Options) -> Result<Self, Error> {
        Self::at(text, options, Layout::open)
    }

    /// The same for writing: a layout is created if there is none.
    ///
    /// # Errors
    /// The text is neither, or the folder has other files.
    pub fn create(text: &str, options: &Options) -> Result<Self, Error> {
        Self::at(text, options, Layout::create)
    }

    fn at(
        text: &str,
        options: &Options,
        layout: impl FnOnce(&Path, &Options) -> Result<Layout, Error>,
    ) -> Result<Self, Error> {
        if Reference::is_one(text) {
            let reference: Reference = text.parse()?;
            let store = Store::Registry(Box::new(Repository::new(&reference, options.clone())?));
            let Reference { tag, digest, .. } = reference.clone();
            let name = Reference { tag: None, digest: None, ..reference }.to_string();
            return Ok(Self { store, tag, digest, name });
        }
        let (path, tag, digest) = split(text);
        let store = Store::Layout(layout(&path, options)?);
        Ok(Self { store, tag, digest, name: path.display().to_string() })
    }

    /// The name of the store, as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of a manifest of the store, for people and for other commands.
    pub fn name_of(&self, digest: &Digest) -> String {
        let tag = self.tag.as_ref().map(|tag| format!(":{tag}")).unwrap_or_default();
        format!("{}{tag}@{digest}", self.name)
    }

    /// The versions among the tags, the newest first, and the other tags.
    ///
    /// # Errors
    /// The tags cannot be listed.
    pub async fn versions(&self) -> Result<(Vec<Version>, Vec<String>), Error> {
        self.store.tags().await.map(split_tags)
    }

    /// The manifest: of the digest or tag; otherwise of the newest version, or the only one of a layout. The tag becomes
    /// that of the version.
    ///
    /// # Errors
    /// There is none, or no single one.
    pub async fn resolve(&mut self) -> Result<Stored, Error> {
        if let Some(digest) = &self.digest {
            return self.store.manifest(&digest.to_string()).await;
        }
        if self.tag.is_none()
            && let Store::Layout(layout) = &self.store
            && let [root] = &layout.roots()?[..]
        {
            return layout.manifest(&root.to_string());
        }
        if self.tag.is_none() {
            let (versions, _) = self.versions().await?;
            let newest = versions.into_iter().find(|version| version.pre.is_empty());
            self.tag = Some(newest.map(|version| version.to_string()).ok_or_else(|| Error::NotFound {
                what: format!("a version among the tags of {}", self.name),
            })?);
        }
        self.store.manifest(self.tag.as_deref().unwrap_or_default()).await
    }
}

/// The versions among tags, the newest first, and the other tags.
pub(crate) fn split_tags(tags: Vec<String>) -> (Vec<Version>, Vec<String>) {
    let (mut versions, mut others) = (Vec::new(), Vec::new());
    for tag in tags {
        match Version::parse(&tag) {
            Ok(version) => versions.push(version),
            Err(_) => others.push(tag),
        }
    }
    versions.sort_unstable_by(|a, b| b.cmp(a));
    (versions, others)
}

/// The folder, tag and digest of a layout. A folder whose name has a colon is meant if it exists.
fn split(text: &str) -> (PathBuf, Option<String>, Option<Digest>) {
    let (path, digest) = match text.rsplit_once('@').map(|(path, digest)| (path, digest.parse())) {
        Some((path, Ok(digest))) => (path, Some(digest)),
        _ => (text, None),
    };
    match path.rsplit_once(':') {
        Some((folder, tag)) if is_tag(tag) && !Path::new(path).exists() => {
            (folder.into(), Some(tag.to_owned()), digest)
        }
        _ => (path.into(), None, digest),
    }
}

impl Store {
    /// The manifest of a tag or digest.
    ///
    /// # Errors
    /// There is none, or it does not have the digest.
    pub async fn manifest(&self, reference: &str) -> Result<Stored, Error> {
        match self {
            Self::Registry(repository) => repository.manifest(reference).await,
            Self::Layout(layout) => layout.manifest(reference),
        }
    }

    /// The manifest of a tag or digest, if there is one.
    pub(crate) async fn find(&self, reference: &str) -> Result<Option<Stored>, Error> {
        match self.manifest(reference).await {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a manifest, with a tag or only by its digest.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn put_manifest(&self, manifest: &Stored, tag: Option<&str>) -> Result<(), Error> {
        match self {
            Self::Registry(repository) => repository.put_manifest(manifest, tag).await,
            Self::Layout(layout) => layout.put_manifest(manifest, tag, true),
        }
    }

    /// Writes a manifest with a tag. Unless `force`, a layout does not move a tag that has another content. A registry does: its
    /// protocol has no such condition.
    pub(crate) async fn put_tagged(&self, manifest: &Stored, tag: &str, force: bool) -> Result<(), Error> {
        match self {
            Self::Registry(repository) => repository.put_manifest(manifest, Some(tag)).await,
            Self::Layout(layout) => layout.put_manifest(manifest, Some(tag), force),
        }
    }

    /// Writes a manifest that others refer to. A layout does not list it yet: [`Store::list`] does.
    pub(crate) async fn put_subject(&self, manifest: &Stored) -> Result<(), Error> {
        match self {
            Self::Registry(repository) => repository.put_manifest(manifest, None).await,
            Self::Layout(layout) => layout.put_blob(&manifest.descriptor, &manifest.bytes),
        }
    }

    /// Lists manifests that were written by [`Store::put_subject`]: all of them, or none. A registry has no list.
    pub(crate) fn list(&self, manifests: Vec<Descriptor>) -> Result<(), Error> {
        match self {
            Self::Registry(_) => Ok(()),
            Self::Layout(layout) => layout.list(manifests),
        }
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// It is missing, or does not have its digest.
    pub async fn blob(&self, blob: &Descriptor) -> Result<Bytes, Error> {
        match self {
            Self::Registry(repository) => repository.blob(blob).await,
            Self::Layout(layout) => layout.blob(blob),
        }
    }

    /// Whether there is a blob.
    ///
    /// # Errors
    /// The registry does not say.
    pub async fn has_blob(&self, blob: &Descriptor) -> Result<bool, Error> {
        match self {
            Self::Registry(repository) => repository.has_blob(blob).await,
            Self::Layout(layout) => Ok(layout.has_blob(blob)),
        }
    }

    /// Writes a blob.
    ///
    /// # Errors
    /// It cannot be written.
    pub async fn put_blob(&self, blob: &Descriptor, bytes: &Bytes) -> Result<(), Error> {
        match self {
            Self::Registry(repository) => repository.put_blob(blob, bytes).await,
            Self::Layout(layout) => layout.put_blob(blob, bytes),
        }
    }

    /// All tags, sorted.
    ///
    /// # Errors
    /// They cannot be listed.
    pub async fn tags(&self) -> Result<Vec<String>, Error> {
        match self {
            Self::Registry(repository) => repository.tags().await,
            Self::Layout(layout) => layout.tags(),
        }
    }

    /// What refers to a manifest.
    ///
    /// # Errors
    /// They cannot be listed.
    pub async fn referrers(&self, subject: &Digest) -> Result<Vec<Descriptor>, Error> {
        match self {
            Self::Registry(repository) => repository.referrers(subject).await,
            Self::Layout(layout) => layout.referrers(subject),
        }
    }

    /// Takes a blob over from a repository of the same registry, if both are.
    pub(crate) async fn mount(&self, blob: &Descriptor, from: &Self) -> Result<bool, Error> {
        match (self, from) {
            (Self::Registry(to), Self::Registry(from)) if to.is_beside(from) => to.mount(blob, from).await,
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_by_their_numbers() {
        let tags =
            ["latest", "1.9.0", "1.10.0", "2.0.0-rc.1", "2.0.0", "1.9", "sha256-00"].map(str::to_owned);
        let (versions, others) = split_tags(tags.into());
        let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
        assert_eq!(versions, ["2.0.0", "2.0.0-rc.1", "1.10.0", "1.9.0"]);
        assert_eq!(others, ["latest", "1.9", "sha256-00"]);
    }

    #[test]
    fn layouts_have_tags_and_digests() {
        let digest = Digest::of(b"x");
        let text = format!("/nowhere/a:1.0.0@{digest}");
        assert_eq!(split(&text), ("/nowhere/a".into(), Some("1.0.0".into()), Some(digest)));
        assert_eq!(split("/nowhere/a"), ("/nowhere/a".into(), None, None));
        assert_eq!(split("/nowhere/a:b/c"), ("/nowhere/a:b/c".into(), None, None));
    }
}
