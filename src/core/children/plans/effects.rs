//! The effects of runs as actions: what the engine asks for, with the names and labels of the instance.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::api::Gvk;
use crate::children::model::{
    CallKey, FieldProjection, Observed, Origin, PlanSnapshot, ResourceSelector, RunAction, RunObject, RunRef,
    SecretOutputs, Select, job_end, reference,
};
use crate::children::names;
use crate::crd::API_VERSION;
use crate::plan::crds::PLAN_RUN;
use crate::plan::{CAUSE, Cause, Effect, Of, PRUNABLE, PlanRun, Progress};

/// The finalizer of a volume claim that a pod names.
const IN_USE: &str = "kubernetes.io/pvc-protection";
/// How long a finished Job stays once its result is recorded.
const TTL_SECONDS: u64 = 600;

/// The names and labels of what belongs to the runs of one instance.
pub(super) struct Naming<'a> {
    pub(super) origin: Origin<'a>,
    pub(super) plans: &'a PlanSnapshot,
}

impl Naming<'_> {
    /// The labels of an object that belongs to a run and is no child.
    fn labels(&self) -> Map<String, Value> {
        let kind = &self.origin.resource.kind;
        let home = self.origin.namespace();
        let elsewhere = (home != Some(&self.plans.namespace))
            .then(|| (names::INSTANCE_NAMESPACE, home.unwrap_or_default().to_owned()));
        let labels = [
            (names::MANAGED_BY, "operetta".to_owned()),
            (names::OPERATOR, self.origin.package.name.clone()),
            (names::KIND, names::kind_label(&kind.kind, &kind.group)),
            (names::INSTANCE, names::label_value(self.origin.name())),
            (names::RUN_OF, self.origin.uid().to_owned()),
        ];
        labels.into_iter().chain(elsewhere).map(|(name, value)| (name.to_owned(), value.into())).collect()
    }

    /// The metadata of an object that belongs to a run.
    fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "namespace": self.plans.namespace, "labels": self.labels()})
    }

    /// The instance, as PlanRuns name it.
    pub(super) fn of(&self) -> Of {
        let kind = &self.origin.resource.kind;
        Of {
            api_version: self.origin.instance["apiVersion"].as_str().unwrap_or_default().to_owned(),
            kind: kind.kind.clone(),
            resource: kind.plural.clone(),
            name: self.origin.name().to_owned(),
        }
    }

    /// A PlanRun of the instance.
    pub(super) fn plan_run(
        &self,
        name: &str,
        plan: &str,
        cause: Cause,
        annotations: &[(&str, String)],
    ) -> Value {
        let of = self.of();
        let mut metadata = self.metadata(name);
        metadata["annotations"] = json!({CAUSE: cause.as_str(), PRUNABLE: "true"});
        for (name, value) in annotations {
            metadata["annotations"][*name] = value.as_str().into();
        }
        body(API_VERSION, PLAN_RUN.kind, metadata, json!({"spec": {"of": of, "plan": plan}}))
    }

    /// The ControllerRevision of an origin.
    pub(super) fn revision(&self, name: &str, data: &Value, number: u64) -> Value {
        body("apps/v1", "ControllerRevision", self.metadata(name), json!({"data": data, "revision": number}))
    }

    fn job_ref(&self, name: &str, uid: &str) -> RunRef {
        let live = self.plans.jobs.iter().find(|job| job["metadata"]["name"] == name);
        let version = live.and_then(|job| job["metadata"]["resourceVersion"].as_str()).unwrap_or_default();
        RunRef {
            namespace: self.plans.namespace.clone(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            resource_version: version.to_owned(),
        }
    }

    /// The actions that one decision about a run comes to.
    pub(super) fn actions(&self, run: &PlanRun, progress: &Progress) -> Vec<RunAction> {
        if let Some(status) = &progress.status {
            return vec![RunAction::store(run, status, progress.intents.clone())];
        }
        progress.effects.iter().filter_map(|effect| self.action(run, effect)).collect()
    }

    pub(super) fn action(&self, run: &PlanRun, effect: &Effect) -> Option<RunAction> {
        Some(match effect {
            Effect::Call { step, attempt, request } => RunAction::Call {
                run: run.uid.clone(),
                step: step.clone(),
                attempt: *attempt,
                request: Box::new(request.clone()),
            },
            Effect::CreateJob { job, .. } => {
                let mut job = job.clone();
                let labels = job["metadata"]["labels"].as_object().cloned().unwrap_or_default();
                let labels: Map<_, _> = labels.into_iter().chain(self.labels()).collect();
                job["metadata"]["labels"] = labels.into();
                job["metadata"]["namespace"] = self.plans.namespace.as_str().into();
                RunAction::Create(RunObject::Job, Box::new(job))
            }
            Effect::DeleteJob { name, uid } => RunAction::Delete(RunObject::Job, self.job_ref(name, uid)),
            Effect::ReleaseJob { name, uid } => {
                let patch = json!({"spec": {"ttlSecondsAfterFinished": TTL_SECONDS}});
                RunAction::Change(RunObject::Job, self.job_ref(name, uid), Box::new(patch))
            }
            Effect::CreateRun { name, of, plan, params, .. } => {
                let kind = &self.origin.resource.kind;
                let own = format!("{}/{}", names::kind_label(&kind.kind, &kind.group), self.origin.name());
                let mut object = self.plan_run(name, plan, Cause::Request, &[(names::CALLED_BY, own)]);
                object["spec"]["of"] = json!(of);
                if !params.is_null() {
                    object["spec"]["params"] = params.clone();
                }
                // The run belongs to the instance that is called, and not to this one.
                if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
                    labels.retain(|name, _| name == names::MANAGED_BY);
                }
                RunAction::Create(RunObject::PlanRun, Box::new(object))
            }
            Effect::CancelRun { of, name } => {
                let is_it = |other: &&PlanRun| other.name == *name && other.spec.of.name == of.name;
                let other = self.plans.others.iter().find(is_it)?;
                RunAction::Change(
                    RunObject::PlanRun,
                    reference(other),
                    Box::new(json!({"spec": {"cancel": true}})),
                )
            }
            Effect::StoreSecrets { step, values } => {
                let mut metadata = self.metadata(&outputs_name(run));
                metadata["ownerReferences"] = json!([{
                    "apiVersion": API_VERSION, "kind": PLAN_RUN.kind, "name": run.name, "uid": run.uid,
                }]);
                let text = STANDARD.encode(Value::Object(values.clone()).to_string());
                let data = json!({"data": {outputs_key(step): text}});
                let step = CallKey { run: run.uid.as_str().into(), step: step.as_str().into(), attempt: 0 };
                RunAction::StoreSecrets {
                    step,
                    values: SecretOutputs(values.clone()),
                    secret: Box::new(body("v1", "Secret", metadata, data)),
                }
            }
        })
    }

    /// Deletes the Jobs whose results are recorded while a volume claim of the instance is being deleted: it stays for as long as
    /// a pod names it, ended or not.
    pub(super) fn in_the_way(&self, observed: &[Arc<Observed>]) -> Vec<RunAction> {
        let is_held =
            |live: &Arc<Observed>| live.terminating && live.held_by.iter().any(|by| **by == *IN_USE);
        if !observed.iter().any(is_held) {
            return Vec::new();
        }
        let is_recorded = |job: &&Value| {
            job_end(job).is_some()
                && !job["spec"]["ttlSecondsAfterFinished"].is_null()
                && job["metadata"]["deletionTimestamp"].is_null()
        };
        let ended = self.plans.jobs.iter().filter(is_recorded);
        ended.map(|job| RunAction::Delete(RunObject::Job, RunRef::of(job))).collect()
    }

    /// The finished Jobs whose pods are to be read.
    pub(super) fn unread_jobs(&self, awaited: impl Fn(&str) -> bool) -> Vec<RunAction> {
        let read = |job: &Value| {
            let end = job_end(job)?;
            let object = RunRef::of(job);
            let is_due = !self.plans.calls.jobs.contains_key(&*object.uid) && awaited(&object.name);
            is_due.then_some(RunAction::ReadJob(object, end))
        };
        self.plans.jobs.iter().filter_map(read).collect()
    }
}

/// The name of the Secret that holds the secret outputs of a run, and of the runs that resume it.
pub(super) fn outputs_name(run: &PlanRun) -> String {
    let id = run.status.as_ref().map_or(&run.uid, |status| &status.id);
    format!("{}-outputs-{}", names::label_value(&run.spec.of.name), names::short_hash(id, 10))
}

/// The key of the outputs of a step in the Secret of its run.
pub(super) fn outputs_key(step: &str) -> String {
    names::short_hash(step, 10)
}

/// The Secret that holds the secret outputs of a run.
pub(super) fn outputs_selector(plans: &PlanSnapshot, run: &PlanRun) -> ResourceSelector {
    ResourceSelector {
        gvk: Gvk::new("v1", "Secret"),
        namespace: Some(plans.namespace.as_str().into()),
        select: Select::Name(outputs_name(run).into()),
        keep: FieldProjection { paths: [vec!["data".to_owned()]].into(), content: true },
    }
}

fn body(api_version: &str, kind: &str, metadata: Value, rest: Value) -> Value {
    let mut body = rest;
    body["apiVersion"] = api_version.into();
    body["kind"] = kind.into();
    body["metadata"] = metadata;
    body
}
