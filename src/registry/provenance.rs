//! Where a stored package is from, with what proves it later without the registry: the manifest, the config, and the
//! signatures. A signature is of the digest of the manifest, which has the digest of the config, which has that of the files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::artifact::{Config, parts};
use crate::digest::Digest;
use crate::error::Error;
use crate::fetch::Fetched;
use crate::manifest::{Descriptor, Stored};
use crate::signatures::{Content, Signature, check, find};
use crate::signers::{Signer, Signers};

/// How many signatures are kept, and how many bytes in total.
const MOST: usize = 8;
const MOST_BYTES: usize = 64 << 10;

/// Where a package is from, and what proves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The reference with the digest of the manifest.
    pub reference: String,
    /// The manifest, in Base64.
    manifest: String,
    /// The config, in Base64.
    config: String,
    /// The signatures, each in Base64.
    #[serde(default)]
    signatures: Vec<Kept>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Kept {
    /// A Sigstore bundle.
    Bundle(String),
    /// A signature of cosign 2.
    Simple { payload: String, signature: String },
}

impl Provenance {
    /// The provenance of a package. If it has many signatures, those of the signers are kept.
    ///
    /// # Errors
    /// The signatures cannot be read.
    pub async fn collect(fetched: &Fetched, signers: &Signers) -> Result<Self, Error> {
        let mut found = find(&fetched.place.store, &fetched.manifest).await?;
        found.sort_by_cached_key(|one| one.signer(&fetched.manifest, signers).is_err());
        Ok(Self::of(fetched, &found))
    }

    /// The provenance of a package with the first of these signatures.
    fn of(fetched: &Fetched, signatures: &[Signature]) -> Self {
        let mut left = MOST_BYTES;
        let mut kept = Vec::new();
        for signature in signatures {
            let (one, bytes) = match &signature.content {
                Content::Bundle(bundle) => (Kept::Bundle(STANDARD.encode(bundle)), bundle.len()),
                Content::Simple { payload, signature } => (
                    Kept::Simple { payload: STANDARD.encode(payload), signature: signature.clone() },
                    payload.len() + signature.len(),
                ),
            };
            if kept.len() < MOST && bytes <= left {
                left -= bytes;
                kept.push(one);
            }
        }
        Self {
            reference: fetched.name.clone(),
            manifest: STANDARD.encode(&fetched.manifest.bytes),
            config: STANDARD.encode(&fetched.config_bytes),
            signatures: kept,
        }
    }

    /// Checks that it is about the package with these files (the SHA-256 in hex, as a revision has it). Returns the digest of the
    /// manifest.
    ///
    /// # Errors
    /// It is about another package, or was altered.
    pub fn digest(&self, revision: &str) -> Result<Digest, Error> {
        self.open(revision).map(|manifest| manifest.descriptor.digest)
    }

    /// Checks the same, and that one of the signers has signed it. Returns which, and the format of the signature.
    ///
    /// # Errors
    /// None has.
    pub fn verify(&self, revision: &str, signers: &Signers) -> Result<(Signer, &'static str), Error> {
        let manifest = self.open(revision)?;
        let signatures = self.signatures.iter().map(|kept| self.signature(kept));
        let signatures = signatures.collect::<Result<Vec<_>, _>>()?;
        let (signature, signer) = check(&self.reference, &manifest, &signatures, signers)?;
        Ok((signer, signature.format()))
    }

    fn open(&self, revision: &str) -> Result<Stored, Error> {
        let what = || format!("the provenance {}", Error::shown(&self.reference));
        let manifest = Stored::parse(&what(), None, self.decode(&self.manifest)?)?;
        let digest = &manifest.descriptor.digest;
        if !self.reference.ends_with(&format!("@{digest}")) {
            return Err(Error::invalid(what(), "its manifest has another digest"));
        }
        let config = self.decode(&self.config)?;
        if parts(&what(), &manifest)?.0.digest != Digest::of(&config) {
            return Err(Error::invalid(what(), "its config is not that of its manifest"));
        }
        if Config::parse(&what(), &config)?.revision != revision {
            return Err(Error::invalid(what(), "it is of a package with other files"));
        }
        Ok(manifest)
    }

    fn signature(&self, kept: &Kept) -> Result<Signature, Error> {
        let (content, bytes) = match kept {
            Kept::Bundle(bundle) => {
                let bundle = self.decode(bundle)?;
                (Content::Bundle(bundle.clone()), bundle)
            }
            Kept::Simple { payload, signature } => {
                let payload = self.decode(payload)?;
                (Content::Simple { payload: payload.clone(), signature: signature.clone() }, payload)
            }
        };
        Ok(Signature { of: Descriptor::of(crate::bundle::BUNDLE, &bytes), content })
    }

    fn decode(&self, text: &str) -> Result<Bytes, Error> {
        let what = || format!("the provenance {}", Error::shown(&self.reference));
        STANDARD.decode(text).map(Bytes::from).map_err(|_| Error::invalid(what(), "it is no Base64"))
    }
}
