//! What a manager tells about itself: metrics, whether it is ready, and what it is doing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use serde_json::{Value, json};

use super::Shared;
use super::metrics::{Metrics, OfKind, OfPackage, OfState, gauge};
use super::watch::Watch;
use crate::cluster::Requests;

/// Looks at a manager, before, while and after it runs. Asking it sends no request.
pub struct Monitor {
    pub(super) metrics: Metrics,
    phase: Mutex<Phase>,
    shared: OnceLock<Weak<Shared>>,
    registered: AtomicBool,
    /// What keeps packages from being active.
    hindrances: Mutex<Hindrances>,
}

/// What keeps packages from being active.
#[derive(Default)]
struct Hindrances {
    /// Folders of those that cannot be loaded.
    broken: Vec<String>,
    /// Those whose CRDs cannot be registered.
    inactive: Vec<String>,
    /// What a manager that stands by would meet; `None` until it has looked.
    ahead: Option<Vec<String>>,
}

/// What the process is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It connects.
    Starting,
    /// Another process leads: that one.
    StandingBy(String),
    /// It reconciles.
    Leading,
    /// It ends.
    Stopping,
}

impl Default for Monitor {
    fn default() -> Self {
        Self::new(&Requests::default())
    }
}

impl Monitor {
    /// A monitor that also shows these counts.
    pub fn new(requests: &Requests) -> Self {
        Self {
            metrics: Metrics::new(requests),
            phase: Mutex::new(Phase::Starting),
            shared: OnceLock::new(),
            registered: AtomicBool::new(false),
            hindrances: Mutex::default(),
        }
    }

    /// Says what the process is at.
    pub fn enter(&self, phase: Phase) {
        self.metrics.leader.set(i64::from(phase == Phase::Leading));
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    fn phase(&self) -> Phase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn look_at(&self, shared: &Arc<Shared>) {
        // A process runs one manager.
        let _ = self.shared.set(Arc::downgrade(shared));
    }

    /// The first look at the CRDs of each package has been taken: what can be watched is.
    pub(super) fn registered(&self) {
        self.registered.store(true, Ordering::SeqCst);
    }

    fn hindrances(&self) -> MutexGuard<'_, Hindrances> {
        self.hindrances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packages that were given and cannot be loaded.
    pub fn cannot_load(&self, folders: Vec<String>) {
        self.hindrances().broken = folders;
    }

    pub(super) fn broken(&self) -> Vec<String> {
        self.hindrances().broken.clone()
    }

    /// Packages that are not active now, each with the reason.
    pub(super) fn inactive(&self, packages: Vec<String>) {
        self.hindrances().inactive = packages;
    }

    /// What would keep packages from being active if this process led.
    pub fn ahead(&self, problems: Vec<String>) {
        self.hindrances().ahead = Some(problems);
    }

    fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.get().and_then(Weak::upgrade)
    }

    /// Whether it does what it is there for; else what it waits for. Whoever stands by is ready to take over, if it could:
    /// else an update would put it in the place of one that works.
    ///
    /// # Errors
    /// What it waits for.
    pub fn ready(&self) -> Result<String, String> {
        match self.phase() {
            Phase::Starting => Err("connecting".into()),
            Phase::Stopping => Err("stopping".into()),
            _ if !self.hindrances().broken.is_empty() => {
                Err(format!("cannot load {}", self.hindrances().broken.join(", ")))
            }
            Phase::StandingBy(leader) => match &self.hindrances().ahead {
                None => Err("standing by; looking at the CRDs of its packages".into()),
                Some(problems) if problems.is_empty() => Ok(format!("standing by; {leader} leads")),
                Some(problems) => Err(format!("standing by; {leader} leads; {}", problems.join("; "))),
            },
            Phase::Leading => {
                let shared = self.shared().filter(|_| self.registered.load(Ordering::SeqCst));
                let Some(shared) = shared else { return Err("registering kinds".into()) };
                let inactive = self.hindrances().inactive.clone();
                if !inactive.is_empty() {
                    return Err(format!("not active: {}", inactive.join("; ")));
                }
                let refused = shared.hub.refused();
                if !refused.is_empty() {
                    return Err(format!("refused: {}", refused.join("; ")));
                }
                let waiting = shared.hub.unlisted();
                if waiting.is_empty() {
                    Ok("all watches are up".into())
                } else {
                    Err(format!("waiting for the first list of {}", waiting.join(", ")))
                }
            }
        }
    }

    /// The metrics as Prometheus reads them.
    pub fn metrics(&self) -> String {
        let metrics = &self.metrics;
        for family in [&metrics.ready, &metrics.running, &metrics.delayed] {
            family.clear();
        }
        metrics.watches.clear();
        metrics.instances.clear();
        if let Some(shared) = self.shared() {
            for (package, lane) in shared.queue.view() {
                let package = OfPackage { package: package.to_string() };
                metrics.ready.get_or_create(&package).set(gauge(lane.ready));
                metrics.running.get_or_create(&package).set(gauge(lane.running.len()));
                metrics.delayed.get_or_create(&package).set(gauge(lane.delayed.len()));
            }
            for state in ["watching", "listing", "unknown"] {
                let _ = metrics.watches.get_or_create(&OfState { state });
            }
            for watch in watches(&shared) {
                let state = match watch.state() {
                    "Watching" => "watching",
                    "Listing" => "listing",
                    _ => "unknown",
                };
                metrics.watches.get_or_create(&OfState { state }).inc();
            }
            let index = shared.index();
            for registered in shared.registry().iter() {
                let count = index.instances_of(&registered.crd).count();
                let kind = OfKind { kind: registered.crd.to_string() };
                metrics.instances.get_or_create(&kind).set(gauge(count));
            }
            metrics.children.set(gauge(index.counts().1));
        }
        metrics.text()
    }

    /// Every watch and every queue, for people who look for what is stuck. Names of instances, no content.
    pub fn state(&self) -> Value {
        let phase = match self.phase() {
            Phase::Starting => json!({"name": "Starting"}),
            Phase::StandingBy(leader) => json!({"name": "StandingBy", "leader": leader}),
            Phase::Leading => json!({"name": "Leading"}),
            Phase::Stopping => json!({"name": "Stopping"}),
        };
        let Some(shared) = self.shared() else { return json!({"phase": phase}) };
        let mut queues = serde_json::Map::new();
        for (package, lane) in shared.queue.view() {
            let mut running: Vec<_> = lane.running.iter().map(ToString::to_string).collect();
            running.sort();
            let mut delayed = lane.delayed;
            delayed.sort_by_key(|(_, due, _)| *due);
            let delayed: Vec<_> = delayed
                .iter()
                .map(|(key, due, failures)| {
                    json!({"instance": key.to_string(), "dueInSeconds": due.as_secs_f64(), "failures": failures})
                })
                .collect();
            queues.insert(
                package.to_string(),
                json!({"ready": lane.ready, "running": running, "delayed": delayed}),
            );
        }
        let watches: Vec<_> = watches(&shared).iter().map(|watch| watch.to_json()).collect();
        let (instances, children) = shared.index().counts();
        json!({
            "phase": phase, "instances": instances, "children": children,
            "watches": watches, "queues": queues,
        })
    }
}

/// All watches: of instances and children, and of what refs name.
fn watches(shared: &Shared) -> Vec<Arc<Watch>> {
    let mut all = shared.hub.view();
    all.extend(shared.refs.view());
    all
}
