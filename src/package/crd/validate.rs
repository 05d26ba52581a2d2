//! Validates an object against its schema. Messages never contain values.

use std::collections::HashSet;

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
    let mistyped = broken.iter().filter(|violation| matches!(violation.rule, Rule::Type(_)));
    let mistyped: HashSet<&str> = mistyped.map(|violation| &*violation.path).collect();
    if !mistyped.is_empty() {
        dropped.retain(|loss| !around(&loss.path).any(|path| mistyped.contains(path)));
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

/// The paths of the values that a value is in. They are not more than the value is deep: what is in quotes is one name.
fn around(path: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let steps = path.char_indices().filter(move |&(_, c)| {
        let is_quote = c == '"' && !is_escaped;
        is_escaped = is_quoted && c == '\\' && !is_escaped;
        is_quoted ^= is_quote;
        !is_quoted && matches!(c, '.' | '[')
    });
    std::iter::once("").chain(steps.map(move |(at, _)| &path[..at]))
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
        Rule::Range("Checked", _) => "is out of the range of its integer format".to_owned(),
        Rule::Range(limit, _) => {
            format!("is refused, as every number: {limit} of its schema is not of its integer format")
        }
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
        "number" if value.as_f64().is_some_and(|number| number.fract() == 0.0) => {
            "a number too large for an integer"
        }
        "number" => "a number with a fraction",
        "string" => "a string",
        "array" => "a list",
        "object" => "an object",
        _ => "null",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_in_quotes_are_one_step() {
        let paths: Vec<&str> = around(r#"a["b.c\"[d"].e[0]"#).collect();
        assert_eq!(paths, ["", "a", r#"a["b.c\"[d"]"#, r#"a["b.c\"[d"].e"#]);
        assert_eq!(around(&format!("a[\"{}\"]", ".".repeat(1000))).count(), 2);
    }

    #[test]
    fn losses_in_values_of_the_wrong_type_are_found_in_linear_time() {
        let schema = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let map: serde_json::Map<_, _> = (0..100_000).map(|at| (format!("k{at}"), json!({"x": 1}))).collect();
        let start = std::time::Instant::now();
        let found = validate(&schema, &Value::from(map));
        assert_eq!(found.len(), 100_000);
        assert!(found.iter().all(|violation| !violation.is_loss));
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
