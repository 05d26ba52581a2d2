//! The target of an instance: which children it has, what each should be, and the live object of each.

mod building;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::desired::Desired;
use super::diff::{Difference, diff};
use super::observed::Observed;
use super::origins::{ItemId, NEWEST};
use super::refs::{Refs, ResourceSelector};
use super::schedule::Loss;
use super::state::ReconcileState;
use super::{ChildError, Context};
use crate::template::{EvalError, Scope, Text, Var};

pub(super) use building::refs;
pub use building::target;

/// One object of the target, or why it has no value.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub struct Item {
    /// The number of the child, see [`super::Origins`]: its index in the resource of the newest origin.
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

    /// How the live object differs from the desired one; `None` if the desired one has no value.
    pub(super) fn difference(&self, state: &ReconcileState) -> Option<Difference> {
        let observed = self.observed.as_deref();
        let is_as_applied = observed.is_some_and(|observed| state.is_as_applied(observed));
        Some(match diff(self.desired.as_ref().ok()?, observed, is_as_applied) {
            Difference::Missing if self.done => Difference::Current,
            // Drift was compared before the body was dropped.
            Difference::Drifted(_) if self.needs_no_body => Difference::Current,
            difference => difference,
        })
    }

    /// Whether its update makes nothing unavailable: it changes metadata only, or what the API server changes without a restart.
    pub(super) fn stays_available(&self) -> bool {
        let (Ok(desired), Some(observed)) = (&self.desired, &self.observed) else { return false };
        let wanted = desired.body["metadata"]["annotations"][super::names::SPEC_HASH].as_str();
        wanted.is_some() && wanted == observed.spec_hash.as_deref()
    }

    /// Whether it is applied as it should be, and ready.
    pub(super) fn is_settled(&self) -> bool {
        self.is_current() && self.ready.is_ok()
    }

    /// Why the item is not settled.
    pub(super) fn unready(&self) -> String {
        match (&self.desired, &self.ready) {
            (Err(error), _) => error.to_string(),
            (_, Err(message)) => message.clone(),
            (Ok(_), Ok(())) => "awaits its update".into(),
        }
    }
}

/// What an instance should consist of.
#[derive(Debug)]
pub struct Target {
    /// Its objects, dependencies first.
    pub items: Vec<Item>,
    /// Children whose members are not known, by the number of the child.
    pub open: BTreeMap<usize, ChildError>,
    /// The scope with all live children, for `status`, `readyWhen` and conditions.
    pub scope: Scope,
    /// The scope of each earlier origin.
    earlier_scopes: Vec<Scope>,
    /// `children` of the scope; only for kinds with plans.
    pub(super) children: BTreeMap<String, Var>,
    /// The digests of the object refs, by the position of the origin that names the objects.
    pub(super) digests: Vec<BTreeMap<String, String>>,
    /// The members in the target of the newest origin, in order, whichever origin their items have; only for kinds with
    /// plans.
    pub(super) newest: Vec<NewestMember>,
    /// Its refs, and their problems.
    pub(super) refs: Refs,
}

/// A member in the target of the newest origin.
#[derive(Debug)]
pub(super) struct NewestMember {
    /// The number of the child.
    pub(super) child: usize,
    /// `id` or `id[key]`.
    pub(super) name: String,
    /// The `forEach` key, with its type.
    pub(super) key: Option<Value>,
    /// The hash of what the newest origin renders, if the item has another origin and this one has a value.
    hash: Option<String>,
}

impl Target {
    /// Whether the live object of an item is what the newest origin renders.
    pub(super) fn is_newest(&self, item: &Item) -> bool {
        is_newest(&self.newest, item)
    }

    /// Whether an item whose object is away has the same target in the newest origin as in its own.
    pub(super) fn keeps_target(&self, item: &Item) -> bool {
        let is_away = item.observed.as_ref().is_none_or(|live| live.terminating);
        let newest = self.newest.iter().find(|member| member.name == item.name);
        let hash = newest.and_then(|member| member.hash.as_deref());
        is_away && item.desired.as_ref().is_ok_and(|desired| hash == Some(&desired.hash))
    }

    /// Whether all of the target is applied.
    pub(super) fn is_applied(&self) -> bool {
        self.open.is_empty() && self.items.iter().all(Item::is_current)
    }

    /// The scope of the origin at a position.
    pub fn scope_at(&self, position: usize) -> &Scope {
        position.checked_sub(1).and_then(|index| self.earlier_scopes.get(index)).unwrap_or(&self.scope)
    }

    /// The value of a setting of an item's child, computed with the origin of the item.
    pub(super) fn setting(
        &self,
        ctx: &Context<'_>,
        item: &Item,
        text: &Text,
    ) -> Result<Option<Value>, EvalError> {
        ctx.origins.at(item.origin).package.engine.eval_text(text, self.scope_at(item.origin))
    }

    /// The objects that its refs name.
    pub fn selectors(&self) -> &[ResourceSelector] {
        &self.refs.wants
    }
}

/// Whether the live object of an item is what the newest origin renders.
fn is_newest(newest: &[NewestMember], item: &Item) -> bool {
    if item.origin == NEWEST {
        return item.is_current();
    }
    let hash =
        newest.iter().find(|member| member.name == item.name).and_then(|member| member.hash.as_deref());
    let live = item.observed.as_ref().filter(|live| !live.terminating);
    hash.is_some() && live.is_some_and(|live| live.desired.as_deref() == hash)
}

/// The key of a member that is known only by its label. Text that reads as an integer is one.
pub(super) fn typed_key(text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(number) if number.to_string() == text => Value::from(number),
        _ => Value::from(text),
    }
}
