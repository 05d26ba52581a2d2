//! Signatures of identities.

use serde_json::{Value, json};

use super::sigstore::{ACTIONS, Flaw, Sigstore, WORKFLOW};
use crate::bundle::identity;
use crate::{Digest, Identity, TrustedRoot};

fn who(subject: &str) -> Identity {
    Identity { issuer: ACTIONS.to_owned(), subject: subject.to_owned() }
}

fn found(sigstore: &Sigstore, bundle: &Value, digest: &Digest) -> Result<Identity, String> {
    let root = TrustedRoot::parse("root.json", sigstore.root().to_string().as_bytes()).unwrap();
    identity(bundle.to_string().as_bytes(), digest, &root)
}

#[test]
fn identities_are_proven_by_their_root_only() {
    let (ours, other) = (Sigstore::new(), Sigstore::new());
    let digest = Digest::of(b"manifest");
    for subject in ["alice@example.com", &format!("{WORKFLOW}@refs/tags/v1.2.0")] {
        let bundle = ours.sign(digest.hex(), (ACTIONS, subject), Flaw::None);
        assert_eq!(found(&ours, &bundle, &digest), Ok(who(subject)));
        assert!(found(&other, &bundle, &digest).is_err());
        let elsewhere = found(&ours, &bundle, &Digest::of(b"other"));
        assert!(elsewhere.is_err(), "{elsewhere:?}");
    }
}

#[test]
fn each_proof_is_needed() {
    let ours = Sigstore::new();
    let digest = Digest::of(b"manifest");
    for flaw in [Flaw::NoPromise, Flaw::OtherLog, Flaw::Late, Flaw::OtherEntry] {
        let bundle = ours.sign(digest.hex(), (ACTIONS, "a@example.com"), flaw);
        assert!(found(&ours, &bundle, &digest).is_err(), "{flaw:?}");
    }
    let bundle = ours.sign(digest.hex(), (ACTIONS, "a@example.com"), Flaw::None);
    assert!(found(&ours, &bundle, &digest).is_ok());
    let material = "/verificationMaterial/tlogEntries";
    let cases: [(&str, Value); 8] = [
        (material, json!([])),
        (&format!("{material}/0/inclusionProof"), Value::Null),
        (&format!("{material}/0/integratedTime"), json!("1700000000")),
        (&format!("{material}/0/canonicalizedBody"), json!("e30=")),
        ("/dsseEnvelope/signatures/0/sig", json!("AAAA")),
        ("/dsseEnvelope/payload", json!("e30=")),
        ("/mediaType", json!("application/vnd.dev.sigstore.bundle+json;version=0.1")),
        ("/verificationMaterial/certificate/rawBytes", json!("AAAA")),
    ];
    for (path, value) in cases {
        let mut altered = bundle.clone();
        *altered.pointer_mut(path).unwrap() = value;
        let end = found(&ours, &altered, &digest);
        assert!(end.is_err(), "{path}: {end:?}");
    }
    // The certificate of somebody else, who has signed something else.
    let other = ours.sign(Digest::of(b"other").hex(), (ACTIONS, "b@example.com"), Flaw::None);
    let mut mixed = bundle.clone();
    mixed["verificationMaterial"] = other["verificationMaterial"].clone();
    assert!(found(&ours, &mixed, &digest).is_err());
}

#[test]
fn signatures_that_were_recorded_too_late_are_refused() {
    let ours = Sigstore::new();
    let digest = Digest::of(b"manifest");
    let sign = |flaw| ours.sign(digest.hex(), (ACTIONS, "a@example.com"), flaw);
    let late = found(&ours, &sign(Flaw::Late), &digest).unwrap_err();
    assert!(late.contains("a certificate of its chain had expired"), "{late}");
    // What was signed in time stays valid.
    let aged = sign(Flaw::Aged);
    assert_eq!(found(&ours, &aged, &digest), Ok(who("a@example.com")));
    let mut root = ours.root();
    root["certificateAuthorities"][0]["validFor"]["end"] = json!("2021-01-01T00:00:00Z");
    let root = TrustedRoot::parse("root.json", root.to_string().as_bytes()).unwrap();
    let ended = identity(aged.to_string().as_bytes(), &digest, &root).unwrap_err();
    assert!(ended.contains("no trusted certificate authority is valid at"), "{ended}");
}

#[test]
fn a_root_without_a_log_is_refused() {
    let root = Sigstore::new().root();
    let parse = |root: &Value| TrustedRoot::parse("root.json", root.to_string().as_bytes()).map(drop);
    assert!(parse(&root).is_ok());
    for part in ["tlogs", "ctlogs", "certificateAuthorities"] {
        let mut without = root.clone();
        without[part] = json!([]);
        let error = parse(&without).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("root.json"), "{error}");
    }
    let error = TrustedRoot::parse("x", &vec![b' '; 200 << 10]).unwrap_err().to_string();
    assert!(error.contains("more than 128 KiB"), "{error}");
    for text in ["", "{}", "[]"] {
        assert!(TrustedRoot::parse("x", text.as_bytes()).is_err(), "{text}");
    }
}
