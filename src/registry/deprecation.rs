//! Deprecations: a published version cannot change, so that it is deprecated is said by a small artifact that refers to it. It can be
//! signed as the package can, because whoever may push to the repository can write one.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::document::{self, Document};
use crate::error::Error;
use crate::keys::PrivateKey;
use crate::manifest::{Descriptor, Stored, json};
use crate::reference::Reference;
use crate::signatures;
use crate::signers::{Signer, Signers};
use crate::store::Store;

/// The type of the artifact, and the media type of its layer.
pub const DEPRECATION: &str = "application/vnd.operetta.deprecation.v1+json";
/// The format that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;
/// The maximum size, in bytes.
const BYTES: u64 = 16 << 10;
/// How many deprecations of a manifest are read.
const MOST: usize = 20;
/// The maximum length of a message, in characters.
const MESSAGE: usize = 1_000;

/// What is said about a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deprecation {
    format: u32,
    /// Why, and what to do.
    pub message: String,
    /// The repository or version to use instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
}

impl Deprecation {
    /// A deprecation.
    ///
    /// # Errors
    /// There is no message, it is too long, or the replacement is no reference.
    pub fn new(message: &str, replaced_by: Option<&str>) -> Result<Self, Error> {
        let message = message.trim();
        let invalid = |reason: &str| Error::invalid("the message of the deprecation", reason);
        if message.is_empty() {
            return Err(invalid("it is empty"));
        }
        if message.chars().count() > MESSAGE || message.contains(char::is_control) {
            return Err(invalid("it has one line of at most 1,000 characters"));
        }
        let replaced_by = replaced_by.map(str::parse::<Reference>).transpose()?;
        Ok(Self {
            format: FORMAT,
            message: message.to_owned(),
            replaced_by: replaced_by.map(|reference| reference.to_string()),
        })
    }

    fn parse(what: &str, bytes: &[u8]) -> Result<Self, Error> {
        let read: Self = json(what, bytes)?;
        if read.format > FORMAT {
            return Err(Error::invalid(what, "it is of a newer format: upgrade Operetta"));
        }
        // It was written by others: what they may not write is not shown either.
        Self::new(&read.message, read.replaced_by.as_deref())
    }
}

/// A deprecation that a store has.
#[derive(Debug, Clone)]
pub struct Found {
    /// What it says.
    pub deprecation: Deprecation,
    /// The digest of its manifest.
    pub of: Descriptor,
    /// Who has signed it, as the signatures say.
    pub signers: Vec<String>,
    /// Who has signed it, of the signers that were given.
    pub signer: Option<Signer>,
}

/// The deprecations of a manifest, those that one of the signers has signed first, and unsigned ones last. One that cannot be read as such
/// does not count: anybody who may push can have written it.
///
/// # Errors
/// The registry does not answer, or not as it should.
pub async fn find(store: &Store, manifest: &Stored, signers: &Signers) -> Result<Vec<Found>, Error> {
    let digest = &manifest.descriptor.digest;
    let mut found = Vec::new();
    for referrer in store.referrers(digest).await? {
        if found.len() == MOST || !document::may_be(&referrer, |kind| kind == DEPRECATION) {
            continue;
        }
        match read(store, &referrer.digest, digest).await {
            Ok(Some((stored, deprecation))) => found.push(signed(store, stored, deprecation, signers).await?),
            // What was deleted may still be listed.
            Ok(None) | Err(Error::NotFound { .. } | Error::TooLarge { .. } | Error::Invalid { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by_key(|one| (one.signer.is_none(), one.signers.is_empty(), one.of.digest.clone()));
    Ok(found)
}

/// The deprecation of this manifest, if it is one of the subject.
async fn read(
    store: &Store,
    digest: &Digest,
    subject: &Digest,
) -> Result<Option<(Stored, Deprecation)>, Error> {
    let stored = store.manifest(&digest.to_string()).await?;
    if document::referring(&stored, subject).is_none() {
        return Ok(None);
    }
    let Some(content) = document::read(store, &stored, DEPRECATION, BYTES).await? else { return Ok(None) };
    let deprecation = Deprecation::parse(&format!("the deprecation {digest}"), &content);
    Ok(deprecation.ok().map(|deprecation| (stored, deprecation)))
}

/// A deprecation with who has signed it.
async fn signed(
    store: &Store,
    stored: Stored,
    deprecation: Deprecation,
    signers: &Signers,
) -> Result<Found, Error> {
    let signatures = signatures::find(store, &stored).await?;
    let signer = signatures::check("the deprecation", &stored, &signatures, signers).ok().map(|(_, who)| who);
    Ok(Found { deprecation, signers: signatures::claims(&signatures), signer, of: stored.descriptor })
}

/// Deprecates a manifest. An equal deprecation that is there already gets the signature only. Returns the digest of its manifest.
///
/// # Errors
/// It cannot be written.
pub async fn attach(
    store: &Store,
    manifest: &Stored,
    deprecation: &Deprecation,
    key: Option<&PrivateKey>,
) -> Result<Descriptor, Error> {
    let content = serde_json::to_vec(deprecation)
        .map_err(|error| Error::invalid("the deprecation", error.to_string()))?;
    let document =
        Document { kind: DEPRECATION, content: Bytes::from(content), annotations: BTreeMap::new() };
    let stored = document.attach(store, manifest).await?;
    if let Some(key) = key {
        signatures::attach_once(store, &stored, key).await?;
    }
    Ok(stored.descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_one_line_and_replacements_are_references() {
        assert!(Deprecation::new("use 2.0", Some("oci://ghcr.io/acme/etcd:2.0.0")).is_ok());
        let long = "x".repeat(MESSAGE + 1);
        for (message, replaced_by) in [
            (" ", None),
            ("a\nb", None),
            ("a\u{1b}[2J", None),
            (&*long, None),
            ("a", Some("etcd")),
            ("a", Some("oci://ghcr.io/../x")),
        ] {
            assert!(Deprecation::new(message, replaced_by).is_err(), "{message:?} {replaced_by:?}");
        }
        let read = |text: &str| Deprecation::parse("x", text.as_bytes()).is_ok();
        assert!(read(r#"{"format":1,"message":"a","later":1}"#));
        assert!(!read(r#"{"format":2,"message":"a"}"#) && !read(r#"{"format":1,"message":"a\u001b[2J"}"#));
    }
}
