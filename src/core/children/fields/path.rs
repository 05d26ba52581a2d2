//! A field's place in an object, and how people read it.

use std::fmt::{self, Write as _};

use operetta_kube_model::fields::Key;
use serde_json::Value;

/// A field's place in an object, from the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldPath(pub Vec<Key>);

impl FieldPath {
    /// The path of a field of maps.
    pub fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|name| Key::field(name)).collect())
    }
}

impl fmt::Display for FieldPath {
    /// `spec.ports[port=81,protocol=TCP]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_$".contains(c))
        };
        for (index, key) in self.0.iter().enumerate() {
            match key {
                Key::Field(name) if is_plain(name) => {
                    write!(f, "{}{name}", if index > 0 { "." } else { "" })?;
                }
                Key::Field(name) => write!(f, "[{name}]")?,
                Key::Item(fields) => {
                    for (index, (name, value)) in fields.iter().enumerate() {
                        f.write_char(if index == 0 { '[' } else { ',' })?;
                        match value {
                            Value::String(text) => write!(f, "{name}={text}")?,
                            other => write!(f, "{name}={other}")?,
                        }
                    }
                    f.write_char(']')?;
                }
                // The value of a set's item may be a secret; its place is enough.
                Key::Value(_) => f.write_str("[*]")?,
                Key::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}
