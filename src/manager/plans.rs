//! What is known of the runs of an instance, gathered for a decision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tracing::warn;

use super::index::InstanceKey;
use super::owned_kinds::{OwnedKind, RUN_KINDS, kind_of};
use super::reconcile::InstanceReconciler;
use super::registry::{Registered, Registry};
use super::store::Store;
use super::watches::WatchState;
use crate::api::{CallError, Class, Gvk};
use crate::children::DeletionRuns;
use crate::children::names::{self, Claim};
use crate::children::plans::{self, InstanceMemory, PlanSnapshot, Stored};
use crate::package::Resource;
use crate::package::plan::{Event, Plan};
use crate::plan::{
    self, CallKey, DELETE_CHILD, Of, Phase, PlanRun, Recalled, RunAction, RunObject, RunRef, Stray,
};

/// How long the memory of an instance that does not exist is kept.
const STATE_PATIENCE: Duration = Duration::from_secs(60 * 60);
/// How many PlanRuns that cannot run are answered in one reconcile.
const MAX_STRAY_WRITES: usize = 8;
/// How long until the next reconcile answers more of them.
const STRAY_WAIT: Duration = Duration::from_secs(1);
/// How long until an answer that could not be written is tried again, if the server names no time.
const STRAY_RETRY: Duration = Duration::from_secs(30);

impl Store {
    /// Takes in the reply to a write of an object of a run. Returns the instances that it concerns beside the writer: a
    /// run that an instance has called concerns two.
    pub(super) fn learn_run_object(&self, sort: RunObject, object: Value) -> Vec<InstanceKey> {
        let kind = kind_of(sort);
        let is_called = object["metadata"]["annotations"][names::CALLED_BY].is_string();
        let concerned = self.learn_owned(&kind.gvk, kind.owner, object);
        if is_called { concerned } else { Vec::new() }
    }

    /// The instances of a CRD that PlanRuns or InstanceStates name and that do not exist.
    pub(super) fn stray_runs(&self, crd: &str) -> Vec<InstanceKey> {
        let registry = self.registry();
        let Some(label) = registry.get(crd).map(|registered| registered.kind_label()) else {
            return Vec::new();
        };
        let index = self.index();
        let is_stray = |claim: &Claim| names::claims_kind(claim, &label) && index.by_claim(claim).is_none();
        let owned = self.owned();
        let all = [RunObject::PlanRun, RunObject::State];
        let all = all.into_iter().flat_map(|sort| owned.with_claim(&kind_of(sort).gvk, is_stray));
        all.filter_map(|object| registry.instance_of_run(&object)).collect()
    }

    /// Whether an object of that kind belongs to a run of a plan of instances with that label.
    pub(super) fn has_run_object(&self, gvk: &Gvk, kind_label: &str) -> bool {
        let owned = self.owned();
        let mut objects = owned.with_claim(gvk, |claim| names::claims_kind(claim, kind_label));
        objects.any(|object| object["spec"]["plan"] != DELETE_CHILD)
    }

    /// Forgets an object of a run that is known to be gone.
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

fn is_without_plans(resource: &Resource) -> bool {
    resource.plans.is_empty()
}

/// The PlanRuns that name an instance.
#[derive(Default)]
pub(super) struct InstanceRuns {
    /// The state of the watch before the runs were read; `None` if they are not watched. A list that ends
    /// later may have brought runs that are missing here.
    state: Option<WatchState>,
    /// Runs of plans that the package declares.
    pub plans: Vec<PlanRun>,
    /// Runs that delete children.
    pub deletions: Vec<PlanRun>,
    /// See [`PlanSnapshot::misnamed`].
    misnamed: Vec<PlanRun>,
    /// See [`PlanSnapshot::unreadable`].
    unreadable: Vec<(String, String)>,
}

/// The answers to runs that cannot run, at most [`MAX_STRAY_WRITES`], and when to look again. `at_home`: why those in the
/// namespace of the instance cannot run; `kind` and `home`: of the instance.
fn stray_writes(
    objects: impl IntoIterator<Item = Value>,
    at_home: Option<Stray<'_>>,
    (kind, home): (&str, &str),
    now: Timestamp,
) -> (Vec<RunAction>, Option<Duration>) {
    let (mut writes, mut wake) = (Vec::new(), None);
    for object in objects {
        let is_delete = object["spec"]["plan"] == DELETE_CHILD;
        let stray = match at_home {
            _ if object["metadata"]["namespace"] != *home => Stray::WrongNamespace { kind, home },
            // A deletion is about a child, which may outlive the instance and needs no plans.
            Some(stray) if !is_delete => stray,
            _ => continue,
        };
        let Ok(run) = PlanRun::parse(&object) else { continue };
        let found = plan::stray(&run, stray, now);
        wake = [wake, found.wake].into_iter().flatten().min();
        writes.extend(found.status.map(|status| RunAction::Store {
            run: RunRef::of(&object),
            status: Box::new(status.to_json()),
            memory: None,
            intents: Vec::new(),
            event: None,
            ended: (run.spec.plan.clone(), plan::ended(&run, &status)),
        }));
        if writes.len() == MAX_STRAY_WRITES {
            break;
        }
    }
    (writes, wake)
}

impl InstanceReconciler {
    /// Answers PlanRuns that cannot run: of an instance that does not exist, of a kind without plans, or in a namespace
    /// where runs of the instance do not belong. At most [`MAX_STRAY_WRITES`] are written; a later reconcile writes the rest.
    pub(super) async fn tell_stray_runs(&self, key: &InstanceKey) {
        let Some(registered) = self.store.registry().get(&key.crd) else { return };
        let kind = registered.kind.kind.as_str();
        let kept = self.kept_revision(key, &registered);
        let at_home = if self.store.index().has_instance(key) {
            // While the revision that the instance keeps is being loaded, its plans are unknown.
            let is_without_plans = self.resource_of(key, &registered).is_some_and(is_without_plans)
                && !(registered.has_runs && self.has_runs(key, &registered, &self.read_runs(key)));
            is_without_plans.then_some(Stray::NoPlans { kind, revision: kept.as_deref() })
        } else {
            let is_missing = self.watches.lists_instances(&registered);
            is_missing.then_some(Stray::NoInstance { kind, name: &key.name })
        };
        if at_home.is_none() && registered.kind.namespaced {
            return;
        }
        let home = self.home_of(key);
        let now = self.scheduler.clock.now();
        let objects = self.store.each_owned_by(key, &kind_of(RunObject::PlanRun).gvk);
        let (mut writes, mut wake) = stray_writes(objects, at_home, (kind, home), now);
        if matches!(at_home, Some(Stray::NoInstance { .. })) {
            let (leftovers, later) = self.leftovers(key, now);
            // What is left of an instance is deleted only if a live read does not find the instance either, and none has come since.
            if !leftovers.is_empty()
                && matches!(self.executor.refresh(key, &registered).await, Ok(None))
                && !self.store.index().has_instance(key)
            {
                writes.extend(leftovers);
            }
            wake = [wake, later].into_iter().flatten().min();
        }
        if let Some(wake) = wake {
            self.scheduler.queue.add_after(key.clone(), wake);
        }
        if writes.is_empty() {
            return;
        }
        let mut wait = STRAY_WAIT;
        for write in writes {
            let written = self.executor.act_for_run(key, &registered, &Value::Null, write).await;
            if let Err(error) = written {
                warn!(%error, "the status of a PlanRun cannot be written; trying again later");
                wait = wait.max(error.asked_to_wait().unwrap_or(STRAY_RETRY));
                if error.class == Class::Retry {
                    break;
                }
            }
        }
        // A later reconcile answers the rest, and those that another client has written meanwhile.
        self.scheduler.queue.add_after(key.clone(), wait);
    }

    /// The actions that delete the memory of an instance that does not exist, and that release its PlanRuns
    /// which are being deleted; and when to check again. The memory may have been restored before its
    /// instance: it stays for an hour, unless the instance has ended.
    fn leftovers(&self, key: &InstanceKey, now: Timestamp) -> (Vec<RunAction>, Option<Duration>) {
        let (home, mut wake) = (self.home_of(key), None);
        let is_home = |object: &Value| object["metadata"]["namespace"] == home;
        let runs = self.store.each_owned_by(key, &kind_of(RunObject::PlanRun).gvk);
        let runs = runs.filter(is_home).filter_map(|run| PlanRun::parse(&run).ok());
        let held = runs.filter(|run| run.deleting && run.has_finalizer());
        let mut found: Vec<RunAction> = held.map(|run| plans::released(&run)).collect();
        let states = self.store.each_owned_by(key, &kind_of(RunObject::State).gvk);
        for state in states.filter(is_home) {
            let created = state["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse().ok());
            let age = Duration::try_from(now.duration_since(created.unwrap_or(now))).unwrap_or_default();
            let is_over =
                state["spec"]["hasEnded"] == true || !state["metadata"]["deletionTimestamp"].is_null();
            match STATE_PATIENCE.checked_sub(age).filter(|_| !is_over) {
                Some(rest) => wake = Some(wake.map_or(rest, |known: Duration| known.min(rest))),
                None => found.push(RunAction::DeleteState(RunRef::of(&state))),
            }
        }
        (found, wake)
    }

    /// The namespace where runs of an instance belong.
    fn home_of<'a>(&'a self, key: &'a InstanceKey) -> &'a str {
        key.namespace.as_deref().unwrap_or(&self.namespace)
    }

    /// The runs of an instance. Those of a cluster-scoped instance count in the manager's namespace alone: a Role of any
    /// other namespace may permit anything there.
    fn runs_of<'a>(&'a self, key: &'a InstanceKey) -> impl Iterator<Item = Value> + use<'a> {
        let namespace = self.home_of(key);
        let runs = self.store.each_owned_by(key, &kind_of(RunObject::PlanRun).gvk);
        runs.filter(move |run| run["metadata"]["namespace"] == namespace)
    }

    /// The PlanRuns that name an instance, parsed once a decision.
    pub(super) fn read_runs(&self, key: &InstanceKey) -> InstanceRuns {
        let state = self.watches.open_owned_state(kind_of(RunObject::PlanRun));
        let mut read = InstanceRuns { state, ..InstanceRuns::default() };
        if read.state.is_none() {
            return read;
        }
        let plural = key.crd.split('.').next().unwrap_or_default();
        for object in self.runs_of(key) {
            let is_deletion = object["spec"]["plan"] == DELETE_CHILD;
            match PlanRun::parse(&object) {
                Ok(run) if is_deletion => read.deletions.push(run),
                // A deletion that cannot be read is not approved.
                Err(_) if is_deletion => {}
                Ok(run) if run.spec.of.resource == plural => read.plans.push(run),
                Ok(run) => read.misnamed.push(run),
                Err(why) => {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    read.unreadable.push((name.to_owned(), why));
                }
            }
        }
        read
    }

    /// What is known of the runs that delete children of an instance; `None` if they are not watched.
    pub(super) fn deletion_runs(&self, key: &InstanceKey, read: &mut InstanceRuns) -> Option<DeletionRuns> {
        let kind = kind_of(RunObject::PlanRun);
        let state = read.state.clone()?;
        Some(DeletionRuns {
            runs: std::mem::take(&mut read.deletions),
            unknown: state.reason(&kind.gvk),
            is_listing: state == WatchState::Pending,
            resource: key.crd.split('.').next().unwrap_or_default().to_owned(),
            protection: self.effects.plan_api.protection(),
            now: self.scheduler.clock.now(),
        })
    }

    /// Whether the first list of runs is under way. Its end queues all instances.
    pub(super) fn are_runs_listed_now(&self) -> bool {
        self.watches.open_owned_state(kind_of(RunObject::PlanRun)) == Some(WatchState::Pending)
    }

    /// Installs the API of runs, and watches them from now on, because a child asks although its package
    /// needs neither.
    ///
    /// # Errors
    /// The API server refuses the API, or cannot be reached.
    pub(super) async fn watch_deletion_runs(&self) -> Result<(), CallError> {
        self.watches.install_plan_api().await?;
        self.watches.watch_owned_always(kind_of(RunObject::PlanRun));
        Ok(())
    }

    /// Whether the runs of an instance are part of its decisions: the revision that it is reconciled with has plans, or
    /// another one of its package has or had, and something of their runs is left.
    pub(super) fn has_runs(&self, key: &InstanceKey, registered: &Registered, runs: &InstanceRuns) -> bool {
        // An instance whose revision cannot be loaded is deleted with the cleanup of the active one.
        let active = || registered.resource().map(|(_, resource)| resource);
        let resource = self.resource_of(key, registered).or_else(active);
        let has_plans = resource.is_some_and(|resource| !is_without_plans(resource));
        if has_plans || !registered.has_runs {
            return has_plans;
        }
        RUN_KINDS.iter().any(|(sort, kind)| match self.watches.owned_state(kind) {
            WatchState::Watching | WatchState::OtherVersion(_) => match sort {
                RunObject::PlanRun => {
                    let mut all = runs.plans.iter().chain(&runs.misnamed);
                    !runs.unreadable.is_empty() || all.any(|run| !run.is_new() || run.taken().is_some())
                }
                RunObject::Origin | RunObject::Job | RunObject::State => {
                    !self.store.owned_by(key, &kind.gvk).is_empty()
                }
            },
            // Objects may exist. A decision reports that they are unknown.
            state => !state.is_missing(),
        })
    }

    /// See [`PlanSnapshot::occupied`].
    fn occupied(&self, key: &InstanceKey, namespace: &str, runs: &[PlanRun]) -> BTreeSet<String> {
        let gvk = &kind_of(RunObject::PlanRun).gvk;
        let own: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        let registered = self.store.registry().get(&key.crd);
        let resource = registered.as_ref().and_then(|registered| self.resource_of(key, registered));
        let plans = resource.map_or(&[][..], |resource| &resource.plans);
        let is_scheduled = |plan: &&Plan| {
            plan.triggers.iter().any(|trigger| matches!(trigger.event, Event::Schedule { .. }))
        };
        let owned = self.store.owned();
        let scheduled = plans.iter().filter(is_scheduled);
        let scheduled = scheduled
            .flat_map(|plan| owned.names(gvk, namespace, &plan::scheduled_prefix(&key.name, &plan.name)));
        let highest = runs.iter().filter_map(PlanRun::number).max().unwrap_or_default();
        let numbered = (highest.saturating_add(1)..).map(|number| format!("{}-{number}", key.name));
        let numbered = numbered.take_while(|name| owned.has(gvk, namespace, name));
        scheduled.chain(numbered).filter(|name| !own.contains(name.as_str())).collect()
    }

    /// The memory of an instance, and which of its runs count.
    fn recall(&self, key: &InstanceKey, instance: &Value, runs: Vec<PlanRun>) -> (InstanceMemory, Recalled) {
        let of = of(key, instance);
        let (gvk, home) = (&kind_of(RunObject::State).gvk, self.home_of(key));
        let object = self.store.owned().named(gvk, home, &plans::state_name(&of));
        let stored = Stored { instance, of: &of, object: object.as_ref(), now: self.scheduler.clock.now() };
        plans::recall(stored, runs)
    }

    /// Reads the `InstanceState` of an instance, which was not seen yet. Returns whether it is there.
    ///
    /// # Errors
    /// The API server cannot be reached.
    pub(super) async fn read_state(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
    ) -> Result<bool, CallError> {
        let (sort, name) = (RunObject::State, plans::state_name(&of(key, instance)));
        let cluster = self.effects.for_instances(registered);
        let live = cluster.get(&sort.kind(), Some(self.home_of(key)), &name).await?;
        let is_there = live.is_some();
        if let Some(live) = live {
            self.store.learn_run_object(sort, live);
        }
        Ok(is_there)
    }

    /// What is known of the runs of an instance whose kind has plans, or had.
    pub(super) fn plan_snapshot(
        &self,
        key: &InstanceKey,
        instance: &Value,
        runs: InstanceRuns,
    ) -> PlanSnapshot {
        let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        let state_of = |sort: RunObject, kind: &OwnedKind| match sort {
            RunObject::PlanRun => runs.state.clone().unwrap_or(WatchState::Pending),
            // They are read below.
            RunObject::Origin | RunObject::Job | RunObject::State => self.watches.owned_state(kind),
        };
        let states = RUN_KINDS.iter().map(|(sort, kind)| (kind, state_of(*sort, kind)));
        let states: Vec<_> = states.filter(|(_, state)| *state != WatchState::Watching).collect();
        let is_listing = !states.is_empty() && states.iter().all(|(_, state)| *state == WatchState::Pending);
        let unknown = states.iter().find_map(|(kind, state)| {
            let reason = state.reason(&kind.gvk)?;
            Some(format!("{} objects are unknown: {reason}", kind.gvk.kind))
        });
        let of_uid = |sort: RunObject| {
            let mut objects = self.store.owned_by(key, &kind_of(sort).gvk);
            objects.retain(|object| is_of(object, uid, self.home_of(key)));
            objects
        };
        let is_paused = instance["metadata"]["annotations"][names::PAUSED] == "true";
        let namespace = self.home_of(key).to_owned();
        let InstanceRuns { plans: runs, misnamed, unreadable, .. } = runs;
        let mut origins = self.store.owned_by(key, &kind_of(RunObject::Origin).gvk);
        origins.retain(|origin| origin["metadata"]["namespace"] == *self.home_of(key));
        let (state, Recalled { runs, strangers }) = self.recall(key, instance, runs);
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
        let is_named = |name: &str| named.contains(name);
        self.effects.calls.keep(key, &is_awaited, &is_open, &is_active, &is_named);
        let now = self.scheduler.clock.elapsed();
        let elapsed = self.scheduler.stopwatches.read(key, &runs, now, is_paused);
        PlanSnapshot {
            others,
            occupied: self.occupied(key, &namespace, &runs),
            revisions: self.watches.revisions.known(key),
            origins: plans::own_origins(origins, uid, &state.memory),
            state,
            strangers,
            jobs: of_uid(RunObject::Job),
            calls: self.effects.calls.of(key),
            namespace,
            unknown,
            is_listing,
            digest_key: self.effects.digest_key(),
            key_problem: self.effects.key_problem(),
            now: self.scheduler.clock.now(),
            protection: self.effects.plan_api.protection(),
            elapsed,
            runs,
            misnamed,
            unreadable,
        }
    }
}

/// An instance as its PlanRuns and its `InstanceState` name it.
fn of(key: &InstanceKey, instance: &Value) -> Of {
    let text = |field: &str| instance[field].as_str().unwrap_or_default().to_owned();
    Of {
        api_version: text("apiVersion"),
        kind: text("kind"),
        resource: key.crd.split('.').next().unwrap_or_default().to_owned(),
        name: key.name.to_string(),
    }
}

/// Whether a Job or a ControllerRevision is of the runs of an instance. In another namespace anybody who may create such
/// objects there can give them the labels of this instance.
fn is_of(object: &Value, uid: &str, home: &str) -> bool {
    let metadata = &object["metadata"];
    metadata["namespace"] == home && metadata["labels"][names::RUN_OF] == uid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_another_namespace_is_of_no_run() {
        let job = |namespace: &str, uid: &str| json!({"metadata": {"name": "a-1-x", "namespace": namespace, "labels": {names::RUN_OF: uid}}});
        assert!(is_of(&job("b", "u"), "u", "b"));
        assert!(!is_of(&job("a", "u"), "u", "b"));
        assert!(!is_of(&job("b", "v"), "u", "b"));
    }

    /// A tenant requests many runs of an instance that does not exist: other work takes its turn among the answers.
    #[test]
    fn at_most_eight_stray_runs_are_answered_at_a_time() {
        let of = json!({"apiVersion": "e/v1", "kind": "Desk", "resource": "desks", "name": "a"});
        let run = |name: String| {
            json!({"metadata": {"name": name, "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"of": of, "plan": "x"}})
        };
        let mut objects: Vec<Value> = (0..20).map(|number| run(format!("r-{number:02}"))).collect();
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let missing = Some(Stray::NoInstance { kind: "Desk", name: "a" });
        let mut counts = Vec::new();
        loop {
            let (writes, wake) = stray_writes(objects.clone(), missing, ("Desk", "n"), now);
            assert_eq!(wake, Some(Duration::from_secs(50 * 60)), "they wait an hour for their instance");
            if writes.is_empty() {
                break;
            }
            counts.push(writes.len());
            for write in writes {
                let RunAction::Store { run, status, .. } = write else { panic!("{write:?}") };
                let object = objects.iter_mut().find(|object| object["metadata"]["name"] == *run.name);
                object.unwrap()["status"] = *status;
            }
        }
        assert_eq!(counts, [8, 8, 4]);
        // In a wrong namespace the answer does not say whether the instance exists; the limit is the same.
        let (writes, _) = stray_writes(objects, None, ("Desk", "elsewhere"), now);
        assert_eq!(writes.len(), 8);
    }
}
