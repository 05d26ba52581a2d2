//! The target of an instance: which children it has, what each should be, and the live object of each.

use std::collections::BTreeMap;

use serde_json::Value;

use super::child_error::ChildError;
use super::context::Context;
use super::item::Item;
use super::needs::Needs;
use super::origins::NEWEST;
use super::refs::{Refs, ResourceSelector};
use crate::template::{EvalError, Scope, Text, Var};

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
    pub(in crate::children) earlier_scopes: Vec<Scope>,
    /// `children` of the scope; only for kinds with plans.
    pub(in crate::children) children: BTreeMap<String, Var>,
    /// The digests of the object refs, by the position of the origin that names the objects.
    pub(in crate::children) digests: Vec<BTreeMap<String, String>>,
    /// The members in the target of the newest origin, in order, whichever origin their items have; only for kinds with
    /// plans.
    pub(in crate::children) newest: Vec<NewestMember>,
    /// Its refs, and their problems.
    pub(in crate::children) refs: Refs,
}

/// A member in the target of the newest origin.
#[derive(Debug)]
pub(in crate::children) struct NewestMember {
    /// The number of the child.
    pub(in crate::children) child: usize,
    /// `id` or `id[key]`.
    pub(in crate::children) name: String,
    /// The `forEach` key, with its type.
    pub(in crate::children) key: Option<Value>,
    /// The hash of what the newest origin renders, if the item has another origin and this one has a value.
    pub(in crate::children) hash: Option<String>,
}

impl Target {
    /// Whether the live object of an item is what the newest origin renders.
    pub(in crate::children) fn is_newest(&self, item: &Item) -> bool {
        is_newest(&self.newest, item)
    }

    /// Whether an item whose object is away has the same target in the newest origin as in its own.
    pub(in crate::children) fn keeps_target(&self, item: &Item) -> bool {
        let is_away = item.observed.as_ref().is_none_or(|live| live.terminating);
        let newest = self.newest.iter().find(|member| member.name == item.name);
        let hash = newest.and_then(|member| member.hash.as_deref());
        is_away && item.desired.as_ref().is_ok_and(|desired| hash == Some(&desired.hash))
    }

    /// Whether all of the target is applied.
    pub(in crate::children) fn is_applied(&self) -> bool {
        self.open.is_empty() && self.items.iter().all(Item::is_current)
    }

    /// The scope of the origin at a position.
    pub fn scope_at(&self, position: usize) -> &Scope {
        position.checked_sub(1).and_then(|index| self.earlier_scopes.get(index)).unwrap_or(&self.scope)
    }

    /// The value of a setting of an item's child, computed with the origin of the item.
    pub(in crate::children) fn setting(
        &self,
        ctx: &Context<'_>,
        item: &Item,
        text: &Text,
    ) -> Result<Option<Value>, EvalError> {
        ctx.origins.at(item.origin).package.engine.eval_text(text, self.scope_at(item.origin))
    }

    /// What its refs need.
    pub(in crate::children) fn needs(&self) -> Needs {
        Needs { watches: self.refs.wants.clone(), polls: self.refs.polls.clone(), ..Needs::default() }
    }

    /// The objects that its refs name.
    pub fn selectors(&self) -> &[ResourceSelector] {
        &self.refs.wants
    }
}

/// Whether the live object of an item is what the newest origin renders.
pub(in crate::children) fn is_newest(newest: &[NewestMember], item: &Item) -> bool {
    if item.origin == NEWEST {
        return item.is_current();
    }
    let hash =
        newest.iter().find(|member| member.name == item.name).and_then(|member| member.hash.as_deref());
    let live = item.observed.as_ref().filter(|live| !live.terminating);
    hash.is_some() && live.is_some_and(|live| live.desired.as_deref() == hash)
}

/// The key of a member that is known only by its label. Text that reads as an integer is one.
pub(in crate::children) fn typed_key(text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(number) if number.to_string() == text => Value::from(number),
        _ => Value::from(text),
    }
}
