//! What is known of the runs that delete children.

use k8s_openapi::jiff::Timestamp;

use crate::plan::{PlanRun, Protection};

/// The runs that delete children of an instance, as far as they are known.
#[derive(Debug)]
pub struct DeletionRuns {
    /// The runs that name the instance.
    pub runs: Vec<PlanRun>,
    /// Why they are unknown; `None` if they are known.
    pub unknown: Option<String>,
    /// Whether they are unknown only because they are being listed. The end of the list brings another decision.
    pub is_listing: bool,
    /// The plural of the instance's kind.
    pub resource: String,
    /// Whether the API server checks who answers.
    pub protection: Protection,
    /// The time of day.
    pub now: Timestamp,
}
