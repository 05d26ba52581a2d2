//! Signatures without a key: the certificate in a Sigstore bundle names an identity, and a trusted root has the authorities that issue such
//! certificates and the logs that must have recorded certificate and signature. All of it is checked offline. Without the feature
//! `sigstore-verify` no root can be read.

#[cfg(feature = "sigstore-verify")]
pub use with::TrustedRoot;
#[cfg(feature = "sigstore-verify")]
pub(crate) use with::claimed;
#[cfg(not(feature = "sigstore-verify"))]
pub use without::TrustedRoot;
#[cfg(not(feature = "sigstore-verify"))]
pub(crate) use without::claimed;

/// The maximum size of a trusted root, in bytes: that of Sigstore's public instance has some 7 KB.
pub const ROOT_BYTES: usize = 128 << 10;

#[cfg(not(feature = "sigstore-verify"))]
mod without {
    use crate::digest::Digest;
    use crate::error::Error;
    use crate::identity::Identity;

    /// A trusted root. There is none.
    #[derive(Debug, Clone)]
    pub enum TrustedRoot {}

    /// None: certificates are not read.
    pub(crate) fn claimed(_: &[u8]) -> Option<Identity> {
        None
    }

    impl TrustedRoot {
        /// Fails.
        ///
        /// # Errors
        /// Always.
        pub fn parse(what: &str, _: &[u8]) -> Result<Self, Error> {
            let reason = "this operetta is built without the feature sigstore-verify, and checks only keys";
            Err(Error::Root { what: what.to_owned(), reason: reason.to_owned() })
        }

        pub(crate) fn signer(&self, _: &[u8], _: &Digest) -> Result<Identity, String> {
            match *self {}
        }
    }
}

#[cfg(feature = "sigstore-verify")]
mod with {
    use std::fmt;
    use std::sync::Arc;

    use sigstore_verify::crypto::parse_certificate_info;
    use sigstore_verify::trust_root::TrustedRoot as Root;
    use sigstore_verify::types::{Bundle, Sha256Hash};
    use sigstore_verify::{VerificationPolicy, Verifier};

    use super::ROOT_BYTES;
    use crate::digest::Digest;
    use crate::error::Error;
    use crate::identity::Identity;
    use crate::sigstore_ring;

    /// The reason if a log has recorded a signature too late.
    const EXPIRED: &str = "a certificate of its chain had expired when the log recorded the signature";

    /// A trusted root of Sigstore, such as `cosign trusted-root create` prints.
    #[derive(Clone)]
    pub struct TrustedRoot(Arc<Verifier>);

    impl fmt::Debug for TrustedRoot {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("TrustedRoot")
        }
    }

    /// The identity that the certificate of a bundle names, which nothing proves.
    pub(crate) fn claimed(bundle: &[u8]) -> Option<Identity> {
        sigstore_ring::install();
        let bundle = Bundle::from_json(std::str::from_utf8(bundle).ok()?).ok()?;
        let found = parse_certificate_info(bundle.signing_certificate()?).ok()?;
        let subject = Error::shown(found.identity?.as_str());
        Some(Identity { issuer: Error::shown(&found.issuer?), subject })
    }

    impl TrustedRoot {
        /// Reads a root in JSON; `what` names it in messages.
        ///
        /// # Errors
        /// It is none, or has no authorities, no log of certificates or no log of signatures.
        pub fn parse(what: &str, json: &[u8]) -> Result<Self, Error> {
            let wrong = |reason: String| Error::Root { what: what.to_owned(), reason };
            if json.len() > ROOT_BYTES {
                return Err(wrong(format!("it has more than {} KiB", ROOT_BYTES >> 10)));
            }
            sigstore_ring::install();
            let json = std::str::from_utf8(json).map_err(|error| wrong(error.to_string()))?;
            let root = Root::from_json(json).map_err(|error| wrong(Error::shown(&error.to_string())))?;
            for (is_missing, part) in [
                (root.certificate_authorities.is_empty(), "certificateAuthorities"),
                (root.tlogs.is_empty(), "tlogs"),
                (root.ctlogs.is_empty(), "ctlogs"),
            ] {
                if is_missing {
                    return Err(wrong(format!("it has no {part}, without which a signature proves nothing")));
                }
            }
            let verifier = Verifier::new(&root).map_err(|error| wrong(Error::shown(&error.to_string())))?;
            Ok(Self(Arc::new(verifier)))
        }

        /// Who has signed a bundle about an artifact with this digest. What the bundle states about it is not looked at.
        pub(crate) fn signer(&self, bundle: &[u8], digest: &Digest) -> Result<Identity, String> {
            let shown = |error: &dyn fmt::Display| Error::shown(&error.to_string());
            let bundle = std::str::from_utf8(bundle).map_err(|error| shown(&error))?;
            let bundle = Bundle::from_json(bundle).map_err(|error| shown(&error))?;
            let digest = Sha256Hash::from_hex(digest.hex()).map_err(|error| shown(&error))?;
            let anybody = VerificationPolicy::any_identity();
            let found = self.0.verify(digest, &bundle, &anybody).map_err(|error| {
                let reason = error.to_string();
                // The debug form of an error of webpki, which has no words.
                let has_expired = reason.contains("CertExpired");
                if has_expired { EXPIRED.to_owned() } else { Error::shown(&reason) }
            })?;
            let is_proven = found.certificate_verified() && found.sct_verified() && found.tlog_verified();
            match (found.issuer(), found.identity()) {
                (Some(issuer), Some(subject)) if is_proven => {
                    Ok(Identity { issuer: issuer.to_owned(), subject: subject.as_str().to_owned() })
                }
                _ => Err("its certificate names no identity and issuer".to_owned()),
            }
        }
    }
}
