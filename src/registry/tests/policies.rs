//! Which packages a policy permits, and what a stored proof is worth.

use super::key;
use crate::{
    Artifact, Config, Digest, Fetched, Options, Permit, Place, Policies, Policy, PrivateKey, Provenance,
    Signers, bundle, fetch, signatures,
};

const FILES: &str = "0";

fn revision() -> String {
    FILES.repeat(64)
}

fn entry(name: &str, prefix: &str, keys: &[&PrivateKey]) -> Policy {
    let keys: Vec<String> = keys.iter().map(|key| key.public().pem()).collect();
    Policy { name: name.into(), prefix: prefix.into(), unsigned: keys.is_empty(), keys, ..Policy::default() }
}

/// A package that these keys have signed, as if it were from that repository.
async fn provenance(repository: &str, keys: &[&PrivateKey]) -> Provenance {
    let sign = |manifest: &Digest| keys.iter().map(|key| bundle::sign(manifest, key).unwrap()).collect();
    signed(repository, sign).await
}

/// A package with these signatures.
async fn signed(repository: &str, bundles: impl Fn(&Digest) -> Vec<Vec<u8>>) -> Provenance {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layout");
    let place = Place::create(path.to_str().unwrap(), &Options::default()).unwrap();
    let artifact =
        Artifact::new(Config::new("etcd", "1.2.0", &revision()), [("operator.yaml", &b"a: b\n"[..])])
            .unwrap();
    crate::push(&artifact, &[], &place.store, &["1.2.0"], false, &|_| ()).await.unwrap();
    for bundle in bundles(&artifact.manifest.descriptor.digest) {
        signatures::attach_bundle(&place.store, &artifact.manifest, bundle).await.unwrap();
    }
    let found: Fetched = fetch(path.to_str().unwrap(), &Options::default(), 1 << 20).await.unwrap();
    let name = format!("{repository}@{}", found.manifest.descriptor.digest);
    Provenance::collect(&Fetched { name, ..found }, &Signers::default()).await.unwrap()
}

#[tokio::test]
async fn the_longest_prefix_decides() {
    let (ours, theirs) = (key(), key());
    let policies = Policies::new(vec![
        entry("acme", "ghcr.io/acme", &[&ours]),
        entry("labs", "oci://GHCR.io:443/acme/labs/", &[&theirs, &ours]),
        entry("open", "ghcr.io/open", &[]),
    ]);
    let signed = provenance("oci://ghcr.io/acme/etcd:1.2.0", &[&ours]).await;
    let signer = Some(format!("sha256:{}", ours.public().hint()));
    let permitted = policies.check(Some(&signed), &revision()).unwrap();
    assert_eq!(permitted, Permit { policy: Some("acme".into()), signer });
    for (repository, keys, expected) in [
        ("oci://ghcr.io/acme/etcd", &[][..], Err("is not signed")),
        ("oci://ghcr.io/acme/etcd", &[&theirs], Err("acme does not permit")),
        ("oci://ghcr.io/acme-evil/etcd", &[&ours], Err("matches the prefix of no PackagePolicy")),
        ("oci://ghcr.io/acme/labs/x", &[&theirs], Ok("labs")),
        ("oci://GHCR.IO:443/acme/labs/x", &[&theirs], Ok("labs")),
        ("oci://ghcr.io:8443/acme/labs/x", &[&theirs], Err("no PackagePolicy")),
        ("oci://ghcr.io/open/x", &[], Ok("open")),
        ("layout", &[&ours], Err("an OCI layout")),
    ] {
        let found = policies.check(Some(&provenance(repository, keys).await), &revision());
        match (found, expected) {
            (Ok(permit), Ok(name)) => assert_eq!(permit.policy.as_deref(), Some(name)),
            (Err(why), Err(words)) => assert!(why.contains(words), "{repository}: {why}"),
            (found, expected) => panic!("{repository}: {found:?} instead of {expected:?}"),
        }
    }
}

#[tokio::test]
async fn the_empty_prefix_matches_what_is_from_no_registry() {
    let ours = key();
    let all = Policies::new(vec![entry("all", "", &[])]);
    assert!(all.check(None, &revision()).is_ok());
    let signed = Policies::new(vec![entry("all", "", &[&ours])]);
    assert!(signed.check(None, &revision()).unwrap_err().contains("demands a signature"));
    let layout = provenance("stick/etcd", &[&ours]).await;
    assert!(signed.check(Some(&layout), &revision()).is_ok());
    assert_eq!(Policies::default().check(None, &revision()).unwrap(), Permit::default());
}

#[tokio::test]
async fn entries_of_one_prefix_share_their_keys_and_the_stricter_counts() {
    let (ours, theirs) = (key(), key());
    let policies = Policies::new(vec![entry("lax", "r.io/a", &[]), entry("b", "r.io/a", &[&ours])]);
    let unsigned = provenance("oci://r.io/a", &[]).await;
    assert!(policies.check(Some(&unsigned), &revision()).is_err());
    let policies = Policies::new(vec![entry("a", "r.io/a", &[&theirs]), entry("b", "r.io/a", &[&ours])]);
    let signed = provenance("oci://r.io/a", &[&ours]).await;
    assert_eq!(policies.check(Some(&signed), &revision()).unwrap().policy.as_deref(), Some("b"));
    let broken = Policy { keys: vec!["no key".into()], ..entry("broken", "r.io/a", &[]) };
    let why = Policies::new(vec![broken]).check(Some(&signed), &revision()).unwrap_err();
    assert!(why.contains("a key of broken cannot be read"), "{why}");
}

#[tokio::test]
async fn an_altered_provenance_proves_nothing() {
    let ours = key();
    let policies = Policies::new(vec![entry("acme", "r.io", &[&ours])]);
    let good = provenance("oci://r.io/a", &[&ours]).await;
    assert!(policies.check(Some(&good), &revision()).is_ok());
    let other = provenance("oci://r.io/b", &[]).await;
    let text = serde_json::to_string(&good).unwrap();
    assert_eq!(serde_json::from_str::<Provenance>(&text).unwrap(), good);
    let changed = |field: &str, value: serde_json::Value| {
        let mut changed: serde_json::Value = serde_json::from_str(&text).unwrap();
        changed[field] = value;
        serde_json::from_value::<Provenance>(changed).unwrap()
    };
    for (altered, expected) in [
        (changed("config", "e30=".into()), "not that of its manifest"),
        (changed("config", "!".into()), "no Base64"),
        (changed("manifest", "e30=".into()), "invalid"),
        (changed("reference", "oci://r.io/a@sha256:0".into()), "no PackagePolicy"),
        (changed("reference", format!("oci://r.io/a@sha256:{}", "0".repeat(64)).into()), "another digest"),
    ] {
        let why = policies.check(Some(&altered), &revision()).unwrap_err();
        assert!(why.contains(expected), "{expected}: {why}");
    }
    let why = policies.check(Some(&good), &"1".repeat(64)).unwrap_err();
    assert!(why.contains("other files"), "{why}");
    assert!(policies.check(Some(&other), &revision()).is_err());
}

#[cfg(feature = "sigstore-verify")]
#[tokio::test]
async fn identities_permit_what_they_have_signed() {
    use super::sigstore::{ACTIONS, Flaw, Sigstore, WORKFLOW};
    use crate::Identity;

    let (ours, theirs) = (Sigstore::new(), Sigstore::new());
    let who = |subject: &str| Identity { issuer: ACTIONS.to_owned(), subject: subject.to_owned() };
    let policies = |root: String, keys: &[&PrivateKey]| {
        let entry = entry("acme", "r.io/a", keys);
        let identities = vec![who(WORKFLOW)];
        Policies::new(vec![Policy { identities, trusted_root: Some(root), unsigned: false, ..entry }])
    };
    let root = ours.root().to_string();
    let by = async |sigstore: &Sigstore, subject: &str| {
        let sign = |digest: &Digest| {
            vec![sigstore.sign(digest.hex(), (ACTIONS, subject), Flaw::None).to_string().into_bytes()]
        };
        signed("oci://r.io/a", sign).await
    };
    let tag = format!("{WORKFLOW}@refs/tags/v1");
    let good = by(&ours, &tag).await;
    let permit = policies(root.clone(), &[]).check(Some(&good), &revision()).unwrap();
    assert_eq!(permit.policy.as_deref(), Some("acme"));
    assert_eq!(permit.signer, Some(format!("{tag} (of {ACTIONS})")));
    let key = key();
    let with_key = provenance("oci://r.io/a", &[&key]).await;
    assert!(policies(root.clone(), &[&key]).check(Some(&with_key), &revision()).is_ok());
    assert!(policies(root.clone(), &[&key]).check(Some(&good), &revision()).is_ok());
    let fork = WORKFLOW.replace("acme", "evil") + "@refs/tags/v1";
    let (fork, foreign) = (by(&ours, &fork).await, by(&theirs, &tag).await);
    let unsigned = provenance("oci://r.io/a", &[]).await;
    for (package, words) in [
        (&fork, "it is of https://github.com/evil/"),
        (&foreign, "acme does not permit it"),
        (&with_key, "it is the signature of a key"),
        (&unsigned, "not signed"),
    ] {
        let why = policies(root.clone(), &[]).check(Some(package), &revision()).unwrap_err();
        assert!(why.contains(words), "{words}: {why}");
    }
    let why = policies("{}".to_owned(), &[]).check(Some(&good), &revision()).unwrap_err();
    assert!(why.contains("the trusted root of acme cannot be used"), "{why}");
}
