//! Reads YAML as kubectl does, and records the position of every value.
//!
//! One loader over the events of `granit-parser` builds a tree of [`Node`]s: value, byte [`Span`] and
//! [`Style`]. Scalars have the meaning that `sigs.k8s.io/yaml` gives them (go-yaml v2: YAML 1.1 scalars, then
//! JSON), so a manifest means the same here and under `kubectl apply`:
//!
//! - `0644` and `0o644` are 420, `0x1F` is 31, `0b101` is 5, `1_000` is 1000; `08` is 8, because a number
//!   that is not octal is read as a float; `1:20` and `2001-01-01` are strings.
//! - `y`, `yes`, `on`, `true` and their opposites, in lower, upper and title case, are booleans.
//! - `~`, `null`, `Null`, `NULL` and an empty scalar are null.
//! - A number has the value that a JSON reader finds in the text that kubectl sends: `1.0` and `1e0` are the
//!   integer 1, integers from -2^63 to 2^64-1 keep every digit, larger ones become the nearest float, and
//!   `1e400`, which exceeds every float, is a string.
//! - Map keys are strings: `1:` is `"1"`, `yes:` is `"true"`.
//! - A merge key `<<` acts at its position: its entries override keys before it and yield to keys after it.
//!   In a list of maps the first one takes precedence.
//!
//! Where kubectl guesses or drops something, this reader refuses with a message instead: unknown tags
//! (kubectl ignores them), tags on the wrong kind of value, `!!binary` that is not text, infinities and NaN,
//! null and unsigned 64-bit map keys, collections as map keys. A duplicate key is an error unless [`Options`]
//! says that the last one takes precedence, as for kubectl. Texts that readers of YAML 1.1 and 1.2 understand
//! differently are errors, too: `{a:}`, `[?a]`, anchors with unusual names, and the line breaks U+0085,
//! U+2028 and U+2029 unless escaped. The parser also requires the further lines of a quoted value to be
//! indented deeper than its key, while kubectl accepts any indentation.
//!
//! [`to_string`] writes values so that this reader reads the same values again.

// `Diagnostic` exceeds clippy's size limit. Errors end a whole parse, so boxing them has no benefit.
#![allow(clippy::result_large_err)]

mod emit;
mod load;
mod scalar;
mod syntax;
mod tree;

use std::sync::Arc;

use operetta_kube_model::schema::join;
use serde_json::{Map, Number, Value};

pub use self::emit::to_string;
use crate::diag::{Diagnostic, Source, Span};

/// The limits of one text. Exceeding one is an error that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of the text, and the bytes of strings that aliases repeat.
    pub bytes: usize,
    /// The number of values, keys included, in all documents together, counted after aliases are expanded.
    pub nodes: usize,
    /// The depth of nested collections, counted after aliases are expanded.
    pub depth: usize,
    /// The number of aliases (`*name`) in all documents together.
    pub aliases: usize,
}

impl Default for Limits {
    /// Enough for the largest known CRDs (about 3 MiB, 100,000 nodes, 40 levels).
    fn default() -> Self {
        Self { bytes: 4 << 20, nodes: 250_000, depth: 100, aliases: 1_000 }
    }
}

/// The treatment of a plain `<<` key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Merge {
    /// Merges, as kubectl does.
    #[default]
    Resolve,
    /// Keeps an entry whose key is a plain `<<`, for a caller that merges later.
    Keep,
}

/// The treatment of a key that occurs twice in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Duplicates {
    /// Is an error that names both positions.
    #[default]
    Error,
    /// The last one takes precedence, as for kubectl.
    Last,
    /// All are kept.
    Keep,
}

/// The options for reading a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The limits.
    pub limits: Limits,
    /// The treatment of merge keys.
    pub merge: Merge,
    /// The treatment of duplicate keys.
    pub duplicate_keys: Duplicates,
}

/// The notation in which a value was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Style {
    /// A scalar without quotes.
    Plain,
    /// A scalar in single or double quotes.
    Quoted,
    /// A block scalar, `|` or `>`.
    Block,
    /// A collection in brackets or braces.
    Flow,
    /// A collection by indentation.
    Indented,
}

/// A value and its position in the text.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: NodeValue,
    /// The range of bytes, with quotes, without anchor and tag. That of a block scalar begins after the
    /// header and the first indentation. An alias has its own position, but the values within it have those
    /// of the original.
    pub span: Span,
    /// The notation in which it was written.
    pub style: Style,
}

/// A YAML value that can be converted to JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeValue {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number: an integer if it has no fraction and fits into 64 bits.
    Number(Number),
    /// A string.
    String(String),
    /// A list.
    Seq(Vec<Node>),
    /// A map in the order of the text. Keys are always [`NodeValue::String`], and unique except `<<` under
    /// [`Merge::Keep`].
    Map(Vec<(Node, Node)>),
}

/// One step of a path into a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathItem {
    /// The value of a key.
    Key(String),
    /// The item at an index.
    Index(usize),
}

impl From<&str> for PathItem {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for PathItem {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// Writes a path as people write it: `spec.resources[0].when`. Keys that are not plain words are quoted:
/// `metadata.labels["app.kubernetes.io/name"]`.
pub fn show_path(path: &[PathItem]) -> String {
    path.iter().fold(String::new(), |path, item| match item {
        PathItem::Index(index) => format!("{path}[{index}]"),
        PathItem::Key(key) => join(&path, key),
    })
}

impl Node {
    /// Converts the value to JSON. Under [`Merge::Keep`], `<<` is an ordinary key, and the last one counts.
    pub fn to_json(&self) -> Value {
        match &self.value {
            NodeValue::Null => Value::Null,
            NodeValue::Bool(bool) => Value::Bool(*bool),
            NodeValue::Number(number) => Value::Number(number.clone()),
            NodeValue::String(string) => Value::String(string.clone()),
            NodeValue::Seq(items) => items.iter().map(Self::to_json).collect(),
            NodeValue::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(key, value)| (key.as_str().unwrap_or_default().to_owned(), value.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// The text, if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            NodeValue::String(string) => Some(string),
            _ => None,
        }
    }

    /// The items, if it is a list.
    pub fn as_seq(&self) -> Option<&[Self]> {
        match &self.value {
            NodeValue::Seq(items) => Some(items),
            _ => None,
        }
    }

    /// The entries in the order of the text, if it is a map.
    pub fn as_map(&self) -> Option<&[(Self, Self)]> {
        match &self.value {
            NodeValue::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        self.value == NodeValue::Null
    }

    /// Whether it is a merge key (`<<`) left in place by [`Merge::Keep`].
    pub fn is_merge_key(&self) -> bool {
        self.style == Style::Plain && self.as_str() == Some("<<")
    }

    /// The value of a key, if it is a map that has the key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|(_, value)| value)
    }

    /// The entry of a key, if it is a map that has the key.
    pub fn entry(&self, key: &str) -> Option<(&Self, &Self)> {
        let (key, value) = self.as_map()?.iter().rfind(|(k, _)| k.as_str() == Some(key))?;
        Some((key, value))
    }

    /// The value at a path, if it exists. The empty path is the value itself.
    pub fn at(&self, path: &[PathItem]) -> Option<&Self> {
        path.iter().try_fold(self, |node, item| match item {
            PathItem::Key(key) => node.get(key),
            PathItem::Index(index) => node.as_seq()?.get(*index),
        })
    }

    /// A word for its type, for messages: `null`, `a boolean`, `a number`, `a string`, `a list`, `a map`.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            NodeValue::Null => "null",
            NodeValue::Bool(_) => "a boolean",
            NodeValue::Number(_) => "a number",
            NodeValue::String(_) => "a string",
            NodeValue::Seq(_) => "a list",
            NodeValue::Map(_) => "a map",
        }
    }
}

/// Parses all documents of a text. Empty documents are null, so that a document's index is its position in
/// the text. An empty last document (after a final `---`) is left out, so an empty text has none.
pub fn parse(source: &Arc<Source>, options: &Options) -> Result<Vec<Node>, Diagnostic> {
    load::parse(source, options)
}

/// Parses a text of at most one document; without a document the value is null. Duplicate keys are errors.
pub fn from_str(text: &str) -> Result<Value, Diagnostic> {
    let source = Source::new("YAML", text);
    let documents = parse(&source, &Options::default())?;
    match documents.as_slice() {
        [] => Ok(Value::Null),
        [document] => Ok(document.to_json()),
        [_, second, ..] => Err(Diagnostic::error(
            "yaml::documents",
            format!("found {} documents where one is expected", documents.len()),
        )
        .at(&source, second.span)
        .help("keep one document, without a `---` between")),
    }
}

#[cfg(test)]
mod dialect_tests;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod tests;
