//! What shows that an object is a Job, and that it has completed.

use serde_json::Value;

use crate::api::Gvk;
use crate::facts::has_condition;

/// Whether a Job of the target has completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Identifies the Job and its spec. The annotation contains it once the Job has completed.
    pub token: String,
    /// Whether the annotation contains the token.
    pub recorded: bool,
}

/// Whether the kind is Kubernetes' own Job.
pub(in crate::children) fn is_job(gvk: &Gvk) -> bool {
    gvk.is("batch/v1", "Job")
}

/// Whether the status of a Job says that it has completed. (One that has failed has finished, but not completed.)
pub(in crate::children) fn has_completed(job: &Value) -> bool {
    has_condition(job, "Complete")
}
