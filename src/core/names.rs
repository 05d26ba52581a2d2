//! How Operetta marks its objects: labels, annotations, field managers, and the text forms they need.

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::api::Gvk;
use crate::package::DeletionPolicy;
use crate::validation::is_label_value;

/// The manager's namespace, if nothing else is set.
pub const MANAGER_NAMESPACE: &str = "operetta-system";
/// Prefix of every label and annotation of ours.
pub const DOMAIN: &str = "operetta.dev/";
/// Label: the package that a child, or a CRD, belongs to.
pub const OPERATOR: &str = "operetta.dev/operator";
/// Label: the kind of the instance, `EtcdCluster.etcd.database.coreos.com`.
pub const KIND: &str = "operetta.dev/kind";
/// Label: the name of the instance.
pub const INSTANCE: &str = "operetta.dev/instance";
/// Label of a child outside its instance's namespace: that namespace; empty if the instance is
/// cluster-scoped.
pub const INSTANCE_NAMESPACE: &str = "operetta.dev/instance-namespace";
/// Label: the uid of the instance. Membership is decided by this one alone.
pub const INSTANCE_UID: &str = "operetta.dev/instance-uid";
/// Label: the child's id in the package.
pub const CHILD: &str = "operetta.dev/child";
/// Label: the key of a `forEach` child, made fit for a label. The annotation of the same name has the raw
/// key.
pub const KEY: &str = "operetta.dev/key";
/// Label of what belongs to the runs of an instance and is no child: PlanRuns that Operetta makes, origins, Jobs of
/// steps. The uid of the instance.
pub const RUN_OF: &str = "operetta.dev/run-of";
/// Annotation of a `PlanRun` that a run of another instance has created: that instance, as `<label kind>/<name>`.
pub const CALLED_BY: &str = "operetta.dev/called-by";
/// Label of every object we write.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Annotation: hash of the desired object that was applied, with what must not be forgotten of it: see [`Stamp`].
pub const INTENT: &str = "operetta.dev/applied-hash";
/// Annotation of a member of a child with `maxUnavailable`: hash of what makes it unavailable when it changes.
pub const SPEC_HASH: &str = "operetta.dev/spec-hash";
/// Annotation of a Secret: the keys of its data that were generated, with commas between.
pub const GENERATED: &str = "operetta.dev/generated";
/// Annotation of a Secret with generated values: the proof that Operetta applied it; see `manager/act/proof.rs`.
pub const GENERATED_PROOF: &str = "operetta.dev/generated-proof";
/// Annotation of an instance, set by a person: the uid of a Secret whose values are taken for generated ones, although
/// nothing proves that Operetta applied it.
pub const ACCEPT_GENERATED: &str = "operetta.dev/accept-generated";
/// The Secret in the manager's namespace with the key that proves the origin of generated values.
pub const KEY_SECRET: &str = "operetta-generated-data";
/// The keys of a certificate and its private key in a Secret's data.
pub const TLS: [&str; 2] = ["tls.crt", "tls.key"];
/// Annotation of a child that is no Secret and may hold data of Secrets, because its package says so:
/// `"true"`.
pub const EXPOSES_SECRET_DATA: &str = "operetta.dev/exposes-secret-data";
/// Annotation of a child that the garbage collector must not delete: its depth in the graph. Deletion goes
/// from the greatest depth to 0. All other children carry an ownerReference, unless they were orphaned.
pub const ORDER: &str = "operetta.dev/order";
/// Annotation of a `Retain` child: `"true"` once its instance, or its place in the target, is gone. A person may set it
/// on any child to have it kept.
pub const RETAINED: &str = "operetta.dev/retained";
/// Annotation of an `Ask` child: `"true"` while its deletion waits for approval.
pub const PENDING: &str = "operetta.dev/deletion-pending";
/// Annotation of an instance that is deleted with `--cascade=orphan`: `"true"`, before the first of its
/// children is orphaned.
pub const ORPHANED: &str = "operetta.dev/orphaned";
/// Annotation of an instance, set by a person: `"true"` releases it without waiting for its children.
pub const SKIP_CLEANUP: &str = "operetta.dev/skip-cleanup";
/// Annotation of an instance: which of its Jobs have completed, as tokens with commas between. A Job whose token is
/// taken out, and that is gone, runs again.
pub const COMPLETED_JOBS: &str = "operetta.dev/completed-jobs";
/// Annotation of the Job of a step: a digest of its instance and its name, with a key that only managers have.
pub const RUN_PROOF: &str = "operetta.dev/run-proof";
/// The field manager of annotations that Operetta sets beside its applies.
pub const NOTES: &str = "operetta";
/// The field manager of what steps store in Secrets.
pub const STORE: &str = "operetta-store";
/// The finalizer by which the API server marks `--cascade=orphan`.
pub const ORPHAN_FINALIZER: &str = "orphan";
/// Annotation of an instance: its uid, once it has an `InstanceState`. If the `InstanceState` is missing
/// then, it is lost. The finalizer of the `InstanceState`, which is deleted after the instance, has the same
/// name.
pub const STATE: &str = "operetta.dev/state";
/// Annotation of an instance: `"true"` stops all writes to its children.
pub const PAUSED: &str = "operetta.dev/paused";
/// Annotation of an instance, while a change of it is refused: which children it had, and of what spec.
pub const ACCEPTED: &str = "operetta.dev/accepted";
/// Prefix of an annotation of an instance, with a hash of the item behind it: the item that is deleted to be
/// created again. Its absence is no loss.
pub const RECREATING: &str = "operetta.dev/recreating-";
/// Annotation of a foreign object, set by a person: Operetta may take it over.
pub const ADOPT: &str = "operetta.dev/adopt";
/// Annotation of a CRD: `"true"` if the package has plans for its kind, or an earlier version of it had and objects of their
/// runs may be left.
pub const HAS_RUNS: &str = "operetta.dev/has-runs";
/// Annotation of a CRD: the kinds that children of its instances have, or had.
pub const CHILD_KINDS: &str = "operetta.dev/child-kinds";
/// Annotation of a CRD: the namespaces, beside that of the instance, in which children of its instances may lie,
/// or might have; `*` for all.
pub const CHILD_NAMESPACES: &str = "operetta.dev/child-namespaces";
/// Annotation of a CRD: the plans of its kind as JSON, for the command line.
pub const PLANS: &str = "operetta.dev/plans";
/// Annotation of a CRD: how objects are converted between its versions, as JSON, for the conversion webhook.
pub const CONVERSION: &str = "operetta.dev/conversion";
/// Annotation of a CRD while its stored objects are migrated to another version: its uid, its generation, and
/// the last object that was written.
pub const MIGRATED: &str = "operetta.dev/migrated";
/// Annotation of a CRD that another manager applies, too: the manager whose text is the base, to which ours
/// is only added.
pub const CRD_BASE: &str = "operetta.dev/crd-base";
/// Annotation of a CRD: the manager that cares for its instances, by the Lease that it leads with.
pub const MANAGER: &str = "operetta.dev/manager";
/// Annotation of a CRD that was handed over: the packages that had it before, oldest first, with commas between.
pub const FORMER_PACKAGES: &str = "operetta.dev/former-packages";
/// Annotation of a CRD, set by a person: the digest of the schema that may take values from instances.
pub const SCHEMA_ALLOWED: &str = "operetta.dev/allow-schema";
/// Finalizer of an instance with children that the garbage collector must not delete by itself.
pub const FINALIZER: &str = "operetta.dev/cleanup";

/// The field manager of the CRDs of packages.
pub const REGISTRAR: &str = "operetta";

/// Whether an object that is applied may hold secret data: a Secret, or one whose package exposes such data.
pub fn may_hold_secrets(body: &Value) -> bool {
    (body["apiVersion"] == "v1" && body["kind"] == "Secret")
        || body["metadata"]["annotations"][EXPOSES_SECRET_DATA] == "true"
}

/// The field manager of a package's children.
pub fn field_manager(operator: &str) -> String {
    format!("operetta/{operator}")
}

/// The value of the label [`KIND`].
pub fn kind_label(kind: &str, group: &str) -> String {
    label_value(&format!("{kind}.{group}"))
}

/// Identifies the instance of a child by name, whatever its uid: a digest of kind, namespace and name. Two
/// instances
/// of one name in two namespaces differ, wherever their children lie.
pub type Claim = [u8; 16];

/// The claim of the labels [`KIND`] and [`INSTANCE`], and the instance's namespace (empty if it has none).
pub fn claim(kind_label: &str, instance_label: &str, namespace: &str) -> Claim {
    // No label holds a newline.
    let digest = Sha256::digest(format!("{kind_label}\n{namespace}\n{instance_label}").as_bytes());
    let mut claim = Claim::default();
    claim[..4].copy_from_slice(&kind_mark(kind_label));
    claim[4..].copy_from_slice(&digest[..12]);
    claim
}

/// What the claims of a kind's instances begin with.
pub type KindMark = [u8; 4];

/// The mark of the kind with that label.
pub fn kind_mark(kind_label: &str) -> KindMark {
    let digest = Sha256::digest(kind_label.as_bytes());
    [digest[0], digest[1], digest[2], digest[3]]
}

/// The mark of the kind of a claim.
pub fn kind_mark_of(claim: &Claim) -> KindMark {
    [claim[0], claim[1], claim[2], claim[3]]
}

/// Whether a claim may be of an instance of the kind with that label. A match by chance is very unlikely.
pub fn claims_kind(claim: &Claim, kind_label: &str) -> bool {
    kind_mark_of(claim) == kind_mark(kind_label)
}

/// The annotation [`RECREATING`] of an item.
pub fn recreating(item: &str) -> String {
    format!("{RECREATING}{}", short_hash(item, 8))
}

/// Hex of the first `bytes` bytes of a text's SHA-256.
pub fn short_hash(text: &str, bytes: usize) -> String {
    hex_digest(text.as_bytes(), bytes)
}

/// The [`short_hash`] of the text of a value. Its `Display` would take several times as long.
pub fn value_hash(value: &Value, bytes: usize) -> String {
    // A value always has a text.
    hex_digest(&serde_json::to_vec(value).unwrap_or_default(), bytes)
}

fn hex_digest(content: &[u8], bytes: usize) -> String {
    HEXLOWER.encode(&Sha256::digest(content)[..bytes])
}

/// `text` if it is a label value, else a prefix of its allowed characters with a hash, so that different
/// texts give different labels.
pub fn label_value(text: &str) -> String {
    if is_label_value(text) {
        return text.to_owned();
    }
    let prefix: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' })
        .take(52)
        .collect();
    let prefix = prefix.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let hash = short_hash(text, 5);
    if prefix.is_empty() { hash } else { format!("{prefix}-{hash}") }
}

/// What the annotation [`INTENT`] says beside the hash: `<hash>` of a child that the garbage collector may take,
/// `<hash>.<order>`, `<hash>.<order>.retain` or `<hash>.<order>.ask` of all others.
///
/// [`ORDER`], [`RETAINED`] and [`PENDING`] contain it, too, so that removing one of them does not delete an object that
/// must stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    /// How deep in the graph it stands, if the garbage collector must not take it.
    pub order: Option<u32>,
    /// What happens once nothing wants it.
    pub policy: Option<DeletionPolicy>,
}

impl Stamp {
    /// The hash with the stamp.
    pub fn seal(self, hash: &str) -> String {
        let Some(order) = self.order else { return hash.to_owned() };
        match self.policy {
            Some(DeletionPolicy::Retain) => format!("{hash}.{order}.retain"),
            Some(DeletionPolicy::Ask) => format!("{hash}.{order}.ask"),
            Some(DeletionPolicy::Delete) | None => format!("{hash}.{order}"),
        }
    }

    /// The stamp of a sealed hash.
    pub fn read(sealed: &str) -> Self {
        let mut parts = sealed.split('.').skip(1);
        let order = parts.next().and_then(|order| order.parse().ok());
        let policy = match parts.next() {
            Some("retain") => DeletionPolicy::Retain,
            Some("ask") => DeletionPolicy::Ask,
            _ => DeletionPolicy::Delete,
        };
        Self { order, policy: Some(policy) }
    }
}

/// The kinds in an annotation [`CHILD_KINDS`].
pub fn read_kinds(text: &str) -> impl Iterator<Item = Gvk> {
    text.split(',').filter_map(|entry| Gvk::parse(entry.trim()))
}

/// The text form of a `forEach` key: strings as they are, all else as JSON.
pub fn key_text(key: &Value) -> String {
    match key {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `id` or `id[key]`, as messages name a child.
pub fn item_name(id: &str, key: Option<&str>) -> String {
    key.map_or_else(|| id.to_owned(), |key| format!("{id}[{key}]"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parsed_stamp_equals_the_written_one() {
        for (order, policy, sealed) in [
            (None, DeletionPolicy::Delete, "abc"),
            (Some(0), DeletionPolicy::Delete, "abc.0"),
            (Some(12), DeletionPolicy::Retain, "abc.12.retain"),
            (Some(1), DeletionPolicy::Ask, "abc.1.ask"),
        ] {
            let stamp = Stamp { order, policy: Some(policy) };
            assert_eq!(stamp.seal("abc"), sealed);
            assert_eq!(Stamp::read(sealed), stamp);
        }
    }

    #[test]
    fn secrets_and_what_exposes_their_data_may_hold_secrets() {
        let of = |api_version: &str, kind: &str, exposes: &str| {
            let annotations = json!({EXPOSES_SECRET_DATA: exposes});
            let object =
                json!({"apiVersion": api_version, "kind": kind, "metadata": {"annotations": annotations}});
            may_hold_secrets(&object)
        };
        assert!(of("v1", "Secret", "") && of("v1", "ConfigMap", "true"));
        assert!(!of("v1", "ConfigMap", "") && !of("example.org/v1", "Secret", ""));
    }

    #[test]
    fn label_values_are_valid_and_distinct() {
        for text in ["", "a", "0", "prod-1", "x.y_z"] {
            assert_eq!(label_value(text), text);
        }
        let long = "a".repeat(64);
        for text in [long.as_str(), "-a", "a-", "ünïcode", "a b", "é", &"é".repeat(100)] {
            let label = label_value(text);
            assert!(label.len() <= 63 && label != text, "{label}");
            assert!(label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')));
            assert!(label.as_bytes()[0].is_ascii_alphanumeric());
        }
        assert_ne!(label_value("a b"), label_value("a-b "));
    }
}
