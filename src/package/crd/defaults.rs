//! Structural defaulting, as in the API server.

use serde_json::{Map, Value};

use super::properties;

/// Applies the defaults of the schema in two passes, as the API server does. The first drops nulls that the
/// schema neither allows nor has a default for. The second sets the default of each missing value and of each
/// null that is not allowed. Defaults are applied recursively. An absent object without a default is not
/// created for defaults inside it.
pub fn apply_defaults(schema: &Value, object: &mut Value) {
    drop_nulls(Some(schema), object);
    fill(schema, object);
}

fn default_of(schema: &Value) -> Option<&Value> {
    schema.get("default").filter(|default| !default.is_null())
}

fn is_nullable(schema: &Value) -> bool {
    schema.get("nullable") == Some(&Value::Bool(true))
}

fn additional(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|schema| schema.is_object())
}

fn drop_nulls(schema: Option<&Value>, value: &mut Value) {
    let field = |name: &str| {
        let schema = schema?;
        properties(schema).and_then(|known| known.get(name)).or_else(|| additional(schema))
    };
    match value {
        Value::Object(map) => {
            map.retain(|name, value| {
                !value.is_null() || field(name).is_none_or(|s| is_nullable(s) || default_of(s).is_some())
            });
            for (name, value) in map {
                drop_nulls(field(name), value);
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

fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            let known = properties(schema);
            fill_missing(known, map);
            for (name, value) in map {
                if let Some(schema) = known.and_then(|known| known.get(name)) {
                    fill(schema, value);
                } else if let Some(schema) = additional(schema) {
                    replace_null(schema, value);
                    fill(schema, value);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            for item in items {
                replace_null(schema, item);
                fill(schema, item);
            }
        }
        _ => {}
    }
}

fn fill_missing(known: Option<&Map<String, Value>>, map: &mut Map<String, Value>) {
    for (name, schema) in known.into_iter().flatten() {
        let Some(default) = default_of(schema) else { continue };
        match map.get_mut(name) {
            None => {
                map.insert(name.clone(), default.clone());
            }
            Some(value) => replace_null(schema, value),
        }
    }
}

fn replace_null(schema: &Value, value: &mut Value) {
    if let (Value::Null, false, Some(default)) = (&*value, is_nullable(schema), default_of(schema)) {
        value.clone_from(default);
    }
}
