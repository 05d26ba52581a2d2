//! Validates an object against its schema. Messages never contain values.

use operetta_kube_model::schema::{self, Notation, Rule, Unit, below, properties, type_of};
use serde_json::Value;

use crate::diag::did_you_mean;

/// One violation of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The path, for example `spec.members[0].name`.
    pub path: String,
    /// The message without the value, which may be a secret.
    pub message: String,
    /// Whether the server would drop the value instead of refusing the object.
    pub is_loss: bool,
}

/// The structural violations of an object. The defaults must be applied before, as in the API server. Unknown
/// fields are violations, because the server drops them. CEL rules are not evaluated.
pub fn validate(schema: &Value, object: &Value) -> Vec<Violation> {
    all(schema, object, "", true)
}

/// The violations of a part of an object at `path`.
pub fn validate_part(schema: &Value, value: &Value, path: &str) -> Vec<Violation> {
    all(schema, value, path, false)
}

fn all(schema: &Value, value: &Value, path: &str, is_root: bool) -> Vec<Violation> {
    let broken = schema::validate(schema, value, None, Notation::Quoted);
    let mut left = value.clone();
    let mut dropped = schema::prune(schema, &mut left, is_root, Notation::Quoted);
    // What is in a value of the wrong type is not described by its schema.
    for violation in broken.iter().filter(|violation| matches!(violation.rule, Rule::Type(_))) {
        dropped.retain(|loss| {
            let inside = loss.path.strip_prefix(&violation.path);
            !inside.is_some_and(|rest| violation.path.is_empty() || rest.starts_with(['.', '[']))
        });
    }
    let violations = broken.iter().map(|violation| Violation {
        path: below(path, &violation.path),
        message: message(violation, path),
        is_loss: false,
    });
    let losses = dropped.iter().map(|loss| {
        let message = match loss.of {
            None => {
                "is dropped by the server: `additionalProperties: true` keeps no fields of objects".to_owned()
            }
            Some(of) => {
                let names = properties(of).into_iter().flatten().map(|(name, _)| name.as_str());
                match did_you_mean(&loss.name, names) {
                    Some(meant) => format!("is not in the schema; did you mean `{meant}`?"),
                    None => "is not in the schema".to_owned(),
                }
            }
        };
        Violation { path: below(path, &loss.path), message, is_loss: true }
    });
    violations.chain(losses).collect()
}

/// What is wrong with a value, without the value. `path` is that of the checked part.
fn message(violation: &schema::Violation<'_>, path: &str) -> String {
    match &violation.rule {
        Rule::Type(_) if violation.value.is_null() => "must not be null".to_owned(),
        Rule::Type(wanted) => {
            let wanted = match *wanted {
                "array" => "a list",
                "integer" => "an integer",
                "object" => "an object",
                "integer,string" => "an integer or a string",
                other => return format!("must be a {other}, is {}", noun(violation.value)),
            };
            format!("must be {wanted}, is {}", noun(violation.value))
        }
        Rule::Enum(choices) => {
            let choices =
                choices.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            format!("must be one of: {}", choices.collect::<Vec<_>>().join(", "))
        }
        Rule::Most(unit, most, have) => format!("must have at most {most} {}, has {have}", counted(*unit)),
        Rule::Least(unit, least, have) => format!("must have at least {least} {}, has {have}", counted(*unit)),
        Rule::Pattern(pattern) => format!("must match the pattern {pattern}"),
        Rule::Format(format) => {
            let wanted = match *format {
                "date-time" => "a time such as 2026-01-31T12:00:00Z",
                "date" => "a date such as 2026-01-31",
                "ipv4" => "an IPv4 address",
                "ipv6" => "an IPv6 address",
                "byte" => "base64",
                other => return format!("must have the format {other}"),
            };
            format!("must be {wanted}")
        }
        Rule::Range(_) => "is out of the range of its integer format".to_owned(),
        Rule::MultipleOf(factor) => format!("must be a multiple of {factor}"),
        Rule::Factor(_) => {
            "must have a fraction: the server compares a whole number with the whole part of `multipleOf`, which is 0"
                .to_owned()
        }
        Rule::Maximum(most, true) => format!("must be less than {most}"),
        Rule::Maximum(most, false) => format!("must be at most {most}"),
        Rule::Minimum(least, true) => format!("must be greater than {least}"),
        Rule::Minimum(least, false) => format!("must be at least {least}"),
        Rule::Duplicate(keys, first) => {
            let what = if keys.is_empty() { "value".to_owned() } else { keys.join(", ") };
            format!("has the same {what} as item {first}")
        }
        Rule::Required(false) => "is required".to_owned(),
        Rule::Required(true) => "is required: this field holds a whole Kubernetes object".to_owned(),
        Rule::Metadata => "must be an object".to_owned(),
        Rule::AnyOf(parts) => alternatives(violation, parts, path),
        Rule::OneOf(parts) => match parts.iter().filter(|part| part.is_empty()).count() {
            0 => alternatives(violation, parts, path),
            fitting => format!("fits {fitting} of the forms that exclude each other (oneOf)"),
        },
        Rule::Not => "has a form that the schema excludes (not)".to_owned(),
    }
}

/// The first violation of each form.
fn alternatives(whole: &schema::Violation<'_>, parts: &[Vec<schema::Violation<'_>>], path: &str) -> String {
    let mut why: Vec<String> = Vec::new();
    for first in parts.iter().filter_map(|part| part.first()) {
        let mut text = message(first, path);
        if first.path != whole.path {
            text = format!("{} {text}", below(path, &first.path));
        }
        if !why.contains(&text) {
            why.push(text);
        }
    }
    why.join(", or ")
}

fn counted(unit: Unit) -> &'static str {
    match unit {
        Unit::Characters => "characters",
        Unit::Items => "items",
        Unit::Properties => "fields",
    }
}

fn noun(value: &Value) -> &'static str {
    match type_of(value) {
        "boolean" => "a boolean",
        "integer" => "a number",
        "number" => "a number with a fraction",
        "string" => "a string",
        "array" => "a list",
        "object" => "an object",
        _ => "null",
    }
}
