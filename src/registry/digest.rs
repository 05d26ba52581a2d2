//! Digests of blobs and manifests.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{:?} is no digest\n  help: a digest is sha256: and 64 hex digits in lower case", .0.chars().take(100).collect::<String>())]
pub struct NotADigest(String);

/// A SHA-256, written `sha256:<64 hex digits>`. Other algorithms are not supported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(HEXLOWER.encode(&Sha256::digest(bytes)))
    }

    /// The digest that a hasher has computed.
    pub(crate) fn finish(hasher: Sha256) -> Self {
        Self(HEXLOWER.encode(&hasher.finalize()))
    }

    /// The digits, without the algorithm.
    pub fn hex(&self) -> &str {
        &self.0
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        HEXLOWER.decode(self.0.as_bytes()).unwrap_or_default()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let hex = text.strip_prefix("sha256:").filter(|hex| {
            hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        hex.map(|hex| Self(hex.to_owned())).ok_or_else(|| NotADigest(text.to_owned()))
    }
}

impl TryFrom<String> for Digest {
    type Error = NotADigest;

    fn try_from(text: String) -> Result<Self, NotADigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}
