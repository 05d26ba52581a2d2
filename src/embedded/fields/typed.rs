//! A value with its schema: whether it fits, and which fields it has.

use std::collections::HashSet;

use serde_json::Value;

use super::set::{Node, Set, field, item, readable};
use crate::schema::{Scalar, Shape, Typed};

/// The fields of a value.
pub(crate) fn field_set(typed: Typed<'_>, value: &Value) -> Set {
    fields(typed, value).below
}

fn fields(typed: Typed<'_>, value: &Value) -> Node {
    let mut node = Node::default();
    match (typed.shape(value), value) {
        (Shape::Scalar(_), _) => node.member = true,
        (shape, _) if shape.is_atomic() => node.member = true,
        (Shape::Map(map), Value::Object(fields_of)) => {
            for (name, value) in fields_of {
                let mut below = map.field(name).map(|typed| fields(typed, value)).unwrap_or_default();
                let is_empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                below.member |= is_empty || map.named(name).is_none();
                if !below.is_empty() {
                    node.below.0.insert(field(name), below);
                }
            }
        }
        (shape @ Shape::List(_), Value::Array(items)) => {
            let mut seen = HashSet::new();
            for value in items {
                let Ok(key) = item(&shape, value) else { continue };
                let Shape::List(list) = &shape else { continue };
                if seen.insert(key.clone()) {
                    let mut below = list.items().map(|typed| fields(typed, value)).unwrap_or_default();
                    below.member = true;
                    node.below.0.insert(key, below);
                } else {
                    // Items with the same key are owned as one.
                    node.below.0.insert(key, Node { member: true, below: Set::default() });
                }
            }
        }
        _ => {}
    }
    node
}

/// What of a value does not fit its schema, with paths. `duplicates`: whether keys of lists may repeat.
pub(crate) fn check(typed: Typed<'_>, value: &Value, duplicates: bool) -> Vec<String> {
    let mut found = Vec::new();
    walk(typed, value, duplicates, &Path(None), &mut found);
    found
}

/// What does not fit, as one text.
pub(crate) fn joined(faults: &[String]) -> String {
    match faults {
        [one] => one.clone(),
        all => format!("errors:\n  {}", all.join("\n  ")),
    }
}

/// A step and those above it. Most paths are never shown.
struct Path<'a>(Option<(&'a Path<'a>, &'a dyn Fn() -> String)>);

impl Path<'_> {
    fn shown(&self) -> String {
        self.0.as_ref().map_or_else(String::new, |(above, step)| above.shown() + &step())
    }

    /// A text about what is here.
    fn says(&self, text: &str) -> String {
        let path = self.shown();
        if path.is_empty() { text.to_owned() } else { format!("{path}: {text}") }
    }
}

fn walk(typed: Typed<'_>, value: &Value, duplicates: bool, path: &Path<'_>, found: &mut Vec<String>) {
    let shape = typed.shape(value);
    match (&shape, value) {
        (_, Value::Null) => {}
        (Shape::Scalar(scalar), value) => {
            let fault = match scalar {
                Scalar::Number if !value.is_number() => {
                    format!("expected numeric (int or float), got {}", go_type(value))
                }
                Scalar::Text if !value.is_string() => {
                    format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(value))
                }
                Scalar::Bool if !value.is_boolean() => {
                    format!("expected boolean, got &{{{}}}", go_value(value))
                }
                Scalar::Any if value.is_object() || value.is_array() => {
                    format!("expected any scalar, got &{{{}}}", go_value(value))
                }
                _ => return,
            };
            found.push(path.says(&fault));
        }
        (Shape::Map(map), Value::Object(fields)) => {
            for (name, value) in fields {
                let step = || format!(".{name}");
                if let Some(typed) = map.field(name) {
                    walk(typed, value, duplicates, &Path(Some((path, &step))), found);
                } else {
                    found.push(format!("{}{}: field not declared in schema", path.shown(), step()));
                    return;
                }
            }
        }
        (Shape::Map(_), value) => {
            found.push(path.says(&format!("expected map, got &{{{}}}", go_value(value))));
        }
        (Shape::List(list), Value::Array(items)) => {
            let mut seen = HashSet::new();
            for (at, value) in items.iter().enumerate() {
                let key = if list.is_atomic() { Ok(format!("i:{at}").into()) } else { item(&shape, value) };
                let key = match key {
                    Ok(key) => key,
                    Err(text) => {
                        found.push(path.says(&format!("element {at}: {text}")));
                        return;
                    }
                };
                let step = || readable(&key);
                if seen.contains(&key) && !duplicates {
                    found.push(path.says(&format!("duplicate entries for key {}", step())));
                }
                if let Some(typed) = list.items() {
                    walk(typed, value, duplicates, &Path(Some((path, &step))), found);
                }
                seen.insert(key);
            }
        }
        (Shape::List(_), value) => {
            found.push(path.says(&format!("expected list, got &{{{}}}", go_value(value))));
        }
    }
}

/// The Go type of a decoded value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as Go's `%v` prints it.
pub(crate) fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let fields: Vec<String> =
                map.iter().map(|(name, value)| format!("{name}:{}", go_value(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

/// A value as Go's `%#v` prints it.
pub(crate) fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let fields: Vec<String> =
                map.iter().map(|(name, value)| format!("{name:?}:{}", go_syntax(value))).collect();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}
