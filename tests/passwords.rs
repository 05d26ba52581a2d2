//! Generated passwords and certificates: made once, kept whatever happens, said when they are lost, and shown nowhere.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use operetta::local::ControlPlane;
use serde_json::{Value, json};
use support::ext::{LONG, SECRET, Scene, TRIAL, condition, managers_requests, run, uid_of, watching};
use support::{Operetta, plane};

const PACKAGES: [&str; 1] = ["trial"];

async fn start(plane: &ControlPlane) -> Operetta {
    let mut manager = run(plane, &PACKAGES);
    watching(&mut manager, 1).await;
    manager
}

fn trial(name: &str, spec: &Value) -> String {
    json!({"apiVersion": TRIAL.api_version(), "kind": "Trial", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn text(secret: &Value, key: &str) -> String {
    let value = secret["data"][key].as_str().unwrap_or_default();
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(value).unwrap()).unwrap()
}

/// The lines of a PEM between its marks.
fn lines(pem: &str) -> Vec<&str> {
    pem.lines().filter(|line| !line.is_empty() && !line.starts_with('-')).collect()
}

/// The certificate is about that key and those names.
fn is_pair(secret: &Value, names: &[&str]) -> bool {
    let (certificate, key) = (text(secret, "tls.crt"), text(secret, "tls.key"));
    let der = base64::engine::general_purpose::STANDARD.decode(lines(&certificate).concat()).unwrap();
    let holds = |part: &[u8]| der.windows(part.len()).any(|window| window == part);
    let key = rcgen::KeyPair::from_pem(&key).unwrap();
    holds(&rcgen::PublicKeyData::subject_public_key_info(&key))
        && names.iter().all(|name| holds(name.as_bytes()))
}

/// One after another: each has a manager of its own, and the first counts what is asked.
#[tokio::test]
async fn what_is_generated_never_changes_by_itself() {
    a_password_is_made_once_and_kept().await;
    a_certificate_is_made_once_with_its_key_and_kept().await;
    a_generated_value_is_never_taken_from_others().await;
}

async fn a_certificate_is_made_once_with_its_key_and_kept() {
    let plane = plane().await;
    let mut outputs = String::new();
    let mut manager = start(plane).await;
    let scene = Scene::unmanaged().await;
    scene.apply(&trial("c", &json!({"tls": ["c.svc", "*.example.org", "10.0.0.1"]}))).await;
    scene.ready(TRIAL, "c").await;
    let first = scene.get(SECRET, "c-tls").await;
    assert_eq!(first["type"], "kubernetes.io/tls");
    assert!(is_pair(&first, &["c.svc", "*.example.org", "\u{a}\u{0}\u{0}\u{1}"]));
    let pair = |secret: &Value| (text(secret, "tls.crt"), text(secret, "tls.key"));
    let made = pair(&first);
    let same = |o: &Value| pair(o) == made;
    let mut keys = BTreeSet::from([made.1.clone()]);

    // A new intent, other names, a repair of what is beside it.
    scene.patch(TRIAL, "c", "merge", &json!({"spec": {"text": "other", "tls": ["other.svc"]}})).await;
    scene.until("another note", SECRET, "c-tls", |o| text(o, "note") == "other" && same(o)).await;
    scene.patch(SECRET, "c-tls", "merge", &json!({"data": {"note": "Ym9i"}})).await;
    scene.until("repaired", SECRET, "c-tls", |o| text(o, "note") == "other" && same(o)).await;
    // Half of it is emptied, and what says that there was one is taken off: said, and no new one.
    let emptied =
        json!({"metadata": {"annotations": {"operetta.dev/generated": null}}, "data": {"tls.key": ""}});
    scene.patch(SECRET, "c-tls", "merge", &emptied).await;
    let stalled = |o: &Value| condition(o, "Stalled")["reason"] == "PasswordLost";
    let instance = scene.until("PasswordLost", TRIAL, "c", stalled).await;
    let message = condition(&instance, "Stalled")["message"].as_str().unwrap();
    assert!(message.contains("data.tls.key") && message.contains("put the old value back"), "{message}");
    let live = scene.get(SECRET, "c-tls").await;
    assert_eq!((&text(&live, "tls.crt"), text(&live, "tls.key").as_str()), (&made.0, ""));
    scene.patch(SECRET, "c-tls", "merge", &json!({"stringData": {"tls.key": made.1}})).await;
    scene.ready(TRIAL, "c").await;
    // Somebody's own pair stays.
    let own = rcgen::generate_simple_self_signed(["mine.svc".to_owned()]).unwrap();
    let (crt, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    scene.patch(SECRET, "c-tls", "merge", &json!({"stringData": {"tls.crt": crt, "tls.key": key}})).await;
    scene.patch(TRIAL, "c", "merge", &json!({"spec": {"text": "third"}})).await;
    let theirs = |o: &Value| pair(o) == (crt.clone(), key.clone());
    scene.until("the third note", SECRET, "c-tls", |o| text(o, "note") == "third" && theirs(o)).await;
    scene.ready(TRIAL, "c").await;

    // The manager is killed at any time.
    for turn in 0..4 {
        let name = format!("tls-{turn}");
        scene.apply(&trial(&name, &json!({"tls": [format!("{name}.svc")]}))).await;
        tokio::time::sleep(Duration::from_millis(40 * turn)).await;
        manager.kill9();
        outputs.push_str(&manager.output());
        let before = scene.find(SECRET, &format!("{name}-tls")).await;
        manager = start(plane).await;
        scene.ready(TRIAL, &name).await;
        let last = scene.get(SECRET, &format!("{name}-tls")).await;
        assert!(is_pair(&last, &[&format!("{name}.svc")]));
        if let Some(before) = before {
            assert_eq!((&before["data"], uid_of(&before)), (&last["data"], uid_of(&last)));
        }
        assert!(keys.insert(text(&last, "tls.key")));
    }
    assert!(theirs(&scene.get(SECRET, "c-tls").await), "a restart changes nothing");

    // Deleted: lost, and made anew, with the names of today.
    scene.kubectl(&["delete", "secret", "c-tls"]).await;
    let anew = scene.until("a new one", SECRET, "c-tls", |o| is_pair(o, &["other.svc"])).await;
    assert!(keys.insert(text(&anew, "tls.key")));
    scene.ready(TRIAL, "c").await;

    outputs.push_str(&manager.output());
    let events = scene.kubectl(&["get", "events", "-o", "yaml"]).await;
    let instances = scene.kubectl(&["get", "trials", "-o", "yaml"]).await;
    for key in keys.iter().chain([&key]) {
        let secret = lines(key)[1];
        assert!(secret.len() > 20);
        for place in [&outputs, &events, &instances] {
            assert!(!place.contains(secret), "a private key is shown");
        }
    }
    manager.interrupt();
    manager.wait(LONG).await;
}

async fn a_password_is_made_once_and_kept() {
    let plane = plane().await;
    let mut outputs = String::new();
    let mut seen = BTreeSet::new();
    let mut manager = start(plane).await;
    let scene = Scene::unmanaged().await;
    scene.apply(&trial("a", &json!({"secret": 1}))).await;
    scene.ready(TRIAL, "a").await;
    let first = scene.get(SECRET, "a").await;
    let password = text(&first, "password");
    assert!(password.len() == 24 && password.chars().all(|c| c.is_ascii_alphanumeric()), "{password}");
    seen.insert(password.clone());
    let same = |o: &Value| text(o, "password") == password;

    // A new intent.
    scene.patch(TRIAL, "a", "merge", &json!({"spec": {"text": "other"}})).await;
    scene.until("another user", SECRET, "a", |o| text(o, "user") == "other" && same(o)).await;
    // A repair, of what is beside it and of what says that it is ours.
    scene.patch(SECRET, "a", "merge", &json!({"data": {"user": "Ym9i"}})).await;
    scene.until("repaired", SECRET, "a", |o| text(o, "user") == "other" && same(o)).await;
    scene.patch(SECRET, "a", "merge", &json!({"metadata": {"managedFields": [{}]}})).await;
    let ours = |o: &Value| {
        let entries = o["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        entries
            .iter()
            .any(|e| e["manager"] == "operetta/trial" && !e["fieldsV1"]["f:data"]["f:password"].is_null())
    };
    scene.until("ours again", SECRET, "a", |o| ours(o) && same(o)).await;
    // A key more: a new one beside the old one.
    scene.patch(TRIAL, "a", "merge", &json!({"spec": {"secret": 2}})).await;
    let both = scene.until("the second", SECRET, "a", |o| text(o, "second").len() == 40 && same(o)).await;
    seen.insert(text(&both, "second"));
    scene.ready(TRIAL, "a").await;

    // Somebody sets another one: it is the live value, and stays.
    scene.patch(SECRET, "a", "merge", &json!({"stringData": {"password": "chosen-by-hand-7"}})).await;
    seen.insert("chosen-by-hand-7".to_owned());
    let chosen = |o: &Value| text(o, "password") == "chosen-by-hand-7";
    scene.until("ours again", SECRET, "a", |o| ours(o) && chosen(o)).await;
    scene.ready(TRIAL, "a").await;

    // Emptied, or taken out: said, and no new one.
    for gone in [json!(""), Value::Null] {
        scene.patch(SECRET, "a", "merge", &json!({"data": {"password": gone}})).await;
        let stalled = |o: &Value| condition(o, "Stalled")["reason"] == "PasswordLost";
        let instance = scene.until("PasswordLost", TRIAL, "a", stalled).await;
        let message = condition(&instance, "Stalled")["message"].as_str().unwrap();
        assert!(message.contains("data.password") && message.contains("put the old value back"), "{message}");
        let mark = plane.audit().mark().unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        let asked = managers_requests(&plane.audit(), mark);
        assert!(asked.len() <= 6, "{}", support::ext::list(&asked));
        assert_eq!(text(&scene.get(SECRET, "a").await, "password"), "");
        scene.patch(SECRET, "a", "merge", &json!({"stringData": {"password": "chosen-by-hand-7"}})).await;
        scene.ready(TRIAL, "a").await;
    }

    // The manager is killed at any time.
    for turn in 0..6 {
        let name = format!("crash-{turn}");
        scene.apply(&trial(&name, &json!({"secret": 2}))).await;
        tokio::time::sleep(Duration::from_millis(25 * turn)).await;
        let before = scene.find(SECRET, &name).await;
        manager.kill9();
        outputs.push_str(&manager.output());
        let after = scene.find(SECRET, &name).await;
        manager = start(plane).await;
        scene.ready(TRIAL, &name).await;
        let last = scene.get(SECRET, &name).await;
        for earlier in [before, after].iter().flatten() {
            assert_eq!(earlier["data"], last["data"], "killed after {} ms", 25 * turn);
            assert_eq!(uid_of(earlier), uid_of(&last));
        }
        seen.extend([text(&last, "password"), text(&last, "second")]);
    }
    let last = scene.get(SECRET, "a").await;
    assert_eq!(text(&last, "password"), "chosen-by-hand-7", "a restart changes nothing");
    assert_eq!(seen.len(), 2 + 1 + 12, "no two are equal");

    // Deleted: lost, and made anew as onLoss says.
    scene.kubectl(&["delete", "secret", "a"]).await;
    let anew = scene.until("a new one", SECRET, "a", |o| text(o, "password").len() == 24).await;
    assert!(seen.insert(text(&anew, "password")));
    scene.ready(TRIAL, "a").await;

    // Nobody is told.
    outputs.push_str(&manager.output());
    let events = scene.kubectl(&["get", "events", "-o", "yaml"]).await;
    let instances = scene.kubectl(&["get", "trials", "-o", "yaml"]).await;
    for secret in &seen {
        for place in [&outputs, &events, &instances] {
            assert!(!place.contains(secret.as_str()), "a password is shown");
        }
    }
    manager.interrupt();
    manager.wait(LONG).await;
}

/// Somebody has put a Secret there beforehand, with our labels and a password that he knows.
async fn a_generated_value_is_never_taken_from_others() {
    let scene = Scene::new(&PACKAGES).await;
    let planted = |name: &str, labels: &Value, annotation: (&str, &str)| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels,
            "annotations": {annotation.0: annotation.1}},
            "stringData": {"password": "known-to-others", "user": "u"}})
        .to_string()
    };
    let labels = |name: &str, uid: &str| {
        json!({"app.kubernetes.io/managed-by": "operetta", "operetta.dev/operator": "trial",
            "operetta.dev/kind": "Trial.fixtures.operetta.dev", "operetta.dev/instance": name,
            "operetta.dev/instance-uid": uid, "operetta.dev/child": "secret"})
    };
    let generated = ("operetta.dev/generated", "password");
    let create = async |text: String| scene.kubectl_input(&["create", "-f", "-"], &text).await.unwrap();
    // As of a former instance of that name; of the living one; handed over by who has made it.
    create(planted("former", &labels("former", "0-0"), generated)).await;
    scene.apply(&trial("former", &json!({"secret": 1}))).await;
    scene.apply(&trial("living", &json!({}))).await;
    let living = scene.ready(TRIAL, "living").await;
    create(planted("living", &labels("living", uid_of(&living)), generated)).await;
    scene.patch(TRIAL, "living", "merge", &json!({"spec": {"secret": 1}})).await;
    create(planted("handed", &json!({}), ("operetta.dev/adopt", "true"))).await;
    scene.apply(&trial("handed", &json!({"secret": 1}))).await;
    let stalled = |o: &Value| condition(o, "Stalled")["reason"] == "GeneratedDataForeign";
    for name in ["former", "living", "handed"] {
        let instance = scene.until("GeneratedDataForeign", TRIAL, name, stalled).await;
        let message = condition(&instance, "Stalled")["message"].as_str().unwrap();
        let secret = scene.get(SECRET, name).await;
        let accept = format!("operetta.dev/accept-generated={}", uid_of(&secret));
        assert!(message.contains(&accept) && !message.contains("known-to-others"), "{message}");
        assert_eq!(text(&secret, "password"), "known-to-others", "nothing is lost");
    }
    // Deleted: a new one. Accepted on the instance: that one, and it is told.
    scene.kubectl(&["delete", "secret", "former"]).await;
    scene.until("a new one", SECRET, "former", |o| text(o, "password").len() == 24).await;
    scene.ready(TRIAL, "former").await;
    let uid = scene.get(SECRET, "handed").await["metadata"]["uid"].clone();
    let accepted = json!({"metadata": {"annotations": {"operetta.dev/accept-generated": uid}}});
    scene.patch(TRIAL, "handed", "merge", &accepted).await;
    scene.ready(TRIAL, "handed").await;
    assert_eq!(text(&scene.get(SECRET, "handed").await, "password"), "known-to-others");
    let events = scene.kubectl(&["get", "events", "-o", "yaml"]).await;
    assert!(events.contains("reason: Adopted") && events.contains("took over Secret handed"), "{events}");
}
