//! The process that interprets packages: registers their kinds, watches instances and children, and gives
//! each instance its turn. The decisions are made in [`crate::children`]; here is the I/O round them.

mod act;
mod apis;
mod deciders;
mod events;
mod hub;
mod index;
mod lasting;
mod metrics;
mod monitor;
mod queue;
pub(crate) mod raw;
mod reconcile;
mod refs;
mod register;
mod registry;
mod shapes;
mod status;
mod stopped;
mod streaming;
mod watch;

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{Instrument, error, error_span, info};

pub use index::InstanceKey;
pub use monitor::{Monitor, Phase};

use crate::children::Decision;
use crate::cluster::{CallError, Clients, Cluster, Kinds};
use crate::diag::Diagnostic;
use crate::package::Package;
use apis::Served;
use deciders::Deciders;
use events::Events;
use hub::Hub;
use index::Index;
use metrics::Ending;
use queue::{Limits, Queue, Taken};
use reconcile::{Mind, Outcome};
use refs::Refs;
use registry::{Registered, Registry};
use shapes::Shapes;

/// How long a stop waits for turns that are under way.
const GRACE: Duration = Duration::from_secs(10);

/// Sees every decision, and `None` when an instance is gone; for the live view of `operetta dev`. Must be
/// quick.
pub type Observer = Arc<dyn Fn(&InstanceKey, Option<&Decision>) + Send + Sync>;

/// How to run.
#[derive(Clone)]
pub struct Config {
    /// The namespace that `operator.namespace` names.
    pub namespace: String,
    /// What tells this manager, with its replicas, from others in the cluster: namespace and name of the Lease.
    /// The kinds of others are left to them.
    pub lease: String,
    /// How many calls of one package may be under way at once.
    pub calls: usize,
    /// How many instances of one package may have their turn at once.
    pub workers: usize,
    /// Who looks on.
    pub observer: Option<Observer>,
    /// Who looks at the manager itself.
    pub monitor: Arc<Monitor>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: "operetta-system".into(),
            lease: "operetta-system/operetta".into(),
            calls: 32,
            workers: 32,
            observer: None,
            monitor: Arc::default(),
        }
    }
}

/// A running manager.
pub struct Manager {
    shared: Arc<Shared>,
    dispatcher: JoinHandle<()>,
    registrar: JoinHandle<()>,
    /// What kept packages from being in force at first.
    pub problems: Vec<Diagnostic>,
    /// Whether one of them may come into force by itself.
    pub is_retrying: bool,
}

/// What all tasks of a manager share.
struct Shared {
    clients: Clients,
    kinds: Kinds,
    index: Mutex<Index>,
    queue: Queue<InstanceKey>,
    registry: Arc<RwLock<Arc<Registry>>>,
    /// CRDs whose instances must not be written now, and why: without its status subresource, one write of a
    /// label loses the status.
    held: RwLock<HashMap<Arc<str>, Arc<str>>>,
    /// Grows whenever a CRD has changed: what the server has refused or dropped it may take now.
    schemas: AtomicU64,
    hub: Hub,
    refs: Refs,
    served: Served,
    deciders: Deciders,
    events: Events,
    minds: Mutex<HashMap<InstanceKey, Mind>>,
    /// The uids of objects whose generated values are known to be ours, whatever becomes of what says so.
    proven: Mutex<HashSet<Box<str>>>,
    shapes: Shapes<InstanceKey>,
    /// How many instances have their turn now.
    turns: Arc<AtomicUsize>,
    started: Instant,
    namespace: String,
    /// What the CRDs of its packages say of whose they are.
    lease: String,
    observer: Option<Observer>,
    monitor: Arc<Monitor>,
}

impl Manager {
    /// Registers the packages and begins to reconcile; returns after the first look at the CRDs of each. What
    /// keeps a package from being in force is in [`Manager::problems`], is tried again later, and stops no
    /// other.
    ///
    /// # Errors
    /// The API server cannot be reached.
    pub async fn start(
        cluster: Cluster,
        packages: Vec<Arc<Package>>,
        config: Config,
    ) -> Result<Self, CallError> {
        let labelled = register::labelled(&cluster).await?;
        let turns = Arc::new(AtomicUsize::new(0));
        let registry = Arc::new(RwLock::new(Arc::<Registry>::default()));
        let lanes = Arc::clone(&registry);
        let lane_of = move |key: &InstanceKey| {
            let registry = Arc::clone(&lanes.read().unwrap_or_else(PoisonError::into_inner));
            registry.get(&key.crd).map(|r| r.operator().into()).unwrap_or_default()
        };
        let shared = Arc::new(Shared {
            events: Events::start(cluster.clone(), Arc::clone(&turns), Arc::clone(&config.monitor)),
            turns,
            clients: Clients::new(cluster, config.calls),
            kinds: Kinds::default(),
            index: Mutex::default(),
            queue: Queue::new(Limits::of_lane(config.workers), lane_of),
            registry,
            held: RwLock::default(),
            schemas: AtomicU64::new(0),
            hub: Hub::default(),
            refs: Refs::default(),
            served: Served::default(),
            deciders: Deciders::default(),
            minds: Mutex::default(),
            shapes: Shapes::default(),
            proven: Mutex::default(),
            started: Instant::now(),
            namespace: config.namespace,
            lease: config.lease,
            observer: config.observer,
            monitor: config.monitor,
        });
        shared.monitor.look_at(&shared);
        let dispatcher = tokio::spawn(dispatch(Arc::clone(&shared)));
        // Each package is in force as soon as its CRDs are, whatever becomes of the others.
        let (sender, first) = oneshot::channel();
        let registrar = register::start(Arc::clone(&shared), packages, labelled, sender);
        let register::First { problems, is_retrying } = first.await.unwrap_or_default();
        shared.monitor.registered();
        Ok(Self { shared, dispatcher, registrar, problems, is_retrying })
    }

    /// What would keep a package from being active in a cluster, as far as reading can tell. Nothing is written.
    pub async fn inspect(cluster: &Cluster, package: &Package) -> Vec<Diagnostic> {
        register::inspect(cluster, package).await
    }

    /// How many kinds have instances to care for: those of loaded packages, and those of packages that
    /// cannot be loaded now.
    pub fn kinds(&self) -> (usize, usize) {
        let registry = self.shared.registry();
        let loaded = registry.iter().filter(|r| r.package.is_some()).count();
        (loaded, registry.iter().count() - loaded)
    }

    /// How many instances and children are known.
    pub fn counts(&self) -> (usize, usize) {
        self.shared.index().counts()
    }

    /// Ends: no new turn begins, those under way are given time to finish.
    pub async fn stop(mut self) {
        self.registrar.abort();
        self.shared.queue.close();
        if tokio::time::timeout(GRACE, &mut self.dispatcher).await.is_err() {
            // Every write has a precondition, so a turn that is cut off is done again, or was done.
            info!("some turns did not end in time and are abandoned");
            self.dispatcher.abort();
        }
        self.shared.hub.stop();
        self.shared.refs.stop();
        self.shared.served.stop();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.registrar.abort();
        self.shared.queue.close();
        self.dispatcher.abort();
        self.shared.hub.stop();
        self.shared.refs.stop();
        self.shared.served.stop();
    }
}

/// Gives turns, as many at once as the queue lets, until the queue is closed and all have ended.
async fn dispatch(shared: Arc<Shared>) {
    let mut turns = JoinSet::new();
    loop {
        tokio::select! {
            taken = shared.queue.next() => match taken {
                Some(taken) => {
                    let span = error_span!("turn", instance = %taken.key, package = %taken.lane);
                    turns.spawn(turn(Arc::clone(&shared), taken).instrument(span));
                }
                None => break,
            },
            Some(_) = turns.join_next() => {}
        }
    }
    while turns.join_next().await.is_some() {}
}

/// One turn of one instance.
async fn turn(shared: Arc<Shared>, taken: Taken<InstanceKey>) {
    let Taken { key, lane, waited } = taken;
    let started = Instant::now();
    shared.turns.fetch_add(1, Ordering::Relaxed);
    let result = contained(shared.reconcile(&key)).await;
    shared.turns.fetch_sub(1, Ordering::Relaxed);
    let ending = match result {
        Ok(Outcome::Done) => Ending::Done,
        Ok(Outcome::Failed) => Ending::Failed,
        Err(panic) => {
            error!(%panic, "a turn panicked; this is a bug of Operetta, the others go on");
            Ending::Panicked
        }
    };
    shared.monitor.metrics.turn(&lane, ending, waited, started.elapsed());
    shared.queue.done(key, ending != Ending::Done);
}

/// Runs to the end, or to a panic, which goes no further than to be told.
async fn contained<T>(task: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(task).catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_owned())
    })
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The client for the instances of a kind.
    fn for_instances(&self, registered: &Registered) -> Cluster {
        self.clients.for_instances(registered.operator())
    }

    /// The client that reads and writes the children of a kind's instances.
    fn for_children(&self, registered: &Registered) -> Cluster {
        self.clients.for_operator(registered.operator())
    }

    fn set_registry(&self, registry: Registry) {
        *self.registry.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(registry);
    }

    /// Stops all writes to instances of a CRD, or lets them go on.
    fn hold(&self, crd: &str, why: Option<Arc<str>>) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => {
                held.insert(crd.into(), why);
            }
            None => {
                held.remove(crd);
            }
        }
    }

    /// Why instances of a CRD must not be written now, if so.
    fn held(&self, crd: &str) -> Option<Arc<str>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).get(crd).cloned()
    }

    fn queue_all(&self) {
        let registry = self.registry();
        let index = self.index();
        let all: Vec<_> =
            registry.iter().flat_map(|r| index.instances_of(&r.crd).cloned().collect::<Vec<_>>()).collect();
        drop(index);
        for key in all {
            self.queue.add(key);
        }
    }

    /// Nothing is remembered of an instance that is gone.
    fn forget(self: &Arc<Self>, key: &InstanceKey) {
        self.refs.follow(self, key, &[]);
        self.minds().remove(key);
        if let Some(observer) = &self.observer {
            observer(key, None);
        }
    }

    fn take_mind(&self, key: &InstanceKey) -> Mind {
        self.minds().remove(key).unwrap_or_default()
    }

    fn put_mind(&self, key: &InstanceKey, mind: Mind) {
        if !mind.is_empty() && self.index().has_instance(key) {
            self.minds().insert(key.clone(), mind);
        }
    }

    fn minds(&self) -> MutexGuard<'_, HashMap<InstanceKey, Mind>> {
        self.minds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_goes_no_further() {
        assert_eq!(contained(async { 1 }).await, Ok(1));
        let number = 1;
        assert_eq!(contained(async { assert!(number > 1, "at {number}") }).await, Err("at 1".to_owned()));
    }
}
