//! Keeps where children are that other instances of the same package reach, and finds them.

use std::sync::Arc;

use super::{Index, InstanceKey};
use crate::api::ObjectRef;
use crate::children::{ChildLine, ItemId, Observed, Sibling};

impl Index {
    /// Takes the places of an instance's children from a decision about it. Returns who reads them, if they have changed.
    pub(in crate::manager) fn place_children(
        &mut self,
        key: &InstanceKey,
        children: &[ChildLine],
    ) -> Vec<InstanceKey> {
        let Some(uid) = self.instances.get(key).map(|instance| Arc::clone(&instance.uid)) else {
            return Vec::new();
        };
        let known = self.siblings.places.get(&uid).map(Vec::as_slice).unwrap_or_default();
        // An item that cannot be rendered now stays where it was.
        let place = |(name, object, _): &ChildLine| {
            let item = ItemId::named(name);
            let before = || known.iter().find(|(known, _)| *known == item).map(|(_, object)| object.clone());
            Some((object.clone().or_else(before)?, item))
        };
        let places: Vec<_> = children.iter().filter_map(place).map(|(object, item)| (item, object)).collect();
        if known == places && self.siblings.places.contains_key(&uid) {
            return Vec::new();
        }
        self.siblings.places.insert(Arc::clone(&uid), places);
        self.readers(&uid)
    }

    /// The instance with that uid, which another one reads, and from now on is queued with.
    pub(in crate::manager) fn sibling(
        &mut self,
        uid: &str,
        reader: &InstanceKey,
    ) -> Option<(InstanceKey, Sibling)> {
        self.siblings.readers.entry(uid.into()).or_default().insert(reader.clone());
        let (uid, key) = self.by_uid.get_key_value(uid)?;
        let live =
            |(item, object): &(ItemId, ObjectRef)| Some((item.clone(), Arc::clone(self.child(object)?)));
        let places = self.siblings.places.get(uid);
        let sibling = Sibling {
            uid: Arc::clone(uid),
            namespace: key.namespace.clone(),
            claim: self.claim(key),
            places: places.map(|places| places.iter().filter_map(live).collect()),
        };
        Some((key.clone(), sibling))
    }

    /// The instances that read the children of an instance and still exist.
    fn readers(&mut self, uid: &str) -> Vec<InstanceKey> {
        let instances = &self.instances;
        let Some(readers) = self.siblings.readers.get_mut(uid) else { return Vec::new() };
        readers.retain(|reader| instances.contains_key(reader));
        readers.iter().cloned().collect()
    }

    /// The instances for which a change of an object may be what a command waits for.
    pub(super) fn concerned_readers(&self, before: Option<&Observed>, after: &Observed) -> Vec<InstanceKey> {
        let is_same = |before: &Observed| {
            before.uid == after.uid
                && before.terminating == after.terminating
                && before.readiness == after.readiness
        };
        if before.is_some_and(is_same) {
            return Vec::new();
        }
        self.siblings.readers_of(&after.instance_uid).cloned().collect()
    }
}
