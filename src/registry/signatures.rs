//! Signatures of what is in a store: found, written, verified.

use bytes::Bytes;

use crate::bundle::{
    BUNDLE, BUNDLE_BYTES, PREDICATE, SIGNATURE, SIMPLE_SIGNING, hint, identity, is_bundle, is_of_identity,
    sign, verify, verify_simple,
};
use crate::document::{self, Document};
use crate::error::Error;
use crate::identity::Identity;
use crate::keyless::{TrustedRoot, claimed};
use crate::keys::{PrivateKey, PublicKey};
use crate::manifest::{Descriptor, Stored};
use crate::signers::{Signer, Signers};
use crate::store::Store;

/// The maximum number of signatures that are read of one manifest.
const SIGNATURES: usize = 100;

/// A signature that a store has.
#[derive(Debug, Clone)]
pub struct Signature {
    /// The digest of the manifest of the signature.
    pub of: Descriptor,
    pub(crate) content: Content,
}

#[derive(Debug, Clone)]
pub(crate) enum Content {
    Bundle(Bytes),
    Simple { payload: Bytes, signature: String },
}

impl Signature {
    /// Checks that it is a signature of the manifest by the key.
    ///
    /// # Errors
    /// The reason why it is none.
    pub fn verify(&self, manifest: &Stored, key: &PublicKey) -> Result<(), &'static str> {
        let digest = &manifest.descriptor.digest;
        match &self.content {
            Content::Bundle(bundle) => verify(bundle, digest, key),
            Content::Simple { payload, signature } => verify_simple(payload, signature, digest, key),
        }
    }

    /// Checks that it is a signature of the manifest by somebody whom the root proves, and returns whom.
    ///
    /// # Errors
    /// The reason why it is none.
    pub fn identity(&self, manifest: &Stored, root: &TrustedRoot) -> Result<Identity, String> {
        match &self.content {
            Content::Bundle(bundle) if is_of_identity(bundle) => {
                identity(bundle, &manifest.descriptor.digest, root)
            }
            Content::Bundle(_) => Err("it is the signature of a key".to_owned()),
            Content::Simple { .. } => Err("identities in signatures of cosign 2 are not read".to_owned()),
        }
    }

    /// Who of the signers has made it, if it is valid.
    ///
    /// # Errors
    /// The reasons why it is of none of them.
    pub fn signer(&self, manifest: &Stored, signers: &Signers) -> Result<Signer, Vec<String>> {
        let mut reasons = Vec::new();
        for key in &signers.keys {
            match self.verify(manifest, key) {
                Ok(()) => return Ok(Signer::Key(key.clone())),
                Err(reason) => reasons.push(reason.to_owned()),
            }
        }
        for proven in &signers.identities {
            match self.identity(manifest, &proven.root) {
                Ok(identity) if proven.permits(&identity) => return Ok(Signer::Identity(identity)),
                Ok(identity) => reasons.push(format!("it is of {}", Error::shown(&identity.to_string()))),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons)
    }

    /// The format, in words.
    pub fn format(&self) -> &'static str {
        match self.content {
            Content::Bundle(_) => "Sigstore bundle v0.3",
            Content::Simple { .. } => "cosign 2",
        }
    }

    /// Who has made it, as it says itself: the fingerprint of a key (`sha256:...`), or an identity.
    pub fn claim(&self) -> Option<String> {
        let Content::Bundle(bundle) = &self.content else { return None };
        let key = hint(bundle).map(|key| format!("sha256:{key}"));
        key.or_else(|| claimed(bundle).map(|identity| identity.to_string()))
    }
}

/// The signatures of a manifest: bundles that refer to it, and the tag of cosign 2.
///
/// # Errors
/// They cannot be read.
pub async fn find(store: &Store, manifest: &Stored) -> Result<Vec<Signature>, Error> {
    let digest = &manifest.descriptor.digest;
    let mut found = Vec::new();
    for referrer in store.referrers(digest).await? {
        if !document::may_be(&referrer, is_bundle) {
            continue;
        }
        let stored = store.manifest(&referrer.digest.to_string()).await?;
        let manifests = document::referring(&stored, digest).into_iter();
        for layer in manifests.flat_map(|manifest| &manifest.layers) {
            if is_bundle(&layer.media_type) {
                few(&found, manifest)?;
                let content = Content::Bundle(small(store, layer).await?);
                found.push(Signature { of: stored.descriptor.clone(), content });
            }
        }
    }
    if let Some(stored) = store.find(&format!("sha256-{}.sig", digest.hex())).await? {
        for layer in stored.manifest().into_iter().flat_map(|manifest| &manifest.layers) {
            let signature = layer.annotations.get(SIGNATURE);
            if let Some(signature) = signature.filter(|_| layer.media_type == SIMPLE_SIGNING) {
                few(&found, manifest)?;
                let (payload, signature) = (small(store, layer).await?, signature.clone());
                let content = Content::Simple { payload, signature };
                found.push(Signature { of: stored.descriptor.clone(), content });
            }
        }
    }
    Ok(found)
}

fn few(found: &[Signature], manifest: &Stored) -> Result<(), Error> {
    if found.len() < SIGNATURES {
        return Ok(());
    }
    let reason = format!("it has more than {SIGNATURES} signatures");
    Err(Error::invalid(format!("the manifest {}", manifest.descriptor.digest), reason))
}

async fn small(store: &Store, layer: &Descriptor) -> Result<Bytes, Error> {
    if layer.size > BUNDLE_BYTES {
        return Err(Error::TooLarge { what: format!("the signature {}", layer.digest), limit: BUNDLE_BYTES });
    }
    store.blob(layer).await
}

/// Who has made signatures, as they say themselves.
pub fn claims(signatures: &[Signature]) -> Vec<String> {
    let mut claims: Vec<String> = signatures.iter().filter_map(Signature::claim).collect();
    claims.sort_unstable();
    claims.dedup();
    claims
}

/// The first of the signatures that is valid for one of the signers, and which.
///
/// # Errors
/// None is; the reasons are in the message.
pub fn check<'s>(
    what: &str,
    manifest: &Stored,
    signatures: &'s [Signature],
    signers: &Signers,
) -> Result<(&'s Signature, Signer), Error> {
    let mut reasons = Vec::new();
    for signature in signatures {
        match signature.signer(manifest, signers) {
            Ok(signer) => return Ok((signature, signer)),
            Err(why) => {
                reasons.extend(why.into_iter().map(|reason| format!("{}: {reason}", signature.of.digest)));
            }
        }
    }
    reasons.dedup();
    let reason = match reasons.len() {
        0 => "it is not signed\n  help: operetta sign REF --key FILE".to_owned(),
        1..=3 => reasons.join("; "),
        count => format!("{count} signatures are of others or of other manifests"),
    };
    Err(Error::NotSigned { what: what.to_owned(), reason })
}

/// Signs a manifest and stores the signature as a referrer. Returns the digest of its manifest.
///
/// # Errors
/// The signature cannot be written.
pub async fn attach(store: &Store, manifest: &Stored, key: &PrivateKey) -> Result<Descriptor, Error> {
    attach_bundle(store, manifest, sign(&manifest.descriptor.digest, key)?).await
}

/// Stores a bundle that signs a manifest as a referrer. Returns the digest of its manifest.
///
/// # Errors
/// It cannot be written.
pub async fn attach_bundle(store: &Store, manifest: &Stored, bundle: Vec<u8>) -> Result<Descriptor, Error> {
    // As cosign writes them.
    let annotations = [("content", "dsse-envelope"), ("predicateType", PREDICATE)]
        .map(|(name, value)| (format!("dev.sigstore.bundle.{name}"), value.to_owned()));
    let document = Document { kind: BUNDLE, content: Bytes::from(bundle), annotations: annotations.into() };
    document.attach(store, manifest).await.map(|stored| stored.descriptor)
}

/// Signs a manifest, unless a signature of the key is there already: what is made again gets no second one.
///
/// # Errors
/// The signatures cannot be read, or the new one cannot be written.
pub(crate) async fn attach_once(store: &Store, manifest: &Stored, key: &PrivateKey) -> Result<(), Error> {
    let found = find(store, manifest).await?;
    let public = key.public();
    if found.iter().any(|one| one.verify(manifest, &public).is_ok()) {
        return Ok(());
    }
    attach(store, manifest, key).await.map(drop)
}
