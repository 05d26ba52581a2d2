//! A value without the fields of a set.

use operetta_kube_model::fields::FieldSet;
use serde_json::{Map, Value};

use super::typed::key_of;
use crate::schema::{Shape, Typed};

/// Removes the fields of `set` from a value. What becomes empty becomes null.
pub(super) fn remove(typed: Option<Typed<'_>>, value: &Value, set: &FieldSet) -> Value {
    let Some(typed) = typed else { return value.clone() };
    let shape = typed.shape(value);
    match (&shape, value) {
        (Shape::Scalar(_), _) => value.clone(),
        (Shape::Map(map), Value::Object(fields)) if !fields.is_empty() && !shape.is_atomic() => {
            let mut out = Map::new();
            for (name, value) in fields {
                let value = match set.field(name) {
                    Some(below) if below.member => continue,
                    Some(below) => remove(map.field(name), value, below),
                    None => value.clone(),
                };
                out.insert(name.clone(), value);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Shape::List(list), Value::Array(items)) if !items.is_empty() && !list.is_atomic() => {
            let mut out = Vec::new();
            for value in items {
                match set.child(&key_of(*list, value)) {
                    Some(below) if below.member => {}
                    Some(below) => out.push(remove(list.items(), value, below)),
                    None => out.push(value.clone()),
                }
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        _ => Value::Null,
    }
}
