//! Generated passwords and certificates: generated once, kept in all cases, reported when they are lost, and
//! never shown.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::barrier::Address;
use crate::support::{
    CONFIG_MAP, ControlPlane, LONG, Operetta, SECRET, Scene, TRIAL, condition, eventually, kubectl_of,
    managers_requests, own_plane_of_tests, run, uid_of,
};
use base64::Engine as _;
use serde_json::{Value, json};
use tokio::time::Instant;

/// After this time a manager is killed that makes no more writes.
const GIVE_UP: Duration = Duration::from_secs(2);

async fn start(plane: &ControlPlane) -> Operetta {
    run(plane, &["trial"]).watching(1).await
}

fn trial(name: &str, spec: &Value) -> String {
    json!({"apiVersion": TRIAL.api_version(), "kind": "Trial", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn text(secret: &Value, key: &str) -> String {
    let value = secret["data"][key].as_str().unwrap_or_default();
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(value).unwrap()).unwrap()
}

/// The lines of a PEM text between its markers.
fn lines(pem: &str) -> Vec<&str> {
    pem.lines().filter(|line| !line.is_empty() && !line.starts_with('-')).collect()
}

/// Whether the certificate is for the key and has these names.
fn is_pair(secret: &Value, names: &[&str]) -> bool {
    let (certificate, key) = (text(secret, "tls.crt"), text(secret, "tls.key"));
    let der = base64::engine::general_purpose::STANDARD.decode(lines(&certificate).concat()).unwrap();
    let holds = |part: &[u8]| der.windows(part.len()).any(|window| window == part);
    let key = rcgen::KeyPair::from_pem(&key).unwrap();
    holds(&rcgen::PublicKeyData::subject_public_key_info(&key))
        && names.iter().all(|name| holds(name.as_bytes()))
}

/// The parts run one after another: each has its own manager, and the first counts requests.
#[tokio::test]
async fn generated_values_never_change_by_themselves() {
    let plane = own_plane_of_tests().await;
    a_password_is_made_once_and_kept(&plane).await;
    a_certificate_is_made_once_with_its_key_and_kept(&plane).await;
    a_generated_value_is_never_taken_from_others(&plane).await;
    a_lost_key_changes_no_password(&plane).await;
}

async fn a_certificate_is_made_once_with_its_key_and_kept(plane: &Arc<ControlPlane>) {
    let mut outputs = String::new();
    let mut manager = start(plane).await;
    let scene = Scene::on(plane).await;
    scene.apply_ready(TRIAL, "c", &trial("c", &json!({"tls": ["c.svc", "*.example.org", "10.0.0.1"]}))).await;
    let first = scene.get(SECRET, "c-tls").await;
    assert_eq!(first["type"], "kubernetes.io/tls");
    assert!(is_pair(&first, &["c.svc", "*.example.org", "\u{a}\u{0}\u{0}\u{1}"]));
    let pair = |secret: &Value| (text(secret, "tls.crt"), text(secret, "tls.key"));
    let made = pair(&first);
    let same = |o: &Value| pair(o) == made;
    let mut keys = BTreeSet::from([made.1.clone()]);

    // Change the desired object and the names, and let a field beside the pair be repaired.
    scene.patch(TRIAL, "c", "merge", &json!({"spec": {"text": "other", "tls": ["other.svc"]}})).await;
    scene.until("another note", SECRET, "c-tls", |o| text(o, "note") == "other" && same(o)).await;
    scene.patch(SECRET, "c-tls", "merge", &json!({"data": {"note": "Ym9i"}})).await;
    scene.until("repaired", SECRET, "c-tls", |o| text(o, "note") == "other" && same(o)).await;
    // One half and the annotation that marks it as generated are removed: that is reported, and nothing is
    // generated.
    let emptied =
        json!({"metadata": {"annotations": {"operetta.dev/generated": null}}, "data": {"tls.key": ""}});
    scene.patch(SECRET, "c-tls", "merge", &emptied).await;
    let stalled = |o: &Value| condition(o, "Stalled")["reason"] == "GeneratedDataMissing";
    let instance = scene.until("GeneratedDataMissing", TRIAL, "c", stalled).await;
    let message = condition(&instance, "Stalled")["message"].as_str().unwrap();
    assert!(message.contains("data.tls.key") && message.contains("put the old value back"), "{message}");
    let live = scene.get(SECRET, "c-tls").await;
    assert_eq!((&text(&live, "tls.crt"), text(&live, "tls.key").as_str()), (&made.0, ""));
    scene.patch(SECRET, "c-tls", "merge", &json!({"stringData": {"tls.key": made.1}})).await;
    scene.ready(TRIAL, "c").await;
    // A pair that somebody else sets stays.
    let own = rcgen::generate_simple_self_signed(["mine.svc".to_owned()]).unwrap();
    let (crt, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    scene.patch(SECRET, "c-tls", "merge", &json!({"stringData": {"tls.crt": crt, "tls.key": key}})).await;
    scene.patch(TRIAL, "c", "merge", &json!({"spec": {"text": "third"}})).await;
    let theirs = |o: &Value| pair(o) == (crt.clone(), key.clone());
    scene.until("the third note", SECRET, "c-tls", |o| text(o, "note") == "third" && theirs(o)).await;
    scene.ready(TRIAL, "c").await;

    // The manager is killed after each of its first writes, at last after that of the Secret.
    let (mut writes, mut kept) = (0, 0);
    while writes < 4 || kept == 0 {
        writes += 1;
        let name = format!("tls-{writes}");
        let manifest = trial(&name, &json!({"tls": [format!("{name}.svc")]}));
        tokio::join!(manager.kill_after(plane, writes, GIVE_UP), scene.apply(&manifest));
        outputs.push_str(&manager.output());
        let before = scene.find(SECRET, &format!("{name}-tls")).await;
        manager = start(plane).await;
        scene.ready(TRIAL, &name).await;
        let last = scene.get(SECRET, &format!("{name}-tls")).await;
        assert!(is_pair(&last, &[&format!("{name}.svc")]));
        if let Some(before) = before {
            kept += 1;
            assert_eq!((&before["data"], uid_of(&before)), (&last["data"], uid_of(&last)));
        }
        assert!(keys.insert(text(&last, "tls.key")));
    }
    assert!(theirs(&scene.get(SECRET, "c-tls").await), "a restart changes nothing");

    // A deleted Secret is lost: a new pair is generated with the current names.
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
    manager.end().await;
}

async fn a_password_is_made_once_and_kept(plane: &Arc<ControlPlane>) {
    let mut outputs = String::new();
    let mut seen = BTreeSet::new();
    let mut manager = start(plane).await;
    let scene = Scene::on(plane).await;
    scene.apply_ready(TRIAL, "a", &trial("a", &json!({"secret": 1}))).await;
    let first = scene.get(SECRET, "a").await;
    let password = text(&first, "password");
    assert!(password.len() == 24 && password.chars().all(|c| c.is_ascii_alphanumeric()), "{password}");
    seen.insert(password.clone());
    let same = |o: &Value| text(o, "password") == password;

    // The desired object changes.
    scene.patch(TRIAL, "a", "merge", &json!({"spec": {"text": "other"}})).await;
    scene.until("another user", SECRET, "a", |o| text(o, "user") == "other" && same(o)).await;
    // Fields beside it and the marks of our ownership are repaired.
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
    // One more key: a new value is generated beside the old one.
    scene.patch(TRIAL, "a", "merge", &json!({"spec": {"secret": 2}})).await;
    let both = scene.until("the second", SECRET, "a", |o| text(o, "second").len() == 40 && same(o)).await;
    seen.insert(text(&both, "second"));
    scene.ready(TRIAL, "a").await;

    // Somebody sets another password: it is the live value, and stays.
    scene.patch(SECRET, "a", "merge", &json!({"stringData": {"password": "chosen-by-hand-7"}})).await;
    seen.insert("chosen-by-hand-7".to_owned());
    let chosen = |o: &Value| text(o, "password") == "chosen-by-hand-7";
    scene.until("ours again", SECRET, "a", |o| ours(o) && chosen(o)).await;
    scene.ready(TRIAL, "a").await;

    // A value that is emptied or removed is reported, and nothing is generated.
    for gone in [json!(""), Value::Null] {
        scene.patch(SECRET, "a", "merge", &json!({"data": {"password": gone}})).await;
        let stalled = |o: &Value| condition(o, "Stalled")["reason"] == "GeneratedDataMissing";
        let instance = scene.until("GeneratedDataMissing", TRIAL, "a", stalled).await;
        let message = condition(&instance, "Stalled")["message"].as_str().unwrap();
        assert!(message.contains("data.password") && message.contains("put the old value back"), "{message}");
        let (mark, since) = (plane.audit().mark().unwrap(), Instant::now());
        let marker = trial("marker", &json!({"secret": 1}));
        scene.handled(&Address::of(&manager), &marker, TRIAL, &[SECRET]).await;
        let mut asked = managers_requests(&plane.audit(), mark);
        // Earlier Events may still be sent.
        asked.retain(|request| !request.uri.contains("marker") && request.resource != "events");
        // Retries back off from 2 s.
        let most = 6 + since.elapsed().as_secs() / 2;
        assert!(asked.len() as u64 <= most, "{}", crate::support::ext::list(&asked));
        assert_eq!(text(&scene.get(SECRET, "a").await, "password"), "");
        scene.patch(SECRET, "a", "merge", &json!({"stringData": {"password": "chosen-by-hand-7"}})).await;
        scene.ready(TRIAL, "a").await;
    }

    // The manager is killed after each of its first writes, at last twice after that of the Secret.
    let (mut writes, mut kept) = (0, 0);
    while writes < 6 || kept < 2 {
        writes += 1;
        let name = format!("crash-{writes}");
        let manifest = trial(&name, &json!({"secret": 2}));
        tokio::join!(manager.kill_after(plane, writes, GIVE_UP), scene.apply(&manifest));
        outputs.push_str(&manager.output());
        let before = scene.find(SECRET, &name).await;
        manager = start(plane).await;
        scene.ready(TRIAL, &name).await;
        let last = scene.get(SECRET, &name).await;
        if let Some(before) = before {
            kept += 1;
            assert_eq!(before["data"], last["data"], "killed after {writes} writes");
            assert_eq!(uid_of(&before), uid_of(&last));
        }
        seen.extend([text(&last, "password"), text(&last, "second")]);
    }
    let last = scene.get(SECRET, "a").await;
    assert_eq!(text(&last, "password"), "chosen-by-hand-7", "a restart changes nothing");
    assert_eq!(seen.len(), 2 + 1 + 2 * writes, "no two are equal");

    // A deleted Secret is lost: a new value is generated, as onLoss says.
    scene.kubectl(&["delete", "secret", "a"]).await;
    let anew = scene.until("a new one", SECRET, "a", |o| text(o, "password").len() == 24).await;
    assert!(seen.insert(text(&anew, "password")));
    scene.ready(TRIAL, "a").await;

    // No password is shown anywhere.
    outputs.push_str(&manager.output());
    let events = scene.kubectl(&["get", "events", "-o", "yaml"]).await;
    let instances = scene.kubectl(&["get", "trials", "-o", "yaml"]).await;
    for secret in &seen {
        for place in [&outputs, &events, &instances] {
            assert!(!place.contains(secret.as_str()), "a password is shown");
        }
    }
    manager.end().await;
}

/// Somebody has created a Secret in advance, with our labels and a password that they know.
async fn a_generated_value_is_never_taken_from_others(plane: &Arc<ControlPlane>) {
    let _manager = start(plane).await;
    let scene = Scene::on(plane).await;
    let planted = |name: &str, labels: &Value, annotation: (&str, &str)| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels,
            "annotations": {annotation.0: annotation.1}},
            "stringData": {"password": "known-to-others", "user": "u"}})
    };
    let generated = ("operetta.dev/generated", "password");
    let create =
        async |object: Value| scene.kubectl_input(&["create", "-f", "-"], &object.to_string()).await.unwrap();
    let apply_as_us = async |object: Value| {
        let args = ["apply", "--server-side", "--field-manager=operetta/trial", "-f", "-"];
        scene.kubectl_input(&args, &object.to_string()).await.unwrap()
    };
    // Secrets with the labels of a former instance of that name and of the living one, and one that its
    // author hands over.
    create(planted("former", &labels("former", "0-0"), generated)).await;
    scene.apply(&trial("former", &json!({"secret": 1}))).await;
    let living = scene.apply_ready(TRIAL, "living", &trial("living", &json!({}))).await;
    create(planted("living", &labels("living", uid_of(&living)), generated)).await;
    scene.patch(TRIAL, "living", "merge", &json!({"spec": {"secret": 1}})).await;
    create(planted("handed", &json!({}), ("operetta.dev/adopt", "true"))).await;
    scene.apply(&trial("handed", &json!({"secret": 1}))).await;
    // Secrets with our field manager, or with forged managedFields.
    apply_as_us(planted("applied", &labels("applied", "0-0"), generated)).await;
    scene.apply(&trial("applied", &json!({"secret": 1}))).await;
    let mut claimed = planted("claimed", &labels("claimed", "0-0"), generated);
    create(claimed.clone()).await;
    claimed["metadata"]["managedFields"] = json!([{"manager": "operetta/trial", "operation": "Apply",
        "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {"f:data": {"f:password": {}}}}]);
    scene.kubectl_input(&["replace", "-f", "-"], &claimed.to_string()).await.unwrap();
    let claimed = scene.get(SECRET, "claimed").await;
    let entries = claimed["metadata"]["managedFields"].as_array().unwrap();
    assert!(
        entries.iter().any(|entry| entry["operation"] == "Apply"),
        "the API server believes it: {claimed}"
    );
    scene.apply(&trial("claimed", &json!({"secret": 1}))).await;
    let not_used = async |names: &[&str]| {
        for name in names {
            foreign(&scene, name).await;
            assert_eq!(
                text(&scene.get(SECRET, name).await, "password"),
                "known-to-others",
                "nothing is lost"
            );
        }
    };
    not_used(&["former", "living", "handed", "applied", "claimed"]).await;
    // Secrets with the proof of another child, or of the same child of the previous instance of that name.
    let ready = scene.apply_ready(TRIAL, "copied", &trial("copied", &json!({"secret": 1}))).await;
    let theirs = scene.until("sealed", SECRET, "copied", |o| !proof(o).is_empty()).await;
    scene.kubectl(&["delete", "trial", "copied"]).await;
    scene.gone(SECRET, "copied").await;
    for name in ["copied", "moved"] {
        apply_as_us(planted(
            name,
            &labels(name, uid_of(&ready)),
            ("operetta.dev/generated-proof", proof(&theirs)),
        ))
        .await;
        scene.apply(&trial(name, &json!({"secret": 1}))).await;
    }
    not_used(&["copied", "moved"]).await;
    // A deleted Secret is generated anew; a Secret that is accepted on the instance is used, and that is
    // reported.
    scene.kubectl(&["delete", "secret", "former"]).await;
    scene.until("a new one", SECRET, "former", |o| text(o, "password").len() == 24).await;
    scene.ready(TRIAL, "former").await;
    for name in ["handed", "living"] {
        accept(&scene, name).await;
        assert_eq!(text(&scene.get(SECRET, name).await, "password"), "known-to-others");
    }
    // An object that is not a Secret is adopted and overwritten, and that is reported as well.
    let config = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "planted", "labels": labels("planted", "UID")}});
    scene.apply(&trial("planted", &json!({"pause": "9"}))).await;
    let paused = scene.get(TRIAL, "planted").await;
    create(serde_json::from_str(&config.to_string().replace("UID", uid_of(&paused))).unwrap()).await;
    scene.patch(TRIAL, "planted", "merge", &json!({"spec": {"pause": "1"}})).await;
    scene.ready(TRIAL, "planted").await;
    eventually("three Events about adoptions", LONG, async || {
        let events = scene.kubectl(&["get", "events", "-o", "yaml"]).await;
        let all = ["Secret handed", "Secret living", "ServiceAccount planted"];
        let has_all = all.iter().all(|object| events.contains(&format!("adopted {object}")));
        if has_all && events.matches("reason: Adopted").count() == 3 { Ok(()) } else { Err(events) }
    })
    .await;
}

/// The key for proofs is lost while no manager runs; later it is restored.
async fn a_lost_key_changes_no_password(plane: &Arc<ControlPlane>) {
    let mut manager = start(plane).await;
    let scene = Scene::on(plane).await;
    scene.apply_ready(TRIAL, "a", &trial("a", &json!({"secret": 1}))).await;
    let password = text(&scene.get(SECRET, "a").await, "password");
    // A person retains it, and the next instance adopts it: its proof is bound to the object.
    scene.kubectl(&["annotate", "secret", "a", "operetta.dev/retained=true"]).await;
    // Until then the garbage collector deletes it with its instance, which has no finalizer.
    scene.until("no owner", SECRET, "a", |o| o["metadata"]["ownerReferences"].is_null()).await;
    scene.kubectl(&["delete", "trial", "a"]).await;
    scene.apply_ready(TRIAL, "a", &trial("a", &json!({"secret": 1}))).await;
    assert_eq!(text(&scene.get(SECRET, "a").await, "password"), password);
    let restart = async |manager: &mut Operetta| {
        manager.kill9();
        *manager = start(plane).await;
    };
    let key = ["-n", "operetta-system", "secret", "operetta-generated-data"];
    let saved = scene.kubectl(&[&["get", "-o", "json"], &key[..]].concat()).await;
    scene.kubectl(&[&["delete"], &key[..]].concat()).await;
    // The proof is not checked as long as nothing changes.
    restart(&mut manager).await;
    scene
        .handled(&Address::of(&manager), &trial("marker", &json!({"secret": 1})), TRIAL, &[CONFIG_MAP])
        .await;
    scene.ready(TRIAL, "a").await;
    scene.patch(TRIAL, "a", "merge", &json!({"spec": {"text": "other"}})).await;
    foreign(&scene, "a").await;
    assert_eq!(text(&scene.get(SECRET, "a").await, "password"), password);
    // The old key proves it again.
    let mut saved: Value = serde_json::from_str(&saved).unwrap();
    saved["metadata"] = json!({"name": "operetta-generated-data", "namespace": "operetta-system"});
    scene.kubectl(&[&["delete"], &key[..]].concat()).await;
    kubectl_of(plane, &["create", "-f", "-"], &saved.to_string()).await.ok();
    restart(&mut manager).await;
    let holds = |o: &Value| text(o, "user") == "other" && text(o, "password") == password;
    scene.until("another user", SECRET, "a", holds).await;
    scene.ready(TRIAL, "a").await;
    // With a new key a person accepts the value: from then on the new key proves it.
    scene.kubectl(&[&["delete"], &key[..]].concat()).await;
    restart(&mut manager).await;
    scene.patch(TRIAL, "a", "merge", &json!({"spec": {"text": "third"}})).await;
    foreign(&scene, "a").await;
    accept(&scene, "a").await;
    let holds = |o: &Value| text(o, "user") == "third" && text(o, "password") == password;
    scene.until("the third user", SECRET, "a", holds).await;
    scene
        .patch(
            TRIAL,
            "a",
            "merge",
            &json!({"metadata": {"annotations": {"operetta.dev/accept-generated": null}}}),
        )
        .await;
    restart(&mut manager).await;
    scene.patch(TRIAL, "a", "merge", &json!({"spec": {"text": "fourth"}})).await;
    let holds = |o: &Value| text(o, "user") == "fourth" && text(o, "password") == password;
    scene.until("the fourth user", SECRET, "a", holds).await;
    scene.ready(TRIAL, "a").await;
    manager.end().await;
}

/// The labels of an instance's Secret.
fn labels(name: &str, uid: &str) -> Value {
    json!({"app.kubernetes.io/managed-by": "operetta", "operetta.dev/operator": "trial",
        "operetta.dev/kind": "Trial.fixtures.operetta.dev", "operetta.dev/instance": name,
        "operetta.dev/instance-uid": uid, "operetta.dev/child": "secret"})
}

fn proof(secret: &Value) -> &str {
    secret["metadata"]["annotations"]["operetta.dev/generated-proof"].as_str().unwrap_or_default()
}

/// Waits until the instance reports that it does not trust the Secret of its name.
async fn foreign(scene: &Scene, name: &str) {
    let stalled = |o: &Value| condition(o, "Stalled")["reason"] == "GeneratedDataForeign";
    let instance = scene.until("GeneratedDataForeign", TRIAL, name, stalled).await;
    let message = condition(&instance, "Stalled")["message"].as_str().unwrap();
    let secret = scene.get(SECRET, name).await;
    let accept = format!("operetta.dev/accept-generated={}", uid_of(&secret));
    assert!(message.contains(&accept) && !message.contains("known-to-others"), "{message}");
}

/// Accepts the Secret of an instance's name by the annotation on the instance.
async fn accept(scene: &Scene, name: &str) {
    let uid = scene.get(SECRET, name).await["metadata"]["uid"].clone();
    let accepted = json!({"metadata": {"annotations": {"operetta.dev/accept-generated": uid}}});
    scene.patch(TRIAL, name, "merge", &accepted).await;
    scene.ready(TRIAL, name).await;
}
