//! The process that interprets packages: it registers their kinds, watches instances and children, and reconciles
//! each instance. The decisions are made in [`crate::children`]; here is the I/O around them.

mod accept;
mod act;
mod bindings;
mod calls;
mod contained;
mod crds;
mod deciders;
mod dry_runs;
mod effects;
mod events;
mod health;
mod index;
mod metrics;
mod monitor;
mod operators;
mod own_namespace;
mod owned;
mod owned_kinds;
mod parts;
mod plan_api;
mod plans;
mod pull;
mod queue;
pub(crate) mod raw;
mod reconcile;
mod registry;
mod revisions;
mod rights;
mod scheduler;
pub(crate) mod sources;
mod state;
mod status;
mod stopped;
mod stopwatches;
mod store;
mod watches;
mod webhook;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{Instrument, error, error_span, info};

pub use accept::accept;
pub(crate) use act::send_dry_run;
pub use effects::Observer;
pub use health::Phase;
pub use index::InstanceKey;
pub use monitor::Monitor;
pub(crate) use revisions::load_revision;
pub use webhook::{CrdConversion, Webhook, WebhookAddress};

use crate::api::CallError;
use crate::children::names;
use crate::clock::Clock;
use crate::cluster::{Accounts, AllowedTarget, Clients, Cluster, HttpClient};
use crate::diag::Diagnostic;
use crate::package::Package;
use crate::random::Randomness;
use crate::rights::{account, user};
use act::Executor;
use contained::contained;
use crds::CrdReconciler;
use effects::Effects;
use events::Events;
use metrics::Ending;
use operators::OperatorReconciler;
use parts::Parts;
use queue::Taken;
use reconcile::InstanceReconciler;
use scheduler::{Key, Outcome, Scheduler};
use status::StatusWriter;
use store::Store;
use watches::Watches;

/// How long a stop waits for reconciles that run.
const GRACE: Duration = Duration::from_secs(10);

/// The configuration of a manager.
#[derive(Clone)]
pub struct Config {
    /// The manager's namespace, `operator.namespace` in templates.
    pub namespace: String,
    /// Namespace and name of the Lease. It identifies this manager and its replicas; instances of CRDs that name another
    /// Lease are left to other managers.
    pub lease: String,
    /// How many calls of one package run at once.
    pub calls: usize,
    /// How many instances of one package are reconciled at once.
    pub workers: usize,
    /// Targets that HTTP requests may call although they are refused otherwise.
    pub allow_calls: Vec<AllowedTarget>,
    /// Whether the `Operator`s of the cluster say which packages are active. Then no packages are given.
    pub follows_operators: bool,
    /// Whether children and refs are read and written as the account of their package, and not as the manager.
    pub impersonate: bool,
    /// The conversion webhook, which the caller serves.
    pub webhook: Option<Arc<Webhook>>,
    /// Is called with every decision.
    pub observer: Option<Observer>,
    /// Metrics and state of the manager.
    pub monitor: Arc<Monitor>,
    /// Where generated passwords and keys are from.
    pub randomness: Randomness,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: names::MANAGER_NAMESPACE.into(),
            lease: "operetta-system/operetta".into(),
            calls: 32,
            workers: 32,
            allow_calls: Vec::new(),
            follows_operators: false,
            impersonate: false,
            webhook: None,
            observer: None,
            monitor: Arc::default(),
            randomness: Randomness::default(),
        }
    }
}

/// A running manager.
pub struct Manager {
    parts: Arc<Parts>,
    dispatcher: JoinHandle<()>,
    /// The task that keeps the certificates of the webhook valid.
    _certificates: JoinSet<()>,
    /// Why packages are not active after the first reconcile of their CRDs.
    pub problems: Vec<Diagnostic>,
    /// Whether a package that is not active may become active without a change.
    pub is_retrying: bool,
}

impl Parts {
    fn new(cluster: Cluster, config: Config) -> Self {
        let clock = Clock::start();
        let active = Arc::new(AtomicUsize::new(0));
        let store = Arc::new(Store::new(&config.namespace));
        let health = Arc::clone(config.monitor.health());
        let events = Events::start(cluster.clone(), Arc::clone(&active), Arc::clone(&health), clock.clone());
        let http = HttpClient::new(cluster.clone(), config.allow_calls);
        let namespace = config.namespace.clone();
        let accounts: Accounts = Arc::new(move |package: &str| user(&namespace, &account(package)));
        let clients = Clients::new(cluster, config.calls, config.impersonate.then_some(accounts));
        let (observer, randomness) = (config.observer, config.randomness);
        let effects = Effects::new(clients, http, events, health, observer, clock.clone(), randomness);
        let effects = Arc::new(effects);
        let scheduler = Arc::new(Scheduler::new(&store, config.workers, active, clock.clone()));
        let watches = Watches::new(
            Arc::clone(&store),
            Arc::clone(&effects),
            Arc::clone(&scheduler),
            config.namespace.clone(),
        );
        let watches = Arc::new(watches);
        let executor = Arc::new(Executor {
            store: Arc::clone(&store),
            effects: Arc::clone(&effects),
            queue: Arc::clone(&scheduler.queue),
            namespace: config.namespace.clone(),
        });
        let status = StatusWriter {
            store: Arc::clone(&store),
            effects: Arc::clone(&effects),
            executor: Arc::clone(&executor),
            clock,
        };
        let instances = Arc::new(InstanceReconciler {
            store: Arc::clone(&store),
            effects: Arc::clone(&effects),
            scheduler: Arc::clone(&scheduler),
            watches: Arc::clone(&watches),
            executor,
            status,
            namespace: config.namespace.clone(),
        });
        let crds = Arc::new(CrdReconciler {
            store: Arc::clone(&store),
            effects: Arc::clone(&effects),
            scheduler: Arc::clone(&scheduler),
            watches: Arc::clone(&watches),
            state: Mutex::default(),
            namespace: config.namespace.clone(),
            lease: config.lease,
            follows: config.follows_operators,
            webhook: config.webhook,
            migrations: crds::Migrations::default(),
        });
        let operators = Arc::new(OperatorReconciler::new(
            &store,
            &effects,
            &scheduler,
            &watches,
            &crds,
            config.namespace,
        ));
        Self { store, effects, scheduler, watches, instances, crds, operators }
    }
}

impl Manager {
    /// Registers the packages and starts to reconcile; returns after the first reconcile of the CRDs of each. The reasons
    /// why a package is not active are in [`Manager::problems`]; it is tried again later, and no other package waits
    /// for it.
    ///
    /// # Errors
    /// The API server cannot be reached.
    pub async fn start(
        cluster: Cluster,
        packages: Vec<Arc<Package>>,
        config: Config,
    ) -> Result<Self, CallError> {
        let labelled = crds::labelled(&cluster).await?;
        let follows = config.follows_operators;
        let monitor = Arc::clone(&config.monitor);
        let parts = Arc::new(Parts::new(cluster, config));
        let found = if follows {
            operators::find(&parts.operators).await?
        } else {
            operators::Found { packages, ..operators::Found::default() }
        };
        monitor.look_at(&parts);
        let dispatcher = tokio::spawn(dispatch(Arc::clone(&parts)));
        let mut certificates = JoinSet::new();
        if let Some(webhook) = &parts.crds.webhook {
            let (own, crds) = (parts.effects.clients.own().clone(), Arc::downgrade(&parts.crds));
            certificates.spawn(Arc::clone(webhook).keep(own, move || {
                if let Some(crds) = crds.upgrade() {
                    crds.webhook_changed();
                }
            }));
        }
        let (sender, first) = oneshot::channel();
        let awaited = found.awaited;
        crds::start(&parts.crds, (found.packages, &found.stand_ins), &labelled, sender, awaited);
        drop(labelled);
        if follows {
            operators::start(&parts.operators);
        }
        let crds::First { problems, is_retrying } = first.await.unwrap_or_default();
        monitor.health().registered();
        Ok(Self { parts, dispatcher, _certificates: certificates, problems, is_retrying })
    }

    /// What would keep a package from being active in a cluster, as far as reading can tell. Nothing is written.
    pub async fn inspect(cluster: &Cluster, package: &Package) -> Vec<Diagnostic> {
        crds::inspect(cluster, package).await
    }

    /// How many kinds are managed: those of loaded packages, and those of packages that are not loaded.
    pub fn kinds(&self) -> (usize, usize) {
        let registry = self.parts.store.registry();
        let loaded = registry.iter().filter(|r| r.package.is_some()).count();
        (loaded, registry.iter().count() - loaded)
    }

    /// How many instances and children are known.
    pub fn counts(&self) -> (usize, usize) {
        self.parts.store.index().counts()
    }

    /// Stops the manager: no reconcile begins, and those that run are given time to finish.
    pub async fn stop(mut self) {
        self.parts.scheduler.queue.close();
        if tokio::time::timeout(GRACE, &mut self.dispatcher).await.is_err() {
            // Every write has a precondition, so a reconcile that is cut off is done again, or was done.
            info!("some reconciles did not end in time and are abandoned");
            self.dispatcher.abort();
        }
        self.parts.watches.stop();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.parts.scheduler.queue.close();
        self.dispatcher.abort();
        self.parts.watches.stop();
    }
}

/// Reconciles, as many instances at once as the queue permits, until the queue is closed and all have ended.
async fn dispatch(parts: Arc<Parts>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            taken = parts.scheduler.queue.next() => match taken {
                Some(taken) => {
                    let span = match &taken.key {
                        Key::Instance(key) => {
                            error_span!("reconcile", instance = %key, package = %taken.lane)
                        }
                        Key::Package(..) | Key::Crd(_) | Key::Operator(_) | Key::PlanApi => {
                            error_span!("crds", key = %taken.key)
                        }
                    };
                    running.spawn(reconcile(Arc::clone(&parts), taken).instrument(span));
                }
                None => break,
            },
            Some(_) = running.join_next() => {}
        }
    }
    while running.join_next().await.is_some() {}
}

/// Reconciles one key, and counts how that ended.
async fn reconcile(parts: Arc<Parts>, taken: Taken<Key>) {
    let Taken { key, lane, waited } = taken;
    let clock = Clock::start();
    let active = parts.scheduler.begin();
    let reconcile = async {
        match &key {
            Key::Instance(key) => parts.instances.reconcile(key).await,
            Key::Package(index, _) => parts.crds.reconcile_package(*index).await,
            Key::Crd(name) => parts.crds.reconcile_crd(name).await,
            Key::Operator(name) => parts.operators.reconcile(name).await,
            Key::PlanApi => plan_api::reconcile(&parts.store, &parts.effects, &parts.scheduler).await,
        }
    };
    let result = Box::pin(contained(reconcile)).await;
    drop(active);
    let ending = match result {
        Ok(Outcome::Done) => Ending::Done,
        Ok(Outcome::Failed) => Ending::Failed,
        Err(panic) => {
            error!(%panic, "a reconcile panicked; this is a bug of Operetta, the others continue");
            if let Key::Package(index, _) = key {
                parts.crds.package_panicked(index, &panic);
            }
            Ending::Panicked
        }
    };
    parts.effects.health.metrics.reconciled(&lane, ending, waited, clock.elapsed());
    parts.scheduler.queue.done(key, ending != Ending::Done);
}
