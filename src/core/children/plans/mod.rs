//! The runs of plans in the decision about an instance: the active run gives each child its origin, is the schedule of
//! the writes, and its steps add actions. The engine is in `crate::plan`; here is what it sees of children.

mod action;
mod decide;
mod delete;
mod effects;
mod history;
mod lost;
mod observed;
mod past;
mod recover;
mod runs;
mod schedule;
mod secrets;
mod state;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

pub use action::{Guard, JobEnd, RunAction, RunEvent, RunObject, RunRef, StateWrite};
pub(super) use decide::decide;
pub(super) use delete::{delete, delete_children};
pub(super) use effects::reference;
pub use runs::released;
pub use state::{InstanceMemory, Stored, own_origins, recall, state_name};

use super::origins::Origin;
use crate::api::ApiKind;
use crate::package::{Package, Resource};
use crate::plan::crds::PLAN_RUN;
use crate::plan::{self, Answer, JobResult, PlanRun, Protection, Request, request::CallFailure};

/// What is known of the runs of an instance at one moment.
#[derive(Debug)]
pub struct PlanSnapshot {
    /// The memory of the instance.
    pub state: InstanceMemory,
    /// The runs of the instance that count: see [`plan::Memory::recall`].
    pub runs: Vec<PlanRun>,
    /// PlanRuns that were started before and that the memory does not name. They never run.
    pub strangers: Vec<PlanRun>,
    /// PlanRuns whose `of.resource` is not that of the kind: the admission policy has not checked whether their user may run plans of the
    /// instance, so they never run.
    pub misnamed: Vec<PlanRun>,
    /// PlanRuns that cannot be read: name, and why.
    pub unreadable: Vec<(String, String)>,
    /// PlanRuns of other instances that steps have created.
    pub others: Vec<PlanRun>,
    /// The names that its next runs would have and that PlanRuns hold which are none of its runs.
    pub occupied: BTreeSet<String>,
    /// The ControllerRevisions of its origins.
    pub origins: Vec<Value>,
    /// The Jobs of its steps.
    pub jobs: Vec<Value>,
    /// What this process knows of the requests of its runs.
    pub calls: Calls,
    /// The namespace in which its Jobs and PlanRuns lie.
    pub namespace: String,
    /// The earlier revisions of the package that [`super::Decision::revisions`] has asked for, as far as they are known.
    pub revisions: BTreeMap<Arc<str>, Revision>,
    /// Why PlanRuns, origins or Jobs are unknown; `None` if they are known.
    pub unknown: Option<String>,
    /// Whether they are unknown only because they are being listed. The end of the list brings another decision.
    pub is_listing: bool,
    /// A secret of the installation, for hashes of what may hold secret data.
    pub digest_key: Vec<u8>,
    /// Why that secret cannot be read. Nothing is decided without it: every digest would differ from the stored ones.
    pub key_problem: Option<KeyProblem>,
    /// Whether the API server checks who requests and answers runs.
    pub protection: Protection,
    /// For how long this process has run each run beyond its stored time, by uid.
    pub elapsed: HashMap<String, Duration>,
    /// The time of day.
    pub now: Timestamp,
}

/// Why the key of digests cannot be read.
#[derive(Debug, Clone)]
pub struct KeyProblem {
    /// Names the Secret, and says what is wrong.
    pub message: Arc<str>,
    /// Whether it stays so until a person changes something.
    pub is_permanent: bool,
}

/// An earlier revision of a package.
#[derive(Debug, Clone)]
pub enum Revision {
    /// It is loaded.
    Loaded(Arc<Package>),
    /// It is not stored, or what is stored cannot be loaded. Says why.
    Missing(Arc<str>),
    /// Whether it is stored is not known: it cannot be read. Says why.
    Unreadable(Arc<str>),
}

/// Why the package of a revision is not available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoPackage {
    /// It is being loaded.
    Loading,
    /// It cannot be loaded, for that reason.
    Missing(Arc<str>),
    /// It cannot be read, for that reason.
    Unreadable(Arc<str>),
}

impl NoPackage {
    /// The reason; `None` while the package is being loaded.
    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Loading => None,
            Self::Missing(why) | Self::Unreadable(why) => Some(why),
        }
    }
}

impl PlanSnapshot {
    /// The package of a revision, and the instance's kind in it. Another revision never takes its place.
    pub(super) fn package<'a>(
        &'a self,
        revision: &str,
        current: Origin<'a>,
    ) -> Result<(&'a Package, &'a Resource), NoPackage> {
        if revision == current.package.revision() {
            return Ok((current.package, current.resource));
        }
        match self.revisions.get(revision) {
            None => Err(NoPackage::Loading),
            Some(Revision::Missing(why)) => Err(NoPackage::Missing(Arc::clone(why))),
            Some(Revision::Unreadable(why)) => Err(NoPackage::Unreadable(Arc::clone(why))),
            Some(Revision::Loaded(package)) => {
                let crd = current.resource.crd_name();
                let resource = package.position(crd).and_then(|index| package.resources.get(index));
                let missing = || NoPackage::Missing(format!("it has no {crd}").into());
                Ok((package, resource.ok_or_else(missing)?))
            }
        }
    }

    /// A digest of a value that may hold secret data, with a name of its key.
    pub(super) fn digest(&self, value: &Value) -> String {
        let key = plan::keyed_digest(&self.digest_key, &Value::Null);
        format!("{}:{}", &key[..8], plan::keyed_digest(&self.digest_key, value))
    }
}

/// How a Job ended; `None` while it runs.
pub(crate) fn job_end(job: &Value) -> Option<JobEnd> {
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
    /// It is sent, and not answered yet.
    InFlight,
    /// It is answered.
    Answered(Answer),
    /// It failed, and has no answer.
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

/// The kind of PlanRuns.
pub fn plan_run_kind() -> ApiKind {
    PLAN_RUN.api_kind()
}
