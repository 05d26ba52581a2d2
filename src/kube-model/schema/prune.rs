//! Structural pruning, as in the API server.

use serde_json::Value;

use super::path::{Notation, Path};
use super::{OBJECT_FIELDS, OtherKeys, is_embedded, other_keys, preserves, properties};

/// A field that was removed.
#[derive(Debug)]
pub struct Dropped<'s> {
    /// Its path.
    pub path: String,
    /// Its name.
    pub name: String,
    /// The schema of the object that had it. None if the object has no schema, because `additionalProperties: true` allows the
    /// object, but no fields in it.
    pub of: Option<&'s Value>,
}

/// Removes the fields that the schema does not have, as the API server does when it reads an object from a request or its
/// store. `is_root` is whether the value is a whole custom resource.
pub fn prune<'s>(
    schema: &'s Value,
    value: &mut Value,
    is_root: bool,
    notation: Notation,
) -> Vec<Dropped<'s>> {
    let mut walk = Walk { dropped: Vec::new(), notation };
    walk.value(Some(schema), value, (is_root, false), &Path::ROOT);
    walk.dropped
}

struct Walk<'s> {
    dropped: Vec<Dropped<'s>>,
    notation: Notation,
}

impl<'s> Walk<'s> {
    /// `keeps` is whether a list that keeps unknown fields has the value.
    fn value(
        &mut self,
        schema: Option<&'s Value>,
        value: &mut Value,
        (is_root, keeps): (bool, bool),
        path: &Path<'_>,
    ) {
        let keeps = keeps || schema.is_some_and(preserves);
        match value {
            Value::Object(map) => {
                let is_whole = is_root || schema.is_some_and(is_embedded);
                let known = schema.and_then(properties);
                let other = match schema.map_or(OtherKeys::Closed, other_keys) {
                    OtherKeys::Closed if keeps => OtherKeys::Open,
                    other => other,
                };
                map.retain(|name, value| {
                    if is_whole && OBJECT_FIELDS.contains(&name.as_str()) {
                        return true;
                    }
                    let path = path.field(name);
                    match (known.and_then(|known| known.get(name)), other) {
                        (Some(below), _) | (None, OtherKeys::Schema(below)) => {
                            self.value(Some(below), value, (false, false), &path);
                        }
                        (None, OtherKeys::Shallow) => self.value(None, value, (false, false), &path),
                        (None, OtherKeys::Open) => {}
                        (None, OtherKeys::Closed) => {
                            self.dropped.push(Dropped {
                                path: path.show(self.notation),
                                name: name.clone(),
                                of: schema,
                            });
                            return false;
                        }
                    }
                    true
                });
            }
            Value::Array(items) => {
                let below = schema.and_then(|schema| schema.get("items"));
                for (at, item) in items.iter_mut().enumerate() {
                    self.value(below, item, (false, keeps), &path.index(at));
                }
            }
            _ => {}
        }
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
            "shallow": {"type": "object", "additionalProperties": true},
        }}}});
        let mut object = json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a", "labels": {"x": "y"}},
            "other": 1, "spec": {"a": "1", "b": "2", "open": {"z": {"y": 1}}, "map": {"k": {"x": "1", "y": "2"}},
            "list": [{"x": "1", "y": "2"}], "shallow": {"k": [{"x": 1}]}}});
        let dropped = prune(&schema, &mut object, true, Notation::Dotted);
        assert_eq!(
            object,
            json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a", "labels": {"x": "y"}},
                "spec": {"a": "1", "open": {"z": {"y": 1}}, "map": {"k": {"x": "1"}}, "list": [{"x": "1"}],
                "shallow": {"k": [{}]}}})
        );
        let paths: Vec<&str> = dropped.iter().map(|dropped| &*dropped.path).collect();
        assert_eq!(paths, ["other", "spec.b", "spec.list[0].y", "spec.map.k.y", "spec.shallow.k[0].x"]);
        assert!(dropped[4].of.is_none());
    }

    #[test]
    fn lists_keep_unknown_fields_of_their_items() {
        let known = json!({"type": "object", "properties": {"x": {"type": "string"}}});
        let keeping = |items: Value| json!({"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": items});
        let items = json!({"type": "object", "properties": {"known": known}});
        for (schema, wanted) in [
            (keeping(items.clone()), json!([{"a": {"b": 1}, "known": {"x": "1"}}])),
            (json!({"type": "array", "items": items}), json!([{"known": {"x": "1"}}])),
            (keeping(Value::Null), json!([{"a": {"b": 1}, "known": {"x": "1", "y": "2"}}])),
        ] {
            let mut value = json!([{"a": {"b": 1}, "known": {"x": "1", "y": "2"}}]);
            prune(&schema, &mut value, false, Notation::Dotted);
            assert_eq!(value, wanted, "{schema}");
        }
    }
}
