//! The watches that are open, and what reads them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kube::runtime::watcher::Event;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::apis::ServedApis;
use super::key::{Projection, Reader, WatchKey};
use super::polls::Polls;
use super::read_objects::ReadObjects;
use super::watch::Watch;
use crate::api::Gvk;
use crate::children::ResourceSelector;
use crate::manager::effects::Effects;
use crate::manager::index::InstanceKey;
use crate::manager::raw::Raw;
use crate::manager::revisions::Revisions;
use crate::manager::scheduler::Scheduler;
use crate::manager::store::Store;

/// A subscriber to the events of a watch.
pub(super) type Subscriber = Box<dyn Fn(Event<Raw>) + Send + Sync>;

/// A subscriber to the events of several kinds.
pub(super) type KindSubscriber = Box<dyn Fn(&Gvk, Event<Raw>) + Send + Sync>;

/// All watches. They feed the store, and queue the instances that are concerned.
pub(in crate::manager) struct Watches {
    pub(super) store: Arc<Store>,
    pub(super) effects: Arc<Effects>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) set: Mutex<Set>,
    /// Wakes the watches that wait for their kind to be served.
    pub(super) discover: Notify,
    pub(super) apis: ServedApis,
    /// Receives the events of CRDs.
    pub(super) crds: OnceLock<Subscriber>,
    /// Receives the events of `Operator`s and their revisions.
    pub(super) operators: OnceLock<KindSubscriber>,
    pub(super) polls: Arc<Polls>,
    /// The stored revisions of packages.
    pub(in crate::manager) revisions: Arc<Revisions>,
}

#[derive(Default)]
pub(super) struct Set {
    pub(super) entries: HashMap<WatchKey, Entry>,
    /// Which watch brings what an instance reads.
    pub(super) routes: HashMap<Route, WatchKey>,
    /// What each instance reads.
    pub(super) reads: HashMap<InstanceKey, Reads>,
    /// Objects that belong to instances and are watched whatever packages need.
    pub(super) always: HashSet<WatchKey>,
    /// The namespaces, by CRD, that are not served and have instances that are being deleted.
    pub(super) unserved: HashMap<Arc<str>, BTreeSet<Box<str>>>,
}

/// What is read, and the package whose account reads it, if packages have accounts.
pub(super) type Route = (Option<Reader>, ResourceSelector);

/// What an instance reads.
#[derive(Default, Clone)]
pub(super) struct Reads {
    /// The package whose account reads it, if packages have accounts.
    pub(super) reader: Option<Reader>,
    pub(super) selectors: Vec<ResourceSelector>,
}

pub(super) struct Entry {
    pub(super) watch: Arc<Watch>,
    pub(super) task: JoinHandle<()>,
    /// Whether nothing needs the watch any more: its task only removes what it has brought, which must not
    /// happen beside a new watch.
    pub(super) is_closing: bool,
    /// The objects of the watch that refs read.
    pub(super) read: ReadObjects,
}

impl Watches {
    pub(super) fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is read of a watch; `None` if it was closed meanwhile.
    pub(super) fn change(
        &self,
        key: &WatchKey,
        watch: &Arc<Watch>,
        change: impl FnOnce(&mut ReadObjects) -> HashSet<InstanceKey>,
    ) -> Option<HashSet<InstanceKey>> {
        let mut set = self.set();
        let entry = set.entries.get_mut(key).filter(|entry| Arc::ptr_eq(&entry.watch, watch))?;
        Some(change(&mut entry.read))
    }
}

impl Set {
    pub(super) fn close(&mut self, key: &WatchKey) -> Option<JoinHandle<()>> {
        let entry = self.entries.remove(key)?;
        entry.task.abort();
        Some(entry.task)
    }

    pub(super) fn instances_of(&self, crd: &str) -> Option<WatchKey> {
        let is_of_crd = |key: &&WatchKey| matches!(&key.projection, Projection::Instance(of) if **of == *crd);
        self.entries.keys().find(is_of_crd).cloned()
    }
}

impl Entry {
    pub(super) fn is_open(&self) -> bool {
        !self.is_closing && !self.task.is_finished()
    }
}
