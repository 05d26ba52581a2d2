//! Validates an object against its schema. Messages never contain values.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use regex::Regex;
use serde_json::{Map, Value};

use super::{OBJECT_FIELDS, OtherKeys, is_embedded, is_int_or_string, join, other_keys, pattern, properties};
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
    Validator::all(schema, object, ("", true), &Patterns::default())
}

/// The violations of a part of an object at `path`.
pub fn validate_part(schema: &Value, value: &Value, path: &str) -> Vec<Violation> {
    Validator::all(schema, value, (path, false), &Patterns::default())
}

/// Whether a part of an object has no violations. The patterns of the schema are compiled only once.
pub(super) fn fits(schema: &Value, value: &Value, patterns: &Patterns) -> bool {
    Validator::all(schema, value, ("", false), patterns).is_empty()
}

/// Compiled patterns. Compiling one takes thousands of times as long as matching a short text.
#[derive(Debug, Clone, Default)]
pub(super) struct Patterns(Arc<Mutex<HashMap<String, Option<Regex>>>>);

impl Patterns {
    fn get(&self, pattern: &str) -> Option<Regex> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(matcher) = known.get(pattern) {
            return matcher.clone();
        }
        let matcher = pattern::compile(pattern);
        known.insert(pattern.to_owned(), matcher.clone());
        matcher
    }

    /// The number of compiled patterns.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// All caches are equal, because their content follows from the schema.
impl PartialEq for Patterns {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

struct Validator<'p> {
    found: Vec<Violation>,
    patterns: &'p Patterns,
}

impl<'p> Validator<'p> {
    fn all(
        schema: &Value,
        value: &Value,
        (path, is_root): (&str, bool),
        patterns: &'p Patterns,
    ) -> Vec<Violation> {
        let mut validator = Self { found: Vec::new(), patterns };
        validator.structure(schema, value, path, is_root);
        validator.found
    }

    fn report(&mut self, path: &str, message: impl Into<String>) {
        self.found.push(Violation { path: path.to_owned(), message: message.into(), is_loss: false });
    }

    fn report_loss(&mut self, path: &str, message: impl Into<String>) {
        self.found.push(Violation { path: path.to_owned(), message: message.into(), is_loss: true });
    }

    /// Checks the structural schema: which fields may exist, and their rules.
    fn structure(&mut self, schema: &Value, value: &Value, path: &str, is_root: bool) {
        self.rules(schema, value, path);
        if type_fault(schema, value).is_some() {
            return;
        }
        match value {
            Value::Object(map) => self.fields(schema, map, path, is_root),
            Value::Array(items) => {
                if let Some(schema) = schema.get("items") {
                    for (index, item) in items.iter().enumerate() {
                        self.structure(schema, item, &format!("{path}[{index}]"), false);
                    }
                }
            }
            _ => {}
        }
    }

    fn fields(&mut self, schema: &Value, map: &Map<String, Value>, path: &str, is_root: bool) {
        let whole_object = is_root || is_embedded(schema);
        if !is_root && whole_object {
            for name in ["apiVersion", "kind"] {
                if map.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
                    self.report(&join(path, name), "is required: this field holds a whole Kubernetes object");
                }
            }
            if map.get("metadata").is_some_and(|metadata| !metadata.is_object()) {
                self.report(&join(path, "metadata"), "must be an object");
            }
        }
        let known = properties(schema);
        for (name, value) in map {
            let below = known.and_then(|known| known.get(name));
            if whole_object && OBJECT_FIELDS.contains(&name.as_str()) {
                // A schema of metadata can only restrict name and generateName; the other fields are always
                // known.
                if let Some(below) = below {
                    self.nested(below, value, &join(path, name));
                }
                continue;
            }
            match (below, other_keys(schema)) {
                (Some(below), _) | (None, OtherKeys::Schema(below)) => {
                    self.structure(below, value, &join(path, name), false);
                }
                (None, OtherKeys::Open) => {}
                (None, OtherKeys::Shallow) => self.emptied(value, &join(path, name)),
                (None, OtherKeys::Closed) => {
                    let names = known.into_iter().flatten().map(|(name, _)| name.as_str());
                    let message = match did_you_mean(name, names) {
                        Some(meant) => format!("is not in the schema; did you mean `{meant}`?"),
                        None => "is not in the schema".to_owned(),
                    };
                    self.report_loss(&join(path, name), message);
                }
            }
        }
    }

    /// Reports fields below a field that only `additionalProperties: true` allows.
    fn emptied(&mut self, value: &Value, path: &str) {
        match value {
            Value::Object(map) => {
                for name in map.keys() {
                    let message =
                        "is dropped by the server: `additionalProperties: true` keeps no fields of objects";
                    self.report_loss(&join(path, name), message);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.emptied(item, &format!("{path}[{index}]"));
                }
            }
            _ => {}
        }
    }

    /// Checks a schema that only restricts: below allOf, anyOf, oneOf, not.
    fn nested(&mut self, schema: &Value, value: &Value, path: &str) {
        self.rules(schema, value, path);
        match value {
            Value::Object(map) => {
                let known = properties(schema);
                for (name, value) in map {
                    let below = known.and_then(|known| known.get(name));
                    let below =
                        below.or_else(|| schema.get("additionalProperties").filter(|s| s.is_object()));
                    if let Some(below) = below {
                        self.nested(below, value, &join(path, name));
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = schema.get("items") {
                    for (index, item) in items.iter().enumerate() {
                        self.nested(schema, item, &format!("{path}[{index}]"));
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks the rules for a value itself, not for its content.
    fn rules(&mut self, schema: &Value, value: &Value, path: &str) {
        if let Some(fault) = type_fault(schema, value) {
            self.report(path, fault);
            return;
        }
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
            && !allowed.contains(value)
        {
            let allowed: Vec<String> = allowed
                .iter()
                .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                .collect();
            self.report(path, format!("must be one of: {}", allowed.join(", ")));
        }
        match value {
            Value::Number(_) => self.number(schema, value, path),
            Value::String(text) => self.string(schema, text, path),
            Value::Array(items) => self.list(schema, items, path),
            Value::Object(map) => self.object(schema, map, path),
            _ => {}
        }
        self.combined(schema, value, path);
    }

    fn number(&mut self, schema: &Value, value: &Value, path: &str) {
        let Some(number) = value.as_f64() else { return };
        let limit = |name: &str| schema.get(name).and_then(Value::as_f64);
        let excluded = |name: &str| schema.get(name) == Some(&Value::Bool(true));
        if let Some(minimum) = limit("minimum") {
            if excluded("exclusiveMinimum") && number <= minimum {
                self.report(path, format!("must be greater than {minimum}"));
            } else if number < minimum {
                self.report(path, format!("must be at least {minimum}"));
            }
        }
        if let Some(maximum) = limit("maximum") {
            if excluded("exclusiveMaximum") && number >= maximum {
                self.report(path, format!("must be less than {maximum}"));
            } else if number > maximum {
                self.report(path, format!("must be at most {maximum}"));
            }
        }
        if let Some(factor) = limit("multipleOf")
            && factor > 0.0
        {
            let quotient = number / factor;
            if (quotient - quotient.round()).abs() > 1e-9 {
                self.report(path, format!("must be a multiple of {factor}"));
            }
        }
        let range = match schema.get("format").and_then(Value::as_str) {
            Some("int32") => value.as_i64().is_none_or(|number| i32::try_from(number).is_ok()),
            Some("int64") => value.as_u64().is_none_or(|number| i64::try_from(number).is_ok()),
            _ => true,
        };
        if !range && type_name(schema) == Some("integer") {
            self.report(path, "is out of the range of its integer format");
        }
    }

    fn string(&mut self, schema: &Value, text: &str, path: &str) {
        self.size(schema, text.chars().count(), ("minLength", "maxLength"), "characters", path);
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && self.patterns.get(pattern).is_some_and(|matcher| !matcher.is_match(text))
        {
            self.report(path, format!("must match the pattern {pattern}"));
        }
        let wanted = match schema.get("format").and_then(Value::as_str) {
            Some("date-time") if !is_date_time(text) => "a time such as 2026-01-31T12:00:00Z",
            Some("date") if !is_date(text) => "a date such as 2026-01-31",
            Some("ipv4") if text.parse::<std::net::Ipv4Addr>().is_err() => "an IPv4 address",
            Some("ipv6") if text.parse::<std::net::Ipv6Addr>().is_err() => "an IPv6 address",
            _ => return,
        };
        self.report(path, format!("must be {wanted}"));
    }

    fn list(&mut self, schema: &Value, items: &[Value], path: &str) {
        self.size(schema, items.len(), ("minItems", "maxItems"), "items", path);
        let keys: Vec<&str> = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("set") => Vec::new(),
            Some("map") => {
                let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                keys.into_iter().flatten().filter_map(Value::as_str).collect()
            }
            _ => return,
        };
        let mut seen = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            let identity = if keys.is_empty() {
                item.to_string()
            } else {
                keys.iter().map(|key| item.get(key).unwrap_or(&Value::Null).to_string() + "\n").collect()
            };
            if let Some(first) = seen.insert(identity, index) {
                let what = if keys.is_empty() { "value".to_owned() } else { keys.join(", ") };
                self.report(&format!("{path}[{index}]"), format!("has the same {what} as item {first}"));
            }
        }
    }

    fn object(&mut self, schema: &Value, map: &Map<String, Value>, path: &str) {
        self.size(schema, map.len(), ("minProperties", "maxProperties"), "fields", path);
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(name) {
                self.report(&join(path, name), "is required");
            }
        }
    }

    fn size(&mut self, schema: &Value, have: usize, (least, most): (&str, &str), what: &str, path: &str) {
        let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
        let have = have as u64;
        if let Some(least) = limit(least)
            && have < least
        {
            self.report(path, format!("must have at least {least} {what}, has {have}"));
        }
        if let Some(most) = limit(most)
            && have > most
        {
            self.report(path, format!("must have at most {most} {what}, has {have}"));
        }
    }

    fn combined(&mut self, schema: &Value, value: &Value, path: &str) {
        let list =
            |name: &str| schema.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for part in list("allOf") {
            self.nested(part, value, path);
        }
        let patterns = self.patterns;
        let faults = |part: &Value| {
            let mut validator = Validator { found: Vec::new(), patterns };
            validator.nested(part, value, path);
            validator.found
        };
        for (name, exactly) in [("anyOf", false), ("oneOf", true)] {
            let parts: Vec<Vec<Violation>> = list(name).iter().map(faults).collect();
            let fitting = parts.iter().filter(|faults| faults.is_empty()).count();
            if parts.is_empty() || fitting == 1 || (fitting > 1 && !exactly) {
                continue;
            }
            if fitting > 1 {
                self.report(path, format!("fits {fitting} of the forms that exclude each other ({name})"));
                continue;
            }
            let mut why: Vec<String> = Vec::new();
            for fault in parts.iter().filter_map(|faults| faults.first()) {
                let text = if fault.path == path {
                    fault.message.clone()
                } else {
                    format!("{} {}", fault.path, fault.message)
                };
                if !why.contains(&text) {
                    why.push(text);
                }
            }
            self.report(path, why.join(", or "));
        }
        if let Some(not) = schema.get("not").filter(|not| not.is_object())
            && faults(not).is_empty()
        {
            self.report(path, "has a form that the schema excludes (not)");
        }
    }
}

fn type_name(schema: &Value) -> Option<&str> {
    schema.get("type").and_then(Value::as_str).filter(|name| !name.is_empty())
}

/// The error about the type of a value, if it has the wrong type.
fn type_fault(schema: &Value, value: &Value) -> Option<String> {
    if value.is_null() {
        let allowed = schema.get("nullable") == Some(&Value::Bool(true));
        return (!allowed && type_name(schema).is_some()).then(|| "must not be null".to_owned());
    }
    let whole = |number: &serde_json::Number| {
        number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
    };
    if is_int_or_string(schema) {
        let fits = match value {
            Value::String(_) => true,
            Value::Number(number) => whole(number),
            _ => false,
        };
        return (!fits).then(|| format!("must be an integer or a string, is {}", noun(value)));
    }
    let wanted = type_name(schema)?;
    let (fits, article) = match (wanted, value) {
        ("integer", Value::Number(number)) => (whole(number), "an"),
        ("object", Value::Object(_))
        | ("array", Value::Array(_))
        | ("string", Value::String(_))
        | ("boolean", Value::Bool(_))
        | ("number", Value::Number(_)) => (true, "a"),
        ("object" | "array" | "integer", _) => (false, "an"),
        ("string" | "boolean" | "number", _) => (false, "a"),
        // An unknown type, which `check` reports.
        _ => (true, "a"),
    };
    let name = if wanted == "array" { "list" } else { wanted };
    let article = if wanted == "array" { "a" } else { article };
    (!fits).then(|| format!("must be {article} {name}, is {}", noun(value)))
}

fn noun(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Whether a text is a date such as `2026-01-31`.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |part: &str, digits: usize, range: std::ops::RangeInclusive<u32>| {
        part.len() == digits
            && part.bytes().all(|b| b.is_ascii_digit())
            && part.parse().is_ok_and(|number| range.contains(&number))
    };
    matches!(parts[..], [year, month, day] if number(year, 4, 0..=9999) && number(month, 2, 1..=12) && number(day, 2, 1..=31))
}

/// A rough check for a time of RFC 3339: a date, then a time with its zone.
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't', ' ']) else { return false };
    let zone = time.find(['Z', 'z', '+', '-']);
    let Some((clock, zone)) = zone.map(|at| time.split_at(at)) else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let clock: Vec<&str> = seconds.split(':').collect();
    let clock_fits =
        clock.len() == 3 && clock.iter().all(|part| part.len() == 2 && digits(part)) && digits(fraction);
    let zone_fits = zone.eq_ignore_ascii_case("z")
        || matches!(zone[1..].split_once(':'), Some((hours, minutes)) if digits(hours) && digits(minutes));
    is_date(date) && clock_fits && zone_fits
}
