//! What is kept of a live child: a few hundred bytes, regardless of the object's size.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operetta_kube_model::fields::FieldSet;
use serde_json::Value;

use super::job::{has_completed, is_job};
use crate::api::{Gvk, ObjectRef};
use crate::children::fields::{interned, of_child};
use crate::children::names::{self, Claim, Stamp};
use crate::package::DeletionPolicy;
use crate::readiness::Readiness;
use crate::readiness::containers::{self, Containers};

/// Lists each object once: an object whose kind is watched in two versions is observed in both.
pub(in crate::children) fn once<'a>(
    objects: impl Iterator<Item = &'a Arc<Observed>>,
) -> Vec<&'a Arc<Observed>> {
    let mut seen = HashSet::new();
    objects.filter(|object| seen.insert(&*object.uid)).collect()
}

/// A live child, as far as decisions need it.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub struct Observed {
    /// The identity of the object.
    pub object: ObjectRef,
    /// Its uid.
    pub uid: Box<str>,
    /// The uid of the instance that it belongs to, from its label; shared by siblings.
    pub instance_uid: Arc<str>,
    /// Its resourceVersion, opaque but for equality and order.
    pub resource_version: Box<str>,
    /// The package on its label: the one whose field manager has applied it.
    pub package: Box<str>,
    /// The child id on its label.
    pub child: Box<str>,
    /// The raw `forEach` key, if it has one.
    pub key: Option<Box<str>>,
    /// Identifies its instance by name, from its labels: it outlives the instance's uid.
    pub claim: Claim,
    /// Depth in the graph when it was applied.
    pub order: u32,
    /// Whether it was applied without an ownerReference: then the finalizer guards it.
    pub guarded: bool,
    /// Hash of the desired object that was last applied.
    pub desired: Option<Box<str>>,
    /// The fields that our apply owns.
    pub owned: Option<Arc<FieldSet>>,
    /// The fields that other managers own, except the status. Shared between siblings.
    pub foreign: Arc<FieldSet>,
    /// Changes when another client changes what may be ours.
    pub mark: DriftFingerprint,
    /// The fingerprint after our last apply, or when it was first observed. A different `mark` shows a foreign change.
    pub baseline: DriftFingerprint,
    /// Hash of what makes it unavailable when it changes, if its child has `maxUnavailable`.
    pub spec_hash: Option<Box<str>>,
    /// For a Pod: its annotation about containers whose image the last apply changed.
    pub replaced: Option<Box<str>>,
    /// For a Pod: the containers that run.
    pub running: Containers,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether it is being deleted without a grace period: only finalizers hold it.
    pub goes_at_once: bool,
    /// Finalizers that hold it, while it is being deleted.
    pub held_by: Vec<Box<str>>,
    /// Whether it carries an ownerReference to the instance.
    pub owner_reference: bool,
    /// Whether it has an owner beside the instance: the garbage collector then leaves it when the instance is deleted.
    pub has_other_owner: bool,
    /// For a `Retain` child: whether it has left the target and is kept. `None` for all others.
    pub retained: Option<bool>,
    /// For an `Ask` child: whether it is annotated as awaiting approval. `None` for all others.
    pub asking: Option<bool>,
    /// Which of the two annotations Operetta has set to `"true"`, and not a user.
    pub noted: Noted,
    /// For a Job: whether it has completed.
    pub completed: bool,
    /// Readiness by the rules of its kind.
    pub readiness: Readiness,
    /// The object as far as expressions read it, as JSON: maps in memory take many times its size.
    pub live: Option<Arc<str>>,
}

/// Distinguishes foreign changes that may concern our fields from others, such as of the status. Both variants include the
/// time, in seconds, when our entry of managedFields was last written: another client may apply under our name.
#[derive(Debug, Clone, PartialEq)]
pub enum DriftFingerprint {
    /// `metadata.generation`, which every change of the spec increases, and when our entry was last written.
    Generation(i64, i64),
    /// For a kind without generation, our entry of managedFields: a change or removal of one of our fields removes it from
    /// the entry.
    Entry(Option<Arc<FieldSet>>, i64),
}

impl DriftFingerprint {
    /// When our entry was last written.
    pub fn applied(&self) -> i64 {
        match self {
            Self::Generation(_, applied) | Self::Entry(_, applied) => *applied,
        }
    }
}

/// Annotations that Operetta has set, according to the field manager that owns them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Noted {
    /// Whether Operetta has noted that the object is retained.
    pub retained: bool,
    /// Whether Operetta has noted that the deletion of the object waits for approval.
    pub pending: bool,
}

impl Observed {
    /// Whether it lost the ownerReference that it was applied with, as `--cascade=orphan` does.
    pub fn is_orphaned(&self) -> bool {
        self.is_made_by_us()
            && self.desired.is_some()
            && !self.guarded
            && !self.owner_reference
            && !self.terminating
    }

    /// Whether we have applied it. Labels do not show that, because others copy them: the Endpoints controller those of a
    /// Service, cert-manager those of an Ingress, a user with `kubectl get -o yaml`. Such a copy must not be deleted. Our
    /// entry in managedFields is not copied. If a desired child loses it, that is repaired.
    pub fn is_made_by_us(&self) -> bool {
        self.owned.is_some()
    }

    /// Whether we have never applied it, as far as is known: others have put it there with the labels of a child. The
    /// loss of our entry alone does not count.
    pub fn is_of_others(&self) -> bool {
        !self.is_made_by_us() && self.baseline.applied() == 0
    }

    /// Whether the garbage collector leaves it when the instance is deleted.
    pub fn outlives_instance(&self) -> bool {
        !self.owner_reference || self.has_other_owner
    }

    /// Whether its annotations say that it is retained, or that its deletion needs approval.
    pub fn is_to_stay(&self) -> bool {
        self.retained.is_some() || self.asking.is_some()
    }

    /// Whether a user has marked it as retained, regardless of its package.
    pub fn is_kept_by_person(&self) -> bool {
        self.retained == Some(true) && !self.noted.retained
    }

    /// Whether it is removed once nothing desires it: deleted, retained or orphaned. A retained object counts while the
    /// garbage collector would still delete it.
    pub fn is_to_go(&self) -> bool {
        self.is_made_by_us() && (self.retained != Some(true) || self.owner_reference)
    }
}

/// Paths of a live object.
pub type Paths = Arc<[Vec<String>]>;

/// An object from a watch or a reply.
pub struct RawObject<'a> {
    /// Kind of the object.
    pub gvk: &'a Gvk,
    /// Its metadata, managedFields included.
    pub metadata: &'a ObjectMeta,
    /// The whole object without managedFields; `None` where the watch brings metadata only.
    pub body: Option<&'a Value>,
    /// Whether the kind has a status that a controller fills.
    pub reports: bool,
}

impl RawObject<'_> {
    /// The compact form; `None` for an object that is no child of ours. `reads` tells what expressions read
    /// of a child, by operator and child id; no path means nothing.
    ///
    /// The label with the instance's uid decides. The loss of another label is drift and is repaired; if such an object did
    /// not count as a child, its creation would be refused each time because it exists.
    pub fn observe(&self, reads: impl Fn(&str, &str) -> Paths) -> Option<Observed> {
        let meta = self.metadata;
        let labels = meta.labels.as_ref()?;
        let label = |key: &str| labels.get(key).map(String::as_str);
        let instance_uid = label(names::INSTANCE_UID)?;
        let operator = label(names::OPERATOR).unwrap_or_default();
        let child = label(names::CHILD).unwrap_or_default();
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str);
        let paths = reads(operator, child);
        let resource_version = meta.resource_version.as_deref().unwrap_or_default();
        let (owned, applied, foreign) = self.field_sets(&names::field_manager(operator), instance_uid);
        let mark = match meta.generation {
            Some(generation) => DriftFingerprint::Generation(generation, applied),
            None => DriftFingerprint::Entry(owned.clone(), applied),
        };
        let terminating = meta.deletion_timestamp.is_some();
        let home = label(names::INSTANCE_NAMESPACE).or(meta.namespace.as_deref()).unwrap_or_default();
        let claim = names::claim(
            label(names::KIND).unwrap_or_default(),
            label(names::INSTANCE).unwrap_or_default(),
            home,
        );
        let uid = meta.uid.as_deref().unwrap_or_default();
        let desired = annotation(names::INTENT);
        let owners = || meta.owner_references.iter().flatten();
        let owner_reference = owners().any(|owner| owner.uid == instance_uid);
        let stamp = stamp(desired, annotation(names::ORDER), owned.as_deref(), owner_reference);
        // A user may retain an object by the annotation. Its removal alone does not permit the deletion.
        let retained = annotation(names::RETAINED).map(|text| text == "true");
        let retained = retained.or((stamp.policy == Some(DeletionPolicy::Retain)).then_some(false));
        Some(Observed {
            object: ObjectRef {
                gvk: self.gvk.clone(),
                namespace: meta.namespace.as_deref().map(Into::into),
                name: meta.name.as_deref().unwrap_or_default().into(),
            },
            uid: uid.into(),
            instance_uid: instance_uid.into(),
            resource_version: resource_version.into(),
            package: operator.into(),
            child: child.into(),
            // The annotation counts only if the label is its short form.
            key: label(names::KEY)
                .map(|short| {
                    annotation(names::KEY).filter(|k| names::label_value(k) == short).unwrap_or(short)
                })
                .map(Into::into),
            claim,
            order: stamp.order.unwrap_or(0),
            guarded: stamp.order.is_some(),
            desired: desired.map(Into::into),
            owned,
            foreign,
            baseline: mark.clone(),
            mark,
            spec_hash: annotation(names::SPEC_HASH).map(Into::into),
            replaced: annotation(containers::ANNOTATION).map(Into::into),
            running: self
                .body
                .filter(|_| self.gvk.is("v1", "Pod"))
                .map(containers::running)
                .unwrap_or_default(),
            terminating,
            goes_at_once: terminating && meta.deletion_grace_period_seconds == Some(0),
            held_by: if terminating {
                meta.finalizers.iter().flatten().map(|f| f.as_str().into()).collect()
            } else {
                Vec::new()
            },
            owner_reference,
            has_other_owner: owners().any(|owner| owner.uid != instance_uid),
            retained,
            noted: self.noted(annotation(names::RETAINED), annotation(names::PENDING)),
            completed: is_job(self.gvk) && self.body.is_some_and(has_completed),
            asking: annotation(names::PENDING)
                .map(|text| text == "true")
                .or((stamp.policy == Some(DeletionPolicy::Ask)).then_some(false)),
            readiness: self.readiness(),
            live: (!paths.is_empty()).then(|| kept(self.gvk, meta, self.body, &paths).to_string().into()),
        })
    }

    /// The fields that we own and when we last applied them, and the fields that all others own, the status
    /// aside.
    fn field_sets(&self, manager: &str, instance_uid: &str) -> (Option<Arc<FieldSet>>, i64, Arc<FieldSet>) {
        let mut owned = None;
        let mut applied = 0;
        let mut foreign: Vec<FieldSet> = Vec::new();
        for entry in self.metadata.managed_fields.iter().flatten() {
            let Some(fields) = &entry.fields_v1 else { continue };
            let subresource = entry.subresource.as_deref().unwrap_or_default();
            let apply = entry.operation.as_deref() == Some("Apply");
            if apply && subresource.is_empty() && entry.manager.as_deref() == Some(manager) {
                owned = of_child(&fields.0, instance_uid).map(|set| interned(&set));
                applied = entry.time.as_ref().map_or(0, |time| time.0.as_second());
            } else if subresource != "status" {
                foreign.extend(FieldSet::parse(&fields.0));
            }
        }
        let foreign: FieldSet = foreign.into_iter().collect();
        (owned, applied, interned(&foreign))
    }

    /// Which of the two annotations are set by Operetta's notes. Only what says `"true"` is looked up.
    fn noted(&self, retained: Option<&str>, pending: Option<&str>) -> Noted {
        let is_said = |text: Option<&str>| text == Some("true");
        let mut noted = Noted::default();
        if !is_said(retained) && !is_said(pending) {
            return noted;
        }
        for entry in self.metadata.managed_fields.iter().flatten() {
            let is_note = entry.manager.as_deref() == Some(names::NOTES)
                && entry.operation.as_deref() == Some("Update");
            let fields = entry.fields_v1.as_ref().filter(|_| is_note);
            let Some(fields) = fields.and_then(|fields| FieldSet::parse(&fields.0)) else { continue };
            let has = |annotation| fields.get(&["metadata", "annotations", annotation]).is_some();
            noted.retained |= is_said(retained) && has(names::RETAINED);
            noted.pending |= is_said(pending) && has(names::PENDING);
        }
        noted
    }

    fn readiness(&self) -> Readiness {
        match self.body {
            Some(body) => crate::readiness::of_kind(body, self.reports),
            None if self.metadata.deletion_timestamp.is_some() => Readiness::Terminating,
            None => Readiness::Ready,
        }
    }
}

/// What was decided about an object when it was applied. An annotation that we do not own does not count. If
/// nothing of it is left, the object is kept: only an object that the garbage collector may delete was surely
/// to be deleted.
fn stamp(desired: Option<&str>, order: Option<&str>, owned: Option<&FieldSet>, by_collector: bool) -> Stamp {
    if let Some(stamp) = desired.map(Stamp::read).filter(|stamp| stamp.order.is_some()) {
        return stamp;
    }
    let ours = owned.is_some_and(|owned| owned.get(&["metadata", "annotations", names::ORDER]).is_some());
    let order = order.filter(|_| ours).and_then(|order| order.parse().ok());
    let known = desired.is_some() || order.is_some() || by_collector;
    Stamp { order, policy: (!known).then_some(DeletionPolicy::Retain) }
}

/// The parts of an object that `paths` name, with what identifies it.
pub fn kept(gvk: &Gvk, meta: &ObjectMeta, body: Option<&Value>, paths: &[Vec<String>]) -> Value {
    let mut kept = serde_json::json!({
        "apiVersion": &*gvk.api_version, "kind": &*gvk.kind,
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
    });
    if let Value::Object(metadata) = &mut kept["metadata"] {
        metadata.retain(|_, value| !value.is_null());
    }
    let Some(body) = body else { return kept };
    for path in paths {
        copy_path(body, &mut kept, path);
    }
    kept
}

/// Copies what lies at `path` of `from` to the same place of `to`.
fn copy_path(from: &Value, to: &mut Value, path: &[String]) {
    let Some((first, rest)) = path.split_first() else {
        to.clone_from(from);
        return;
    };
    let Some(inner) = from.get(first) else { return };
    if let Value::Object(map) = to {
        copy_path(
            inner,
            map.entry(first.clone()).or_insert_with(|| Value::Object(serde_json::Map::new())),
            rest,
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(meta: Value, body: Option<&Value>, reads: &[Vec<String>]) -> Option<Observed> {
        let meta: ObjectMeta = serde_json::from_value(meta).unwrap();
        let gvk = Gvk::new("v1", "Pod");
        RawObject { gvk: &gvk, metadata: &meta, body, reports: false }.observe(|_, _| reads.into())
    }

    fn meta() -> Value {
        json!({"name": "a-0", "namespace": "n", "uid": "u", "resourceVersion": "7",
            "labels": {"operetta.dev/operator": "o", "operetta.dev/child": "c", "operetta.dev/instance-uid": "i",
                "operetta.dev/key": names::label_value("k/1")},
            "annotations": {"operetta.dev/key": "k/1", "operetta.dev/applied-hash": "h.2", "operetta.dev/order": "2"}})
    }

    #[test]
    fn a_child_is_recognised_by_its_labels() {
        let observed = seen(meta(), None, &[]).unwrap();
        assert_eq!((&*observed.child, observed.key.as_deref(), observed.order), ("c", Some("k/1"), 2));
        assert!(observed.guarded);
        assert_eq!(observed.mark, DriftFingerprint::Entry(None, 0));
        assert!(seen(json!({"name": "x"}), None, &[]).is_none());
        for label in ["operetta.dev/operator", "operetta.dev/child"] {
            let mut meta = meta();
            meta["labels"].as_object_mut().unwrap().remove(label);
            assert_eq!(&*seen(meta, None, &[]).expect("still ours").instance_uid, "i", "{label}");
        }
    }

    /// Another client removes annotations of ours, or sets them on other objects.
    #[test]
    fn foreign_annotations_neither_delete_nor_rename() {
        let with = |changes: &[(&str, Option<&str>)]| {
            let mut meta = meta();
            meta["managedFields"] =
                json!([{"manager": "operetta/o", "operation": "Apply", "fieldsV1": {"f:data": {}}}]);
            for (name, value) in changes {
                let all = meta["annotations"].as_object_mut().unwrap();
                match value {
                    Some(value) => all.insert((*name).into(), (*value).into()),
                    None => all.remove(*name),
                };
            }
            seen(meta, None, &[]).unwrap()
        };
        let gone = (names::INTENT, None);
        // An object that was to stay stays, whichever annotation is removed.
        let retain = (names::INTENT, Some("h.2.retain"));
        assert_eq!(with(&[retain]).retained, Some(false));
        assert_eq!(with(&[retain, (names::RETAINED, Some("true"))]).retained, Some(true));
        assert_eq!(with(&[retain, (names::ORDER, None)]).order, 2);
        let ask = (names::INTENT, Some("h.2.ask"));
        assert_eq!(with(&[ask]).asking, Some(false));
        assert_eq!(with(&[ask, (names::PENDING, Some("true"))]).asking, Some(true));
        let bare = with(&[gone, (names::ORDER, None)]);
        assert_eq!((bare.retained, bare.is_orphaned()), (Some(false), false));
        // An object that was to be deleted still is, and in its order.
        let plain = with(&[]);
        assert_eq!((plain.retained, plain.asking, plain.order, plain.guarded), (None, None, 2, true));
        // An order that we did not set does not protect the object: it counts as orphaned by a person.
        let owned = with(&[(names::INTENT, Some("h")), (names::ORDER, Some("7"))]);
        assert_eq!((owned.guarded, owned.order, owned.is_orphaned()), (false, 0, true));
        // Another key is another member: only the label's own text counts.
        assert_eq!(
            with(&[(names::KEY, Some("other"))]).key.as_deref(),
            Some(names::label_value("k/1").as_str())
        );
        let mut keyless = meta();
        keyless["labels"].as_object_mut().unwrap().remove(names::KEY);
        assert_eq!(seen(keyless, None, &[]).unwrap().key, None);
    }

    #[test]
    fn writes_of_others_and_of_the_status_are_no_foreign_change() {
        let entry = |manager: &str, operation: &str, time: &str, field: &str| {
            json!({"manager": manager, "operation": operation, "time": time, "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {field: {}}}})
        };
        let mark = |entries: &[Value]| {
            let mut meta = meta();
            meta["managedFields"] = entries.into();
            seen(meta, None, &[]).unwrap().mark
        };
        let ours = entry("operetta/o", "Apply", "2026-01-01T00:00:00Z", "f:a");
        let before = mark(&[ours.clone(), entry("x", "Update", "2026-01-01T00:00:00Z", "f:b")]);
        assert_eq!(mark(&[ours.clone(), entry("x", "Update", "2026-01-01T00:00:09Z", "f:c")]), before);
        assert_ne!(mark(&[entry("operetta/o", "Apply", "2026-01-01T00:00:00Z", "f:z")]), before);
        // Another client has applied the same fields under our name.
        assert_ne!(mark(&[entry("operetta/o", "Apply", "2026-01-01T00:00:09Z", "f:a")]), before);
        assert_ne!(mark(&[entry("operetta/o", "Update", "2026-01-01T00:00:00Z", "f:a")]), before);
    }

    #[test]
    fn children_of_different_instances_share_what_they_own() {
        let of = |uid: &str, owner: &str| {
            let item = format!("k:{{\"uid\":\"{owner}\"}}");
            let mut meta = meta();
            meta["labels"]["operetta.dev/instance-uid"] = uid.into();
            meta["managedFields"] = json!([{"manager": "operetta/o", "operation": "Apply", "fieldsV1":
                {"f:metadata": {"f:ownerReferences": {item: {}}}, "f:data": {"f:a": {}}}}]);
            seen(meta, None, &[]).unwrap().owned.unwrap()
        };
        assert!(Arc::ptr_eq(&of("i", "i"), &of("j", "j")));
        // The uid of another owner is not left out.
        assert_ne!(of("i", "i"), of("i", "j"));
        let body = |owner: &str| json!({"metadata": {"ownerReferences": [{"uid": owner}]}, "data": {"a": 1}});
        assert!(crate::children::fields::uncovered(&body("i"), &of("i", "i")).is_none());
        assert!(crate::children::fields::uncovered(&body("i"), &of("i", "j")).is_some());
    }

    #[test]
    fn only_fields_that_expressions_read_are_kept() {
        let body = json!({"spec": {"a": 1, "b": 2}, "status": {"phase": "Running", "x": [1]}});
        let reads = vec![vec!["spec".into(), "b".into()], vec!["status".into(), "phase".into()]];
        let live = seen(meta(), Some(&body), &reads).unwrap().live.unwrap();
        let live: Value = serde_json::from_str(&live).unwrap();
        assert_eq!(live["spec"], json!({"b": 2}));
        assert_eq!(live["status"], json!({"phase": "Running"}));
        assert_eq!(live["metadata"]["name"], "a-0");
    }
}
