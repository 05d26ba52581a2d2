//! What a decision says to do.

use std::sync::Arc;

use serde_json::Value;

use super::desired::Desired;
use super::difference::{Difference, Drift};
use super::observed::Observed;
use crate::package::{ConflictPolicy, ImmutableChange};
use crate::plan::RunAction;

/// One thing to do.
#[derive(Debug, Clone)]
pub enum Action {
    /// Add our finalizer to the instance, before any child that it guards.
    AddFinalizer,
    /// Remove our finalizer from the instance: nothing is left that it guards.
    RemoveFinalizer,
    /// Server-side apply a child.
    Apply(Box<Apply>),
    /// Delete exactly this object.
    Delete(Arc<Observed>),
    /// Delete exactly this object without a grace period, also if it is already being deleted.
    ForceDelete(Arc<Observed>),
    /// Mark this object as retained.
    Retain(Arc<Observed>),
    /// Mark this object as awaiting the approval of its deletion.
    Ask(Arc<Observed>),
    /// Remove our labels and annotations from this object: it belongs to no instance any more.
    Orphan(Arc<Observed>),
    /// Remove what was noted on this object while nothing desired it: it is desired again.
    Unmark(Arc<Observed>),
    /// Annotate the instance that its children are orphaned, before the first of them is.
    MarkOrphaned,
    /// Write the record of the last accepted target on the instance, or remove it.
    Record(Option<String>),
    /// Record on the instance which of its Jobs have completed: the annotation's text.
    RecordJobs(String),
    /// Remove our finalizer from the instance without a live read of what it guards: a user asked for it.
    ForceRemoveFinalizer,
    /// Do something for a run of a plan.
    Run(Box<RunAction>),
}

impl Action {
    /// Whether it removes our finalizer from the instance.
    pub fn removes_finalizer(&self) -> bool {
        matches!(self, Self::RemoveFinalizer | Self::ForceRemoveFinalizer)
    }

    /// The object of an action that removes a child, or changes the marks of a removal.
    pub fn removed(&self) -> Option<&Arc<Observed>> {
        match self {
            Self::Delete(o)
            | Self::ForceDelete(o)
            | Self::Retain(o)
            | Self::Ask(o)
            | Self::Orphan(o)
            | Self::Unmark(o) => Some(o),
            _ => None,
        }
    }
}

/// A server-side apply of one child.
#[derive(Debug, Clone)]
pub struct Apply {
    /// `id` or `id[key]`, for messages.
    pub item: String,
    /// What to apply.
    pub desired: Desired,
    /// The precondition.
    pub expect: Expect,
    /// The uid of an object that a deleted instance of the same name has left and that the decision has seen:
    /// the apply adopts it. An object that the decision has not seen is not adopted, because templates may
    /// read it.
    pub adopts: Option<Box<str>>,
    /// The resourceVersion that was observed. A reply with the same one shows that nothing changed.
    pub version: Option<Box<str>>,
    /// What the package permits.
    pub policy: WritePolicy,
    /// What precedes the apply so that it repairs the object.
    pub repair: Repair,
    /// Whether the instance must be read live first, and must not be being deleted.
    pub requires_live_owner: bool,
    /// The shape of the write, if it changes the target: see [`super::check::Check::shape`].
    pub shape: Option<u64>,
    /// Why it is applied.
    pub why: Why,
    /// The live object, if it may be deleted and created again where one of its fields is immutable.
    pub recreate: Option<Arc<Observed>>,
    /// Whether the instance is annotated before the object is deleted and created again, so that it is not
    /// taken for lost.
    pub notes_recreation: bool,
}

/// What the package and the live object permit a write to do. A refusal counts for a write with the same permissions only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WritePolicy {
    /// Whether fields are taken from other managers.
    pub conflicts: ConflictPolicy,
    /// What to do about an object of that name that another client created.
    pub ownership: Ownership,
    /// What is done where one of its fields is immutable.
    pub on_immutable_change: ImmutableChange,
}

impl WritePolicy {
    /// Whether the object may be deleted and created again where one of its fields is immutable.
    pub fn recreates(self) -> bool {
        self.on_immutable_change != ImmutableChange::Fail
    }
}

/// What an apply does about an object of its name that another client created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The apply is refused, unless the object itself permits its adoption.
    Own,
    /// The apply adopts the object.
    Adopt,
}

/// What must be done about managedFields before an apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub struct Repair {
    /// Our entry has lost items of a keyed list: other items may stand in their place.
    pub lost_items: bool,
    /// Our entry has fields of other managers, which it gives up first.
    pub foreign_fields: bool,
    /// The desired object no longer gives the number of replicas: our entry gives it up first, so that the object keeps it.
    pub omitted_replicas: bool,
    /// The object is repaired repeatedly: look up which manager takes its fields.
    pub is_frequent: bool,
}

/// The precondition of an apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// No object of that name exists.
    Absent,
    /// The object with this uid exists.
    Present(Box<str>),
}

impl Expect {
    /// The body of an apply that succeeds only if the precondition holds.
    pub fn body(&self, desired: &Desired) -> Value {
        let mut body = (*desired.body).clone();
        match self {
            // No object has this version: the server creates the object (201), or refuses because it exists (409).
            Self::Absent => body["metadata"]["resourceVersion"] = "1".into(),
            Self::Present(uid) => body["metadata"]["uid"] = Value::from(&**uid),
        }
        body
    }
}

/// The reason of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The object does not exist.
    Create,
    /// The desired object has changed.
    Update,
    /// The desired object is the same, and our entry in managedFields has lost fields.
    Repair,
    /// Another client changed the object, and metadata cannot show whether the change concerns what we apply.
    Recheck,
    /// The object does not exist, belongs to the last accepted target, and the change of the target is
    /// refused.
    Restore,
}

impl Why {
    /// The reason for the apply that a difference calls for; `None` if nothing is to be applied now.
    pub(in crate::children) fn of(difference: Difference) -> Option<Self> {
        match difference {
            Difference::Missing => Some(Self::Create),
            Difference::Outdated => Some(Self::Update),
            Difference::Drifted(Drift::FieldsLost) => Some(Self::Repair),
            Difference::Drifted(_) => Some(Self::Recheck),
            Difference::Current | Difference::Terminating { .. } => None,
        }
    }

    /// Whether the apply gives the child a new desired object.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Create | Self::Update)
    }
}
