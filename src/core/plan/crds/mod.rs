//! The objects that plans need on an API server: the CustomResourceDefinition of `PlanRun`, and the admission policies that
//! decide who may run and approve plans, and who writes what decides about an instance. All are values; the manager applies them.

mod admission;
mod instance_state;
mod plan_run;
mod policy;
mod state_policy;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::crd::OwnKind;

pub use admission::{Integrity, exemption, exemption_owner, has_all_of, integrity, is_exempt, repair};
pub(crate) use admission::{binding as admission_binding, policy as admission_policy};
pub use instance_state::instance_state;
pub use plan_run::plan_run;
pub use policy::POLICY;
pub use state_policy::{RESTORE, STATE_POLICY};

/// The kind of a run.
pub const PLAN_RUN: OwnKind = OwnKind { kind: "PlanRun", plural: "planruns", namespaced: true };
/// The kind of the memory of an instance.
pub const INSTANCE_STATE: OwnKind =
    OwnKind { kind: "InstanceState", plural: "instancestates", namespaced: true };
/// The verb that a user needs on an instance to run a plan, and to cancel a run.
pub const RUN: &str = "run";
/// The verb that a user needs on an instance to answer an approve step.
pub const APPROVE: &str = "approve";

/// The names of the policies, and of their bindings.
pub const POLICIES: [&str; 2] = [POLICY, STATE_POLICY];

/// The `ValidatingAdmissionPolicy`s.
pub fn policies() -> [Value; 2] {
    [policy::policy(), state_policy::policy()]
}

/// The `ValidatingAdmissionPolicyBinding`s of the policies.
pub fn bindings() -> [Value; 2] {
    POLICIES.map(admission::binding)
}
