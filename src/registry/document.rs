//! Artifacts that are one small document: signatures, deprecations, indexes of packages. The config is empty, and the type of the
//! artifact is the media type of its only layer.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{Descriptor, EMPTY, EMPTY_CONTENT, Manifest, Stored};
use crate::store::Store;

/// A document that is written as an artifact.
pub(crate) struct Document<'d> {
    /// Its media type, which is also the type of the artifact.
    pub(crate) kind: &'d str,
    /// Its content.
    pub(crate) content: Bytes,
    /// The annotations of its manifest.
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Document<'_> {
    /// The manifest, which may refer to another one.
    pub(crate) fn manifest(&self, subject: Option<&Descriptor>) -> Result<Stored, Error> {
        let what = format!("the manifest of {}", self.kind);
        let config = Descriptor::of(EMPTY, EMPTY_CONTENT);
        let mut manifest = Manifest::new(self.kind, config, vec![Descriptor::of(self.kind, &self.content)]);
        manifest.subject = subject.map(|subject| Descriptor {
            artifact_type: None,
            annotations: BTreeMap::new(),
            ..subject.clone()
        });
        manifest.annotations.clone_from(&self.annotations);
        let bytes =
            serde_json::to_vec(&manifest).map_err(|error| Error::invalid(&*what, error.to_string()))?;
        let mut stored = Stored::parse(&what, None, bytes.into())?;
        // Lists of referrers have the annotations, so that nobody must read the manifests.
        stored.descriptor.annotations = manifest.annotations;
        Ok(stored)
    }

    /// Writes the blobs that the store does not have.
    pub(crate) async fn put_blobs(&self, store: &Store) -> Result<(), Error> {
        let config = Descriptor::of(EMPTY, EMPTY_CONTENT);
        let content = Descriptor::of(self.kind, &self.content);
        for (blob, bytes) in [(&config, &Bytes::from_static(EMPTY_CONTENT)), (&content, &self.content)] {
            if !store.has_blob(blob).await? {
                store.put_blob(blob, bytes).await?;
            }
        }
        Ok(())
    }

    /// Writes it as a referrer of a manifest. Returns the digest of its own one.
    pub(crate) async fn attach(&self, store: &Store, subject: &Stored) -> Result<Stored, Error> {
        self.put_blobs(store).await?;
        let manifest = self.manifest(Some(&subject.descriptor))?;
        store.put_manifest(&manifest, None).await?;
        Ok(manifest)
    }
}

/// Whether an entry of a list of referrers may be an artifact of such a type.
pub(crate) fn may_be(referrer: &Descriptor, is_kind: impl Fn(&str) -> bool) -> bool {
    // Some registries list the type of the config, which is empty, in place of the artifact's.
    referrer.artifact_type.as_deref().is_none_or(|kind| is_kind(kind) || kind == EMPTY)
}

/// The manifest, if it refers to the subject. A list of referrers is written by anybody who may push; the manifest is what counts.
pub(crate) fn referring<'s>(stored: &'s Stored, subject: &Digest) -> Option<&'s Manifest> {
    let refers =
        |manifest: &&Manifest| manifest.subject.as_ref().is_some_and(|found| found.digest == *subject);
    stored.manifest().filter(refers)
}

/// The content of a document of this kind; none if the manifest is of another kind.
pub(crate) async fn read(
    store: &Store,
    manifest: &Stored,
    kind: &str,
    limit: u64,
) -> Result<Option<Bytes>, Error> {
    let Some(found) = manifest.manifest().filter(|found| found.kind() == kind) else { return Ok(None) };
    let Some(layer) = found.layers.first().filter(|layer| layer.media_type == kind) else { return Ok(None) };
    if layer.size > limit {
        let what = format!("the document {} ({kind})", layer.digest);
        return Err(Error::TooLarge { what, limit });
    }
    store.blob(layer).await.map(Some)
}
