//! The objects that plans need on an API server: the CustomResourceDefinition of `PlanRun`, and the admission policy that
//! decides who may run and approve plans. All are values; the manager applies them.

mod plan_run;
mod policy;
#[cfg(test)]
mod tests;

use crate::crd::OwnKind;

pub use plan_run::plan_run;
pub use policy::{POLICY, binding, exemption, exemption_owner, is_exempt, policy};

/// The kind of a run.
pub const PLAN_RUN: OwnKind = OwnKind { kind: "PlanRun", plural: "planruns", namespaced: true };
/// The verb that a user needs on an instance to run a plan, and to cancel a run.
pub const RUN: &str = "run";
/// The verb that a user needs on an instance to answer an approve step.
pub const APPROVE: &str = "approve";
