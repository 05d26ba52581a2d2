//! The proof that a Secret's generated values come from Operetta's own apply: an HMAC in an annotation of the Secret, with
//! a key that is kept in the manager's namespace. See `docs/design/0015-secret-data.md`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::{Value, json};
use tracing::info;

use crate::api::{ApiKind, CallError, Class};
use crate::children::{Desired, names};
use crate::cluster::Cluster;
use crate::manager::own_namespace;
use crate::random::{Field, Randomness};

/// The Secret that holds the key, in the manager's namespace.
pub(in crate::manager) const SECRET: &str = names::KEY_SECRET;
/// The entry of the key in the data of the Secret.
const ENTRY: &str = "key";
/// The length of the key in bytes.
const LENGTH: usize = 32;

/// Stands before the hash of the desired object while the proof is about the instance.
pub(super) const UNSEALED: &str = "new-";

/// The key of all proofs.
pub(in crate::manager) struct ProofKey {
    key: hmac::Key,
    /// The key of digests of what may hold secret data.
    digests: Vec<u8>,
    /// The key of the records of last accepted targets.
    records: Vec<u8>,
}

impl ProofKey {
    /// Reads the key from the manager's namespace, or creates it there.
    pub(in crate::manager) async fn load(
        cluster: &Cluster,
        namespace: &str,
        random: &Randomness,
    ) -> Result<Self, CallError> {
        let secret = read_or_create(cluster, namespace, random).await.map_err(|mut error| {
            error.message = format!(
                "Secret {namespace}/{SECRET}, whose key proves the origin of generated values, cannot be read or created: {error}"
            );
            error.causes.clear();
            error
        })?;
        let bytes = secret["data"][ENTRY].as_str().and_then(|text| STANDARD.decode(text).ok());
        match bytes {
            Some(bytes) if bytes.len() == LENGTH => Ok(Self::new(&bytes)),
            _ => {
                let message = format!(
                    "data.{ENTRY} of Secret {namespace}/{SECRET} is not a key of {LENGTH} bytes: restore it, or delete the Secret to have a new key"
                );
                Err(CallError::new(Class::Permanent, 0, "GeneratedDataKeyInvalid", message))
            }
        }
    }

    fn new(bytes: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let derived = |what: &str| hmac::sign(&key, what.as_bytes()).as_ref().to_vec();
        let (digests, records) = (derived("operetta.dev/digests v1"), derived("operetta.dev/records v1"));
        Self { key, digests, records }
    }

    /// The key of digests of what may hold secret data.
    pub(in crate::manager) fn for_digests(&self) -> &[u8] {
        &self.digests
    }

    /// The key of the records of last accepted targets.
    pub(in crate::manager) fn for_records(&self) -> &[u8] {
        &self.records
    }

    /// Writes the proof into what is applied: about the live object of that uid, or about a new one, whose uid the API
    /// server has still to choose. A new one counts as outdated, so it is applied once more, whoever does that.
    pub(super) fn sign(&self, desired: &Desired, uid: Option<&str>, body: &mut Value) {
        let (claim, hash) = match uid {
            Some(uid) => (of_object(desired, uid), desired.hash.clone()),
            None => (of_new(desired), format!("{UNSEALED}{}", desired.hash)),
        };
        let tag = hmac::sign(&self.key, claim.as_bytes());
        let annotations = &mut body["metadata"]["annotations"];
        annotations[names::GENERATED_PROOF] = STANDARD.encode(tag).into();
        annotations[names::INTENT] = hash.into();
    }

    /// Whether a live object carries the proof that Operetta applied it as this child.
    pub(super) fn proves(&self, desired: &Desired, live: &Value) -> bool {
        let meta = &live["metadata"];
        let proof = meta["annotations"][names::GENERATED_PROOF].as_str();
        let Some(tag) = proof.and_then(|proof| STANDARD.decode(proof).ok()) else { return false };
        let uid = meta["uid"].as_str().unwrap_or_default();
        [of_object(desired, uid), of_new(desired)]
            .iter()
            .any(|claim| hmac::verify(&self.key, claim.as_bytes(), &tag).is_ok())
    }
}

/// The text that the first apply signs: it is about the child of the instance with this uid. It proves
/// nothing to the next instance of that name: a user could have copied the object of a previous instance.
fn of_new(desired: &Desired) -> String {
    let instance = desired.body["metadata"]["labels"][names::INSTANCE_UID].as_str().unwrap_or_default();
    claim("new", instance, desired)
}

/// The text that all later applies sign: it is about this very object, whose uid no client can choose. It
/// proves this also to the next instance of that name, which adopts retained objects.
fn of_object(desired: &Desired, uid: &str) -> String {
    claim("object", uid, desired)
}

/// The text that is signed: one line for each part, none of which can contain a newline.
fn claim(about: &str, uid: &str, desired: &Desired) -> String {
    let label = |name: &str| desired.body["metadata"]["labels"][name].as_str().unwrap_or_default();
    let object = &desired.object;
    [
        "operetta.dev/generated-proof v1",
        about,
        uid,
        label(names::KIND),
        label(names::INSTANCE_NAMESPACE),
        label(names::INSTANCE),
        object.namespace.as_deref().unwrap_or_default(),
        &object.name,
    ]
    .join("\n")
}

async fn read_or_create(cluster: &Cluster, namespace: &str, random: &Randomness) -> Result<Value, CallError> {
    let kind = ApiKind::built_in("v1", "Secret");
    if let Some(secret) = cluster.get(&kind, Some(namespace), SECRET).await? {
        return Ok(secret);
    }
    let key: [u8; LENGTH] = random.block(Field { namespace, name: SECRET, key: ENTRY }, 0)?;
    let body = json!({
        "apiVersion": "v1", "kind": "Secret", "immutable": true,
        "metadata": {"name": SECRET, "namespace": namespace, "labels": {names::MANAGED_BY: names::NOTES}},
        "data": {ENTRY: STANDARD.encode(key)},
    });
    let created = own_namespace::create(cluster, &kind, namespace, &body).await;
    match created {
        // Another manager has created the Secret first: its key is used.
        Err(mut error) if error.class == Class::Conflict => {
            error.class = Class::Retry;
            cluster.get(&kind, Some(namespace), SECRET).await?.ok_or(error)
        }
        Ok(secret) => {
            info!(secret = %format_args!("{namespace}/{SECRET}"), "created the key that proves the origin of generated values");
            Ok(secret)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Gvk, ObjectRef};

    /// The Secret `s` of the instance `i` with that uid.
    fn desired(instance_uid: &str, name: &str) -> Desired {
        let labels = json!({names::KIND: "Thing.example.org", names::INSTANCE: "i", names::INSTANCE_UID: instance_uid});
        Desired {
            object: ObjectRef {
                gvk: Gvk::new("v1", "Secret"),
                namespace: Some("n".into()),
                name: name.into(),
            },
            body: json!({"metadata": {"labels": labels}}).into(),
            hash: "h".into(),
            generated: Vec::new(),
            keep: Vec::new(),
            yields: Vec::new(),
            completion: None,
        }
    }

    /// The object with a proof, as the API server would store it under a uid of its own.
    fn applied(key: &ProofKey, desired: &Desired, known: Option<&str>, stored: &str) -> Value {
        let mut body = (*desired.body).clone();
        key.sign(desired, known, &mut body);
        body["metadata"]["uid"] = stored.into();
        body
    }

    #[test]
    fn a_proof_is_about_one_object_or_one_instance() {
        let key = ProofKey::new(&[7; LENGTH]);
        let ours = desired("instance-1", "s");
        let created = applied(&key, &ours, None, "object-1");
        assert!(key.proves(&ours, &created));
        let sealed = applied(&key, &ours, Some("object-1"), "object-1");
        assert!(key.proves(&ours, &sealed));
        // Only the sealed one counts as applied.
        let hash = |live: &Value| live["metadata"]["annotations"][names::INTENT].as_str().map(str::to_owned);
        assert_eq!([hash(&created), hash(&sealed)], [Some("new-h".to_owned()), Some("h".to_owned())]);
        // The next instance of that name: it adopts the object that was retained, but no copy of one.
        let next = desired("instance-2", "s");
        assert!(key.proves(&next, &sealed));
        assert!(!key.proves(&next, &created));
        let copy = applied(&key, &ours, Some("object-1"), "object-2");
        assert!(!key.proves(&ours, &copy) && !key.proves(&next, &copy));
        // The proof does not hold for another child or another kind.
        assert!(!key.proves(&desired("instance-1", "t"), &sealed));
        let mut other = desired("instance-1", "s");
        std::sync::Arc::make_mut(&mut other.body)["metadata"]["labels"][names::KIND] =
            "Other.example.org".into();
        assert!(!key.proves(&other, &sealed) && !key.proves(&other, &created));
    }

    #[test]
    fn no_proof_holds_without_the_key() {
        let key = ProofKey::new(&[7; LENGTH]);
        let ours = desired("instance-1", "s");
        assert!(!key.proves(&ours, &applied(&ProofKey::new(&[8; LENGTH]), &ours, None, "o")));
        for forged in [json!(null), json!(""), json!("?"), json!("AAAA"), json!(7)] {
            let live = json!({"metadata": {"uid": "o", "annotations": {names::GENERATED_PROOF: forged}}});
            assert!(!key.proves(&ours, &live), "{live}");
        }
    }
}
