//! The CRDs of packages: how a live one differs from what its package wants, what to do next, and what is remembered of
//! it. Pure: no I/O, no clock.
//!
//! [`decide_crd`] is the decision about one CRD, [`PackageCrds::record`] the only place that changes remembered state.

mod child_scope;
mod compare;
mod conversion;
mod decide;
mod history;
mod losses;
mod model;
mod package;
mod plans;
#[cfg(test)]
mod tests;

pub use child_scope::{ChildScope, ChildScopeUsage, KindUsage};
pub use compare::CrdPatch;
pub use decide::{
    CrdDecision, CrdSnapshot, DryRun, decide_crd, left_behind, migrating, refused, served, unmigrated,
};
pub use history::{CrdHistory, CrdOutcome};
pub use losses::LossyInstance;
pub use model::{CrdInfo, CrdState, CrdVersion, MANAGER, ManagerIdentity, WebhookState, lease};
pub use package::{Finding, MIGRATING, PackageCrds, RIGHTS_LACKING, Wait};
pub use plans::{PublishedPlan, of as plans_of, read as read_plans};
