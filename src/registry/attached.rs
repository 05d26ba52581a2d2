//! What is attached to a manifest: artifacts of one layer that refer to it, such as signatures, tests and SBOMs.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::document::{self, Document};
use crate::error::Error;
use crate::manifest::{Descriptor, EMPTY, Stored};
use crate::store::Store;

/// The type of the artifact with the files that the cases of a package read: one layer, a gzipped tar archive.
pub const TESTS: &str = "application/vnd.operetta.package.tests.v1.tar+gzip";
/// The type of an SBOM in SPDX, as other tools name it, too.
pub const SBOM: &str = "application/spdx+json";
/// The type of a README, whose digest the config of the package has.
pub const README: &str = "text/markdown";
/// The maximum size of a README that is read, in bytes.
pub const README_BYTES: u64 = 1 << 20;
/// The maximum number of attachments of one type that are read.
const MOST: usize = 20;

/// Attaches bytes: an artifact of this type, whose layer has the same type. Returns its manifest.
///
/// # Errors
/// It cannot be written.
pub async fn attach(store: &Store, subject: &Stored, kind: &str, bytes: Bytes) -> Result<Descriptor, Error> {
    let document = Document { kind, content: bytes, annotations: BTreeMap::new() };
    document.attach(store, subject).await.map(|stored| stored.descriptor)
}

/// What refers to a manifest, with the types of the artifacts.
///
/// # Errors
/// It cannot be read.
pub async fn listed(store: &Store, subject: &Stored) -> Result<Vec<Descriptor>, Error> {
    let mut found = store.referrers(&subject.descriptor.digest).await?;
    for referrer in &mut found {
        // Some registries list the type of the config, which is empty, in place of the artifact's. The manifest has it.
        if referrer.artifact_type.as_deref().is_none_or(|kind| kind == EMPTY) {
            let stored = store.manifest(&referrer.digest.to_string()).await?;
            referrer.artifact_type = stored.descriptor.artifact_type;
        }
    }
    Ok(found)
}

/// What is attached to a manifest with this type, of `most` bytes each at most.
///
/// # Errors
/// It cannot be read, or is larger.
pub async fn attached(store: &Store, subject: &Stored, kind: &str, most: u64) -> Result<Vec<Bytes>, Error> {
    let digest = &subject.descriptor.digest;
    let mut found = Vec::new();
    for referrer in store.referrers(digest).await? {
        if !document::may_be(&referrer, |listed| listed == kind) {
            continue;
        }
        let stored = store.manifest(&referrer.digest.to_string()).await?;
        let layers = document::referring(&stored, digest).into_iter().flat_map(|manifest| &manifest.layers);
        for layer in layers.filter(|layer| layer.media_type == kind) {
            if found.len() == MOST {
                let reason = format!("it has more than {MOST} attachments of the type {kind}");
                return Err(Error::invalid(format!("the manifest {digest}"), reason));
            }
            if layer.size > most {
                return Err(Error::TooLarge {
                    what: format!("the attachment {}", layer.digest),
                    limit: most,
                });
            }
            found.push(store.blob(layer).await?);
        }
    }
    Ok(found)
}
