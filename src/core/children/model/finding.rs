//! Typed facts that the stages of a decision find: differences from the target and what blocks them. The verdict,
//! conditions, Events and the output of the command line are derived from them. All of their text is here.

use std::fmt::{self, Display, Formatter};

use super::block::{Block, Loss};
use super::child_error::ChildError;
use super::oscillation::MOST_CHANGES;
use super::refs::PENDING;
use super::state::{CORRECT_EVERY, GENERATED_REFUSED, RIGHTS_MISSING};
use crate::api::{CallError, Class, Gvk, ObjectRef};
use crate::children::names;
use crate::plan::{Cause, Repeating};

/// How many missing children a message names.
const NAMED: usize = 5;

/// The reason of the condition `Repeating` while a plan runs again and again although its runs succeed.
pub const PLAN_REPEATS: &str = "PlanRepeats";

/// A fact about an instance that is not as it should be.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are what the variants are about")]
pub enum Finding {
    /// A child, or a field of one, has no value.
    NoValue {
        /// The child or field.
        name: String,
        /// Why it has no value.
        error: ChildError,
        reason: &'static str,
        is_waiting: bool,
        /// The unknown ref that it reads.
        unknown_ref: Option<String>,
        /// Whether this affects Ready. It does not if the value is missing only because of a ref that does
        /// not.
        affects_ready: bool,
    },
    /// A ref is unknown that nothing else has reported.
    UnknownRef { id: String, reason: &'static str, message: String, is_waiting: bool, affects_ready: bool },
    /// `maxUnavailable` of a child is neither a number nor a percentage.
    InvalidMaxUnavailable { child: String },
    /// Another manager keeps changing a field.
    FieldManagerConflict { item: String, object: ObjectRef, field: String, manager: String },
    /// The API server has refused to apply a child.
    ApplyRefused(Box<Refusal>),
    /// A child waits to be written.
    Waiting { item: String, block: Block },
    /// The instance is paused, and a child would be written or pruned.
    Paused { write: &'static str, what: String },
    /// A child is being deleted, and is created again afterwards.
    Terminating { item: String, state: String },
    /// Children that were deleted while a change is refused, and cannot be restored.
    Missing { items: Vec<String> },
    /// While a change is refused, no deleted child can be restored: the key of the record of what was
    /// accepted cannot be read.
    RecordUnknown { message: String },
    /// An object is pruned later: once all else is applied, or what the block says.
    PruningWaits { object: ObjectRef, block: Option<Block> },
    /// The deletion of an object holds back others, or its end is awaited.
    Deletion(Wait),
    /// The API server has refused to delete, orphan or unmark an object.
    RemovalRefused { object: ObjectRef, what: Removal, error: CallError },
    /// Objects of a kind that the package no longer uses cannot be listed.
    KindNotListed { gvk: Gvk, reason: String, crd: String },
    /// The deletion of an object waits for the approval of a person.
    AwaitsApproval { object: ObjectRef, item: String, how: String },
    /// Whether children are left cannot be read, so the finalizer stays.
    FinalizerStays { error: CallError },
    /// A run of a plan waits at a step.
    RunWaits { run: String, step: String, message: String, affects_ready: bool },
    /// The last run of a plan has failed. `is_undone`: something of the instance is not as it should be; otherwise only what
    /// was asked for is not done.
    RunFailed { run: String, reason: String, message: String, is_undone: bool },
    /// A plan runs again and again.
    Repeating(Repeating),
    /// The last rollout was cancelled, and something is left of what it was to roll out.
    RolloutCancelled { run: String, retry: String },
    /// Children that a step has deleted stay away until something applies them.
    StaysDeleted { items: Vec<String> },
    /// An earlier revision of the package cannot be loaded. `run`: the run that began with it; `None` if only
    /// children were applied with it.
    RevisionMissing { revision: String, run: Option<String>, why: String },
    /// The objects of runs are unknown.
    RunsUnknown { message: String },
}

/// What a deletion waits for.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are what the variants are about")]
pub enum Wait {
    /// An object stays while objects that may depend on it cannot be listed.
    Unlisted { object: ObjectRef, gvk: Gvk, reason: String },
    /// An object is being deleted.
    Terminating { object: ObjectRef, held_by: Vec<Box<str>> },
    /// A namespace stays while it is used.
    NamespaceInUse { object: ObjectRef, user: String },
}

/// What was refused for an object that nothing desires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Removal {
    Deletion,
    Orphaning,
    Unmarking,
}

/// An apply that the API server has refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub(in crate::children) item: String,
    pub(in crate::children) object: ObjectRef,
    pub(in crate::children) error: CallError,
    pub(in crate::children) is_dry_run: bool,
    /// Where the template writes the fields that the server names.
    pub(in crate::children) places: Vec<String>,
    pub(in crate::children) remedy: Option<Remedy>,
}

/// What to do about a field that cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::children) enum Remedy {
    /// The size of a volume.
    Resize,
    /// `onImmutableChange: Recreate` is set, but the live object must not be deleted.
    RetainedObject,
    /// The package may not set `onImmutableChange: Recreate`.
    NeverRecreated,
    /// The package may set it.
    MayRecreate,
    /// `onImmutableChange` has no value, for this reason.
    PolicyUnknown(String),
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The finding does not pass by itself.
    Stalled,
    /// The finding may pass by itself.
    Waiting,
    /// The finding does not affect Ready.
    Pending,
}

impl Finding {
    /// The item or the object that the finding is about, and both for a refused apply.
    pub fn subject(&self) -> (Option<&str>, Option<&ObjectRef>) {
        match self {
            Self::ApplyRefused(refusal) => (Some(&refusal.item), Some(&refusal.object)),
            Self::NoValue { name: item, .. }
            | Self::Waiting { item, .. }
            | Self::Terminating { item, .. }
            | Self::FieldManagerConflict { item, .. } => (Some(item), None),
            Self::PruningWaits { object, .. } | Self::RemovalRefused { object, .. } => (None, Some(object)),
            _ => (None, None),
        }
    }

    /// Whether both say that an object was refused for the same reason: as it is to be, and as it was last accepted.
    pub(in crate::children) fn is_same_refusal(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ApplyRefused(one), Self::ApplyRefused(other)) => {
                one.object == other.object && one.error.message == other.error.message
            }
            _ => false,
        }
    }

    /// Whether it waits for a run.
    pub(in crate::children) fn waits_for_run(&self) -> bool {
        matches!(
            self,
            Self::Waiting { block: Block::Run(_), .. }
                | Self::PruningWaits { block: Some(Block::Run(_)), .. }
        )
    }

    /// Whether objects that cannot be listed hold back a deletion.
    pub(in crate::children) fn is_hidden(&self) -> bool {
        matches!(self, Self::Deletion(Wait::Unlisted { .. }))
    }

    /// Whether it says that deleted children are not restored while a change is refused.
    pub(in crate::children) fn is_about_missing(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::RecordUnknown { .. })
    }

    /// Whether it does not affect Ready, or says only that a ref has not been read yet.
    pub(in crate::children) fn is_silent(&self) -> bool {
        self.severity() == Severity::Pending || self.reason() == PENDING
    }

    /// Whether it is about a run that waits and does not affect Ready.
    pub(in crate::children) fn is_run_beside(&self) -> bool {
        matches!(self, Self::RunWaits { affects_ready: false, .. })
    }

    /// Whether it is about a ref that does not affect Ready.
    pub(in crate::children) fn is_ref_beside(&self) -> bool {
        matches!(
            self,
            Self::NoValue { affects_ready: false, .. } | Self::UnknownRef { affects_ready: false, .. }
        )
    }

    /// The finding itself, if it is a write that the pause holds back.
    pub(in crate::children) fn paused_write(&self) -> Option<&Self> {
        matches!(self, Self::Paused { .. }).then_some(self)
    }

    /// The severity of the finding.
    pub fn severity(&self) -> Severity {
        let is_stalled = match self {
            Self::NoValue { affects_ready: false, .. }
            | Self::UnknownRef { affects_ready: false, .. }
            | Self::RunWaits { affects_ready: false, .. }
            | Self::AwaitsApproval { .. }
            | Self::Repeating(_)
            | Self::RunFailed { is_undone: false, .. } => return Severity::Pending,
            Self::NoValue { is_waiting, .. } | Self::UnknownRef { is_waiting, .. } => !is_waiting,
            Self::InvalidMaxUnavailable { .. }
            | Self::FieldManagerConflict { .. }
            | Self::RunFailed { is_undone: true, .. }
            | Self::RolloutCancelled { .. }
            | Self::StaysDeleted { .. }
            | Self::RevisionMissing { run: Some(_), .. }
            | Self::Waiting {
                block: Block::Oscillation(_) | Block::Lost(Loss::Undecided { is_unknown: false, .. }),
                ..
            } => true,
            Self::ApplyRefused(refusal) => refusal.error.class != Class::Retry,
            Self::RemovalRefused { what: Removal::Deletion, error, .. } => error.class == Class::Permanent,
            _ => false,
        };
        if is_stalled { Severity::Stalled } else { Severity::Waiting }
    }

    /// The reason in conditions, in camel case.
    pub fn reason(&self) -> &str {
        match self {
            Self::NoValue { reason, .. } | Self::UnknownRef { reason, .. } => reason,
            Self::InvalidMaxUnavailable { .. } => "InvalidMaxUnavailable",
            Self::FieldManagerConflict { .. } => "FieldManagerConflict",
            Self::ApplyRefused(refusal) => refusal.reason(),
            Self::Waiting { block: Block::Oscillation(_), .. } => "Oscillating",
            Self::Waiting { block: Block::Lost(_), .. } => "ChildLost",
            Self::Waiting { .. } => "WaitingForDependency",
            Self::Paused { .. } => "Paused",
            Self::Terminating { .. } => "Terminating",
            Self::Missing { .. } | Self::RecordUnknown { .. } | Self::StaysDeleted { .. } => "Missing",
            Self::PruningWaits { .. } | Self::Deletion(_) | Self::KindNotListed { .. } => "Pruning",
            Self::RemovalRefused { what: Removal::Unmarking, .. } => "MarksRefused",
            Self::RemovalRefused { error, .. } if error.reason == RIGHTS_MISSING => RIGHTS_MISSING,
            Self::RemovalRefused { .. } => "DeletionRefused",
            Self::AwaitsApproval { .. } => "AwaitsApproval",
            Self::FinalizerStays { .. } => "Deleting",
            Self::RunWaits { .. } => "RunActive",
            Self::RunFailed { .. } => "RunFailed",
            Self::Repeating(Repeating { is_in_vain: false, .. }) => PLAN_REPEATS,
            Self::Repeating(_) => "PlanRetried",
            Self::RolloutCancelled { .. } => "RunCancelled",
            Self::RevisionMissing { .. } => "RevisionMissing",
            Self::RunsUnknown { .. } => "RunsUnknown",
        }
    }

    /// Whether the status of an instance that is being deleted reports it. An ordinary deletion that takes a moment is not
    /// reported.
    pub(in crate::children) fn holds_deletion(&self) -> bool {
        match self {
            Self::Deletion(Wait::Terminating { held_by, .. }) => !held_by.is_empty(),
            Self::RunFailed { is_undone, .. } => *is_undone,
            _ => true,
        }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValue { name, error, .. } => write!(f, "{name}: {error}"),
            Self::UnknownRef { id, message, .. } => write!(f, "refs.{id}: {message}"),
            Self::InvalidMaxUnavailable { child } => write!(
                f,
                "maxUnavailable of {child}: it is neither a number from 1 nor a percentage from \"1%\" to \"100%\": no \
                 member is changed until it is"
            ),
            Self::FieldManagerConflict { item, object, field, manager } => write!(
                f,
                "{item} ({object}): {manager} changes {field} repeatedly; it is restored only once in {} s now. \
                 Stop {manager}, or give the field up: list it in `yields`",
                CORRECT_EVERY.as_secs()
            ),
            Self::ApplyRefused(refusal) => refusal.fmt(f),
            Self::Waiting { item, block } => waiting(f, item, block),
            Self::Paused { write, what } => write!(f, "{write} {what}"),
            Self::Terminating { item, state } => write!(f, "{item}: {state}"),
            Self::Missing { items } => {
                let more = items.len().saturating_sub(NAMED);
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                write!(
                    f,
                    "missing until a change is accepted: {}{rest} (deleted while the change is refused, and what it was \
                     rendered from is not known)",
                    items[..items.len() - more].join(", ")
                )
            }
            Self::RecordUnknown { message } => {
                write!(f, "what is deleted is not restored until a change is accepted: {message}")
            }
            Self::PruningWaits { object, block: None } => {
                write!(f, "{object} is pruned once all else is applied")
            }
            Self::PruningWaits { object, block: Some(block) } => {
                waiting(f, &format!("the deletion of {object}"), block)
            }
            Self::Deletion(wait) => wait.fmt(f),
            Self::RemovalRefused { object, what, error } => match what {
                Removal::Deletion => write!(f, "{object} cannot be deleted: {error}"),
                Removal::Orphaning => write!(f, "{object} cannot be orphaned: {error}"),
                Removal::Unmarking => {
                    write!(f, "outdated annotations of {object} cannot be removed: {error}")
                }
            },
            Self::KindNotListed { gvk, reason, crd } => write!(
                f,
                "cannot list {gvk}, which the package no longer uses, so objects may be left to \
                 prune: {reason}; if none are left, remove it from the annotation {} of the CRD {crd}",
                names::CHILD_KINDS
            ),
            Self::AwaitsApproval { object, item, how } => {
                write!(f, "{object} ({item}) stays until its deletion is approved: {how}")
            }
            Self::FinalizerStays { error } => {
                write!(f, "cannot read whether all children are deleted: {error}")
            }
            Self::RunWaits { run, step, message, .. } if step.is_empty() => write!(f, "run {run}: {message}"),
            Self::RunWaits { run, step, message, .. } => write!(f, "run {run}, step {step}: {message}"),
            Self::RunFailed { run, reason, message, .. } => write!(f, "{run} failed: {reason}: {message}"),
            Self::Repeating(repeating) => again(f, repeating),
            Self::RolloutCancelled { run, retry } => write!(
                f,
                "run {run} was cancelled before all was rolled out: `operetta plan retry {retry}` goes on with it, and another \
                 spec starts a new one"
            ),
            Self::StaysDeleted { items } => {
                let more = items.len().saturating_sub(NAMED);
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                let named = items[..items.len() - more].join(", ");
                write!(
                    f,
                    "a step has deleted {named}{rest}, and the run has not succeeded: retry it, or run a plan that applies them"
                )
            }
            Self::RevisionMissing { revision, run: Some(run), why } => write!(
                f,
                "run {run} began with revision {revision} of the package, which cannot be loaded: {why}; restore it, or \
                 cancel the run"
            ),
            Self::RevisionMissing { revision, run: None, why } => write!(
                f,
                "revision {revision} of the package, with which children were applied, cannot be loaded: {why}; they stay \
                 as they are until a run reaches them"
            ),
            Self::RunsUnknown { message } => write!(f, "runs of plans are unknown: {message}"),
        }
    }
}

fn again(f: &mut Formatter<'_>, repeating: &Repeating) -> fmt::Result {
    let Repeating { plan, cause, count, is_in_vain, next } = repeating;
    let times = if *count == 1 { "once".to_owned() } else { format!("{count} times in a row") };
    let why = match cause {
        _ if *is_in_vain => "the last run has not succeeded",
        Cause::Condition => "its condition holds still, or again",
        Cause::Loss => "a child is lost still, or again",
        _ => "what it rolls out changes again and again",
    };
    write!(f, "plan {plan} has run {times}, and {why}: ")?;
    match next {
        Some(next) => write!(f, "the next run begins at {next:.0}"),
        None => write!(f, "it runs again"),
    }
}

fn waiting(f: &mut Formatter<'_>, item: &str, block: &Block) -> fmt::Result {
    match block {
        Block::Dependency(other) | Block::Run(other) => write!(f, "{item} waits for {other}"),
        Block::Paused => write!(f, "{item} waits until the instance is resumed"),
        Block::Lost(Loss::Plan(plan)) => write!(f, "{item} is lost; the plan {plan} restores it"),
        Block::Lost(Loss::Undecided { why, .. }) => write!(
            f,
            "{item} is lost, and its onLoss decides nothing: {why}; until it has a value (the name of a plan, or Recreate) \
             the object is not created again"
        ),
        Block::Size => {
            write!(f, "{item} waits until others are written, because all of them together are large")
        }
        Block::MaxUnavailable(Some(holder)) => write!(f, "{item} waits for {holder}"),
        Block::MaxUnavailable(None) => write!(f, "{item} waits until maxUnavailable is known"),
        Block::Oscillation(_) => write!(
            f,
            "{item}: what it should be has changed {MOST_CHANGES} times in five minutes while the instance stayed as it \
             is; does it read its own output, directly or through other objects?"
        ),
        Block::DryRun => write!(f, "{item} waits until a dry run of the change passes"),
        Block::Backoff(rest) | Block::Conflict(rest) | Block::Recheck(rest) => {
            write!(f, "{item} is written again in {} s", rest.as_secs())
        }
    }
}

impl Display for Wait {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlisted { object, gvk, reason } => write!(
                f,
                "{object} stays until each {gvk} that depends on it is known to be deleted: {reason}"
            ),
            Self::Terminating { object, held_by } if held_by.is_empty() => {
                write!(f, "{object} is being deleted")
            }
            Self::Terminating { object, held_by } => {
                write!(f, "{object} is being deleted, held by finalizer {}", held_by.join(", "))
            }
            Self::NamespaceInUse { object, user } => {
                write!(f, "{object} is deleted once nothing is left in it: {user} is")
            }
        }
    }
}

impl Refusal {
    fn reason(&self) -> &str {
        let error = &self.error;
        if self.remedy == Some(Remedy::Resize) {
            return "ResizeRefused";
        }
        if error.is_namespace_terminating() {
            return "NamespaceTerminating";
        }
        if error.is_apply_conflict() {
            return "ApplyConflict";
        }
        if error.is_immutable_change() {
            return "ImmutableField";
        }
        let reason = error.reason.as_str();
        if GENERATED_REFUSED.contains(&reason) || ["RecreateRefused", RIGHTS_MISSING].contains(&reason) {
            return &error.reason;
        }
        match error.class {
            Class::Retry => "ApplyRetrying",
            Class::Conflict => "AlreadyExists",
            Class::NotFound | Class::Permanent => match error.code {
                403 if error.is_unauthorized() => "Forbidden",
                _ => "ApplyRefused",
            },
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.item, self.object, self.error)?;
        if !self.places.is_empty() {
            write!(f, "; written in {}", self.places.join(", "))?;
        }
        if let Some(Remedy::PolicyUnknown(why)) = &self.remedy {
            write!(f, "; the field is immutable, and onImmutableChange of the child has no value: {why}")?;
        }
        f.write_str(match &self.remedy {
            None | Some(Remedy::PolicyUnknown(_)) => "",
            Some(Remedy::Resize) => {
                "; a volume never shrinks, and grows only where its StorageClass says allowVolumeExpansion: undo the \
                 change, or set the size that the claim has"
            }
            Some(Remedy::RetainedObject) => {
                "; the field is immutable, and deletionPolicy forbids to recreate the live object: undo the change, or \
                 delete the object by hand"
            }
            Some(Remedy::NeverRecreated) => {
                "; the field is immutable, and the object holds data or is retained: undo the change, or delete the \
                 object by hand"
            }
            Some(Remedy::MayRecreate) => {
                "; the field is immutable: undo the change, or delete the object by hand, or set onImmutableChange: \
                 Recreate in the package"
            }
        })?;
        f.write_str(if self.is_dry_run {
            "; a dry run found it, and the rest of the change waits"
        } else {
            ""
        })
    }
}
