//! Empties the Secrets with the outputs of runs, once nothing can read them any more.

use serde_json::{Value, json};

use crate::children::model::PlanSnapshot;
use crate::plan::advance::SECRET;
use crate::plan::{PlanRun, RunAction, RunStatus, outputs_name};

/// The text in the status in place of a secret output that is not stored any more.
const DROPPED: &str = "(secret, not kept)";

/// Empties the Secrets of runs that have ended, and notes it in their statuses. A failed or cancelled run can be retried, and a retry
/// reads the outputs of the run that it resumes. The objects are deleted with their PlanRuns: no right to delete Secrets is needed.
pub(super) fn drop_unneeded(plans: &PlanSnapshot) -> Vec<RunAction> {
    let id = |run: &PlanRun| run.status.as_ref().map(|status| status.id.clone());
    let may_read = |run: &PlanRun| !run.is_final() || run.phase().is_retryable();
    let is_unneeded = |run: &&PlanRun| {
        run.status.as_ref().is_some_and(holds_secrets)
            && !plans.runs.iter().any(|other| id(other) == id(run) && may_read(other))
    };
    let dropped = |run: &PlanRun| {
        let mut status = run.status.clone()?;
        status.steps.iter_mut().for_each(|step| step.held = false);
        let outputs = status.steps.iter_mut().flat_map(|step| step.outputs.values_mut());
        outputs.filter(|value| **value == SECRET).for_each(|value| *value = DROPPED.into());
        let metadata = json!({"namespace": plans.namespace, "name": outputs_name(run)});
        let empty = RunAction::EmptySecret(Box::new(json!({"metadata": metadata, "data": null})));
        Some([empty, RunAction::store(run, &status, Vec::new())])
    };
    plans.runs.iter().filter(is_unneeded).filter_map(dropped).flatten().collect()
}

fn holds_secrets(status: &RunStatus) -> bool {
    status.steps.iter().any(|step| step.held || step.outputs.values().any(|value: &Value| value == SECRET))
}
