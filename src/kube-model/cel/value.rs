//! JSON as values of CEL.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::Map;
use serde_json::Value;

use super::names::escaped;

/// A value without a schema, as policies see it.
pub fn plain(value: &Value) -> Cel {
    typed(value, &Value::Null, false)
}

/// A value as its schema describes it. `is_root` is whether it is a whole custom resource.
pub fn typed(value: &Value, schema: &Value, is_root: bool) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => {
            let float = || Cel::Float(number.as_f64().unwrap_or_default());
            if schema["type"] == "number" { float() } else { number.as_i64().map_or_else(float, Cel::Int) }
        }
        Value::String(text) => with_format(text, schema),
        Value::Array(items) => {
            let items: Vec<Cel> = items.iter().map(|item| typed(item, &schema["items"], false)).collect();
            Cel::List(items.into())
        }
        Value::Object(map) => {
            let properties = &schema["properties"];
            let has_names = is_root || properties.is_object();
            let mut out = HashMap::with_capacity(map.len());
            for (name, value) in map {
                let below = properties.get(name).unwrap_or(&schema["additionalProperties"]);
                let key = if has_names { escaped(name) } else { name.clone() };
                out.insert(key.into(), typed(value, below, false));
            }
            Cel::Map(Map { map: Arc::new(out) })
        }
    }
}

fn with_format(text: &str, schema: &Value) -> Cel {
    let whole = || Cel::String(Arc::new(text.to_owned()));
    if schema["x-kubernetes-int-or-string"] == true {
        return whole();
    }
    match schema["format"].as_str() {
        Some("date-time") => super::TIMESTAMP.of(text),
        Some("date") => super::TIMESTAMP.of(&format!("{text}T00:00:00Z")),
        Some("duration") => super::DURATION.of(text),
        Some("byte") => STANDARD.decode(text).ok().map(|bytes| Cel::Bytes(Arc::new(bytes))),
        _ => None,
    }
    .unwrap_or_else(whole)
}
