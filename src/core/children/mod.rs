//! The target of an instance, and what to do to reach it. Pure: no clock, no I/O, no randomness.
//!
//! [`decide()`] is the heart: from a package, an instance and what was observed it computes the next
//! actions. It is level-triggered: called again after any event, crash or doubt, it gives what is still
//! missing, and nothing once the cluster equals the target.

mod accepted;
mod accepted_key;
pub mod adoption;
mod apply;
mod crd_owner;
pub mod crds;
mod decide;
mod decide_target;
mod deletion_runs;
mod desired;
mod diff;
mod dry_run;
pub mod fields;
mod findings;
pub mod guarded;
pub mod immutable;
mod jobs;
mod model;
mod namespace_scope;
pub mod patches;
pub mod plans;
mod projection;
mod prune;
mod refs;
mod refused;
mod shape;
mod status;
#[cfg(test)]
mod tests;
mod write_order;

pub use crate::names;
pub use accepted_key::AcceptedKey;
pub use crd_owner::{former_packages, is_child_crd_value, package_of_crd, package_of_crd_value};
pub use decide::decide;
pub use desired::target;
pub use dry_run::{DryRun, DryRuns};
pub use model::{
    Action, ActionOutcome, ActivePackage, Applied, Apply, Block, Check, ChildError, ChildLine, Context,
    Decision, DeletionRuns, Desired, DriftFingerprint, Effect, Evaluation, Expect, FieldConflict,
    FieldProjection, Finding, GENERATED_DIFFERS, GENERATED_FOREIGN, GENERATED_MISSING, GENERATED_REFUSED,
    Generated, Health, Input, InstanceInput, Item, ItemId, KindInfo, KindOwner, Listing, LookupResult, Loss,
    MAX_CHILDREN, MAX_FIELD_BYTES, NEWEST, NOT_LOADED, Needs, Noted, Observed, Origin, Origins,
    OscillationGuard, Ownership, PLAN_REPEATS, Paths, Poll, PollRequest, PollResult, RIGHTS_MISSING,
    RawObject, ReadError, ReconcileState, Referred, Refusal, Removal, Repair, ResourceSelector, Secret,
    Select, Severity, Sibling, Snapshot, Status, Summary, Target, TargetChange, TextPart, Verdict, Wait, Why,
    WritePolicy, is_covered, kept, owns_extra_fields,
};
pub use namespace_scope::NamespaceScope;
pub use refused::Refused;
pub use status::{REPEATING, patch as status_patch};
