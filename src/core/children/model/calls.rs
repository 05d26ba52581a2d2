//! What this process knows of the requests and Jobs of runs.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::plan::request::CallFailure;
use crate::plan::{JobResult, Reply, Request};

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

/// Identifies an attempt of a step of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallKey {
    /// The uid of the run.
    pub run: Box<str>,
    /// The path of the step.
    pub step: Box<str>,
    /// The attempt.
    pub attempt: u32,
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
}

/// The secret outputs of a step.
#[derive(Clone)]
pub struct SecretOutputs(pub Map<String, Value>);

impl fmt::Debug for SecretOutputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretOutputs")
    }
}

/// How a Job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// The Job has completed.
    Completed,
    /// The Job has failed, for the reason that its condition gives.
    Failed(String),
}
