//! What is known of the runs of an instance, gathered for a decision.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tracing::warn;

use super::index::InstanceKey;
use super::owned::OwnerField;
use super::reconcile::InstanceReconciler;
use super::registry::Registry;
use super::store::Store;
use super::watches::{OwnedKind, WatchState};
use crate::api::{CallError, Class};
use crate::children::names::{self, Claim};
use crate::children::plans::{CallKey, PlanSnapshot, RunAction, RunObject, RunRef};
use crate::children::{DeletionRuns, Selector};
use crate::package::Resource;
use crate::plan::{self, DELETE_CHILD, Phase, PlanRun, Stopwatch, Stray};

/// How many PlanRuns that cannot run a reconcile answers.
const MAX_STRAY_WRITES: usize = 8;
/// How long until the next reconcile answers more of them.
const STRAY_WAIT: Duration = Duration::from_secs(1);
/// How long until an answer that could not be written is tried again, if the server names no time.
const STRAY_RETRY: Duration = Duration::from_secs(30);

/// For how long this process has run the active runs of each instance, by their uids.
#[derive(Default)]
pub(super) struct Stopwatches(Mutex<HashMap<InstanceKey, HashMap<String, Stopwatch>>>);

impl Stopwatches {
    /// For how long each active run of an instance has been running. The others are forgotten.
    fn read(
        &self,
        key: &InstanceKey,
        runs: &[PlanRun],
        now: Duration,
        is_paused: bool,
    ) -> HashMap<String, Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = all.remove(key).unwrap_or_default();
        let (mut active, mut elapsed) = (HashMap::new(), HashMap::new());
        for run in runs {
            let Some(status) = run.status.as_ref().filter(|status| status.phase == Phase::Running) else {
                continue;
            };
            let mut stopwatch = known.remove(&run.uid).unwrap_or_default();
            elapsed.insert(run.uid.clone(), stopwatch.read(status.used_milliseconds, now, is_paused));
            active.insert(run.uid.clone(), stopwatch);
        }
        if !active.is_empty() {
            all.insert(key.clone(), active);
        }
        elapsed
    }

    /// The instance is gone.
    pub(super) fn forget(&self, key: &InstanceKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// The kinds of objects that belong to runs.
static KINDS: LazyLock<[(RunObject, OwnedKind); 3]> = LazyLock::new(|| {
    RunObject::ALL.map(|sort| {
        let (labels, owner) = match sort {
            RunObject::PlanRun => (None, OwnerField::SpecOf),
            RunObject::Origin | RunObject::Job => (Some(Selector::exists(names::RUN_OF)), OwnerField::Labels),
        };
        (sort, OwnedKind { gvk: sort.kind().gvk(), labels, owner })
    })
});

/// The kind of an object of a run.
pub(super) fn kind_of(sort: RunObject) -> &'static OwnedKind {
    let found = KINDS.iter().find(|(known, _)| *known == sort);
    found.map_or(&KINDS[0].1, |(_, kind)| kind)
}

/// What is watched for these resources: all objects of runs if one has plans, the runs alone if a child may ask.
pub(super) fn watched<'r, I: Iterator<Item = &'r Resource>>(resources: impl Fn() -> I) -> Vec<OwnedKind> {
    if resources().any(|resource| !resource.plans.is_empty()) {
        KINDS.iter().map(|(_, kind)| kind.clone()).collect()
    } else if resources().any(Resource::may_ask) {
        vec![kind_of(RunObject::PlanRun).clone()]
    } else {
        Vec::new()
    }
}

impl Store {
    /// Takes in the reply to a write of an object of a run. Returns the instances that it concerns beside the writer: a
    /// run that an instance has called concerns two.
    pub(super) fn learn_run_object(&self, sort: RunObject, object: Value) -> Vec<InstanceKey> {
        let kind = kind_of(sort);
        let is_called = object["metadata"]["annotations"][names::CALLED_BY].is_string();
        let concerned = self.learn_owned(&kind.gvk, kind.owner, object);
        if is_called { concerned } else { Vec::new() }
    }

    /// The instances of a CRD that PlanRuns name and that do not exist.
    pub(super) fn stray_runs(&self, crd: &str) -> Vec<InstanceKey> {
        let registry = self.registry();
        let Some(label) = registry.get(crd).map(|registered| registered.kind_label()) else {
            return Vec::new();
        };
        let index = self.index();
        let is_stray = |claim: &Claim| names::claims_kind(claim, &label) && index.by_claim(claim).is_none();
        let runs = self.owned().with_claim(&kind_of(RunObject::PlanRun).gvk, is_stray);
        runs.iter().filter_map(|run| registry.instance_of_run(run)).collect()
    }

    /// An object of a run is known to be gone.
    pub(super) fn forget_run_object(&self, sort: RunObject, object: &RunRef) {
        let RunRef { namespace, name, uid, resource_version } = object;
        let metadata =
            json!({"namespace": namespace, "name": name, "uid": uid, "resourceVersion": resource_version});
        self.owned().remove(&kind_of(sort).gvk, &json!({"metadata": metadata}));
    }
}

impl Registry {
    /// The instance that a PlanRun names, if its kind is managed.
    pub(super) fn instance_of_run(&self, run: &Value) -> Option<InstanceKey> {
        let of = &run["spec"]["of"];
        let (group, _) = of["apiVersion"].as_str()?.split_once('/')?;
        let registered = self.by_kind_label(&names::kind_label(of["kind"].as_str()?, group))?;
        let namespace = run["metadata"]["namespace"].as_str().filter(|_| registered.kind.namespaced);
        Some(InstanceKey {
            crd: Arc::clone(&registered.crd),
            namespace: namespace.map(Into::into),
            name: of["name"].as_str()?.into(),
        })
    }
}

impl InstanceReconciler {
    /// Answers PlanRuns that cannot run: of an instance that does not exist, of a kind without plans, or in a namespace
    /// where runs of the instance do not belong. At most [`MAX_STRAY_WRITES`] are written; a later reconcile writes the rest.
    pub(super) async fn tell_stray_runs(&self, key: &InstanceKey) {
        let Some(registered) = self.store.registry().get(&key.crd) else { return };
        let kind = registered.kind.kind.as_str();
        let at_home = if self.store.index().has_instance(key) {
            let is_without_plans = registered.package.is_some() && !registered.has_plans();
            is_without_plans.then_some(Stray::NoPlans { kind })
        } else {
            let is_missing = self.watches.lists_instances(&registered);
            is_missing.then_some(Stray::NoInstance { kind, name: &key.name })
        };
        if at_home.is_none() && registered.kind.namespaced {
            return;
        }
        let home = self.home_of(key);
        let now = self.scheduler.clock.now();
        let mut writes = Vec::new();
        for object in self.store.owned_by(key, &kind_of(RunObject::PlanRun).gvk) {
            let is_delete = object["spec"]["plan"] == DELETE_CHILD;
            let stray = match at_home {
                _ if object["metadata"]["namespace"] != *home => Stray::WrongNamespace { kind, home },
                // A deletion is about a child, which may outlive the instance and needs no plans.
                Some(stray) if !is_delete => stray,
                _ => continue,
            };
            let Ok(run) = PlanRun::parse(&object) else { continue };
            let found = plan::stray(&run, stray, now);
            if let Some(wake) = found.wake {
                self.scheduler.queue.add_after(key.clone(), wake);
            }
            writes.extend(found.status.map(|status| RunAction::Store {
                run: RunRef::of(&object),
                status: Box::new(status.to_json()),
                intents: Vec::new(),
                event: None,
                ended: (run.spec.plan.clone(), plan::ended(&run, &status)),
            }));
            if writes.len() == MAX_STRAY_WRITES {
                break;
            }
        }
        if writes.is_empty() {
            return;
        }
        let mut wait = STRAY_WAIT;
        for write in writes {
            let written = self.executor.act_for_runs(key, &registered, &Value::Null, vec![write]).await;
            if let Err(error) = written {
                warn!(%error, "the status of a PlanRun cannot be written; trying again later");
                wait = wait.max(error.asked_to_wait().unwrap_or(STRAY_RETRY));
                if error.class == Class::Retry {
                    break;
                }
            }
        }
        // For the rest, and for those that another client has written in between.
        self.scheduler.queue.add_after(key.clone(), wait);
    }

    /// The namespace where runs of an instance belong.
    fn home_of<'a>(&'a self, key: &'a InstanceKey) -> &'a str {
        key.namespace.as_deref().unwrap_or(&self.namespace)
    }

    /// The runs of an instance. Those of a cluster-scoped instance count in the manager's namespace alone: a Role of any
    /// other namespace may permit anything there.
    fn runs_of(&self, key: &InstanceKey) -> Vec<Value> {
        let namespace = self.home_of(key);
        let mut runs = self.store.owned_by(key, &kind_of(RunObject::PlanRun).gvk);
        runs.retain(|run| run["metadata"]["namespace"] == namespace);
        runs
    }

    /// What is known of the runs that delete children of an instance; `None` if they are not watched.
    pub(super) fn deletion_runs(&self, key: &InstanceKey) -> Option<DeletionRuns> {
        let kind = kind_of(RunObject::PlanRun);
        let state = self.watches.open_owned_state(kind)?;
        let runs = self.runs_of(key);
        let runs = runs.iter().filter(|run| run["spec"]["plan"] == DELETE_CHILD);
        Some(DeletionRuns {
            // A run that cannot be read is not approved.
            runs: runs.filter_map(|run| PlanRun::parse(run).ok()).collect(),
            unknown: state.reason(&kind.gvk),
            is_listing: state == WatchState::Pending,
            resource: key.crd.split('.').next().unwrap_or_default().to_owned(),
            now: self.scheduler.clock.now(),
        })
    }

    /// Whether the first list of runs is under way. Its end queues all instances.
    pub(super) fn are_runs_listed_now(&self) -> bool {
        self.watches.open_owned_state(kind_of(RunObject::PlanRun)) == Some(WatchState::Pending)
    }

    /// Installs the API of runs, and watches them from now on: a child of a package that needs neither asks.
    ///
    /// # Errors
    /// The API server refuses the API, or cannot be reached.
    pub(super) async fn watch_deletion_runs(&self) -> Result<(), CallError> {
        self.effects.plan_api.install(self.effects.clients.own()).await?;
        self.watches.watch_owned_always(kind_of(RunObject::PlanRun));
        Ok(())
    }

    /// What is known of the runs of an instance whose kind has plans.
    pub(super) fn plan_snapshot(&self, key: &InstanceKey, instance: &Value) -> PlanSnapshot {
        let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        let states = KINDS.iter().map(|(_, kind)| (kind, self.watches.owned_state(kind)));
        let states: Vec<_> = states.filter(|(_, state)| *state != WatchState::Watching).collect();
        let is_listing = states.iter().all(|(_, state)| *state == WatchState::Pending);
        let unknown = states.iter().find_map(|(kind, state)| {
            let reason = state.reason(&kind.gvk)?;
            Some(format!("{} objects are unknown: {reason}", kind.gvk.kind))
        });
        let of_uid = |sort: RunObject| {
            let mut objects = self.store.owned_by(key, &kind_of(sort).gvk);
            objects.retain(|object| object["metadata"]["labels"][names::RUN_OF] == uid);
            objects
        };
        let is_paused = instance["metadata"]["annotations"][names::PAUSED] == "true";
        let namespace = self.home_of(key).to_owned();
        let (mut runs, mut misnamed, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        let plural = key.crd.split('.').next().unwrap_or_default();
        for object in self.runs_of(key) {
            match PlanRun::parse(&object) {
                Ok(run) if run.spec.plan == DELETE_CHILD => {}
                Ok(run) if run.spec.of.resource == plural => runs.push(run),
                Ok(run) => misnamed.push(run),
                Err(why) => {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    unreadable.push((name.to_owned(), why));
                }
            }
        }
        let active = || runs.iter().filter(|run| run.phase() == Phase::Running);
        let objects = active().flat_map(|run| run.status.as_ref().map_or(&[][..], |status| &status.steps));
        let named: BTreeSet<&str> =
            objects.flat_map(|step| &step.objects).map(|object| object.name.as_str()).collect();
        let others = named
            .iter()
            .filter_map(|name| self.store.owned().named(&kind_of(RunObject::PlanRun).gvk, &namespace, name));
        let others = others.filter_map(|object| PlanRun::parse(&object).ok()).collect();
        let is_awaited = |call: &CallKey| {
            let run = runs.iter().find(|run| *run.uid == *call.run && !run.is_final());
            let step = run.and_then(|run| run.status.as_ref()?.step(&call.step));
            step.is_some_and(|step| !step.phase.is_final() && step.attempt == call.attempt)
        };
        let is_open = |uid: &str| {
            let steps = active().flat_map(|run| run.status.as_ref().map_or(&[][..], |status| &status.steps));
            steps
                .flat_map(|step| &step.objects)
                .any(|object| object.uid.as_deref().is_none_or(|known| known == uid))
        };
        let is_active = |uid: &str| active().any(|run| run.uid == uid);
        self.effects.calls.keep(key, &is_awaited, &is_open, &is_active);
        let now = self.scheduler.clock.elapsed();
        let elapsed = self.scheduler.stopwatches.read(key, &runs, now, is_paused);
        PlanSnapshot {
            others,
            revisions: self.watches.revisions.known(key),
            origins: of_uid(RunObject::Origin),
            jobs: of_uid(RunObject::Job),
            calls: self.effects.calls.of(key),
            namespace,
            unknown,
            is_listing,
            digest_key: self.effects.digest_key(),
            now: self.scheduler.clock.now(),
            elapsed,
            runs,
            misnamed,
            unreadable,
        }
    }
}
