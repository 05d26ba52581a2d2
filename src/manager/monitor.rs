//! The observable state of a manager: metrics, readiness, watches and queues.

use std::sync::{Arc, OnceLock, Weak};

use serde_json::{Value, json};

use super::health::{Health, Phase};
use super::metrics::{OfPackage, OfRunState, OfState, OfVerdict, gauge};
use super::owned::RunState;
use super::parts::Parts;
use crate::children::names::kind_mark;
use crate::cluster::Requests;
use crate::operators::upgrade::VERDICTS;
use crate::package::Resource;
use crate::plan::DELETE_CHILD;

/// The states of watches in the metrics.
pub(super) const WATCH_STATES: [&str; 3] = ["watching", "listing", "unknown"];

/// Observes a manager before, while and after it runs. Its methods send no request.
pub struct Monitor {
    health: Arc<Health>,
    parts: OnceLock<Weak<Parts>>,
}

impl Default for Monitor {
    fn default() -> Self {
        Self::new(&Requests::default())
    }
}

impl Monitor {
    /// A monitor that also exports these counts.
    pub fn new(requests: &Requests) -> Self {
        Self { health: Arc::new(Health::new(requests)), parts: OnceLock::new() }
    }

    pub(super) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Enters a phase.
    pub fn enter(&self, phase: Phase) {
        self.health.enter(phase);
    }

    /// Sets the packages that cannot be loaded.
    pub fn cannot_load(&self, folders: Vec<String>) {
        self.health.hindrances().broken = folders;
    }

    /// Sets what would keep packages from being active if this process led.
    pub fn ahead(&self, problems: Vec<String>) {
        self.health.hindrances().ahead = Some(problems);
    }

    pub(super) fn look_at(&self, parts: &Arc<Parts>) {
        // A process runs one manager.
        let _ = self.parts.set(Arc::downgrade(parts));
    }

    fn parts(&self) -> Option<Arc<Parts>> {
        self.parts.get().and_then(Weak::upgrade)
    }

    /// Whether the manager is ready; otherwise what it waits for. A standby is ready only if it could take over;
    /// otherwise an update would replace a working manager by it.
    ///
    /// # Errors
    /// What it waits for.
    pub fn ready(&self) -> Result<String, String> {
        match self.health.phase() {
            Phase::Starting => Err("connecting".into()),
            Phase::Stopping => Err("stopping".into()),
            _ if !self.health.hindrances().broken.is_empty() => {
                Err(format!("cannot load {}", self.health.hindrances().broken.join(", ")))
            }
            Phase::StandingBy(leader) => match &self.health.hindrances().ahead {
                None => Err("standing by; looking at the CRDs of its packages".into()),
                Some(problems) if problems.is_empty() => Ok(format!("standing by; {leader} leads")),
                Some(problems) => Err(format!("standing by; {leader} leads; {}", problems.join("; "))),
            },
            Phase::Leading => {
                let parts = self.parts().filter(|_| self.health.is_registered());
                let Some(parts) = parts else { return Err("registering kinds".into()) };
                let inactive = self.health.hindrances().inactive.clone();
                if !inactive.is_empty() {
                    return Err(format!("not active: {}", inactive.join("; ")));
                }
                let refused = parts.watches.refused();
                if !refused.is_empty() {
                    return Err(format!("refused: {}", refused.join("; ")));
                }
                let waiting = parts.watches.unlisted();
                let lacking = parts.watches.refused_to_packages();
                let unprotected = parts.effects.plan_api.protection().problem(parts.scheduler.clock.now());
                if let (true, Some(problem)) = (waiting.is_empty(), unprotected) {
                    return Ok(format!("ready; requests and approvals of runs wait: {problem}"));
                }
                let packages: Vec<String> = self.health.hindrances().lacking.iter().cloned().collect();
                let refused = Some(format!("refused to packages: {}", lacking.join("; ")));
                let missing = Some(format!("RightsMissing in the Operators {}", packages.join(", ")));
                let notes =
                    [refused.filter(|_| !lacking.is_empty()), missing.filter(|_| !packages.is_empty())];
                let notes: Vec<String> = notes.into_iter().flatten().collect();
                if waiting.is_empty() && !notes.is_empty() {
                    Ok(format!("ready; {}", notes.join("; ")))
                } else if waiting.is_empty() {
                    Ok("all watches are up".into())
                } else {
                    Err(format!("waiting for the first list of {}", waiting.join(", ")))
                }
            }
        }
    }

    /// The metrics in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let metrics = &self.health.metrics;
        for family in [&metrics.ready, &metrics.running, &metrics.delayed] {
            family.clear();
        }
        metrics.watches.clear();
        metrics.unprotected.set(0);
        metrics.instances.clear();
        metrics.runs.clear();
        metrics.oldest_run.clear();
        if let Some(parts) = self.parts() {
            let problem = parts.effects.plan_api.protection().problem(parts.scheduler.clock.now());
            metrics.unprotected.set(i64::from(problem.is_some()));
            for (package, lane) in parts.scheduler.queue.view() {
                let package = OfPackage { package: package.to_string() };
                metrics.ready.get_or_create(&package).set(gauge(lane.ready));
                metrics.running.get_or_create(&package).set(gauge(lane.running.len()));
                metrics.delayed.get_or_create(&package).set(gauge(lane.delayed.len()));
            }
            for state in WATCH_STATES {
                let _ = metrics.watches.get_or_create(&OfState { state });
            }
            for watch in parts.watches.view() {
                let state = match watch.word() {
                    "Watching" | "Degraded" => "watching",
                    "Listing" => "listing",
                    _ => "unknown",
                };
                metrics.watches.get_or_create(&OfState { state }).inc();
            }
            let runs = parts.store.owned().run_states();
            let now = parts.scheduler.clock.now().as_second();
            let index = parts.store.index();
            for registered in parts.store.registry().iter() {
                for verdict in VERDICTS {
                    let of = OfVerdict { kind: registered.crd.to_string(), verdict };
                    let _ = metrics.instances.get_or_create(&of);
                }
                for (_, member) in index.members_of(&registered.crd) {
                    let of = OfVerdict { kind: registered.crd.to_string(), verdict: member.verdict() };
                    metrics.instances.get_or_create(&of).inc();
                }
                if registered.resource().is_some() {
                    let in_use = || registered.in_use().map(|(_, resource)| resource);
                    let plans = in_use().flat_map(|resource| &resource.plans).map(|plan| plan.name.as_str());
                    let asked = in_use().any(Resource::may_ask).then_some(DELETE_CHILD);
                    metrics.expect_runs(registered.operator(), &registered.crd, plans.chain(asked));
                }
                let has_runs = registered.in_use().any(|(_, resource)| resource.has_runs());
                let mark = kind_mark(&registered.kind_label());
                for state in RunState::ALL {
                    let (count, since) = runs.get(&(mark, state)).copied().unwrap_or_default();
                    if has_runs || count > 0 {
                        let (package, kind) = (registered.operator().to_owned(), registered.crd.to_string());
                        let of = OfRunState { package, kind, state: state.label() };
                        metrics.runs.get_or_create(&of).set(gauge(count));
                        let age = if count == 0 { 0 } else { now.saturating_sub(since).max(0) };
                        metrics.oldest_run.get_or_create(&of).set(age);
                    }
                }
            }
            metrics.children.set(gauge(index.counts().1));
        }
        metrics.text()
    }

    /// All watches and queues, for debugging. It contains names of instances and no content.
    pub fn state(&self) -> Value {
        let phase = match self.health.phase() {
            Phase::Starting => json!({"name": "Starting"}),
            Phase::StandingBy(leader) => json!({"name": "StandingBy", "leader": leader}),
            Phase::Leading => json!({"name": "Leading"}),
            Phase::Stopping => json!({"name": "Stopping"}),
        };
        let Some(parts) = self.parts() else { return json!({"phase": phase}) };
        let mut queues = serde_json::Map::new();
        for (package, lane) in parts.scheduler.queue.view() {
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
        let watches: Vec<_> = parts.watches.view().iter().map(|watch| watch.to_json()).collect();
        let (instances, children) = parts.store.index().counts();
        json!({
            "phase": phase, "instances": instances, "children": children,
            "watches": watches, "observations": parts.watches.view_observations(), "queues": queues,
        })
    }
}
