//! Signatures of manifests: Sigstore bundles v0.3 as cosign 3 writes them (a DSSE envelope of an in-toto statement
//! that names the digest), and the simple signing payloads of cosign 2. Both are checked with a key, for which logs and
//! timestamps in them are not read; a bundle also by the identity that its certificate names. All of it is offline.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::digest::Digest;
use crate::error::Error;
use crate::identity::Identity;
use crate::keyless::TrustedRoot;
use crate::keys::{PrivateKey, PublicKey};

/// The media type of a bundle, which is also the type of its artifact.
pub const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// The media type of a layer that cosign 2 signs.
pub const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The annotation of such a layer that is its signature.
pub const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// The maximum size of a bundle or payload, in bytes.
pub const BUNDLE_BYTES: u64 = 1 << 20;
/// What `cosign sign` states.
pub const PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";

const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// The maximum number of signatures of one envelope.
const SIGNATURES: usize = 16;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    media_type: String,
    verification_material: Value,
    dsse_envelope: Option<Envelope>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
struct Signature {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct Subject {
    #[serde(default)]
    digest: std::collections::BTreeMap<String, String>,
}

/// Signs the digest of a manifest. The result is the JSON of a bundle.
///
/// # Errors
/// The system has no random numbers.
pub fn sign(digest: &Digest, key: &PrivateKey) -> Result<Vec<u8>, Error> {
    let statement = json!({
        "_type": STATEMENT,
        "subject": [{"digest": {"sha256": digest.hex()}}],
        "predicateType": PREDICATE,
        "predicate": {},
    });
    let payload = statement.to_string();
    let signature = key.sign(&pre_authentication(PAYLOAD_TYPE, payload.as_bytes()))?;
    let bundle = Bundle {
        media_type: BUNDLE.to_owned(),
        verification_material: json!({"publicKey": {"hint": key.public().hint()}}),
        dsse_envelope: Some(Envelope {
            payload: STANDARD.encode(payload),
            payload_type: PAYLOAD_TYPE.to_owned(),
            signatures: vec![Signature { sig: STANDARD.encode(signature) }],
        }),
    };
    serde_json::to_vec(&bundle).map_err(|error| Error::invalid("the bundle", error.to_string()))
}

/// Checks that a bundle is a signature of the manifest by the key.
///
/// # Errors
/// The reason why it is none.
pub fn verify(bundle: &[u8], digest: &Digest, key: &PublicKey) -> Result<(), &'static str> {
    let (envelope, payload) = open(bundle)?;
    let message = pre_authentication(&envelope.payload_type, &payload);
    let is_signed = envelope.signatures.iter().take(SIGNATURES).any(|signature| {
        STANDARD.decode(&signature.sig).is_ok_and(|signature| key.verifies(&message, &signature))
    });
    if !is_signed {
        return Err("the signature is of another key, or the statement was altered");
    }
    states(&envelope, &payload, digest)
}

/// Checks that a bundle is a signature of the manifest by somebody whom the root proves, and returns whom: the subject of the
/// certificate.
///
/// # Errors
/// The reason why it is none.
pub fn identity(bundle: &[u8], digest: &Digest, root: &TrustedRoot) -> Result<Identity, String> {
    let (envelope, payload) = open(bundle)?;
    let signer = root.signer(bundle, digest)?;
    states(&envelope, &payload, digest)?;
    Ok(signer)
}

/// Whether a bundle has a certificate, which names an identity, in place of a key.
pub fn is_of_identity(bundle: &[u8]) -> bool {
    serde_json::from_slice::<Bundle>(bundle)
        .is_ok_and(|bundle| !bundle.verification_material["certificate"].is_null())
}

/// The envelope of a bundle, and its payload.
fn open(bundle: &[u8]) -> Result<(Envelope, Vec<u8>), &'static str> {
    let bundle: Bundle = serde_json::from_slice(bundle).map_err(|_| "it is no Sigstore bundle")?;
    if !is_bundle(&bundle.media_type) {
        return Err("it is a bundle of another version than v0.3");
    }
    let envelope = bundle.dsse_envelope.ok_or("the bundle has no DSSE envelope")?;
    let payload =
        STANDARD.decode(&envelope.payload).map_err(|_| "the payload of the bundle is not Base64")?;
    Ok((envelope, payload))
}

/// Checks that what is signed is that somebody signs the manifest.
fn states(envelope: &Envelope, payload: &[u8], digest: &Digest) -> Result<(), &'static str> {
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err("what is signed is no in-toto statement");
    }
    let statement: Statement =
        serde_json::from_slice(payload).map_err(|_| "what is signed is no in-toto statement")?;
    if statement.kind != STATEMENT || statement.predicate_type != PREDICATE {
        return Err("what is signed is an attestation, not a signature of the manifest");
    }
    let is_subject = |subject: &Subject| subject.digest.get("sha256").is_some_and(|hex| hex == digest.hex());
    if statement.subject.iter().any(is_subject) {
        Ok(())
    } else {
        Err("the signature is of another manifest")
    }
}

/// Whether a media type is of bundles v0.3, which has two spellings.
pub fn is_bundle(media_type: &str) -> bool {
    media_type == BUNDLE || media_type == "application/vnd.dev.sigstore.bundle+json;version=0.3"
}

/// The hint in a bundle, which names its key without proving anything.
pub fn hint(bundle: &[u8]) -> Option<String> {
    let bundle: Bundle = serde_json::from_slice(bundle).ok()?;
    let hint = bundle.verification_material["publicKey"]["hint"].as_str()?;
    Some(Error::shown(hint))
}

/// Checks that a payload of cosign 2 is a signature of the manifest by the key.
///
/// # Errors
/// The reason why it is none.
pub fn verify_simple(
    payload: &[u8],
    signature: &str,
    digest: &Digest,
    key: &PublicKey,
) -> Result<(), &'static str> {
    let signature = STANDARD.decode(signature).map_err(|_| "the signature is not Base64")?;
    if !key.verifies(payload, &signature) {
        return Err("the signature is of another key, or the payload was altered");
    }
    let payload: Value = serde_json::from_slice(payload).map_err(|_| "the payload is not JSON")?;
    let critical = &payload["critical"];
    if critical["type"] != "cosign container image signature" {
        return Err("the payload is of another type");
    }
    if critical["image"]["docker-manifest-digest"] == digest.to_string().as_str() {
        Ok(())
    } else {
        Err("the signature is of another manifest")
    }
}

/// The pre-authentication encoding of DSSE: what is signed.
fn pre_authentication(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair};

    use super::*;

    fn pem(der: &[u8]) -> String {
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(der))
    }

    fn keys() -> [PrivateKey; 2] {
        let random = SystemRandom::new();
        let p256 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        let ed25519 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        [pem(p256.as_ref()), pem(ed25519.as_ref())].map(|pem| PrivateKey::parse("x", pem.as_bytes()).unwrap())
    }

    type Change<'a> = &'a dyn Fn(&mut Value);

    #[test]
    fn bundles_are_verified_by_the_key_that_signed_them_only() {
        let digest = Digest::of(b"manifest");
        let keys = keys();
        for (key, other) in [(&keys[0], &keys[1]), (&keys[1], &keys[0])] {
            let bundle = sign(&digest, key).unwrap();
            let public = PublicKey::parse("x", key.public().pem().as_bytes()).unwrap();
            assert_eq!(public, key.public());
            assert_eq!(verify(&bundle, &digest, &public), Ok(()));
            assert_eq!(hint(&bundle), Some(public.hint()));
            assert!(verify(&bundle, &digest, &other.public()).unwrap_err().contains("another key"));
            let elsewhere = verify(&bundle, &Digest::of(b"other"), &public);
            assert_eq!(elsewhere, Err("the signature is of another manifest"));
        }
    }

    #[test]
    fn altered_bundles_are_refused() {
        let (digest, [key, _]) = (Digest::of(b"manifest"), keys());
        let bundle: Value = serde_json::from_slice(&sign(&digest, &key).unwrap()).unwrap();
        let check = |change: &dyn Fn(&mut Value)| {
            let mut bundle = bundle.clone();
            change(&mut bundle);
            verify(bundle.to_string().as_bytes(), &digest, &key.public()).unwrap_err()
        };
        let envelope = |bundle: &mut Value, field: &str, value: &str| {
            bundle["dsseEnvelope"][field] = value.into();
        };
        let cases: [(Change<'_>, &str); 7] = [
            (&|b| b["mediaType"] = "application/vnd.dev.sigstore.bundle.v0.9+json".into(), "another version"),
            (&|b| b["dsseEnvelope"] = Value::Null, "no DSSE envelope"),
            (&|b| envelope(b, "payload", "e30="), "altered"),
            (&|b| envelope(b, "payload", "%"), "not Base64"),
            (&|b| envelope(b, "payloadType", "text/plain"), "altered"),
            (&|b| b["dsseEnvelope"]["signatures"] = json!([]), "another key"),
            (&|b| b["dsseEnvelope"]["signatures"] = json!([{"sig": "AAAA"}]), "another key"),
        ];
        for (change, expected) in cases {
            let error = check(change);
            assert!(error.contains(expected), "{expected}: {error}");
        }
        assert!(verify(b"[]", &digest, &key.public()).is_err());
    }

    /// An attestation about the manifest, by the same key, is not its signature.
    #[test]
    fn attestations_are_no_signatures() {
        let (digest, [key, _]) = (Digest::of(b"manifest"), keys());
        let signed = |statement: Value, kind: &str| {
            let payload = statement.to_string();
            let signature = key.sign(&pre_authentication(kind, payload.as_bytes())).unwrap();
            let bundle = json!({"mediaType": BUNDLE, "verificationMaterial": {}, "dsseEnvelope": {
                "payload": STANDARD.encode(payload), "payloadType": kind,
                "signatures": [{"sig": STANDARD.encode(signature)}]}});
            verify(bundle.to_string().as_bytes(), &digest, &key.public())
        };
        let statement = |kind: &str| {
            json!({"_type": STATEMENT, "subject": [{"digest": {"sha256": digest.hex()}}],
                "predicateType": kind, "predicate": {}})
        };
        assert_eq!(signed(statement(PREDICATE), PAYLOAD_TYPE), Ok(()));
        assert!(signed(statement("https://slsa.dev/provenance/v1"), PAYLOAD_TYPE).is_err());
        assert!(signed(statement(PREDICATE), "application/other").is_err());
        assert!(signed(json!({"_type": STATEMENT}), PAYLOAD_TYPE).is_err());
    }

    #[test]
    fn signatures_of_cosign_2_are_read() {
        let digest = Digest::of(b"manifest");
        for key in keys() {
            let payload = |digest: &Digest, kind: &str| {
                json!({"critical": {"identity": {"docker-reference": "x"}, "type": kind,
                    "image": {"docker-manifest-digest": digest.to_string()}}, "optional": null})
                .to_string()
            };
            let check = |payload: &str| {
                let signature = STANDARD.encode(key.sign(payload.as_bytes()).unwrap());
                verify_simple(payload.as_bytes(), &signature, &digest, &key.public())
            };
            let kind = "cosign container image signature";
            assert_eq!(check(&payload(&digest, kind)), Ok(()));
            assert!(check(&payload(&Digest::of(b"other"), kind)).is_err());
            assert!(check(&payload(&digest, "other")).is_err());
            assert!(verify_simple(b"{}", "AAAA", &digest, &key.public()).is_err());
        }
    }

    #[test]
    fn unusable_keys_are_named_without_their_content() {
        for (pem, expected) in [
            ("", "no private key"),
            ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "encrypted"),
            (&*pem(b"c2VjcmV0"), "neither ECDSA P-256"),
        ] {
            let error = PrivateKey::parse("key.pem", pem.as_bytes()).err().unwrap().to_string();
            assert!(error.contains(expected) && error.contains("openssl genpkey"), "{error}");
        }
        assert!(
            PublicKey::parse("x", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n").is_err()
        );
    }
}
