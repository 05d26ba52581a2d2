//! Schemas of custom resources, and what the API server (1.36) does by them: it prunes, sets defaults and validates. Schemas
//! and objects are JSON.

mod defaults;
mod formats;
mod path;
mod pattern;
mod prune;
mod validate;

use serde_json::{Map, Value};

pub use defaults::{apply_defaults, fill_defaults};
pub use path::{Notation, Path, below, join};
pub use pattern::fault as pattern_fault;
pub use prune::{Dropped, prune};
pub use validate::{Rule, Unit, Violation, type_of, validate};

/// Fields of every object, independent of its schema.
pub const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Whether a schema keeps unknown fields.
pub fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Whether a schema is that of an integer or a string.
pub fn is_int_or_string(schema: &Value) -> bool {
    schema["x-kubernetes-int-or-string"] == true
}

/// Whether a schema is that of a whole object inside of another one.
pub fn is_embedded(schema: &Value) -> bool {
    schema["x-kubernetes-embedded-resource"] == true
}

/// The named fields of a schema.
pub fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// How a schema handles keys that are not properties.
#[derive(Debug, Clone, Copy)]
pub enum OtherKeys<'a> {
    /// Other keys have this schema.
    Schema(&'a Value),
    /// Other keys may have any value.
    Open,
    /// `additionalProperties: true`: other keys are kept, but the server empties every object in them.
    Shallow,
    /// No other keys are allowed.
    Closed,
}

/// How a schema handles keys that are not properties.
pub fn other_keys(schema: &Value) -> OtherKeys<'_> {
    match schema.get("additionalProperties") {
        Some(schema @ Value::Object(_)) => OtherKeys::Schema(schema),
        Some(Value::Bool(true)) => OtherKeys::Shallow,
        _ if preserves(schema) => OtherKeys::Open,
        _ => OtherKeys::Closed,
    }
}

/// The schema of the fields that are not named.
pub fn values(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|schema| schema.is_object())
}

/// The schema of a field: of its name, or of all others.
pub fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    properties(schema).and_then(|known| known.get(name)).or_else(|| values(schema))
}

/// The default of a value.
pub fn default_of(schema: &Value) -> Option<&Value> {
    schema.get("default").filter(|default| !default.is_null())
}

/// The keys of a list that is a map.
pub fn list_keys(schema: &Value) -> impl Iterator<Item = &str> {
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    keys.into_iter().flatten().filter_map(Value::as_str)
}

/// The item of the old list that has the keys of `item`, if the list is a map.
pub fn counterpart<'a>(schema: &Value, old: &'a Value, item: &Value) -> Option<&'a Value> {
    if schema["x-kubernetes-list-type"] != "map" {
        return None;
    }
    old.as_array()?.iter().find(|old| list_keys(schema).all(|key| old[key] == item[key]))
}
