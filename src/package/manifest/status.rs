//! The projected status in `operator.yaml`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Expression, VariableName, decode_expression};
use crate::decode::{At, Decode, Decoder};
use crate::yaml::{Node, NodeValue};

/// The projected status: dotted names to expressions.
#[derive(Debug, Clone)]
pub struct Status(pub Vec<StatusField>);

/// One projected field.
#[derive(Debug, Clone)]
pub struct StatusField {
    /// Its dotted name, for example `members.ready`, located at the last key.
    pub name: At<String>,
    /// Its value.
    pub value: StatusValue,
    /// Whether it may contain data of Secrets.
    pub exposes_secret_data: bool,
}

/// The value of a status field.
#[derive(Debug, Clone)]
pub enum StatusValue {
    /// The value of an expression.
    Expression(Expression),
    /// The result of a JSONPath.
    JsonPath(At<String>),
}

impl Decode for Status {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let mut fields = Vec::new();
        decode_status(node, decoder, "", &mut fields)?;
        Some(Self(fields))
    }
}

const EXPOSES: &str =
    "Whether the field may contain data of Secrets, which everybody who may read the instance can read.";

fn decode_status(node: &Node, decoder: &mut Decoder, prefix: &str, out: &mut Vec<StatusField>) -> Option<()> {
    for (key, key_node, value) in decoder.entries(node, "a map from names to expressions")? {
        decoder.in_key(key, |decoder| {
            if key == "jsonPath" && !prefix.is_empty() {
                let message = "`jsonPath` must be the only key of its map";
                return decoder.error_help("package::value", key_node, message, "remove the other keys");
            }
            let named = VariableName::decode(key_node, decoder);
            let name = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
            let mut exposes_secret_data = false;
            let shown = match &value.value {
                NodeValue::Map(_) if value.get("exposesSecretData").is_some() => {
                    decode_exposing(value, decoder, &mut exposes_secret_data)
                }
                NodeValue::Map(entries) => match entries.as_slice() {
                    [(_, path)] if value.get("jsonPath").is_some() => decoder
                        .in_key("jsonPath", |decoder| At::decode(path, decoder))
                        .map(StatusValue::JsonPath),
                    _ => {
                        decode_status(value, decoder, &name, out);
                        None
                    }
                },
                _ => decode_expression(value, decoder).map(|text| StatusValue::Expression(Expression(text))),
            };
            if let Some(value) = shown
                && named.is_some()
            {
                out.push(StatusField { name: decoder.place(key_node, name), value, exposes_secret_data });
            }
        });
    }
    Some(())
}

/// `{value: expression, exposesSecretData: true}`, or with `jsonPath` in place of `value`.
fn decode_exposing(node: &Node, decoder: &mut Decoder, exposes: &mut bool) -> Option<StatusValue> {
    let mut shown = None;
    for (key, key_node, value) in decoder.entries(node, "a map with `value` or `jsonPath`")? {
        decoder.in_key(key, |decoder| match key {
            "exposesSecretData" => *exposes = bool::decode(value, decoder).unwrap_or_default(),
            "value" if shown.is_none() => {
                shown =
                    decode_expression(value, decoder).map(|text| StatusValue::Expression(Expression(text)));
            }
            "jsonPath" if shown.is_none() => shown = At::decode(value, decoder).map(StatusValue::JsonPath),
            _ => decoder.error_help(
                "package::value",
                key_node,
                "`exposesSecretData` requires `value`, an expression, or `jsonPath`",
                "write {value: <expression>, exposesSecretData: true}",
            ),
        });
    }
    if shown.is_none() {
        decoder.error_help(
            "package::missing",
            node,
            "`exposesSecretData` requires `value` or `jsonPath`",
            "write {value: <expression>, exposesSecretData: true}",
        );
    }
    shown
}

impl JsonSchema for Status {
    fn schema_name() -> Cow<'static, str> {
        "Status".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "A name (or a map of names) to an expression or a JSONPath each.",
            "additionalProperties": {"anyOf": [
                {"type": ["string", "boolean", "number"]},
                {
                    "type": "object",
                    "description": "The result of a JSONPath (RFC 9535) that starts at the variables.",
                    "required": ["jsonPath"],
                    "additionalProperties": false,
                    "properties": {
                        "jsonPath": {
                            "type": "string",
                            "description": "For example .children.deployment.status.conditions[?(@.type=='Available')].status. \
                                A path that may match several values gives the list of all matches, or the only match where the \
                                CRD's schema of the field is not a list.",
                        },
                        "exposesSecretData": {"type": "boolean", "description": EXPOSES},
                    },
                },
                {
                    "type": "object",
                    "description": "An expression that may contain data of Secrets.",
                    "required": ["value", "exposesSecretData"],
                    "additionalProperties": false,
                    "properties": {
                        "value": {"type": ["string", "boolean", "number"], "description": "The expression."},
                        "exposesSecretData": {"type": "boolean", "description": EXPOSES},
                    },
                },
                generator.subschema_for::<Self>(),
            ]}
        })
    }
}
