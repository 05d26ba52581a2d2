//! The data that the stages of a decision share. A file here imports other files of this folder and helpers without state
//! (`names`, `fields`, `accepted_key`), never a stage; a stage imports from here, and never from one above it.

mod action;
mod block;
mod calls;
mod check;
mod child_error;
mod context;
mod coverage;
mod decision;
mod deletion_runs;
mod desired;
mod difference;
mod finding;
mod item;
mod job;
mod kind_owner;
mod needs;
mod observed;
mod origins;
mod oscillation;
mod plans;
mod poll;
mod refs;
mod sibling;
mod snapshot;
mod state;
mod status;
mod target;
mod verdict;

pub use action::{Action, Apply, Expect, Ownership, Repair, Why, WritePolicy};
pub use block::{Block, Loss};
pub(super) use calls::job_end;
pub use calls::{Call, Calls};
pub use check::Check;
pub use child_error::{ChildError, MAX_CHILDREN, MAX_FIELD_BYTES};
pub use context::Context;
pub(in crate::children) use context::LiveValues;
pub(super) use coverage::is_of_former_package;
pub use coverage::{is_covered, owns_extra_fields};
pub(super) use decision::lines;
pub use decision::{ChildLine, Decision, Evaluation, Input};
pub use deletion_runs::DeletionRuns;
pub use desired::{Desired, Generated, Secret, TextPart};
pub(super) use difference::{Difference, Drift};
pub(super) use finding::Remedy;
pub use finding::{Finding, PLAN_REPEATS, Refusal, Removal, Severity, Wait};
pub use item::Item;
pub(super) use job::Completion;
pub(super) use job::is_job;
pub use kind_owner::KindOwner;
pub use needs::Needs;
pub(super) use observed::once;
pub use observed::{DriftFingerprint, Noted, Observed, Paths, RawObject, kept};
pub(in crate::children) use origins::ItemMemory;
pub use origins::{InstanceInput, ItemId, NEWEST, Origin, Origins};
pub use oscillation::{OscillationGuard, TargetChange};
pub(super) use plans::NoPackage;
pub use plans::{InstanceMemory, KeyProblem, PlanSnapshot, Revision};
pub use poll::{Poll, PollRequest, PollResult};
pub use refs::{FieldProjection, LookupResult, ReadError, Referred, ResourceSelector, Select};
pub(super) use refs::{PENDING, Problem, Refs};
pub use sibling::Sibling;
pub use snapshot::{ActivePackage, KindInfo, Listing, Snapshot};
pub(super) use state::{AS_ACCEPTED, Failure, share};
pub use state::{
    ActionOutcome, Applied, Effect, FieldConflict, GENERATED_DIFFERS, GENERATED_FOREIGN, GENERATED_MISSING,
    GENERATED_REFUSED, RIGHTS_MISSING, ReconcileState,
};
pub use status::Status;
pub(super) use status::{Condition, FAILED, NAMED, Projection, RECONCILING, STALLED, standard};
pub use target::Target;
pub(super) use target::{NewestMember, is_newest, typed_key};
pub use verdict::{Health, NOT_LOADED, Summary, Verdict};
pub(super) use verdict::{MAX_FINDINGS, join, join_some};
