//! Numbers, sizes and durations of plans.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::decode::{At, Decode, Decoder};
use crate::manifest::inline_schema;
use crate::plan::duration::{self, parse_duration};
use crate::yaml::{Node, NodeValue};

/// A literal duration.
#[derive(Debug, Clone, Copy)]
pub struct Interval(pub Duration);

impl Decode for Interval {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = duration_text(node, decoder)?;
        if text.contains("{{") {
            let message = "this duration must be a literal";
            decoder.error_help("package::duration", node, message, duration::HELP);
            return None;
        }
        literal_duration(node, decoder, &text).map(Self)
    }
}

inline_schema!(Interval, {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"});

/// A duration, or a template that yields one.
#[derive(Debug, Clone)]
pub struct Time(pub At<String>);

impl Decode for Time {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = duration_text(node, decoder)?;
        if !text.contains("{{") {
            literal_duration(node, decoder, &text)?;
        }
        Some(Self(decoder.place(node, text)))
    }
}

inline_schema!(Time, {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$|\\{\\{"});

fn duration_text(node: &Node, decoder: &mut Decoder) -> Option<String> {
    if let NodeValue::Number(number) = &node.value {
        let message = format!("a duration needs a unit, is the number {number}");
        decoder.error_help("package::duration", node, message, format!("write {number}s"));
        return None;
    }
    String::decode(node, decoder)
}

fn literal_duration(node: &Node, decoder: &mut Decoder, text: &str) -> Option<Duration> {
    match parse_duration(text) {
        Ok(found) => Some(found),
        Err(message) => {
            decoder.error_help("package::duration", node, message, duration::HELP);
            None
        }
    }
}

/// A number from 1 to 1000.
#[derive(Debug, Clone, Copy)]
pub struct Count(pub u32);

impl Decode for Count {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        number(node, decoder, 1, 1000).map(Self)
    }
}

inline_schema!(Count, {"type": "integer", "minimum": 1, "maximum": 1000});

/// A number from 1 to 1000, or a template that yields one.
#[derive(Debug, Clone)]
pub enum Parallel {
    /// A number.
    Fixed(u32),
    /// A template.
    Template(At<String>),
}

impl Decode for Parallel {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(text) if text.contains("{{") => {
                Some(Self::Template(decoder.place(node, text.clone())))
            }
            _ => Count::decode(node, decoder).map(|Count(number)| Self::Fixed(number)),
        }
    }
}

inline_schema!(Parallel, {"anyOf": [
    {"type": "integer", "minimum": 1, "maximum": 1000},
    {"type": "string", "pattern": "\\{\\{"},
]});

/// A port.
#[derive(Debug, Clone, Copy)]
pub struct Port(pub u16);

impl Decode for Port {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        number(node, decoder, 1, 65535).and_then(|number| u16::try_from(number).ok()).map(Self)
    }
}

inline_schema!(Port, {"type": "integer", "minimum": 1, "maximum": 65535});

/// A port, or a template that yields one.
#[derive(Debug, Clone)]
pub enum AnyPort {
    /// A number.
    Fixed(Port),
    /// A template.
    Template(At<String>),
}

impl Decode for AnyPort {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(text) if text.contains("{{") => {
                Some(Self::Template(decoder.place(node, text.clone())))
            }
            _ => Port::decode(node, decoder).map(Self::Fixed),
        }
    }
}

inline_schema!(AnyPort, {"anyOf": [
    {"type": "integer", "minimum": 1, "maximum": 65535},
    {"type": "string", "pattern": "\\{\\{"},
]});

/// A number of repetitions, from 0.
#[derive(Debug, Clone, Copy)]
pub struct Limit(pub u32);

impl Decode for Limit {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        number(node, decoder, 0, 1000).map(Self)
    }
}

inline_schema!(Limit, {"type": "integer", "minimum": 0, "maximum": 1000});

/// The priority of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Priority(pub u8);

impl Decode for Priority {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        number(node, decoder, 0, 100).and_then(|number| u8::try_from(number).ok()).map(Self)
    }
}

inline_schema!(Priority, {"type": "integer", "minimum": 0, "maximum": 100});

/// How many redirects are followed.
#[derive(Debug, Clone, Copy)]
pub struct Redirects(pub u8);

impl Decode for Redirects {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        number(node, decoder, 0, 10).and_then(|number| u8::try_from(number).ok()).map(Self)
    }
}

inline_schema!(Redirects, {"type": "integer", "minimum": 0, "maximum": 10});

/// A size in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u32);

impl Decode for Bytes {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        number(node, decoder, 1, 16 << 20).map(Self)
    }
}

inline_schema!(Bytes, {"type": "integer", "minimum": 1, "maximum": 16_777_216});

pub(super) fn number(node: &Node, decoder: &mut Decoder, least: u32, most: u32) -> Option<u32> {
    if let NodeValue::Number(found) = &node.value
        && let Some(found) = found.as_u64().and_then(|found| u32::try_from(found).ok())
        && (least..=most).contains(&found)
    {
        return Some(found);
    }
    decoder.mismatch(node, &format!("a number from {least} to {most}"));
    None
}
