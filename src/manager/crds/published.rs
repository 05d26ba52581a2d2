//! The kinds whose instances are reconciled, and how each has changed.

use std::sync::Arc;

use crate::manager::registry::Registered;

/// A kind whose instances are reconciled.
#[derive(Clone)]
pub(super) struct Published {
    pub(super) registered: Arc<Registered>,
    /// Uid and generation of the CRD, if it exists.
    pub(super) spec: Option<(String, i64)>,
}

/// How a kind differs from the published one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It is new, or its package was not loaded before.
    Added,
    /// Its CRD has another spec, or is another object.
    Spec,
    /// Its CRD is gone, or its instances belong to another manager.
    Gone,
    /// Another revision of its package is active.
    Upgraded,
    /// Only its message, its package, or the record of its child kinds differs.
    Details,
}

impl Published {
    pub(super) fn change(&self, before: Option<&Self>) -> Option<Change> {
        let (new, Some(before)) = (&self.registered, before) else { return Some(Change::Added) };
        let old = &before.registered;
        if new.package.is_some() != old.package.is_some() {
            Some(Change::Added)
        } else if self.spec != before.spec {
            Some(if self.spec.is_some() { Change::Spec } else { Change::Gone })
        } else if self.is_upgraded(Some(before)) {
            Some(Change::Upgraded)
        } else {
            (!new.is_same(old)).then_some(Change::Details)
        }
    }

    /// Whether another revision of the package was active before.
    pub(super) fn is_upgraded(&self, before: Option<&Self>) -> bool {
        let digest = |published: &Self| published.registered.digest().map(str::to_owned);
        before.and_then(digest).is_some_and(|before| digest(self).is_some_and(|now| now != before))
    }
}
