//! What each item of a target is rendered from.
//!
//! Without plans there is one [`Origin`]: the active package and the instance as it is. During a run of a plan, items that
//! the run has not reached keep the origin that they had. `Origins::source_of` says which origin an item has.
//!
//! A child is the same child in all origins if its id is the same, or one of them lists the other's id in `renamedFrom`. Its
//! *number* is its index in the resource of the newest origin; children that only earlier origins have come after those.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::children::names;
use crate::facts::LAST_APPLIED;
use crate::package::{Child, Package, Resource};
use crate::template::Var;

/// A revision of the package, and the instance as it is, or as it was when a target was last accepted or rolled out.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The package.
    pub package: &'a Package,
    /// The instance's kind in the package.
    pub resource: &'a Resource,
    /// The instance, CRD defaults filled in.
    pub instance: &'a Value,
}

impl<'a> Origin<'a> {
    /// The namespace of the instance; `None` if it is cluster-scoped.
    pub fn namespace(&self) -> Option<&'a str> {
        self.instance["metadata"]["namespace"].as_str()
    }

    /// The name of the instance.
    pub fn name(&self) -> &'a str {
        self.instance["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The uid of the instance.
    pub fn uid(&self) -> &'a str {
        self.instance["metadata"]["uid"].as_str().unwrap_or_default()
    }
}

/// What users edit of an instance, to be recorded: with a package revision it makes an origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceInput {
    spec: Value,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    labels: Map<String, Value>,
    /// The annotations, except Operetta's own, which are always taken from the live instance.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    annotations: Map<String, Value>,
}

impl InstanceInput {
    /// The spec.
    pub fn spec(&self) -> &Value {
        &self.spec
    }

    /// The labels.
    pub fn labels(&self) -> &Map<String, Value> {
        &self.labels
    }

    /// The annotations, except Operetta's own.
    pub fn annotations(&self) -> &Map<String, Value> {
        &self.annotations
    }

    /// What users have set on an instance.
    pub fn of(instance: &Value) -> Self {
        let meta = &instance["metadata"];
        let map = |field: &str| meta[field].as_object().cloned().unwrap_or_default();
        let mut annotations = map("annotations");
        annotations.retain(|key, _| !key.starts_with(names::DOMAIN) && key != LAST_APPLIED);
        Self { spec: instance["spec"].clone(), labels: map("labels"), annotations }
    }

    /// The instance with this input in place of its own.
    pub fn restored(&self, instance: &Value) -> Value {
        let mut restored = instance.clone();
        restored["spec"].clone_from(&self.spec);
        let mut annotations = self.annotations.clone();
        let live = instance["metadata"]["annotations"].as_object().into_iter().flatten();
        let ours = live.filter(|(key, _)| key.starts_with(names::DOMAIN));
        annotations.extend(ours.map(|(key, value)| (key.clone(), value.clone())));
        for (field, map) in [("labels", self.labels.clone()), ("annotations", annotations)] {
            if let Some(meta) = restored["metadata"].as_object_mut() {
                if map.is_empty() {
                    meta.remove(field);
                } else {
                    meta.insert(field.to_owned(), Value::Object(map));
                }
            }
        }
        restored
    }
}

/// An item: the id of its child, and for a member of a `forEach` child the text of its key. Written `id` or `id[key]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ItemId(String);

impl ItemId {
    /// The item of a child, and of a key if the child has a `forEach`.
    pub fn new(child: &str, key: Option<&str>) -> Self {
        Self(names::item_name(child, key))
    }

    /// The item of a name, as [`super::item::Item::name`] has it.
    pub fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The id of the child.
    pub fn child(&self) -> &str {
        self.0.split_once('[').map_or(&*self.0, |(child, _)| child)
    }

    /// The text of the key.
    pub fn key(&self) -> Option<&str> {
        self.0.split_once('[')?.1.strip_suffix(']')
    }
}

impl Borrow<str> for ItemId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The position of the newest origin. The others follow, newest first.
pub const NEWEST: usize = 0;

/// What is remembered of an item since the last rollout that has succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub(in crate::children) struct ItemMemory {
    /// The position of the origin of the newest rollout that has reached it, if that has not succeeded.
    pub(in crate::children) origin: Option<usize>,
    /// Whether the package of that origin is missing: the item keeps what it has.
    pub(in crate::children) is_held: bool,
    /// Whether a rollout has reached it, the one that has succeeded included.
    pub(in crate::children) is_reached: bool,
    /// Whether its object has existed.
    pub(in crate::children) existed: bool,
    /// Whether a step has deleted it, and no step has applied it since: its absence is no loss.
    pub(in crate::children) deleted: bool,
    /// Whether it is not in the target, because the run that has deleted it has not succeeded.
    pub(in crate::children) absent: bool,
    /// Whether a run restores it, or has failed to. It is lost whatever steps have deleted.
    pub(in crate::children) lost: bool,
}

/// What the items of an instance are rendered from.
#[derive(Debug)]
pub struct Origins<'a> {
    newest: Origin<'a>,
    earlier: Vec<Earlier<'a>>,
    /// What is remembered of the items that have a past, by their ids in the newest origin.
    items: HashMap<ItemId, ItemMemory>,
    /// The position of the origin of the last rollout that has succeeded.
    rolled_out: Option<usize>,
    variables: Vec<(&'static str, Var)>,
    has_plans: bool,
    /// The number of each child, by its id in any origin.
    numbers: HashMap<&'a str, usize>,
    /// The children that only earlier origins have.
    former: Vec<&'a Child>,
}

/// An origin that is not the newest.
#[derive(Debug)]
struct Earlier<'a> {
    origin: Origin<'a>,
    /// The number of each child of its resource, by index.
    numbers: Vec<usize>,
    /// The index of each child in its resource, by number.
    indices: HashMap<usize, usize>,
}

impl<'a> Origins<'a> {
    /// Builds the origins of an instance whose items all have the newest one.
    pub fn one(newest: Origin<'a>) -> Self {
        let mut numbers = HashMap::with_capacity(newest.resource.children.len());
        for (number, child) in newest.resource.children.iter().enumerate() {
            numbers.insert(child.id.as_str(), number);
            numbers.extend(child.renamed_from.iter().map(|id| (id.as_str(), number)));
        }
        Self {
            newest,
            earlier: Vec::new(),
            items: HashMap::new(),
            rolled_out: None,
            variables: Vec::new(),
            has_plans: false,
            numbers,
            former: Vec::new(),
        }
    }

    /// Builds the origins of an instance whose items have different ones. `earlier`: those other than the
    /// newest that are in use, newest first. `rolled_out`: the position of the one that was rolled out last
    /// ([`NEWEST`], or 1 for the first of `earlier`).
    pub(in crate::children) fn new(
        newest: Origin<'a>,
        earlier: Vec<Origin<'a>>,
        rolled_out: Option<usize>,
    ) -> Self {
        let mut origins = Self::one(newest);
        for origin in earlier {
            origins.add(origin);
        }
        Self { rolled_out, ..origins }
    }

    /// The origins if all items had that one.
    #[must_use]
    pub(in crate::children) fn only<'o>(&self, origin: Origin<'o>) -> Origins<'o> {
        Origins { variables: self.variables.clone(), ..Origins::one(origin) }
    }

    /// The origins other than the newest that items have, or had before a rollout reached them.
    pub(in crate::children) fn earlier(&self) -> impl Iterator<Item = Origin<'a>> {
        let is_of_items = move |position: &usize| {
            let mut items = self.items.values();
            self.previous() == Some(*position) || items.any(|item| item.origin == Some(*position))
        };
        (NEWEST + 1..self.len()).filter(is_of_items).map(move |position| self.at(position))
    }

    /// Adds what is remembered of the items, by the ids that their children have in the newest origin.
    #[must_use]
    pub(in crate::children) fn with_items(self, items: HashMap<ItemId, ItemMemory>) -> Self {
        Self { items, ..self }
    }

    /// Has the target list the members that the newest origin has, for the runs of plans.
    #[must_use]
    pub fn with_plans(self) -> Self {
        Self { has_plans: true, ..self }
    }

    /// What runs have recorded; `None` for an instance without plans.
    pub(super) fn facts(&self) -> Option<&Value> {
        self.variables.iter().find_map(|(name, value)| match value {
            Var::Json(facts) if *name == "record" => Some(facts),
            _ => None,
        })
    }

    /// Adds a variable of all expressions, such as `record`.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: Var) -> Self {
        self.variables.push((name, value));
        self
    }

    fn add(&mut self, origin: Origin<'a>) {
        let (mut numbers, mut indices) = (Vec::new(), HashMap::new());
        for (index, child) in origin.resource.children.iter().enumerate() {
            let ids = || std::iter::once(&child.id).chain(&child.renamed_from).map(String::as_str);
            // If two children have become one, the second stays a child of its own.
            let known = ids().filter_map(|id| self.number(id)).find(|number| !indices.contains_key(number));
            let number = known.unwrap_or_else(|| self.children());
            if number == self.children() {
                self.former.push(child);
            }
            for id in ids() {
                self.numbers.entry(id).or_insert(number);
            }
            indices.insert(number, index);
            numbers.push(number);
        }
        self.earlier.push(Earlier { origin, numbers, indices });
    }

    /// The item with the id that its child has in the newest origin.
    pub(in crate::children) fn in_newest(&self, item: ItemId) -> ItemId {
        match self.number(item.child()).map(|number| self.child_id(number)) {
            Some(id) if id != item.child() => ItemId::new(id, item.key()),
            _ => item,
        }
    }

    /// The newest origin.
    pub fn newest(&self) -> Origin<'a> {
        self.newest
    }

    /// The origin at a position; the newest if there is none.
    pub fn at(&self, position: usize) -> Origin<'a> {
        let earlier = position.checked_sub(1).and_then(|index| self.earlier.get(index));
        earlier.map_or(self.newest, |earlier| earlier.origin)
    }

    /// The number of origins.
    pub(in crate::children) fn len(&self) -> usize {
        1 + self.earlier.len()
    }

    /// How many children there are in all origins together.
    pub(in crate::children) fn children(&self) -> usize {
        self.newest.resource.children.len() + self.former.len()
    }

    /// The number of the child that has, or had, that id.
    pub fn number(&self, id: &str) -> Option<usize> {
        self.numbers.get(id).copied()
    }

    /// The id of a child, as it is in the newest origin that has the child.
    pub fn child_id(&self, number: usize) -> &'a str {
        let newest = &self.newest.resource.children;
        let former = || self.former.get(number.checked_sub(newest.len())?).copied();
        newest.get(number).or_else(former).map_or("", |child| &child.id)
    }

    /// A child as an origin has it.
    pub(in crate::children) fn child_at(&self, position: usize, number: usize) -> Option<&'a Child> {
        match position.checked_sub(1).map(|index| self.earlier.get(index)) {
            None => self.newest.resource.children.get(number),
            Some(earlier) => {
                let earlier = earlier?;
                earlier.origin.resource.children.get(*earlier.indices.get(&number)?)
            }
        }
    }

    /// The child of an item, as the item's origin has it.
    pub(in crate::children) fn child_of(&self, position: usize, number: usize) -> &'a Child {
        match position.checked_sub(1).map(|index| &self.earlier[index]) {
            None => &self.newest.resource.children[number],
            Some(earlier) => &earlier.origin.resource.children[earlier.indices[&number]],
        }
    }

    /// A child as it is in the newest origin that has it.
    pub(in crate::children) fn child(&self, number: usize) -> Option<&'a Child> {
        (0..self.len()).find_map(|position| self.child_at(position, number))
    }

    /// The number of the child at an index of an origin's resource, such as one of `Child::depends_on`.
    pub(in crate::children) fn number_at(&self, position: usize, index: usize) -> usize {
        let earlier = position.checked_sub(1).and_then(|earlier| self.earlier.get(earlier));
        earlier.and_then(|earlier| earlier.numbers.get(index)).map_or(index, |number| *number)
    }

    /// Whether a child depends on another one.
    pub(in crate::children) fn has_dependencies(&self) -> bool {
        let mut origins = (0..self.len()).map(|position| self.at(position));
        origins.any(|origin| origin.resource.children.iter().any(|child| !child.depends_on.is_empty()))
    }

    /// The numbers of all children, dependencies first, whichever origin has the dependency.
    pub(in crate::children) fn in_order(&self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.children());
        if self.earlier.is_empty() {
            order.extend(0..self.children());
            return order;
        }
        let mut visited = vec![false; self.children()];
        for number in 0..self.children() {
            self.visit(number, &mut visited, &mut order);
        }
        order
    }

    /// Adds a child after its dependencies. If origins disagree about the order, the child that is visited
    /// first comes first.
    fn visit(&self, number: usize, visited: &mut [bool], order: &mut Vec<usize>) {
        if std::mem::replace(&mut visited[number], true) {
            return;
        }
        for position in 0..self.len() {
            let dependencies = self.child_at(position, number).map_or(&[][..], |child| &child.depends_on);
            for dependency in dependencies {
                self.visit(self.number_at(position, *dependency), visited, order);
            }
        }
        order.push(number);
    }

    /// Whether an origin may have items of a child.
    pub(in crate::children) fn is_used(&self, position: usize, number: usize) -> bool {
        let id = self.child_id(number);
        let mut items = self.items.iter();
        let is_of =
            |(item, memory): (&ItemId, &ItemMemory)| memory.origin == Some(position) && item.child() == id;
        position == NEWEST || self.previous() == Some(position) || items.any(is_of)
    }

    /// The position of the origin of an item; `None` if it is in no target. `in_previous`: whether it is in the target of
    /// [`Self::previous`]; `None` if that is not known.
    pub(in crate::children) fn source_of(&self, item: &str, in_previous: Option<bool>) -> Option<usize> {
        let memory = self.memory(item);
        if memory.absent {
            return None;
        }
        memory.origin.or(match (self.previous(), in_previous) {
            (None, _) | (_, Some(false)) => Some(NEWEST),
            (previous, Some(true)) => previous,
            (Some(_), None) => None,
        })
    }

    /// What is remembered of an item.
    pub(in crate::children) fn memory(&self, item: &(impl Borrow<str> + ?Sized)) -> ItemMemory {
        self.items.get(item.borrow()).copied().unwrap_or_default()
    }

    /// What is remembered of all items.
    pub(in crate::children) fn memories(&self) -> impl Iterator<Item = (&ItemId, &ItemMemory)> {
        self.items.iter()
    }

    /// The position of the origin of the last rollout that has succeeded, if it is known.
    pub(in crate::children) fn rolled_out(&self) -> Option<usize> {
        self.rolled_out
    }

    /// The same, if it is another than the newest: items in its target that no later rollout has reached have it.
    pub(in crate::children) fn previous(&self) -> Option<usize> {
        self.rolled_out.filter(|position| *position != NEWEST)
    }

    /// Whether the target lists the members that the newest origin has.
    pub(in crate::children) fn has_plans(&self) -> bool {
        self.has_plans
    }

    /// The variables of all expressions.
    pub(in crate::children) fn variables(&self) -> &[(&'static str, Var)] {
        &self.variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_id_keeps_child_and_key() {
        for (child, key) in [("a", None), ("a", Some("0")), ("members", Some("x[0]")), ("a", Some("]"))] {
            let id = ItemId::new(child, key);
            assert_eq!((id.child(), id.key()), (child, key), "{id}");
        }
    }
}
