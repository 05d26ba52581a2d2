//! What an instance reads and does not own, and what is known of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::child_error::ChildError;
use super::poll::Poll;
use crate::api::Gvk;
use crate::selector::Selector;
use crate::template::{EvalError, Var};

/// Objects that an instance wants to know, as a watch can bring them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceSelector {
    /// The kind of the objects.
    pub gvk: Gvk,
    /// The namespace of the objects; `None` for all namespaces. It does not matter for a cluster-scoped kind.
    pub namespace: Option<Box<str>>,
    /// The name or the labels of the objects.
    pub select: Select,
    /// What is kept of each.
    pub keep: FieldProjection,
}

/// The name or the labels of objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Select {
    /// The object of that name.
    Name(Box<str>),
    /// The objects whose labels fit.
    Labels(Selector),
}

/// What is kept of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldProjection {
    /// The paths that expressions read; an empty path stands for the whole object.
    pub paths: Arc<[Vec<String>]>,
    /// Whether its metadata alone does not show all that is read.
    pub content: bool,
}

impl ResourceSelector {
    /// Whether an object of its kind is selected. Cluster-scoped objects are in every namespace.
    pub fn fits(
        &self,
        namespace: Option<&str>,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> bool {
        let is_here =
            namespace.is_none() || self.namespace.is_none() || self.namespace.as_deref() == namespace;
        is_here
            && match &self.select {
                Select::Name(wanted) => **wanted == *name,
                Select::Labels(selector) => selector.fits(|key| labels?.get(key).map(String::as_str)),
            }
    }
}

impl std::fmt::Display for ResourceSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.select, &self.namespace) {
            (Select::Name(name), Some(namespace)) => write!(f, "{} {namespace}/{name}", self.gvk.kind),
            (Select::Name(name), None) => write!(f, "{} {name}", self.gvk.kind),
            (Select::Labels(selector), Some(namespace)) => {
                write!(f, "each {} in {namespace} with `{selector}`", self.gvk.kind)
            }
            (Select::Labels(selector), None) => write!(f, "each {} with `{selector}`", self.gvk.kind),
        }
    }
}

/// An object that an instance reads, as far as expressions read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Referred {
    /// Its namespace.
    pub namespace: Option<Box<str>>,
    /// Its name.
    pub name: Box<str>,
    /// What is read of it.
    pub value: Arc<Value>,
    /// Whether it is ready by the rules of its kind.
    pub ready: bool,
}

/// What is known of the objects of a selector.
#[derive(Debug, Clone)]
pub enum LookupResult {
    /// These objects exist, by namespace and name.
    Known(Vec<Arc<Referred>>),
    /// The objects are being listed for the first time.
    Pending,
    /// The objects cannot be read now.
    Unknown(ReadError),
}

/// Why objects cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// The server does not serve the kind, now or any more.
    KindMissing,
    /// The API server forbids it.
    Forbidden(String),
    /// Any other reason.
    Failed(String),
}

/// Why a ref is unknown.
#[derive(Debug, Clone)]
pub(in crate::children) struct Problem {
    /// The reason, in camel case.
    pub(in crate::children) reason: &'static str,
    /// The message, for people.
    pub(in crate::children) message: String,
    /// Whether it may pass by itself.
    pub(in crate::children) is_waiting: bool,
    /// Whether the instance is not Ready because of it.
    pub(in crate::children) affects_ready: bool,
}

impl Problem {
    pub(in crate::children) fn waiting(reason: &'static str, message: String) -> Self {
        Self { reason, message, is_waiting: true, affects_ready: true }
    }

    /// A required object that does not exist.
    pub(in crate::children) fn absence(message: String) -> Self {
        Self::waiting("RefMissing", message)
    }

    /// Whether a required object does not exist.
    pub(in crate::children) fn is_absence(&self) -> bool {
        self.reason == "RefMissing"
    }

    /// A ref that is wrong: it does not pass by itself.
    pub(in crate::children) fn invalid(message: &str) -> Self {
        Self { is_waiting: false, ..Self::waiting("InvalidRef", message.to_owned()) }
    }

    /// The problem of a ref with a field that cannot be evaluated.
    pub(in crate::children) fn of_field(field: &str, error: EvalError) -> Self {
        if error.is_of_missing_child() {
            return Self::waiting("DependencyNotReady", format!("{field}: {error}"));
        }
        let error = ChildError::Eval(error);
        let is_waiting = error.is_waiting();
        Self { is_waiting, ..Self::waiting(error.reason(), format!("{field}: {error}")) }
    }
}

/// All refs of an instance.
#[derive(Debug, Default)]
pub(in crate::children) struct Refs {
    pub(in crate::children) vars: BTreeMap<String, Var>,
    /// What is to be watched for them.
    pub(in crate::children) wants: Vec<ResourceSelector>,
    /// The observations to make by requests.
    pub(in crate::children) polls: Vec<Arc<Poll>>,
    /// Whether some are still being listed for the first time.
    pub(in crate::children) pending: bool,
    /// Whether the first answers of some observations are awaited for long.
    pub(in crate::children) is_delayed: bool,
    pub(in crate::children) problems: BTreeMap<String, Problem>,
    /// A keyed digest of what each object ref brings that is known; only for kinds with plans.
    pub(in crate::children) digests: BTreeMap<String, String>,
}

impl Refs {
    /// Adds what the refs of an earlier origin want, and what is wrong with those that the newest does not have.
    pub(in crate::children) fn add(&mut self, other: Self) {
        self.wants.extend(other.wants);
        self.wants.sort();
        self.wants.dedup();
        self.polls.extend(other.polls);
        self.pending |= other.pending;
        self.is_delayed |= other.is_delayed;
        for (name, problem) in other.problems {
            self.problems.entry(name).or_insert(problem);
        }
    }

    /// The ref of an unknown path, such as `refs.tls.data` or `refs.certs["a"].data`, and why it is unknown.
    pub(in crate::children) fn problem_of(&self, path: &str) -> Option<(&str, &Problem)> {
        let path = path.strip_prefix("refs.")?;
        self.problems.iter().find_map(|(name, problem)| {
            let rest = path.strip_prefix(name.as_str())?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then_some((name.as_str(), problem))
        })
    }

    /// Whether a ref is unknown, or one of its keys.
    pub(in crate::children) fn has_problem(&self, id: &str) -> bool {
        let of_key = |name: &str| name.strip_prefix(id).is_some_and(|rest| rest.starts_with('['));
        self.problems.keys().any(|name| name == id || of_key(name))
    }
}

/// The reason of a ref that is being listed for the first time, or has no first answer yet.
pub(in crate::children) const PENDING: &str = "RefPending";
