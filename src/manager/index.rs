//! The instances and children that watches and replies to our own writes have delivered. A plain struct without I/O.
//!
//! Replies are included so that the next decision sees the last write. An older event that arrives later is
//! recognized by its resourceVersion and dropped.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::{Gvk, ObjectRef};
use crate::children::names::{self, Claim};
use crate::children::{DriftFingerprint, Observed};
use crate::clock::Instant;
use crate::operators::upgrade::Member;

/// Which instance: its CRD, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey {
    /// `plural.group` of its CRD.
    pub crd: Arc<str>,
    /// The namespace; `None` for cluster-scoped kinds.
    pub namespace: Option<Arc<str>>,
    /// The name.
    pub name: Box<str>,
}

impl std::fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = self.crd.split('.').next().unwrap_or_default();
        match &self.namespace {
            Some(namespace) => write!(f, "{plural}/{namespace}/{}", self.name),
            None => write!(f, "{plural}/{}", self.name),
        }
    }
}

/// An instance as JSON text. It is parsed for each decision, which is rare.
#[derive(Debug, Clone)]
struct Instance {
    uid: Arc<str>,
    resource_version: Box<str>,
    /// Deleted with `--cascade=orphan`. The finalizer that shows it is present for a moment only.
    orphaned: bool,
    generation: i64,
    /// What its status says of its revision.
    member: Member,
    json: Arc<[u8]>,
}

impl Instance {
    fn value(&self) -> Option<Value> {
        let mut value: Value = serde_json::from_slice(&self.json).ok()?;
        if self.orphaned && value["metadata"]["annotations"][names::ORPHANED].is_null() {
            value["metadata"]["annotations"][names::ORPHANED] = "seen".into();
        }
        Some(value)
    }
}

/// Deleted objects, by uid, with the resourceVersion of the deletion. A reply or a live read that was in flight when
/// the watch reported the deletion must not bring them back, because no later event would remove them.
#[derive(Default)]
pub(super) struct Gone {
    ends: HashMap<Box<str>, End>,
    /// The number of entries at which old ones are removed: twice what the last sweep left, so that sweeps stay cheap
    /// when thousands of objects are deleted at once.
    sweep_at: usize,
}

struct End {
    resource_version: Box<str>,
    at: Instant,
    /// The uid of the instance, if the object was a child that we had applied.
    of: Option<Box<str>>,
}

impl Gone {
    pub(super) fn add(&mut self, uid: &str, resource_version: &str, of: Option<&str>) {
        if self.ends.len() >= self.sweep_at.max(1_024) {
            self.ends.retain(|_, end| end.at.elapsed() < REMEMBERED);
            self.sweep_at = self.ends.len() * 2;
        }
        // A watch and a live read may both report it. The child was known only at the first report.
        let of = of.map(Into::into).or_else(|| self.ends.remove(uid).and_then(|end| end.of));
        let end = End { resource_version: resource_version.into(), at: Instant::now(), of };
        self.ends.insert(uid.into(), end);
    }

    /// Whether that resourceVersion is older than the deletion of that uid. An object that only lost a label may come
    /// back with its uid and a newer resourceVersion.
    pub(super) fn covers(&self, uid: &str, resource_version: &str) -> bool {
        self.ends.get(uid).is_some_and(|end| !older(&end.resource_version, resource_version))
    }
}

/// How long a deletion is remembered: longer than the deadline of a call.
const REMEMBERED: Duration = Duration::from_secs(120);

/// A child in a set that is searched by its object reference, so that the reference is held once.
struct Child(Arc<Observed>);

impl Borrow<ObjectRef> for Child {
    fn borrow(&self) -> &ObjectRef {
        &self.0.object
    }
}

impl Hash for Child {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.object.hash(state);
    }
}

impl PartialEq for Child {
    fn eq(&self, other: &Self) -> bool {
        self.0.object == other.0.object
    }
}

impl Eq for Child {}

/// All known instances and children.
#[derive(Default)]
pub(super) struct Index {
    instances: HashMap<InstanceKey, Instance>,
    by_uid: HashMap<Arc<str>, InstanceKey>,
    /// Instances before edits that are not accepted yet.
    previous: HashMap<InstanceKey, Arc<[u8]>>,
    /// The instance by kind, namespace and name, for children of previous instances.
    by_claim: HashMap<Claim, InstanceKey>,
    /// The kind label of a CRD's instances. It is part of their claim.
    kind_labels: HashMap<Arc<str>, Box<str>>,
    /// Deleted instances with children that are still to be orphaned.
    deleted_instances: HashMap<InstanceKey, Instance>,
    relist_instances: HashMap<Arc<str>, HashSet<InstanceKey>>,
    /// The objects that running lists of child kinds have shown, by what is listed.
    relist_kinds: HashMap<Gvk, HashMap<ChildPart, HashSet<ObjectRef>>>,
    children: HashSet<Child>,
    /// By the uid on their label, in the order of [`ObjectRef`].
    of_instance: HashMap<Arc<str>, Vec<Arc<Observed>>>,
    /// The uids on the labels of children with a claim, mostly one.
    uids_of_claim: HashMap<Claim, Vec<Arc<str>>>,
    gone: Gone,
}

/// Which children of a kind a watch brings; by default all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct ChildPart {
    /// The label of the kind of instances whose children they are; `None` is all.
    pub(super) kind: Option<Box<str>>,
    /// Their namespace; `None` is all, and cluster-scoped children.
    pub(super) namespace: Option<Box<str>>,
}

impl ChildPart {
    fn has(&self, child: &Observed) -> bool {
        self.kind.as_deref().is_none_or(|label| names::claims_kind(&child.claim, label))
            && (self.namespace.is_none() || self.namespace.as_deref() == child.object.namespace.as_deref())
    }
}

/// Where an object came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A list or watch.
    Watch,
    /// The reply to a write of ours.
    OwnWrite,
    /// A live read. Another manager may have made the changes that it shows.
    Read,
}

/// Whether `a` is older than `b`. resourceVersions of one kind are numbers that grow.
pub(super) fn older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

impl Index {
    /// How the children of a CRD's instances are labelled.
    pub(super) fn name_kind(&mut self, crd: &Arc<str>, label: &str) {
        self.kind_labels.insert(Arc::clone(crd), label.into());
    }

    /// The hash of kind, namespace and name by which objects name the instance that they belong to.
    pub(super) fn claim(&self, key: &InstanceKey) -> Claim {
        let kind = self.kind_labels.get(&key.crd).map(|label| &**label).unwrap_or_default();
        names::claim(kind, &names::label_value(&key.name), key.namespace.as_deref().unwrap_or_default())
    }

    /// A running list has shown an instance.
    pub(super) fn list_instance(&mut self, key: &InstanceKey) {
        if let Some(listed) = self.relist_instances.get_mut(&key.crd) {
            listed.insert(key.clone());
        }
    }

    /// Takes an instance; `true` if it has changed.
    pub(super) fn put_instance(&mut self, key: InstanceKey, object: &Value) -> bool {
        self.list_instance(&key);
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let (uid, resource_version) = (text("uid"), text("resourceVersion"));
        if self.gone.covers(uid, resource_version) {
            return false;
        }
        if let Some(present) = self.instances.get(&key) {
            let is_same = *present.resource_version == *resource_version && *present.uid == *uid;
            // A list may show another object at the same resourceVersion, for example after a new default in the CRD.
            let is_listing = self.relist_instances.contains_key(&key.crd);
            if is_same && !(is_listing && *present.json != *object.to_string().as_bytes()) {
                return false;
            }
            if older(resource_version, &present.resource_version) {
                return false;
            }
            if *present.uid != *uid {
                self.by_uid.remove(&present.uid);
                self.previous.remove(&key);
            } else if object["metadata"]["generation"].as_i64().is_some_and(|new| new != present.generation) {
                self.previous.entry(key.clone()).or_insert_with(|| Arc::clone(&present.json));
            }
        }
        let known = self.instances.get(&key).is_some_and(|i| i.orphaned && *i.uid == *uid);
        let is_orphan = |finalizer: &Value| finalizer == names::ORPHAN_FINALIZER;
        let marked = !object["metadata"]["deletionTimestamp"].is_null()
            && object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(is_orphan));
        if !self.instances.contains_key(&key) {
            self.by_claim.insert(self.claim(&key), key.clone());
        }
        let uid = self.by_uid.get_key_value(uid).map_or_else(|| uid.into(), |(known, _)| Arc::clone(known));
        let instance = Instance {
            uid: Arc::clone(&uid),
            resource_version: resource_version.into(),
            orphaned: known || marked,
            generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
            member: Member::of(object),
            json: object.to_string().into_bytes().into(),
        };
        self.by_uid.insert(uid, key.clone());
        self.instances.insert(key, instance);
        true
    }

    /// The instance as it was before the first edit that was not accepted yet.
    pub(super) fn previous(&self, key: &InstanceKey) -> Option<Value> {
        serde_json::from_slice(self.previous.get(key)?).ok()
    }

    /// The target of this state of the instance is applied. The previous state is forgotten.
    pub(super) fn accept(&mut self, key: &InstanceKey, accepted: &Value) {
        let generation = accepted["metadata"]["generation"].as_i64().unwrap_or_default();
        if !self.previous.contains_key(key) {
            return;
        }
        if self.instances.get(key).is_some_and(|instance| instance.generation != generation) {
            // It was edited again meanwhile.
            self.previous.insert(key.clone(), accepted.to_string().into_bytes().into());
        } else {
            self.previous.remove(key);
        }
    }

    /// An instance was deleted, at that resourceVersion if it is known.
    pub(super) fn remove_instance(&mut self, key: &InstanceKey, uid: &str, resource_version: Option<&str>) {
        if let Some(resource_version) = resource_version {
            self.gone.add(uid, resource_version, None);
        }
        if self.instances.get(key).is_some_and(|i| *i.uid == *uid) {
            self.drop_instance(key);
        }
    }

    fn drop_instance(&mut self, key: &InstanceKey) {
        let Some(instance) = self.instances.remove(key) else { return };
        self.previous.remove(key);
        self.by_uid.remove(&instance.uid);
        let claim = self.claim(key);
        self.by_claim.remove(&claim);
        if instance.orphaned && self.of_instance.contains_key(&instance.uid) {
            self.deleted_instances.insert(key.clone(), instance);
        }
    }

    /// A deleted instance with children that are still to be orphaned.
    pub(super) fn deleted_instance(&mut self, key: &InstanceKey) -> Option<Value> {
        let instance = self.deleted_instances.get(key)?;
        if self.of_instance.contains_key(&instance.uid) {
            let mut value = instance.value()?;
            // A deleted object has no finalizers.
            value["metadata"]["finalizers"] = Value::Null;
            return Some(value);
        }
        self.deleted_instances.remove(key);
        None
    }

    /// A list of the instances of a CRD begins.
    pub(super) fn begin_instances(&mut self, crd: &Arc<str>) {
        self.relist_instances.insert(Arc::clone(crd), HashSet::new());
    }

    /// A CRD is gone, and its instances with it; returns them.
    pub(super) fn drop_instances(&mut self, crd: &Arc<str>) -> Vec<InstanceKey> {
        self.relist_instances.remove(crd);
        self.end_instances(crd)
    }

    /// A list of instances is complete; returns those that it has not shown.
    pub(super) fn end_instances(&mut self, crd: &Arc<str>) -> Vec<InstanceKey> {
        let listed = self.relist_instances.remove(crd).unwrap_or_default();
        let gone: Vec<_> =
            self.instances.keys().filter(|k| k.crd == *crd && !listed.contains(*k)).cloned().collect();
        for key in &gone {
            self.drop_instance(key);
        }
        gone
    }

    /// The instance as it was last seen.
    pub(super) fn instance(&self, key: &InstanceKey) -> Option<Value> {
        self.instances.get(key).and_then(Instance::value)
    }

    /// What the status of the instance says of its revision.
    pub(super) fn member(&self, key: &InstanceKey) -> Option<&Member> {
        self.instances.get(key).map(|instance| &instance.member)
    }

    /// The same of all instances of a CRD.
    pub(super) fn members_of<'a>(
        &'a self,
        crd: &'a str,
    ) -> impl Iterator<Item = (&'a InstanceKey, &'a Member)> {
        let of_crd = self.instances.iter().filter(move |(key, _)| *key.crd == *crd);
        of_crd.map(|(key, instance)| (key, &instance.member))
    }

    /// Bytes of the instance as JSON; none if it is not known.
    pub(super) fn instance_bytes(&self, key: &InstanceKey) -> usize {
        self.instances.get(key).map_or(0, |instance| instance.json.len())
    }

    /// Whether the instance is known.
    pub(super) fn has_instance(&self, key: &InstanceKey) -> bool {
        self.instances.contains_key(key)
    }

    /// All instances of a CRD.
    pub(super) fn instances_of<'a>(&'a self, crd: &'a str) -> impl Iterator<Item = &'a InstanceKey> {
        self.instances.keys().filter(move |k| *k.crd == *crd)
    }

    /// All instances.
    pub(super) fn instances(&self) -> impl Iterator<Item = &InstanceKey> {
        self.instances.keys()
    }

    /// The instance with that claim.
    pub(super) fn by_claim(&self, claim: &Claim) -> Option<&InstanceKey> {
        self.by_claim.get(claim)
    }

    /// Which instance has that uid.
    pub(super) fn by_uid(&self, uid: &str) -> Option<&InstanceKey> {
        self.by_uid.get(uid)
    }

    /// Takes a child. If it has changed, returns the concerned instances: its instance, and the previous one if its
    /// label has changed.
    pub(super) fn put_child(&mut self, mut observed: Observed, origin: Origin) -> Vec<InstanceKey> {
        let mut concerned = Vec::new();
        let kind = observed.object.gvk.clone();
        for listed in self.relist_kinds.get_mut(&kind).into_iter().flat_map(HashMap::values_mut) {
            listed.insert(observed.object.clone());
        }
        if self.gone.covers(&observed.uid, &observed.resource_version) {
            return concerned;
        }
        if let Some(Child(present)) = self.children.get(&observed.object) {
            let present = Arc::clone(present);
            if older(&observed.resource_version, &present.resource_version) {
                // A later event arrived before the reply to our write. The baseline of the write is still valid; it
                // is no drift.
                if origin == Origin::OwnWrite && present.uid == observed.uid {
                    self.replace(Observed { settled: observed.settled, ..(*present).clone() });
                }
                return concerned;
            }
            if origin != Origin::OwnWrite && present.uid == observed.uid {
                observed.settled = present.settled.clone();
                if *present == observed {
                    return concerned;
                }
            }
            if present.instance_uid != observed.instance_uid {
                self.unlink(&present);
                concerned.extend(self.by_uid.get(&present.instance_uid).cloned());
            }
        }
        self.share(&mut observed);
        let uids = self.uids_of_claim.entry(observed.claim).or_default();
        if !uids.contains(&observed.instance_uid) {
            uids.push(Arc::clone(&observed.instance_uid));
        }
        let owner = self.by_uid.get(&observed.instance_uid);
        concerned.extend(owner.or_else(|| self.by_claim.get(&observed.claim)).cloned());
        self.replace(observed);
        concerned
    }

    /// Shares the values that a child has in common with its instance or a sibling.
    fn share(&self, observed: &mut Observed) {
        let instance = self.by_uid.get_key_value(&observed.instance_uid);
        let (uid, namespace) = match instance.map(|(uid, key)| (uid, key.namespace.as_ref())) {
            Some(known) => known,
            None => match self.of_instance.get_key_value(&observed.instance_uid) {
                Some((uid, siblings)) => (uid, siblings.first().and_then(|s| s.object.namespace.as_ref())),
                None => return,
            },
        };
        observed.instance_uid = Arc::clone(uid);
        if observed.object.namespace.as_ref() == namespace {
            observed.object.namespace = namespace.cloned();
        }
    }

    /// Replaces a child.
    fn replace(&mut self, observed: Observed) {
        let observed = Arc::new(observed);
        // A binary search, because an instance may have a thousand children.
        let siblings = self.of_instance.entry(Arc::clone(&observed.instance_uid)).or_default();
        match siblings.binary_search_by(|sibling| sibling.object.cmp(&observed.object)) {
            Ok(place) => siblings[place] = Arc::clone(&observed),
            Err(place) => siblings.insert(place, Arc::clone(&observed)),
        }
        self.children.replace(Child(observed));
    }

    /// A child is gone or has lost its label, at that resourceVersion if it is known. Returns the concerned instance.
    /// `uid` protects a new object of the name from a late event of the old one.
    pub(super) fn remove_child(
        &mut self,
        object: &ObjectRef,
        uid: &str,
        resource_version: Option<&str>,
    ) -> Option<InstanceKey> {
        if let Some(resource_version) = resource_version {
            let present = self.children.get(object).map(|Child(child)| child);
            let known = present.filter(|child| *child.uid == *uid && child.is_made_by_us());
            self.gone.add(uid, resource_version, known.map(|child| &*child.instance_uid));
        }
        if self.children.get(object).is_none_or(|Child(present)| *present.uid != *uid) {
            return None;
        }
        let Child(present) = self.children.take(object)?;
        self.unlink(&present);
        if !self.of_instance.contains_key(&present.instance_uid)
            && let Some(uids) = self.uids_of_claim.get_mut(&present.claim)
        {
            uids.retain(|uid| *uid != present.instance_uid);
            if uids.is_empty() {
                self.uids_of_claim.remove(&present.claim);
            }
        }
        let owner = self.by_uid.get(&present.instance_uid);
        owner.or_else(|| self.by_claim.get(&present.claim)).cloned()
    }

    /// Whether the object of that uid was a child of the instance until its labels were removed recently.
    pub(super) fn was_child_of(&self, uid: &str, instance_uid: &str) -> bool {
        self.gone.ends.get(uid).is_some_and(|end| end.of.as_deref() == Some(instance_uid))
    }

    /// Children of previous instances of that name, sorted. Those instances are gone: a kind, namespace and name has one
    /// instance at a time.
    pub(super) fn previous_children(&self, key: &InstanceKey, instance_uid: &str) -> Vec<Arc<Observed>> {
        let claim = self.claim(key);
        let uids = self.uids_of_claim.get(&claim).into_iter().flatten().filter(|uid| ***uid != *instance_uid);
        let mut children: Vec<_> = uids
            .filter(|uid| !self.by_uid.contains_key(*uid))
            .filter_map(|uid| self.of_instance.get(uid))
            .flatten()
            .filter(|child| child.claim == claim)
            .cloned()
            .collect();
        children.sort_by(|a, b| a.object.cmp(&b.object));
        children
    }

    /// An instance in a namespace, other than `except`, or a child of any instance.
    pub(super) fn namespace_user(&self, namespace: &str, except: &InstanceKey) -> Option<String> {
        let lies_in = |place: &Option<Arc<str>>| place.as_deref() == Some(namespace);
        let instance = self.instances.keys().filter(|key| lies_in(&key.namespace) && *key != except).min();
        instance.map(ToString::to_string).or_else(|| {
            let children =
                self.all().filter(|child| lies_in(&child.object.namespace) && child.is_made_by_us());
            children.map(|child| &child.object).min().map(ToString::to_string)
        })
    }

    fn unlink(&mut self, child: &Observed) {
        if let Some(siblings) = self.of_instance.get_mut(&child.instance_uid) {
            if let Ok(place) = siblings.binary_search_by(|sibling| sibling.object.cmp(&child.object)) {
                siblings.remove(place);
            }
            if siblings.is_empty() {
                self.of_instance.remove(&child.instance_uid);
            }
        }
    }

    /// A list of a child kind begins, of that part.
    pub(super) fn begin_kind(&mut self, gvk: &Gvk, part: ChildPart) {
        self.relist_kinds.entry(gvk.clone()).or_default().insert(part, HashSet::new());
    }

    /// A list of a child kind is complete; returns the instances of children that it has not shown.
    pub(super) fn end_kind(&mut self, gvk: &Gvk, part: &ChildPart) -> Vec<InstanceKey> {
        let mut listed = HashSet::new();
        if let Some(lists) = self.relist_kinds.get_mut(gvk) {
            listed = lists.remove(part).unwrap_or_default();
            if lists.is_empty() {
                self.relist_kinds.remove(gvk);
            }
        }
        let mut gone = self.of_kind(gvk);
        gone.retain(|child| part.has(child) && !listed.contains(&child.object));
        gone.iter().filter_map(|child| self.remove_child(&child.object, &child.uid, None)).collect()
    }

    /// The CRD of a kind has changed: each child is verified again.
    pub(super) fn unsettle_kind(&mut self, gvk: &Gvk) {
        for child in self.of_kind(gvk) {
            self.replace(Observed { settled: DriftFingerprint::Generation(-1, 0), ..(*child).clone() });
        }
    }

    /// A part of the children of a kind is not watched any more. Those in other parts that are watched are kept.
    pub(super) fn drop_kind(&mut self, gvk: &Gvk, part: &ChildPart, watched: &[ChildPart]) {
        if let Some(lists) = self.relist_kinds.get_mut(gvk) {
            lists.remove(part);
        }
        for child in self.of_kind(gvk) {
            if part.has(&child) && !watched.iter().any(|part| part.has(&child)) {
                drop(self.remove_child(&child.object, &child.uid, None));
            }
        }
    }

    fn of_kind(&self, gvk: &Gvk) -> Vec<Arc<Observed>> {
        self.all().filter(|child| child.object.gvk == *gvk).cloned().collect()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Observed>> {
        self.children.iter().map(|Child(child)| child)
    }

    /// Whether an instance of that CRD, known or not, has a child that matches. `is_such` gets the instance if it is
    /// known.
    pub(super) fn has_child(
        &self,
        crd: &str,
        is_such: impl Fn(Option<&InstanceKey>, &ObjectRef) -> bool,
    ) -> bool {
        let label = self.kind_labels.get(crd);
        self.all().filter(|child| child.is_made_by_us()).any(|child| {
            let owner = self.by_uid.get(&child.instance_uid).or_else(|| self.by_claim.get(&child.claim));
            let is_of_crd = match owner {
                Some(owner) => *owner.crd == *crd,
                None => label.is_none_or(|label| names::claims_kind(&child.claim, label)),
            };
            is_of_crd && is_such(owner, &child.object)
        })
    }

    /// The child that an object is.
    pub(super) fn child(&self, object: &ObjectRef) -> Option<&Arc<Observed>> {
        self.children.get(object).map(|Child(child)| child)
    }

    /// The children of an instance, in a stable order.
    pub(super) fn children_of(&self, instance_uid: &str) -> Vec<Arc<Observed>> {
        self.of_instance.get(instance_uid).cloned().unwrap_or_default()
    }

    /// How many instances and children are held.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.instances.len(), self.children.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children::Seen;
    use serde_json::json;

    fn key(name: &str) -> InstanceKey {
        InstanceKey { crd: "things.example.org".into(), namespace: Some("n".into()), name: name.into() }
    }

    fn index() -> Index {
        let mut index = Index::default();
        for (name, uid) in [("a", "uid-a"), ("b", "uid-b")] {
            index.put_instance(key(name), &json!({"metadata": {"uid": uid, "resourceVersion": "1"}}));
        }
        index
    }

    fn child(instance_uid: &str, version: &str) -> Observed {
        let metadata = serde_json::from_value(json!({
            "name": "c", "namespace": "n", "uid": "uid-c", "resourceVersion": version,
            "labels": {"operetta.dev/operator": "o", "operetta.dev/child": "c", "operetta.dev/instance-uid": instance_uid},
        }))
        .unwrap();
        let gvk = Gvk::new("v1", "ConfigMap");
        let seen = Seen { gvk: &gvk, metadata: &metadata, body: None, reports: false };
        seen.observe(|_, _| Arc::from([])).unwrap()
    }

    #[test]
    fn a_list_may_bring_another_object_at_the_same_version() {
        let mut index = index();
        let crd: Arc<str> = "things.example.org".into();
        let defaulted = json!({"metadata": {"uid": "uid-a", "resourceVersion": "1"}, "spec": {"size": 3}});
        assert!(!index.put_instance(key("a"), &defaulted), "an event of that version is no news");
        index.begin_instances(&crd);
        assert!(index.put_instance(key("a"), &defaulted));
        assert!(!index.put_instance(key("a"), &defaulted));
        assert_eq!(index.end_instances(&crd), [key("b")]);
        assert_eq!(index.instance(&key("a")), Some(defaulted));
        assert_eq!(index.drop_instances(&crd), [key("a")]);
    }

    #[test]
    fn a_list_of_one_kind_of_instances_says_nothing_of_the_children_of_another() {
        let mut index = index();
        let of = |name: &str, label: &str| {
            let metadata = serde_json::from_value(json!({
                "name": name, "namespace": "n", "uid": name, "resourceVersion": "2",
                "labels": {"operetta.dev/kind": label, "operetta.dev/instance": "a", "operetta.dev/instance-uid": "uid-a"},
            }))
            .unwrap();
            let gvk = Gvk::new("v1", "ConfigMap");
            let seen = Seen { gvk: &gvk, metadata: &metadata, body: None, reports: false };
            seen.observe(|_, _| Arc::from([])).unwrap()
        };
        let names = |index: &Index| -> Vec<String> {
            index.children_of("uid-a").iter().map(|child| child.object.name.to_string()).collect()
        };
        let gvk = Gvk::new("v1", "ConfigMap");
        for (name, label) in [("c1", "One.x"), ("c2", "One.x"), ("d1", "Two.x"), ("d2", "Two.x")] {
            index.put_child(of(name, label), Origin::Watch);
        }
        // Two lists run side by side; each removes only what belongs to it.
        let part = |label: &str| ChildPart { kind: Some(label.into()), namespace: None };
        index.begin_kind(&gvk, part("One.x"));
        index.begin_kind(&gvk, part("Two.x"));
        index.put_child(of("c1", "One.x"), Origin::Watch);
        assert_eq!(index.end_kind(&gvk, &part("One.x")), [key("a")]);
        assert_eq!(names(&index), ["c1", "d1", "d2"]);
        index.put_child(of("d2", "Two.x"), Origin::Watch);
        assert_eq!(index.end_kind(&gvk, &part("Two.x")), [key("a")]);
        assert_eq!(names(&index), ["c1", "d2"]);
        // Of one namespace only, and not what another watch brings.
        let in_namespace = |namespace: &str| ChildPart { namespace: Some(namespace.into()), ..part("One.x") };
        index.drop_kind(&gvk, &in_namespace("m"), &[]);
        index.drop_kind(&gvk, &part("One.x"), &[in_namespace("n")]);
        index.begin_kind(&gvk, in_namespace("m"));
        assert_eq!(index.end_kind(&gvk, &in_namespace("m")), []);
        assert_eq!(names(&index), ["c1", "d2"]);
        index.drop_kind(&gvk, &in_namespace("n"), &[]);
        assert_eq!(names(&index), ["d2"]);
        index.begin_kind(&gvk, ChildPart::default());
        assert_eq!(index.end_kind(&gvk, &ChildPart::default()), [key("a")]);
        assert_eq!(names(&index), [""; 0]);
    }

    #[test]
    fn children_of_a_former_instance_are_known_by_name_and_namespace() {
        let mut index = Index::default();
        let crd: Arc<str> = "things.example.org".into();
        index.name_kind(&crd, "Thing.example.org");
        let put = |index: &mut Index, namespace: &str, uid: &str, extra: &Value| {
            let key = InstanceKey { crd: crd.clone(), namespace: Some(namespace.into()), name: "a".into() };
            let mut meta = json!({"uid": uid, "resourceVersion": "9"});
            meta.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            index.put_instance(key.clone(), &json!({"metadata": meta}));
            key
        };
        let role = |uid: &str, home: &str| {
            let metadata = serde_json::from_value(json!({
                "name": format!("role-{uid}"), "uid": format!("of-{uid}"), "resourceVersion": "5",
                "labels": {"operetta.dev/kind": "Thing.example.org", "operetta.dev/instance": "a",
                    "operetta.dev/instance-uid": uid, "operetta.dev/instance-namespace": home},
            }))
            .unwrap();
            let seen = Seen {
                gvk: &Gvk::new("rbac/v1", "ClusterRole"),
                metadata: &metadata,
                body: None,
                reports: false,
            };
            seen.observe(|_, _| Arc::from([])).unwrap()
        };
        let (one, two) =
            (put(&mut index, "one", "new", &json!({})), put(&mut index, "two", "other", &json!({})));
        assert_eq!(index.put_child(role("dead", "one"), Origin::Watch), std::slice::from_ref(&one));
        assert_eq!(index.put_child(role("other", "two"), Origin::Watch), std::slice::from_ref(&two));
        let previous = |index: &Index, key, uid| -> Vec<String> {
            index.previous_children(key, uid).iter().map(|o| o.object.name.to_string()).collect()
        };
        assert_eq!(previous(&index, &one, "new"), ["role-dead"]);
        assert!(previous(&index, &two, "other").is_empty());
        let object = role("dead", "one").object;
        assert_eq!(index.remove_child(&object, "of-dead", None), Some(one.clone()));
        assert!(previous(&index, &one, "new").is_empty());

        // An orphaned instance is remembered until its children are orphaned.
        let mark = json!({"deletionTimestamp": "t", "finalizers": ["orphan"], "resourceVersion": "10"});
        put(&mut index, "two", "other", &mark);
        put(&mut index, "two", "other", &json!({"deletionTimestamp": "t", "resourceVersion": "11"}));
        let seen = &index.instance(&two).unwrap()["metadata"]["annotations"]["operetta.dev/orphaned"];
        assert_eq!(*seen, "seen");
        index.remove_instance(&two, "other", Some("12"));
        assert!(index.instance(&two).is_none() && index.deleted_instance(&two).is_some());
        index.remove_child(&role("other", "two").object, "of-other", None);
        assert!(index.deleted_instance(&two).is_none());
    }

    #[test]
    fn what_siblings_have_in_common_is_held_once() {
        let mut index = index();
        let named = |name: &str, instance_uid: &str| {
            let mut child = child(instance_uid, "2");
            (child.object.name, child.uid) = (name.into(), name.into());
            child
        };
        for (name, instance_uid) in [("d", "uid-a"), ("c", "uid-a"), ("f", "unknown"), ("e", "unknown")] {
            index.put_child(named(name, instance_uid), Origin::Watch);
        }
        for (instance_uid, names) in [("uid-a", ["c", "d"]), ("unknown", ["e", "f"])] {
            let children = index.children_of(instance_uid);
            assert_eq!(children.iter().map(|c| &*c.object.name).collect::<Vec<_>>(), names);
            let [one, two] = &children[..] else { panic!("{}", children.len()) };
            assert!(Arc::ptr_eq(&one.instance_uid, &two.instance_uid), "{instance_uid}");
            let (one, two) = (&one.object.namespace, &two.object.namespace);
            assert!(Arc::ptr_eq(one.as_ref().unwrap(), two.as_ref().unwrap()), "{instance_uid}");
        }
        assert_eq!(index.instance(&key("a")).unwrap()["metadata"]["uid"], "uid-a");
        let object = index.children_of("uid-a")[0].object.clone();
        index.remove_child(&object, "c", None);
        assert_eq!(index.children_of("uid-a").len(), 1);
    }

    #[test]
    fn a_child_that_is_relabelled_concerns_its_former_instance_too() {
        let mut index = index();
        assert_eq!(index.put_child(child("uid-a", "2"), Origin::Watch), [key("a")]);
        assert_eq!(index.put_child(child("nobody", "3"), Origin::Watch), [key("a")]);
        assert_eq!(index.put_child(child("uid-b", "4"), Origin::Watch), [key("b")]);
        assert_eq!(index.put_child(child("uid-a", "5"), Origin::Watch), [key("b"), key("a")]);
        assert_eq!(index.put_child(child("uid-b", "4"), Origin::Watch), []);
    }
}
