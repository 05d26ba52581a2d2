//! What a registry that is broken, slow or hostile gets: a clear error, in bounded memory and time.

use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;

use super::server::{Answer, End, Seen, Server, answer, options};
use super::{package, push};
use crate::manifest::MANIFEST;
use crate::{CredentialFiles, Descriptor, Digest, Error, Options, Place};

/// An address on which nothing listens.
const CLOSED: &str = "127.0.0.1:1";

fn is_get(seen: &Seen, part: &str) -> bool {
    seen.method == Method::GET && seen.path.contains(part)
}

/// The error of reading the manifest `x:1` from a registry that answers so.
async fn manifest(lie: impl Fn() -> Answer + Send + Sync + 'static) -> (Error, usize) {
    let server = Server::lying(move |seen, _| is_get(seen, "/manifests/").then(&lie)).await;
    let error = server.place("x:1").resolve().await.unwrap_err();
    (error, server.count(&Method::GET, "/manifests/"))
}

/// The error of reading a blob of 5 bytes.
async fn blob(lie: impl Fn() -> Answer + Send + Sync + 'static) -> (Error, usize) {
    let server = Server::lying(move |seen, _| is_get(seen, "/blobs/").then(&lie)).await;
    let error = server.place("x").store.blob(&Descriptor::of("x", b"12345")).await.unwrap_err();
    (error, server.count(&Method::GET, "/blobs/"))
}

fn endless() -> Answer {
    Answer { pieces: vec![Bytes::from(vec![b' '; 64 << 10])], end: End::Endless, ..answer(200, &[], "") }
}

#[tokio::test]
async fn other_bytes_than_asked_for_are_refused_at_once() {
    let (error, count) = blob(|| answer(200, &[], "54321")).await;
    assert!(matches!(error, Error::WrongDigest { .. }) && count == 1, "{error}");
    let digest = Digest::of(b"good");
    let (text, claimed) = (digest.to_string(), digest.to_string());
    let body = r#"{"schemaVersion":2,"manifests":[]}"#;
    let (error, _) = manifest(move || answer(200, &[("docker-content-digest", &claimed)], body)).await;
    assert!(matches!(error, Error::WrongDigest { .. }), "{error}");
    let server =
        Server::lying(move |seen, _| is_get(seen, "/manifests/").then(|| answer(200, &[], body))).await;
    let error = server.place(&format!("x@{text}")).resolve().await.unwrap_err();
    assert!(matches!(error, Error::WrongDigest { .. }), "{error}");
}

#[tokio::test]
async fn a_truncated_blob_is_tried_again_and_then_named() {
    let (error, count) = blob(|| answer(200, &[], "123")).await;
    assert!(error.to_string().contains("ends after 3 of 5 bytes"), "{error}");
    assert_eq!(count, 5);
    let cut = || Answer { end: End::Cut, ..answer(200, &[("content-length", "5")], "123") };
    let (error, count) = blob(cut).await;
    assert!(matches!(error, Error::Transport { .. }) && count == 5, "{error}");
}

#[tokio::test]
async fn endless_bodies_are_cut_off() {
    for (error, count) in [blob(endless).await, manifest(endless).await] {
        assert!(matches!(error, Error::TooLarge { .. }) && count == 1, "{error}");
    }
    // An endless error is still the error.
    let (error, _) = manifest(|| Answer { response: answer(418, &[], "").response, ..endless() }).await;
    assert!(matches!(error, Error::Status { status: 418, .. }), "{error}");
    let server = Server::lying(|seen, _| seen.path.contains("/tags/").then(endless)).await;
    assert!(matches!(server.place("x").store.tags().await, Err(Error::TooLarge { .. })));
    // Larger than any package: not even asked for.
    let large = Descriptor { size: 1 << 40, ..Descriptor::of("x", b"") };
    assert!(matches!(server.place("x").store.blob(&large).await, Err(Error::TooLarge { .. })));
    assert_eq!(server.count(&Method::GET, "/blobs/"), 0);
}

#[tokio::test]
async fn a_registry_that_stands_still_is_left() {
    let server = Server::lying(|_, _| Some(answer(503, &[("retry-after", "3600")], ""))).await;
    let options = Options { timeout: Duration::from_millis(50), ..options() };
    let mut place = Place::open(&format!("oci://{}/x:1", server.address), &options).unwrap();
    let error = place.resolve().await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_manifest_with_too_many_layers_is_refused() {
    let layer = serde_json::to_value(Descriptor::of("x", b"")).unwrap();
    let text = |count: usize| {
        let layers = vec![layer.clone(); count];
        serde_json::json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": layer, "layers": layers})
            .to_string()
    };
    let (few, many) = (text(2_000), text(100_000));
    let (error, _) = manifest(move || answer(200, &[], few.clone())).await;
    assert!(error.to_string().contains("2000 entries"), "{error}");
    let (error, _) = manifest(move || answer(200, &[], many.clone())).await;
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn nonsense_is_named() {
    for (body, expected) in [
        ("", "is invalid"),
        ("<html>", "is invalid"),
        ("[]", "is invalid"),
        (r#"{"schemaVersion":1,"mediaType":"text/html"}"#, "media type"),
        (r#"{"schemaVersion":2,"config":{},"layers":[]}"#, "missing field"),
    ] {
        let (error, _) = manifest(move || answer(200, &[], body)).await;
        assert!(error.to_string().contains(expected), "{body}: {error}");
    }
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect() {
    // The blob is on another server, as registries in front of object stores do.
    let store = Server::lying(|_, _| Some(answer(200, &[], "12345"))).await;
    let target = format!("http://{}/elsewhere", store.address);
    let server = Server::lying(move |seen, _| {
        Some(if seen.authorization.is_none() {
            answer(401, &[("www-authenticate", "Basic realm=\"x\"")], "")
        } else {
            answer(307, &[("location", &target)], "")
        })
    })
    .await;
    let place = logged_in(&server).await;
    assert_eq!(place.store.blob(&Descriptor::of("x", b"12345")).await.unwrap(), "12345");
    assert!(server.seen().last().unwrap().authorization.is_some());
    let [seen] = &store.seen()[..] else { panic!() };
    assert_eq!(seen.authorization, None);
}

#[tokio::test]
async fn the_target_of_a_redirect_is_named_if_it_refuses() {
    for status in [401, 403] {
        let store = Server::lying(move |_, _| Some(answer(status, &[], ""))).await;
        let target = format!("http://{}/elsewhere", store.address);
        let server = Server::lying(move |_, _| Some(answer(307, &[("location", &target)], ""))).await;
        let read = server.place("x").store.blob(&Descriptor::of("x", b"12345")).await;
        let text = read.unwrap_err().to_string();
        assert!(text.starts_with(&format!("{} answers {status} to the blob", store.address)), "{text}");
        assert!(text.ends_with(&format!("for which {} redirects to it", server.address)), "{text}");
        assert_eq!(store.seen().len(), 1);
    }
}

#[tokio::test]
async fn refused_connections_are_tried_again_only_after_an_answer() {
    let options = Options { on_retry: |error, _| panic!("tried again: {error}"), ..options() };
    let reference = format!("oci://{CLOSED}/x:1");
    let error = Place::open(&reference, &options).unwrap().resolve().await.unwrap_err();
    assert!(matches!(error, Error::Transport { .. }) && error.is_temporary(), "{error}");
    let target = format!("http://{CLOSED}/elsewhere");
    let server = Server::lying(move |_, _| Some(answer(307, &[("location", &target)], ""))).await;
    let text = server.place("x:1").resolve().await.unwrap_err().to_string();
    assert!(text.starts_with(&format!("{CLOSED} cannot be reached")), "{text}");
    assert_eq!(server.seen().len(), 5);
}

#[tokio::test]
async fn redirects_end() {
    let server = Server::lying(|_, _| Some(answer(307, &[("location", "/v2/x/blobs/again")], ""))).await;
    let error = server.place("x:1").resolve().await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert_eq!(server.seen().len(), 6);
    for location in ["", "ftp://a/b", "//b/c", "https://user:pass@b/c"] {
        let server = Server::lying(move |_, _| Some(answer(302, &[("location", location)], ""))).await;
        let error = server.place("x:1").resolve().await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{location}: {error}");
    }
}

/// A place with credentials for the server.
async fn logged_in(server: &Server) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let credentials = CredentialFiles::at(vec![folder.path().join("config.json")]);
    credentials.store(&server.address, "user", "secret").await.unwrap();
    let options = Options { credentials, ..options() };
    let place = Place::open(&format!("oci://{}/x", server.address), &options).unwrap();
    // They are read with the first request that needs them.
    std::mem::forget(folder);
    place
}

#[tokio::test]
async fn a_registry_that_never_accepts_is_asked_twice() {
    for challenge in ["Basic realm=\"x\"", "Bearer realm=\"/token\",service=\"s\""] {
        let server = Server::lying(move |seen, _| {
            Some(if seen.path.starts_with("/token") {
                answer(200, &[], r#"{"token":"t"}"#)
            } else {
                answer(401, &[("www-authenticate", challenge)], r#"{"errors":[{"code":"UNAUTHORIZED"}]}"#)
            })
        })
        .await;
        let error = logged_in(&server).await.store.manifest("1").await.unwrap_err();
        assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
        assert!(error.to_string().contains(&format!("operetta login {}", server.address)), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert_eq!(server.count(&Method::GET, "/manifests/"), 2);
    }
    let server = Server::lying(|_, _| Some(answer(401, &[("www-authenticate", "Negotiate")], ""))).await;
    assert!(matches!(server.place("x").store.manifest("1").await, Err(Error::Refused { .. })));
}

#[tokio::test]
async fn tokens_are_fetched_once_per_access() {
    let server = Server::lying(|seen, _| {
        if let Some(query) = seen.path.strip_prefix("/token?") {
            let basic = format!("Basic {}", STANDARD.encode("user:secret"));
            assert_eq!(seen.authorization.as_deref(), Some(&*basic));
            return Some(answer(200, &[], format!(r#"{{"access_token":"{}"}}"#, query.len())));
        }
        let challenge = "Bearer realm=\"/token\",service=\"a b\"";
        let is_known = seen.authorization.as_deref().is_some_and(|value| value.starts_with("Bearer "));
        (!is_known).then(|| answer(401, &[("www-authenticate", challenge)], ""))
    })
    .await;
    let place = logged_in(&server).await;
    push(&package("a: b\n"), &place.store).await.unwrap();
    place.store.manifest("1.2.0").await.unwrap();
    let tokens: Vec<Seen> =
        server.seen().into_iter().filter(|seen| seen.path.starts_with("/token")).collect();
    assert_eq!(tokens.len(), 2, "{tokens:?}");
    assert!(tokens[1].path.contains("service=a%20b&scope=repository%3Ax%3Apull%2Cpush"), "{tokens:?}");
}

/// The server for tokens gets the password, so it must be as safe as the registry.
#[tokio::test]
async fn passwords_are_sent_to_no_strange_url() {
    for realm in ["file:///etc/passwd", "ftp://x/", "", "x"] {
        let challenge = format!("Bearer realm=\"{realm}\"");
        let server =
            Server::lying(move |_, _| Some(answer(401, &[("www-authenticate", &challenge)], ""))).await;
        let error = logged_in(&server).await.store.manifest("1").await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{realm}: {error}");
    }
}

#[tokio::test]
async fn an_overloaded_registry_is_asked_again() {
    let server = Server::lying(|seen, before| {
        (is_get(seen, "/manifests/") && before < 3).then(|| {
            answer(
                [429, 503, 500][before],
                &[("retry-after", "0")],
                r#"{"errors":[{"code":"TOOMANYREQUESTS"}]}"#,
            )
        })
    })
    .await;
    let artifact = package("a: b\n");
    crate::push(&artifact, &[], &server.place("x").store, &["1"], true, &super::silent).await.unwrap();
    assert_eq!(server.place("x:1").resolve().await.unwrap().bytes, artifact.manifest.bytes);
    let (error, count) = manifest(|| answer(429, &[("retry-after", "0")], "")).await;
    assert!(matches!(error, Error::Status { status: 429, .. }) && count == 5, "{error}");
    // What is wrong does not become right.
    let (error, count) =
        manifest(|| answer(400, &[], r#"{"errors":[{"code":"X","message":"no\nway"}]}"#)).await;
    assert!(
        error.to_string().contains("400") && error.to_string().contains("X no way") && count == 1,
        "{error}"
    );
}

#[tokio::test]
async fn lists_that_do_not_end_are_left() {
    // The same page for ever, and more and more tags.
    let page = |tags: usize, next: &str| {
        let tags = vec!["0.0.1"; tags];
        let link = format!("<{next}>; rel=\"next\"");
        answer(200, &[("link", &link)], serde_json::json!({"tags": tags}).to_string())
    };
    let server = Server::lying(move |_, _| Some(page(1, "/v2/x/tags/list?n=1000"))).await;
    assert_eq!(server.place("x").store.tags().await.unwrap(), ["0.0.1"]);
    let server = Server::lying(move |seen, _| Some(page(50_000, &format!("{}0", seen.path)))).await;
    assert!(matches!(server.place("x").store.tags().await, Err(Error::TooLarge { .. })));
    let server = Server::lying(move |_, _| Some(page(1, "http://127.0.0.1:1/"))).await;
    assert!(matches!(server.place("x").store.tags().await, Err(Error::Refused { .. })));
}

#[tokio::test]
async fn an_upload_that_the_registry_miscounts_is_left() {
    let (blob, bytes) = super::large(9 << 20);
    let server = Server::lying(|seen, _| {
        (seen.method == Method::PATCH)
            .then(|| answer(202, &[("range", "0-99999999999"), ("location", "/v2/x/blobs/uploads/u0")], ""))
    })
    .await;
    let error = server.place("x").store.put_blob(&blob, &bytes).await.unwrap_err();
    assert!(error.to_string().contains("more than was sent"), "{error}");
    let server =
        Server::lying(|seen, _| (seen.method == Method::PATCH).then(|| answer(416, &[("range", "0-0")], "")))
            .await;
    let error = server.place("x").store.put_blob(&blob, &bytes).await.unwrap_err();
    assert!(error.to_string().contains("no progress"), "{error}");
}

#[tokio::test]
async fn only_the_given_authority_is_trusted() {
    let (server, ca) = Server::secured().await;
    let (_, other) = Server::secured().await;
    let with = |ca: Option<&str>| {
        let options = Options { ca: ca.map(|ca| ca.as_bytes().to_vec()), ..options() };
        Place::open(&format!("oci://{}/x:1", server.address), &options)
    };
    let place = with(Some(&ca)).unwrap();
    push(&package("a: b\n"), &place.store).await.unwrap();
    let error = with(Some(&other)).unwrap().resolve().await.unwrap_err();
    assert!(error.to_string().contains("--ca FILE"), "{error}");
    assert!(matches!(with(None).unwrap().resolve().await, Err(Error::Transport { .. })));
    assert!(with(Some("no certificate")).is_err());
}

#[tokio::test]
async fn retries_are_reported() {
    static REPORTED: Mutex<Vec<(String, Duration)>> = Mutex::new(Vec::new());
    let server = Server::lying(|_, _| Some(answer(503, &[("retry-after", "0")], ""))).await;
    let on_retry = |error: &Error, wait| REPORTED.lock().unwrap().push((error.to_string(), wait));
    let options = Options { on_retry, ..options() };
    let reference = format!("oci://{}/x:1", server.address);
    let error = Place::open(&reference, &options).unwrap().resolve().await.unwrap_err().to_string();
    assert_eq!(*REPORTED.lock().unwrap(), vec![(error, Duration::ZERO); 4]);
}
