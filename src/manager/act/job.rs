//! What a finished Job of a step has left.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::warn;

use super::Executor;
use crate::api::{ApiKind, CallError};
use crate::cluster::Cluster;
use crate::facts::controller_uid;
use crate::manager::index::InstanceKey;
use crate::manager::registry::Registered;
use crate::plan::{JobEnd, JobResult, RunRef};
use crate::printable;

/// How many lines of a failed Job's log are shown.
const LOG_LINES: u32 = 10;
/// The most bytes of a log that are shown.
const LOG_BYTES: usize = 1_000;
/// How long until the pods of a Job are read again.
const RETRY: Duration = Duration::from_secs(2);

impl Executor {
    /// Reads the result of a finished Job, beside the queue.
    pub(super) fn read_job(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        job: RunRef,
        end: JobEnd,
    ) {
        if !self.effects.calls.begin_job(key, &job.uid) {
            return;
        }
        let (shared, key, registered) = (Arc::clone(self), key.clone(), Arc::clone(registered));
        tokio::spawn(async move {
            let cluster = shared.effects.for_children(&registered);
            match job_result(&cluster, &job, end).await {
                Ok(result) => shared.effects.calls.set_job(&key, &job.uid, result),
                Err(error) => {
                    warn!(instance = %key, job = %job.name, %error, "the pods of a Job cannot be read; trying again");
                    tokio::time::sleep(error.asked_to_wait().unwrap_or(RETRY)).await;
                    shared.effects.calls.forget_job(&key, &job.uid);
                }
            }
            shared.queue.add(key);
        });
    }
}

/// The result of a finished Job.
async fn job_result(cluster: &Cluster, job: &RunRef, end: JobEnd) -> Result<JobResult, CallError> {
    let pod = ApiKind::built_in("v1", "Pod");
    let selector = format!("batch.kubernetes.io/controller-uid={}", job.uid);
    let mut pods = cluster.list(&pod, Some(&job.namespace), &selector).await?;
    pods.retain(|pod| controller_uid(pod) == Some(&job.uid));
    pods.sort_by_key(|pod| pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned());
    let message_in = |pod: &Value, field: &str| {
        let containers = pod["status"][field].as_array().cloned().unwrap_or_default();
        let text = |status: &Value| {
            status["state"]["terminated"]["message"].as_str().map(str::trim).map(str::to_owned)
        };
        containers.iter().filter_map(text).find(|text| !text.is_empty())
    };
    let message = |pod: &Value| message_in(pod, "containerStatuses");
    match end {
        JobEnd::Completed => {
            let succeeded = pods.iter().rev().find(|pod| pod["status"]["phase"] == "Succeeded");
            Ok(JobResult::Completed(succeeded.and_then(message)))
        }
        JobEnd::Failed(reason) => {
            let Some(last) = pods.last() else { return Ok(JobResult::Failed(reason)) };
            // After a failed init container the others have not started.
            let told =
                if let Some(message) = message(last).or_else(|| message_in(last, "initContainerStatuses")) {
                    message
                } else {
                    let name = last["metadata"]["name"].as_str().unwrap_or_default();
                    cluster.log(&job.namespace, name, LOG_LINES).await.unwrap_or_default()
                };
            let told = printable::sentence(told.trim());
            let mut ends = told.len().saturating_sub(LOG_BYTES)..=told.len();
            let told = &told[ends.find(|at| told.is_char_boundary(*at)).unwrap_or_default()..];
            Ok(JobResult::Failed(if told.is_empty() { reason } else { format!("{reason}: {told}") }))
        }
    }
}
