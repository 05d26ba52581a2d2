//! Looks up a path of an expression in a schema.

use operetta_kube_model::schema::{
    OBJECT_FIELDS, OtherKeys, is_embedded, is_int_or_string, join, other_keys, properties,
};
use serde_json::Value;

/// The result of a lookup.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup<'a> {
    /// The path exists, with this schema.
    Known(&'a Value),
    /// The path cannot exist.
    Unknown {
        /// The longest existing prefix of the path, relative to the schema; empty for the schema itself.
        parent: String,
        /// The fields that exist at that prefix.
        candidates: Vec<String>,
    },
    /// The schema allows any field there, or does not describe it.
    Open,
}

/// Looks up `path` in a schema. `"*"` is any item of a list or any key of a map; a number is an item of a
/// list. The schema is that of a whole object: `apiVersion`, `kind` and `metadata` are [`Lookup::Open`].
pub fn lookup<'a>(schema: &'a Value, path: &[&str]) -> Lookup<'a> {
    if path.first().is_some_and(|first| OBJECT_FIELDS.contains(first)) {
        return Lookup::Open;
    }
    let mut here = schema;
    let mut parent = String::new();
    for segment in path {
        let found = step(here, segment);
        match found {
            Lookup::Known(below) => here = below,
            Lookup::Unknown { candidates, .. } => return Lookup::Unknown { parent, candidates },
            Lookup::Open => return Lookup::Open,
        }
        parent = join(&parent, segment);
    }
    Lookup::Known(here)
}

fn step<'a>(schema: &'a Value, segment: &str) -> Lookup<'a> {
    let unknown = |candidates| Lookup::Unknown { parent: String::new(), candidates };
    let kind = schema.get("type").and_then(Value::as_str);
    match kind {
        _ if is_int_or_string(schema) => unknown(Vec::new()),
        Some("array") => match schema.get("items") {
            Some(items) if segment == "*" || segment.parse::<i64>().is_ok() => Lookup::Known(items),
            Some(_) => unknown(Vec::new()),
            None => Lookup::Open,
        },
        Some("object") | None => {
            let known = properties(schema);
            if let Some(below) = known.and_then(|known| known.get(segment)) {
                return Lookup::Known(below);
            }
            if is_embedded(schema) && OBJECT_FIELDS.contains(&segment) {
                return Lookup::Open;
            }
            match other_keys(schema) {
                OtherKeys::Schema(below) => Lookup::Known(below),
                OtherKeys::Open | OtherKeys::Shallow => Lookup::Open,
                // The key is computed, so it may be any of the properties.
                OtherKeys::Closed if segment == "*" => Lookup::Open,
                OtherKeys::Closed if kind.is_none() && known.is_none() => Lookup::Open,
                OtherKeys::Closed => {
                    unknown(known.into_iter().flatten().map(|(name, _)| name.clone()).collect())
                }
            }
        }
        Some(_) => unknown(Vec::new()),
    }
}

/// The schema of a field of the spec, with two facts: whether every spec has a value there (each step of the
/// path has a default or is required), and whether every instance has a spec. `None` if the schema does not
/// describe the field.
pub fn schema_fact<'a>(schema: &'a Value, path: &[&str]) -> Option<(bool, &'a Value, bool)> {
    let is_there = |parent: &Value, name: &str, field: &Value| {
        let required = parent.get("required").and_then(Value::as_array);
        let is_required = required.is_some_and(|names| names.iter().any(|known| known == name));
        let is_nullable = field.get("nullable") == Some(&Value::Bool(true));
        (is_required || field.get("default").is_some_and(|value| !value.is_null())) && !is_nullable
    };
    let spec = properties(schema)?.get("spec")?;
    let has_spec = is_there(schema, "spec", spec);
    let (mut here, mut always) = (spec, true);
    for segment in path {
        let below = properties(here)?.get(*segment)?;
        always &= is_there(here, segment, below);
        here = below;
    }
    Some((always, here, has_spec))
}
