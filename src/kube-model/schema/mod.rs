//! Schemas of custom resources, and what the API server (1.36) does by them: it prunes, sets defaults and validates. Schemas
//! and objects are JSON.

mod defaults;
mod formats;
mod path;
mod pattern;
mod prune;
mod validate;

use std::collections::HashMap;

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

/// The items of an old list by their keys, if the list is a map.
#[derive(Debug, Default)]
pub struct Counterparts<'a> {
    keys: Vec<&'a str>,
    items: HashMap<Vec<&'a Value>, &'a Value>,
}

impl<'a> Counterparts<'a> {
    /// The items of the old list. There are none if the list of this schema is no map.
    pub fn new(schema: &'a Value, old: Option<&'a Value>) -> Self {
        if schema["x-kubernetes-list-type"] != "map" {
            return Self::default();
        }
        let mut found = Self { keys: list_keys(schema).collect(), items: HashMap::new() };
        for item in old.and_then(Value::as_array).into_iter().flatten() {
            let own = found.keys_of(item);
            found.items.entry(own).or_insert(item);
        }
        found
    }

    /// The first old item that has the keys of `item`.
    pub fn of(&self, item: &'a Value) -> Option<&'a Value> {
        self.items.get(&self.keys_of(item)).copied()
    }

    fn keys_of(&self, item: &'a Value) -> Vec<&'a Value> {
        self.keys.iter().map(|key| &item[*key]).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_have_counterparts_by_their_keys() {
        let schema = json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"]});
        let old = json!([{"a": 1, "c": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}]);
        let counterparts = Counterparts::new(&schema, Some(&old));
        let items = [json!({"a": 1}), json!({"a": 1, "b": 2}), json!({"a": 2, "b": 2}), json!("a")];
        let found: Vec<Option<&Value>> = items.iter().map(|item| counterparts.of(item)).collect();
        assert_eq!(found, [Some(&old[0]), Some(&old[1]), None, None]);
        let set = json!({"x-kubernetes-list-type": "set"});
        assert_eq!(Counterparts::new(&set, Some(&old)).of(&items[0]), None);
    }

    #[test]
    fn long_lists_are_compared_in_linear_time() {
        let schema = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
            "items": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}});
        let list = |b: &str| (0..100_000).map(|a| json!({"a": a, "b": b})).collect::<Value>();
        let (old, new) = (list("x"), list("y"));
        let start = std::time::Instant::now();
        assert!(validate(&schema, &new, Some(&old), Notation::Dotted).is_empty());
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
