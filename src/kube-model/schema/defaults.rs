//! Structural defaulting, as in the API server.

use serde_json::{Map, Value};

use super::{default_of, field, properties};

/// Applies the defaults of the schema in two passes, as the API server does. The first drops nulls that the
/// schema neither allows nor has a default for. The second sets the default of each missing value and of each
/// null that is not allowed. Defaults are applied recursively. An absent object without a default is not
/// created for defaults inside it.
pub fn apply_defaults(schema: &Value, object: &mut Value) {
    drop_nulls(Some(schema), object);
    fill_defaults(schema, object);
}

fn is_nullable(schema: &Value) -> bool {
    schema["nullable"] == true
}

fn drop_nulls(schema: Option<&Value>, value: &mut Value) {
    let below = |name: &str| field(schema?, name);
    match value {
        Value::Object(map) => {
            map.retain(|name, value| {
                !value.is_null() || below(name).is_none_or(|s| is_nullable(s) || default_of(s).is_some())
            });
            for (name, value) in map {
                drop_nulls(below(name), value);
            }
        }
        Value::Array(items) => {
            let schema = schema.and_then(|schema| schema.get("items"));
            for item in items {
                drop_nulls(schema, item);
            }
        }
        _ => {}
    }
}

/// Sets the default of each missing value and of each null that is not allowed.
pub fn fill_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            fill_missing(properties(schema), map);
            for (name, value) in map {
                if let Some(schema) = field(schema, name) {
                    replace_null(schema, value);
                    fill_defaults(schema, value);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            for item in items {
                replace_null(schema, item);
                fill_defaults(schema, item);
            }
        }
        _ => {}
    }
}

fn fill_missing(known: Option<&Map<String, Value>>, map: &mut Map<String, Value>) {
    for (name, schema) in known.into_iter().flatten() {
        if let Some(default) = default_of(schema).filter(|_| !map.contains_key(name)) {
            map.insert(name.clone(), default.clone());
        }
    }
}

fn replace_null(schema: &Value, value: &mut Value) {
    if let (Value::Null, false, Some(default)) = (&*value, is_nullable(schema), default_of(schema)) {
        value.clone_from(default);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_applied_as_by_the_server() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "integer", "default": 1},
            "n": {"type": "string", "nullable": true, "default": "x"},
            "plain": {"type": "string"},
            "o": {"type": "object", "properties": {"b": {"type": "string", "default": "b"}}},
            "d": {"type": "object", "default": {}, "properties": {"b": {"type": "string", "default": "b"}}},
            "e": {"type": "object", "default": {"b": "own"}, "properties": {"b": {"type": "string", "default": "b"}, "c": {"type": "integer", "default": 2}}},
            "m": {"type": "object", "additionalProperties": {"type": "object", "default": {"z": 1}, "properties": {"b": {"type": "string", "default": "b"}}}},
            "l": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
            "s": {"type": "array", "items": {"type": "integer", "default": 7}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"b": {"type": "string", "default": "b"}}},
        }}}});
        let base = json!({"a": 1, "n": "x", "d": {"b": "b"}, "e": {"b": "own", "c": 2}});
        let cases = [
            (json!({}), json!({})),
            (json!({"spec": {}}), json!({})),
            (json!({"spec": {"a": 5}}), json!({"a": 5})),
            (json!({"spec": {"a": null}}), json!({"a": 1})),
            (json!({"spec": {"n": null}}), json!({"n": null})),
            (json!({"spec": {"plain": null}}), json!({})),
            (json!({"spec": {"o": {}}}), json!({"o": {"b": "b"}})),
            (json!({"spec": {"e": {"c": 3}}}), json!({"e": {"c": 3, "b": "b"}})),
            (
                json!({"spec": {"m": {"x": {}, "y": null}}}),
                json!({"m": {"x": {"b": "b"}, "y": {"z": 1, "b": "b"}}}),
            ),
            (json!({"spec": {"l": [{}, {"p": "UDP"}]}}), json!({"l": [{"p": "TCP"}, {"p": "UDP"}]})),
            (json!({"spec": {"s": [1, null]}}), json!({"s": [1, 7]})),
            (
                json!({"spec": {"free": {"x": null, "y": {"z": null}}}}),
                json!({"free": {"x": null, "y": {"z": null}, "b": "b"}}),
            ),
        ];
        for (mut object, expected) in cases {
            let given = object.clone();
            apply_defaults(&schema, &mut object);
            let mut spec = base.clone();
            for (key, value) in expected.as_object().expect("object") {
                spec[key] = value.clone();
            }
            let wanted = if given.get("spec").is_some() { json!({"spec": spec}) } else { json!({}) };
            assert_eq!(object, wanted, "{given}");
        }
    }
}
