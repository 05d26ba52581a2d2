//! Settings of `operator.yaml` that have more than one form.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::expressions::TemplateText;
use super::words::{ImmutableChange, inline_schema};
use crate::decode::{At, Decode, Decoder};
use crate::yaml::{Node, NodeValue};

/// A CustomResourceDefinition: in a file, or inline.
#[derive(Debug, Clone)]
pub enum Crd {
    /// The path of its file.
    Path(At<String>),
    /// The object itself.
    Inline(At<Node>),
}

impl Decode for Crd {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(path) => Some(Self::Path(decoder.place(node, path.clone()))),
            NodeValue::Map(_) => Some(Self::Inline(decoder.place(node, node.clone()))),
            _ => {
                decoder.mismatch(node, "a path, or a CustomResourceDefinition");
                None
            }
        }
    }
}

inline_schema!(Crd, {"type": ["string", "object"]});

/// How many members of a forEach child may be unavailable while they are updated.
#[derive(Debug, Clone)]
pub enum MaxUnavailable {
    /// A number, at least 1.
    Number(u64),
    /// A percentage of all members, 1 to 100.
    Percent(u64),
    /// A template that yields either.
    Text(String),
}

impl MaxUnavailable {
    /// A number from 1, as number or string, or a percentage from `1%` to `100%`.
    pub fn parse(value: &Value) -> Option<Self> {
        let text = match value {
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.clone(),
            _ => return None,
        };
        if let Some(percent) = text.strip_suffix('%') {
            return percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(Self::Percent);
        }
        text.parse().ok().filter(|number| *number >= 1).map(Self::Number)
    }
}

impl Decode for MaxUnavailable {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        if let NodeValue::String(text) = &node.value
            && text.contains("{{")
        {
            return Some(Self::Text(text.clone()));
        }
        let found = Self::parse(&node.to_json());
        if found.is_none() {
            decoder.error("package::type", node, "must be a number from 1, or a percentage from 1% to 100%");
        }
        found
    }
}

inline_schema!(MaxUnavailable, {
    "oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+%?$|\\{\\{"}]
});

/// What happens when a field of the live object cannot be changed.
#[derive(Debug, Clone)]
pub enum OnImmutableChange {
    /// A literal.
    Word(ImmutableChange),
    /// A template that yields one.
    Text(String),
}

impl Decode for OnImmutableChange {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(text) if text.contains("{{") => Some(Self::Text(text.clone())),
            _ => ImmutableChange::decode(node, decoder).map(Self::Word),
        }
    }
}

inline_schema!(OnImmutableChange, {
    "oneOf": [{"enum": ["Fail", "Recreate", "Orphan"]}, {"type": "string", "pattern": "\\{\\{"}]
});

/// Fields that are released once another manager owns them.
#[derive(Debug, Clone)]
pub enum Yields {
    /// One template that yields the list.
    One(TemplateText),
    /// The paths, each a template.
    List(Vec<TemplateText>),
}

impl Decode for Yields {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match node.value {
            NodeValue::Seq(_) => Vec::decode(node, decoder).map(Self::List),
            _ => TemplateText::decode(node, decoder).map(Self::One),
        }
    }
}

inline_schema!(Yields, {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]});

/// The namespaces of a selector.
#[derive(Debug, Clone)]
pub enum Namespaces {
    /// All namespaces.
    All,
    /// These namespaces.
    List(Vec<TemplateText>),
}

impl Decode for Namespaces {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(text) if text == "all" => Some(Self::All),
            NodeValue::Seq(_) => Vec::decode(node, decoder).map(Self::List),
            _ => {
                decoder.mismatch(node, "`all`, or a list of namespaces");
                None
            }
        }
    }
}

inline_schema!(Namespaces, {"oneOf": [{"const": "all"}, {"type": "array", "items": {"type": "string"}}]});
