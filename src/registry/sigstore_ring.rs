//! The cryptography of `ring` for `sigstore-verify`, whose default would bring a second library of it. It verifies; nothing is signed.

use std::fmt;

use ring::digest::{Context, SHA256, SHA384, SHA512};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, UnparsedPublicKey,
    VerificationAlgorithm,
};
use sigstore_verify::crypto::{
    CryptoProvider, Error, HashContext, Result, SigningScheme, install_default_provider,
};
use sigstore_verify::types::HashAlgorithm;

#[derive(Debug)]
struct Ring;

struct Hash(Context);

impl HashContext for Hash {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finalize(self: Box<Self>) -> Vec<u8> {
        self.0.finish().as_ref().to_vec()
    }
}

/// Makes it the cryptography of the process, which it stays.
pub(crate) fn install() {
    // A second installation changes nothing.
    let _ = install_default_provider(&Ring);
}

impl CryptoProvider for Ring {
    fn hash(&self, algorithm: HashAlgorithm) -> Result<Box<dyn HashContext>> {
        let algorithm = match algorithm {
            HashAlgorithm::Sha2256 => &SHA256,
            HashAlgorithm::Sha2384 => &SHA384,
            HashAlgorithm::Sha2512 => &SHA512,
            other => return Err(unsupported(&other)),
        };
        Ok(Box::new(Hash(Context::new(algorithm))))
    }

    fn verify_raw(&self, scheme: SigningScheme, key: &[u8], data: &[u8], signature: &[u8]) -> Result<()> {
        let algorithm: &'static dyn VerificationAlgorithm = match scheme {
            SigningScheme::EcdsaP256Sha256 => &ECDSA_P256_SHA256_ASN1,
            SigningScheme::EcdsaP256Sha384 => &ECDSA_P256_SHA384_ASN1,
            SigningScheme::EcdsaP384Sha256 => &ECDSA_P384_SHA256_ASN1,
            SigningScheme::EcdsaP384Sha384 => &ECDSA_P384_SHA384_ASN1,
            SigningScheme::Ed25519 => &ED25519,
            SigningScheme::RsaPssSha256 => &RSA_PSS_2048_8192_SHA256,
            SigningScheme::RsaPssSha384 => &RSA_PSS_2048_8192_SHA384,
            SigningScheme::RsaPssSha512 => &RSA_PSS_2048_8192_SHA512,
            SigningScheme::RsaPkcs1Sha256 => &RSA_PKCS1_2048_8192_SHA256,
            SigningScheme::RsaPkcs1Sha384 => &RSA_PKCS1_2048_8192_SHA384,
            SigningScheme::RsaPkcs1Sha512 => &RSA_PKCS1_2048_8192_SHA512,
            other => return Err(unsupported(&other.name())),
        };
        let verified = UnparsedPublicKey::new(algorithm, key).verify(data, signature);
        verified.map_err(|_| Error::Verification(format!("a signature of {} is not valid", scheme.name())))
    }

    /// Signatures of DSSE envelopes are of the whole message; only other bundles would need this.
    fn verify_prehashed(&self, scheme: SigningScheme, _: &[u8], _: &[u8], _: &[u8]) -> Result<()> {
        Err(unsupported(&format!("{} of a digest", scheme.name())))
    }
}

fn unsupported(what: &dyn fmt::Display) -> Error {
    Error::UnsupportedAlgorithm(format!("{what} is not supported"))
}
