//! The instances and children that watches and replies to our own writes have delivered. A plain struct without I/O.
//!
//! Replies are included so that the next decision sees the last write. An older event that arrives later is
//! recognized by its resourceVersion and dropped.

mod child;
mod children;
mod gone;
mod siblings;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::api::{Gvk, ObjectRef};
use crate::children::names::{self, Claim};
use crate::children::{ItemId, Observed};
use crate::operators::upgrade::Member;
use child::Child;
pub(super) use child::{ChildPart, Provenance};
pub(super) use gone::{Gone, older};

/// The key of an instance: its CRD, namespace and name.
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
    /// Whether it was deleted with `--cascade=orphan`. The finalizer that shows this is present for a moment
    /// only.
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

/// What a live read changes in the index. No watch event follows for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadChange {
    /// The index has it already, or there is no instance.
    None,
    /// The known instance was edited. The reconcile that has read it decides again.
    Edited,
    /// Another instance has the name. It must be queued.
    Replaced,
}

/// All known instances and children.
#[derive(Default)]
pub(super) struct Index {
    instances: HashMap<InstanceKey, Instance>,
    by_uid: HashMap<Arc<str>, InstanceKey>,
    /// Instances as they were before edits that are not accepted yet.
    previous: HashMap<InstanceKey, Arc<[u8]>>,
    /// The instance by kind, namespace and name, for children of previous instances.
    by_claim: HashMap<Claim, InstanceKey>,
    /// The kind label of a CRD's instances. It is part of their claim.
    kind_labels: HashMap<Arc<str>, Box<str>>,
    /// Deleted instances with children that are still to be orphaned.
    deleted_instances: HashMap<InstanceKey, Instance>,
    /// Names whose instance is gone or replaced, until the manager has forgotten what it remembers of that instance.
    to_forget: HashSet<InstanceKey>,
    relist_instances: HashMap<Arc<str>, HashSet<InstanceKey>>,
    /// The objects that running lists of child kinds have shown, by what is listed.
    relist_kinds: HashMap<Gvk, HashMap<ChildPart, HashSet<ObjectRef>>>,
    children: HashSet<Child>,
    /// The children by the instance uid on their label, in the order of [`ObjectRef`].
    of_instance: HashMap<Arc<str>, Vec<Arc<Observed>>>,
    /// The uids on the labels of children with a claim, mostly one.
    uids_of_claim: HashMap<Claim, Vec<Arc<str>>>,
    gone: Gone,
    siblings: Siblings,
}

/// What is known of instances whose children others reach, by their uid.
#[derive(Default)]
struct Siblings {
    /// The objects of an instance, as the last decision about it has rendered their kinds and names.
    places: HashMap<Arc<str>, Vec<(ItemId, ObjectRef)>>,
    readers: HashMap<Arc<str>, HashSet<InstanceKey>>,
}

impl Siblings {
    fn forget(&mut self, uid: &str) {
        self.places.remove(uid);
    }

    fn readers_of(&self, uid: &str) -> impl Iterator<Item = &InstanceKey> {
        self.readers.get(uid).into_iter().flatten()
    }
}

impl Index {
    /// Sets the kind label of the children of a CRD's instances.
    pub(super) fn name_kind(&mut self, crd: &Arc<str>, label: &str) {
        self.kind_labels.insert(Arc::clone(crd), label.into());
    }

    /// The hash of kind, namespace and name by which objects name the instance that they belong to.
    pub(super) fn claim(&self, key: &InstanceKey) -> Claim {
        let kind = self.kind_labels.get(&key.crd).map(|label| &**label).unwrap_or_default();
        names::claim(kind, &names::label_value(&key.name), key.namespace.as_deref().unwrap_or_default())
    }

    /// Records that a running list has shown an instance.
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
                self.siblings.forget(&present.uid);
                self.previous.remove(&key);
                self.to_forget.insert(key.clone());
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

    /// Records that the target of this state of the instance is applied, and forgets the previous state.
    pub(super) fn accept(&mut self, key: &InstanceKey, accepted: &Value) {
        let generation = accepted["metadata"]["generation"].as_i64().unwrap_or_default();
        if !self.previous.contains_key(key) {
            return;
        }
        if self.instances.get(key).is_some_and(|instance| instance.generation != generation) {
            // The instance was edited again meanwhile.
            self.previous.insert(key.clone(), accepted.to_string().into_bytes().into());
        } else {
            self.previous.remove(key);
        }
    }

    /// Takes the answer to a live read of the name. `asked`: the uid of the instance that was known when the read was sent. A 404
    /// is about that instance only: the watch may have brought a newer one since, and will not bring it again.
    pub(super) fn put_read(
        &mut self,
        key: &InstanceKey,
        asked: Option<&str>,
        live: Option<&Value>,
    ) -> ReadChange {
        let Some(object) = live else {
            if let Some(uid) = asked {
                self.remove_instance(key, uid, None);
            }
            return ReadChange::None;
        };
        match self.put_instance(key.clone(), object) {
            false => ReadChange::None,
            true if object["metadata"]["uid"].as_str() == asked => ReadChange::Edited,
            true => ReadChange::Replaced,
        }
    }

    /// Removes an instance that was deleted, at that resourceVersion if it is known. `uid` protects a new instance of the
    /// name from late events and answers about the previous one.
    pub(super) fn remove_instance(&mut self, key: &InstanceKey, uid: &str, resource_version: Option<&str>) {
        if let Some(resource_version) = resource_version {
            self.gone.add(uid, resource_version, None);
        }
        if self.instances.get(key).is_some_and(|i| *i.uid == *uid) {
            self.drop_instance(key);
        }
    }

    /// Whether the manager still remembers something of a previous instance of that name.
    pub(super) fn is_to_forget(&self, key: &InstanceKey) -> bool {
        self.to_forget.contains(key)
    }

    /// Records that nothing is remembered of previous instances of that name.
    pub(super) fn forgotten(&mut self, key: &InstanceKey) {
        self.to_forget.remove(key);
    }

    fn drop_instance(&mut self, key: &InstanceKey) {
        let Some(instance) = self.instances.remove(key) else { return };
        self.previous.remove(key);
        self.to_forget.insert(key.clone());
        self.by_uid.remove(&instance.uid);
        self.siblings.forget(&instance.uid);
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

    /// Begins a list of the instances of a CRD.
    pub(super) fn begin_instances(&mut self, crd: &Arc<str>) {
        self.relist_instances.insert(Arc::clone(crd), HashSet::new());
    }

    /// Removes the instances of a CRD that is gone, and returns them.
    pub(super) fn drop_instances(&mut self, crd: &Arc<str>) -> Vec<InstanceKey> {
        self.relist_instances.remove(crd);
        self.end_instances(crd)
    }

    /// Ends a list of instances. Removes those that it has not shown, and returns them.
    pub(super) fn end_instances(&mut self, crd: &Arc<str>) -> Vec<InstanceKey> {
        let listed = self.relist_instances.remove(crd).unwrap_or_default();
        let gone: Vec<_> =
            self.instances.keys().filter(|k| k.crd == *crd && !listed.contains(*k)).cloned().collect();
        for key in &gone {
            self.drop_instance(key);
        }
        gone
    }

    /// The uid of the known instance.
    pub(super) fn uid_of(&self, key: &InstanceKey) -> Option<Arc<str>> {
        Some(Arc::clone(&self.instances.get(key)?.uid))
    }

    /// The instance as it was last seen.
    pub(super) fn instance(&self, key: &InstanceKey) -> Option<Value> {
        self.instances.get(key).and_then(Instance::value)
    }

    /// What the status of the instance says of its revision.
    pub(super) fn member(&self, key: &InstanceKey) -> Option<&Member> {
        self.instances.get(key).map(|instance| &instance.member)
    }

    /// What the statuses of all instances of a CRD say of their revisions.
    pub(super) fn members_of<'a>(
        &'a self,
        crd: &'a str,
    ) -> impl Iterator<Item = (&'a InstanceKey, &'a Member)> {
        let of_crd = self.instances.iter().filter(move |(key, _)| *key.crd == *crd);
        of_crd.map(|(key, instance)| (key, &instance.member))
    }

    /// Bytes of the instance as JSON; 0 if it is not known.
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

    /// The instance with that uid.
    pub(super) fn by_uid(&self, uid: &str) -> Option<&InstanceKey> {
        self.by_uid.get(uid)
    }

    /// How many instances and children are held.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.instances.len(), self.children.len())
    }
}
