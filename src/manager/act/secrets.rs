//! Passwords and certificates that are generated once. A render contains none of them. Here the live value is filled in, or
//! a new one if there never was one. They are read from the one Secret that is applied, and are shown nowhere.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tracing::debug;

use super::Executor;
use super::certificates::{issue, new_key};
use super::proof::{ProofKey, UNSEALED};
use crate::api::{ApiKind, CallError, Class};
use crate::children::{
    Apply, Desired, Expect, GENERATED_DIFFERS, GENERATED_FOREIGN, GENERATED_MISSING, Generated, Secret, names,
};
use crate::cluster::Cluster;
use crate::random::{Field, Randomness};

/// Letters and digits, which need no escaping in a URL, a shell or a configuration file.
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

impl Executor {
    /// Fills in what the desired object leaves open, with a live read of an object that is expected to exist.
    pub(super) async fn complete(
        &self,
        cluster: &Cluster,
        kind: &ApiKind,
        (desired, expect): (&Desired, &Expect),
        body: &mut Value,
    ) -> Result<(), CallError> {
        if desired.generated.is_empty() {
            return Ok(());
        }
        let live = match expect {
            Expect::Absent => None,
            Expect::Present(uid) => cluster
                .get(kind, desired.object.namespace.as_deref(), &desired.object.name)
                .await?
                // An object with another uid is not ours. The apply, which names the uid, will fail.
                .filter(|live| live["metadata"]["uid"] == **uid),
        };
        self.complete_with(desired, live.as_ref(), false, body).await
    }

    /// Fills in what the desired object leaves open, with the given live object. `is_taken`: the object was a
    /// child of this instance, although its labels may no longer say so.
    pub(super) async fn complete_with(
        &self,
        desired: &Desired,
        live: Option<&Value>,
        is_taken: bool,
        body: &mut Value,
    ) -> Result<(), CallError> {
        if desired.generated.is_empty() {
            return Ok(());
        }
        let key = self.effects.proof_key(&self.namespace).await?;
        let is_trusted = live.is_some_and(|live| self.is_trusted(desired, live, key));
        fill(desired, live, Trust { is_taken, is_trusted }, &self.effects.randomness, body)?;
        let uid = live.and_then(|live| live["metadata"]["uid"].as_str());
        key.sign(desired, uid, body);
        Ok(())
    }

    /// Whether the generated values of a live object are ours: this process has applied the object, or its proof says that
    /// a manager with our key has, or the instance accepts them.
    fn is_trusted(&self, desired: &Desired, live: &Value, key: &ProofKey) -> bool {
        let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
        if self.effects.proven().contains(uid) || key.proves(desired, live) {
            return true;
        }
        let owner = desired.body["metadata"]["labels"][names::INSTANCE_UID].as_str().unwrap_or_default();
        let index = self.store.index();
        let instance = index.by_uid(owner).and_then(|key| index.instance(key));
        instance.is_some_and(|instance| {
            !uid.is_empty() && instance["metadata"]["annotations"][names::ACCEPT_GENERATED] == uid
        })
    }

    /// Applies a Secret once more that was just created, now that its uid is known: the proof is about this very object
    /// then, and outlives the instance. If it fails, or the manager ends before it, the next decision finds the Secret outdated.
    pub(super) async fn seal(
        &self,
        apply: &Apply,
        created: Value,
        mut body: Value,
        send: impl AsyncFnOnce(&Value) -> Result<Value, CallError>,
    ) -> Value {
        if apply.desired.generated.is_empty() || apply.expect != Expect::Absent {
            return created;
        }
        let Ok(key) = self.effects.proof_key(&self.namespace).await else { return created };
        key.sign(&apply.desired, created["metadata"]["uid"].as_str(), &mut body);
        for field in ["uid", "resourceVersion"] {
            body["metadata"][field] = created["metadata"][field].clone();
        }
        send(&body).await.unwrap_or_else(|error| {
            debug!(object = %apply.desired.object, %error, "the proof is renewed by the next decision");
            created
        })
    }
}

/// How far the generated values of a live object are trusted.
#[derive(Debug, Clone, Copy)]
struct Trust {
    /// The object was a child of this instance, although its labels may no longer say so.
    is_taken: bool,
    /// Its values are ours: our apply has made the object, or the instance accepts them.
    is_trusted: bool,
}

/// Fills in what the desired object leaves open: of a live object the value that it has, which then must not have
/// changed when the apply arrives. A value in an object that our apply has not made is never taken: the user who put it
/// there knows it. Texts come last: they have the values of other keys.
fn fill(
    desired: &Desired,
    live: Option<&Value>,
    trust: Trust,
    random: &Randomness,
    body: &mut Value,
) -> Result<(), CallError> {
    let made =
        live.and_then(|live| live["metadata"]["annotations"][names::GENERATED].as_str()).unwrap_or_default();
    let made: HashSet<&str> = made.split(',').collect();
    let is_made = |key: &str| made.contains(key);
    let forgotten = live.is_some_and(|live| is_forgotten(desired, live, trust.is_taken));
    let there =
        |key: &str| live.and_then(|live| live["data"][key].as_str()).filter(|value| !value.is_empty());
    if let Some(live) = live
        && !trust.is_trusted
        && let Some(Generated { key, .. }) = desired
            .generated
            .iter()
            // Of the keys of texts only those are read that had a value of their own.
            .find(|one| (one.is_kept() || is_made(&one.key)) && there(&one.key).is_some())
    {
        return Err(foreign(desired, key, live));
    }
    for Generated { key, what } in &desired.generated {
        let key = key.as_str();
        if matches!(what, Secret::Text(_)) {
            continue;
        }
        // A key that was generated counts before one that was not, and so does one that has become a copy.
        let copies = desired.generated.iter().filter(|one| one.repeats(key)).map(|one| one.key.as_str());
        let keepers: Vec<&str> = [key].into_iter().chain(copies).filter(|key| is_made(key)).collect();
        let value =
            if keepers.is_empty() { there(key) } else { keepers.iter().find_map(|&keeper| there(keeper)) };
        if let Some(value) = value {
            body["data"][key] = value.into();
            continue;
        }
        if let Some(empty) = keepers.first().copied().or(forgotten.then_some(key)) {
            return Err(lost(desired, empty));
        }
        let field = Field {
            namespace: desired.object.namespace.as_deref().unwrap_or_default(),
            name: &desired.object.name,
            key,
        };
        match what {
            Secret::Password(length) => {
                body["data"][key] = STANDARD.encode(password(*length, random, field)?).into();
            }
            // One half is useless without the other, and a new pair would overwrite the half that exists.
            Secret::Certificate(_) | Secret::PrivateKey
                if names::TLS.into_iter().any(|of| there(of).is_some()) =>
            {
                return Err(half(desired, key));
            }
            Secret::Certificate(certificate) => {
                let pair = issue(certificate, &new_key(random, field)?)?;
                for (key, text) in names::TLS.into_iter().zip(pair) {
                    body["data"][key] = STANDARD.encode(text).into();
                }
            }
            // The key is generated together with its certificate.
            Secret::PrivateKey | Secret::Text(_) => {}
        }
    }
    for (key, text) in desired.texts(body) {
        let Some(text) = text else { continue };
        // A value that was generated is never overwritten.
        if is_made(key) && there(key).is_some_and(|live| live != text) {
            return Err(differs(desired, key));
        }
        body["data"][key] = text.into();
    }
    if let Some(live) = live {
        body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    }
    Ok(())
}

/// Whether the object had all the values, or may have had them, although its annotation does not say so: it was applied
/// with this desired object, or it is ours and the annotation was removed.
fn is_forgotten(desired: &Desired, live: &Value, is_taken: bool) -> bool {
    let meta = &live["metadata"];
    let is_ours =
        meta["labels"][names::INSTANCE_UID] == desired.body["metadata"]["labels"][names::INSTANCE_UID];
    match meta["annotations"][names::INTENT].as_str() {
        Some(applied) => applied.strip_prefix(UNSEALED).unwrap_or(applied) == desired.hash,
        None => is_taken || is_ours && !meta["labels"][names::INSTANCE_UID].is_null(),
    }
}

fn lost(desired: &Desired, key: &str) -> CallError {
    let message = format!(
        "data.{key} was generated and is empty now; no new value is generated while {} exists: put the old value back, or delete the object to have a new one",
        desired.object
    );
    CallError::new(Class::Permanent, 0, GENERATED_MISSING, message)
}

fn foreign(desired: &Desired, key: &str, live: &Value) -> CallError {
    let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
    let message = format!(
        "nothing proves that Operetta generated data.{key} of {}, so others may know the value and it is not used: delete the object to have a new value, or accept its values by annotating the instance with {}={uid}",
        desired.object,
        names::ACCEPT_GENERATED
    );
    CallError::new(Class::Permanent, 0, GENERATED_FOREIGN, message)
}

fn half(desired: &Desired, key: &str) -> CallError {
    let message = format!(
        "data.{key} is empty and the other half of the certificate exists; no new pair is generated while {} exists: add the missing half, remove both, or delete the object",
        desired.object
    );
    CallError::new(Class::Permanent, 0, GENERATED_MISSING, message)
}

fn differs(desired: &Desired, key: &str) -> CallError {
    let message = format!(
        "data.{key} of {} has a generated value of its own, and the package now makes it from the value of another key: write the same value into both, or delete the object to have a new one",
        desired.object
    );
    CallError::new(Class::Permanent, 0, GENERATED_DIFFERS, message)
}

fn password(length: usize, random: &Randomness, field: Field<'_>) -> Result<String, CallError> {
    let mut text = String::with_capacity(length);
    let mut number = 0;
    while text.len() < length {
        let bytes = random.block(field, number)?;
        number += 1;
        // Bytes beyond the last multiple of 62 would make some letters more likely.
        let fair =
            bytes.iter().filter(|byte| **byte < 248).map(|byte| char::from(LETTERS[usize::from(byte % 62)]));
        text.extend(fair.take(length - text.len()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use rcgen::KeyPair;
    use serde_json::json;

    use super::*;
    use crate::api::{Gvk, ObjectRef};
    use crate::children::TextPart;
    use crate::template::{Certificate, Signer};

    const OURS: Trust = Trust { is_taken: false, is_trusted: true };

    fn fill(
        desired: &Desired,
        live: Option<&Value>,
        trust: Trust,
        body: &mut Value,
    ) -> Result<(), CallError> {
        super::fill(desired, live, trust, &Randomness::default(), body)
    }

    #[test]
    fn values_of_others_are_never_taken() {
        let desired = desired();
        let filled = |data: Value, is_trusted: bool| {
            let mut live = live("a,b", &data);
            live["metadata"]["uid"] = "the-uid".into();
            let mut body = (*desired.body).clone();
            fill(&desired, Some(&live), Trust { is_taken: true, is_trusted }, &mut body).map(|()| body)
        };
        let known = json!({"a": "b25l", "b": "dHdv"});
        let error = filled(known.clone(), false).unwrap_err();
        assert_eq!(error.reason, GENERATED_FOREIGN);
        let text = error.to_string();
        assert!(text.contains("data.a") && text.contains("operetta.dev/accept-generated=the-uid"), "{text}");
        assert!(!text.contains("b25l"), "{text}");
        assert_eq!(filled(known, true).unwrap()["data"]["a"], "b25l");
    }

    #[test]
    fn text_that_had_no_generated_value_is_written_over() {
        let desired = repeated();
        let filled = |generated: &str| {
            let mut body = (*desired.body).clone();
            let live = live(generated, &json!({"b": "b25l", "conf": "eA=="}));
            fill(&desired, Some(&live), Trust { is_taken: false, is_trusted: false }, &mut body)
                .map(|()| body["data"].clone())
        };
        // The package had a text without a password there, so nothing proves where it is from.
        let data = filled("").unwrap();
        assert!(data["b"] == data["a"] && data["b"] != "b25l" && data["conf"] != "eA==", "{data}");
        // A copy that says that it was generated would be taken.
        assert_eq!(filled("b").unwrap_err().reason, GENERATED_FOREIGN);
    }

    fn desired() -> Desired {
        let object =
            ObjectRef { gvk: Gvk::new("v1", "Secret"), namespace: Some("n".into()), name: "s".into() };
        let generated =
            ["a", "b"].map(|key| Generated { key: key.into(), what: Secret::Password(20) }).to_vec();
        Desired {
            object,
            body: json!({"metadata": {}, "data": {"a": "", "b": ""}}).into(),
            keep: Vec::new(),
            yields: Vec::new(),
            hash: "h".into(),
            generated,
            completion: None,
        }
    }

    fn live(generated: &str, data: &Value) -> Value {
        json!({"metadata": {"resourceVersion": "7", "annotations": {names::GENERATED: generated}}, "data": data})
    }

    #[test]
    fn existing_values_are_kept_and_missing_ones_generated() {
        let desired = desired();
        let filled = |live: Option<&Value>| {
            let mut body = (*desired.body).clone();
            fill(&desired, live, OURS, &mut body).map(|()| body)
        };
        let (one, other) = (filled(None).unwrap(), filled(None).unwrap());
        assert_ne!(one["data"]["a"], other["data"]["a"]);
        assert_ne!(one["data"]["a"], one["data"]["b"]);
        let text = STANDARD.decode(one["data"]["a"].as_str().unwrap()).unwrap();
        assert!(text.len() == 20 && text.iter().all(u8::is_ascii_alphanumeric));
        assert!(one["metadata"].get("resourceVersion").is_none());

        let kept = filled(Some(&live("a,b", &json!({"a": "b25l", "b": "dHdv"})))).unwrap();
        assert_eq!(kept["data"], json!({"a": "b25l", "b": "dHdv"}));
        assert_eq!(kept["metadata"]["resourceVersion"], "7");
        // A key that a new version of the package adds gets a new value.
        let grown = filled(Some(&live("a", &json!({"a": "b25l"})))).unwrap();
        assert_eq!(grown["data"]["a"], "b25l");
        assert!(grown["data"]["b"].as_str().is_some_and(|b| !b.is_empty()));
        // A generated value that is gone is not generated again.
        for data in [json!({"a": "b25l"}), json!({"a": "b25l", "b": ""})] {
            let error = filled(Some(&live("a,b", &data))).unwrap_err();
            assert_eq!(error.reason, GENERATED_MISSING);
            assert!(error.to_string().contains("data.b") && !error.to_string().contains("b25l"), "{error}");
        }
    }

    /// The value was emptied, and the annotation that names it removed.
    #[test]
    fn a_value_that_may_have_existed_is_not_generated_again() {
        let mut desired = desired();
        Arc::make_mut(&mut desired.body)["metadata"]["labels"][names::INSTANCE_UID] = "i".into();
        let fill = |annotations: Value, uid: &str, is_taken: bool| {
            let live = json!({"metadata": {"resourceVersion": "7", "annotations": annotations,
                "labels": {names::INSTANCE_UID: uid}}, "data": {"a": "b25l"}});
            let mut body = (*desired.body).clone();
            fill(&desired, Some(&live), Trust { is_taken, is_trusted: true }, &mut body)
                .map_err(|error| error.reason)
        };
        assert_eq!(fill(json!({}), "i", false), Err(GENERATED_MISSING.to_owned()));
        assert_eq!(fill(json!({names::INTENT: "h"}), "i", false), Err(GENERATED_MISSING.to_owned()));
        assert_eq!(fill(json!({names::INTENT: "new-h"}), "i", false), Err(GENERATED_MISSING.to_owned()));
        // A new value is generated for a key that a new version of the package adds, and in an object that is
        // adopted.
        assert_eq!(fill(json!({names::INTENT: "other", names::GENERATED: "a"}), "i", false), Ok(()));
        assert_eq!(fill(json!({}), "another", false), Ok(()));
        // The object was a child of this instance, and has lost all labels and annotations that say so.
        assert_eq!(fill(json!({}), "another", true), Err(GENERATED_MISSING.to_owned()));
    }

    fn tls() -> Desired {
        let names = vec!["a.n.svc".into(), "10.0.0.1".into()];
        let certificate = Certificate { common_name: "a".into(), names, days: 30, signer: Signer::Itself };
        let made = [Secret::Certificate(Arc::new(certificate)), Secret::PrivateKey];
        let generated = names::TLS.into_iter().zip(made);
        Desired {
            generated: generated.map(|(key, what)| Generated { key: key.into(), what }).collect(),
            body: json!({"metadata": {}, "data": {"tls.crt": "", "tls.key": ""}}).into(),
            ..desired()
        }
    }

    #[test]
    fn a_certificate_is_only_generated_together_with_its_key() {
        let desired = tls();
        let filled = |live: Option<&Value>| {
            let mut body = (*desired.body).clone();
            fill(&desired, live, OURS, &mut body).map(|()| body["data"].clone())
        };
        let (one, other) = (filled(None).unwrap(), filled(None).unwrap());
        let pem = |data: &Value, key: &str| {
            String::from_utf8(STANDARD.decode(data[key].as_str().unwrap()).unwrap()).unwrap()
        };
        assert!(pem(&one, "tls.crt").starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(pem(&one, "tls.key").starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_ne!(one["tls.key"], other["tls.key"]);
        // The certificate is that of the key.
        let key = KeyPair::from_pem(&pem(&one, "tls.key")).unwrap();
        let der = rcgen::PublicKeyData::subject_public_key_info(&key);
        let text: String = pem(&one, "tls.crt").lines().filter(|line| !line.starts_with('-')).collect();
        let certificate = STANDARD.decode(text).unwrap();
        assert!(certificate.windows(der.len()).any(|part| part == der));

        let there = json!({"tls.crt": "Y3J0", "tls.key": "a2V5"});
        assert_eq!(filled(Some(&live("tls.crt,tls.key", &there))).unwrap(), there);
        // The values of an object that is adopted are kept.
        assert_eq!(filled(Some(&live("", &there))).unwrap(), there);
        // A new version of the package adds the certificate.
        assert!(filled(Some(&live("", &json!({"x": "eQ=="})))).unwrap()["tls.key"].is_string());
        for (made, data) in [
            ("tls.crt,tls.key", json!({})),
            ("tls.crt,tls.key", json!({"tls.crt": "Y3J0", "tls.key": ""})),
            ("tls.crt,tls.key", json!({"tls.crt": "", "tls.key": "a2V5"})),
            ("", json!({"tls.crt": "Y3J0"})),
            ("", json!({"tls.key": "a2V5"})),
        ] {
            let error = filled(Some(&live(made, &data))).unwrap_err();
            assert_eq!(error.reason, GENERATED_MISSING, "{made} {data}");
            assert!(!error.to_string().contains("a2V5"), "{error}");
        }
    }

    /// A Secret whose password `a` is also the whole of `b` and in a text.
    fn repeated() -> Desired {
        let text = |parts: &[TextPart]| Secret::Text(parts.to_vec());
        let literal = |text: &str| TextPart::Literal(text.to_owned());
        let value = TextPart::Value("a".to_owned());
        let generated = [
            ("a", Secret::Password(20)),
            ("b", text(std::slice::from_ref(&value))),
            ("conf", text(&[literal("pass = "), value.clone(), literal("\n")])),
        ];
        Desired {
            generated: generated.map(|(key, what)| Generated { key: key.into(), what }).to_vec(),
            body: json!({"metadata": {}, "data": {"a": "", "b": "", "conf": ""}}).into(),
            ..desired()
        }
    }

    #[test]
    fn repeated_value_is_the_same_everywhere_and_follows_a_rotation() {
        let desired = repeated();
        let filled = |live: Option<&Value>| {
            let mut body = (*desired.body).clone();
            fill(&desired, live, OURS, &mut body).map(|()| body["data"].clone())
        };
        let conf = |password: &str| STANDARD.encode(format!("pass = {password}\n"));
        let new = filled(None).unwrap();
        let password = STANDARD.decode(new["a"].as_str().unwrap()).unwrap();
        let password = String::from_utf8(password).unwrap();
        assert!(password.len() == 20 && new["b"] == new["a"] && new["conf"] == conf(&password), "{new}");
        // It was rotated by hand, and what was written over a text is put back.
        let data = json!({"a": STANDARD.encode("one"), "b": new["b"], "conf": "eA=="});
        let wanted = json!({"a": STANDARD.encode("one"), "b": STANDARD.encode("one"), "conf": conf("one")});
        assert_eq!(filled(Some(&live("a", &data))).unwrap(), wanted);
        // A new version of the package generates one value where there were two keys, or moves it to another key.
        let known = json!({"b": STANDARD.encode("one")});
        assert_eq!(filled(Some(&live("b", &known))).unwrap(), wanted);
        let fixed = json!({"a": STANDARD.encode("fixed"), "b": STANDARD.encode("one")});
        let error = filled(Some(&live("a,b", &fixed))).unwrap_err();
        assert_eq!(error.reason, GENERATED_DIFFERS);
        assert!(error.to_string().contains("data.b") && !error.to_string().contains("b25l"), "{error}");
        // The value that was generated counts, not the one that stood in the template.
        assert_eq!(filled(Some(&live("b", &fixed))).unwrap(), wanted);
        // It is lost, and what stood in the template is not it.
        for a in ["", "b25l"] {
            let error = filled(Some(&live("b", &json!({"a": a, "b": ""})))).unwrap_err();
            assert_eq!(error.reason, GENERATED_MISSING);
            assert!(error.to_string().contains("data.b"), "{error}");
        }
        // The value is lost, although texts may still have it.
        let emptied = json!({"a": "", "b": STANDARD.encode("one"), "conf": conf("one")});
        assert_eq!(filled(Some(&live("a", &emptied))).unwrap_err().reason, GENERATED_MISSING);
    }

    const FIELD: Field<'_> = Field { namespace: "n", name: "s", key: "a" };

    #[test]
    fn passwords_have_the_requested_length() {
        for length in [8, 32, 256] {
            assert_eq!(password(length, &Randomness::default(), FIELD).unwrap().len(), length);
        }
    }

    #[test]
    fn seeded_values_depend_on_the_object_its_field_and_how_often_it_was_created() {
        let of = |times: u64, field: Field<'_>| {
            let random = Randomness::seeded(move |_: &str, _: &str| times);
            let key = new_key(&random, field).unwrap().serialize_pem();
            (password(100, &random, field).unwrap(), key)
        };
        assert_eq!(of(0, FIELD), of(0, FIELD));
        let others = [
            of(0, FIELD),
            of(1, FIELD),
            of(0, Field { key: "b", ..FIELD }),
            of(0, Field { name: "t", ..FIELD }),
            of(0, Field { namespace: "m", ..FIELD }),
        ];
        let passwords: BTreeSet<&String> = others.iter().map(|(password, _)| password).collect();
        let keys: BTreeSet<&String> = others.iter().map(|(_, key)| key).collect();
        assert_eq!((passwords.len(), keys.len()), (5, 5));
    }
}
