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

pub use admission::{Integrity, exemption, exemption_owner, has_all_of, integrity, is_exempt, repair};
pub(crate) use admission::{binding as admission_binding, policy as admission_policy};
pub use instance_state::{INSTANCE_STATE, instance_state};
pub use plan_run::{PLAN_RUN, plan_run};
pub use policy::{APPROVE, POLICY, RUN};
pub use state_policy::{RESTORE, STATE_POLICY};

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
