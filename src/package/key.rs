//! Keys of `forEach`, which identify items.

use serde_json::Value;

/// The reason why a value cannot be a `forEach` key, and how to fix it.
pub fn key_problem(key: &Value) -> Option<&'static str> {
    match key {
        Value::String(text) if text.is_empty() => {
            Some("its key is the empty string; set `key` to a unique key per item")
        }
        Value::String(_) => None,
        key if key.is_i64() || key.is_u64() => None,
        _ => Some("its key is neither a string nor an integer; set `key`"),
    }
}
