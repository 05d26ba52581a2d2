//! Keys in PEM files, without passwords: ECDSA P-256 with SHA-256, and Ed25519.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _, UnparsedPublicKey,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use crate::digest::Digest;
use crate::error::Error;

/// What precedes the point of a P-256 key in its `SubjectPublicKeyInfo`.
const P256_PREFIX: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// What precedes the bytes of an Ed25519 key.
const ED25519_PREFIX: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A private key.
pub struct PrivateKey(Pair);

enum Pair {
    P256(Box<EcdsaKeyPair>, SystemRandom),
    Ed25519(Ed25519KeyPair),
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    kind: Kind,
    key: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    P256,
    Ed25519,
}

impl PrivateKey {
    /// Reads a PKCS #8 key in PEM; `what` names it in messages.
    ///
    /// # Errors
    /// It is encrypted, or of another kind.
    pub fn parse(what: &str, pem: &[u8]) -> Result<Self, Error> {
        let wrong = |reason: &str| Error::Key { what: what.to_owned(), reason: reason.to_owned() };
        if pem.windows(9).any(|word| word == b"ENCRYPTED") {
            return Err(wrong("it is encrypted, and Operetta reads keys without a password"));
        }
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem)
            .map_err(|_| wrong("it is no private key in PEM (BEGIN PRIVATE KEY)"))?;
        let der = der.secret_pkcs8_der();
        let random = SystemRandom::new();
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random) {
            return Ok(Self(Pair::P256(Box::new(pair), random)));
        }
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
            .map(|pair| Self(Pair::Ed25519(pair)))
            .map_err(|_| wrong("it is neither ECDSA P-256 nor Ed25519"))
    }

    /// Signs a message.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        match &self.0 {
            Pair::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Pair::P256(pair, random) => {
                let signature = pair.sign(random, message).map_err(|_| Error::Key {
                    what: "the key".into(),
                    reason: "this system has no random numbers".into(),
                })?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }

    /// The public part.
    pub fn public(&self) -> PublicKey {
        match &self.0 {
            Pair::P256(pair, _) => PublicKey { kind: Kind::P256, key: pair.public_key().as_ref().to_vec() },
            Pair::Ed25519(pair) => {
                PublicKey { kind: Kind::Ed25519, key: pair.public_key().as_ref().to_vec() }
            }
        }
    }
}

impl PublicKey {
    /// Reads a public key in PEM; `what` names it in messages.
    ///
    /// # Errors
    /// It is of another kind.
    pub fn parse(what: &str, pem: &[u8]) -> Result<Self, Error> {
        let wrong = |reason: &str| Error::Key { what: what.to_owned(), reason: reason.to_owned() };
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem)
            .map_err(|_| wrong("it is no public key in PEM (BEGIN PUBLIC KEY)"))?;
        for (kind, prefix, length) in [(Kind::P256, P256_PREFIX, 65), (Kind::Ed25519, ED25519_PREFIX, 32)] {
            if let Some(key) = der.strip_prefix(prefix).filter(|key| key.len() == length) {
                return Ok(Self { kind, key: key.to_vec() });
            }
        }
        Err(wrong("it is neither ECDSA P-256 nor Ed25519"))
    }

    /// Whether the signature of a message is of this key.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self.kind {
            Kind::P256 => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.key).verify(message, signature)
            }
            Kind::Ed25519 => UnparsedPublicKey::new(&ED25519, &self.key).verify(message, signature),
        }
        .is_ok()
    }

    /// Its `SubjectPublicKeyInfo`.
    fn der(&self) -> Vec<u8> {
        match self.kind {
            Kind::P256 => [P256_PREFIX, &self.key].concat(),
            Kind::Ed25519 => [ED25519_PREFIX, &self.key].concat(),
        }
    }

    /// The fingerprint by which Sigstore names it: Base64 of the SHA-256.
    pub fn hint(&self) -> String {
        STANDARD.encode(Digest::of(&self.der()).bytes())
    }

    /// It in PEM.
    pub fn pem(&self) -> String {
        let text = STANDARD.encode(self.der());
        let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy).map(|line| line + "\n");
        format!("-----BEGIN PUBLIC KEY-----\n{}-----END PUBLIC KEY-----\n", lines.collect::<String>())
    }
}
