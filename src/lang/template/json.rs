//! Converts values to JSON, within limits.

use std::fmt;
use std::sync::Arc;

use serde_json::{Number, Value};

use super::errors::{Fault, Res};
use super::limits::{Run, VALUE_BYTES};
use super::value::{Name, Val};

impl Val {
    /// Converts the value to JSON. `meter` limits the size.
    pub(super) fn to_json(&self, run: &Run<'_>, meter: &mut Meter, path: &mut JsonPath) -> Res<Value> {
        meter.take(8)?;
        run.memory(VALUE_BYTES)?;
        let at = |fault: Fault, path: &JsonPath| fault.path(|| path.to_string());
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(bool) => Value::Bool(*bool),
            Self::Int(int) => match (i64::try_from(*int), u64::try_from(*int)) {
                (Ok(int), _) => Value::from(int),
                (_, Ok(int)) => Value::from(int),
                _ => return Err(at(Fault::failed("a number does not fit 64 bits"), path)),
            },
            Self::Float(float) => Number::from_f64(*float).map_or(Value::Null, Value::Number),
            Self::Str(text) => {
                meter.take(text.len())?;
                Value::String(text.to_string())
            }
            Self::Fragment(_) | Self::Version(_) | Self::Quantity(_) => {
                let text = self.text(run).map_err(|fault| at(fault, path))?;
                meter.take(text.len())?;
                Value::String(text.to_string())
            }
            Self::List(list) => {
                let mut items = Vec::with_capacity(list.items.len());
                for (index, item) in list.items.iter().enumerate() {
                    if !matches!(item, Self::Omit) {
                        path.0.push(JsonSegment::Index(index));
                        items.push(item.to_json(run, meter, path)?);
                        path.0.pop();
                    }
                }
                Value::Array(items)
            }
            Self::Map(map) => {
                run.map(map.entries.len())?;
                let mut entries = serde_json::Map::new();
                for (key, item) in &map.entries {
                    if !matches!(item, Self::Omit) {
                        meter.take(key.len())?;
                        path.0.push(JsonSegment::Key(Arc::clone(key)));
                        entries.insert(key.to_string(), item.to_json(run, meter, path)?);
                        path.0.pop();
                    }
                }
                Value::Object(entries)
            }
            Self::Keyed(keyed) => {
                run.map(keyed.entries.len())?;
                let mut entries = serde_json::Map::new();
                for (key, item) in &keyed.entries {
                    if !matches!(item, Self::Omit) {
                        let key = key.text(run).map_err(|fault| at(fault, path))?;
                        meter.take(key.len())?;
                        path.0.push(JsonSegment::Key(Arc::clone(&key)));
                        entries.insert(key.to_string(), item.to_json(run, meter, path)?);
                        path.0.pop();
                    }
                }
                Value::Object(entries)
            }
            Self::Live(live) => {
                meter.json(&live.json)?;
                run.memory(json_bytes(&live.json))?;
                (*live.json).clone()
            }
            Self::Undefined => {
                let fault = Fault::undefined(if path.0.is_empty() {
                    "the value is undefined".to_owned()
                } else {
                    format!("a value within it is undefined, at {path}")
                });
                return Err(fault.help("add a default: `| default(...)`, or `| default(omit)`"));
            }
            Self::Unknown(unknown) => return Err(Fault::Unknown(Arc::clone(unknown))),
            Self::Omit => {
                return Err(at(Fault::failed("`omit` cannot be the whole value here"), path));
            }
            Self::Lets(_) | Self::Function(_) | Self::Loop(_) | Self::Namespace(_) => {
                return Err(at(Fault::failed(format!("{} is not a value", self.kind())), path)
                    .help("name one of its fields"));
            }
        })
    }
}

/// The bytes of a JSON value in memory, without its text, items and entries.
pub const JSON_VALUE_BYTES: usize = size_of::<Value>();

/// The number of entries in a node of a map, and the bytes of a node in memory.
const NODE_ENTRIES: usize = 11;
const NODE_BYTES: usize = NODE_ENTRIES * (JSON_VALUE_BYTES + size_of::<String>());

/// The bytes in memory that the next entry adds to a JSON map with that many entries, without the entry's value.
pub fn json_entry_bytes(entries: usize, key: &str) -> usize {
    key.len() + if entries.is_multiple_of(NODE_ENTRIES) { NODE_BYTES } else { 0 }
}

/// The approximate bytes of a JSON value in memory. The manager counts in the same way while it reads an
/// object.
pub fn json_bytes(value: &Value) -> usize {
    JSON_VALUE_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(json_bytes).sum(),
            Value::Object(entries) => entries
                .iter()
                .enumerate()
                .map(|(before, (key, item))| json_entry_bytes(before, key) + json_bytes(item))
                .sum(),
            _ => 0,
        }
}

/// The remaining bytes of output.
pub(super) struct Meter {
    left: usize,
    limit: usize,
}

impl Meter {
    pub(super) fn new(limit: usize) -> Self {
        Self { left: limit, limit }
    }

    /// The used bytes.
    pub(super) fn used(&self) -> usize {
        self.limit - self.left
    }

    pub(super) fn take(&mut self, bytes: usize) -> Res<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Fault::limit(
                format!("the result exceeds the limit of {} bytes", self.limit),
                "a Kubernetes object may have about 1 MiB: split it",
            )),
        }
    }

    fn json(&mut self, value: &Value) -> Res<()> {
        self.take(8)?;
        match value {
            Value::String(text) => self.take(text.len()),
            Value::Array(items) => items.iter().try_for_each(|item| self.json(item)),
            Value::Object(entries) => entries.iter().try_for_each(|(key, item)| {
                self.take(key.len())?;
                self.json(item)
            }),
            _ => Ok(()),
        }
    }
}

/// The position of a conversion in a value.
#[derive(Default)]
pub(super) struct JsonPath(pub(super) Vec<JsonSegment>);

#[derive(Clone)]
pub(super) enum JsonSegment {
    Key(Name),
    Index(usize),
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                JsonSegment::Index(index) => write!(f, "[{index}]")?,
                JsonSegment::Key(key) => {
                    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '<';
                    if key.is_empty() || !key.chars().all(plain) {
                        write!(f, "[{key:?}]")?;
                    } else if position == 0 {
                        f.write_str(key)?;
                    } else {
                        write!(f, ".{key}")?;
                    }
                }
            }
        }
        Ok(())
    }
}
