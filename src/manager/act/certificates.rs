//! New certificates: self-signed ones, those of certificate authorities, and those that an authority signs.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ED25519,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::json;

use crate::api::{CallError, Class};
use crate::clock;
use crate::plan::{first_end, pem};
use crate::random::{Field, Randomness};
use crate::template::{Certificate, Signer};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How far other clocks may lag behind ours.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// An Ed25519 key in PKCS#8, up to the 32 bytes that it consists of.
const ED25519: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// A new key: ECDSA over P-256. In a play it is one of Ed25519, which can be made of given bytes.
pub(super) fn new_key(random: &Randomness, field: Field<'_>) -> Result<KeyPair, CallError> {
    if !random.is_seeded() {
        return KeyPair::generate().map_err(failed);
    }
    let der = [ED25519.as_slice(), &random.block(field, 0)?].concat();
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ED25519).map_err(failed)
}

/// The errors contain no secret, but are of no use to the reader.
fn failed(_: rcgen::Error) -> CallError {
    error("CertificateFailed", "no certificate could be made".to_owned())
}

/// A certificate of a new key, and the key: both as PEM, the certificate first.
pub(super) fn issue(wanted: &Certificate, key: &KeyPair) -> Result<[String; 2], CallError> {
    let mut params = CertificateParams::new(wanted.names.clone()).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, wanted.common_name.as_str());
    if wanted.signer == Signer::Authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    } else {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    }
    let now = SystemTime::from(clock::now());
    params.not_before = (now - SKEW).into();
    let not_after = now + DAY * wanted.days;
    params.not_after = not_after.into();
    let certificate = match &wanted.signer {
        Signer::Itself | Signer::Authority => params.self_signed(key).map_err(failed)?,
        Signer::Ca(pair) => {
            let (issuer, end) = authority(pair)?;
            // What outlives its CA would fail when nobody expects it.
            params.not_after = not_after.min(end).into();
            params.use_authority_key_identifier_extension = true;
            params.signed_by(key, &issuer).map_err(failed)?
        }
    };
    Ok([certificate.pem(), key.serialize_pem()])
}

/// A certificate authority, and the end of its validity.
fn authority([certificate, key]: &[String; 2]) -> Result<(Issuer<'static, KeyPair>, SystemTime), CallError> {
    let unusable = |what: &str| {
        error("UnusableCertificateAuthority", format!("the CA that `ca` names cannot sign: {what}"))
    };
    let end = first_end(&json!(certificate)).ok().flatten().map(SystemTime::from);
    let (Some(end), Some(certificate)) = (end, pem(certificate)) else {
        return Err(unusable("its tls.crt is no certificate"));
    };
    if end <= SystemTime::from(clock::now()) {
        return Err(unusable("its certificate has expired"));
    }
    let key = pem(key).and_then(|key| KeyPair::from_pem(&key).ok());
    let key = key.ok_or_else(|| unusable("its tls.key is no private key in PKCS#8"))?;
    let issuer = Issuer::from_ca_cert_pem(&certificate, key);
    Ok((issuer.map_err(|_| unusable("its tls.crt is no certificate of a CA"))?, end))
}

fn error(reason: &str, message: String) -> CallError {
    CallError::new(Class::Retry, 0, reason, message)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

    fn wanted(names: &[&str], days: u32, signer: Signer) -> Certificate {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Certificate { common_name: "a".into(), names, days, signer }
    }

    fn issue(wanted: &Certificate) -> Result<[String; 2], CallError> {
        super::issue(wanted, &KeyPair::generate().unwrap())
    }

    fn ca(days: u32) -> [String; 2] {
        issue(&wanted(&[], days, Signer::Authority)).unwrap()
    }

    /// Whether a client that trusts this CA accepts a server of this name.
    fn trusts(ca: &str, certificate: &str, name: &str) -> bool {
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(der(ca)).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.into());
        let verifier = verifier.build().unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier.verify_server_cert(&der(certificate), &[], &name, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn clients_that_trust_the_ca_accept_what_it_signs() {
        let (one, other) = (ca(10), ca(10));
        let encoded = one.clone().map(|part| STANDARD.encode(part));
        for pair in [one.clone(), encoded] {
            let [certificate, key] = issue(&wanted(&["a.b", "10.0.0.1"], 5, Signer::Ca(pair))).unwrap();
            assert!(trusts(&one[0], &certificate, "a.b") && trusts(&one[0], &certificate, "10.0.0.1"));
            assert!(!trusts(&one[0], &certificate, "b.a") && !trusts(&other[0], &certificate, "a.b"));
            assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"), "{key}");
        }
    }

    #[test]
    fn authority_with_a_seeded_key_signs() {
        let seeded = Randomness::seeded(|_: &str, _: &str| 0);
        let key = |name| new_key(&seeded, Field { namespace: "n", name, key: "tls.key" }).unwrap();
        let ca = super::issue(&wanted(&[], 10, Signer::Authority), &key("ca")).unwrap();
        let [certificate, _] = super::issue(&wanted(&["a.b"], 5, Signer::Ca(ca.clone())), &key("a")).unwrap();
        assert!(trusts(&ca[0], &certificate, "a.b"));
    }

    #[test]
    fn certificates_do_not_outlive_their_ca() {
        let pair = ca(10);
        let end = |certificate: &str| first_end(&json!(certificate)).unwrap().unwrap();
        let [long, _] = issue(&wanted(&["a"], 100, Signer::Ca(pair.clone()))).unwrap();
        let [short, _] = issue(&wanted(&["a"], 5, Signer::Ca(pair.clone()))).unwrap();
        assert!(end(&long) == end(&pair[0]) && end(&short) < end(&long));
    }

    #[test]
    fn unusable_authority_is_named_without_its_key() {
        let [certificate, key] = ca(10);
        let expired = include_str!("../../core/plan/tests/short.pem").to_owned();
        for (pair, why) in [
            ([key.clone(), key.clone()], "its tls.crt is no certificate"),
            ([certificate.clone(), "hunter2".to_owned()], "its tls.key is no private key in PKCS#8"),
            ([expired, key.clone()], "its certificate has expired"),
        ] {
            let error = issue(&wanted(&["a"], 5, Signer::Ca(pair.clone()))).unwrap_err();
            assert_eq!(error.reason, "UnusableCertificateAuthority");
            assert!(error.to_string().contains(why), "{error}");
            for text in [error.to_string(), format!("{:?}", wanted(&["a"], 5, Signer::Ca(pair)))] {
                assert!(!text.contains("hunter2") && !text.contains("BEGIN"), "{text}");
            }
        }
    }
}
