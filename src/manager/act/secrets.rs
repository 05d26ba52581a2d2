//! Passwords and certificates that are made once. A render has none; here the live value is filled in, or a new one where there
//! never was any. They are read of the one Secret that is applied, and shown nowhere.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use serde_json::Value;

use crate::children::{Expect, Generated, Intent, Secret, names};
use crate::clock;
use crate::cluster::{ApiKind, CallError, Class, Cluster};
use crate::template::Certificate;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How far the clocks of others may lag behind ours.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// Letters and digits: nothing that a URL, a shell or a configuration file would read otherwise.
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Fills in what the intent leaves open, with a live look at an object that is to be there.
pub(super) async fn complete(
    cluster: &Cluster,
    kind: &ApiKind,
    intent: &Intent,
    expect: &Expect,
    is_trusted: &(dyn Fn(&Value) -> bool + Sync),
    body: &mut Value,
) -> Result<(), CallError> {
    if intent.generated.is_empty() {
        return Ok(());
    }
    let live = match expect {
        Expect::Absent => None,
        Expect::Present(uid) => cluster
            .get(kind, intent.object.namespace.as_deref(), &intent.object.name)
            .await?
            // Another object: the apply will find out, for it names the uid.
            .filter(|live| live["metadata"]["uid"] == **uid),
    };
    let origin = Origin { is_taken: false, is_trusted: live.as_ref().is_some_and(is_trusted) };
    fill(intent, live.as_ref(), origin, body)
}

/// What is known of a live object with generated values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    /// It was this instance's, though its labels may not say so any more.
    pub is_taken: bool,
    /// Its values are ours: our apply has made the object, or the instance accepts them.
    pub is_trusted: bool,
}

/// Whether our apply has written the object: no copy of it has our entry in managedFields.
pub(super) fn is_applied(live: &Value, manager: &str) -> bool {
    let entries = live["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().any(|entry| entry["manager"] == manager && entry["operation"] == "Apply")
}

/// Fills in what the intent leaves open: of an object that is there the value it has, which then must not have
/// changed when the apply arrives. A value in an object that our apply has not made is never taken: whoever has put it
/// there knows it.
pub(super) fn fill(
    intent: &Intent,
    live: Option<&Value>,
    origin: Origin,
    body: &mut Value,
) -> Result<(), CallError> {
    if intent.generated.is_empty() {
        return Ok(());
    }
    let made =
        live.and_then(|live| live["metadata"]["annotations"][names::GENERATED].as_str()).unwrap_or_default();
    let forgotten = live.is_some_and(|live| is_forgotten(intent, live, origin.is_taken));
    let there =
        |key: &str| live.and_then(|live| live["data"][key].as_str()).filter(|value| !value.is_empty());
    if let Some(live) = live
        && !origin.is_trusted
        && let Some(Generated { key, .. }) =
            intent.generated.iter().find(|generated| there(&generated.key).is_some())
    {
        return Err(foreign(intent, key, live));
    }
    for Generated { key, what } in &intent.generated {
        let key = key.as_str();
        if let Some(value) = there(key) {
            body["data"][key] = value.into();
            continue;
        }
        if forgotten || made.split(',').any(|other| other == key) {
            return Err(lost(intent, key));
        }
        match what {
            Secret::Password(length) => body["data"][key] = STANDARD.encode(password(*length)?).into(),
            // One without the other is no use, and a new pair would take what is there away.
            Secret::Certificate(_) | Secret::PrivateKey
                if names::TLS.into_iter().any(|of| there(of).is_some()) =>
            {
                return Err(half(intent, key));
            }
            Secret::Certificate(certificate) => {
                let pair = self_signed(certificate)?;
                for (key, text) in names::TLS.into_iter().zip(pair) {
                    body["data"][key] = STANDARD.encode(text).into();
                }
            }
            // Made with its certificate.
            Secret::PrivateKey => {}
        }
    }
    if let Some(live) = live {
        body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    }
    Ok(())
}

/// Whether the object had all the values, or may have had them, though its annotation says nothing: it was applied
/// with this very intent, or it is ours and somebody has taken off what it was applied with.
fn is_forgotten(intent: &Intent, live: &Value, is_taken: bool) -> bool {
    let meta = &live["metadata"];
    let is_ours =
        meta["labels"][names::INSTANCE_UID] == intent.body["metadata"]["labels"][names::INSTANCE_UID];
    match meta["annotations"][names::INTENT].as_str() {
        Some(applied) => applied == intent.hash,
        None => is_taken || is_ours && !meta["labels"][names::INSTANCE_UID].is_null(),
    }
}

fn lost(intent: &Intent, key: &str) -> CallError {
    let message = format!(
        "data.{key} was generated and is empty now; no new one is made while {} exists: put the old value back, or delete the object to have a new one",
        intent.object
    );
    CallError::new(Class::Permanent, 0, LOST, message)
}

fn foreign(intent: &Intent, key: &str, live: &Value) -> CallError {
    let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
    let message = format!(
        "{} was not made by Operetta, and data.{key}, which is generated, is not taken from it, for others may know it: delete it to have a new one, or accept its values by annotating the instance with {}={uid}",
        intent.object,
        names::ACCEPT_GENERATED
    );
    CallError::new(Class::Permanent, 0, FOREIGN, message)
}

fn half(intent: &Intent, key: &str) -> CallError {
    let message = format!(
        "data.{key} is empty and the other half of the certificate is there; no new pair is made while {} exists: add what is missing, or take both out, or delete the object",
        intent.object
    );
    CallError::new(Class::Permanent, 0, LOST, message)
}

/// A new key, ECDSA over P-256, and its certificate: both as PEM, the certificate first.
fn self_signed(wanted: &Certificate) -> Result<[String; 2], CallError> {
    // Its errors hold no secret, but neither are they of use to anybody.
    let failed =
        |_| CallError::new(Class::Retry, 0, "CertificateFailed", "no certificate could be made".to_owned());
    let mut params = CertificateParams::new(wanted.names.clone()).map_err(failed)?;
    let name = wanted.names.iter().find(|name| name.len() <= 64).map_or("operetta", String::as_str);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let now = SystemTime::from(clock::now());
    params.not_before = (now - SKEW).into();
    params.not_after = (now + DAY * wanted.days).into();
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok([certificate.pem(), key.serialize_pem()])
}

/// The reason of a [`CallError`] about a generated value in an object that our apply has not made.
pub(super) const FOREIGN: &str = "GeneratedDataForeign";

/// The reason of a [`CallError`] about a generated value that is gone.
pub(super) const LOST: &str = "PasswordLost";

fn password(length: usize) -> Result<String, CallError> {
    let mut text = String::with_capacity(length);
    let mut bytes = [0u8; 64];
    while text.len() < length {
        getrandom::fill(&mut bytes).map_err(|error| {
            CallError::new(
                Class::Retry,
                0,
                "NoRandomness",
                format!("the system gives no randomness: {error}"),
            )
        })?;
        // What lies beyond the last multiple of 62 would make some letters likelier than others.
        let fair =
            bytes.iter().filter(|byte| **byte < 248).map(|byte| char::from(LETTERS[usize::from(byte % 62)]));
        text.extend(fair.take(length - text.len()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::sync::Arc;

    use super::*;
    use crate::children::ObjectRef;

    const OURS: Origin = Origin { is_taken: false, is_trusted: true };

    #[test]
    fn values_of_others_are_never_taken() {
        let intent = intent();
        let filled = |data: Value, is_trusted: bool| {
            let mut live = live("a,b", &data);
            live["metadata"]["uid"] = "the-uid".into();
            let mut body = (*intent.body).clone();
            fill(&intent, Some(&live), Origin { is_taken: true, is_trusted }, &mut body).map(|()| body)
        };
        let known = json!({"a": "b25l", "b": "dHdv"});
        let error = filled(known.clone(), false).unwrap_err();
        assert_eq!(error.reason, FOREIGN);
        let text = error.to_string();
        assert!(text.contains("data.a") && text.contains("operetta.dev/accept-generated=the-uid"), "{text}");
        assert!(!text.contains("b25l"), "{text}");
        assert_eq!(filled(known, true).unwrap()["data"]["a"], "b25l");
        let entry = |manager: &str, operation: &str| {
            let live = json!({"metadata": {"managedFields": [{"manager": manager, "operation": operation}]}});
            is_applied(&live, "operetta/p")
        };
        assert!(entry("operetta/p", "Apply"));
        assert!(!entry("operetta/p", "Update") && !entry("kubectl", "Apply"));
        assert!(!is_applied(&json!({"metadata": {}}), "operetta/p"));
    }

    fn intent() -> Intent {
        let object = ObjectRef {
            api_version: "v1".into(),
            kind: "Secret".into(),
            namespace: Some("n".into()),
            name: "s".into(),
        };
        let generated =
            ["a", "b"].map(|key| Generated { key: key.into(), what: Secret::Password(20) }).to_vec();
        Intent {
            object,
            body: json!({"metadata": {}, "data": {"a": "", "b": ""}}).into(),
            keep: Vec::new(),
            hash: "h".into(),
            generated,
            completion: None,
        }
    }

    fn live(generated: &str, data: &Value) -> Value {
        json!({"metadata": {"resourceVersion": "7", "annotations": {names::GENERATED: generated}}, "data": data})
    }

    #[test]
    fn what_is_there_stays_and_what_never_was_is_made() {
        let intent = intent();
        let filled = |live: Option<&Value>| {
            let mut body = (*intent.body).clone();
            fill(&intent, live, OURS, &mut body).map(|()| body)
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
        // A key that a new version of the package brings.
        let grown = filled(Some(&live("a", &json!({"a": "b25l"})))).unwrap();
        assert_eq!(grown["data"]["a"], "b25l");
        assert!(grown["data"]["b"].as_str().is_some_and(|b| !b.is_empty()));
        // One that was made and is gone.
        for data in [json!({"a": "b25l"}), json!({"a": "b25l", "b": ""})] {
            let error = filled(Some(&live("a,b", &data))).unwrap_err();
            assert_eq!(error.reason, LOST);
            assert!(error.to_string().contains("data.b") && !error.to_string().contains("b25l"), "{error}");
        }
    }

    /// Somebody has emptied the value, and taken off what says that there was one.
    #[test]
    fn no_new_value_is_made_for_one_that_may_have_been_there() {
        let mut intent = intent();
        Arc::make_mut(&mut intent.body)["metadata"]["labels"][names::INSTANCE_UID] = "i".into();
        let fill = |annotations: Value, uid: &str, is_taken: bool| {
            let live = json!({"metadata": {"resourceVersion": "7", "annotations": annotations,
                "labels": {names::INSTANCE_UID: uid}}, "data": {"a": "b25l"}});
            let mut body = (*intent.body).clone();
            fill(&intent, Some(&live), Origin { is_taken, is_trusted: true }, &mut body)
                .map_err(|error| error.reason)
        };
        assert_eq!(fill(json!({}), "i", false), Err(LOST.to_owned()));
        assert_eq!(fill(json!({names::INTENT: "h"}), "i", false), Err(LOST.to_owned()));
        // A key that a new version of the package brings; an object that is taken over.
        assert_eq!(fill(json!({names::INTENT: "other", names::GENERATED: "a"}), "i", false), Ok(()));
        assert_eq!(fill(json!({}), "another", false), Ok(()));
        // One that was ours, and has lost all that said so.
        assert_eq!(fill(json!({}), "another", true), Err(LOST.to_owned()));
    }

    fn tls() -> Intent {
        let certificate = Certificate { names: vec!["a.n.svc".into(), "10.0.0.1".into()], days: 30 };
        let made = [Secret::Certificate(Arc::new(certificate)), Secret::PrivateKey];
        let generated = names::TLS.into_iter().zip(made);
        Intent {
            generated: generated.map(|(key, what)| Generated { key: key.into(), what }).collect(),
            body: json!({"metadata": {}, "data": {"tls.crt": "", "tls.key": ""}}).into(),
            ..intent()
        }
    }

    #[test]
    fn a_certificate_is_made_with_its_key_or_not_at_all() {
        let intent = tls();
        let filled = |live: Option<&Value>| {
            let mut body = (*intent.body).clone();
            fill(&intent, live, OURS, &mut body).map(|()| body["data"].clone())
        };
        let (one, other) = (filled(None).unwrap(), filled(None).unwrap());
        let pem = |data: &Value, key: &str| {
            String::from_utf8(STANDARD.decode(data[key].as_str().unwrap()).unwrap()).unwrap()
        };
        assert!(pem(&one, "tls.crt").starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(pem(&one, "tls.key").starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_ne!(one["tls.key"], other["tls.key"]);
        // The two belong together.
        let key = KeyPair::from_pem(&pem(&one, "tls.key")).unwrap();
        let der = rcgen::PublicKeyData::subject_public_key_info(&key);
        let text: String = pem(&one, "tls.crt").lines().filter(|line| !line.starts_with('-')).collect();
        let certificate = STANDARD.decode(text).unwrap();
        assert!(certificate.windows(der.len()).any(|part| part == der));

        let there = json!({"tls.crt": "Y3J0", "tls.key": "a2V5"});
        assert_eq!(filled(Some(&live("tls.crt,tls.key", &there))).unwrap(), there);
        // Somebody's own, in an object that is taken over.
        assert_eq!(filled(Some(&live("", &there))).unwrap(), there);
        // A key that the package has come to bring.
        assert!(filled(Some(&live("", &json!({"x": "eQ=="})))).unwrap()["tls.key"].is_string());
        for (made, data) in [
            ("tls.crt,tls.key", json!({})),
            ("tls.crt,tls.key", json!({"tls.crt": "Y3J0", "tls.key": ""})),
            ("tls.crt,tls.key", json!({"tls.crt": "", "tls.key": "a2V5"})),
            ("", json!({"tls.crt": "Y3J0"})),
            ("", json!({"tls.key": "a2V5"})),
        ] {
            let error = filled(Some(&live(made, &data))).unwrap_err();
            assert_eq!(error.reason, LOST, "{made} {data}");
            assert!(!error.to_string().contains("a2V5"), "{error}");
        }
    }

    #[test]
    fn passwords_are_as_long_as_asked() {
        for length in [8, 32, 256] {
            assert_eq!(password(length).unwrap().len(), length);
        }
    }
}
