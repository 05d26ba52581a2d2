//! What is remembered of the `Operator`s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use operetta_registry::Provenance;
use serde_json::Value;

use super::dependencies::Dependencies;
use super::fetches::{Limits, Source};
use super::movement::Movement;
use crate::backoff::{Backoff, Retry};
use crate::manager::crds::CrdReconciler;
use crate::manager::effects::Effects;
use crate::manager::revisions::Unloadable;
use crate::manager::scheduler::Scheduler;
use crate::manager::sources::KnownPolicies;
use crate::manager::store::Store;
use crate::manager::watches::Watches;
use crate::package::{Package, store};

/// How long until a revision that cannot be loaded is read again, if no event comes.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Reconciles `Operator`s.
pub(in crate::manager) struct OperatorReconciler {
    pub(super) store: Arc<Store>,
    pub(super) effects: Arc<Effects>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) watches: Arc<Watches>,
    pub(super) crds: Arc<CrdReconciler>,
    /// The manager's namespace.
    pub(super) namespace: String,
    /// Which packages may become active.
    pub(super) policies: Arc<KnownPolicies>,
    /// Limits of fetches.
    pub(super) limits: Arc<Limits>,
    /// What is remembered of each `Operator`, except of those whose reconcile runs.
    pub(super) known: Mutex<BTreeMap<Arc<str>, Known>>,
    /// The `Operator`s that have changed since they were read.
    pub(super) changed: Mutex<BTreeSet<Arc<str>>>,
}

/// What is remembered of an `Operator`.
pub(super) struct Known {
    /// The object as it was read or written last; `None` if it has changed since.
    pub(super) object: Option<Value>,
    /// The revision that was loaded last.
    pub(super) loaded: Option<Arc<Package>>,
    pub(super) unloadable: Option<Unloadable>,
    /// The package in a registry that it names.
    pub(super) source: Source,
    /// Where the active and the named revision are from, by their names.
    pub(super) provenances: BTreeMap<String, Arc<Provenance>>,
    /// Why the policy does not permit the active revision.
    pub(super) untrusted: Option<String>,
    pub(super) retry: Retry,
    /// The recorded revision that cannot be loaded.
    pub(super) lost: Option<String>,
    /// Whether its account lacked rights when they were asked for last.
    pub(super) lacks_rights: bool,
    /// The active revision whose predecessors were pruned.
    pub(super) pruned: Option<String>,
    pub(super) movement: Movement,
    /// Why the active revision could not be stored again.
    pub(super) unstored: Option<String>,
    /// The server's version, and when it was asked for.
    pub(super) kubernetes: Option<(Duration, String)>,
    /// Whether what the active revision requires is served.
    pub(super) dependencies: Option<Dependencies>,
    /// Since when this process registers the revision that was active before it.
    pub(super) registers_since: Option<Duration>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            object: None,
            loaded: None,
            unloadable: None,
            source: Source::default(),
            provenances: BTreeMap::new(),
            untrusted: None,
            retry: Retry::new(AGAIN),
            lost: None,
            lacks_rights: false,
            pruned: None,
            unstored: None,
            kubernetes: None,
            dependencies: None,
            registers_since: None,
            movement: Movement::default(),
        }
    }
}

impl OperatorReconciler {
    pub(in crate::manager) fn new(
        store: &Arc<Store>,
        effects: &Arc<Effects>,
        scheduler: &Arc<Scheduler>,
        watches: &Arc<Watches>,
        crds: &Arc<CrdReconciler>,
        namespace: String,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            effects: Arc::clone(effects),
            scheduler: Arc::clone(scheduler),
            watches: Arc::clone(watches),
            crds: Arc::clone(crds),
            namespace,
            policies: Arc::default(),
            limits: Arc::default(),
            known: Mutex::default(),
            changed: Mutex::default(),
        }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn revision_name(package: &Package) -> String {
    store::name(&package.name, &package.digest)
}
