//! The conversion between the versions of a CRD.

// Editors show these comments unformatted, so backticks are only for text that an author types.
#![allow(rustdoc::broken_intra_doc_links)]

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use crate::decode::{At, Decode, Decoder, Must, Named, manifest};
use crate::yaml::Node;

manifest! {
    /// How objects are converted between the versions of the CRD.
    pub struct Conversion {
        /// By version, other than the storage version: how it differs from the storage version. Fields of the same path
        /// and type in both need no rule.
        "versions" versions: Must<Named<Vec<At<ConversionRule>>>>,
    }
}

manifest! {
    /// How one field differs between a version and the storage version: exactly one of `move`, `default` and `keep`.
    pub struct ConversionRule {
        /// The path of a field of this version, which has another path in the storage version, for example
        /// spec.replicas, or spec.pools[*].count for a field of each item.
        "move" source: Option<At<String>>,
        /// With move: the path in the storage version.
        "to" target: Option<At<String>>,
        /// The path of a field that only one of the two versions has; `value` is its value in an object that was created
        /// in the other one.
        "default" default: Option<At<String>>,
        /// With default: the value.
        "value" value: Option<At<AnyValue>>,
        /// The path of a field that only one of the two versions has, and that an object of the other one lacks.
        "keep" keep: Option<At<String>>,
    }
}

/// Any YAML value.
#[derive(Debug, Clone)]
pub struct AnyValue(pub Value);

impl Decode for AnyValue {
    fn decode(node: &Node, _: &mut Decoder) -> Option<Self> {
        Some(Self(node.to_json()))
    }
}

impl JsonSchema for AnyValue {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AnyValue".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!(true)
    }
}
