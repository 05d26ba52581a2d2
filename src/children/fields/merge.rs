//! What an apply would make of an object, nearly: to ask the API server whether it would take that as a new one.

use serde_json::{Map, Value};

use super::path::Key;
use super::repair::pair;
use super::set::{FieldSet, Node};

/// The live object with a desired object put into it, as a new object: without status and without what the server has
/// given it. Lists are merged as their managedFields say. What our last apply had and this desired object has not is still
/// in it.
pub fn merged(live: &Value, desired: &Value) -> Value {
    let entries = live["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let owned = FieldSet::united(entries.iter().map(|entry| &entry["fieldsV1"]));
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
        put(object.entry(name.clone()).or_insert(Value::Null), wanted, owned.root.field(name));
    }
    object.insert("metadata".to_owned(), meta);
    Value::Object(object)
}

fn put(live: &mut Value, wanted: &Value, owned: Option<&Node>) {
    match (live, wanted) {
        // Atomic, or without an owner.
        (Value::Object(live), Value::Object(wanted)) if !owned.is_some_and(Node::is_leaf) => {
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

fn list(live: &mut Vec<Value>, wanted: &[Value], owned: Option<&Node>) {
    let sample = owned.and_then(|owned| owned.items().next());
    let Some((sample, _)) = sample else {
        // A set.
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
    fn an_intent_is_put_into_the_live_object() {
        let live = json!({"apiVersion": "v1", "kind": "A", "status": {"x": 1},
            "metadata": {"name": "a", "uid": "u", "labels": {"theirs": "1"}, "managedFields": [{"fieldsV1": {"f:spec": {
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
}
