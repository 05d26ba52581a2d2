//! One step of a field path.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use serde_json::Value;

use super::value::{compare, in_turn, same};

/// One step of a field path, as the keys of `fieldsV1` write it. Values in it are made by [`Key::item`] and [`Key::value`], so
/// that equal keys are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// `f:name`, a field of a map.
    Field(Box<str>),
    /// `k:{"port":80,"protocol":"TCP"}`, the item of a keyed list with these key fields, by name. Without key fields it is
    /// any item.
    Item(Box<[(Box<str>, Value)]>),
    /// `v:"x"`, the item of a set with this value.
    Value(Box<Value>),
    /// `i:0`, the item of a list at this place.
    Index(i64),
}

/// Whether an item has all key fields of a [`Key::Item`], or only some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The item has all key fields, and they are equal.
    Exact,
    /// The item has some key fields, and these are equal.
    Partial,
}

impl Key {
    /// A field of a map.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// The item of a keyed list with these key fields.
    pub fn item(fields: impl IntoIterator<Item = (Box<str>, Value)>) -> Self {
        let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, plain(value))).collect();
        fields.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self::Item(fields.into())
    }

    /// The item of a set with this value.
    pub fn value(value: Value) -> Self {
        Self::Value(Box::new(plain(value)))
    }

    /// The name, if this is a field of a map.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Field(name) => Some(name),
            _ => None,
        }
    }

    /// How well `item` fits the key fields of a keyed list's item; `None` for any other key.
    pub fn fits(&self, item: &Value) -> Option<Fit> {
        let Self::Item(fields) = self else { return None };
        let item = item.as_object()?;
        let mut fit = Fit::Exact;
        for (name, value) in fields {
            match item.get(&**name) {
                // The server may fill in a default (protocol: TCP), which an applied object need not say.
                None | Some(Value::Null) => fit = Fit::Partial,
                Some(own) if same(own, value) => {}
                Some(_) => return None,
            }
        }
        Some(fit)
    }

    /// Writes the key as JSON.
    pub(super) fn write(&self, out: &mut String) {
        out.push('"');
        match self {
            Self::Field(name) => {
                out.push_str("f:");
                escape(name, out);
            }
            Self::Item(fields) => {
                let mut text = String::from("k:{");
                for (at, (name, value)) in fields.iter().enumerate() {
                    text.push_str(if at > 0 { "," } else { "" });
                    quote(name, &mut text);
                    let _ = write!(text, ":{value}");
                }
                text.push('}');
                escape(&text, out);
            }
            Self::Value(value) => escape(&format!("v:{value}"), out),
            Self::Index(index) => {
                let _ = write!(out, "i:{index}");
            }
        }
        out.push('"');
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Item(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

/// A number as Go writes it: 80 for 80.0.
fn plain(value: Value) -> Value {
    let fraction = value.as_f64().filter(|_| value.is_f64());
    let text = fraction.map(|number| number.to_string()).unwrap_or_default();
    let whole = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
    whole.unwrap_or(value)
}

/// Writes a text as JSON.
pub fn quote(text: &str, out: &mut String) {
    out.push('"');
    escape(text, out);
    out.push('"');
}

fn escape(text: &str, out: &mut String) {
    if text.bytes().any(|byte| byte < b' ' || matches!(byte, b'"' | b'\\')) {
        let quoted = Value::from(text).to_string();
        out.push_str(&quoted[1..quoted.len() - 1]);
    } else {
        out.push_str(text);
    }
}

impl Ord for Key {
    /// The order in which the API server writes them.
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Item(a), Self::Item(b)) => {
                in_turn(a, b, |(a, x), (b, y)| a.cmp(b).then_with(|| compare(x, y)))
            }
            (Self::Value(a), Self::Value(b)) => compare(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Key {
    /// As the messages of the API server have it: `.ports`, `[port=80,protocol="TCP"]`, `[="x"]`, `[0]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Item(fields) => {
                f.write_char('[')?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{name}={value}", if at > 0 { "," } else { "" })?;
                }
                f.write_char(']')
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}
