//! When something is done: the queue, where decisions are made, and what is remembered of an
//! instance between two reconciles.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::deciders::Deciders;
use super::index::InstanceKey;
use super::queue::Queue;
use super::state::InstanceState;
use super::stopwatches::Stopwatches;
use super::store::Store;
use crate::clock::Clock;
use crate::cluster::ConcurrencyLimits;

/// The key of something that is reconciled.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// An instance.
    Instance(InstanceKey),
    /// The CRDs of a package: its index and name.
    Package(usize, Arc<str>),
    /// One CRD, by name.
    Crd(Arc<str>),
    /// An `Operator` of the cluster, by name.
    Operator(Arc<str>),
    /// The admission policies of plans.
    PlanApi,
}

impl From<InstanceKey> for Key {
    fn from(key: InstanceKey) -> Self {
        Self::Instance(key)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(key) => key.fmt(f),
            Self::Package(_, name) => write!(f, "package {name}"),
            Self::Crd(name) => write!(f, "crd {name}"),
            Self::Operator(name) => write!(f, "operator {name}"),
            Self::PlanApi => f.write_str("admission policies"),
        }
    }
}

/// The result of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing is left to do before the next event.
    Done,
    /// A call failed. The next attempt waits, longer each time.
    Failed,
}

/// The lane of CRDs. No package can have this name.
const CRDS: &str = "(crds)";

/// How many reconciles of CRDs run at once. A CRD may be a megabyte and costs the API server some work.
const CRDS_AT_ONCE: usize = 8;

/// The queue, the threads of decisions, and what is remembered of instances between reconciles.
pub(super) struct Scheduler {
    pub(super) queue: Arc<Queue<Key>>,
    pub(super) deciders: Deciders,
    pub(super) clock: Clock,
    states: Mutex<HashMap<InstanceKey, InstanceState>>,
    pub(super) stopwatches: Stopwatches,
    active: Arc<AtomicUsize>,
}

impl Scheduler {
    /// A scheduler. `workers`: how many reconciles of one package run at once. `active` counts those that
    /// run.
    pub(super) fn new(store: &Arc<Store>, workers: usize, active: Arc<AtomicUsize>, clock: Clock) -> Self {
        let store = Arc::clone(store);
        let lane_of = move |key: &Key| match key {
            Key::Instance(key) => {
                let registered = store.registry().get(&key.crd);
                registered.map(|registered| registered.operator().into()).unwrap_or_default()
            }
            Key::Package(..) | Key::Crd(_) | Key::Operator(_) | Key::PlanApi => CRDS.into(),
        };
        Self {
            queue: Arc::new(Queue::new(ConcurrencyLimits::new(workers).narrow(CRDS, CRDS_AT_ONCE), lane_of)),
            deciders: Deciders::default(),
            clock,
            states: Mutex::default(),
            stopwatches: Stopwatches::default(),
            active,
        }
    }

    /// Queues these instances.
    pub(super) fn add_all(&self, keys: impl IntoIterator<Item = InstanceKey>) {
        for key in keys {
            self.queue.add(key);
        }
    }

    /// Counts a reconcile as running until the guard is dropped.
    pub(super) fn begin(&self) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(&self.active))
    }

    /// Takes what is remembered of an instance.
    pub(super) fn take_state(&self, key: &InstanceKey) -> InstanceState {
        self.states().remove(key).unwrap_or_default()
    }

    /// Puts back what is remembered of an instance.
    pub(super) fn put_state(&self, key: &InstanceKey, state: InstanceState) {
        self.states().insert(key.clone(), state);
    }

    fn states(&self) -> MutexGuard<'_, HashMap<InstanceKey, InstanceState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running reconcile.
pub(super) struct Active(Arc<AtomicUsize>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
