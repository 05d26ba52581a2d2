//! The Jobs of the runs of an instance.

use std::sync::Arc;

use serde_json::Value;

use crate::children::model::{Observed, PlanSnapshot, job_end};
use crate::plan::{RunAction, RunObject, RunRef};

/// The finalizer of a volume claim that a pod names.
const IN_USE: &str = "kubernetes.io/pvc-protection";

impl PlanSnapshot {
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
        let ended = self.jobs.iter().filter(is_recorded);
        ended.map(|job| RunAction::Delete(RunObject::Job, RunRef::of(job))).collect()
    }

    /// The finished Jobs whose pods are to be read.
    pub(super) fn unread_jobs(&self, awaited: impl Fn(&str) -> bool) -> Vec<RunAction> {
        let read = |job: &Value| {
            let end = job_end(job)?;
            let object = RunRef::of(job);
            let is_due = !self.calls.jobs.contains_key(&*object.uid) && awaited(&object.name);
            is_due.then_some(RunAction::ReadJob(object, end))
        };
        self.jobs.iter().filter_map(read).collect()
    }
}
