//! Strings of `operator.yaml` with a required form: names, versions.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use semver::{Version, VersionReq};

use crate::decode::{Decode, Decoder, choice};
use crate::yaml::{Node, NodeValue};

/// The apiVersion of every file of the format.
pub const API_VERSION: &str = "operetta.dev/v1alpha1";
/// The kind of `operator.yaml`.
pub const KIND: &str = "OperatorPackage";

/// A type whose JSON Schema is inline.
macro_rules! inline_schema {
    ($name:ident, $schema:tt) => {
        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

pub(crate) use inline_schema;

choice! {
    /// What happens when a field of the live object cannot be changed.
    pub enum ImmutableChange {
        /// It is reported.
        Fail,
        /// The object is deleted and created again.
        Recreate,
        /// The same, but the objects that it owns stay, such as the pods of a StatefulSet, and the new object adopts them.
        Orphan,
    }
}

/// Declares a string with a required form.
macro_rules! word {
    ($(#[$meta:meta])* $name:ident, $pattern:literal, $max:literal, $form:literal, $check:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(pub String);

        impl $name {
            /// What is wrong with a text.
            pub fn problem(text: &str) -> Option<String> {
                let check: fn(&str) -> bool = $check;
                let fits = text.len() <= $max && check(text);
                (!fits).then(|| format!(concat!("must be ", $form, ", at most {} characters"), $max))
            }
        }

        impl Decode for $name {
            fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
                let text = String::decode(node, decoder)?;
                match Self::problem(&text) {
                    None => Some(Self(text)),
                    Some(message) => {
                        decoder.error("package::name", node, message);
                        None
                    }
                }
            }
        }

        inline_schema!($name, {"type": "string", "pattern": $pattern, "maxLength": $max});
    };
}

pub(crate) fn starts(text: &str, first: fn(char) -> bool, rest: fn(char) -> bool) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(first) && chars.all(rest)
}

word! {
    /// The name of a package.
    PackageName, "^[a-z]([-a-z0-9]*[a-z0-9])?$", 40,
    "lower case letters, digits and hyphens, beginning with a letter and not ending in a hyphen",
    |text| {
        !text.ends_with('-')
            && starts(
                text,
                |c| c.is_ascii_lowercase(),
                |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-',
            )
    }
}

word! {
    /// The id of a child.
    ChildId, "^[a-z]([-A-Za-z0-9_]*[A-Za-z0-9])?$", 63,
    "letters, digits, hyphens and underscores, beginning with a lower case letter and ending in a letter or digit",
    |text| {
        text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && starts(
                text,
                |c| c.is_ascii_lowercase(),
                |c| c.is_ascii_alphanumeric() || c == '-' || c == '_',
            )
    }
}

word! {
    /// The name of a variable in expressions.
    VariableName, "^[A-Za-z_][A-Za-z0-9_]*$", 63,
    "letters, digits and underscores, not beginning with a digit",
    |text| {
        starts(text, |c| c.is_ascii_alphabetic() || c == '_', |c| c.is_ascii_alphanumeric() || c == '_')
    }
}

word! {
    /// The type or the reason of a condition.
    ConditionName, "^[A-Za-z][A-Za-z0-9]*$", 63,
    "one word in CamelCase, letters and digits",
    |text| starts(text, |c| c.is_ascii_alphabetic(), |c| c.is_ascii_alphanumeric())
}

word! {
    /// The apiVersion of an object.
    ApiVersionName, "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*$", 253,
    "a literal apiVersion such as v1 or apps/v1",
    |text| {
        let (group, version) = text.split_once('/').unwrap_or(("a", text));
        let part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        !group.is_empty()
            && !group.starts_with(['-', '.'])
            && !group.ends_with(['-', '.'])
            && group.chars().all(|c| part(c) || c == '-' || c == '.')
            && version.strip_prefix('v').is_some_and(|rest| starts(rest, |c| c.is_ascii_digit(), part))
    }
}

word! {
    /// The kind of an object.
    KindName, "^[A-Z][A-Za-z0-9]*$", 63,
    "a literal kind in CamelCase such as Secret",
    |text| starts(text, |c| c.is_ascii_uppercase(), |c| c.is_ascii_alphanumeric())
}

word! {
    /// A repository of a registry.
    Repository, "^oci://[^/@ ]+/[a-z0-9._/-]+$", 512,
    "oci://HOST/PATH without tag and digest",
    |text| {
        let path = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._/-".contains(c);
        text.strip_prefix("oci://").and_then(|rest| rest.split_once('/')).is_some_and(|(host, rest)| {
            !host.is_empty() && !host.contains(['@', ' ']) && !rest.is_empty() && rest.chars().all(path)
        })
    }
}

word! {
    /// A digest.
    Sha256, "^sha256:[0-9a-f]{64}$", 71,
    "sha256: and 64 hexadecimal digits",
    |text| {
        let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.chars().all(is_hex))
    }
}

/// A string with one allowed value.
macro_rules! literal {
    ($(#[$meta:meta])* $name:ident, $word:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;

        impl Decode for $name {
            fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
                let text = String::decode(node, decoder)?;
                if text != $word {
                    decoder.error("package::kind", node, format!("must be {}, is {text}", $word));
                    return None;
                }
                Some(Self)
            }
        }

        inline_schema!($name, {"type": "string", "const": $word});
    };
}

literal! {
    /// `operetta.dev/v1alpha1`.
    ApiVersion, API_VERSION
}
literal! {
    /// `OperatorPackage`.
    Kind, KIND
}

pub(crate) use {literal, word};

/// A version with three parts.
#[derive(Debug, Clone)]
pub struct SemVer(pub Version);

impl Decode for SemVer {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = match &node.value {
            NodeValue::Number(_) => decoder.text(node).to_owned(),
            _ => String::decode(node, decoder)?,
        };
        match Version::parse(&text) {
            Ok(version) => Some(Self(version)),
            Err(error) => {
                let message = format!("`{text}` is not a SemVer version: {error}");
                decoder.error_help("package::version", node, message, "write three parts, for example 0.1.0");
                None
            }
        }
    }
}

inline_schema!(SemVer, {
    "type": "string",
    "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.-]+)?(\\+[0-9A-Za-z.-]+)?$"
});

/// A range of versions, in Cargo's notation.
#[derive(Debug, Clone)]
pub struct SemVerRange(pub VersionReq);

impl Decode for SemVerRange {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = String::decode(node, decoder)?;
        match VersionReq::parse(&text) {
            Ok(range) => Some(Self(range)),
            Err(error) => {
                let message = format!("`{text}` is not a range of versions: {error}");
                decoder.error_help("package::version", node, message, "write for example \">=1.30\"");
                None
            }
        }
    }
}

inline_schema!(SemVerRange, {"type": "string"});
