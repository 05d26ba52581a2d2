//! Decodes a YAML tree to typed values with positions.
//!
//! serde stops at the first error and loses positions. The author of a package needs all errors at once, each with its
//! position. So this decoder walks the tree, records every error, skips what it cannot read, and continues.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::lint::words::boolean_word;
use crate::diag::{Diagnostic, Location, Source, Span, did_you_mean};
use crate::template::foreign_syntax::of_key;
use crate::yaml::{Node, NodeValue, Style};

/// A value with its location and its path.
#[derive(Debug, Clone)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Its location.
    pub at: Location,
    /// Its path in the file, for example `spec.resources[0].crd`.
    pub path: String,
}

impl<T> At<T> {
    /// An error about this value.
    pub fn error(&self, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, message).located(self.at.clone()).path(self.path.clone())
    }
}

/// The state of the decoder: the file, the current path, and the errors found.
#[derive(Debug)]
pub struct Decoder {
    source: Arc<Source>,
    path: String,
    diagnostics: Vec<Diagnostic>,
}

/// A type that can be decoded from YAML.
pub trait Decode: Sized {
    /// Decodes the node, or records why it cannot.
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self>;

    /// Whether a map must have a key of this type.
    const REQUIRED: bool = true;

    /// The value for a missing or unreadable key.
    fn lost() -> Option<Self> {
        None
    }
}

/// The allowed keys of a map: those that this version supports, and those that belong to the format but are
/// not supported yet, so that they are not reported as typos.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// The keys that this version supports.
    pub known: &'static [&'static str],
    /// The keys of the format that this version does not support yet.
    pub later: &'static [&'static str],
}

impl Decoder {
    /// Creates a decoder for a file.
    pub fn new(source: &Arc<Source>) -> Self {
        Self { source: Arc::clone(source), path: String::new(), diagnostics: Vec::new() }
    }

    /// The errors found.
    pub fn finish(self) -> Vec<Diagnostic> {
        self.diagnostics
    }

    /// The location of a range of this file.
    pub fn location(&self, span: Span) -> Location {
        Location::new(&self.source, span)
    }

    /// The current path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Attaches the location of a node to a value.
    pub fn place<T>(&self, node: &Node, value: T) -> At<T> {
        At { value, at: self.location(self.span(node)), path: self.path.clone() }
    }

    /// The range to mark: for lists and maps, their first line.
    fn span(&self, node: &Node) -> Span {
        let Span { start, end } = node.span;
        let lines = matches!(node.value, NodeValue::Seq(_) | NodeValue::Map(_));
        let first = self.source.text.get(start..end).and_then(|text| text.find('\n')).filter(|_| lines);
        Span::new(start, first.map_or(end, |first| start + first))
    }

    /// Records an error about the value at the current path.
    pub fn error(&mut self, code: &'static str, node: &Node, message: impl Into<String>) {
        let span = self.span(node);
        self.push(Diagnostic::error(code, message).at(&self.source, span));
    }

    /// Records an error with a hint.
    pub fn error_help(
        &mut self,
        code: &'static str,
        node: &Node,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let span = self.span(node);
        self.push(Diagnostic::error(code, message).at(&self.source, span).help(help));
    }

    fn push(&mut self, diagnostic: Diagnostic) {
        let path = Some(self.path.clone()).filter(|path| !path.is_empty());
        self.diagnostics.push(Diagnostic { path, ..diagnostic });
    }

    /// Runs `f` with a key added to the path.
    pub fn in_key<T>(&mut self, key: &str, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.path.len();
        if before > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        let result = f(self);
        self.path.truncate(before);
        result
    }

    /// Runs `f` with a list index added to the path.
    pub fn in_item<T>(&mut self, index: usize, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.path.len();
        let _ = write!(self.path, "[{index}]");
        let result = f(self);
        self.path.truncate(before);
        result
    }

    /// The source text of the node.
    pub fn text(&self, node: &Node) -> &str {
        self.source.text.get(node.span.start..node.span.end).unwrap_or_default().trim_end()
    }

    /// Records that the node has the wrong type.
    pub fn mismatch(&mut self, node: &Node, wanted: &str) {
        let shape = match &node.value {
            NodeValue::Null => {
                let message = format!("has no value, must be {wanted}");
                let help = "set a value, or remove the key";
                return self.error_help("package::type", node, message, help);
            }
            NodeValue::Bool(value) => match boolean_word(&self.source, node) {
                Some((word, _)) => format!("`{word}`, which is {value} in YAML 1.1"),
                None => value.to_string(),
            },
            NodeValue::Number(value) => format!("the number {value}"),
            NodeValue::String(_) => "a string".to_owned(),
            NodeValue::Seq(_) => "a list".to_owned(),
            NodeValue::Map(_) => "a map".to_owned(),
        };
        let message = format!("must be {wanted}, is {shape}");
        let scalar = matches!(node.value, NodeValue::Bool(_) | NodeValue::Number(_));
        if scalar && wanted == "a string" {
            let help = format!("quote it: \"{}\"", self.text(node));
            self.error_help("package::type", node, message, help);
        } else {
            self.error("package::type", node, message);
        }
    }

    /// The entries of a map with string keys.
    pub fn entries<'n>(
        &mut self,
        node: &'n Node,
        wanted: &str,
    ) -> Option<Vec<(&'n str, &'n Node, &'n Node)>> {
        let NodeValue::Map(entries) = &node.value else {
            self.mismatch(node, wanted);
            return None;
        };
        let mut found = Vec::with_capacity(entries.len());
        let mut cut: Option<(&str, &Node)> = None;
        for (key, value) in entries {
            // To YAML, `{when: x | default(1, true)}` is a map with two keys.
            if let Some((name, part)) = cut
                && matches!(value.value, NodeValue::Null)
            {
                let span = Span::new(part.span.start, key.span.end.max(part.span.end));
                let whole = self.source.text.get(span.start..span.end).unwrap_or_default().to_owned();
                let help = format!("quote it: {name}: \"{}\"", whole.replace('"', "'"));
                let error = Diagnostic::error("package::quote", "YAML ends this value at the comma");
                self.in_key(name, |decoder| decoder.push(error.at(&decoder.source, span).help(help)));
                found.pop();
                cut = None;
                continue;
            }
            let Some(name) = key.as_str() else { continue }; // the parser makes every key a string
            if let NodeValue::String(text) = &value.value
                && value.style == Style::Plain
                && unbalanced(text)
            {
                cut = Some((name, value));
            } else if matches!(value.value, NodeValue::Null) && unbalanced(name) {
                continue; // the rest of the value that was cut above
            }
            found.push((name, key, value));
        }
        Some(found)
    }

    /// The entries of a map with known keys; records unknown keys.
    pub fn fields<'n>(&mut self, node: &'n Node, keys: Keys) -> Option<Vec<(&'n str, &'n Node)>> {
        let entries = self.entries(node, "a map")?;
        let mut found = Vec::with_capacity(entries.len());
        for (name, key, value) in entries {
            if keys.known.contains(&name) {
                found.push((name, value));
            } else {
                self.in_key(name, |decoder| decoder.unknown(name, key, keys));
            }
        }
        Some(found)
    }

    fn unknown(&mut self, name: &str, key: &Node, keys: Keys) {
        if keys.later.contains(&name) {
            let message = format!("this version of Operetta does not support `{name}` yet");
            return self.error_help("package::not-yet", key, message, "remove it");
        }
        let candidates = keys.known.iter().chain(keys.later).copied();
        let help = match did_you_mean(name, candidates) {
            Some(near) => format!("did you mean `{near}`?"),
            None => match of_key(name) {
                Some(help) => help.to_owned(),
                None => format!("the allowed keys are {}", keys.known.join(", ")),
            },
        };
        self.error_help("package::unknown-key", key, format!("unknown key `{name}`"), help);
    }

    /// Decodes the value of one key of a map.
    pub fn field<T: Decode>(&mut self, map: &Node, fields: &[(&str, &Node)], key: &str) -> Option<T> {
        let Some((_, node)) = fields.iter().find(|(name, _)| *name == key) else {
            if T::REQUIRED {
                let head = Self::head(map);
                self.error("package::missing", head, format!("`{key}` is missing"));
            }
            return T::lost();
        };
        self.in_key(key, |decoder| T::decode(node, decoder)).or_else(T::lost)
    }

    /// The first key of a map, which marks an error about the whole map.
    fn head(map: &Node) -> &Node {
        match &map.value {
            NodeValue::Map(entries) => entries.first().map_or(map, |(key, _)| key),
            _ => map,
        }
    }
}

/// Whether the text has unbalanced brackets or quotes.
fn unbalanced(text: &str) -> bool {
    let mut open = Vec::new();
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(q), _) if q == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => open.push(c),
            (None, ')' | ']' | '}') if open.pop().is_none() => return true,
            _ => {}
        }
    }
    !open.is_empty() || quote.is_some()
}

/// Declares a map of the format. One list of keys and fields defines the type, its JSON Schema, its decoder,
/// and the keys that this version does not support yet.
macro_rules! manifest {
    (
        $(#[$meta:meta])*
        pub struct $name:ident $(later [$($later:literal),* $(,)?])? {
            $($(#[$field_meta:meta])* $key:literal $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, schemars::JsonSchema)]
        #[schemars(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_meta])* #[schemars(rename = $key)] pub $field: $type,)*
        }

        impl $crate::decode::Decode for $name {
            fn decode(
                node: &$crate::yaml::Node,
                decoder: &mut $crate::decode::Decoder,
            ) -> Option<Self> {
                let keys = $crate::decode::Keys { known: &[$($key),*], later: &[$($($later),*)?] };
                let fields = decoder.fields(node, keys)?;
                $(let $field = decoder.field::<$type>(node, &fields, $key);)*
                Some(Self { $($field: $field?,)* })
            }
        }
    };
}

/// Declares an enum of strings, and the strings that this version does not support yet.
macro_rules! choice {
    (
        $(#[$meta:meta])*
        pub enum $name:ident $(later [$($later:literal),*])? {
            $($(#[$variant_meta:meta])* $variant:ident,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, schemars::JsonSchema)]
        #[schemars(inline)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
        }

        impl $crate::decode::Decode for $name {
            fn decode(
                node: &$crate::yaml::Node,
                decoder: &mut $crate::decode::Decoder,
            ) -> Option<Self> {
                let word = String::decode(node, decoder)?;
                match word.as_str() {
                    $(stringify!($variant) => return Some(Self::$variant),)*
                    _ => {}
                }
                let keys = $crate::decode::Keys {
                    known: &[$(stringify!($variant)),*],
                    later: &[$($($later),*)?],
                };
                decoder.no_such_choice(node, &word, keys);
                None
            }
        }
    };
}

pub(super) use {choice, manifest};

impl Decoder {
    /// Records that a string is not one of the allowed ones.
    pub fn no_such_choice(&mut self, node: &Node, word: &str, keys: Keys) {
        if keys.later.contains(&word) {
            let message = format!("this version of Operetta does not support `{word}` yet");
            let help = format!("it supports {}", keys.known.join(", "));
            return self.error_help("package::not-yet", node, message, help);
        }
        let help =
            did_you_mean(word, keys.known.iter().copied()).map(|near| format!("did you mean `{near}`?"));
        let message = format!("must be one of {}", keys.known.join(", "));
        match help {
            Some(help) => self.error_help("package::choice", node, message, help),
            None => self.error("package::choice", node, message),
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    const REQUIRED: bool = false;

    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        T::decode(node, decoder).map(Some)
    }

    fn lost() -> Option<Self> {
        Some(None)
    }
}

/// A required value. If it has errors, the other keys of its map are decoded nevertheless.
#[derive(Debug, Clone)]
pub struct Must<T>(pub Option<T>);

impl<T: Decode> Decode for Must<T> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        Some(Self(T::decode(node, decoder)))
    }

    fn lost() -> Option<Self> {
        Some(Self(None))
    }
}

impl<T: JsonSchema> JsonSchema for Must<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let NodeValue::Seq(items) = &node.value else {
            decoder.mismatch(node, "a list");
            return None;
        };
        let mut found = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            found.extend(decoder.in_item(index, |decoder| T::decode(item, decoder)));
        }
        Some(found)
    }
}

impl<T: Decode> Decode for At<T> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let value = T::decode(node, decoder)?;
        Some(decoder.place(node, value))
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl Decode for String {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let NodeValue::String(text) = &node.value else {
            decoder.mismatch(node, "a string");
            return None;
        };
        Some(text.clone())
    }
}

impl Decode for bool {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let NodeValue::Bool(value) = node.value else {
            decoder.mismatch(node, "true or false");
            return None;
        };
        Some(value)
    }
}

/// A map of constants, which may be any YAML values.
#[derive(Debug, Clone)]
pub struct Constants(pub serde_json::Map<String, Value>);

impl Decode for Constants {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        decoder.entries(node, "a map")?;
        let Value::Object(map) = node.to_json() else { return None };
        Some(Self(map))
    }
}

impl JsonSchema for Constants {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Constants".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object"})
    }
}

/// A map from names to values, in the order of the file.
#[derive(Debug, Clone)]
pub struct Named<T>(pub Vec<(At<String>, T)>);

impl<T: Decode> Decode for Named<T> {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let entries = decoder.entries(node, "a map")?;
        let mut found = Vec::with_capacity(entries.len());
        for (name, key, value) in entries {
            decoder.in_key(name, |decoder| {
                let name = decoder.place(key, name.to_owned());
                found.extend(T::decode(value, decoder).map(|value| (name, value)));
            });
        }
        Some(Self(found))
    }
}

impl<T: JsonSchema> JsonSchema for Named<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Named_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "additionalProperties": generator.subschema_for::<T>()})
    }
}
