//! Indexes of packages and deprecations, from registries that are honest and that lie.

use serde_json::json;

use super::server::{Server, answer, options};
use super::{key, push, silent};
use crate::deprecation::{self, Deprecation};
use crate::index::{self, PackageIndex};
use crate::survey::{Found, survey};
use crate::{Artifact, Config, Digest, Error, Listed, Registry, Signers, signatures};

fn registry(server: &Server) -> Registry {
    Registry::new(&server.address, options()).unwrap()
}

/// A package of that name and version, with what `change` makes of its config.
fn package(name: &str, version: &str, change: impl FnOnce(&mut Config)) -> Artifact {
    let mut config = Config::new(name, version, &"0".repeat(64));
    change(&mut config);
    Artifact::new(config, [("operator.yaml", version.as_bytes())]).unwrap()
}

async fn publish(server: &Server, repository: &str, artifact: &Artifact, tags: &[&str]) {
    let store = registry(server).store(repository);
    crate::push(artifact, &[], &store, tags, false, &silent).await.unwrap();
}

async fn read(server: &Server, repository: &str) -> Result<Found, Error> {
    survey(&registry(server).store(repository), &format!("oci://r/{repository}"), 3).await
}

/// The package of a repository, and the warnings.
async fn found(server: &Server, repository: &str) -> (index::Entry, Vec<String>) {
    match read(server, repository).await.unwrap() {
        Found::Package(entry, warnings) => (*entry, warnings.iter().map(ToString::to_string).collect()),
        Found::Index => panic!("it is an index"),
    }
}

#[tokio::test]
async fn an_index_has_what_tags_configs_and_signatures_say() {
    let server = Server::start().await;
    for version in ["0.9.0", "1.0.0", "1.1.0", "1.2.0-rc.1"] {
        let artifact = package("etcd", version, |config| {
            config.description = Some(format!("A store, {version}"));
        });
        let tags: &[&str] = if version == "1.0.0" { &["1.0.0", "stable"] } else { &[version] };
        publish(&server, "acme/etcd", &artifact, tags).await;
    }
    let store = registry(&server).store("acme/etcd");
    let (key, old) = (key(), store.manifest("1.0.0").await.unwrap());
    signatures::attach(&store, &old, &key).await.unwrap();
    let deprecation = Deprecation::new("use 1.1", Some("oci://r/acme/etcd:1.1.0")).unwrap();
    deprecation::attach(&store, &old, &deprecation, Some(&key)).await.unwrap();

    let (entry, warnings) = found(&server, "acme/etcd").await;
    assert_eq!(warnings, [""; 0]);
    let versions: Vec<&str> = entry.versions.iter().map(|one| &*one.version).collect();
    assert_eq!((versions, entry.more), (vec!["1.2.0-rc.1", "1.1.0", "1.0.0"], 1));
    // The newest version that is no pre-release speaks for the package.
    assert_eq!(entry.description.as_deref(), Some("A store, 1.1.0"));
    assert_eq!(entry.newest().unwrap().version, "1.1.0");
    assert_eq!((&*entry.channels[0].tag, &*entry.channels[0].version), ("stable", "1.0.0"));
    let hints = [format!("sha256:{}", key.public().hint())];
    assert_eq!(entry.versions[2].signers, hints);
    let deprecated = entry.versions[2].deprecated.as_ref().unwrap();
    assert_eq!((&*deprecated.message, &deprecated.signers[..]), ("use 1.1", &hints[..]));
    assert_eq!(deprecated.replaced_by.as_deref(), Some("oci://r/acme/etcd:1.1.0"));
    assert!(entry.versions[0].signers.is_empty() && entry.versions[0].deprecated.is_none());

    let index = PackageIndex::new(vec![entry.clone(), entry]);
    let bytes = index.bytes().unwrap();
    let read = PackageIndex::parse("x", &bytes).unwrap();
    assert_eq!((read.packages.len(), read.bytes().unwrap()), (1, bytes));
}

#[tokio::test]
async fn an_index_is_pushed_and_replaced_and_replaces_nothing_else() {
    let server = Server::start().await;
    let (store, key) = (registry(&server).store("acme/index"), key());
    let bytes = |name: &str| {
        let text = json!({"format": 1, "packages": [{"name": name, "repository": "x", "versions": []}]});
        PackageIndex::parse("x", text.to_string().as_bytes()).unwrap().bytes().unwrap()
    };
    for name in ["first", "second", "second"] {
        let written = index::push(&bytes(name), &store, "latest", Some(&key)).await.unwrap();
        let place = server.place("acme/index");
        let (manifest, layer) = index::resolve(&place).await.unwrap();
        assert_eq!(manifest.descriptor.digest, written.digest);
        assert_eq!(store.blob(&layer).await.unwrap(), bytes(name));
        let found = signatures::find(&store, &manifest).await.unwrap();
        assert!(signatures::check("x", &manifest, &found, &super::by(&key)).is_ok());
        assert!(signatures::check("x", &manifest, &found, &super::by(&super::key())).is_err());
        assert_eq!(found.len(), 1, "an equal index gets no second signature");
    }
    assert!(matches!(read(&server, "acme/index").await.unwrap(), Found::Index));
    push(&super::package("a: b\n"), &registry(&server).store("acme/etcd")).await.unwrap();
    let error = index::push(&bytes("x"), &registry(&server).store("acme/etcd"), "1.2.0", None).await;
    assert!(matches!(error, Err(Error::TagExists { .. })));
    let error = index::resolve(&server.place("acme/etcd:1.2.0")).await.unwrap_err();
    assert!(error.to_string().contains("no index of packages"), "{error}");
}

#[tokio::test]
async fn an_index_in_a_file_is_verified_by_the_key_that_signed_it() {
    let (ours, theirs) = (key(), key());
    let signature = index::sign(b"index", &ours).unwrap();
    let keys = [theirs.public(), ours.public()];
    assert_eq!(index::verify("x", b"index", &signature, &keys).unwrap(), ours.public());
    for (bytes, keys) in [(&b"other"[..], &keys[..]), (b"index", &keys[..1]), (b"index", &[])] {
        assert!(matches!(index::verify("x", bytes, &signature, keys), Err(Error::NotSigned { .. })));
    }
    let newer = PackageIndex::parse("x", br#"{"format":2,"packages":{}}"#).unwrap_err().to_string();
    assert!(newer.contains("upgrade Operetta"), "{newer}");
}

#[tokio::test]
async fn a_deprecation_counts_only_for_its_manifest_and_signed_ones_come_first() {
    for has_referrers in [true, false] {
        let server = Server::start().await;
        server.state.lock().unwrap().has_referrers = has_referrers;
        let store = registry(&server).store("acme/etcd");
        let (first, second) = (package("etcd", "1.0.0", |_| ()), package("etcd", "1.1.0", |_| ()));
        for (artifact, tag) in [(&first, "1.0.0"), (&second, "1.1.0")] {
            publish(&server, "acme/etcd", artifact, &[tag]).await;
        }
        let (ours, theirs) = (key(), key());
        for (message, key) in [("unsigned", None), ("theirs", Some(&theirs)), ("ours", Some(&ours))] {
            let said = Deprecation::new(message, None).unwrap();
            // The second time it is there already.
            for _ in 0..2 {
                deprecation::attach(&store, &first.manifest, &said, key).await.unwrap();
            }
        }
        let found = deprecation::find(&store, &first.manifest, &super::by(&ours)).await.unwrap();
        let found: Vec<_> =
            found.iter().map(|one| (&*one.deprecation.message, one.signer.is_some())).collect();
        assert_eq!(found, [("ours", true), ("theirs", false), ("unsigned", false)], "{has_referrers}");
        assert!(deprecation::find(&store, &second.manifest, &Signers::default()).await.unwrap().is_empty());
        // A signature is no deprecation, and a deprecation no signature.
        signatures::attach(&store, &second.manifest, &ours).await.unwrap();
        assert!(deprecation::find(&store, &second.manifest, &Signers::default()).await.unwrap().is_empty());
        assert!(signatures::find(&store, &first.manifest).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn repositories_below_a_path_are_listed_in_pages() {
    let server = Server::lying(|seen, _| {
        let page = |names: &[&str], next: Option<&str>| {
            let link = next.map(|next| format!("</v2/_catalog?n=2&last={next}>; rel=\"next\""));
            let headers: Vec<_> = link.iter().map(|link| ("link", &**link)).collect();
            answer(200, &headers, json!({"repositories": names}).to_string())
        };
        match seen.path.strip_prefix("/v2/_catalog?")? {
            "n=1000" => Some(page(&["acme/b", "acme-labs/x"], Some("b"))),
            "n=2&last=b" => Some(page(&["acme/a", "../../etc", "A\u{1b}[2J"], Some("c"))),
            _ => Some(page(&["acme", "acme/b"], None)),
        }
    })
    .await;
    let listed = registry(&server).list(&["acme".into()]).await.unwrap();
    let names = ["acme", "acme/a", "acme/b"].map(str::to_owned);
    assert_eq!(listed, Listed::Repositories(names.into(), 2));
}

#[tokio::test]
async fn lists_without_end_are_left() {
    let next = |page: usize| format!("</v2/_catalog?page={page}>; rel=\"next\"");
    // The same page again and again, and new names for ever.
    let same = Server::lying(move |seen, _| {
        let page: usize = seen.path.rsplit_once('=')?.1.parse().ok()?;
        Some(answer(200, &[("link", &next(page + 1))], r#"{"repositories":["a"]}"#))
    })
    .await;
    let error = registry(&same).list(&[String::new()]).await.unwrap_err();
    assert!(error.to_string().contains("nothing new"), "{error}");
    assert_eq!(same.seen().len(), 2);
    let new = Server::lying(move |seen, _| {
        let page: usize = seen.path.rsplit_once('=')?.1.parse().ok()?;
        let names: Vec<String> = (0..9_000).map(|at| format!("r{page}-{at}")).collect();
        Some(answer(200, &[("link", &next(page + 1))], json!({"repositories": names}).to_string()))
    })
    .await;
    let error = registry(&new).list(&[String::new()]).await.unwrap_err();
    assert!(error.to_string().contains("more than 100,000 names"), "{error}");
}

#[tokio::test]
async fn registries_without_a_list_say_so_in_several_ways() {
    for status in [401, 403, 404, 405, 501] {
        let server =
            Server::lying(move |seen, _| seen.path.contains("_catalog").then(|| answer(status, &[], "")))
                .await;
        let listed = registry(&server).list(&[String::new()]).await;
        // A registry that wants an authentication of another kind is an error as elsewhere.
        match status {
            401 => assert!(matches!(listed, Err(Error::Refused { .. }))),
            _ => assert_eq!(listed.unwrap(), Listed::Nothing, "{status}"),
        }
    }
}

#[tokio::test]
async fn versions_that_lie_are_left_out_with_a_warning() {
    let server = Server::start().await;
    let hostile = "\u{1b}[2J".repeat(5_000);
    let good = package("etcd", "1.2.0", |config| config.description = Some(format!("{hostile}a store")));
    publish(&server, "x", &good, &["1.2.0"]).await;
    publish(&server, "x", &package("other", "1.1.0", |_| ()), &["1.1.0", "edge"]).await;
    publish(&server, "x", &package("etcd", "9.9.9", |_| ()), &["1.0.0"]).await;
    let (entry, warnings) = found(&server, "x").await;
    assert_eq!(entry.versions.len(), 1);
    let description = entry.description.unwrap();
    assert!(!description.contains('\u{1b}') && description.chars().count() <= 1_000, "{description}");
    for (warning, expected) in
        warnings.iter().zip(["version 9.9.9", "its package is other", "no version of the package etcd"])
    {
        assert!(warning.contains(expected), "{expected}: {warning}");
    }
    assert_eq!(warnings.len(), 3);
    // A package with a name that none can have, one with a huge config, and an image.
    publish(&server, "name", &package("e\u{1b}tcd", "1.0.0", |_| ()), &["1.0.0"]).await;
    let error = read(&server, "name").await.unwrap_err().to_string();
    assert!(error.contains("not that of a package"), "{error}");
    let huge = package("etcd", "1.0.0", |config| config.readme = Some("x".repeat(2 << 20)));
    publish(&server, "huge", &huge, &["1.0.0"]).await;
    assert!(matches!(read(&server, "huge").await, Err(Error::TooLarge { .. })));
    let bytes = br#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":
        {"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},"layers":[]}"#;
    let image = crate::Stored::parse("x", None, bytes.as_slice().into()).unwrap();
    registry(&server).store("image").put_manifest(&image, Some("1.0.0")).await.unwrap();
    assert!(matches!(read(&server, "image").await, Err(Error::NotAPackage { .. })));
    registry(&server).store("notes").put_manifest(&image, Some("latest")).await.unwrap();
    assert!(matches!(read(&server, "notes").await, Err(Error::NotAPackage { .. })));
}

#[test]
fn tags_of_an_entry_are_versions_and_channels() {
    let digest = Digest::of(b"");
    let text = json!({"format": 1, "packages": [{"name": "a", "repository": "x", "later": 1,
        "channels": [{"tag": "stable", "version": "1.0.0", "digest": digest}],
        "versions": [{"version": "1.1.0-rc.1", "digest": digest}, {"version": "1.0.0", "digest": digest}]}]});
    let index = PackageIndex::parse("x", text.to_string().as_bytes()).unwrap();
    let entry = &index.packages[0];
    assert_eq!(entry.tagged("stable").unwrap().0, "1.0.0");
    assert_eq!(entry.tagged("1.1.0-rc.1").unwrap().0, "1.1.0-rc.1");
    assert!(entry.tagged("2.0.0").is_none());
    assert_eq!(entry.newest().unwrap().version, "1.0.0");
}
