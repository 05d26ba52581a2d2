//! Runs of plans in decisions: what they write goes to a store in memory.

use k8s_openapi::jiff::Timestamp;
use operetta_kube_model::patch::merge;

use super::*;
use crate::children::model::{Calls, KeyProblem, PlanSnapshot, Revision};
use crate::children::plans;
use crate::children::plans::Stored;
use crate::plan::{
    CallKey, DELETE_CHILD, Of, Phase, PlanRun, Protection, Recalled, Request, RunAction, RunObject,
};

mod explored;
mod failed;
mod jobs;
mod losses;
mod namespaces;
mod quick;
mod refs;
mod refused;
mod repeating;
mod retained;
mod schedules;
mod secrets;
mod unserved;
mod upgrades;
mod wiped;

/// The plans of all runs.
fn plan_names(world: &World) -> Vec<String> {
    world.phases().into_iter().map(|(plan, _)| plan).collect()
}

/// The objects and requests of runs, as the API server and this process have them.
#[derive(Clone, Default)]
pub(super) struct RunStore {
    pub(super) runs: BTreeMap<String, Value>,
    /// The `InstanceState`.
    state: Option<Value>,
    /// The Secret that was written last.
    secret: Value,
    origins: Vec<Value>,
    jobs: Vec<Value>,
    calls: Calls,
    /// The earlier revisions of the package that are known.
    revisions: BTreeMap<Arc<str>, Revision>,
    key_problem: Option<KeyProblem>,
    pub(super) protection: Protection,
    serial: u64,
    /// For how long each run has been active since its state was stored: its `usedMilliseconds`, and that time.
    active: BTreeMap<String, (u64, Duration)>,
    /// What is sent or stored, in order.
    log: Vec<String>,
    /// Which writes the API server refuses.
    refuses: Option<fn(&RunAction) -> bool>,
}

impl RunStore {
    pub(super) fn snapshot(&self, now: Duration, instance: &Value) -> PlanSnapshot {
        let stored = Stored { instance, of: &of(), object: self.state.as_ref(), now: self.time() + now };
        let runs = self.parsed().filter(|run| run.spec.plan != DELETE_CHILD).collect();
        let (state, Recalled { runs, strangers }) = plans::recall(stored, runs);
        PlanSnapshot {
            elapsed: runs.iter().map(|run| (run.uid.clone(), self.active_for(run))).collect(),
            state,
            runs,
            strangers,
            misnamed: Vec::new(),
            unreadable: Vec::new(),
            others: Vec::new(),
            occupied: BTreeSet::new(),
            origins: self.origins.clone(),
            jobs: self.jobs.clone(),
            calls: self.calls.clone(),
            namespace: "n".into(),
            revisions: self.revisions.clone(),
            unknown: None,
            is_listing: false,
            digest_key: b"key".to_vec(),
            key_problem: self.key_problem.clone(),
            protection: self.protection.clone(),
            now: self.time() + now,
        }
    }

    fn active_for(&self, run: &PlanRun) -> Duration {
        let known = self.active.get(&run.uid).filter(|(stored, _)| *stored == used(run));
        known.map(|(_, passed)| *passed).unwrap_or_default()
    }

    /// Stores a revision of the package.
    pub(super) fn knows(&mut self, package: &Arc<Package>) {
        self.revisions.insert(package.revision().into(), Revision::Loaded(Arc::clone(package)));
    }

    pub(super) fn deletions(&self, now: Duration) -> DeletionRuns {
        DeletionRuns {
            runs: self.parsed().filter(|run| run.spec.plan == DELETE_CHILD).collect(),
            unknown: None,
            is_listing: false,
            resource: "things".into(),
            protection: self.protection.clone(),
            now: self.time() + now,
        }
    }

    fn parsed(&self) -> impl Iterator<Item = PlanRun> {
        self.runs.values().map(|run| PlanRun::parse(run).unwrap())
    }

    /// `kubectl patch` of the specs of all runs that delete children.
    pub(super) fn patch_deletions(&mut self, spec: &Value) {
        for run in self.runs.values_mut().filter(|run| run["spec"]["plan"] == DELETE_CHILD) {
            merge(&mut run["spec"], spec);
        }
    }

    /// Replaces what is stored. A decision that writes what is there already is a mistake: the next one would write it again.
    fn replace(stored: &mut Value, new: Value) {
        let content = |object: &Value| {
            let mut object = object.clone();
            object.as_object_mut().map(|map| map.remove("sequence"));
            object
        };
        assert_ne!(content(stored), content(&new), "it is there already");
        *stored = new;
    }

    /// Each write takes a second.
    fn time(&self) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + i64::try_from(self.serial).unwrap()).unwrap()
    }

    /// `kubectl delete` of a PlanRun.
    fn delete(&mut self, name: &str) {
        let metadata = &mut self.runs.get_mut(name).unwrap()["metadata"];
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        self.remove_released(name);
    }

    /// Removes a PlanRun that is being deleted, once it has no finalizer.
    fn remove_released(&mut self, name: &str) {
        let metadata = &self.runs[name]["metadata"];
        let is_held = metadata["finalizers"].as_array().is_some_and(|held| !held.is_empty());
        if metadata["deletionTimestamp"].is_string() && !is_held {
            self.runs.remove(name);
        }
    }

    /// The outcome of an action that the API server refuses.
    pub(super) fn refusal(&self, action: &Action) -> Option<ActionOutcome> {
        let Action::Run(run) = action else { return None };
        let is_refused = self.refuses.is_some_and(|refuses| refuses(run));
        let error = || refusal(403, "Forbidden", "exceeded quota");
        is_refused.then(|| ActionOutcome::RunRefused(run.subject().unwrap(), error()))
    }

    pub(super) fn carry_out(&mut self, action: RunAction, instance: &mut Value) {
        self.serial += 1;
        let version = self.serial.to_string();
        match action {
            RunAction::If { then, .. } => self.carry_out(*then, instance),
            RunAction::Create(RunObject::PlanRun, body) => {
                let mut body = *body;
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                body["metadata"]["uid"] = format!("uid-{name}").into();
                body["metadata"]["resourceVersion"] = version.into();
                body["metadata"]["creationTimestamp"] = self.time().to_string().into();
                assert_eq!(self.runs.insert(name, body), None, "it is there already");
            }
            RunAction::Create(RunObject::Origin, body) => {
                let is_there = |known: &Value| known["metadata"]["name"] == body["metadata"]["name"];
                assert!(!self.origins.iter().any(is_there), "it is there already: {body}");
                self.origins.push(*body);
            }
            RunAction::Create(RunObject::Job, body) => {
                let mut body = *body;
                body["metadata"]["uid"] = format!("job-{version}").into();
                body["metadata"]["resourceVersion"] = version.into();
                body["metadata"]["creationTimestamp"] = self.time().to_string().into();
                self.jobs.push(body);
            }
            RunAction::Store { memory: Some(write), .. } => {
                self.carry_out(RunAction::Remember(*write), instance);
            }
            RunAction::Remember(write) => {
                let mut body = *write.body;
                body["metadata"]["uid"] = "state".into();
                let stored = self.state.get_or_insert_default();
                Self::replace(&mut stored["spec"], body["spec"].clone());
                body["metadata"]["resourceVersion"] = version.into();
                *stored = body;
            }
            RunAction::Store { run, status, .. } | RunAction::Show(run, status) => {
                let object = self.runs.get_mut(&run.name).unwrap();
                Self::replace(&mut object["status"], *status);
                object["metadata"]["resourceVersion"] = version.into();
            }
            RunAction::DeleteState(_) => self.state = None,
            RunAction::Change(RunObject::PlanRun, run, patch) => {
                let object = self.runs.get_mut(&run.name).unwrap();
                let mut changed = object.clone();
                merge(&mut changed, &patch);
                Self::replace(object, changed);
                object["metadata"]["resourceVersion"] = version.into();
                self.remove_released(&run.name);
            }
            RunAction::Delete(RunObject::Origin, origin) => {
                self.origins.retain(|known| known["metadata"]["name"] != origin.name.as_str());
            }
            RunAction::Delete(RunObject::PlanRun, run) => {
                self.runs.remove(&run.name);
            }
            RunAction::Annotate(annotations) => {
                let mut changed = instance.clone();
                for (name, value) in annotations {
                    merge(&mut changed, &json!({"metadata": {"annotations": {name: value}}}));
                }
                Self::replace(instance, changed);
            }
            RunAction::StoreSecrets { step, values, secret } => {
                self.log.push(format!("store {}", secret["metadata"]["name"]));
                self.calls.secrets.insert(step, values);
                self.secret = *secret;
            }
            RunAction::EmptySecret(secret) => {
                assert!(secret["data"].is_null(), "{secret}");
                self.log.push(format!("empty {}", secret["metadata"]["name"]));
            }
            RunAction::Call(CallKey { step, .. }, request) => self.log.push(match *request {
                Request::Http(http) => format!("{step}: {:?}", http.headers),
                Request::Exec(exec) => format!("{step}: {} {:?}", exec.pod, exec.command),
                Request::Patch(patch) => format!("{step}: {}", patch.merge),
            }),
            other => panic!("{other:?}"),
        }
    }
}

impl World {
    /// A world whose kind has plans.
    pub(super) fn with_runs(package: Arc<Package>, spec: &Value) -> Self {
        let mut world = Self::new(package, spec);
        world.instance["metadata"]["creationTimestamp"] = "2023-11-14T00:00:00Z".into();
        world.has_plans = true;
        world
    }

    fn store(&mut self) -> &mut RunStore {
        &mut self.runs
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        let runs = self.runs.snapshot(self.now, &self.instance).runs;
        for run in runs.iter().filter(|run| run.is_active()) {
            let passed = self.runs.active_for(run) + time;
            self.runs.active.insert(run.uid.clone(), (used(run), passed));
        }
        self.now += time;
    }

    /// The plans of all runs, in the order of their numbers, and their phases.
    fn phases(&self) -> Vec<(String, Phase)> {
        let mut runs = self.runs.snapshot(self.now, &self.instance).runs;
        runs.sort_by_key(PlanRun::number);
        runs.iter().map(|run| (run.spec.plan.clone(), run.phase())).collect()
    }

    /// A text of a `ConfigMap`.
    fn value(&self, name: &str, key: &str) -> Value {
        self.server.objects[&format!("ConfigMap/{name}")]["data"][key].clone()
    }
}

/// For how long a run was active, as it is stored.
fn used(run: &PlanRun) -> u64 {
    run.status.as_ref().map(|status| status.used_milliseconds).unwrap_or_default()
}

/// The instance, as PlanRuns name it.
fn of() -> Of {
    Of {
        api_version: "example.org/v1".into(),
        kind: "Thing".into(),
        resource: "things".into(),
        name: "a".into(),
    }
}

pub(super) fn is_refusal(outcome: &ActionOutcome) -> bool {
    matches!(outcome, ActionOutcome::RunRefused(..))
}

pub(super) fn writes_memory(action: &Action) -> bool {
    matches!(action, Action::Run(run) if matches!(**run, RunAction::Remember(_)))
}

/// `kubectl create` of a PlanRun.
pub(super) fn request(world: &mut World, name: &str, plan: &str) {
    let of = json!({"apiVersion": "example.org/v1", "kind": "Thing", "resource": "things", "name": "a"});
    let body = json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"of": of, "plan": plan}});
    let mut instance = Value::Null;
    world.store().carry_out(RunAction::Create(RunObject::PlanRun, Box::new(body)), &mut instance);
}
