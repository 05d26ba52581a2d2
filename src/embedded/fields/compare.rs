//! Which fields of two values of one kind differ.

use std::collections::BTreeMap;

use operetta_kube_model::fields::{FieldSet, Key, same};
use serde_json::{Map, Value};

use super::typed::item;
use crate::schema::{Shape, Typed};

/// What one value has that the other lacks, and where they differ.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) removed: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) added: FieldSet,
}

impl Difference {
    fn put(&mut self, key: &Key, below: Self) {
        for (to, set) in [
            (&mut self.removed, below.removed),
            (&mut self.modified, below.modified),
            (&mut self.added, below.added),
        ] {
            if !set.is_empty() {
                to.insert(key.clone(), set);
            }
        }
    }
}

/// Compares two values.
pub(super) fn compare(typed: Typed<'_>, left: &Value, right: &Value) -> Difference {
    let mut found = walk(Some(typed), Some(left), Some(right));
    // The object itself has no owner.
    found.modified.member = false;
    found
}

fn walk(typed: Option<Typed<'_>>, left: Option<&Value>, right: Option<&Value>) -> Difference {
    let mut found = Difference::default();
    let mut is_leaf = false;
    if let Some(typed) = typed {
        let shapes = [left, right].map(|side| side.map(|value| typed.shape(value)));
        let [left_shape, right_shape] = &shapes;
        let same = match (left_shape, right_shape) {
            (Some(a), Some(b)) => a.same_kind(b),
            _ => true,
        };
        let used = if right.is_none() { [left_shape.as_ref(), None] } else { [None, right_shape.as_ref()] };
        let used = if same { used } else { [left_shape.as_ref(), right_shape.as_ref()] };
        for shape in used.into_iter().flatten() {
            is_leaf |= inside(shape, left, right, &mut found);
        }
    }
    match (left, right) {
        (None, _) => found.added.member = true,
        (_, None) => found.removed.member = true,
        (Some(a), Some(b)) => found.modified.member = is_leaf && !same(a, b),
    }
    found
}

/// Compares what is in two values; returns whether they are compared as a whole.
fn inside(shape: &Shape<'_>, left: Option<&Value>, right: Option<&Value>, found: &mut Difference) -> bool {
    match shape {
        Shape::Scalar(_) => true,
        Shape::Map(map) => {
            let [a, b] = [left, right].map(|side| side.and_then(Value::as_object));
            let is_empty = |side: Option<&Map<String, Value>>| side.is_none_or(Map::is_empty);
            if shape.is_atomic() || is_empty(a) && is_empty(b) {
                return true;
            }
            let mut one = |name: &str, left: Option<&Value>, right: Option<&Value>| {
                // Most fields are equal; nothing below them can differ.
                if left == right {
                    return;
                }
                found.put(&Key::field(name), walk(map.field(name), left, right));
            };
            for (name, value) in a.into_iter().flatten() {
                one(name, Some(value), b.and_then(|b| b.get(name)));
            }
            for (name, value) in b.into_iter().flatten() {
                if a.is_none_or(|a| !a.contains_key(name)) {
                    one(name, None, Some(value));
                }
            }
            false
        }
        Shape::List(list) => {
            let [a, b] = [left, right].map(|side| side.and_then(Value::as_array).filter(|l| !l.is_empty()));
            if list.is_atomic() || a.is_none() && b.is_none() {
                return true;
            }
            let mut all: BTreeMap<Key, [Vec<&Value>; 2]> = BTreeMap::new();
            for (side, items) in [a, b].into_iter().enumerate() {
                for value in items.into_iter().flatten() {
                    if let Ok(key) = item(*list, value) {
                        all.entry(key).or_default()[side].push(value);
                    }
                }
            }
            for (key, [left, right]) in all {
                match (&left[..], &right[..]) {
                    ([] | [_], [] | [_]) => {
                        let (left, right) = (left.first().copied(), right.first().copied());
                        found.put(&key, walk(list.items(), left, right));
                    }
                    ([_, _, ..], [_, _, ..]) => {
                        if left != right {
                            found.modified.insert(key, FieldSet::leaf());
                        }
                    }
                    ([_, _, ..], _) => {
                        if let Some(first) = right.first() {
                            found.put(&key, walk(list.items(), None, Some(first)));
                        }
                        found.removed.insert(key, FieldSet::leaf());
                    }
                    _ => {
                        if let Some(first) = left.first() {
                            found.put(&key, walk(list.items(), Some(first), None));
                        }
                        found.added.insert(key, FieldSet::leaf());
                    }
                }
            }
            false
        }
    }
}
