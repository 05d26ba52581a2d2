//! Structural pruning, as in the API server.

use serde_json::Value;

use super::{OBJECT_FIELDS, OtherKeys, is_embedded, other_keys, properties};

/// Removes the fields that the schema does not have, as the API server does when it reads an object from its store.
pub fn prune(schema: &Value, object: &mut Value) {
    walk(schema, object, true);
}

fn walk(schema: &Value, value: &mut Value, is_root: bool) {
    match value {
        Value::Object(map) => {
            let is_whole = is_root || is_embedded(schema);
            let known = properties(schema);
            let other = other_keys(schema);
            let is_kept = |name: &str| {
                is_whole && OBJECT_FIELDS.contains(&name)
                    || known.is_some_and(|known| known.contains_key(name))
                    || !matches!(other, OtherKeys::Closed)
            };
            map.retain(|name, _| is_kept(name));
            for (name, value) in map {
                if is_whole && OBJECT_FIELDS.contains(&name.as_str()) {
                    continue;
                }
                match (known.and_then(|known| known.get(name)), &other) {
                    (Some(schema), _) => walk(schema, value, false),
                    (None, OtherKeys::Schema(schema)) => walk(schema, value, false),
                    // The server keeps the value, but empties every object in it.
                    (None, OtherKeys::Shallow) => empty(value),
                    (None, OtherKeys::Open | OtherKeys::Closed) => {}
                }
            }
        }
        Value::Array(items) => match schema.get("items") {
            Some(schema) => items.iter_mut().for_each(|item| walk(schema, item, false)),
            None if super::preserves(schema) => {}
            None => items.iter_mut().for_each(empty),
        },
        _ => {}
    }
}

fn empty(value: &mut Value) {
    match value {
        Value::Object(map) => map.clear(),
        Value::Array(items) => items.iter_mut().for_each(empty),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_the_schema_does_not_have_are_removed() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "string"},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "string"}}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}},
        }}}});
        let mut object = json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a", "labels": {"x": "y"}},
            "other": 1, "spec": {"a": "1", "b": "2", "open": {"z": {"y": 1}}, "map": {"k": {"x": "1", "y": "2"}},
            "list": [{"x": "1", "y": "2"}]}});
        prune(&schema, &mut object);
        assert_eq!(
            object,
            json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a", "labels": {"x": "y"}},
                "spec": {"a": "1", "open": {"z": {"y": 1}}, "map": {"k": {"x": "1"}}, "list": [{"x": "1"}]}})
        );
    }
}
