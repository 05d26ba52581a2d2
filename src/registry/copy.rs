//! Copies of artifacts, with what refers to them. What is visible by a tag is complete: blobs come first, then
//! the manifest by its digest, its referrers, and the tag last. So an attempt that was killed is repeated. In a layout, a
//! manifest is found without a tag, too, so all of them are listed at once.

use bytes::Bytes;

use crate::artifact::Artifact;
use crate::attached::attach;
use crate::error::Error;
use crate::manifest::{Content, Descriptor, ENTRIES, Stored};
use crate::store::Store;

/// How deep referrers of referrers, and indexes in indexes, are copied.
const DEPTH: usize = 4;
/// The suffixes of the tags by which cosign 2 attaches signatures and attestations.
const ATTACHED: [&str; 3] = ["sig", "att", "sbom"];

/// What a copy does, for people.
#[derive(Debug, Clone, Copy)]
pub enum Step<'s> {
    /// The target has the blob or manifest already.
    Present(&'s Descriptor),
    /// It was written.
    Written(&'s Descriptor),
}

/// Receives the steps.
pub type Progress<'p> = &'p (dyn Fn(Step<'_>) + Sync);

/// Writes a package, and attaches what has these types. Unless `force`, a tag that has another content is not moved.
///
/// # Errors
/// It cannot be written, or the tag has another content.
pub async fn push(
    artifact: &Artifact,
    attached: &[(&str, Bytes)],
    to: &Store,
    tags: &[&str],
    force: bool,
    progress: Progress<'_>,
) -> Result<(), Error> {
    for tag in tags {
        check_tag(&artifact.manifest, to, tag, force).await?;
    }
    for (blob, bytes) in artifact.blobs() {
        if to.has_blob(&blob).await? {
            progress(Step::Present(&blob));
        } else {
            to.put_blob(&blob, &bytes).await?;
            progress(Step::Written(&blob));
        }
    }
    if !attached.is_empty() {
        // A subject comes before what refers to it, and the tag last.
        to.put_subject(&artifact.manifest).await?;
    }
    for (kind, bytes) in attached {
        let written = attach(to, &artifact.manifest, kind, bytes.clone()).await?;
        progress(Step::Written(&written));
    }
    for tag in tags {
        to.put_tagged(&artifact.manifest, tag, force).await?;
    }
    progress(Step::Written(&artifact.manifest.descriptor));
    Ok(())
}

/// Copies a manifest with its blobs, its referrers, and the signatures of cosign 2.
///
/// # Errors
/// Something cannot be read or written, or the tag has another content.
pub async fn copy(
    manifest: &Stored,
    from: &Store,
    to: &Store,
    tag: Option<&str>,
    force: bool,
    progress: Progress<'_>,
) -> Result<(), Error> {
    if let Some(tag) = tag {
        check_tag(manifest, to, tag, force).await?;
    }
    let copied = with_referrers(manifest.clone(), from, to, progress).await?;
    for suffix in ATTACHED {
        let attached = format!("sha256-{}.{suffix}", manifest.descriptor.digest.hex());
        if let Some(found) = from.find(&attached).await? {
            blobs(&found, from, to, progress).await?;
            to.put_manifest(&found, Some(&attached)).await?;
            progress(Step::Written(&found.descriptor));
        }
    }
    to.list(copied)?;
    if let Some(tag) = tag {
        to.put_tagged(manifest, tag, force).await?;
    }
    Ok(())
}

async fn check_tag(manifest: &Stored, to: &Store, tag: &str, force: bool) -> Result<(), Error> {
    if force {
        return Ok(());
    }
    let found = to.find(tag).await?;
    found.map_or(Ok(()), |found| manifest.check_tag(tag, &found.descriptor.digest))
}

/// Copies a manifest and what refers to it, and returns their descriptors. A layout does not list them yet.
async fn with_referrers(
    first: Stored,
    from: &Store,
    to: &Store,
    progress: Progress<'_>,
) -> Result<Vec<Descriptor>, Error> {
    let mut copied = Vec::new();
    // An index comes after its manifests, and a referrer after its subject.
    let mut pending = vec![(first, 0, false)];
    while let Some((manifest, depth, is_expanded)) = pending.pop() {
        if depth > DEPTH {
            let what = format!("the manifest {}", manifest.descriptor.digest);
            return Err(Error::invalid(what, format!("it is more than {DEPTH} levels deep")));
        }
        if let (Content::Index(index), false) = (&manifest.content, is_expanded) {
            let children = index.manifests.clone();
            pending.push((manifest, depth, true));
            for child in children {
                pending.push((from.manifest(&child.digest.to_string()).await?, depth + 1, false));
            }
            continue;
        }
        if copied.len() == ENTRIES {
            let what = format!("the manifest {}", manifest.descriptor.digest);
            return Err(Error::invalid(what, format!("more than {ENTRIES} are to be copied")));
        }
        copied.push(manifest.descriptor.clone());
        blobs(&manifest, from, to, progress).await?;
        to.put_subject(&manifest).await?;
        progress(Step::Written(&manifest.descriptor));
        for referrer in from.referrers(&manifest.descriptor.digest).await? {
            // What was deleted may still be listed, where a tag has the list.
            let found = from.find(&referrer.digest.to_string()).await?;
            pending.extend(found.map(|found| (found, depth + 1, false)));
        }
    }
    Ok(copied)
}

/// Copies the blobs that the target does not have.
async fn blobs(manifest: &Stored, from: &Store, to: &Store, progress: Progress<'_>) -> Result<(), Error> {
    for blob in manifest.content.blobs() {
        if to.has_blob(blob).await? {
            progress(Step::Present(blob));
            continue;
        }
        if !to.mount(blob, from).await? {
            to.put_blob(blob, &from.blob(blob).await?).await?;
        }
        progress(Step::Written(blob));
    }
    Ok(())
}
