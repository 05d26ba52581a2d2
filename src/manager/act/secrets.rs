//! Passwords that are made once. A render has none; here the live value is filled in, or a new one where there
//! never was any. They are read of the one Secret that is applied, and shown nowhere.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::children::{Expect, Intent, names};
use crate::cluster::{ApiKind, CallError, Class, Cluster};

/// Letters and digits: nothing that a URL, a shell or a configuration file would read otherwise.
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Fills in what the intent leaves open, with a live look at an object that is to be there.
pub(super) async fn complete(
    cluster: &Cluster,
    kind: &ApiKind,
    intent: &Intent,
    expect: &Expect,
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
    fill(intent, live.as_ref(), body)
}

/// Fills in what the intent leaves open: of an object that is there the value it has, which then must not have
/// changed when the apply arrives.
pub(super) fn fill(intent: &Intent, live: Option<&Value>, body: &mut Value) -> Result<(), CallError> {
    if intent.generated.is_empty() {
        return Ok(());
    }
    let made =
        live.and_then(|live| live["metadata"]["annotations"][names::GENERATED].as_str()).unwrap_or_default();
    let forgotten = live.is_some_and(|live| is_forgotten(intent, live));
    for generated in &intent.generated {
        let key = generated.key.as_str();
        let there = live.and_then(|live| live["data"][key].as_str()).filter(|value| !value.is_empty());
        body["data"][key] = match there {
            Some(value) => value.into(),
            None if forgotten || made.split(',').any(|other| other == key) => return Err(lost(intent, key)),
            None => STANDARD.encode(password(generated.length)?).into(),
        };
    }
    if let Some(live) = live {
        body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    }
    Ok(())
}

/// Whether the object had all the values, or may have had them, though its annotation says nothing: it was applied
/// with this very intent, or it is ours and somebody has taken off what it was applied with.
fn is_forgotten(intent: &Intent, live: &Value) -> bool {
    let meta = &live["metadata"];
    let is_ours =
        meta["labels"][names::INSTANCE_UID] == intent.body["metadata"]["labels"][names::INSTANCE_UID];
    match meta["annotations"][names::INTENT].as_str() {
        Some(applied) => applied == intent.hash,
        None => is_ours && !meta["labels"][names::INSTANCE_UID].is_null(),
    }
}

fn lost(intent: &Intent, key: &str) -> CallError {
    let message = format!(
        "data.{key} was generated and is empty now; no new one is made while {} exists: put the old value back, or delete the object to have a new one",
        intent.object
    );
    CallError::new(Class::Permanent, 0, LOST, message)
}

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

    use super::*;
    use crate::children::{Generated, ObjectRef};

    fn intent() -> Intent {
        let object = ObjectRef {
            api_version: "v1".into(),
            kind: "Secret".into(),
            namespace: Some("n".into()),
            name: "s".into(),
        };
        let generated = ["a", "b"].map(|key| Generated { key: key.into(), length: 20 }).to_vec();
        Intent {
            object,
            body: json!({"metadata": {}, "data": {"a": "", "b": ""}}),
            keep: Vec::new(),
            hash: "h".into(),
            generated,
        }
    }

    fn live(generated: &str, data: &Value) -> Value {
        json!({"metadata": {"resourceVersion": "7", "annotations": {names::GENERATED: generated}}, "data": data})
    }

    #[test]
    fn what_is_there_stays_and_what_never_was_is_made() {
        let intent = intent();
        let filled = |live: Option<&Value>| {
            let mut body = intent.body.clone();
            fill(&intent, live, &mut body).map(|()| body)
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
        intent.body["metadata"]["labels"][names::INSTANCE_UID] = "i".into();
        let fill = |annotations: Value, uid: &str| {
            let live = json!({"metadata": {"resourceVersion": "7", "annotations": annotations,
                "labels": {names::INSTANCE_UID: uid}}, "data": {"a": "b25l"}});
            let mut body = intent.body.clone();
            fill(&intent, Some(&live), &mut body).map_err(|error| error.reason)
        };
        assert_eq!(fill(json!({}), "i"), Err(LOST.to_owned()));
        assert_eq!(fill(json!({names::INTENT: "h"}), "i"), Err(LOST.to_owned()));
        // A key that a new version of the package brings; an object that is taken over.
        assert_eq!(fill(json!({names::INTENT: "other", names::GENERATED: "a"}), "i"), Ok(()));
        assert_eq!(fill(json!({}), "another"), Ok(()));
    }

    #[test]
    fn passwords_are_as_long_as_asked() {
        for length in [8, 32, 256] {
            assert_eq!(password(length).unwrap().len(), length);
        }
    }
}
