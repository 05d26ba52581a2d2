//! An applied value merged into the live one.

use std::collections::{HashMap, HashSet};

use operetta_kube_model::fields::Key;
use serde_json::{Map, Value};

use super::typed::key_of;
use crate::schema::{ListShape, Shape, Typed};

/// Merges `right` into `left`: what `right` has wins, the rest of `left` is kept.
pub(super) fn merge(typed: Option<Typed<'_>>, left: Option<&Value>, right: Option<&Value>) -> Option<Value> {
    let Some(right) = right else { return left.cloned() };
    let Some(typed) = typed else { return Some(right.clone()) };
    let shape = typed.shape(right);
    let left = left.filter(|left| right.is_null() || typed.shape(left).same_kind(&shape));
    match &shape {
        Shape::Scalar(_) => Some(right.clone()),
        Shape::Map(map) => {
            let [a, b] = [left, Some(right)].map(|side| side.and_then(Value::as_object));
            let is_empty = |side: Option<&Map<String, Value>>| side.is_none_or(Map::is_empty);
            if shape.is_atomic() || is_empty(a) && is_empty(b) {
                return Some(right.clone());
            }
            let kept = a.into_iter().flatten().filter(|(name, _)| b.is_none_or(|b| !b.contains_key(*name)));
            let kept = kept.map(|(name, value)| (name.clone(), value.clone()));
            let applied = b.into_iter().flatten().filter_map(|(name, value)| {
                let merged = merge(map.field(name), a.and_then(|a| a.get(name)), Some(value));
                Some((name.clone(), merged?))
            });
            Some(Value::Object(kept.chain(applied).collect()))
        }
        Shape::List(list) => {
            let [a, b] = [left, Some(right)]
                .map(|side| side.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default());
            if list.is_atomic() || a.is_empty() && b.is_empty() {
                return Some(right.clone());
            }
            Some(Value::Array(items(*list, a, b)))
        }
    }
}

/// The items of both lists in the order of the live one, with new ones where the applied list has them.
fn items(list: ListShape<'_>, left: &[Value], right: &[Value]) -> Vec<Value> {
    let keys = |items: &[Value]| -> Vec<Key> { items.iter().map(|value| key_of(list, value)).collect() };
    let (left_keys, right_keys) = (keys(left), keys(right));
    let (in_left, in_right) = (index(&left_keys), index(&right_keys));
    let mut shared = right_keys.iter().filter(|key| in_left.contains_key(*key));
    let mut next_shared = shared.next();
    let mut done: HashSet<&Key> = HashSet::new();
    let mut out = Vec::with_capacity(left.len() + right.len());
    let one = |key: &Key, right_at: usize| {
        merge(list.items(), in_left.get(key).map(|at| &left[*at]), Some(&right[right_at]))
    };
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            let key = &left_keys[l];
            if *key == right_keys[r] {
                done.insert(key);
                out.extend(one(key, r));
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            if in_right.contains_key(key) && next_shared.is_some_and(|next| next != key) {
                l += 1;
                continue;
            }
        }
        if l < left.len() {
            let key = &left_keys[l];
            if !in_right.contains_key(key) {
                out.push(left[l].clone());
                l += 1;
                continue;
            } else if done.contains(key) {
                l += 1;
            }
        }
        if r < right.len() {
            let key = &right_keys[r];
            done.insert(key);
            out.extend(one(key, r));
            r += 1;
            if next_shared.is_some_and(|next| next == key) {
                next_shared = shared.next();
            }
        }
    }
    out
}

/// The first place of each key.
fn index(keys: &[Key]) -> HashMap<&Key, usize> {
    keys.iter().enumerate().rev().map(|(at, key)| (key, at)).collect()
}
