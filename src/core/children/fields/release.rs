//! Gives up fields that our entry of managedFields has and our desired object lacks.
//!
//! An apply deletes what our entry has and the apply has not. So a field of another client that got into our entry
//! is lost with the next apply that succeeds, unless it leaves the entry before. Without an owner it keeps its
//! value: only an owner's apply can remove it.

use operetta_kube_model::fields::{Entry, FieldSet, Key, Owner, read, to_value};
use serde_json::Value;

use super::cover::match_items;
use super::owned::{give, take};
use super::path::FieldPath;

/// The fields that our entry has beyond the desired object, only the topmost. Right after an apply there are
/// none, so a change of managedFields has put them there. `keep`: fields that are applied beside the desired
/// object, as dotted paths. `items`: whether items of lists are included. An item in place of one of ours is
/// not: it is moved into our entry, for the next apply to remove it.
pub fn excess(desired: &Value, owned: &FieldSet, keep: &[String], items: bool) -> Vec<FieldPath> {
    let mut search = Search { keep, items, trail: Vec::new(), found: Vec::new() };
    search.below(owned, desired);
    search.found
}

struct Search<'a> {
    keep: &'a [String],
    items: bool,
    trail: Vec<&'a Key>,
    found: Vec<FieldPath>,
}

impl<'a> Search<'a> {
    fn below(&mut self, node: &'a FieldSet, desired: &Value) {
        match desired {
            Value::Object(map) => {
                for (key, below) in node.below() {
                    let Some(name) = key.name() else { continue };
                    self.step(key, below, map.get(name));
                }
            }
            Value::Array(list) => {
                let matched = match_items(list, node);
                for (key, below) in node.below() {
                    let item = matched.iter().position(|found| found.is_some_and(|(other, _)| other == key));
                    match item {
                        Some(index) => self.step(key, below, list.get(index)),
                        None if self.items => self.step(key, below, None),
                        None => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn step(&mut self, key: &'a Key, node: &'a FieldSet, desired: Option<&Value>) {
        self.trail.push(key);
        match desired {
            Some(desired) => self.below(node, desired),
            None if self.is_kept() => {}
            None => self.found.push(FieldPath(self.trail.iter().copied().cloned().collect())),
        }
        self.trail.pop();
    }

    /// Whether the place is on the way to a field that is kept, or below one.
    fn is_kept(&self) -> bool {
        let names = || self.trail.iter().map(|key| key.name());
        self.keep.iter().any(|path| path.split('.').zip(names()).all(|(one, other)| Some(one) == other))
    }
}

/// Whether our Apply entry is written in a version of the kind.
pub fn is_in_version(managed_fields: &Value, manager: &str, api_version: &str) -> bool {
    let mut owners = managed_fields.as_array().into_iter().flatten().filter_map(Owner::parse);
    owners.any(|owner| owner.is_apply_of(manager) && owner.version == api_version)
}

/// The managedFields in which our Apply entry does not own these fields. Each goes back to the plain write that
/// owned it in the managedFields of `before`; without one it has no owner. `None` if our entry
/// has none of them. To be written by one JSON patch together with a test of the resourceVersion.
pub fn release(
    managed_fields: &Value,
    manager: &str,
    paths: &[FieldPath],
    before: Option<&Value>,
) -> Option<Value> {
    let mut entries = read(managed_fields)?;
    let ours = entries.iter_mut().find(|entry| entry.owner.is_apply_of(manager))?;
    let released: Vec<_> = paths.iter().filter(|path| take(ours, &path.0).is_some()).collect();
    if released.is_empty() {
        return None;
    }
    let former = before.and_then(read).unwrap_or_default();
    for mut entry in former.into_iter().filter(|entry| entry.owner.is_update()) {
        let taken: FieldSet = released.iter().filter_map(|path| take(&mut entry, &path.0)).collect();
        if !taken.is_empty() {
            give(&mut entries, Entry { fields: taken.into(), ..entry });
        }
    }
    Some(to_value(&entries))
}
