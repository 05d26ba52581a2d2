//! The target of an instance, and what to do to reach it. Pure: no clock, no I/O, no randomness.
//!
//! [`decide()`] is the heart: from a package, an instance and what was observed it computes the next
//! actions. It is level-triggered: called again after any event, crash or doubt, it gives what is still
//! missing, and nothing once the cluster equals the target.

mod accepted;
pub mod adoption;
mod crd_owner;
pub mod crds;
mod decide;
mod deletion_runs;
mod desired;
mod diff;
mod dry_run;
pub mod fields;
mod findings;
pub mod guarded;
pub mod immutable;
mod jobs;
mod metadata;
pub mod names;
mod namespace_scope;
mod observed;
mod origins;
pub mod patches;
pub mod plans;
mod projection;
mod prune;
mod record_key;
mod refs;
mod refused;
mod render;
mod schedule;
mod shape;
mod snapshot;
mod state;
mod status;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;

use crd_owner::former_packages_of;
pub use crd_owner::{former_packages, is_child_crd_value, package_of_crd, package_of_crd_value};
pub use decide::{
    Action, Apply, ChildLine, Decision, Expect, Health, NOT_LOADED, OscillationGuard, Ownership, Repair,
    Summary, TargetChange, Verdict, Why, WritePolicy, decide,
};
pub use deletion_runs::DeletionRuns;
pub use desired::{Desired, Generated, Secret};
pub use diff::{is_covered, owns_extra_fields};
pub use dry_run::{DryRun, DryRuns};
pub use findings::{Finding, Refusal, Removal, Severity, Wait};
pub use namespace_scope::NamespaceScope;
pub use observed::{DriftFingerprint, Noted, Observed, Paths, Seen, kept};
pub use origins::{InstanceInput, ItemId, NEWEST, Origin, Origins};
pub use record_key::RecordKey;
pub use refs::{
    FieldProjection, LookupResult, Poll, PollRequest, PollResult, ReadError, Referred, ResourceSelector,
    Select, Selector,
};
pub use refused::Refused;
pub use render::Context;
pub use schedule::{Block, Loss};
pub use shape::Check;
pub use snapshot::{ActivePackage, KindInfo, KindOwner, Listing, Snapshot};
pub use state::{
    Applied, Effect, FieldConflict, GENERATED_FOREIGN, GENERATED_MISSING, Outcome, RIGHTS_MISSING,
    ReconcileState,
};
pub use status::{Status, condition, patch as status_patch};
pub use target::{Item, Target, target};

use crate::api::Gvk;
use crate::template::EvalError;

/// How many children an instance may have.
pub const MAX_CHILDREN: usize = 1_000;

/// How much memory one field of an object (`spec`, `status`, `data`) takes at most, in bytes. As JSON an object has at most
/// 1.5 MiB; many small maps take fifty times that in memory.
pub const MAX_FIELD_BYTES: usize = 4 << 20;

/// Why a child has no desired object now. Its last desired object is kept, and it is not pruned.
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
        /// The kind asked for.
        gvk: Gvk,
    },
    /// The server does not serve its kind, or in another version only, and it is known what may have been meant.
    KindNotServed {
        /// What it serves, and what to do.
        reason: String,
    },
    /// It reads a child whose `when` is false.
    DependencyAbsent {
        /// The child that it reads, and what to do.
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
            Self::Eval(EvalError::Unknown { .. }) | Self::KindUnknown { .. } => "DependencyUnknown",
            Self::Eval(error @ EvalError::NotYet(_)) if !error.is_mixed() => "DependencyNotReady",
            Self::Eval(EvalError::Limit(_)) => "LimitExceeded",
            Self::Eval(_) => "RenderFailed",
            Self::Invalid { .. } => "InvalidChild",
            Self::KindMissing { .. } | Self::KindNotServed { .. } => "KindMissing",
            Self::DependencyAbsent { .. } => "DependencyAbsent",
            Self::TooMany => "TooManyChildren",
        }
    }

    /// Whether it is no mistake: what the child reads does not exist yet, or is not known.
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
            Self::KindMissing { gvk } => {
                write!(f, "the API server does not serve {gvk}; is its CRD installed?")
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
