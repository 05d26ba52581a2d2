//! Expressions and templates in `operator.yaml`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::words::inline_schema;
use crate::decode::{At, Decode, Decoder};
use crate::yaml::{Node, NodeValue};

/// The source of an expression: a string without braces, or `true` or `false`; for values also a number.
#[derive(Debug, Clone)]
pub struct Expression(pub At<String>);

impl Decode for Expression {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        if matches!(node.value, NodeValue::Number(_)) {
            decoder.mismatch(node, "an expression");
            return None;
        }
        decode_expression(node, decoder).map(Self)
    }
}

inline_schema!(Expression, {"type": ["string", "boolean"]});

pub(crate) fn decode_expression(node: &Node, decoder: &mut Decoder) -> Option<At<String>> {
    let text = match &node.value {
        NodeValue::String(text) if text.trim().is_empty() => {
            decoder.error("package::expression", node, "the expression is empty");
            return None;
        }
        NodeValue::String(text) => {
            let braces = text.trim().strip_prefix("{{").and_then(|text| text.strip_suffix("}}"));
            if let Some(inner) = braces {
                let help = format!("write: {}", inner.trim());
                let message = "expressions are written without braces";
                decoder.error_help("package::expression", node, message, help);
                return None;
            }
            text.clone()
        }
        NodeValue::Bool(value) => value.to_string(),
        NodeValue::Number(value) => value.to_string(),
        NodeValue::Null => {
            decoder.mismatch(node, "an expression");
            return None;
        }
        NodeValue::Seq(_) | NodeValue::Map(_) => {
            let text = decoder.text(node);
            let shape = if matches!(node.value, NodeValue::Seq(_)) { "a list" } else { "a map" };
            let help = if text.contains('\n') {
                "write the expression as one string, in quotes".to_owned()
            } else {
                format!("quote it: \"{}\"", text.replace('"', "'"))
            };
            let message = format!("an expression must be a string, YAML reads this as {shape}");
            decoder.error_help("package::quote", node, message, help);
            return None;
        }
    };
    Some(decoder.place(node, text))
}

/// The source of a template in `operator.yaml`: a string with `{{ }}`.
#[derive(Debug, Clone)]
pub struct TemplateText(pub At<String>);

impl Decode for TemplateText {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        At::decode(node, decoder).map(Self)
    }
}

inline_schema!(TemplateText, {"type": "string"});

/// The value of a `let`: a template, or a constant.
#[derive(Debug, Clone)]
pub enum LetValue {
    /// A string, which may contain `{{ }}`.
    Text(At<String>),
    /// Anything else.
    Constant(Value),
}

impl Decode for LetValue {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        if let NodeValue::String(text) = &node.value {
            return Some(Self::Text(decoder.place(node, text.clone())));
        }
        if let Some(template) = find_template(node) {
            let help =
                "write the whole value as one expression: \"{{ ['a', name] }}\", \"{{ {'app': name} }}\"";
            let message = "a list or a map here is a constant and cannot contain a template";
            decoder.error_help("package::type", template, message, help);
            return None;
        }
        Some(Self::Constant(node.to_json()))
    }
}

/// Finds a string with braces in a list or a map.
fn find_template(node: &Node) -> Option<&Node> {
    match &node.value {
        NodeValue::String(text) => text.contains("{{").then_some(node),
        NodeValue::Seq(items) => items.iter().find_map(find_template),
        NodeValue::Map(entries) => entries.iter().find_map(|(_, value)| find_template(value)),
        _ => None,
    }
}

inline_schema!(LetValue, {});

/// Any YAML value whose strings are templates.
#[derive(Debug, Clone)]
pub enum Tree {
    /// A template.
    Text(At<String>),
    /// A list of such values.
    List(Vec<Tree>),
    /// A map of such values.
    Map(Vec<(String, Tree)>),
    /// A number, a boolean or null.
    Constant(Value),
}

impl Decode for Tree {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        Some(match &node.value {
            NodeValue::String(text) => Self::Text(decoder.place(node, text.clone())),
            NodeValue::Seq(_) => Self::List(Vec::decode(node, decoder)?),
            NodeValue::Map(_) => {
                let mut entries = Vec::new();
                for (key, _, value) in decoder.entries(node, "a map")? {
                    let value = decoder.in_key(key, |decoder| Self::decode(value, decoder))?;
                    entries.push((key.to_owned(), value));
                }
                Self::Map(entries)
            }
            _ => Self::Constant(node.to_json()),
        })
    }
}

inline_schema!(Tree, {"type": ["string", "object", "array", "number", "boolean"]});
