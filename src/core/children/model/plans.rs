//! What is known of the runs of an instance at one moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::calls::Calls;
use super::origins::Origin;
use crate::package::{Package, Resource};
use crate::plan::{self, Memory, PlanRun, Protection, RunRef};

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
    /// The earlier revisions of the package that [`super::needs::Needs::revisions`] have asked for, as far as they are known.
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
    /// The revision is loaded.
    Loaded(Arc<Package>),
    /// The revision is not stored, or what is stored cannot be loaded. Says why.
    Missing(Arc<str>),
    /// The store cannot be read, so it is unknown whether it has the revision. Says why.
    Unreadable(Arc<str>),
}

/// Why the package of a revision is not available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::children) enum NoPackage {
    /// The package is being loaded.
    Loading,
    /// The package cannot be loaded, for this reason.
    Missing(Arc<str>),
    /// The package cannot be read, for this reason.
    Unreadable(Arc<str>),
}

impl NoPackage {
    /// The reason; `None` while the package is being loaded.
    pub(in crate::children) fn reason(&self) -> Option<&str> {
        match self {
            Self::Loading => None,
            Self::Missing(why) | Self::Unreadable(why) => Some(why),
        }
    }
}

impl PlanSnapshot {
    /// The package of a revision, and the instance's kind in it. Another revision never takes its place.
    pub(in crate::children) fn package<'a>(
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
    pub(in crate::children) fn digest(&self, value: &Value) -> String {
        let key = plan::keyed_digest(&self.digest_key, &Value::Null);
        format!("{}:{}", &key[..8], plan::keyed_digest(&self.digest_key, value))
    }
}

/// What is known of the memory of an instance.
#[derive(Debug, Clone, Default)]
pub struct InstanceMemory {
    /// The memory.
    pub memory: Memory,
    /// The `InstanceState`; `None` if there is none yet.
    pub object: Option<RunRef>,
    /// Whether the memory is to be written before anything is decided from it.
    pub is_unwritten: bool,
    /// Why the memory is lost. Nothing is decided then until a person says how to go on.
    pub lost: Option<String>,
    /// Whether the memory is not lost, but written by a newer version of Operetta, which must decide.
    pub is_newer: bool,
    /// The reason and the message of an Event when the memory is written.
    pub note: Option<(&'static str, &'static str)>,
}
