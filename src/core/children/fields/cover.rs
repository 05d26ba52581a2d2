//! Whether a field set covers a desired object.

use operetta_kube_model::fields::{FieldSet, Fit, Key, UNOWNED, same};
use serde_json::{Map, Value};

use super::path::FieldPath;

/// The first leaf of the desired object that our set does not cover, as a readable path; `None`: all are.
///
/// An empty list that is not in the set counts as covered: an empty keyed list never is in one. To
/// detect that another client filled an atomic one, use [`uncovered_beside`].
pub fn uncovered(desired: &Value, owned: &FieldSet) -> Option<String> {
    first_lost(desired, owned, None)
}

/// Like [`uncovered`], and looks also at what the others own ([`super::of_others`]): an empty list
/// that they own now, and fields of theirs below what looks atomic in our set, are not covered.
pub fn uncovered_beside(desired: &Value, owned: &FieldSet, others: &FieldSet) -> Option<String> {
    first_lost(desired, owned, Some(others))
}

/// Whether our set lost an item of a keyed list that the desired object has, or the name of one, where others
/// have items. Only then may an item of theirs stand in the way of our next apply (see
/// [`super::conflicting_items`]); whether one does, only the live object shows.
pub fn lost_items(desired: &Value, owned: &FieldSet, others: &FieldSet) -> bool {
    let Some(fields) = desired.as_object() else { return false };
    fields.iter().any(|(name, value)| match value {
        // The only list of maps in metadata is that of the owners, which is for the garbage collector.
        Value::Object(_) if name == "metadata" => false,
        _ => lost_item_below(value, owned.field(name), others.field(name)),
    })
}

fn lost_item_below(value: &Value, node: Option<&FieldSet>, others: Option<&FieldSet>) -> bool {
    if node.is_some_and(FieldSet::is_leaf) {
        return false;
    }
    match value {
        Value::Object(fields) => fields.iter().any(|(name, value)| {
            let (below, theirs) = (node.and_then(|n| n.field(name)), others.and_then(|o| o.field(name)));
            lost_item_below(value, below, theirs)
        }),
        // If other managers own no item of the list, none is in the way.
        Value::Array(items) if others.is_some_and(|others| others.items().next().is_some()) => {
            let empty = FieldSet::default();
            items.iter().zip(match_items(items, node.unwrap_or(&empty))).any(|(item, found)| match found {
                None => true,
                Some((_, below)) if below.is_leaf() => false,
                Some((key, below)) => {
                    !below.member
                        || (item.get("name").is_some() && below.field("name").is_none())
                        || lost_item_below(item, Some(below), others.and_then(|o| o.child(key)))
                }
            })
        }
        _ => false,
    }
}

/// The path to a lost leaf, from its end. It is built while returning, so that covered leaves cost no path.
type Lost = Vec<Key>;

fn at(key: Key, lost: Option<Lost>) -> Option<Lost> {
    lost.map(|mut way| {
        way.push(key);
        way
    })
}

fn lost_unless(covered: bool) -> Option<Lost> {
    (!covered).then(Lost::new)
}

fn first_lost(desired: &Value, owned: &FieldSet, others: Option<&FieldSet>) -> Option<String> {
    let lost = desired.as_object()?.iter().find_map(|(name, value)| {
        let (node, theirs) = (owned.field(name), others.and_then(|o| o.field(name)));
        let lost = match (name.as_str(), value) {
            ("apiVersion" | "kind", _) => None,
            // A kind with a status subresource ignores it here.
            ("status", _) if node.is_none() => None,
            ("metadata", Value::Object(fields)) => lost_field(fields, node, theirs, &UNOWNED),
            _ => lost_leaf(value, node, theirs),
        };
        at(Key::Field(name.as_str().into()), lost)
    });
    lost.map(|mut way| {
        way.reverse();
        FieldPath(way).to_string()
    })
}

fn lost_leaf(value: &Value, node: Option<&FieldSet>, others: Option<&FieldSet>) -> Option<Lost> {
    match (value, node) {
        (Value::Null, _) => None,
        (Value::Object(fields), _) if fields.is_empty() => lost_unless(node.is_some()),
        (Value::Object(fields), Some(node)) if node.is_leaf() => taken_below(fields, others),
        (Value::Object(fields), _) => lost_field(fields, node, others, &[]),
        (Value::Array(items), None) if items.is_empty() => {
            lost_unless(!others.is_some_and(FieldSet::is_leaf))
        }
        (Value::Array(items), Some(node)) if items.is_empty() || node.is_leaf() => None,
        (Value::Array(items), _) => lost_item(items, node, others),
        _ => lost_unless(node.is_some_and(|node| node.member)),
    }
}

fn lost_field(
    fields: &Map<String, Value>,
    node: Option<&FieldSet>,
    others: Option<&FieldSet>,
    skip: &[&str],
) -> Option<Lost> {
    fields.iter().filter(|(name, _)| !skip.contains(&name.as_str())).find_map(|(name, value)| {
        let (below, theirs) = (node.and_then(|n| n.field(name)), others.and_then(|o| o.field(name)));
        at(Key::Field(name.as_str().into()), lost_leaf(value, below, theirs))
    })
}

/// A map that is a leaf of our set is atomic, and all ours; unless others own fields of it.
fn taken_below(fields: &Map<String, Value>, others: Option<&FieldSet>) -> Option<Lost> {
    let others = others.filter(|node| !node.below().is_empty())?;
    fields.iter().filter(|(_, value)| !value.is_null()).find_map(|(name, value)| {
        let theirs = others.field(name)?;
        let lost = match value {
            Value::Object(fields) if !theirs.below().is_empty() => taken_below(fields, Some(theirs)),
            _ => Some(Lost::new()),
        };
        at(Key::Field(name.as_str().into()), lost)
    })
}

fn lost_item(items: &[Value], node: Option<&FieldSet>, others: Option<&FieldSet>) -> Option<Lost> {
    let empty = FieldSet::default();
    let matched = match_items(items, node.unwrap_or(&empty));
    items.iter().zip(matched).enumerate().find_map(|(index, (item, found))| match found {
        Some((_, below)) if below.is_leaf() => None,
        Some((key, below)) => {
            let theirs = others.and_then(|o| o.child(key));
            at(key.clone(), lost_leaf(item, Some(below), theirs))
        }
        None => {
            let lost = lost_leaf(item, None, None).unwrap_or_default();
            at(unmatched(index, item), Some(lost))
        }
    })
}

/// The key that names an item which is not in the set: by its name, or else by its index.
fn unmatched(index: usize, item: &Value) -> Key {
    match item.get("name") {
        Some(name @ Value::String(_)) => Key::Item([("name".into(), name.clone())].into()),
        _ => Key::Index(i64::try_from(index).unwrap_or(i64::MAX)),
    }
}

/// For each item of a desired object's list its place in the set. Two items never share one (a port without
/// `protocol` is not the UDP port of the same number), unless the server itself keeps only one for
/// duplicates, as a leaf.
pub(super) fn match_items<'s>(items: &[Value], node: &'s FieldSet) -> Vec<Option<(&'s Key, &'s FieldSet)>> {
    let mut used = vec![false; node.below().len()];
    let mut matched: Vec<Option<(&Key, &FieldSet)>> = vec![None; items.len()];
    for wanted in [Fit::Exact, Fit::Partial] {
        for (index, item) in items.iter().enumerate() {
            if matched[index].is_some() {
                continue;
            }
            let mut candidates = node.below().iter().enumerate().filter(|(place, (key, below))| {
                let fits = match key {
                    Key::Item(_) => key.fits(item) == Some(wanted),
                    Key::Value(value) => same(value, item),
                    Key::Index(at) => usize::try_from(*at) == Ok(index),
                    Key::Field(_) => false,
                };
                fits && (!used[*place] || below.is_leaf())
            });
            // Among several that fit in part, one that covers the item is the one meant.
            let first = candidates.next();
            let covers =
                |(_, (_, below)): &(usize, &(Key, FieldSet))| lost_leaf(item, Some(below), None).is_none();
            let best = match first {
                Some(found) if wanted == Fit::Exact || covers(&found) => Some(found),
                _ => candidates.find(covers).or(first),
            };
            if let Some((place, (key, below))) = best {
                used[place] = true;
                matched[index] = Some((key, below));
            }
        }
    }
    matched
}
