//! Stored revisions of packages. The revision of each active package with plans is stored before its first run ([`store`]).
//! Earlier revisions that instances still use are loaded from the cluster ([`load`]): each once, shared by all instances,
//! and dropped when no instance uses it any more.
//!
//! Expressions of an earlier revision may read other fields of live children, and its children may have other kinds. So a
//! loaded revision is published first ([`super::registry::Registered::earlier`]), and only then seen by decisions.

mod known;
mod load;
mod prune;
mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::watcher::Event;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::effects::Effects;
use super::index::InstanceKey;
use super::raw::Raw;
use super::scheduler::{Key, Scheduler};
use crate::api::Gvk;
use crate::backoff::{Backoff, Retry};
use crate::children::plans::Revision;
use crate::package::{Package, store as stored};
use known::{KnownObjects, Versions};
pub(crate) use load::load_revision;
pub(super) use load::{Failure, Loader, Unloadable};

/// How long after a failure a revision is loaded again.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// How many failures of the API server pass in silence.
const PATIENCE: u32 = 3;

/// The stored revisions that this process knows.
pub(super) struct Revisions {
    effects: Arc<Effects>,
    scheduler: Arc<Scheduler>,
    /// The manager's namespace.
    namespace: String,
    set: Mutex<Set>,
    /// The revisions and parts that are known to be stored.
    stored: Mutex<KnownObjects>,
    /// The revision of each package from which instances are being moved: it need not be read.
    former: Mutex<BTreeMap<String, Arc<Package>>>,
    /// The packages that have handed a kind over to each package: a revision that an instance uses may be one of theirs.
    former_packages: Mutex<BTreeMap<String, BTreeSet<Arc<str>>>>,
}

#[derive(Default)]
struct Set {
    entries: BTreeMap<Name, Entry>,
    /// What each instance uses.
    uses: HashMap<InstanceKey, Vec<Name>>,
}

/// A package, and a revision of it as [`Package::revision`] writes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    package: Arc<str>,
    revision: Arc<str>,
}

struct Entry {
    users: HashSet<InstanceKey>,
    state: State,
    task: JoinHandle<()>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum State {
    Loading,
    /// The package is loaded, and not published yet.
    Restored(Arc<Package>),
    Known(Revision),
}

impl State {
    fn package(&self) -> Option<&Arc<Package>> {
        match self {
            Self::Restored(package) | Self::Known(Revision::Loaded(package)) => Some(package),
            Self::Loading | Self::Known(Revision::Missing(_) | Revision::Unreadable(_)) => None,
        }
    }
}

impl Revisions {
    pub(super) fn new(effects: Arc<Effects>, scheduler: Arc<Scheduler>, namespace: String) -> Self {
        Self {
            effects,
            scheduler,
            namespace,
            set: Mutex::default(),
            stored: Mutex::default(),
            former: Mutex::default(),
            former_packages: Mutex::default(),
        }
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self) -> MutexGuard<'_, KnownObjects> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::manager) fn loader(&self) -> Loader<'_> {
        Loader { cluster: self.effects.clients.own(), namespace: &self.namespace }
    }

    /// Takes in an event of a watch of `OperatorRevision`s or of their parts. Returns the packages with a stored revision that
    /// somebody has changed: see [`Self::restore`].
    pub(super) fn on_event(&self, kind: &Gvk, event: &Event<Raw>) -> Vec<String> {
        self.stored().on_event(kind, event)
    }

    fn formers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Package>>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a revision that another one replaces, for the instances that are not moved yet.
    pub(super) fn keep_former(&self, former: &Arc<Package>) {
        self.formers().insert(former.name.clone(), Arc::clone(former));
    }

    /// Drops the former revision of a package, of which no instance is to be moved any more. Returns whether
    /// one was kept.
    pub(super) fn drop_former(&self, package: &str) -> bool {
        self.formers().remove(package).is_some()
    }

    /// Sets the packages that have handed a kind over to each package.
    pub(super) fn set_former_packages(&self, all: BTreeMap<String, BTreeSet<Arc<str>>>) {
        *self.former_packages.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// The packages whose revision an instance of a package may use.
    fn packages_of(&self, package: &Arc<str>) -> Vec<Arc<str>> {
        let all = self.former_packages.lock().unwrap_or_else(PoisonError::into_inner);
        let former = all.get(&**package).into_iter().flatten();
        std::iter::once(package).chain(former).cloned().collect()
    }

    /// Adds a revision to those that an instance uses: see [`Self::load_for`].
    pub(super) fn also_load_for(self: &Arc<Self>, key: &InstanceKey, package: &str, revision: &str) {
        let used = self.set().uses.get(key).cloned().unwrap_or_default();
        let mut revisions: BTreeSet<String> = used.iter().map(|name| name.revision.to_string()).collect();
        if revisions.insert(revision.to_owned()) {
            self.load_for(key, package, &revisions);
        }
    }

    /// What is known of the revisions that an instance uses, as far as [`Self::load_for`] was called for it.
    pub(super) fn known(&self, key: &InstanceKey) -> BTreeMap<Arc<str>, Revision> {
        let set = self.set();
        let known = |name: &Name| match &set.entries.get(name)?.state {
            State::Known(revision) => Some((Arc::clone(&name.revision), revision.clone())),
            State::Loading | State::Restored(_) => None,
        };
        set.uses.get(key).into_iter().flatten().filter_map(known).collect()
    }

    /// Sets the revisions of its package that an instance uses. Returns whether one that is new to the
    /// instance is known already.
    pub(super) fn load_for(
        self: &Arc<Self>,
        key: &InstanceKey,
        package: &str,
        revisions: &BTreeSet<String>,
    ) -> bool {
        let mut set = self.set();
        if revisions.is_empty() && !set.uses.contains_key(key) {
            return false;
        }
        let name = |revision: &String| Name { package: package.into(), revision: revision.as_str().into() };
        let names: Vec<Name> = revisions.iter().map(name).collect();
        let before = set.uses.get(key).cloned().unwrap_or_default();
        if before == names {
            return false;
        }
        let mut has_known = false;
        for name in names.iter().filter(|name| !before.contains(name)) {
            let entry = set.entries.entry(name.clone()).or_insert_with(|| Entry {
                users: HashSet::new(),
                state: State::Loading,
                task: tokio::spawn(Arc::clone(self).load(name.clone())),
            });
            entry.users.insert(key.clone());
            has_known |= matches!(entry.state, State::Known(_));
        }
        for name in before.iter().filter(|name| !names.contains(name)) {
            let Some(entry) = set.entries.get_mut(name) else { continue };
            entry.users.remove(key);
            if entry.users.is_empty() {
                info!(package = %name.package, revision = %name.revision, "no instance uses the revision any more");
                set.entries.remove(name);
                self.scheduler.queue.add(Key::Crd(Arc::clone(&key.crd)));
            }
        }
        if names.is_empty() {
            set.uses.remove(key);
        } else {
            set.uses.insert(key.clone(), names);
        }
        has_known
    }

    /// Forgets an instance that is gone.
    pub(super) fn forget(self: &Arc<Self>, key: &InstanceKey) {
        self.load_for(key, "", &BTreeSet::new());
    }

    /// The earlier revisions of a package that are loaded, for the registry.
    pub(super) fn of(&self, package: &str) -> Vec<Arc<Package>> {
        let set = self.set();
        let entries = set.entries.iter().filter(|(name, _)| *name.package == *package);
        let mut all: Vec<Arc<Package>> =
            entries.filter_map(|(_, entry)| entry.state.package().cloned()).collect();
        let former = self.formers().get(package).cloned();
        all.extend(former.filter(|former| all.iter().all(|known| known.digest != former.digest)));
        all
    }

    /// Lets decisions use these revisions, which the registry has now. Returns the instances that waited for
    /// that.
    pub(super) fn published(&self, packages: &[Arc<Package>]) -> HashSet<InstanceKey> {
        let mut waiting = HashSet::new();
        for entry in self.set().entries.values_mut() {
            if let State::Restored(package) = &entry.state
                && packages.iter().any(|published| Arc::ptr_eq(published, package))
            {
                entry.state = State::Known(Revision::Loaded(Arc::clone(package)));
                waiting.extend(entry.users.iter().cloned());
            }
        }
        waiting
    }

    /// Loads a revision, until that succeeds.
    async fn load(self: Arc<Self>, name: Name) {
        let mut retry = Retry::new(AGAIN);
        let mut failures = 0;
        let mut unloadable = None;
        let former = self.formers().get(&*name.package).cloned();
        if let Some(former) = former.filter(|former| former.revision() == *name.revision) {
            return self.change(&name, State::Restored(former));
        }
        let loader = self.loader();
        loop {
            match loader.load_once(&self.packages_of(&name.package), &name.revision, &mut unloadable).await {
                Ok(package) => {
                    info!(package = %name.package, revision = %name.revision, "an earlier revision is loaded");
                    return self.change(&name, State::Restored(Arc::new(package)));
                }
                Err(Failure::Lost { message, .. }) => self.failed(&name, Revision::Missing(message.into())),
                Err(Failure::Call { message, is_temporary }) => {
                    failures += 1;
                    if !is_temporary || failures > PATIENCE {
                        self.failed(&name, Revision::Unreadable(message.into()));
                    }
                }
            }
            tokio::time::sleep(retry.failed()).await;
        }
    }

    /// Records that a revision cannot be loaded, for a reason that may be known already.
    fn failed(&self, name: &Name, failed: Revision) {
        let reason = |revision: &Revision| match revision {
            Revision::Missing(why) | Revision::Unreadable(why) => Some(Arc::clone(why)),
            Revision::Loaded(_) => None,
        };
        let why = reason(&failed);
        let known = self.set().entries.get(name).and_then(|entry| match &entry.state {
            State::Known(known) => reason(known),
            State::Loading | State::Restored(_) => None,
        });
        if known != why {
            let why = why.unwrap_or_default();
            warn!(package = %name.package, revision = %name.revision, "an earlier revision cannot be loaded: {why}");
            self.change(name, State::Known(failed));
        }
    }

    /// Sets the state of an entry, and queues what follows.
    fn change(&self, name: &Name, state: State) {
        let mut set = self.set();
        let Some(entry) = set.entries.get_mut(name) else { return };
        entry.state = state;
        if let State::Restored(_) = entry.state {
            let crds: HashSet<&Arc<str>> = entry.users.iter().map(|key| &key.crd).collect();
            for crd in crds {
                self.scheduler.queue.add(Key::Crd(Arc::clone(crd)));
            }
        } else {
            self.scheduler.add_all(entry.users.iter().cloned());
        }
    }

    /// The name of the first `OperatorRevision` that an instance uses beside the active one.
    pub(super) fn used_by(&self, key: &InstanceKey) -> Option<String> {
        let set = self.set();
        set.uses.get(key)?.first().map(|name| stored::name_of(&name.package, &name.revision))
    }

    /// Ends all tasks.
    pub(super) fn stop(&self) {
        let mut set = self.set();
        set.entries.clear();
        set.uses.clear();
    }
}
