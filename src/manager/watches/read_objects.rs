//! The objects of one watch that refs read, with the instances that read them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::watch::{Watch, WatchState};
use crate::children::{LookupResult, ReadError, Referred, ResourceSelector};
use crate::manager::index::{InstanceKey, older};

/// The namespace and the name of an object.
pub(super) type Name = (Option<Box<str>>, Box<str>);

/// An object as a watch brings it.
pub(super) struct Object {
    pub(super) referred: Referred,
    pub(super) resource_version: Box<str>,
    pub(super) labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone)]
struct Kept {
    referred: Arc<Referred>,
    resource_version: Box<str>,
    /// The labels, which selectors match in a shared watch.
    labels: Option<BTreeMap<String, String>>,
}

/// The objects of a watch, as far as they are read, and their readers.
pub(super) struct ReadObjects {
    watch: Arc<Watch>,
    /// Whether it serves several selectors.
    is_shared: bool,
    objects: BTreeMap<Name, Kept>,
    readers: HashMap<ResourceSelector, HashSet<InstanceKey>>,
    /// The objects that a running list has shown.
    relist: Option<HashSet<Name>>,
    /// Selectors that were added after the list and are being listed separately.
    filling: HashSet<ResourceSelector>,
    /// The objects that the watch has shown since the oldest of these lists began.
    touched: HashSet<Name>,
}

impl ReadObjects {
    pub(super) fn new(watch: Arc<Watch>, is_shared: bool) -> Self {
        Self {
            watch,
            is_shared,
            objects: BTreeMap::new(),
            readers: HashMap::new(),
            relist: None,
            filling: HashSet::new(),
            touched: HashSet::new(),
        }
    }

    /// Adds a reader; `true` if its selector must be listed separately.
    pub(super) fn add(&mut self, selector: &ResourceSelector, key: &InstanceKey) -> bool {
        let is_new = !self.readers.contains_key(selector);
        self.readers.entry(selector.clone()).or_default().insert(key.clone());
        // A running list counts as well: the page may have passed already.
        let passed =
            self.is_shared && is_new && (self.watch.state() == WatchState::Watching || self.relist.is_some());
        if passed {
            self.filling.insert(selector.clone());
        }
        passed
    }

    /// Removes a reader; `true` if it was the last of this selector.
    pub(super) fn remove(&mut self, selector: &ResourceSelector, key: &InstanceKey) -> bool {
        let Some(readers) = self.readers.get_mut(selector) else { return false };
        readers.remove(key);
        if !readers.is_empty() {
            return false;
        }
        self.readers.remove(selector);
        self.filled(selector);
        let (readers, is_shared) = (&self.readers, self.is_shared);
        self.objects.retain(|name, kept| {
            readers.keys().any(|selector| fits(selector, is_shared, name, kept.labels.as_ref()))
        });
        true
    }

    pub(super) fn is_idle(&self) -> bool {
        self.readers.is_empty()
    }

    pub(super) fn find(&self, selector: &ResourceSelector) -> LookupResult {
        match self.watch.state() {
            WatchState::Unavailable(error) => LookupResult::Unknown(error),
            WatchState::Pending => LookupResult::Pending,
            _ if self.filling.contains(selector) => LookupResult::Pending,
            _ => LookupResult::Known(
                self.objects
                    .iter()
                    .filter(|(name, kept)| fits(selector, self.is_shared, name, kept.labels.as_ref()))
                    .map(|(_, kept)| Arc::clone(&kept.referred))
                    .collect(),
            ),
        }
    }

    fn everybody(&self) -> HashSet<InstanceKey> {
        self.readers.values().flatten().cloned().collect()
    }

    fn readers_of(&self, name: &Name, labels: Option<&BTreeMap<String, String>>) -> HashSet<InstanceKey> {
        let fitting =
            self.readers.iter().filter(|(selector, _)| fits(selector, self.is_shared, name, labels));
        fitting.flat_map(|(_, readers)| readers).cloned().collect()
    }

    /// Begins a list.
    pub(super) fn begin(&mut self) {
        self.relist = Some(HashSet::new());
    }

    /// Ends a list. Returns the instances that are concerned.
    pub(super) fn end(&mut self) -> HashSet<InstanceKey> {
        let listed = self.relist.take().unwrap_or_default();
        let gone: Vec<Name> = self.objects.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        let mut concerned = HashSet::new();
        for name in gone {
            concerned.extend(self.take(&name));
        }
        if self.watch.listed(WatchState::Watching) {
            concerned = self.everybody();
        }
        concerned
    }

    /// Takes an object as it is now. Returns the instances that are concerned.
    pub(super) fn put(&mut self, object: Object) -> HashSet<InstanceKey> {
        let name: Name = (object.referred.namespace.clone(), object.referred.name.clone());
        if !self.filling.is_empty() {
            self.touched.insert(name.clone());
        }
        self.learn(name, object)
    }

    fn learn(&mut self, name: Name, object: Object) -> HashSet<InstanceKey> {
        if let Some(listed) = &mut self.relist {
            listed.insert(name.clone());
        }
        let wanted =
            self.readers.keys().any(|selector| fits(selector, self.is_shared, &name, object.labels.as_ref()));
        if !wanted {
            // The object may have lost a label that a selector needs.
            return self.take(&name);
        }
        let mut concerned = HashSet::new();
        if let Some(present) = self.objects.get_mut(&name) {
            if older(&object.resource_version, &present.resource_version) {
                return concerned;
            }
            if *present.referred == object.referred && present.labels == object.labels {
                present.resource_version = object.resource_version;
                return concerned;
            }
            let labels = present.labels.clone();
            concerned = self.readers_of(&name, labels.as_ref());
        }
        concerned.extend(self.readers_of(&name, object.labels.as_ref()));
        let Object { referred, resource_version, labels } = object;
        self.objects.insert(name, Kept { referred: Arc::new(referred), resource_version, labels });
        concerned
    }

    /// Removes an object that was deleted at that resourceVersion. Returns the instances that are concerned.
    pub(super) fn delete(&mut self, name: &Name, resource_version: &str) -> HashSet<InstanceKey> {
        if !self.filling.is_empty() {
            self.touched.insert(name.clone());
        }
        // The event is a late one, of an older object.
        if self.objects.get(name).is_some_and(|kept| older(resource_version, &kept.resource_version)) {
            return HashSet::new();
        }
        self.take(name)
    }

    fn take(&mut self, name: &Name) -> HashSet<InstanceKey> {
        let Some(kept) = self.objects.remove(name) else { return HashSet::new() };
        self.readers_of(name, kept.labels.as_ref())
    }

    /// Takes the separate list of a selector. Returns the instances that are concerned.
    pub(super) fn fill(&mut self, selector: &ResourceSelector, objects: Vec<Object>) -> HashSet<InstanceKey> {
        if !self.filling.contains(selector) {
            return HashSet::new();
        }
        let mut concerned: HashSet<InstanceKey> = self.readers.get(selector).cloned().unwrap_or_default();
        for object in objects {
            let name: Name = (object.referred.namespace.clone(), object.referred.name.clone());
            // For a touched object the watch has shown a newer state since.
            if !self.touched.contains(&name) {
                concerned.extend(self.learn(name, object));
            }
        }
        self.filled(selector);
        concerned
    }

    fn filled(&mut self, selector: &ResourceSelector) {
        self.filling.remove(selector);
        if self.filling.is_empty() {
            self.touched.clear();
        }
    }

    /// Drops all objects, which can no longer be read, because they may contain secrets.
    pub(super) fn mark_unavailable(&mut self, error: ReadError) -> HashSet<InstanceKey> {
        self.objects.clear();
        if self.watch.mark_unavailable(error) { self.everybody() } else { HashSet::new() }
    }

    /// Notes that the watch fails, perhaps temporarily.
    pub(super) fn mark_degraded(&mut self, error: ReadError) -> HashSet<InstanceKey> {
        if self.watch.mark_degraded(error) { self.everybody() } else { HashSet::new() }
    }
}

/// Whether a selector matches an object of its kind. Of a watch that is not shared the server has matched the objects.
fn fits(
    selector: &ResourceSelector,
    is_shared: bool,
    (namespace, name): &Name,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    !is_shared || selector.fits(namespace.as_deref(), name, labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Gvk;
    use serde_json::{Value, json};

    use crate::children::{FieldProjection, Select};
    use crate::selector::Selector;

    fn want(namespace: &str, name: &str) -> ResourceSelector {
        ResourceSelector {
            gvk: Gvk::new("v1", "Secret"),
            namespace: Some(namespace.into()),
            select: Select::Name(name.into()),
            keep: FieldProjection { paths: Arc::from([]), content: true },
        }
    }

    fn labelled(value: &Value) -> ResourceSelector {
        ResourceSelector { select: Select::Labels(Selector::parse(value).unwrap()), ..want("n", "") }
    }

    fn instance(name: &str) -> InstanceKey {
        InstanceKey { crd: "things.example.org".into(), namespace: Some("n".into()), name: name.into() }
    }

    fn object(name: &str, version: &str, value: i64) -> Object {
        let value = Arc::new(json!({"data": value}));
        let referred = Referred { namespace: Some("n".into()), name: name.into(), value, ready: true };
        Object {
            referred,
            resource_version: version.into(),
            labels: Some([("app".into(), name.into())].into()),
        }
    }

    fn read_objects(is_shared: bool) -> ReadObjects {
        ReadObjects::new(Arc::new(Watch::new("refs".into())), is_shared)
    }

    fn values(source: &ReadObjects, want: &ResourceSelector) -> Vec<i64> {
        match source.find(want) {
            LookupResult::Known(objects) => {
                objects.iter().map(|o| o.value["data"].as_i64().unwrap()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_shared_watch_keeps_only_objects_that_are_read() {
        let mut source = read_objects(true);
        assert!(!source.add(&want("n", "a"), &instance("one")));
        source.begin();
        source.put(object("a", "1", 1));
        source.put(object("b", "2", 2));
        assert_eq!(source.end(), [instance("one")].into());
        assert_eq!(source.objects.len(), 1, "nobody asks for b");

        // A late selector is listed separately; events of the watch are newer.
        let late = labelled(&json!({"app": "b"}));
        assert!(source.add(&late, &instance("two")));
        assert!(matches!(source.find(&late), LookupResult::Pending));
        source.put(object("b", "9", 9));
        assert_eq!(source.fill(&late, vec![object("b", "2", 2)]), [instance("two")].into());
        assert_eq!(values(&source, &late), [9]);
        assert_eq!(source.delete(&("n".to_owned().into_boxed_str().into(), "b".into()), "8"), [].into());
        assert_eq!(values(&source, &late), [9], "a late word of a former one");

        // Without readers nothing is kept.
        assert!(source.remove(&late, &instance("two")));
        assert_eq!(source.objects.len(), 1);
        assert_eq!(source.put(object("a", "10", 1)), [].into(), "nothing that is read has changed");
        assert_eq!(source.put(object("a", "11", 5)), [instance("one")].into());
        assert!(source.remove(&want("n", "a"), &instance("one")) && source.is_idle());
    }

    #[test]
    fn a_late_list_does_not_bring_back_deleted_objects() {
        let mut source = read_objects(true);
        source.add(&want("n", "a"), &instance("one"));
        source.begin();
        source.end();
        let late = want("n", "b");
        assert!(source.add(&late, &instance("two")));
        source.delete(&(Some("n".into()), "b".into()), "5");
        source.fill(&late, vec![object("b", "4", 4)]);
        assert_eq!(values(&source, &late), [0; 0]);
    }

    #[test]
    fn objects_of_an_unavailable_watch_are_dropped_and_of_a_degraded_one_are_kept() {
        let mut source = read_objects(false);
        let want = labelled(&json!({"app": "a"}));
        source.add(&want, &instance("one"));
        assert_eq!(
            source.mark_degraded(ReadError::Failed("500".into())),
            [instance("one")].into(),
            "nobody waits in silence"
        );
        source.begin();
        source.put(object("a", "1", 1));
        assert_eq!(source.end(), [instance("one")].into());
        assert_eq!(source.mark_degraded(ReadError::Failed("500".into())), [].into());
        assert_eq!(values(&source, &want), [1]);
        assert_eq!(source.mark_unavailable(ReadError::Forbidden("no".into())), [instance("one")].into());
        assert!(source.objects.is_empty() && matches!(source.find(&want), LookupResult::Unknown(_)));
        assert_eq!(source.mark_unavailable(ReadError::Forbidden("no".into())), [].into(), "no news");
    }
}
