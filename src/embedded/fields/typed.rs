//! A value with its schema: whether it fits, which fields it has, and by which keys its items are found.

use std::collections::HashSet;

use operetta_kube_model::fields::{FieldSet, Key};
use serde_json::Value;

use crate::schema::{ListShape, Scalar, Shape, Typed};

/// The fields of a value.
pub(crate) fn field_set(typed: Typed<'_>, value: &Value) -> FieldSet {
    let mut set = fields(typed, value);
    // The object itself has no owner.
    set.member = false;
    set
}

fn fields(typed: Typed<'_>, value: &Value) -> FieldSet {
    match (typed.shape(value), value) {
        (Shape::Scalar(_), _) => FieldSet::leaf(),
        (shape, _) if shape.is_atomic() => FieldSet::leaf(),
        (Shape::Map(map), Value::Object(fields_of)) => {
            let mut set = FieldSet::default();
            for (name, value) in fields_of {
                let mut below = map.field(name).map(|typed| fields(typed, value)).unwrap_or_default();
                let is_empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                below.member |= is_empty || map.named(name).is_none();
                if !below.is_empty() {
                    set.insert(Key::field(name), below);
                }
            }
            set
        }
        (Shape::List(list), Value::Array(items)) => {
            let pair = |value| {
                let mut below = list.items().map(|typed| fields(typed, value)).unwrap_or_default();
                below.member = true;
                Some((item(list, value).ok()?, below))
            };
            // Items with the same key are owned as one.
            FieldSet::of_pairs(items.iter().filter_map(pair).collect(), &|_| FieldSet::leaf())
        }
        _ => FieldSet::default(),
    }
}

/// Makes each named field that has fields below it a member, too.
pub(super) fn add_named(set: &mut FieldSet, typed: Option<Typed<'_>>) {
    let Some(typed) = typed else { return };
    for (key, below) in set.below_mut() {
        let Some(name) = key.name() else {
            add_named(below, typed.list().and_then(ListShape::items));
            continue;
        };
        let Some(map) = typed.map() else { continue };
        below.member |= map.named(name).is_some() && !below.is_empty();
        add_named(below, map.field(name));
    }
}

/// Owns as a whole each map and list that its schema has made atomic. Returns whether something has changed.
pub(super) fn reconcile(set: &mut FieldSet, typed: Typed<'_>) -> bool {
    let mut has_changed = false;
    for (key, below) in set.below_mut() {
        let typed = match key.name() {
            Some(name) => typed.map().and_then(|map| map.field(name)),
            None => typed.list().and_then(ListShape::items),
        };
        let Some(typed) = typed else { continue };
        if !typed.is_atomic() {
            has_changed |= reconcile(below, typed);
        } else if !below.is_leaf() {
            *below = FieldSet::leaf();
            has_changed = true;
        }
    }
    has_changed
}

/// The key of an item of a list, or why it has none.
pub(super) fn item(list: ListShape<'_>, value: &Value) -> Result<Key, String> {
    let keys = list.keys();
    if keys.is_empty() {
        return match value {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".to_owned())
            }
            scalar => Ok(Key::value(scalar.clone())),
        };
    }
    let map = match value {
        Value::Object(map) => map,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let fields = keys.iter().filter_map(|name| {
        let default = || list.items().and_then(|items| items.default_of(name));
        map.get(&**name).or_else(default).map(|value| (name.clone(), value.clone()))
    });
    let key = Key::item(fields);
    if key == Key::item([]) {
        let quoted: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            quoted.join(" ")
        ));
    }
    Ok(key)
}

/// The key of an item of a list. Those that have none have the same one.
pub(super) fn key_of(list: ListShape<'_>, value: &Value) -> Key {
    item(list, value).unwrap_or(Key::Index(0))
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
                let key = if list.is_atomic() {
                    Ok(Key::Index(i64::try_from(at).unwrap_or(i64::MAX)))
                } else {
                    item(*list, value)
                };
                let key = match key {
                    Ok(key) => key,
                    Err(text) => {
                        found.push(path.says(&format!("element {at}: {text}")));
                        return;
                    }
                };
                let step = || key.to_string();
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
