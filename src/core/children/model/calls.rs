//! What this process knows of the requests and Jobs of runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::plan::request::CallFailure;
use crate::plan::{CallKey, JobEnd, JobResult, Reply, Request, SecretOutputs};

/// How a Job ended; `None` while it runs.
pub(in crate::children) fn job_end(job: &Value) -> Option<JobEnd> {
    let conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    let mut conditions = conditions.filter(|condition| condition["status"] == "True");
    conditions.find_map(|condition| match condition["type"].as_str()? {
        "Complete" => Some(JobEnd::Completed),
        "Failed" => {
            let text = |field: &str| condition[field].as_str().unwrap_or_default();
            Some(JobEnd::Failed(format!("{}: {}", text("reason"), text("message"))))
        }
        _ => None,
    })
}

/// The state of a request of a step.
#[derive(Debug)]
pub enum Call {
    /// Its intent is stored, and it is not sent yet.
    Intended(Request),
    /// The request is sent, and not answered yet.
    InFlight,
    /// The request is answered.
    Answered(Reply),
    /// The request failed, and has no answer. It is given if this process has sent it.
    Failed(CallFailure, Option<Request>),
}

/// What this process knows of the requests of an instance's runs.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    /// Requests of steps.
    pub requests: HashMap<CallKey, Arc<Call>>,
    /// What finished Jobs have left, by their uid.
    pub jobs: HashMap<Box<str>, JobResult>,
    /// The secret outputs of steps that this process has stored; the attempt is 0.
    pub secrets: HashMap<CallKey, SecretOutputs>,
    /// The names of Jobs and PlanRuns of steps that other objects were found to have.
    pub taken: HashSet<Box<str>>,
    /// The steps whose answers this process has written into Secrets; the attempt is 0.
    pub stored: HashSet<CallKey>,
}
