//! From values to JSON, within bounds.

use std::fmt;
use std::sync::Arc;

use serde_json::{Number, Value};

use super::errors::{Fault, Res};
use super::limits::{MAP_BYTES, Run, VALUE_BYTES};
use super::value::{Name, Val};

impl Val {
    /// To JSON, for the outside. `meter` bounds the size.
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
                        path.0.push(Step::Index(index));
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
                        path.0.push(Step::Key(Arc::clone(key)));
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
                        path.0.push(Step::Key(Arc::clone(&key)));
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
                return Err(fault.help("say what stands for it: `| default(...)`, or `| default(omit)`"));
            }
            Self::Unknown(unknown) => return Err(Fault::Unknown(Arc::clone(unknown))),
            Self::Omit => {
                return Err(at(Fault::failed("`omit` cannot be the whole value here"), path));
            }
            Self::Lets(_) | Self::Function(_) | Self::Loop(_) | Self::Namespace(_) => {
                return Err(at(Fault::failed(format!("{} is no value of its own", self.kind())), path)
                    .help("name one of its fields"));
            }
        })
    }
}

/// About the bytes that a value takes here.
pub(super) fn json_bytes(value: &Value) -> usize {
    VALUE_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(json_bytes).sum(),
            Value::Object(entries) if entries.is_empty() => 0,
            Value::Object(entries) => {
                MAP_BYTES + entries.iter().map(|(key, item)| key.len() + json_bytes(item)).sum::<usize>()
            }
            _ => 0,
        }
}

/// Bytes of output that are left.
pub(super) struct Meter {
    left: usize,
    limit: usize,
}

impl Meter {
    pub(super) fn new(limit: usize) -> Self {
        Self { left: limit, limit }
    }

    /// How many bytes were taken.
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
                format!("the result passes the limit of {} bytes", self.limit),
                "an object of Kubernetes can hold no more than about 1 MiB: split it",
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

/// Where in a value a conversion is.
#[derive(Default)]
pub(super) struct JsonPath(pub(super) Vec<Step>);

#[derive(Clone)]
pub(super) enum Step {
    Key(Name),
    Index(usize),
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
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
