//! What is known of a live child: a few hundred bytes, whatever the object's size.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::fields::FieldSet;
use super::jobs;
use super::names::{self, Claim, Stamp};
use crate::crd::group_of;
use crate::package::DeletionPolicy;
use crate::readiness::Readiness;

/// Kind, namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// `group/version`, shared by all objects of the kind.
    pub api_version: Arc<str>,
    /// The kind.
    pub kind: Arc<str>,
    /// The namespace; `None` for cluster-scoped objects.
    pub namespace: Option<Arc<str>>,
    /// The name.
    pub name: Box<str>,
}

impl ObjectRef {
    /// What it is whatever its version: one object is served in several.
    pub fn identity(&self) -> (&str, &str, Option<&str>, &str) {
        (group_of(&self.api_version), &self.kind, self.namespace.as_deref(), &self.name)
    }
}

/// Each object once: where its kind is watched in two versions it is observed in both.
pub(super) fn once<'a>(objects: impl Iterator<Item = &'a Arc<Observed>>) -> Vec<&'a Arc<Observed>> {
    let mut seen = HashSet::new();
    objects.filter(|object| seen.insert(&*object.uid)).collect()
}

impl std::fmt::Display for ObjectRef {
    /// `Kind namespace/name` or `Kind name`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// A live child, as far as decisions need it.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub struct Observed {
    /// Which object.
    pub object: ObjectRef,
    /// Its uid.
    pub uid: Box<str>,
    /// The uid of the instance that it belongs to, from its label; shared by siblings.
    pub instance_uid: Arc<str>,
    /// Its resourceVersion, opaque but for equality and order.
    pub resource_version: Box<str>,
    /// The child id on its label.
    pub child: Box<str>,
    /// The raw `forEach` key, if it has one.
    pub key: Option<Box<str>>,
    /// Which instance it is of by name, from its labels: outlives the instance's uid.
    pub claim: Claim,
    /// Depth in the graph when it was applied.
    pub order: u32,
    /// Whether it was applied without an ownerReference, so that it goes by inventory and finalizer.
    pub guarded: bool,
    /// Hash of the intent that was last applied.
    pub intent: Option<Box<str>>,
    /// What our apply owns of it.
    pub owned: Option<Arc<FieldSet>>,
    /// What all others own, the status aside. Shared between siblings.
    pub foreign: Arc<FieldSet>,
    /// What changes when somebody changes what may be ours.
    pub mark: Mark,
    /// The mark that our last apply, or the first look, left. Another `mark` is a foreign change.
    pub settled: Mark,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Finalizers that hold it, while it is being deleted.
    pub held_by: Vec<Box<str>>,
    /// Whether it carries an ownerReference to the instance.
    pub owner_reference: bool,
    /// Of a `Retain` child: whether it has left the target and is kept. `None` of all others.
    pub retained: Option<bool>,
    /// Of an `Ask` child: how far the question is. `None` of all others.
    pub asking: Option<Asking>,
    /// Which of the two marks say `"true"` because Operetta noted it, and not a person.
    pub noted: Noted,
    /// Of a Job: whether it has completed.
    pub completed: bool,
    /// Readiness by the rules of its kind.
    pub readiness: Readiness,
    /// The object as far as expressions read it, as JSON: maps in memory take many times its size.
    pub live: Option<Arc<str>>,
}

/// What tells a foreign change that may concern us from others, such as of the status. Both kinds hold when,
/// in seconds, our entry of managedFields was last written: whoever applies something else under our name
/// may leave all else as it was.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    /// `metadata.generation`: every change of the spec.
    Generation(i64, i64),
    /// Of a kind without generation our entry of managedFields: whoever changes or removes a field of ours
    /// takes it from there.
    Entry(Option<Arc<FieldSet>>, i64),
}

impl Mark {
    /// When our entry was last written.
    pub fn applied(&self) -> i64 {
        match self {
            Self::Generation(_, applied) | Self::Entry(_, applied) => *applied,
        }
    }
}

/// Marks that Operetta has set, told by the field manager that owns them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Noted {
    /// That it is retained.
    pub retained: bool,
    /// That its deletion waits for approval.
    pub pending: bool,
}

/// How far the question is whether an `Ask` child may be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// It was not asked, as far as the object says.
    No,
    /// It was: the object says so.
    Yes,
    /// A person has answered: it may go.
    Approved,
}

impl Observed {
    /// Whether nothing may delete it before a person has approved.
    pub fn awaits_approval(&self) -> bool {
        !self.terminating && matches!(self.asking, Some(Asking::No | Asking::Yes))
    }

    /// Whether it lost the ownerReference that it was applied with, as `--cascade=orphan` does.
    pub fn is_orphaned(&self) -> bool {
        self.is_made_by_us()
            && self.intent.is_some()
            && !self.guarded
            && !self.owner_reference
            && !self.terminating
    }

    /// Whether we have made it, not only its labels say so. Others copy labels: the Endpoints controller those
    /// of a Service, cert-manager those of an Ingress, a person with `kubectl get -o yaml`. Such a copy is not
    /// ours to delete. What we have applied has our entry in managedFields, which no copy takes along; the
    /// entry's loss on a child that is wanted is repaired.
    pub fn is_made_by_us(&self) -> bool {
        self.owned.is_some()
    }

    /// Whether it says of itself that it is to stay, or that a person is to be asked.
    pub fn is_to_stay(&self) -> bool {
        self.retained.is_some() || self.awaits_approval()
    }

    /// Whether a person has said that it is to be kept, whatever its package says.
    pub fn is_kept_by_person(&self) -> bool {
        self.retained == Some(true) && !self.noted.retained
    }

    /// Whether it is to be deleted, or let go, once nothing wants it; also what says that it is retained while the
    /// garbage collector would still take it.
    pub fn is_to_go(&self) -> bool {
        self.is_made_by_us() && (self.retained != Some(true) || self.owner_reference)
    }
}

/// Paths of a live object.
pub type Paths = Arc<[Vec<String>]>;

/// An object as a watch or a reply brought it.
pub struct Seen<'a> {
    /// Kind of the object.
    pub api_version: &'a Arc<str>,
    /// Kind of the object.
    pub kind: &'a Arc<str>,
    /// Its metadata, managedFields included.
    pub metadata: &'a ObjectMeta,
    /// The whole object without managedFields; `None` where the watch brings metadata only.
    pub body: Option<&'a Value>,
    /// Whether the kind has a status that some controller is to fill.
    pub reports: bool,
}

impl Seen<'_> {
    /// The compact form; `None` for an object that is no child of ours. `reads` tells what expressions read
    /// of a child, by operator and child id; no path means nothing.
    ///
    /// The instance's uid alone makes it one. Whoever takes another label of ours from it has changed it, and
    /// that is repaired; were it nobody's, its creation would be tried for ever and find it there.
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
            Some(generation) => Mark::Generation(generation, applied),
            None => Mark::Entry(owned.clone(), applied),
        };
        let terminating = meta.deletion_timestamp.is_some();
        let home = label(names::INSTANCE_NAMESPACE).or(meta.namespace.as_deref()).unwrap_or_default();
        let claim = names::claim(
            label(names::KIND).unwrap_or_default(),
            label(names::INSTANCE).unwrap_or_default(),
            home,
        );
        let uid = meta.uid.as_deref().unwrap_or_default();
        let intent = annotation(names::INTENT);
        let owner_reference = meta.owner_references.iter().flatten().any(|o| o.uid == instance_uid);
        let stamp = stamp(intent, annotation(names::ORDER), owned.as_deref(), owner_reference);
        // Whoever writes that it is kept keeps it. Whoever takes that off does not thereby have it deleted.
        let retained = annotation(names::RETAINED).map(|text| text == "true");
        let retained = retained.or((stamp.policy == Some(DeletionPolicy::Retain)).then_some(false));
        let asked = annotation(names::PENDING).map(|text| text == "true");
        let asked = asked.or((stamp.policy == Some(DeletionPolicy::Ask)).then_some(false));
        Some(Observed {
            object: ObjectRef {
                api_version: Arc::clone(self.api_version),
                kind: Arc::clone(self.kind),
                namespace: meta.namespace.as_deref().map(Into::into),
                name: meta.name.as_deref().unwrap_or_default().into(),
            },
            uid: uid.into(),
            instance_uid: instance_uid.into(),
            resource_version: resource_version.into(),
            child: child.into(),
            // The annotation has the label's text in full, or it is somebody else's.
            key: label(names::KEY)
                .map(|short| {
                    annotation(names::KEY).filter(|k| names::label_value(k) == short).unwrap_or(short)
                })
                .map(Into::into),
            claim,
            order: stamp.order.unwrap_or(0),
            guarded: stamp.order.is_some(),
            intent: intent.map(Into::into),
            owned,
            foreign,
            settled: mark.clone(),
            mark,
            terminating,
            held_by: if terminating {
                meta.finalizers.iter().flatten().map(|f| f.as_str().into()).collect()
            } else {
                Vec::new()
            },
            owner_reference,
            retained,
            noted: self.noted(annotation(names::RETAINED), annotation(names::PENDING)),
            completed: jobs::is_job(self.api_version, self.kind)
                && self.body.is_some_and(jobs::has_completed),
            asking: asked.map(|asked| match annotation(names::APPROVED) {
                Some(approved) if approved == uid => Asking::Approved,
                _ if asked => Asking::Yes,
                _ => Asking::No,
            }),
            readiness: self.readiness(),
            live: (!paths.is_empty())
                .then(|| kept(self.api_version, self.kind, meta, self.body, &paths).to_string().into()),
        })
    }

    /// What we own of it and since when, and what all others own, the status aside.
    fn field_sets(&self, manager: &str, instance_uid: &str) -> (Option<Arc<FieldSet>>, i64, Arc<FieldSet>) {
        let mut owned = None;
        let mut applied = 0;
        let mut foreign = Vec::new();
        for entry in self.metadata.managed_fields.iter().flatten() {
            let Some(fields) = &entry.fields_v1 else { continue };
            let subresource = entry.subresource.as_deref().unwrap_or_default();
            let apply = entry.operation.as_deref() == Some("Apply");
            if apply && subresource.is_empty() && entry.manager.as_deref() == Some(manager) {
                owned = FieldSet::parse_of(&fields.0, instance_uid).ok().map(FieldSet::interned);
                applied = entry.time.as_ref().map_or(0, |time| time.0.as_second());
            } else if subresource != "status" {
                foreign.push(&fields.0);
            }
        }
        (owned, applied, FieldSet::united(foreign).interned())
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
            let Some(fields) = fields.and_then(|fields| FieldSet::parse(&fields.0).ok()) else { continue };
            let has = |annotation| fields.contains(&["metadata", "annotations", annotation]);
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

/// What was decided about an object when it was applied. Of the annotations one that is not by us says nothing, and
/// where nothing is left of them it is kept: only what the garbage collector may take was surely to be deleted.
fn stamp(intent: Option<&str>, order: Option<&str>, owned: Option<&FieldSet>, by_collector: bool) -> Stamp {
    if let Some(stamp) = intent.map(Stamp::read).filter(|stamp| stamp.order.is_some()) {
        return stamp;
    }
    let ours = owned.is_some_and(|owned| owned.contains(&["metadata", "annotations", names::ORDER]));
    let order = order.filter(|_| ours).and_then(|order| order.parse().ok());
    let known = intent.is_some() || order.is_some() || by_collector;
    Stamp { order, policy: (!known).then_some(DeletionPolicy::Retain) }
}

/// The parts of an object that `paths` name, with what identifies it.
pub fn kept(
    api_version: &str,
    kind: &str,
    meta: &ObjectMeta,
    body: Option<&Value>,
    paths: &[Vec<String>],
) -> Value {
    let mut kept = serde_json::json!({
        "apiVersion": api_version, "kind": kind,
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
    use super::*;
    use serde_json::json;

    fn seen(meta: Value, body: Option<&Value>, reads: &[Vec<String>]) -> Option<Observed> {
        let meta: ObjectMeta = serde_json::from_value(meta).unwrap();
        let (api_version, kind) = (Arc::from("v1"), Arc::from("Pod"));
        Seen { api_version: &api_version, kind: &kind, metadata: &meta, body, reports: false }
            .observe(|_, _| reads.into())
    }

    fn meta() -> Value {
        json!({"name": "a-0", "namespace": "n", "uid": "u", "resourceVersion": "7",
            "labels": {"operetta.dev/operator": "o", "operetta.dev/child": "c", "operetta.dev/instance-uid": "i",
                "operetta.dev/key": names::label_value("k/1")},
            "annotations": {"operetta.dev/key": "k/1", "operetta.dev/intent": "h.2", "operetta.dev/order": "2"}})
    }

    #[test]
    fn a_child_is_recognised_by_its_labels() {
        let observed = seen(meta(), None, &[]).unwrap();
        assert_eq!((&*observed.child, observed.key.as_deref(), observed.order), ("c", Some("k/1"), 2));
        assert!(observed.guarded);
        assert_eq!(observed.mark, Mark::Entry(None, 0));
        assert!(seen(json!({"name": "x"}), None, &[]).is_none());
        for label in ["operetta.dev/operator", "operetta.dev/child"] {
            let mut meta = meta();
            meta["labels"].as_object_mut().unwrap().remove(label);
            assert_eq!(&*seen(meta, None, &[]).expect("still ours").instance_uid, "i", "{label}");
        }
    }

    /// Somebody takes annotations of ours off, or puts them where they do not belong.
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
        // What was to stay stays, whatever is taken off.
        let retain = (names::INTENT, Some("h.2.retain"));
        assert_eq!(with(&[retain]).retained, Some(false));
        assert_eq!(with(&[retain, (names::RETAINED, Some("true"))]).retained, Some(true));
        assert_eq!(with(&[retain, (names::ORDER, None)]).order, 2);
        let ask = (names::INTENT, Some("h.2.ask"));
        assert_eq!(with(&[ask]).asking, Some(Asking::No));
        assert!(with(&[ask]).awaits_approval());
        assert_eq!(with(&[ask, (names::APPROVED, Some("u"))]).asking, Some(Asking::Approved));
        let bare = with(&[gone, (names::ORDER, None)]);
        assert_eq!((bare.retained, bare.is_orphaned()), (Some(false), false));
        // What was to go still goes, and in its order.
        let plain = with(&[]);
        assert_eq!((plain.retained, plain.asking, plain.order, plain.guarded), (None, None, 2, true));
        // An order that is not by us does not take it from the garbage collector: it is orphaned, as a person said.
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
        // Somebody has applied the same fields under our name.
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
        // Another owner is another matter.
        assert_ne!(of("i", "i"), of("i", "j"));
        let body = |owner: &str| json!({"metadata": {"ownerReferences": [{"uid": owner}]}, "data": {"a": 1}});
        assert!(super::super::fields::uncovered(&body("i"), &of("i", "i")).is_none());
        assert!(super::super::fields::uncovered(&body("i"), &of("i", "j")).is_some());
    }

    #[test]
    fn only_what_is_read_is_kept() {
        let body = json!({"spec": {"a": 1, "b": 2}, "status": {"phase": "Running", "x": [1]}});
        let reads = vec![vec!["spec".into(), "b".into()], vec!["status".into(), "phase".into()]];
        let live = seen(meta(), Some(&body), &reads).unwrap().live.unwrap();
        let live: Value = serde_json::from_str(&live).unwrap();
        assert_eq!(live["spec"], json!({"b": 2}));
        assert_eq!(live["status"], json!({"phase": "Running"}));
        assert_eq!(live["metadata"]["name"], "a-0");
    }
}
