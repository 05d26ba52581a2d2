//! Who may have signed a package: keys, and identities whose certificates a trusted root proves.

use std::fmt;

use crate::identity::Identity;
use crate::keyless::TrustedRoot;
use crate::keys::PublicKey;

/// Whoever may have signed.
#[derive(Debug, Clone, Default)]
pub struct Signers {
    /// Keys.
    pub keys: Vec<PublicKey>,
    /// Identities.
    pub identities: Vec<Proven>,
}

/// Identities, and the trusted root that proves them.
#[derive(Debug, Clone)]
pub struct Proven {
    /// The root.
    pub root: TrustedRoot,
    /// The identities.
    pub identities: Vec<Identity>,
}

/// Who has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signer {
    /// A key.
    Key(PublicKey),
    /// An identity, with the whole subject of its certificate.
    Identity(Identity),
}

impl Proven {
    /// Whether one of the identities is that of a certificate.
    pub fn permits(&self, found: &Identity) -> bool {
        self.identities.iter().any(|identity| identity.is(&found.issuer, &found.subject))
    }
}

impl Signers {
    /// These keys.
    pub fn of_keys(keys: Vec<PublicKey>) -> Self {
        Self { keys, identities: Vec::new() }
    }

    /// All of these together.
    pub fn of_all<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for one in all {
            sum.keys.extend_from_slice(&one.keys);
            sum.identities.extend_from_slice(&one.identities);
        }
        sum
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.identities.iter().all(|proven| proven.identities.is_empty())
    }
}

impl Signer {
    /// How a status names it: the fingerprint of the key, or the identity.
    pub fn name(&self) -> String {
        match self {
            Self::Key(key) => format!("sha256:{}", key.hint()),
            Self::Identity(identity) => identity.to_string(),
        }
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Key(_) => "key",
            Self::Identity(_) => "identity",
        };
        write!(f, "{kind} {}", self.name())
    }
}
