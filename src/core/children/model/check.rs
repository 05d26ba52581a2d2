//! A dry run that must have passed.

use super::action::{Expect, WritePolicy};
use super::desired::Desired;

/// A dry run that must have passed before a change is made.
#[derive(Debug, Clone)]
pub struct Check {
    /// `id` or `id[key]`, for messages.
    pub item: String,
    /// What is to be applied.
    pub desired: Desired,
    /// The precondition of the write.
    pub expect: Expect,
    /// What the package permits.
    pub policy: WritePolicy,
    /// The shape of the write.
    pub shape: u64,
    /// Items that do not exist yet and whose absence may be the reason of a refusal: the Namespace of an
    /// object, the Role of a `RoleBinding`.
    pub depends_on: Vec<String>,
}
