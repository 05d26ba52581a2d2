//! Keys of `forEach`: what tells its items apart.

use serde_json::Value;

/// Why a value cannot be a `forEach` key, and what to do.
pub fn key_problem(key: &Value) -> Option<&'static str> {
    match key {
        Value::String(text) if text.is_empty() => {
            Some("its key is the empty string; give every item a key of its own with `key`")
        }
        Value::String(_) => None,
        key if key.is_i64() || key.is_u64() => None,
        _ => Some("its key is neither a string nor an integer; set `key`"),
    }
}
