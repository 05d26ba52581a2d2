//! The target of an instance, and what to do to reach it. Pure: no clock, no I/O, no randomness.
//!
//! [`decide()`] is the heart: from a package, an instance and what was observed it computes the next
//! actions. It is level-triggered: called again after any event, crash or doubt, it gives what is still
//! missing, and nothing once the cluster equals the target.

mod accepted;
mod crd_owner;
mod decide;
mod deletion;
pub mod fields;
mod intent;
mod jobs;
mod metadata;
pub mod names;
mod observed;
mod projection;
mod reach;
mod refs;
mod refused;
mod shape;
mod status;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

pub use crd_owner::{is_child_crd_value, package_of_crd, package_of_crd_value};
pub use decide::{
    Action, Apply, Decision, Expect, Failure, Health, Memory, NOT_LOADED, Repairs, Summary, Swing, Swings,
    Verdict, Why, decide, exceeds, is_covered,
};
pub use deletion::{Leaving, Unlisted, decide_from as decide_deletion};
pub use intent::{Generated, Intent, Secret};
pub use observed::{Asking, Mark, Noted, ObjectRef, Observed, Paths, Seen, kept};
pub use reach::Reach;
pub use refs::{Blind, Found, Keep, Referred, Select, Selector, Want};
pub use refused::Refused;
pub use shape::Check;
pub use status::{Status, condition, patch as status_patch};
pub use target::{Item, Target, target};

use crate::cluster::Apis;
use crate::package::{Package, Resource};
use crate::template::{Budget, EvalError};

/// How many children an instance may have.
pub const MAX_CHILDREN: usize = 1_000;

/// All that a decision about one instance looks at.
pub struct Context<'a> {
    /// The package in force.
    pub package: &'a Package,
    /// The instance's kind in it.
    pub resource: &'a Resource,
    /// The instance, CRD defaults filled in.
    pub instance: &'a Value,
    /// The manager's own namespace.
    pub operator_namespace: &'a str,
    /// The live objects that carry the instance's uid.
    pub observed: &'a [Arc<Observed>],
    /// Whether the objects of an `apiVersion` and `kind` lie in namespaces; `None` if it is not served.
    pub namespaced: &'a dyn Fn(&str, &str) -> Option<bool>,
    /// Why the objects of a kind cannot be known now, as the version that was asked for; `None` if they are known.
    pub unknown: &'a dyn Fn(&str, &str) -> Option<String>,
    /// Whether the objects of a kind are known, be it in another version than was asked for.
    pub listed: &'a dyn Fn(&str, &str) -> bool,
    /// Kinds on record that cannot be listed now, though the server has them.
    pub unlisted: &'a [Unlisted],
    /// Whether a write of a shape has passed a dry run before.
    pub checked: &'a dyn Fn(u64) -> bool,
    /// Children of former instances of the same kind, namespace and name: their labels say so, and that
    /// instance is dead.
    pub former: &'a [Arc<Observed>],
    /// Whether the objects of a kind are instances of a package, this one or another.
    pub is_package_kind: &'a dyn Fn(&str, &str) -> bool,
    /// What still lies in a namespace: an instance, this one aside, or a child.
    pub occupant: &'a dyn Fn(&str) -> Option<String>,
    /// What is known of objects that refs name.
    pub refs: &'a dyn Fn(&Want) -> Found,
    /// What the API server serves, or why that cannot be known; `None` if it is being asked.
    pub apis: Option<&'a Result<Arc<Apis>, String>>,
    /// What all evaluations of this decision may use together.
    pub budget: Arc<Budget>,
}

impl Context<'_> {
    /// The namespace of the instance; `None` if it is cluster-scoped.
    pub fn namespace(&self) -> Option<&str> {
        self.instance["metadata"]["namespace"].as_str()
    }

    /// The kinds that cannot be listed, each with the order that its objects may have.
    fn unlisted_in_order(&self) -> Vec<Unlisted> {
        self.unlisted.iter().map(|kind| kind.ordered(&self.resource.children)).collect()
    }

    /// The name of the instance.
    pub fn name(&self) -> &str {
        self.instance["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The uid of the instance.
    pub fn uid(&self) -> &str {
        self.instance["metadata"]["uid"].as_str().unwrap_or_default()
    }
}

/// Why a child has no intent now. Its last intent is kept, and it is not pruned.
#[derive(Debug, Clone)]
pub enum ChildError {
    /// An expression or template of it has no value.
    Eval(EvalError),
    /// What it renders cannot be a child.
    Invalid {
        /// What is wrong, and where.
        message: String,
    },
    /// The server does not serve its kind, now or any more.
    KindMissing {
        /// The `apiVersion` asked for.
        api_version: String,
        /// The kind asked for.
        kind: String,
    },
    /// The server does not serve its kind, or in another version only, and it is known what may have been meant.
    KindNotServed {
        /// What it serves, and what to do.
        reason: String,
    },
    /// It reads a child whose `when` is false.
    DependencyAbsent {
        /// Which, and what to do.
        message: String,
    },
    /// Objects of its kind cannot be read.
    KindUnknown {
        /// Why.
        reason: String,
    },
    /// More children than an instance may have.
    TooMany,
}

impl ChildError {
    /// The reason in a condition, in camel case.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Eval(EvalError::Unknown { .. }) | Self::KindUnknown { .. } => "Unknown",
            Self::Eval(error @ EvalError::NotYet(_)) if !error.is_mixed() => "NotYet",
            Self::Eval(EvalError::Limit(_)) => "LimitExceeded",
            Self::Eval(_) => "RenderFailed",
            Self::Invalid { .. } => "InvalidChild",
            Self::KindMissing { .. } | Self::KindNotServed { .. } => "KindMissing",
            Self::DependencyAbsent { .. } => "DependencyAbsent",
            Self::TooMany => "TooManyChildren",
        }
    }

    /// Whether nobody has made a mistake: what it reads is not there yet.
    pub fn is_waiting(&self) -> bool {
        match self {
            Self::Eval(error @ EvalError::NotYet(_)) => !error.is_mixed(),
            Self::Eval(EvalError::Unknown { .. }) | Self::KindUnknown { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eval(error) => error.fmt(f),
            Self::Invalid { message } | Self::DependencyAbsent { message } => f.write_str(message),
            Self::KindMissing { api_version, kind } => {
                write!(f, "the API server does not serve {kind} of {api_version}; is its CRD installed?")
            }
            Self::KindNotServed { reason } | Self::KindUnknown { reason } => f.write_str(reason),
            Self::TooMany => {
                write!(f, "more than {MAX_CHILDREN} children; an instance may have {MAX_CHILDREN}")
            }
        }
    }
}

impl From<EvalError> for ChildError {
    fn from(error: EvalError) -> Self {
        Self::Eval(error)
    }
}
