//! What an honest registry gets and gives.

use http::Method;

use super::server::{Answer, End, Server, answer, options};
use super::{by, key, large, package, push, silent};
use crate::{Digest, Error, Place, copy, signatures};

async fn pull(place: &mut Place) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let manifest = place.resolve().await?;
    let (config, layer) = crate::artifact::parts("x", &manifest)?;
    let (config, layer) = (place.store.blob(config).await?, place.store.blob(layer).await?);
    Ok((config.to_vec(), layer.to_vec()))
}

#[tokio::test]
async fn a_package_is_pushed_and_pulled() {
    let server = Server::start().await;
    let artifact = package("a: b\n");
    push(&artifact, &server.place("acme/etcd").store).await.unwrap();
    let wanted = (artifact.config.to_vec(), artifact.layer.to_vec());
    let digest = artifact.manifest.descriptor.digest.clone();
    // By tag, by digest, and by the newest version.
    for rest in ["acme/etcd:1.2.0", &format!("acme/etcd@{digest}"), "acme/etcd"] {
        let mut place = server.place(rest);
        assert_eq!(pull(&mut place).await.unwrap(), wanted, "{rest}");
    }
    // The second push sends no blob.
    let before = server.count(&Method::POST, "uploads");
    push(&artifact, &server.place("acme/etcd").store).await.unwrap();
    assert_eq!(server.count(&Method::POST, "uploads"), before);
    assert!(pull(&mut server.place("acme/etcd:9.9.9")).await.unwrap_err().is_not_found());
    assert!(pull(&mut server.place("none/etcd")).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_version_is_not_replaced() {
    let server = Server::start().await;
    let to = server.place("acme/etcd").store;
    push(&package("a: b\n"), &to).await.unwrap();
    let other = package("a: c\n");
    let error = push(&other, &to).await.unwrap_err();
    assert!(matches!(error, Error::TagExists { .. }), "{error}");
    let digest = Digest::of(&to.manifest("1.2.0").await.unwrap().bytes);
    assert_eq!(digest, package("a: b\n").manifest.descriptor.digest);
    crate::push(&other, &[], &to, &["1.2.0"], true, &silent).await.unwrap();
    assert_eq!(to.manifest("1.2.0").await.unwrap().bytes, other.manifest.bytes);
}

/// With the API for referrers and without it, and through a layout: the same signatures at the end.
#[tokio::test]
async fn signatures_travel() {
    let key = key();
    for has_referrers in [true, false] {
        let (first, second) = (Server::start().await, Server::start().await);
        first.state.lock().unwrap().has_referrers = has_referrers;
        second.state.lock().unwrap().has_referrers = !has_referrers;
        let artifact = package("a: b\n");
        let mut from = first.place("acme/etcd:1.2.0");
        push(&artifact, &from.store).await.unwrap();
        let manifest = from.resolve().await.unwrap();
        for _ in 0..2 {
            signatures::attach(&from.store, &manifest, &key).await.unwrap();
        }
        signatures::attach(&from.store, &manifest, &super::key()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("layout").display().to_string();
        let layout = Place::create(&text, &options()).unwrap();
        copy(&manifest, &from.store, &layout.store, Some("1.2.0"), false, &silent).await.unwrap();
        drop(first);
        let mut layout = Place::open(&text, &options()).unwrap();
        let manifest = layout.resolve().await.unwrap();
        let to = second.place("mirror/etcd");
        for _ in 0..2 {
            copy(&manifest, &layout.store, &to.store, Some("1.2.0"), false, &silent).await.unwrap();
        }
        let mut to = second.place("mirror/etcd:1.2.0");
        let manifest = to.resolve().await.unwrap();
        assert_eq!(manifest.bytes, artifact.manifest.bytes);
        let found = signatures::find(&to.store, &manifest).await.unwrap();
        // Ed25519 is deterministic: the second signature is the first.
        assert_eq!(found.len(), 2);
        assert!(signatures::check("x", &manifest, &found, &by(&key)).is_ok());
        let error = signatures::check("x", &manifest, &found, &by(&super::key())).unwrap_err();
        assert!(error.to_string().contains("of another key"), "{error}");
        assert_eq!(second.count(&Method::PUT, "/manifests/sha256-") > 0, has_referrers);
    }
}

#[tokio::test]
async fn a_large_blob_is_continued() {
    // The second part fails once.
    let server = Server::lying(|seen, before| {
        (seen.method == Method::PATCH && before == 1).then(|| answer(503, &[("retry-after", "0")], ""))
    })
    .await;
    let (blob, bytes) = large(20 << 20);
    let store = server.place("x").store;
    store.put_blob(&blob, &bytes).await.unwrap();
    assert_eq!(server.count(&Method::PATCH, "uploads"), 4);
    assert!(store.blob(&blob).await.unwrap() == bytes);
}

#[tokio::test]
async fn a_download_that_breaks_is_continued() {
    let (blob, bytes) = large(300_000);
    let digest = blob.digest.to_string();
    let (served, part) = (digest.clone(), bytes.slice(..100_000));
    let server = Server::lying(move |seen, before| {
        let is_it = seen.method == Method::GET && seen.path.ends_with(&served);
        (is_it && before == 0).then(|| Answer {
            pieces: vec![part.clone()],
            end: End::Cut,
            ..answer(200, &[("content-length", "300000")], "")
        })
    })
    .await;
    let store = server.place("x").store;
    store.put_blob(&blob, &bytes).await.unwrap();
    assert!(store.blob(&blob).await.unwrap() == bytes);
    let seen = server.seen();
    let ranges: Vec<_> =
        seen.iter().filter(|seen| seen.method == Method::GET && seen.path.ends_with(&digest)).collect();
    assert_eq!(ranges.len(), 2);
    assert!(ranges[1].range.is_some(), "{ranges:?}");
}

#[tokio::test]
async fn blobs_are_mounted_within_a_registry() {
    let server = Server::start().await;
    let mut from = server.place("a/etcd:1.2.0");
    push(&package("a: b\n"), &from.store).await.unwrap();
    // Both repositories of this server have the blobs, so another path is used for the question.
    let manifest = from.resolve().await.unwrap();
    let to = server.place("b/etcd").store;
    let blob = &manifest.manifest().unwrap().layers[0];
    assert!(to.mount(blob, &from.store).await.unwrap());
    let other = crate::Descriptor { digest: Digest::of(b"other"), ..blob.clone() };
    assert!(!to.mount(&other, &from.store).await.unwrap());
}

#[tokio::test]
async fn tags_are_read_in_pages() {
    let server = Server::lying(|seen, _| {
        let query = seen.path.split_once("/tags/list?")?.1;
        let page: usize = query.strip_prefix("page=").map_or(0, |page| page.parse().unwrap());
        let tags: Vec<String> = (page * 1_000..(page + 1) * 1_000).map(|tag| format!("0.0.{tag}")).collect();
        let body = serde_json::json!({"name": "x", "tags": tags}).to_string();
        let next = format!("</v2/x/tags/list?page={}>; rel=\"next\"", page + 1);
        let link = [("link", &*next)];
        Some(answer(200, if page < 9 { &link } else { &[] }, body))
    })
    .await;
    assert_eq!(server.place("x").store.tags().await.unwrap().len(), 10_000);
}

/// What was not finished is finished by the next attempt.
#[tokio::test]
async fn a_layout_that_was_not_finished_is_repaired() {
    let server = Server::start().await;
    let mut from = server.place("a:1.2.0");
    let artifact = package("a: b\n");
    push(&artifact, &from.store).await.unwrap();
    let manifest = from.resolve().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().display().to_string();
    // A part of a blob, and no index yet.
    let blobs = folder.path().join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(Digest::of(&artifact.layer).hex()), b"half").unwrap();
    let layout = Place::create(&text, &options()).unwrap();
    copy(&manifest, &from.store, &layout.store, Some("1.2.0"), false, &silent).await.unwrap();
    assert_eq!(pull(&mut Place::open(&text, &options()).unwrap()).await.unwrap().1, artifact.layer);
    // A damaged blob is not used.
    std::fs::write(blobs.join(Digest::of(&artifact.layer).hex()), b"other").unwrap();
    let error = pull(&mut Place::open(&text, &options()).unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::WrongDigest { .. }), "{error}");
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("file"), b"").unwrap();
    assert!(Place::create(&other.path().display().to_string(), &options()).is_err());
}
