//! The instance of a run, and the objects that its runs create, with names and labels that a repetition meets again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::crds::PLAN_RUN;
use super::names::keyed_digest;
use super::run::{CAUSE, Cause, Of, PRUNABLE, PlanRun};
use crate::crd::API_VERSION;
use crate::names;

/// The instance of a run.
#[derive(Debug, Clone, Default)]
pub struct Instance {
    /// Its kind and name.
    pub of: Of,
    /// Its uid.
    pub uid: String,
    /// Its namespace; that of the manager, where its Jobs and `PlanRuns` lie, if it is cluster-scoped.
    pub namespace: String,
    /// The labels of what belongs to its runs and is no child.
    pub labels: Map<String, Value>,
    /// A secret of the installation: hashes of requests are keyed with it, because requests may contain secret data.
    pub digest_key: Vec<u8>,
}

impl Instance {
    /// The metadata of an object that belongs to a run.
    fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "namespace": self.namespace, "labels": self.labels})
    }

    /// A PlanRun of the instance.
    pub(crate) fn plan_run(
        &self,
        name: &str,
        plan: &str,
        cause: Cause,
        annotations: &[(&str, String)],
    ) -> Value {
        let mut metadata = self.metadata(name);
        metadata["annotations"] = json!({CAUSE: cause.as_str(), PRUNABLE: "true"});
        for (name, value) in annotations {
            metadata["annotations"][*name] = value.as_str().into();
        }
        body(API_VERSION, PLAN_RUN.kind, metadata, json!({"spec": {"of": self.of, "plan": plan}}))
    }

    /// A PlanRun of another instance, which a step creates. `of.resource` is empty.
    pub(super) fn called_run(&self, name: &str, of: &Of, plan: &str, params: Value) -> Value {
        let mut run = self.plan_run(name, plan, Cause::Request, &[(names::CALLED_BY, self.called_by())]);
        // The run belongs to the instance that is called, and not to this one.
        run["metadata"]["labels"] = json!({names::MANAGED_BY: "operetta"});
        run["spec"]["of"] = json!(of);
        if !params.is_null() {
            run["spec"]["params"] = params;
        }
        run
    }

    /// The annotation [`names::CALLED_BY`] of the `PlanRun`s that its steps create. The admission policy lets only managers set it.
    pub(crate) fn called_by(&self) -> String {
        let group = self.of.api_version.split('/').next().unwrap_or_default();
        format!("{}/{}", names::kind_label(&self.of.kind, group), self.of.name)
    }

    /// The annotation [`names::RUN_PROOF`] of a Job of that name.
    pub(crate) fn proof(&self, name: &str) -> String {
        keyed_digest(&self.digest_key, &json!(["job", self.uid, self.namespace, name]))
    }

    /// The ControllerRevision of an origin.
    pub(crate) fn revision(&self, name: &str, data: &Value, number: u64) -> Value {
        body("apps/v1", "ControllerRevision", self.metadata(name), json!({"data": data, "revision": number}))
    }

    /// The Secret of a run with the secret outputs of one step.
    pub(super) fn outputs(&self, run: &PlanRun, step: &str, values: &Map<String, Value>) -> Value {
        let mut metadata = self.metadata(&outputs_name(run));
        metadata["ownerReferences"] = json!([{
            "apiVersion": API_VERSION, "kind": PLAN_RUN.kind, "name": run.name, "uid": run.uid,
        }]);
        let values = json!(values).to_string();
        let entry = format!("{}\n{values}", self.proof_of_outputs(run, step, &values));
        body("v1", "Secret", metadata, json!({"data": {outputs_key(step): STANDARD.encode(entry)}}))
    }

    /// The secret outputs of a step in the Secret of its run. Anybody who may write Secrets can create one of that name and write into
    /// this one, so only what has the proof counts.
    pub(crate) fn stored_outputs(
        &self,
        run: &PlanRun,
        step: &str,
        secret: &Value,
    ) -> Option<Map<String, Value>> {
        let entry = STANDARD.decode(secret["data"][outputs_key(step)].as_str()?).ok()?;
        let (proof, values) = std::str::from_utf8(&entry).ok()?.split_once('\n')?;
        let is_ours = proof == self.proof_of_outputs(run, step, values);
        serde_json::from_str(values).ok().filter(|_| is_ours)
    }

    /// A digest of the values of a step's secret outputs, with a key that only managers have.
    fn proof_of_outputs(&self, run: &PlanRun, step: &str, values: &str) -> String {
        keyed_digest(&self.digest_key, &json!(["outputs", self.namespace, run_id(run), step, values]))
    }
}

/// The name of the Secret that holds the secret outputs of a run, and of the runs that resume it.
pub(crate) fn outputs_name(run: &PlanRun) -> String {
    format!("{}-outputs-{}", names::label_value(&run.spec.of.name), names::short_hash(run_id(run), 10))
}

/// What a run and those that resume it have in common.
fn run_id(run: &PlanRun) -> &str {
    run.status.as_ref().map_or(&run.uid, |status| &status.id)
}

/// The key of the outputs of a step in the Secret of its run.
fn outputs_key(step: &str) -> String {
    names::short_hash(step, 10)
}

fn body(api_version: &str, kind: &str, metadata: Value, rest: Value) -> Value {
    let mut body = rest;
    body["apiVersion"] = api_version.into();
    body["kind"] = kind.into();
    body["metadata"] = metadata;
    body
}
