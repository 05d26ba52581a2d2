//! The objects with their versions, and the history that watches read. Objects are kept as JSON text: that takes a tenth of
//! the memory of a tree, and most reads pass it on as it is.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::model::{Object, Parsed};

/// The number of events that watches can go back.
const HISTORY: usize = 10_000;

/// The number of objects whose trees are kept beside their text: those that were written last.
const RECENT: usize = 256;

/// The most bytes of JSON of the history.
const HISTORY_BYTES: usize = 128 << 20;

/// How much is stored.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The number of objects.
    pub objects: usize,
    /// Their bytes as JSON.
    pub bytes: usize,
}

/// The kind of a change of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

/// One event of the history.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) version: u64,
    pub(crate) resource: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) change: Change,
    /// The object after the change; of a deletion, its last state.
    pub(crate) object: Arc<Object>,
    pub(crate) old: Option<Arc<Object>>,
}

type Objects = BTreeMap<Arc<str>, Arc<Object>>;

/// The resource and the key of an object.
pub(crate) type Place = (Arc<str>, Arc<str>);

/// Resources whose objects workload controllers adopt if they have no owner.
const ADOPTABLE: [&str; 3] = ["pods", "replicasets.apps", "controllerrevisions.apps"];

/// All objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    version: u64,
    objects: BTreeMap<Arc<str>, Objects>,
    history: VecDeque<Event>,
    /// The bytes of the objects of the history as JSON.
    history_bytes: usize,
    /// The number and the bytes of all objects.
    size: Size,
    /// The version of the last event that is no longer in the history.
    compacted: u64,
    /// Where the object with a uid is.
    places: HashMap<Box<str>, Place>,
    /// The objects with an owner, by its uid; those that have none and can be adopted are below the empty uid.
    below: HashMap<Box<str>, BTreeSet<Place>>,
    /// The version of the last change of each resource.
    latest: HashMap<Arc<str>, u64>,
    /// The objects whose trees are kept, by version.
    recent: BTreeMap<u64, Arc<Object>>,
}

impl Store {
    /// Lets a clone have the same objects, too: their trees are not forgotten.
    pub(crate) fn share(&self) {
        self.recent.values().for_each(|object| object.share());
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// The version of the last change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, resource: &str, key: &str) -> Option<&Arc<Object>> {
        self.objects.get(resource)?.get(key)
    }

    /// The objects of a resource whose key begins with `prefix`, after the key `after`.
    pub(crate) fn range<'a>(
        &'a self,
        resource: &str,
        prefix: &'a str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<Object>)> + use<'a> {
        let start = match after {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(prefix),
        };
        self.objects
            .get(resource)
            .map(|objects| objects.range::<str, _>((start, Bound::Unbounded)))
            .into_iter()
            .flatten()
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// The resources that have had objects.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &Arc<str>> {
        self.objects.keys()
    }

    /// All objects with their resources.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &Arc<Object>)> {
        self.objects
            .iter()
            .flat_map(|(resource, objects)| objects.iter().map(move |(key, object)| (resource, key, object)))
    }

    /// Stores an object under the next version, which is written into it.
    pub(crate) fn put(&mut self, resource: &str, key: &str, parsed: Parsed) -> Arc<Object> {
        self.version += 1;
        let object = Arc::new(Object::new(self.version, parsed));
        let resource = self.resource(resource);
        let objects = self.objects.entry(resource.clone()).or_default();
        let key: Arc<str> = match objects.get_key_value(key) {
            Some((known, _)) => known.clone(),
            None => key.into(),
        };
        let old = objects.insert(key.clone(), object.clone());
        self.size.objects += usize::from(old.is_none());
        self.size.bytes += object.json.len();
        self.size.bytes -= old.as_ref().map_or(0, |old| old.json.len());
        self.index((&resource, &key), old.as_deref(), Some(&object));
        self.forget(old.as_deref());
        self.recent.insert(self.version, object.clone());
        if self.recent.len() > RECENT
            && let Some((_, oldest)) = self.recent.pop_first()
        {
            oldest.forget();
        }
        let change = if old.is_some() { Change::Modified } else { Change::Added };
        self.note(Event { version: self.version, resource, key, change, object: object.clone(), old });
        object
    }

    /// Removes an object. Its last state gets the next version.
    pub(crate) fn remove(&mut self, resource: &str, key: &str) -> Option<Arc<Object>> {
        let (key, old) = self.objects.get_mut(resource)?.remove_entry(key)?;
        self.size.objects -= 1;
        self.size.bytes -= old.json.len();
        self.version += 1;
        let object = Arc::new(Object::new(self.version, Arc::unwrap_or_clone(old.parsed())));
        object.forget();
        self.forget(Some(&old));
        let resource = self.resource(resource);
        self.index((&resource, &key), Some(&old), None);
        self.note(Event {
            version: self.version,
            resource,
            key,
            change: Change::Deleted,
            object: object.clone(),
            old: Some(old),
        });
        Some(object)
    }

    /// Follows a change of another store, with the same object. It gets no history and no index.
    pub(crate) fn follow(&mut self, event: &Event) {
        self.version += 1;
        let objects = self.objects.entry(event.resource.clone()).or_default();
        if event.change == Change::Deleted {
            objects.remove(&event.key);
        } else {
            objects.insert(event.key.clone(), event.object.clone());
        }
        self.latest.insert(event.resource.clone(), self.version);
    }

    /// The object that was written last.
    pub(crate) fn newest(&self) -> Option<&Arc<Object>> {
        self.history.back().map(|event| &event.object)
    }

    /// Where the object with a uid is.
    pub(crate) fn place(&self, uid: &str) -> Option<&Place> {
        self.places.get(uid)
    }

    /// The objects that have an owner.
    pub(crate) fn below(&self, uid: &str) -> impl Iterator<Item = &Place> {
        self.below.get(uid).into_iter().flatten()
    }

    /// The objects of a resource in a namespace that have no owner and can be adopted.
    pub(crate) fn orphans(&self, resource: &str, namespace: &str) -> Vec<Place> {
        let prefix = format!("{namespace}/");
        let start: Place = (resource.into(), (&*prefix).into());
        let found = self.below.get("").into_iter().flat_map(|all| all.range(start.clone()..));
        found.take_while(|(known, key)| **known == *resource && key.starts_with(&prefix)).cloned().collect()
    }

    /// Notes where an object is, and whose it is.
    fn index(&mut self, (resource, key): (&Arc<str>, &Arc<str>), old: Option<&Object>, new: Option<&Object>) {
        let owners = |object: Option<&Object>| -> Vec<Box<str>> {
            let Some(object) = object else { return Vec::new() };
            match &*object.owners {
                [] if ADOPTABLE.contains(&&**resource) => vec!["".into()],
                owners => owners.to_vec(),
            }
        };
        let (before, after) = (owners(old), owners(new));
        let place = (resource.clone(), key.clone());
        for owner in before.iter().filter(|owner| !after.contains(owner)) {
            if let Some(all) = self.below.get_mut(owner) {
                all.remove(&place);
                if all.is_empty() {
                    self.below.remove(owner);
                }
            }
        }
        for owner in after.into_iter().filter(|owner| !before.contains(owner)) {
            self.below.entry(owner).or_default().insert(place.clone());
        }
        let (before, after) = (old.map(|old| &old.uid), new.map(|new| &new.uid));
        if before != after {
            before.map(|uid| self.places.remove(uid));
            after.map(|uid| self.places.insert(uid.clone(), place));
        }
    }

    /// Keeps only the text of an object.
    fn forget(&mut self, object: Option<&Object>) {
        if let Some(object) = object {
            self.recent.remove(&object.version);
            object.forget();
        }
    }

    fn resource(&self, name: &str) -> Arc<str> {
        self.objects.get_key_value(name).map_or_else(|| name.into(), |(known, _)| known.clone())
    }

    /// The version of the last change of a resource.
    pub(crate) fn latest(&self, resource: &str) -> u64 {
        self.latest.get(resource).copied().unwrap_or_default()
    }

    fn note(&mut self, event: Event) {
        self.latest.insert(event.resource.clone(), event.version);
        self.history_bytes += event.object.json.len();
        self.history.push_back(event);
        while self.history.len() > HISTORY || self.history_bytes > HISTORY_BYTES && self.history.len() > 1 {
            self.compact(1);
        }
    }

    /// Forgets the oldest events.
    pub(crate) fn compact(&mut self, count: usize) {
        for event in self.history.drain(..count.min(self.history.len())) {
            self.compacted = event.version;
            self.history_bytes -= event.object.json.len();
        }
    }

    /// The events after a version; `None` if some of them are forgotten.
    pub(crate) fn since(&self, version: u64) -> Option<impl Iterator<Item = &Event>> {
        let start = self.history.partition_point(|event| event.version <= version);
        (version >= self.compacted).then(|| self.history.range(start..))
    }
}
