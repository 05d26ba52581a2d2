//! Operators: packages that live in the cluster. An `Operator` (`operetta.dev/v1alpha1`, cluster-scoped) names the
//! `OperatorRevision` of its package that is to be active. Pure: the kind, the objects of a package, which revision is to be
//! activated next, which instances are moved to it next, and the status.

mod crd;
mod decide;
mod defaults;
mod facts;
mod history;
mod objects;
pub mod policy;
mod spec;
mod status;
#[cfg(test)]
mod tests;
pub mod upgrade;

pub use crd::{crd, kind};
pub use decide::{Next, next};
pub use defaults::effective as effective_defaults;
pub use facts::{
    Author, Facts, INSTALLER, Lost, MissingRights, NAMED_BY, RevisionProgress, Rollout, SourceRecord,
};
pub use objects::{Object, Packed, operator, pack};
pub use spec::{NamespacesSpec, OperatorSpec, PULL_SECRET, SourceSpec, TakeOver, named};
pub use status::{
    CONDITIONS, KUBERNETES_UNSUPPORTED, RevisionStatus, Standing, Transition, UNTRUSTED, patch, standing,
    transition,
};

/// The label of an `OperatorRevision`: its package.
pub use crate::package::store::objects::PACKAGE;
