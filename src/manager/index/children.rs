//! The children that the index holds, and what lists of their kinds have shown.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::child::{Child, ChildPart, Provenance};
use super::{Index, InstanceKey, older};
use crate::api::{Gvk, ObjectRef};
use crate::children::names;
use crate::children::{DriftFingerprint, Observed};

impl Index {
    /// Takes a child. If it has changed, returns the concerned instances: its instance, and the previous one if its
    /// label has changed.
    pub(in crate::manager) fn put_child(
        &mut self,
        mut observed: Observed,
        provenance: Provenance,
    ) -> Vec<InstanceKey> {
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
                if provenance == Provenance::OwnWrite && present.uid == observed.uid {
                    self.replace(Observed { baseline: observed.baseline, ..(*present).clone() });
                }
                return concerned;
            }
            if provenance != Provenance::OwnWrite && present.uid == observed.uid {
                observed.baseline = present.baseline.clone();
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
        let before = self.children.get(&observed.object).map(|Child(present)| &**present);
        concerned.extend(self.concerned_readers(before, &observed));
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

    /// Inserts a child, or replaces it.
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

    /// Removes a child that is gone or has lost its label, at that resourceVersion if it is known. Returns
    /// the concerned instance. `uid` protects a new object of the name from a late event of the old one.
    pub(in crate::manager) fn remove_child(
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
    pub(in crate::manager) fn was_child_of(&self, uid: &str, instance_uid: &str) -> bool {
        self.gone.was_child_of(uid, instance_uid)
    }

    /// Children of previous instances of that name, sorted. Those instances are gone: a kind, namespace and name has one
    /// instance at a time.
    pub(in crate::manager) fn previous_children(
        &self,
        key: &InstanceKey,
        instance_uid: &str,
    ) -> Vec<Arc<Observed>> {
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
    pub(in crate::manager) fn namespace_user(&self, namespace: &str, except: &InstanceKey) -> Option<String> {
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

    /// Begins a list of a part of a child kind.
    pub(in crate::manager) fn begin_kind(&mut self, gvk: &Gvk, part: ChildPart) {
        self.relist_kinds.entry(gvk.clone()).or_default().insert(part, HashSet::new());
    }

    /// Ends a list of a part of a child kind. Returns the instances of children that the list has not shown.
    pub(in crate::manager) fn end_kind(&mut self, gvk: &Gvk, part: &ChildPart) -> Vec<InstanceKey> {
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

    /// Marks all children of a kind for verification, after its CRD has changed.
    pub(in crate::manager) fn unsettle_kind(&mut self, gvk: &Gvk) {
        for child in self.of_kind(gvk) {
            self.replace(Observed { baseline: DriftFingerprint::Generation(-1, 0), ..(*child).clone() });
        }
    }

    /// Drops the children of a part that is no longer watched, except those in other parts that are watched.
    pub(in crate::manager) fn drop_kind(&mut self, gvk: &Gvk, part: &ChildPart, watched: &[ChildPart]) {
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
    pub(in crate::manager) fn has_child(
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

    /// The child with that object reference.
    pub(in crate::manager) fn child(&self, object: &ObjectRef) -> Option<&Arc<Observed>> {
        self.children.get(object).map(|Child(child)| child)
    }

    /// The children of an instance, in a stable order.
    pub(in crate::manager) fn children_of(&self, instance_uid: &str) -> Vec<Arc<Observed>> {
        self.of_instance.get(instance_uid).cloned().unwrap_or_default()
    }
}
