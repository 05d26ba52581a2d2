//! One step of a field path, as the keys of fieldsV1 write it, and how people read it.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use thiserror::Error;

/// Why a fieldsV1 cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FieldsError {
    /// Something that must be a map is not.
    #[error("fieldsV1 must be a map of maps")]
    NotAMap,
    /// A key that is none of `f:`, `k:`, `v:`, `i:`.
    #[error("fieldsV1 has the key {key:?}, which is not a field path")]
    Key {
        /// The key as it stands there.
        key: String,
    },
}

/// One step of a field path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// `f:name`, a field of a map.
    Field(Box<str>),
    /// `k:{"port":80,"protocol":"TCP"}`, the item of a keyed list with these key fields, by name.
    Item(Box<[(Box<str>, Value)]>),
    /// The instance among the owners of its child; see [`FieldSet::parse_of`](super::FieldSet::parse_of).
    Owner,
    /// `v:"x"`, the item of a set with this value.
    Value(Value),
    /// `i:0`, the item of a list at this place.
    Index(u64),
}

impl Key {
    /// Reads one key of fieldsV1; `None` for a type of key that is not known. The API server ignores these,
    /// too, so that new types can be added.
    pub(super) fn parse(raw: &str) -> Result<Option<Self>, FieldsError> {
        let bad = || FieldsError::Key { key: raw.to_owned() };
        let (kind, rest) = raw.split_once(':').ok_or_else(bad)?;
        Ok(Some(match kind {
            "f" => Self::Field(rest.into()),
            "k" => {
                let fields: Map<String, Value> = serde_json::from_str(rest).map_err(|_| bad())?;
                Self::Item(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
            }
            "v" => Self::Value(serde_json::from_str(rest).map_err(|_| bad())?),
            "i" => Self::Index(rest.parse().map_err(|_| bad())?),
            _ => return Ok(None),
        }))
    }

    /// How well `item` fits the key fields of a keyed list's item; `None` for any other key.
    pub(super) fn fits(&self, item: &Value) -> Option<Fit> {
        let fields = match self {
            Self::Item(fields) => fields,
            Self::Owner => return Some(Fit::Exact),
            _ => return None,
        };
        let item = item.as_object()?;
        let mut fit = Fit::Exact;
        for (name, value) in fields {
            match item.get(&**name) {
                // The server may fill in a default (protocol: TCP), which the desired object need not say.
                None | Some(Value::Null) => fit = Fit::Partial,
                Some(own) if same(own, value) => {}
                Some(_) => return None,
            }
        }
        Some(fit)
    }
}

/// Whether an item has all key fields of a [`Key::Item`], or only some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The item has all key fields, and they are equal.
    Exact,
    /// The item has some key fields, and these are equal.
    Partial,
}

/// Equal JSON values; 80 and 80.0 are the same.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || (x.as_f64() == y.as_f64() && (x.is_f64() || y.is_f64()))
        }
        _ => a == b,
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => {
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_$".contains(c);
                if !name.is_empty() && name.chars().all(plain) {
                    f.write_str(name)
                } else {
                    write!(f, "[{name}]")
                }
            }
            Self::Item(fields) => {
                for (index, (name, value)) in fields.iter().enumerate() {
                    f.write_char(if index == 0 { '[' } else { ',' })?;
                    match value {
                        Value::String(text) => write!(f, "{name}={text}")?,
                        other => write!(f, "{name}={other}")?,
                    }
                }
                f.write_char(']')
            }
            Self::Owner => f.write_str("[the instance]"),
            // The value of a set's item may be a secret; its place is enough.
            Self::Value(_) => f.write_str("[*]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A field's place in an object, from the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldPath(pub Vec<Key>);

impl fmt::Display for FieldPath {
    /// `spec.ports[port=81,protocol=TCP]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, key) in self.0.iter().enumerate() {
            let step = key.to_string();
            if index > 0 && !step.starts_with('[') {
                f.write_char('.')?;
            }
            f.write_str(&step)?;
        }
        Ok(())
    }
}
