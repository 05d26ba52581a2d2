//! One object of a target.

use std::sync::Arc;

use serde_json::Value;

use super::block::Loss;
use super::child_error::ChildError;
use super::desired::Desired;
use super::observed::Observed;
use super::origins::ItemId;
use crate::children::names;

/// One object of the target, or why it has no value.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub struct Item {
    /// The number of the child, see [`super::origins::Origins`]: its index in the resource of the newest origin.
    pub child: usize,
    /// The position of the origin that it is rendered from.
    pub origin: usize,
    /// `id` or `id[key]`.
    pub name: String,
    /// The `forEach` key, with its type.
    pub key: Option<Value>,
    /// The desired object.
    pub desired: Result<Desired, ChildError>,
    /// The live object, if there is one.
    pub observed: Option<Arc<Observed>>,
    /// The object that a deleted instance of that name has left, if there is no live one. It is adopted when
    /// the item is applied.
    pub retained: Option<Arc<Observed>>,
    /// Why it is not ready; `Ok` if it is.
    pub ready: Result<(), String>,
    /// Whether it is a Job that has completed and is gone, or is being deleted: it is not created again.
    pub done: bool,
    /// Whether there is nothing to apply, so that its body is not kept.
    pub needs_no_body: bool,
    /// Whether its body is too large to be kept together with the others. It is written after them.
    pub is_later: bool,
    /// Whether the live object meets the `lostWhen` of its child.
    pub meets_lost_when: bool,
    /// What becomes of it, if it is lost: then it is not applied.
    pub lost: Option<Loss>,
}

impl Item {
    /// The id of the item.
    pub fn id(&self) -> ItemId {
        ItemId::named(&self.name)
    }

    /// Whether the live object was last applied with this very desired object.
    pub fn is_current(&self) -> bool {
        match (&self.desired, &self.observed) {
            (Ok(desired), Some(observed)) => {
                observed.desired.as_deref() == Some(&desired.hash) && !observed.terminating
            }
            (Ok(_), None) => self.done,
            _ => false,
        }
    }

    /// Whether its update makes nothing unavailable: it changes metadata only, or what the API server changes without a restart.
    pub(in crate::children) fn stays_available(&self) -> bool {
        let (Ok(desired), Some(observed)) = (&self.desired, &self.observed) else { return false };
        let wanted = desired.body["metadata"]["annotations"][names::SPEC_HASH].as_str();
        wanted.is_some() && wanted == observed.spec_hash.as_deref()
    }

    /// Whether it is applied as it should be, and ready.
    pub(in crate::children) fn is_settled(&self) -> bool {
        self.is_current() && self.ready.is_ok()
    }

    /// Why the item is not settled.
    pub(in crate::children) fn unready(&self) -> String {
        match (&self.desired, &self.ready) {
            (Err(error), _) => error.to_string(),
            (_, Err(message)) => message.clone(),
            (Ok(_), Ok(())) => "awaits its update".into(),
        }
    }
}
