//! The certificates of the webhook: a CA, whose certificate API servers get in the CRDs, and a certificate of the server.
//! They are in a Secret that all replicas read. Values only: no requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};

/// How long a certificate of the server is valid; it is replaced when a third is left.
const VALID: Duration = Duration::from_secs(90 * 86_400);
/// How long the CA is valid. The next one is trusted beside it two years before its end.
const CA_VALID: Duration = Duration::from_secs(10 * 365 * 86_400);
const CA_MARGIN: Duration = Duration::from_secs(2 * 365 * 86_400);
/// How far the clocks of API servers may lag behind ours.
const SKEW: Duration = Duration::from_secs(3_600);
/// The annotation with the time at which the CA ends.
const CA_ENDS: &str = "operetta.dev/ca-ends";
const CA: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// The content of the Secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Stored {
    data: BTreeMap<&'static str, String>,
    ca_ends: Option<Timestamp>,
}

/// The certificate of the server with its key, and the CAs.
pub(super) struct Material {
    /// The certificates of all CAs that are trusted, as PEM.
    pub(super) ca: String,
    pub(super) key: Arc<CertifiedKey>,
}

/// No certificate could be made or used. The errors of the libraries are of no use to the reader, and keys are not shown.
#[derive(Debug, thiserror::Error)]
#[error("no certificate could be made: {0}")]
pub(super) struct CertificateError(String);

impl From<rcgen::Error> for CertificateError {
    fn from(error: rcgen::Error) -> Self {
        Self(error.to_string())
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Stored {
    /// Reads a Secret. What cannot be read is missing.
    pub(super) fn of(secret: &Value) -> Self {
        let text = |key: &str| {
            let bytes = STANDARD.decode(secret["data"][key].as_str()?).ok()?;
            String::from_utf8(bytes).ok()
        };
        let keys = [CA, CA_KEY, CERTIFICATE, KEY];
        Self {
            data: keys.into_iter().filter_map(|key| Some((key, text(key)?))).collect(),
            ca_ends: secret["metadata"]["annotations"][CA_ENDS].as_str().and_then(|at| at.parse().ok()),
        }
    }

    /// Writes the content into a Secret.
    pub(super) fn write(&self, secret: &mut Value) {
        secret["data"] = self
            .data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), Value::String(STANDARD.encode(text))))
            .collect();
        if let Some(ends) = self.ca_ends {
            if !secret["metadata"]["annotations"].is_object() {
                secret["metadata"]["annotations"] = json!({});
            }
            secret["metadata"]["annotations"][CA_ENDS] = ends.to_string().into();
        }
    }

    fn get(&self, key: &str) -> &str {
        self.data.get(key).map_or("", String::as_str)
    }

    /// The material, if the certificate is valid for these names at that time.
    pub(super) fn material(&self, names: &[String], at: Timestamp) -> Option<Material> {
        let chain = pem(self.get(CERTIFICATE));
        let end = chain.first()?.clone();
        let private = PrivateKeyDer::from_pem_slice(self.get(KEY).as_bytes()).ok()?;
        let mut roots = RootCertStore::empty();
        for ca in pem(self.get(CA)) {
            roots.add(ca).ok()?;
        }
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().ok()?;
        let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at.as_second()).ok()?));
        for name in names {
            let name = ServerName::try_from(name.clone()).ok()?;
            verifier.verify_server_cert(&end, &[], &name, &[], at).ok()?;
        }
        let key = CertifiedKey::from_der(chain, private, &provider()).ok()?;
        Some(Material { ca: self.get(CA).to_owned(), key: Arc::new(key) })
    }

    /// The content to store instead, if the certificates are missing, broken, of other names or near their
    /// end. The certificate of a new CA is stored beside the former one, and the server keeps its certificate
    /// while that is valid: the CRDs name the new CA long before a certificate of it is used.
    pub(super) fn renewed(&self, names: &[String], now: Timestamp) -> Result<Option<Self>, CertificateError> {
        let ahead = |duration: Duration| now + SignedDuration::try_from(duration).unwrap_or_default();
        let issuer = KeyPair::from_pem(self.get(CA_KEY)).ok();
        let has_ca =
            !pem(self.get(CA)).is_empty() && self.ca_ends.is_some_and(|ends| ends > ahead(CA_MARGIN));
        let mut new = self.clone();
        let issuer = if let Some(issuer) = issuer.filter(|_| has_ca) {
            issuer
        } else {
            let key = KeyPair::generate()?;
            let mut params = ca_params();
            let start = system(now);
            (params.not_before, params.not_after) = ((start - SKEW).into(), (start + CA_VALID).into());
            let certificate = params.self_signed(&key)?.pem();
            // One former CA is enough: each is in use for years.
            let former = first_block(self.get(CA)).filter(|_| self.material(names, now).is_some());
            new.data.insert(CA, certificate + &former.unwrap_or_default());
            new.data.insert(CA_KEY, key.serialize_pem());
            new.ca_ends = Some(ahead(CA_VALID));
            key
        };
        // If the CA is not the one of the certificate, the certificate is not valid.
        if new.material(names, ahead(VALID / 3)).is_none() {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(names.to_vec())?;
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "operetta-webhook");
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params.use_authority_key_identifier_extension = true;
            let start = system(now);
            (params.not_before, params.not_after) = ((start - SKEW).into(), (start + VALID).into());
            let certificate = params.signed_by(&key, &Issuer::new(ca_params(), issuer))?.pem();
            new.data.insert(CERTIFICATE, certificate);
            new.data.insert(KEY, key.serialize_pem());
            if new.material(names, now).is_none() {
                // The key in the Secret is not that of the CA: begin anew.
                if self.data.is_empty() {
                    return Err(CertificateError("the new certificate is not valid".to_owned()));
                }
                return Self::default().renewed(names, now);
            }
        }
        Ok((new != *self).then_some(new))
    }
}

fn system(at: Timestamp) -> SystemTime {
    SystemTime::from(at)
}

/// The parameters of the CA. Its name is always the same, because the issuer of a certificate is made from
/// it.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "operetta-webhook-ca");
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn pem(text: &str) -> Vec<CertificateDer<'static>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    read.unwrap_or_default()
}

/// The first certificate of several.
fn first_block(text: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let (first, _) = text.split_once(END)?;
    Some(format!("{first}{END}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn names() -> Vec<String> {
        vec!["operetta.system.svc".to_owned(), "127.0.0.1".to_owned()]
    }

    fn later(at: Timestamp, days: u32) -> Timestamp {
        at + SignedDuration::try_from(DAY * days).unwrap()
    }

    #[test]
    fn certificates_are_made_kept_and_renewed() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let first = Stored::default().renewed(&names(), start).unwrap().unwrap();
        assert!(first.material(&names(), start).is_some());
        let mut secret = json!({"metadata": {"name": "s"}});
        first.write(&mut secret);
        assert!(Stored::of(&secret) == first);
        assert!(first.renewed(&names(), later(start, 59)).unwrap().is_none());

        // The certificate is renewed by the same CA.
        let second = first.renewed(&names(), later(start, 61)).unwrap().unwrap();
        assert_eq!(first.get(CA), second.get(CA));
        assert_ne!(first.get(CERTIFICATE), second.get(CERTIFICATE));
        // A certificate for another name is not valid, and is replaced.
        let other = vec!["other.svc".to_owned()];
        assert!(second.material(&other, later(start, 61)).is_none());
        let third = second.renewed(&other, later(start, 61)).unwrap().unwrap();
        assert!(third.material(&other, later(start, 61)).is_some());
    }

    #[test]
    fn a_new_ca_is_trusted_before_it_is_used() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut stored = Stored::default().renewed(&names(), start).unwrap().unwrap();
        let at = later(start, 8 * 365 + 1);
        // The certificate was renewed shortly before.
        let before = later(start, 8 * 365 - 10);
        stored = stored.renewed(&names(), before).unwrap().unwrap();
        let next = stored.renewed(&names(), at).unwrap().unwrap();
        assert_eq!(next.get(CERTIFICATE), stored.get(CERTIFICATE));
        assert_eq!(pem(next.get(CA)).len(), 2);
        assert!(next.material(&names(), at).is_some());
        let later = later(at, 60);
        let last = next.renewed(&names(), later).unwrap().unwrap();
        assert_ne!(last.get(CERTIFICATE), stored.get(CERTIFICATE));
        assert!(last.material(&names(), later).is_some());
    }

    #[test]
    fn broken_content_is_replaced() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let good = Stored::default().renewed(&names(), now).unwrap().unwrap();
        let other = Stored::default().renewed(&names(), now).unwrap().unwrap();
        for key in [CA, CA_KEY, CERTIFICATE, KEY] {
            for value in [None, Some("x"), Some(other.get(key))] {
                let mut broken = good.clone();
                match value {
                    Some(value) => broken.data.insert(key, value.to_owned()),
                    None => broken.data.remove(key),
                };
                let renewed = broken.renewed(&names(), now).unwrap();
                let result = renewed.as_ref().unwrap_or(&broken);
                assert!(result.material(&names(), now).is_some(), "{key}");
                assert!(result.renewed(&names(), later(now, 61)).unwrap().is_some(), "{key}");
            }
        }
    }
}
