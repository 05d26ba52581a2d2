//! Gives up fields that our entry of managedFields has and our desired object lacks.
//!
//! An apply deletes what our entry has and the apply has not. So a field of another client that got into our entry
//! is lost with the next apply that succeeds, unless it leaves the entry before. Without an owner it keeps its
//! value: only an owner's apply can remove it.

use serde_json::{Map, Value, json};

use super::cover::match_items;
use super::path::{FieldPath, Key};
use super::repair::{put_in, take_out};
use super::set::{FieldSet, Node, is_our_apply, is_update};

/// The fields that our entry has beyond the desired object, only the topmost. Right after an apply there are
/// none, so a change of managedFields has put them there. `keep`: fields that are applied beside the desired
/// object, as dotted paths. `items`: whether items of lists are included. An item in place of one of ours is
/// not: it is moved into our entry, for the next apply to remove it.
pub fn excess(desired: &Value, owned: &FieldSet, keep: &[String], items: bool) -> Vec<FieldPath> {
    let mut search = Search { keep, items, trail: Vec::new(), found: Vec::new() };
    search.below(&owned.root, desired);
    search.found
}

struct Search<'a> {
    keep: &'a [String],
    items: bool,
    trail: Vec<&'a Key>,
    found: Vec<FieldPath>,
}

impl<'a> Search<'a> {
    fn below(&mut self, node: &'a Node, desired: &Value) {
        match desired {
            Value::Object(map) => {
                for (key, below) in &node.children {
                    let Key::Field(name) = key else { continue };
                    self.step(key, below, map.get(&**name));
                }
            }
            Value::Array(list) => {
                let matched = match_items(list, node);
                for (key, below) in &node.children {
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

    fn step(&mut self, key: &'a Key, node: &'a Node, desired: Option<&Value>) {
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
        let names = || {
            self.trail.iter().map(|key| match key {
                Key::Field(name) => Some(&**name),
                _ => None,
            })
        };
        self.keep.iter().any(|path| path.split('.').zip(names()).all(|(one, other)| Some(one) == other))
    }
}

/// Whether our Apply entry is written in a version of the kind.
pub fn is_in_version(managed_fields: &Value, manager: &str, api_version: &str) -> bool {
    let ours =
        managed_fields.as_array().and_then(|all| all.iter().find(|entry| is_our_apply(entry, manager)));
    ours.is_some_and(|entry| entry["apiVersion"] == api_version)
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
    let mut entries = managed_fields.as_array()?.clone();
    let ours = entries.iter_mut().find(|entry| is_our_apply(entry, manager))?;
    let ours = ours.get_mut("fieldsV1")?.as_object_mut()?;
    let mut released = Vec::new();
    for path in paths {
        if take_out(ours, &path.0, &mut Vec::new()).is_some() {
            released.push(path);
        }
    }
    if released.is_empty() {
        return None;
    }
    let mut former = before.and_then(Value::as_array).cloned().unwrap_or_default();
    for entry in former.iter_mut().filter(|entry| is_update(entry)) {
        for path in &released {
            let mut way = Vec::new();
            let Some(fields) = entry.get_mut("fieldsV1").and_then(Value::as_object_mut) else { continue };
            let Some(Value::Object(item)) = take_out(fields, &path.0, &mut way) else { continue };
            give(&mut entries, entry, &way, item);
        }
    }
    Some(Value::Array(entries))
}

/// Gives a field to the entry of the same writer, or to a new one.
fn give(entries: &mut Vec<Value>, writer: &Value, way: &[String], item: Map<String, Value>) {
    let is_writer = |entry: &Value| {
        is_update(entry) && ["manager", "apiVersion"].iter().all(|key| entry[*key] == writer[*key])
    };
    if !entries.iter().any(is_writer) {
        let mut entry = writer.clone();
        entry["fieldsV1"] = json!({});
        entries.push(entry);
    }
    let entry = entries.iter_mut().find(|entry| is_writer(entry));
    if let Some(Value::Object(fields)) = entry.and_then(|entry| entry.get_mut("fieldsV1")) {
        put_in(fields, way, item);
    }
}
