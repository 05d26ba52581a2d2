//! The set of watches: one for each [`WatchKey`], opened when something needs what it brings, closed when nothing does.
//!
//! Instances and children go into the index of the store; active packages need them. Objects that refs read stay here
//! while an instance reads them ([`read_objects`]). Events of CRDs go to a subscriber. All watches have the same task
//! ([`task`]), states ([`watch`]) and retries ([`resilient`]).

mod apis;
mod discovery;
mod key;
mod places;
mod poll_places;
mod polls;
mod read_objects;
mod resilient;
mod set;
mod streaming;
mod task;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

use kube::runtime::watcher::Event;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing::{debug, error, info};

use super::contained::{RESTART, contained};
use super::effects::Effects;
use super::index::InstanceKey;
use super::owned_kinds::OwnedKind;
use super::plan_api;
use super::raw::Raw;
use super::registry::Registered;
use super::revisions::Revisions;
use super::scheduler::Scheduler;
use super::store::Store;
use crate::api::{ApiKind, CallError, Gvk};
use crate::children::{LookupResult, Poll, PollResult, ReadError, ResourceSelector};
use apis::ServedApis;
use key::{Projection, Reader, WatchKey};
use polls::Polls;
use read_objects::ReadObjects;
pub(super) use set::Watches;
use set::{Entry, Reads, Route, Set};
use task::Task;
use watch::Watch;
pub(super) use watch::WatchState;

/// What to do with a watch that is open already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfOpen {
    /// Keep it.
    Keep,
    /// List all objects again: the server shows them differently, though they have not changed.
    Relist,
}

impl Entry {
    fn start(
        watches: &Arc<Watches>,
        key: &WatchKey,
        watch: Option<Arc<Watch>>,
        former: Option<JoinHandle<()>>,
    ) -> Self {
        debug!(watch = %key, "watching");
        let watch = watch.unwrap_or_else(|| Arc::new(Watch::new(key.to_string())));
        let (watches, owned) = (Arc::clone(watches), key.clone());
        let task = supervise(Arc::clone(&watch), former, move |watch| {
            let task = Task { watches: Arc::clone(&watches), key: owned.clone(), watch };
            async move { task.run().await }
        });
        let read = ReadObjects::new(Arc::clone(&watch), key.select.is_none());
        Self { watch, task, is_closing: false, read }
    }
}

impl Watches {
    /// Without any watch.
    pub(super) fn new(
        store: Arc<Store>,
        effects: Arc<Effects>,
        scheduler: Arc<Scheduler>,
        namespace: String,
    ) -> Self {
        let (set, discover, apis) = (Mutex::default(), Notify::new(), ServedApis::default());
        let polls = Arc::new(Polls::new(Arc::clone(&effects), Arc::clone(&scheduler)));
        let revisions = Revisions::new(Arc::clone(&effects), Arc::clone(&scheduler), namespace);
        let revisions = Arc::new(revisions);
        let (crds, operators) = (OnceLock::new(), OnceLock::new());
        Self { store, effects, scheduler, set, discover, apis, crds, operators, polls, revisions }
    }

    /// Watches the instances of a CRD.
    pub(super) fn open_instances(self: &Arc<Self>, registered: &Arc<Registered>, if_open: IfOpen) {
        self.store.index().name_kind(&registered.crd, &registered.kind_label());
        let key = WatchKey::instances(registered);
        let mut set = self.set();
        // The package may ask for another version than the one that was watched.
        let former = set.instances_of(&registered.crd).filter(|former| *former != key);
        let former = former.and_then(|former| set.close(&former));
        set.open(self, &key, if_open, former);
    }

    /// Watches the children of a kind: those of all packages together, unless packages have accounts.
    pub(super) fn open_children(self: &Arc<Self>, gvk: &Gvk, if_open: IfOpen) {
        let keys = self.keys_of(gvk);
        let mut set = self.set();
        for key in keys {
            set.open(self, &key, if_open, None);
        }
    }

    /// The package whose account reads what an instance reads; `None` if packages have no accounts.
    fn reader(&self, key: &InstanceKey) -> Option<Reader> {
        if !self.effects.clients.has_accounts() {
            return None;
        }
        // An instance whose kind is not registered reads nothing.
        let package = Arc::clone(&self.store.registry().get(&key.crd)?.package_name);
        let is_limited = self.served_by_name(&package).is_some();
        Some(Reader { package, is_limited })
    }

    /// Lists the children of a kind again after its CRD has changed: the server may make something else of a
    /// desired object than before, though no object shows it. Nothing is decided until then.
    pub(super) fn reopen_children(self: &Arc<Self>, gvk: &Gvk) {
        self.store.index().unsettle_kind(gvk);
        self.relist_children(gvk);
    }

    /// Lists the children of a kind again, because more is kept of them than before. Nothing is decided until
    /// then.
    pub(super) fn relist_children(self: &Arc<Self>, gvk: &Gvk) {
        let keys = self.keys_of(gvk);
        let mut set = self.set();
        for key in keys {
            if let Some(entry) = set.entries.get(&key) {
                entry.watch.reset();
            }
            set.open(self, &key, IfOpen::Relist, None);
        }
    }

    /// Watches the metadata of CRDs.
    pub(super) fn open_crds(self: &Arc<Self>, subscriber: impl Fn(Event<Raw>) + Send + Sync + 'static) {
        // A manager has one subscriber.
        let _ = self.crds.set(Box::new(subscriber));
        let kind = self.store.kinds.insert(ApiKind::crd());
        self.set().open(self, &WatchKey::crds(&kind), IfOpen::Keep, None);
    }

    /// Watches the metadata of `Operator`s and their revisions.
    pub(super) fn open_operators(
        self: &Arc<Self>,
        kinds: &[ApiKind],
        subscriber: impl Fn(&Gvk, Event<Raw>) + Send + Sync + 'static,
    ) {
        // A manager has one subscriber.
        let _ = self.operators.set(Box::new(subscriber));
        for kind in kinds {
            self.open_operator_kind(kind);
        }
    }

    /// Watches one more kind for the subscriber of [`Self::open_operators`].
    pub(super) fn open_operator_kind(self: &Arc<Self>, kind: &ApiKind) {
        let kind = self.store.kinds.insert(kind.clone());
        self.set().open(self, &WatchKey::operators(&kind), IfOpen::Keep, None);
    }

    /// Watches the parts of stored revisions, in the manager's namespace, for the same subscriber.
    pub(super) fn open_parts(self: &Arc<Self>, namespace: &str) {
        let kind = self.store.kinds.insert(ApiKind::built_in("v1", "ConfigMap"));
        self.set().open(self, &WatchKey::parts(&kind, namespace), IfOpen::Keep, None);
    }

    /// Watches the roles or bindings of packages, in all namespaces or in one, for the same subscriber.
    pub(super) fn open_grants(self: &Arc<Self>, kind: &ApiKind, namespace: Option<&str>) {
        let kind = self.store.kinds.insert(kind.clone());
        self.set().open(self, &WatchKey::grants(&kind, namespace), IfOpen::Keep, None);
    }

    /// Installs the API of plans, and watches its admission policies from then on.
    ///
    /// # Errors
    /// The API server refuses a part of it, or cannot be reached.
    pub(super) async fn install_plan_api(self: &Arc<Self>) -> Result<(), CallError> {
        self.effects.plan_api.install(self.effects.clients.own(), &self.scheduler.clock).await?;
        for (kind, name) in plan_api::watched() {
            let kind = self.store.kinds.insert(kind);
            self.set().open(self, &WatchKey::policy(&kind, name), IfOpen::Keep, None);
        }
        Ok(())
    }

    /// Watches the APIs that the server aggregates.
    fn open_api_services(self: &Arc<Self>, kind: &ApiKind) -> Arc<Watch> {
        Arc::clone(&self.set().open(self, &WatchKey::api_services(kind), IfOpen::Keep, None).watch)
    }

    /// Ends the watch of the instances of a CRD that is gone.
    pub(super) fn close_instances(&self, crd: &str) {
        let mut set = self.set();
        if let Some(key) = set.instances_of(crd) {
            set.close(&key);
        }
    }

    /// Ends the watches of children of all kinds but these; what they have brought leaves the index.
    pub(super) fn keep_children(self: &Arc<Self>, kinds: &BTreeSet<Gvk>) {
        let needed: HashSet<WatchKey> = kinds.iter().flat_map(|gvk| self.keys_of(gvk)).collect();
        self.close_unneeded(|key| key.projection == Projection::Child && !needed.contains(key));
    }

    /// Watches these objects, which belong to instances and are kept whole, and no others of this sort. Each object queues
    /// the instance that it names. [`Store::owned_by`] returns them.
    pub(super) fn watch_owned(self: &Arc<Self>, kinds: &[OwnedKind]) {
        let mut needed: HashSet<WatchKey> = kinds.iter().map(WatchKey::owned).collect();
        needed.extend(self.set().always.iter().cloned());
        self.close_unneeded(|key| matches!(key.projection, Projection::Owned(_)) && !needed.contains(key));
        let mut set = self.set();
        for key in &needed {
            set.open(self, key, IfOpen::Keep, None);
        }
    }

    /// Watches the objects of one such kind until the manager stops, whatever packages need.
    pub(super) fn watch_owned_always(self: &Arc<Self>, kind: &OwnedKind) {
        let key = WatchKey::owned(kind);
        let mut set = self.set();
        set.open(self, &key, IfOpen::Keep, None);
        set.always.insert(key);
    }

    /// Ends watches. What they have brought leaves the store.
    fn close_unneeded(self: &Arc<Self>, is_unneeded: impl Fn(&WatchKey) -> bool) {
        let mut set = self.set();
        let is_unneeded = |(key, entry): &(&WatchKey, &Entry)| !entry.is_closing && is_unneeded(key);
        let unneeded: Vec<WatchKey> =
            set.entries.iter().filter(is_unneeded).map(|(key, _)| key.clone()).collect();
        for key in unneeded {
            let Some(Entry { watch, task: former, read, .. }) = set.entries.remove(&key) else { continue };
            let (gvk, is_child) = (key.gvk.clone(), key.projection == Projection::Child);
            info!(watch = %key, "no longer watched: no package uses it");
            former.abort();
            let this = Arc::clone(self);
            let part = key.child_part();
            let task = tokio::spawn(async move {
                let _ = former.await;
                if !is_child {
                    return this.store.owned().drop_kind(&gvk);
                }
                // With accounts another watch may bring the same objects, in other namespaces or for another package.
                let watched = if part.kind.is_some() { this.watched_parts(&gvk) } else { Vec::new() };
                this.store.index().drop_kind(&gvk, &part, &watched);
            });
            set.entries.insert(key, Entry { watch, task, is_closing: true, read });
        }
    }

    /// Whether objects that [`Self::watch_owned`] watches are known.
    pub(super) fn owned_state(&self, kind: &OwnedKind) -> WatchState {
        self.state_of(&WatchKey::owned(kind))
    }

    /// Whether the instances of a CRD are known.
    pub(super) fn lists_instances(&self, registered: &Registered) -> bool {
        self.state_of(&WatchKey::instances(registered)) == WatchState::Watching
    }

    /// Whether objects that [`Self::watch_owned`] watches are known; `None` if they are not watched.
    pub(super) fn open_owned_state(&self, kind: &OwnedKind) -> Option<WatchState> {
        let set = self.set();
        let entry = set.entries.get(&WatchKey::owned(kind)).filter(|entry| !entry.is_closing)?;
        Some(entry.watch.state())
    }

    fn state_of(&self, key: &WatchKey) -> WatchState {
        let set = self.set();
        let entry = set.entries.get(key);
        entry.filter(|entry| !entry.is_closing).map_or(WatchState::Pending, |entry| entry.watch.state())
    }

    /// Notes that a CRD has come, changed or gone, and with it perhaps an API.
    pub(super) fn crds_changed(&self) {
        self.apis.note_change();
    }

    /// What is known of what an instance reads, as far as [`Self::watch_for`] was called for it.
    pub(super) fn known(&self, key: &InstanceKey) -> BTreeMap<ResourceSelector, LookupResult> {
        let set = self.set();
        let Some(Reads { reader, selectors }) = set.reads.get(key) else { return BTreeMap::new() };
        let find = |selector: &ResourceSelector| {
            let route = set.routes.get(&(reader.clone(), selector.clone()));
            let entry = route.and_then(|route| set.entries.get(route));
            entry.map_or(LookupResult::Pending, |entry| entry.read.find(selector))
        };
        selectors.iter().map(|selector| (selector.clone(), find(selector))).collect()
    }

    /// Sets the objects whose changes queue the instance. Returns whether some of them were not watched for
    /// it before: then they are to be looked up again.
    pub(super) fn watch_for(self: &Arc<Self>, key: &InstanceKey, selectors: &[ResourceSelector]) -> bool {
        let reader = self.reader(key);
        let mut set = self.set();
        let mut before = set.reads.get(key).cloned().unwrap_or_default();
        if before.reader == reader && before.selectors == selectors {
            return false;
        }
        if before.reader != reader {
            // Both readers may use the same watch.
            for selector in std::mem::take(&mut before.selectors) {
                set.unsubscribe(key, &(before.reader.clone(), selector));
            }
        }
        let mut has_new = false;
        let was_read = |selector: &&ResourceSelector| before.selectors.contains(selector);
        for selector in selectors.iter().filter(|selector| !was_read(selector)) {
            has_new = true;
            set.subscribe(self, key, &(reader.clone(), selector.clone()));
        }
        for selector in before.selectors.iter().filter(|selector| !selectors.contains(selector)) {
            set.unsubscribe(key, &(before.reader.clone(), selector.clone()));
        }
        if selectors.is_empty() {
            set.reads.remove(key);
        } else {
            set.reads.insert(key.clone(), Reads { reader, selectors: selectors.to_vec() });
        }
        has_new
    }

    /// What is known of what an instance observes, as far as [`Self::poll_for`] was called for it.
    pub(super) fn observations(&self, key: &InstanceKey) -> HashMap<Arc<Poll>, PollResult> {
        self.polls.known(key)
    }

    /// Sets the observations that are made for the instance. Returns whether one of them has an answer that
    /// the instance did not see before. `is_step_waiting`: whether a step of a run waits for what they say; then they
    /// are made more often than the package says.
    pub(super) fn poll_for(&self, key: &InstanceKey, polls: &[Arc<Poll>], is_step_waiting: bool) -> bool {
        self.polls.poll_for(key, polls, is_step_waiting)
    }

    /// Repeats the observations of an instance, for the next decision of a step: they are pending until they
    /// are answered, and each answer queues the instance. Answers to requests under way do not count. `is_deleting`:
    /// whether the instance is being deleted.
    pub(super) fn refresh(&self, key: &InstanceKey, is_deleting: bool) {
        self.polls.refresh(key, is_deleting);
    }

    /// All observations, for people.
    pub(super) fn view_observations(&self) -> serde_json::Value {
        self.polls.view()
    }

    /// Forgets an instance that is gone.
    pub(super) fn forget(self: &Arc<Self>, key: &InstanceKey) {
        self.store.index().forgotten(key);
        self.watch_for(key, &[]);
        self.poll_for(key, &[], false);
        self.revisions.forget(key);
        drop(self.scheduler.take_state(key));
        self.effects.notify(key, None);
    }

    /// Asks discovery again about kinds that were not served.
    pub(super) fn rediscover(&self) {
        self.discover.notify_waiters();
    }

    /// All watches of objects, by name.
    pub(super) fn view(&self) -> Vec<Arc<Watch>> {
        self.select(|key| {
            !matches!(key.projection, Projection::ApiService | Projection::Crd | Projection::Operator)
        })
    }

    fn select(&self, is_wanted: impl Fn(&WatchKey) -> bool) -> Vec<Arc<Watch>> {
        let set = self.set();
        let open = set.entries.iter().filter(|(key, entry)| !entry.is_closing && is_wanted(key));
        let mut all: Vec<_> = open.map(|(_, entry)| Arc::clone(&entry.watch)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Instances and children that have not been listed yet, and may be soon.
    pub(super) fn unlisted(&self) -> Vec<String> {
        let essential = self.select(WatchKey::is_essential);
        essential.iter().filter(|watch| watch.is_awaited()).map(|watch| watch.name.clone()).collect()
    }

    /// Instances and children that the server does not allow to watch, and why; not those that are the matter of one package.
    pub(super) fn refused(&self) -> Vec<String> {
        self.refusals(|key| key.is_essential() && !self.is_of_package(key))
    }

    /// What the server does not allow to watch or write for packages, and why: a package whose rights are
    /// missing does not keep the manager from working for the others.
    pub(super) fn refused_to_packages(&self) -> Vec<String> {
        let is_followed = |key: &WatchKey| key.projection == Projection::Operator;
        let mut refused =
            self.refusals(|key| key.is_essential() && self.is_of_package(key) || is_followed(key));
        refused.extend(self.effects.refused_statuses());
        refused
    }

    fn is_of_package(&self, key: &WatchKey) -> bool {
        let has_accounts = self.effects.clients.has_accounts();
        has_accounts && matches!(key.projection, Projection::Instance(_) | Projection::Child)
    }

    fn refusals(&self, is_wanted: impl Fn(&WatchKey) -> bool) -> Vec<String> {
        self.select(is_wanted).iter().filter_map(|watch| watch.refusal()).collect()
    }

    /// What the server does not allow the account of a package to watch, and why.
    pub(super) fn refused_of(&self, package: &str) -> Vec<String> {
        let of_account = |key: &WatchKey| {
            let is_own = matches!(key.projection, Projection::Instance(_));
            !is_own && key.part.as_ref().is_some_and(|part| *part.package == *package)
        };
        self.refusals(of_account)
    }

    /// What the server does not allow the manager to watch or write of the instances of a package, and why.
    pub(super) fn refused_to_manager(&self, package: &str) -> Vec<String> {
        let registry = self.store.registry();
        let of_instances = |key: &WatchKey| match &key.projection {
            Projection::Instance(crd) => {
                registry.get(crd).is_some_and(|registered| *registered.package_name == *package)
            }
            _ => false,
        };
        let mut refused = self.refusals(of_instances);
        let of_package = registry.iter().filter(|registered| *registered.package_name == *package);
        refused.extend(of_package.filter_map(|registered| self.effects.refused_status(&registered.crd)));
        refused
    }

    /// Ends all watches.
    pub(super) fn stop(&self) {
        self.apis.stop();
        self.polls.stop();
        self.revisions.stop();
        let mut set = self.set();
        for (_, entry) in set.entries.drain() {
            entry.task.abort();
        }
        set.routes.clear();
        set.reads.clear();
    }
}

impl Set {
    /// Starts the task of a watch, after the end of its former task and of `former`: what they are about to bring must
    /// not come after what the new one has listed.
    fn open(
        &mut self,
        watches: &Arc<Watches>,
        key: &WatchKey,
        if_open: IfOpen,
        former: Option<JoinHandle<()>>,
    ) -> &mut Entry {
        let entry = match self.entries.remove(key) {
            Some(entry) if if_open == IfOpen::Keep && entry.is_open() => entry,
            Some(entry) if entry.is_closing => Entry::start(watches, key, None, Some(entry.task)),
            Some(entry) => {
                entry.task.abort();
                Entry::start(watches, key, Some(entry.watch), Some(entry.task))
            }
            None => Entry::start(watches, key, None, former),
        };
        self.entries.entry(key.clone()).insert_entry(entry).into_mut()
    }

    fn subscribe(&mut self, watches: &Arc<Watches>, key: &InstanceKey, wanted: &Route) {
        let (reader, selector) = wanted;
        let route = match self.routes.get(wanted) {
            Some(route) => route.clone(),
            None => WatchKey::route(selector, reader.as_ref(), |like| {
                self.entries.keys().filter(|key| like(key)).count()
            }),
        };
        let entry = self.open(watches, &route, IfOpen::Keep, None);
        if entry.read.add(selector, key) {
            let watch = Arc::clone(&entry.watch);
            let task = Task { watches: Arc::clone(watches), key: route.clone(), watch };
            let selector = selector.clone();
            tokio::spawn(async move { task.fill(&selector).await });
        }
        self.routes.insert(wanted.clone(), route);
    }

    fn unsubscribe(&mut self, key: &InstanceKey, unwanted: &Route) {
        let Some(route) = self.routes.get(unwanted).cloned() else { return };
        let Some(entry) = self.entries.get_mut(&route) else { return };
        if entry.read.remove(&unwanted.1, key) {
            if entry.read.is_idle() {
                self.close(&route);
            }
            self.routes.remove(unwanted);
        }
    }
}

/// Runs a task after the end of a former one, and starts it again if it panics or ends.
fn supervise<F: Future<Output = ()> + Send>(
    watch: Arc<Watch>,
    former: Option<JoinHandle<()>>,
    run: impl Fn(Arc<Watch>) -> F + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        if let Some(former) = former {
            let _ = former.await;
        }
        loop {
            let panic = contained(run(Arc::clone(&watch))).await.err();
            let panic = panic.as_deref().unwrap_or("none");
            error!(watch = %watch.name, %panic, "a watch ended; this is a bug of Operetta, it is started again");
            watch.failed("it ended", false);
            watch.mark_degraded(ReadError::Failed("its watch ended".into()));
            tokio::time::sleep(RESTART).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_or_ends_is_started_again() {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let watch = Arc::new(Watch::new("x".into()));
        let task = supervise(Arc::clone(&watch), None, move |_| {
            let run = count.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(run > 0, "the first panics");
                if run > 1 {
                    std::future::pending::<()>().await;
                }
            }
        });
        tokio::time::sleep(RESTART * 10).await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        assert_eq!(watch.to_json()["failures"], 2);
        task.abort();
    }
}
