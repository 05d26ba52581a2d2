//! YAML as kubectl reads it, with the place of every value.
//!
//! One loader over the events of `granit-parser` gives a tree of [`Node`]s: value, byte [`Span`] and
//! [`Style`]. Scalars mean what they mean to `sigs.k8s.io/yaml` (go-yaml v2: YAML 1.1 scalars, then
//! JSON), so a manifest has the same meaning here and under `kubectl apply`:
//!
//! - `0644` and `0o644` are 420, `0x1F` is 31, `0b101` is 5, `1_000` is 1000; `08` is 8, for what is
//!   no octal number is read as a float; `1:20` and `2001-01-01` are strings.
//! - `y`, `yes`, `on`, `true` and their opposites, in lower, upper and title case, are booleans.
//! - `~`, `null`, `Null`, `NULL` and nothing at all are null.
//! - A number is what a JSON reader makes of the text that kubectl sends: `1.0` and `1e0` are the
//!   integer 1, integers from -2^63 to 2^64-1 keep every digit, those beyond become the nearest
//!   float, and `1e400`, which no float holds, is a string.
//! - Map keys are strings: `1:` is `"1"`, `yes:` is `"true"`.
//! - A merge key `<<` writes its entries where it stands: it overrides keys before it and yields to
//!   keys after it. In a list of maps the first wins.
//!
//! Where kubectl guesses or drops something, this reader refuses with a message instead: unknown tags
//! (kubectl ignores them), tags on the wrong kind of value, `!!binary` that is no text, infinities and
//! NaN, null and unsigned 64-bit map keys, collections as map keys. A key given twice is an error
//! unless [`Options`] says that the last one wins, as for kubectl. So are texts that readers of YAML 1.1
//! and 1.2 understand differently: `{a:}`, `[?a]`, anchors with odd names, and the line breaks U+0085,
//! U+2028 and U+2029 unless escaped. The parser also asks that the further lines of a quoted value stand
//! deeper than its key, where kubectl takes any indentation.
//!
//! [`to_string`] writes values so that this reader reads the same values again.

// `Diagnostic` is a little larger than clippy's bound. Errors end a whole parse; boxing them buys nothing.
#![allow(clippy::result_large_err)]

mod emit;
mod load;
mod scalar;
mod syntax;
mod tree;

use std::sync::Arc;

use serde_json::{Map, Number, Value};

pub use self::emit::to_string;
use crate::diag::{Diagnostic, Source, Span};

/// Bounds of one text. Past each of them parsing ends with an error that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the text, and bytes of strings that aliases repeat.
    pub bytes: usize,
    /// Values, keys included, counted after aliases are expanded; all documents together.
    pub nodes: usize,
    /// Nested collections, counted after aliases are expanded.
    pub depth: usize,
    /// Aliases (`*name`) in all documents together.
    pub aliases: usize,
}

impl Default for Limits {
    /// Room for the largest known definitions of custom resources (about 3 MiB, 100,000 nodes, 40 levels).
    fn default() -> Self {
        Self { bytes: 4 << 20, nodes: 250_000, depth: 100, aliases: 1_000 }
    }
}

/// What to do with a plain `<<` key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Merge {
    /// Merge, as kubectl does.
    #[default]
    Resolve,
    /// Leave it as an entry whose key is a plain `<<`, for a caller that merges later.
    Keep,
}

/// What to do with a key that a map has twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Duplicates {
    /// An error that names both places.
    #[default]
    Error,
    /// The last one wins, as for kubectl.
    Last,
    /// All are kept.
    Keep,
}

/// How to read a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The bounds.
    pub limits: Limits,
    /// Merge keys.
    pub merge: Merge,
    /// Keys given twice.
    pub duplicate_keys: Duplicates,
}

/// How a value was written.
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

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: NodeValue,
    /// Its bytes: with its quotes, without anchor and tag. A block scalar's begin after the header and
    /// the first indentation. An alias has the place of the alias, the values within it the place of
    /// the original.
    pub span: Span,
    /// How it was written.
    pub style: Style,
}

/// A value of YAML that JSON can hold.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeValue {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number: an integer where it is one and fits 64 bits.
    Number(Number),
    /// A string.
    String(String),
    /// A list.
    Seq(Vec<Node>),
    /// A map in the order of the text. Keys are always [`NodeValue::String`], and unique but for
    /// `<<` under [`Merge::Keep`].
    Map(Vec<(Node, Node)>),
}

/// One step of a path into a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathItem {
    /// The value of that key.
    Key(String),
    /// The item of that index.
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

/// A path as people write it: `spec.resources[0].when`; keys that are no plain words in quotes,
/// `metadata.labels["app.kubernetes.io/name"]`.
pub fn show_path(path: &[PathItem]) -> String {
    let mut out = String::new();
    for item in path {
        match item {
            PathItem::Index(index) => {
                out.push('[');
                out.push_str(&index.to_string());
                out.push(']');
            }
            PathItem::Key(key) if is_word(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(key);
            }
            PathItem::Key(key) => {
                out.push('[');
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(']');
            }
        }
    }
    out
}

fn is_word(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

impl Node {
    /// The value as JSON. Under [`Merge::Keep`] a `<<` stays an ordinary key, the last one of several.
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

    /// The value of that key, if it is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Key and value of that key, if it is a map that has it.
    pub fn entry(&self, key: &str) -> Option<(&Self, &Self)> {
        let (key, value) = self.as_map()?.iter().rfind(|(k, _)| k.as_str() == Some(key))?;
        Some((key, value))
    }

    /// The value at that path, if all of the path exists. The empty path is the value itself.
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

/// All documents of a text. Empty ones are null, so a document's index is its place in the text; an
/// empty last one (after a final `---`) is left out, so an empty text has none.
pub fn parse(source: &Arc<Source>, options: &Options) -> Result<Vec<Node>, Diagnostic> {
    load::parse(source, options)
}

/// The value of a text of at most one document; null if it has none. Keys given twice are errors.
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
