//! A Sigstore of the test's own: an authority that issues certificates of identities, and the logs of certificates and signatures.
//! `tests/planes` has this file, too, so it uses nothing of the crate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType, SerialNumber,
};
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};

/// The extension of a certificate that names the issuer of the identity.
const ISSUER: &[u64] = &[1, 3, 6, 1, 4, 1, 57264, 1, 8];
/// The extension that has the promises of logs of certificates.
const PROMISES: &[u64] = &[1, 3, 6, 1, 4, 1, 11129, 2, 4, 2];

pub(crate) const WORKFLOW: &str = "https://github.com/acme/etcd/.github/workflows/release.yaml";
pub(crate) const ACTIONS: &str = "https://token.actions.githubusercontent.com";

#[allow(clippy::disallowed_methods)]
fn now() -> SystemTime {
    SystemTime::now()
}

/// A key of the instance or of a signer.
struct Key(KeyPair);

impl Key {
    fn new() -> Self {
        Self(KeyPair::generate().unwrap())
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        let pkcs8 = self.0.serialize_der();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &pkcs8, &random).unwrap();
        pair.sign(&random, message).unwrap().as_ref().to_vec()
    }

    fn public(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    fn id(&self) -> Vec<u8> {
        sha256(&self.public())
    }
}

/// An instance.
pub(crate) struct Sigstore {
    authority: CertifiedIssuer<'static, KeyPair>,
    certificates: Key,
    signatures: Key,
}

/// What of a signature is other than it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// The log of certificates has not seen the certificate.
    NoPromise,
    /// Another log than the root's has the signature.
    OtherLog,
    /// It was made after the certificate had expired.
    Late,
    /// Nothing: it was made when the certificate was valid, which has expired since.
    Aged,
    /// The log has another signature.
    OtherEntry,
}

impl Sigstore {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = (now() - Duration::from_secs(3_600)).into();
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { authority, certificates: Key::new(), signatures: Key::new() }
    }

    /// Its trusted root.
    pub(crate) fn root(&self) -> Value {
        let valid = json!({"start": "2020-01-01T00:00:00Z"});
        let log = |key: &Key, url: &str| {
            json!([{
                "baseUrl": url, "hashAlgorithm": "SHA2_256", "logId": {"keyId": STANDARD.encode(key.id())},
                "publicKey": {
                    "rawBytes": STANDARD.encode(key.public()), "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": valid,
                },
            }])
        };
        json!({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": log(&self.signatures, "https://rekor.example"),
            "ctlogs": log(&self.certificates, "https://ct.example"),
            "certificateAuthorities": [{
                "subject": {"organization": "example", "commonName": "example"}, "uri": "https://fulcio.example",
                "certChain": {"certificates": [{"rawBytes": STANDARD.encode(self.authority.der())}]},
                "validFor": valid,
            }],
            "timestampAuthorities": [],
        })
    }

    /// The certificate of an identity for a key, valid for ten minutes, of which one has passed.
    fn certificate(&self, key: &Key, (issuer, subject): (&str, &str), flaw: Flaw) -> Vec<u8> {
        let age = if matches!(flaw, Flaw::Late | Flaw::Aged) { 3_000 } else { 60 };
        let start = now() - Duration::from_secs(age);
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.not_before = start.into();
        params.not_after = (start + Duration::from_secs(600)).into();
        params.serial_number = Some(SerialNumber::from(1_234_567_u64));
        params.subject_alt_names = vec![if subject.starts_with("https://") {
            SanType::URI(subject.try_into().unwrap())
        } else {
            SanType::Rfc822Name(subject.try_into().unwrap())
        }];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        params.use_authority_key_identifier_extension = true;
        let issuer = [&[0x0c, u8::try_from(issuer.len()).unwrap()], issuer.as_bytes()].concat();
        params.custom_extensions = vec![CustomExtension::from_oid_content(ISSUER, issuer)];
        if flaw != Flaw::NoPromise {
            let without = params.clone().signed_by(&key.0, &self.authority).unwrap();
            let promise = self.promise(signed_part(without.der()));
            params.custom_extensions.push(CustomExtension::from_oid_content(PROMISES, promise));
        }
        params.signed_by(&key.0, &self.authority).unwrap().der().to_vec()
    }

    /// The promise of the log of certificates to have this one: RFC 6962, 3.2 and 3.3.
    fn promise(&self, certificate: &[u8]) -> Vec<u8> {
        let time = now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let time = u64::try_from(time).unwrap().to_be_bytes();
        let issuer = sha256(&self.authority.key().subject_public_key_info());
        let length = u32::try_from(certificate.len()).unwrap().to_be_bytes();
        let signed = [&[0, 0][..], &time, &[0, 1], &issuer, &length[1..], certificate, &[0, 0]].concat();
        let signature = sized(&self.certificates.sign(&signed));
        let promise = [&[0][..], &self.certificates.id(), &time, &[0, 0], &[4, 3], &signature].concat();
        let list = sized(&sized(&promise));
        // As an OCTET STRING, whose length has one byte.
        assert!(list.len() < 0x80, "{}", list.len());
        [&[0x04, u8::try_from(list.len()).unwrap()], &list[..]].concat()
    }

    /// What `cosign sign` writes about a manifest (its SHA-256 in hex) for an identity: issuer and subject.
    pub(crate) fn sign(&self, manifest: &str, who: (&str, &str), flaw: Flaw) -> Value {
        let key = Key::new();
        let certificate = self.certificate(&key, who, flaw);
        let payload = json!({
            "_type": "https://in-toto.io/Statement/v1", "subject": [{"digest": {"sha256": manifest}}],
            "predicateType": "https://sigstore.dev/cosign/sign/v1", "predicate": {},
        })
        .to_string();
        let kind = "application/vnd.in-toto+json";
        let message = format!("DSSEv1 {} {kind} {} {payload}", kind.len(), payload.len());
        let signature = STANDARD.encode(key.sign(message.as_bytes()));
        let logged = if flaw == Flaw::OtherEntry { "AAAA".to_owned() } else { signature.clone() };
        let pem = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            STANDARD.encode(&certificate)
        );
        let hash = |value: &str| json!({"algorithm": "sha256", "value": hex(&sha256(value.as_bytes()))});
        let entry = json!({
            "apiVersion": "0.0.1", "kind": "dsse", "spec": {
                "envelopeHash": hash("its JSON"), "payloadHash": hash(&payload),
                "signatures": [{"signature": logged, "verifier": STANDARD.encode(pem)}],
            },
        });
        let other = Key::new();
        let log = if flaw == Flaw::OtherLog { &other } else { &self.signatures };
        let age = if flaw == Flaw::Aged { 2_900 } else { 1 };
        json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": STANDARD.encode(&certificate)},
                "tlogEntries": [logged_in(log, entry.to_string().as_bytes(), age)],
            },
            "dsseEnvelope": {
                "payload": STANDARD.encode(&payload), "payloadType": kind, "signatures": [{"sig": signature}],
            },
        })
    }
}

/// An entry of this age, in seconds, of a log of signatures that has no other.
fn logged_in(log: &Key, body: &[u8], age: u64) -> Value {
    let time = now().duration_since(UNIX_EPOCH).unwrap().as_secs() - age;
    let id = log.id();
    let body_text = STANDARD.encode(body);
    let promise = json!({"body": body_text, "integratedTime": time, "logID": hex(&id), "logIndex": 0});
    let hash = STANDARD.encode(sha256(&[&[0], body].concat()));
    let note = format!("rekor.example\n1\n{hash}\n");
    let signed = STANDARD.encode([&id[..4], &log.sign(note.as_bytes())].concat());
    json!({
        "logIndex": "0", "logId": {"keyId": STANDARD.encode(&id)},
        "kindVersion": {"kind": "dsse", "version": "0.0.1"}, "integratedTime": time.to_string(),
        "inclusionPromise": {"signedEntryTimestamp": STANDARD.encode(log.sign(promise.to_string().as_bytes()))},
        "inclusionProof": {
            "logIndex": "0", "rootHash": hash, "treeSize": "1", "hashes": [],
            "checkpoint": {"envelope": format!("{note}\n\u{2014} rekor.example {signed}\n")},
        },
        "canonicalizedBody": body_text,
    })
}

/// What of a certificate is signed: the first element of the sequence.
fn signed_part(certificate: &[u8]) -> &[u8] {
    let content = &certificate[header(certificate).0..];
    let (start, length) = header(content);
    &content[..start + length]
}

/// How long the header of a DER element is, and its content.
fn header(der: &[u8]) -> (usize, usize) {
    let first = usize::from(der[1]);
    if first < 0x80 {
        return (2, first);
    }
    let bytes = &der[2..2 + (first & 0x7f)];
    (2 + bytes.len(), bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
}

/// With two bytes of length before it.
fn sized(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    digest(&SHA256, bytes).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}
