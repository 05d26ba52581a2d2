//! Which child, and which member of it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One member of a child: its id and key; a child without `forEach` has no key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Member {
    /// The id of the child.
    pub child: String,
    /// The key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Value>,
}

impl Member {
    /// The member of that child with that key.
    pub fn new(child: impl Into<String>, key: Option<Value>) -> Self {
        Self { child: child.into(), key }
    }
}

impl std::fmt::Display for Member {
    /// Writes `members[0]`, or `service` for a child without `forEach`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.key {
            None => f.write_str(&self.child),
            Some(Value::String(key)) => write!(f, "{}[{key}]", self.child),
            Some(key) => write!(f, "{}[{key}]", self.child),
        }
    }
}
