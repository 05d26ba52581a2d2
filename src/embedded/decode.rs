//! What reading an object into its Go type does to it: unknown fields and empty values are dropped, fields that are always
//! written get their zero value, and quantities and times their canonical form.

use base64::Engine as _;
use operetta_kube_model::quantity;
use operetta_kube_model::schema::Path;
use serde_json::{Map, Value};

use crate::schema::{Basic, Field, Typed};

/// Reads an object in place. Returns the unknown fields, or why Go cannot read it.
pub(crate) fn decode(typed: Typed<'_>, value: &mut Value) -> Result<Vec<String>, String> {
    let mut unknown = Vec::new();
    walk(typed, value, &Path::ROOT, ("", ""), &mut unknown)?;
    Ok(unknown)
}

fn mismatch(value: &Value, path: &Path<'_>, owner: &str, go: &str) -> String {
    let what = match value {
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if go.contains("int") || go.contains("float") => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        _ => "object".to_owned(),
    };
    let place = path.fields();
    if owner.is_empty() {
        return format!("json: cannot unmarshal {what} into Go value of type {go}");
    }
    format!("json: cannot unmarshal {what} into Go struct field {owner}.{place} of type {go}")
}

/// The last part of the name of a definition, which is its Go type.
fn type_name(typed: Typed<'_>) -> &str {
    typed.node().name.rsplit('.').next().unwrap_or_default()
}

fn walk(
    typed: Typed<'_>,
    value: &mut Value,
    path: &Path<'_>,
    (owner, go): (&str, &str),
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    let node = typed.node();
    match (node.basic, &mut *value) {
        (Basic::Object, Value::Object(map)) if !node.fields.is_empty() => record(typed, map, path, unknown),
        (Basic::Object, Value::Object(map)) => {
            let Some(values) = typed
                .extra()
                .filter(|extra| extra.node().basic != Basic::Any || !extra.node().name.is_empty())
            else {
                return Ok(());
            };
            let go = go.split_once(']').map_or("string", |(_, rest)| rest);
            for (name, value) in map.iter_mut() {
                let path = path.key(name);
                if value.is_null() {
                    *value = zero(values, false);
                }
                walk(values, value, &path, (owner, go), unknown)?;
            }
            Ok(())
        }
        (Basic::Array, Value::Array(items)) => {
            let Some(typed) = typed.items() else { return Ok(()) };
            let go = go.strip_prefix("[]").unwrap_or("string");
            for (at, value) in items.iter_mut().enumerate() {
                let path = path.index(at);
                if value.is_null() {
                    *value = zero(typed, false);
                }
                walk(typed, value, &path, (owner, go), unknown)?;
            }
            Ok(())
        }
        (Basic::Text, Value::String(text)) => match &*node.format {
            "date-time" => time(text, &node.name),
            "byte" => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(&*text).map_err(|error| {
                    let at = match error {
                        base64::DecodeError::InvalidByte(at, _)
                        | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                        _ => text.len() / 4 * 4,
                    };
                    format!("illegal base64 data at input byte {at}")
                })?;
                let _ = bytes;
                Ok(())
            }
            _ => Ok(()),
        },
        (Basic::Integer, Value::Number(number)) => {
            let fits = number.as_i64().is_some_and(|n| &*node.format != "int32" || i32::try_from(n).is_ok());
            if fits { Ok(()) } else { Err(mismatch(value, path, owner, go)) }
        }
        (Basic::Any, value) if &*node.format == "quantity" => {
            let text = match &*value {
                Value::String(text) => text.trim().to_owned(),
                other => other.to_string(),
            };
            *value = quantity::canonical(&text)
                .ok_or("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")?
                .into();
            Ok(())
        }
        (Basic::Any, value) if &*node.format == "int-or-string" => match value {
            Value::Number(number) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => Ok(()),
            Value::String(_) => Ok(()),
            Value::Number(_) => Err(mismatch(value, path, "", "int32")),
            _ => Err(mismatch(value, path, "", "string")),
        },
        (Basic::Any, value) if is_special(typed) => special(value, path, unknown),
        (Basic::Number, Value::Number(_)) | (Basic::Bool, Value::Bool(_)) | (Basic::Any, _) => Ok(()),
        _ => {
            let go = if go.is_empty() { type_name(typed) } else { go };
            Err(mismatch(value, path, owner, go))
        }
    }
}

/// Definitions of CRDs' schemas that have a form of their own.
fn is_special(typed: Typed<'_>) -> bool {
    typed.node().name.starts_with("apiextensions.v1.JSONSchemaPropsOr")
}

fn special(value: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>) -> Result<(), String> {
    let Some(typed) = crate::schema::definition("apiextensions.v1.JSONSchemaProps") else { return Ok(()) };
    match value {
        Value::Object(_) => walk(typed, value, path, ("", ""), unknown),
        Value::Array(items) => {
            for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| item.is_object()) {
                walk(typed, item, &path.index(at), ("", ""), unknown)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The canonical form of a time.
fn time(text: &mut String, name: &str) -> Result<(), String> {
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    let Ok(parsed) = parsed.map_err(|_| ()).and_then(|t| if text.contains('T') { Ok(t) } else { Err(()) })
    else {
        return Err(format!(
            "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
        ));
    };
    *text = if name.ends_with("MicroTime") {
        parsed.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    } else {
        parsed.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    };
    Ok(())
}

fn record(
    typed: Typed<'_>,
    map: &mut Map<String, Value>,
    path: &Path<'_>,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    let owner = type_name(typed);
    let mut dropped = Vec::new();
    for (name, value) in map.iter_mut() {
        let Some((field, below)) = typed.named(name) else {
            unknown.push(path.field(name).to_string());
            dropped.push(name.clone());
            continue;
        };
        walk(below, value, &path.field(name), (owner, &field.go), unknown)?;
        if value.is_null() || field.omits_zero && !field.is_pointer && is_zero(below, value) {
            dropped.push(name.clone());
        }
    }
    for name in dropped {
        map.remove(&name);
    }
    complete(typed, map);
    Ok(())
}

/// Makes empty lists that are always written null: they do not survive in the store.
pub(crate) fn forget_empty_lists(typed: Typed<'_>, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map.iter_mut().filter(|(_, value)| value.is_object() || value.is_array()) {
                let Some((field, below)) = typed.named(name) else {
                    if let Some(below) = typed.extra().filter(|extra| extra.node().basic != Basic::Any) {
                        forget_empty_lists(below, value);
                    }
                    continue;
                };
                if !field.omits_zero && !field.go.is_empty() && value.as_array().is_some_and(Vec::is_empty) {
                    *value = Value::Null;
                } else {
                    forget_empty_lists(below, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(typed) = typed.items() {
                for item in items {
                    forget_empty_lists(typed, item);
                }
            }
        }
        _ => {}
    }
}

/// Adds the fields that are always written.
pub(crate) fn complete(typed: Typed<'_>, map: &mut Map<String, Value>) {
    for (name, field) in typed.node().fields.iter().filter(|(_, field)| !field.omits_zero) {
        if !field.go.is_empty() && !map.contains_key(&**name) {
            let value = typed.named(name).map_or(Value::Null, |(_, below)| zero_of(field, below));
            map.insert(name.to_string(), value);
        }
    }
}

fn zero_of(field: &Field, typed: Typed<'_>) -> Value {
    zero(typed, field.is_pointer || field.go.starts_with('[') || field.go.starts_with("map"))
}

/// Go's zero value as JSON.
fn zero(typed: Typed<'_>, nullable: bool) -> Value {
    let node = typed.node();
    match node.basic {
        _ if nullable => Value::Null,
        Basic::Object if !node.fields.is_empty() => {
            let mut map = Map::new();
            complete(typed, &mut map);
            Value::Object(map)
        }
        Basic::Text if node.format.is_empty() => "".into(),
        Basic::Integer | Basic::Number => 0.into(),
        Basic::Bool => false.into(),
        Basic::Any if &*node.format == "quantity" => "0".into(),
        Basic::Any if &*node.format == "int-or-string" => 0.into(),
        _ => Value::Null,
    }
}

fn is_zero(typed: Typed<'_>, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0) && &*typed.node().format != "int-or-string",
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => {
            map.is_empty() || !typed.node().fields.is_empty() && map.iter().all(|(_, v)| v.is_null())
        }
    }
}
