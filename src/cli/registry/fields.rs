//! The fields of a schema as a flat list: paths, types, defaults, and what they are for. No I/O.

use serde_json::{Value, json};

use crate::cli::show::plural;
use crate::printable::clip;

/// How many fields of one schema are listed.
const FIELDS: usize = 20_000;
/// The longest documentation of a field in a table, in characters.
const DOCS: usize = 120;

/// A field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Such as `spec.pods[].name`; a map has `.*`.
    pub(super) path: String,
    /// How deep it is below the first fields: 0 for `spec`.
    pub(super) depth: usize,
    /// Its type, such as `[]string`.
    pub(super) kind: String,
    pub(super) is_required: bool,
    /// Its default, as JSON.
    pub(super) default: Option<Value>,
    /// The permitted values.
    pub(super) values: Vec<Value>,
    /// What it is for.
    pub(super) docs: String,
}

impl Field {
    /// It for programs.
    pub(super) fn document(&self) -> Value {
        let mut value = json!({"path": self.path, "type": self.kind, "required": self.is_required});
        if let Some(default) = &self.default {
            value["default"] = default.clone();
        }
        if !self.values.is_empty() {
            value["enum"] = self.values.clone().into();
        }
        if !self.docs.is_empty() {
            value["description"] = self.docs.clone().into();
        }
        value
    }

    /// What it is for, in a line of a table. `below`: how many fields are not shown below it.
    pub(super) fn words(&self, below: usize) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let values = self.values.iter().map(text).collect::<Vec<_>>().join(" | ");
        let docs = self.docs.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = [
            if values.is_empty() { String::new() } else { format!("[{}]", clip(&values, DOCS)) },
            clip(&docs, DOCS).into_owned(),
            if below == 0 { String::new() } else { format!("(+{})", plural(below, "field")) },
        ];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Its default in a line of a table.
    pub(super) fn default_words(&self) -> String {
        match (&self.default, self.is_required) {
            (Some(default), _) => clip(&default.to_string(), 40).into_owned(),
            (None, true) => "required".to_owned(),
            (None, false) => "-".to_owned(),
        }
    }
}

/// The fields of a kind that users write: all but its metadata and status.
pub(super) fn fields(schema: &Value) -> Vec<Field> {
    let mut found = Vec::new();
    let others = ["apiVersion", "kind", "metadata", "status"];
    add(schema, "", 0, &mut found, &|name| !others.contains(&name));
    found
}

/// The parameters of a plan.
pub(super) fn parameters(schema: &Value) -> Vec<Field> {
    let mut found = Vec::new();
    add(schema, "", 0, &mut found, &|_| true);
    found
}

/// Adds the properties of a schema, each before those below it.
fn add(schema: &Value, path: &str, depth: usize, found: &mut Vec<Field>, is_shown: &dyn Fn(&str) -> bool) {
    let properties = schema["properties"].as_object();
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name))
    };
    for (name, property) in properties.into_iter().flatten().filter(|(name, _)| is_shown(name)) {
        if found.len() >= FIELDS {
            return;
        }
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let (suffix, inner) = element(property);
        let docs = [property, inner].into_iter().find_map(|schema| schema["description"].as_str());
        let values = inner["enum"].as_array().cloned().unwrap_or_default();
        found.push(Field {
            path: path.clone(),
            depth,
            kind: type_of(property),
            is_required: required(name),
            default: property.get("default").cloned(),
            values,
            docs: docs.unwrap_or_default().to_owned(),
        });
        add(inner, &format!("{path}{suffix}"), depth + 1, found, &|_| true);
    }
}

/// What a list or map contains in the end, and what that adds to the path.
fn element(schema: &Value) -> (String, &Value) {
    let (mut suffix, mut inner) = (String::new(), schema);
    loop {
        if inner["items"].is_object() {
            (suffix, inner) = (suffix + "[]", &inner["items"]);
        } else if inner["additionalProperties"].is_object() {
            (suffix, inner) = (suffix + ".*", &inner["additionalProperties"]);
        } else {
            return (suffix, inner);
        }
    }
}

fn type_of(schema: &Value) -> String {
    if schema["items"].is_object() {
        return format!("[]{}", type_of(&schema["items"]));
    }
    if schema["additionalProperties"].is_object() {
        return format!("map[string]{}", type_of(&schema["additionalProperties"]));
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return "int or string".to_owned();
    }
    schema["type"].as_str().unwrap_or("any").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_paths_types_and_defaults() {
        let schema = json!({"type": "object", "properties": {
            "metadata": {"type": "object"}, "status": {"type": "object", "properties": {"a": {}}},
            "spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "default": 3, "description": "How\nmany"},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "free": {"x-kubernetes-preserve-unknown-fields": true},
                "port": {"x-kubernetes-int-or-string": true},
                "pods": {"type": "array", "items": {"type": "object", "properties": {
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}}}}}}}}});
        let found = fields(&schema);
        let lines: Vec<String> = found
            .iter()
            .map(|one| {
                format!("{} {} {} {} {}", one.depth, one.path, one.kind, one.default_words(), one.words(0))
            })
            .collect();
        assert_eq!(
            lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>(),
            [
                "0 spec object -",
                "1 spec.free any -",
                "1 spec.mode string - [a | b]",
                "1 spec.pods []object -",
                "2 spec.pods[].labels map[string]string -",
                "1 spec.port int or string -",
                "1 spec.size integer 3 How many",
            ]
        );
        assert!(found.last().unwrap().is_required);
        assert_eq!(
            found.last().unwrap().document(),
            json!({"path": "spec.size", "type": "integer", "required": true, "default": 3, "description": "How\nmany"})
        );
        assert_eq!(parameters(&json!({"properties": {"status": {"type": "string"}}})).len(), 1);
        assert_eq!(found[3].words(2), "(+2 fields)");
    }
}
