//! Registries that lie: the command ends with one error that names registry and repository, in bounded memory and time, and leaves
//! nothing behind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use operetta_registry::Digest;
use serde_json::{Value, json};

use super::{OURS, User, WEB, says};
use crate::registry::{Content, Registry, Reply, Request, reply};

/// More than a command reads of an answer that does not end, with what is on the way.
const SENT_BYTES: u64 = 96 << 20;

/// A registry with a signed package.
fn published() -> Content {
    let (user, registry) = (User::with_keys(), Registry::start());
    let name = user.ok(&["push", WEB, &registry.place("acme/web")]);
    user.ok(&["sign", &name, "--key", OURS[0]]);
    registry.content()
}

/// The commands that read a package fail with this error. Returns the registry.
fn refused(
    content: &Content,
    lie: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    words: &str,
    code: i32,
) -> Registry {
    let registry = Registry::with(content);
    let user = User::new();
    user.log_in(&registry);
    registry.lie(lie);
    let from = registry.place("acme/web:0.1.0");
    // What the time limit ends is tried again before.
    let more: &[&str] = if code == 4 { &["--timeout", "1s"] } else { &[] };
    for args in [
        &["pull", &*from, "-o", "web.tgz"][..],
        &["pull", &*from, "-o", "layout"],
        &["copy", &*from, "layout"],
    ] {
        let (found, error) = user.fails(&[args, more].concat());
        assert!(found == code && error.contains(words), "{args:?}: {found} {error}");
        assert!(error.contains(&registry.address) && error.contains("acme/web"), "{args:?}: {error}");
        assert!(error.len() < 500, "{args:?}: {error}");
        assert!(user.has_nothing(), "{args:?}: {:?}", user.results());
    }
    registry
}

/// Requests for a manifest by its tag.
fn is_tag(request: &Request) -> bool {
    request.is("GET", "/manifests/0.1.0")
}

fn digest(manifest: &Value, pointer: &str) -> String {
    manifest.pointer(pointer).and_then(Value::as_str).unwrap().to_owned()
}

#[test]
fn other_content_than_asked_for_is_refused() {
    let content = published();
    let manifest = content.tagged("acme/web", "0.1.0");
    // Bytes of the same size, of the config and of the files.
    for pointer in ["/config", "/layers/0"] {
        let blob = digest(&manifest, &format!("{pointer}/digest"));
        let size = manifest.pointer(pointer).unwrap()["size"].as_u64().unwrap();
        let bytes = vec![b'x'; usize::try_from(size).unwrap()];
        let lie = move |request: &Request| request.is("GET", &blob).then(|| reply(200, &[], bytes.clone()));
        refused(&content, lie, "instead of sha256:", 1);
    }
    // A manifest that is not what the registry says, and one that is not what was asked for.
    let other = json!({"schemaVersion": 2, "manifests": []}).to_string();
    let wanted = content.tag("acme/web", "0.1.0").unwrap().to_owned();
    let (body, claimed) = (other.clone(), wanted.clone());
    let lie = move |request: &Request| {
        is_tag(request).then(|| reply(200, &[("docker-content-digest", &claimed)], body.clone()))
    };
    refused(&content, lie, "instead of sha256:", 1);
    let (user, registry) = (User::with_keys(), Registry::with(&content));
    registry
        .lie(move |request| request.is("GET", "/manifests/sha256:").then(|| reply(200, &[], other.clone())));
    for args in [&["pull", "-o", "layout"][..], &["verify", "--key", OURS[1]], &["inspect"]] {
        let from = format!("{}@{wanted}", registry.place("acme/web"));
        let (code, error) = user.fails(&[args, &[&*from]].concat());
        assert!(code == 1 && error.contains("instead of sha256:"), "{args:?}: {error}");
        assert!(user.has_nothing(), "{args:?}");
    }
}

#[test]
fn truncated_blobs_are_refused() {
    let content = published();
    for is_cut in [true, false] {
        let lie = move |request: &Request| {
            let short = reply(200, &[], "short");
            request.is("GET", "/blobs/").then(|| if is_cut { short.cut() } else { short })
        };
        let registry = refused(&content, lie, "did not complete", 4);
        assert!(registry.count("GET", "/blobs/") >= 3);
    }
}

#[test]
fn endless_answers_are_cut_off() {
    let content = published();
    for part in ["/manifests/", "/blobs/"] {
        let lie = move |request: &Request| {
            request.is("GET", part).then(|| reply(200, &[], vec![b' '; 64 << 10]).endless())
        };
        let registry = refused(&content, lie, "is larger than", 1);
        assert_eq!(registry.count("GET", part), 3);
        assert!(registry.sent() < SENT_BYTES, "{}", registry.sent());
    }
    // Lists, and the text of an error.
    let (user, registry) = (User::new(), Registry::with(&content));
    registry.lie(|request| {
        let endless = |status| reply(status, &[], vec![b' '; 64 << 10]).endless();
        request
            .is("GET", "/tags/list")
            .then(|| endless(200))
            .or_else(|| is_tag(request).then(|| endless(418)))
    });
    says(user.fails(&["pull", &registry.place("acme/web")]), 1, &["the tags of", "is larger than"]);
    says(user.fails(&["pull", &registry.place("acme/web:0.1.0")]), 1, &["answers 418", "acme/web"]);
    assert!(user.has_nothing() && registry.sent() < SENT_BYTES);
}

#[test]
fn redirects_that_do_not_end_are_left() {
    let content = published();
    for part in ["/manifests/", "/blobs/"] {
        let lie = move |request: &Request| {
            request.is("GET", part).then(|| reply(307, &[("location", &request.path)], ""))
        };
        let registry = refused(&content, lie, "redirects too often", 1);
        assert!(registry.count("GET", part) <= 30, "{}", registry.count("GET", part));
    }
    // To what is no URL of HTTP.
    let lie =
        |request: &Request| is_tag(request).then(|| reply(307, &[("location", "file:///etc/passwd")], ""));
    refused(&content, lie, "its location is no URL", 1);
}

/// Credentials that are refused are sent once.
#[test]
fn refused_credentials_are_not_sent_again() {
    let content = published();
    for challenge in ["Basic realm=\"x\"", "Bearer realm=\"/token\",service=\"s\""] {
        let lie = move |request: &Request| {
            if request.path == "/token" {
                return Some(reply(200, &[], r#"{"token": "t"}"#));
            }
            Some(reply(401, &[("www-authenticate", challenge)], ""))
        };
        let registry = refused(&content, lie, "the credentials do not suffice", 1);
        // Each of three commands asks twice.
        assert_eq!(registry.count("GET", "/manifests/"), 6);
        assert_eq!(registry.count("GET", "/token"), if challenge.starts_with("Basic") { 0 } else { 3 });
    }
}

#[test]
fn overloaded_registry_is_asked_again_when_it_says() {
    let content = published();
    let (user, registry) = (User::new(), Registry::with(&content));
    let asked = AtomicUsize::new(0);
    registry.lie(move |request| {
        let is_first = is_tag(request) && asked.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then(|| reply(429, &[("retry-after", "2")], ""))
    });
    user.ok(&["pull", &registry.place("acme/web:0.1.0"), "-o", "web.tgz"]);
    let times: Vec<_> = registry.seen().iter().filter(|one| is_tag(one)).map(|one| one.at).collect();
    assert!(times.len() == 2 && times[1] - times[0] >= Duration::from_secs(2), "{times:?}");
    // A wait that is longer than the time limit.
    let lie = |request: &Request| is_tag(request).then(|| reply(429, &[("retry-after", "86400")], ""));
    let registry = refused(&content, lie, "did not complete the manifest", 4);
    assert!(registry.count("GET", "/manifests/") >= 3);
}

#[test]
fn manifests_that_are_too_large_or_no_packages_are_refused() {
    let content = published();
    let manifest = content.tagged("acme/web", "0.1.0");
    let layers = |count: usize| {
        let mut manifest = manifest.clone();
        manifest["layers"] = vec![manifest["layers"][0].clone(); count].into();
        manifest.to_string()
    };
    let large = {
        let mut manifest = manifest.clone();
        manifest["layers"][0]["size"] = (1_u64 << 40).into();
        manifest.to_string()
    };
    for (body, words) in [
        (layers(100_000), "is larger than"),
        (layers(2_000), "it has 2000 entries"),
        (format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), "is invalid"),
        ("<html>".to_owned(), "is invalid"),
        (String::new(), "is invalid"),
    ] {
        let lie = move |request: &Request| is_tag(request).then(|| reply(200, &[], body.clone()));
        refused(&content, lie, words, 1);
    }
    // Nothing of a layer that states a terabyte is asked for.
    let layer = digest(&manifest, "/layers/0/digest");
    let lie = move |request: &Request| is_tag(request).then(|| reply(200, &[], large.clone()));
    let registry = refused(&content, lie, "is larger than", 1);
    assert_eq!(registry.count("GET", &layer), 0);
}

/// Referrers of referrers, of which each list is short.
#[test]
fn copies_are_bounded_in_the_number_of_manifests() {
    let content = published();
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let of = |bytes: &str| json!({"mediaType": kind, "digest": Digest::of(bytes.as_bytes()).to_string(), "size": bytes.len()});
    let mut empty = of("{}");
    empty["mediaType"] = "application/vnd.oci.empty.v1+json".into();
    let referrer = |subject: &Value, number: usize| {
        json!({
            "schemaVersion": 2, "mediaType": kind, "artifactType": "text/plain", "config": empty, "layers": [empty],
            "subject": subject, "annotations": {"number": number.to_string()},
        })
        .to_string()
    };
    let package = content.tag("acme/web", "0.1.0").unwrap();
    let subject = json!({"mediaType": kind, "digest": package, "size": 1});
    let mut manifests: HashMap<String, String> = HashMap::new();
    let mut lists: HashMap<String, Vec<Value>> = HashMap::new();
    for number in 0..600 {
        let first = referrer(&subject, number);
        let second = referrer(&of(&first), number);
        lists.entry(package.to_owned()).or_default().push(of(&first));
        lists.entry(digest(&of(&first), "/digest")).or_default().push(of(&second));
        for manifest in [first, second] {
            manifests.insert(digest(&of(&manifest), "/digest"), manifest);
        }
    }
    let (user, registry) = (User::new(), Registry::with(&content));
    let empty = digest(&empty, "/digest");
    registry.lie(move |request| {
        let wanted = request.path.rsplit('/').next().unwrap();
        if request.is("GET", "/referrers/") {
            let index = "application/vnd.oci.image.index.v1+json";
            let listed = lists.get(wanted).cloned().unwrap_or_default();
            let list = json!({"schemaVersion": 2, "mediaType": index, "manifests": listed});
            return Some(reply(200, &[("content-type", index)], list.to_string()));
        }
        if request.is("GET", "/blobs/") && wanted == empty {
            return Some(reply(200, &[], "{}"));
        }
        manifests.get(wanted).map(|manifest| reply(200, &[("content-type", kind)], manifest.clone()))
    });
    let (code, error) = user.fails(&["copy", &registry.place("acme/web:0.1.0"), "layout"]);
    assert!(code == 1 && error.contains("more than 1000 are to be copied"), "{error}");
    assert!(user.has_nothing());
}

#[test]
fn push_to_a_registry_that_lies_fails() {
    let user = User::new();
    let other = format!("sha256:{}", "0".repeat(64));
    let claimed = [("docker-content-digest", &*other)];
    let cases = [
        (
            "POST",
            "/uploads/",
            reply(202, &[("location", "file:///etc/passwd")], ""),
            "its location is no URL",
        ),
        ("PUT", "/uploads/", reply(400, &[], r#"{"errors": [{"code": "NO\nWAY"}]}"#), "answers 400"),
        ("PUT", "/manifests/", reply(201, &claimed, ""), "instead of sha256:"),
        ("PUT", "/manifests/", reply(307, &[("location", "/elsewhere")], ""), "redirects too often"),
    ];
    for (method, part, answer, words) in cases {
        let registry = Registry::start();
        registry.lie(move |request| request.is(method, part).then(|| answer.clone()));
        let (code, error) = user.fails(&["push", WEB, &registry.place("acme/web")]);
        assert!(code == 1 && error.contains(words), "{method} {part}: {error}");
        assert!(error.contains(&registry.address) && error.contains("acme/web"), "{error}");
        assert_eq!(registry.content().tag("acme/web", "0.1.0"), None);
    }
}
