//! The approximate result of an apply, to ask the API server whether it would accept that as a new object.

use operetta_kube_model::fields::{FieldSet, Key, same};
use serde_json::{Map, Value};

use super::owned::{of_manager, of_others, sets};
use super::release::excess;
use super::repair::pair;

/// The live object with a desired object put into it, as a new object: without status and without what the
/// server has given it. Lists are merged as their managedFields say. Fields that our last apply had and this
/// desired object lacks are kept.
pub fn merged(live: &Value, desired: &Value) -> Value {
    let owned: FieldSet = sets(live, |_| true).collect();
    let mut object = Map::new();
    for (name, value) in live.as_object().into_iter().flatten() {
        if !["status", "metadata"].contains(&name.as_str()) {
            object.insert(name.clone(), value.clone());
        }
    }
    let mut meta = desired["metadata"].clone();
    for field in ["labels", "annotations"] {
        let mut map = live["metadata"][field].as_object().cloned().unwrap_or_default();
        map.extend(meta[field].as_object().cloned().unwrap_or_default());
        meta[field] = Value::Object(map);
    }
    for (name, wanted) in desired.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata") {
        put(object.entry(name.clone()).or_insert(Value::Null), wanted, owned.field(name));
    }
    object.insert("metadata".to_owned(), meta);
    Value::Object(object)
}

/// The approximate result of an apply by `manager`: as [`merged`], without the fields of our last apply that the desired
/// object no longer has and no other manager owns. `keep`: fields that are applied beside the desired object, as dotted paths.
pub fn applied(live: &Value, desired: &Value, keep: &[String], manager: &str) -> Value {
    let mut object = merged(live, desired);
    let Some(owned) = of_manager(live, manager) else { return object };
    let others = of_others(live, manager);
    for path in excess(desired, &owned, keep, true) {
        remove(&mut object, &path.0, Some(&others));
    }
    object
}

/// The approximate result if the live object is deleted and the desired one created in its place: as
/// [`merged`], without the fields that any manager has set and the desired object lacks. The other fields are
/// defaults of the server, which it sets again.
pub fn recreated(live: &Value, desired: &Value) -> Value {
    let mut object = merged(live, desired);
    let owned: FieldSet = sets(live, |owner| owner.subresource.is_empty()).collect();
    for path in excess(desired, &owned, &[], true) {
        remove(&mut object, &path.0, None);
    }
    object
}

/// Removes the field at a path unless others own it or something below it.
fn remove(value: &mut Value, path: &[Key], others: Option<&FieldSet>) {
    let Some((key, rest)) = path.split_first() else { return };
    let below = others.and_then(|others| others.child(key));
    let is_last = rest.is_empty();
    // A node that is owned as a whole owns all below it.
    if others.is_some_and(FieldSet::is_leaf) || is_last && below.is_some() {
        return;
    }
    match (value, key) {
        (Value::Object(map), Key::Field(name)) => {
            if is_last {
                map.remove(&**name);
            } else if let Some(value) = map.get_mut(&**name) {
                remove(value, rest, below);
            }
        }
        (Value::Array(items), Key::Index(index)) => {
            let index = usize::try_from(*index).unwrap_or(usize::MAX);
            if is_last && index < items.len() {
                items.remove(index);
            } else if let Some(item) = items.get_mut(index) {
                remove(item, rest, below);
            }
        }
        (Value::Array(items), Key::Value(wanted)) if is_last => items.retain(|item| !same(item, wanted)),
        (Value::Array(items), key @ Key::Item(_)) => {
            if is_last {
                items.retain(|item| !fits(key, item));
            } else if let Some(item) = items.iter_mut().find(|item| fits(key, item)) {
                remove(item, rest, below);
            }
        }
        _ => {}
    }
}

fn put(live: &mut Value, wanted: &Value, owned: Option<&FieldSet>) {
    match (live, wanted) {
        // A map that is owned as a whole is atomic: it is replaced, not merged.
        (Value::Object(live), Value::Object(wanted)) if !owned.is_some_and(FieldSet::is_leaf) => {
            for (name, wanted) in wanted {
                let below = owned.and_then(|owned| owned.field(name));
                put(live.entry(name.clone()).or_insert(Value::Null), wanted, below);
            }
        }
        (Value::Array(live), Value::Array(wanted)) if owned.is_some_and(|owned| !owned.is_leaf()) => {
            list(live, wanted, owned);
        }
        (live, wanted) => live.clone_from(wanted),
    }
}

fn list(live: &mut Vec<Value>, wanted: &[Value], owned: Option<&FieldSet>) {
    let sample = owned.and_then(|owned| owned.items().next());
    let Some((sample, _)) = sample else {
        // No item has a key: the list is a set.
        let new = wanted.iter().filter(|item| !live.contains(item)).cloned().collect::<Vec<_>>();
        live.extend(new);
        return;
    };
    let pairs = pair(live, wanted, sample, |_| true);
    for (item, at) in wanted.iter().zip(pairs) {
        match at {
            Some(index) => {
                let key = owned
                    .and_then(|owned| owned.items().map(|(key, _)| key).find(|key| fits(key, &live[index])));
                let below = owned.zip(key).and_then(|(owned, key)| owned.child(key));
                put(&mut live[index], item, below);
            }
            None => live.push(item.clone()),
        }
    }
}

fn fits(key: &Key, item: &Value) -> bool {
    key.fits(item).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn desired_object_is_merged_into_the_live_object() {
        let live = json!({"apiVersion": "v1", "kind": "A", "status": {"x": 1},
            "metadata": {"name": "a", "uid": "u", "labels": {"theirs": "1"}, "managedFields": [{"operation": "Apply", "fieldsV1": {"f:spec": {
                "f:list": {"k:{\"name\":\"a\"}": {".": {}, "f:x": {}}, "k:{\"name\":\"b\"}": {".": {}}},
                "f:set": {".": {}, "v:1": {}}, "f:atomic": {}, "f:args": {}, "f:n": {}}}}]},
            "spec": {"list": [{"name": "a", "x": 1, "theirs": 2}, {"name": "b"}], "set": [1], "atomic": {"a": 1},
                "args": [1, 2], "n": 1, "theirs": {"y": 1}}});
        let desired = json!({"apiVersion": "v1", "kind": "A", "metadata": {"name": "a", "labels": {"ours": "1"}},
            "spec": {"list": [{"name": "c"}, {"name": "a", "x": 7}], "set": [1, 2], "atomic": {"b": 1}, "args": [3],
                "theirs": {"z": 1}}});
        let made = merged(&live, &desired);
        assert_eq!(
            made["spec"],
            json!({"list": [{"name": "a", "x": 7, "theirs": 2}, {"name": "b"}, {"name": "c"}], "set": [1, 2],
                "atomic": {"b": 1}, "args": [3], "n": 1, "theirs": {"y": 1, "z": 1}})
        );
        assert_eq!(
            made["metadata"],
            json!({"name": "a", "labels": {"theirs": "1", "ours": "1"}, "annotations": {}})
        );
        assert!(made.get("status").is_none());
    }

    #[test]
    fn apply_removes_dropped_fields_that_nobody_else_owns() {
        let ours = json!({"f:spec": {"f:a": {}, "f:b": {}, "f:shared": {}, "f:map": {".": {}, "f:x": {}, "f:y": {}},
            "f:list": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}, "k:{\"name\":\"b\"}": {".": {}, "f:name": {}, "f:x": {}}},
            "f:set": {"v:1": {}, "v:2": {}}}});
        let live = json!({"metadata": {"name": "a", "managedFields": [
                {"manager": "operetta/o", "operation": "Apply", "fieldsV1": ours},
                {"manager": "them", "operation": "Update", "fieldsV1": {"f:spec": {"f:shared": {}, "f:theirs": {}}}}]},
            "spec": {"a": 1, "b": 2, "shared": 3, "theirs": 4, "map": {"x": 1, "y": 2},
                "list": [{"name": "a"}, {"name": "b", "x": 1, "default": true}], "set": [1, 2]}});
        let desired = json!({"metadata": {"name": "a"},
            "spec": {"a": 7, "map": {"x": 1}, "list": [{"name": "a"}], "set": [2]}});
        let made = applied(&live, &desired, &[], "operetta/o");
        assert_eq!(
            made["spec"],
            json!({"a": 7, "shared": 3, "theirs": 4, "map": {"x": 1}, "list": [{"name": "a"}], "set": [2]})
        );
        let kept = applied(&live, &desired, &["spec.b".to_owned()], "operetta/o");
        assert_eq!(kept["spec"]["b"], 2);
        assert_eq!(applied(&live, &desired, &[], "operetta/other")["spec"]["b"], 2, "another manager's");
    }
}
