//! A child as the index holds it, and where it came from.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::api::ObjectRef;
use crate::children::{Observed, names};

/// A child in a set that is searched by its object reference, so that the reference is held once.
pub(super) struct Child(pub(super) Arc<Observed>);

impl Borrow<ObjectRef> for Child {
    fn borrow(&self) -> &ObjectRef {
        &self.0.object
    }
}

impl Hash for Child {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.object.hash(state);
    }
}

impl PartialEq for Child {
    fn eq(&self, other: &Self) -> bool {
        self.0.object == other.0.object
    }
}

impl Eq for Child {}

/// Which children of a kind a watch brings; by default all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::manager) struct ChildPart {
    /// The label of the kind of instances whose children they are; `None` is all.
    pub(in crate::manager) kind: Option<Box<str>>,
    /// Their namespace; `None` is all, and cluster-scoped children.
    pub(in crate::manager) namespace: Option<Box<str>>,
}

impl ChildPart {
    pub(super) fn has(&self, child: &Observed) -> bool {
        self.kind.as_deref().is_none_or(|label| names::claims_kind(&child.claim, label))
            && (self.namespace.is_none() || self.namespace.as_deref() == child.object.namespace.as_deref())
    }
}

/// Where an object came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::manager) enum Provenance {
    /// A list or watch.
    Watch,
    /// The reply to a write of ours.
    OwnWrite,
    /// A live read. Another manager may have made the changes that it shows.
    Read,
}
