//! One watch, what it has brought, and who reads that.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::AbortHandle;

use crate::children::{Blind, Found, Keep, Referred, Select, Want};
use crate::manager::index::{InstanceKey, older};
use crate::manager::watch::Watch;

/// So many names of one namespace have a watch each,
const NAMES: usize = 16;
/// so many watches by name or by labels has a kind,
const SINGLE: usize = 64;
/// and so many of whole namespaces.
const SPACES: usize = 16;

/// What is watched.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SourceKey {
    pub(super) api_version: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) namespace: Option<Box<str>>,
    /// `None` is a watch that many share.
    pub(super) select: Option<Select>,
    pub(super) keep: Keep,
}

impl std::fmt::Display for SourceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.api_version, self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        match &self.select {
            Some(Select::Name(name)) => write!(f, " {name}"),
            Some(Select::Labels(selector)) => write!(f, " with {selector}"),
            None => Ok(()),
        }
    }
}

impl SourceKey {
    fn same_kind(&self, want: &Want) -> bool {
        self.kind == want.kind && self.api_version == want.api_version
    }
}

/// Which watch shall bring what is wanted; `count` tells how many there are of a sort.
pub(super) fn route(want: &Want, count: impl Fn(&dyn Fn(&SourceKey) -> bool) -> usize) -> SourceKey {
    let key = |namespace: Option<Box<str>>, select: Option<Select>| SourceKey {
        api_version: Arc::clone(&want.api_version),
        kind: Arc::clone(&want.kind),
        namespace,
        select,
        keep: want.keep.clone(),
    };
    let single = |key: &SourceKey| key.same_kind(want) && key.select.is_some();
    let here = |key: &SourceKey| single(key) && key.namespace == want.namespace;
    if count(&here) < NAMES && count(&single) < SINGLE {
        return key(want.namespace.clone(), Some(want.select.clone()));
    }
    let shared = key(want.namespace.clone(), None);
    let spaces = |key: &SourceKey| key.same_kind(want) && key.select.is_none();
    if count(&|key| *key == shared) > 0 || count(&spaces) < SPACES { shared } else { key(None, None) }
}

/// Whether the objects are known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The first list is under way.
    Pending,
    /// Listed, and watched since.
    Known,
    /// They cannot be read.
    Unknown(Blind),
}

/// Namespace and name.
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
    /// Of a shared watch the selectors that it fits are found by them.
    labels: Option<BTreeMap<String, String>>,
}

/// A watch.
pub(super) struct Source {
    /// Tells it from a former one of the same key.
    pub(super) generation: u64,
    /// Whether it brings more than one want asks for.
    is_shared: bool,
    pub(super) watch: Arc<Watch>,
    task: AbortHandle,
    state: State,
    objects: BTreeMap<Name, Kept>,
    readers: HashMap<Want, HashSet<InstanceKey>>,
    /// What a list under way has brought.
    relist: Option<HashSet<Name>>,
    /// Wants that the watch has passed by and that are being listed on their own.
    filling: HashSet<Want>,
    /// What the watch has told of since the oldest of these lists began.
    touched: HashSet<Name>,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Source {
    pub(super) fn start(is_shared: bool, spawn: impl FnOnce(u64) -> (Arc<Watch>, AbortHandle)) -> Self {
        static GENERATION: AtomicU64 = AtomicU64::new(1);
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        let (watch, task) = spawn(generation);
        Self {
            generation,
            is_shared,
            watch,
            task,
            state: State::Pending,
            objects: BTreeMap::new(),
            readers: HashMap::new(),
            relist: None,
            filling: HashSet::new(),
            touched: HashSet::new(),
        }
    }

    /// A reader more; `true` if what it wants must be listed on its own.
    pub(super) fn add(&mut self, want: &Want, key: &InstanceKey) -> bool {
        let is_new = !self.readers.contains_key(want);
        self.readers.entry(want.clone()).or_default().insert(key.clone());
        // Also while a list is under way: a page may have passed already.
        let passed = self.is_shared && is_new && (self.state == State::Known || self.relist.is_some());
        if passed {
            self.filling.insert(want.clone());
        }
        passed
    }

    /// A reader less; `true` if it was the last of this want.
    pub(super) fn remove(&mut self, want: &Want, key: &InstanceKey) -> bool {
        let Some(readers) = self.readers.get_mut(want) else { return false };
        readers.remove(key);
        if !readers.is_empty() {
            return false;
        }
        self.readers.remove(want);
        self.filled(want);
        let (readers, is_shared) = (&self.readers, self.is_shared);
        self.objects.retain(|name, kept| {
            readers.keys().any(|want| fits(want, is_shared, name, kept.labels.as_ref()))
        });
        true
    }

    pub(super) fn is_idle(&self) -> bool {
        self.readers.is_empty()
    }

    pub(super) fn find(&self, want: &Want) -> Found {
        match &self.state {
            State::Unknown(blind) => Found::Unknown(blind.clone()),
            State::Pending => Found::Pending,
            State::Known if self.filling.contains(want) => Found::Pending,
            State::Known => Found::Known(
                self.objects
                    .iter()
                    .filter(|(name, kept)| fits(want, self.is_shared, name, kept.labels.as_ref()))
                    .map(|(_, kept)| Arc::clone(&kept.referred))
                    .collect(),
            ),
        }
    }

    fn everybody(&self) -> HashSet<InstanceKey> {
        self.readers.values().flatten().cloned().collect()
    }

    fn readers_of(&self, name: &Name, labels: Option<&BTreeMap<String, String>>) -> HashSet<InstanceKey> {
        let fitting = self.readers.iter().filter(|(want, _)| fits(want, self.is_shared, name, labels));
        fitting.flat_map(|(_, readers)| readers).cloned().collect()
    }

    /// A list begins.
    pub(super) fn begin(&mut self) {
        self.relist = Some(HashSet::new());
    }

    /// A list is complete.
    pub(super) fn end(&mut self) -> HashSet<InstanceKey> {
        let listed = self.relist.take().unwrap_or_default();
        let gone: Vec<Name> = self.objects.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        let mut concerned = HashSet::new();
        for name in gone {
            concerned.extend(self.take(&name));
        }
        if std::mem::replace(&mut self.state, State::Known) != State::Known {
            concerned = self.everybody();
        }
        concerned
    }

    /// An object exists and is like that.
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
            self.readers.keys().any(|want| fits(want, self.is_shared, &name, object.labels.as_ref()));
        if !wanted {
            // It may have lost a label.
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

    /// An object is gone, at that resourceVersion.
    pub(super) fn delete(&mut self, name: &Name, resource_version: &str) -> HashSet<InstanceKey> {
        if !self.filling.is_empty() {
            self.touched.insert(name.clone());
        }
        // A late word of a former object.
        if self.objects.get(name).is_some_and(|kept| older(resource_version, &kept.resource_version)) {
            return HashSet::new();
        }
        self.take(name)
    }

    fn take(&mut self, name: &Name) -> HashSet<InstanceKey> {
        let Some(kept) = self.objects.remove(name) else { return HashSet::new() };
        self.readers_of(name, kept.labels.as_ref())
    }

    /// What a want's own list has brought.
    pub(super) fn fill(&mut self, want: &Want, objects: Vec<Object>) -> HashSet<InstanceKey> {
        if !self.filling.contains(want) {
            return HashSet::new();
        }
        let mut concerned: HashSet<InstanceKey> = self.readers.get(want).cloned().unwrap_or_default();
        for object in objects {
            let name: Name = (object.referred.namespace.clone(), object.referred.name.clone());
            // The watch has told of it since: it knows better.
            if !self.touched.contains(&name) {
                concerned.extend(self.learn(name, object));
            }
        }
        self.filled(want);
        concerned
    }

    fn filled(&mut self, want: &Want) {
        self.filling.remove(want);
        if self.filling.is_empty() {
            self.touched.clear();
        }
    }

    /// Nothing can be read now. What was read is not kept: it may be secret.
    pub(super) fn lose(&mut self, blind: Blind) -> HashSet<InstanceKey> {
        self.objects.clear();
        let state = State::Unknown(blind);
        if self.state == state {
            return HashSet::new();
        }
        self.state = state;
        self.everybody()
    }

    /// It does not go well. What was listed once is still good; before that nobody shall wait in silence.
    pub(super) fn falter(&mut self, why: String) -> HashSet<InstanceKey> {
        if self.state == State::Pending { self.lose(Blind::Failed(why)) } else { HashSet::new() }
    }
}

/// Whether an object of the want's kind is one that it wants.
fn fits(
    want: &Want,
    is_shared: bool,
    (namespace, name): &Name,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    if !is_shared {
        // The server has chosen.
        return true;
    }
    // Cluster-scoped objects are everywhere.
    let here = want.namespace.is_none() || namespace.is_none() || want.namespace == *namespace;
    here && match &want.select {
        Select::Name(wanted) => wanted == name,
        Select::Labels(selector) => selector.fits(labels),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    use crate::children::Selector;

    fn want(namespace: &str, name: &str) -> Want {
        Want {
            api_version: "v1".into(),
            kind: "Secret".into(),
            namespace: Some(namespace.into()),
            select: Select::Name(name.into()),
            keep: Keep { paths: Arc::from([]), content: true },
        }
    }

    fn labelled(value: &Value) -> Want {
        Want { select: Select::Labels(Selector::parse(value).unwrap()), ..want("n", "") }
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

    fn source(is_shared: bool) -> Source {
        let task = tokio::spawn(async {}).abort_handle();
        Source::start(is_shared, |_| (Arc::new(Watch::new("refs".into())), task))
    }

    fn values(source: &Source, want: &Want) -> Vec<i64> {
        match source.find(want) {
            Found::Known(objects) => objects.iter().map(|o| o.value["data"].as_i64().unwrap()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_few_are_watched_one_by_one_and_many_together() {
        let mut keys: Vec<SourceKey> = Vec::new();
        let mut add = |namespace: &str, name: &str| {
            let key = route(&want(namespace, name), |like| keys.iter().filter(|key| like(key)).count());
            if !keys.contains(&key) {
                keys.push(key);
            }
            keys.len()
        };
        for number in 0..100 {
            add("a", &format!("s{number}"));
        }
        assert_eq!(add("a", "more"), NAMES + 1, "names of one namespace share one watch");
        for number in 0..1_000 {
            add(&format!("n{number}"), "tls");
        }
        let most = add("x", "tls");
        assert!(most <= SINGLE + SPACES + 2, "{most} watches");
        assert!(keys.iter().any(|key| key.namespace.is_none() && key.select.is_none()));
    }

    #[tokio::test]
    async fn a_shared_watch_keeps_what_is_asked_for() {
        let mut source = source(true);
        assert!(!source.add(&want("n", "a"), &instance("one")));
        source.begin();
        source.put(object("a", "1", 1));
        source.put(object("b", "2", 2));
        assert_eq!(source.end(), [instance("one")].into());
        assert_eq!(source.objects.len(), 1, "nobody asks for b");

        // A latecomer is listed on its own; what the watch tells meanwhile is newer.
        let late = labelled(&json!({"app": "b"}));
        assert!(source.add(&late, &instance("two")));
        assert!(matches!(source.find(&late), Found::Pending));
        source.put(object("b", "9", 9));
        assert_eq!(source.fill(&late, vec![object("b", "2", 2)]), [instance("two")].into());
        assert_eq!(values(&source, &late), [9]);
        assert_eq!(source.delete(&("n".to_owned().into_boxed_str().into(), "b".into()), "8"), [].into());
        assert_eq!(values(&source, &late), [9], "a late word of a former one");

        // Who asks no more keeps nothing alive.
        assert!(source.remove(&late, &instance("two")));
        assert_eq!(source.objects.len(), 1);
        assert_eq!(source.put(object("a", "10", 1)), [].into(), "nothing that is read has changed");
        assert_eq!(source.put(object("a", "11", 5)), [instance("one")].into());
        assert!(source.remove(&want("n", "a"), &instance("one")) && source.is_idle());
    }

    #[tokio::test]
    async fn what_was_deleted_while_a_latecomer_was_listed_stays_away() {
        let mut source = source(true);
        source.add(&want("n", "a"), &instance("one"));
        source.begin();
        source.end();
        let late = want("n", "b");
        assert!(source.add(&late, &instance("two")));
        source.delete(&(Some("n".into()), "b".into()), "5");
        source.fill(&late, vec![object("b", "4", 4)]);
        assert_eq!(values(&source, &late), [0; 0]);
    }

    #[tokio::test]
    async fn what_is_refused_is_forgotten_and_what_falters_is_not() {
        let mut source = source(false);
        let want = labelled(&json!({"app": "a"}));
        source.add(&want, &instance("one"));
        assert_eq!(source.falter("500".into()), [instance("one")].into(), "nobody waits in silence");
        source.begin();
        source.put(object("a", "1", 1));
        assert_eq!(source.end(), [instance("one")].into());
        assert_eq!(source.falter("500".into()), [].into());
        assert_eq!(values(&source, &want), [1]);
        assert_eq!(source.lose(Blind::Forbidden("no".into())), [instance("one")].into());
        assert!(source.objects.is_empty() && matches!(source.find(&want), Found::Unknown(_)));
        assert_eq!(source.lose(Blind::Forbidden("no".into())), [].into(), "no news");
    }
}
