//! Which values break the schema of a custom resource, by the rules and with the texts of the API server.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::path::{Notation, Path, below};
use super::{Counterparts, field, formats, is_embedded, is_int_or_string, list_keys, pattern};
use crate::Fault;
use crate::fields::same;

/// A value that breaks its schema.
#[derive(Debug)]
pub struct Violation<'a> {
    /// The path of the value; of a field that is missing, its own.
    pub path: String,
    /// The value, or the object that lacks the field.
    pub value: &'a Value,
    /// What it breaks.
    pub rule: Rule<'a>,
}

/// A rule that a value breaks.
#[derive(Debug)]
pub enum Rule<'a> {
    /// It must have this type: a word of schemas, or `integer,string`.
    Type(&'a str),
    /// It must be one of these.
    Enum(&'a [Value]),
    /// It must not be longer.
    Most(Unit, u64, usize),
    /// It must not be shorter.
    Least(Unit, u64, usize),
    /// The text must match this pattern.
    Pattern(&'a str),
    /// The text must have this format.
    Format(&'a str),
    /// This number is not whole, or out of the range of this format or of 64 bits: the checked one, or a limit of the schema, with
    /// which no value fits.
    Range(&'static str, Option<&'a str>),
    /// It must be a multiple of this number.
    MultipleOf(f64),
    /// Whole numbers are compared with the whole part of the factor, which is this and must be positive.
    Factor(f64),
    /// It must not be greater than this number, or not equal to it either.
    Maximum(f64, bool),
    /// It must not be less than this number, or not equal to it either.
    Minimum(f64, bool),
    /// It has the same value of these keys as the item at that index; without keys it is the same.
    Duplicate(Vec<&'a str>, usize),
    /// The object must have the field. It is a whole object inside of another one if that is true.
    Required(bool),
    /// The metadata of a whole object must be an object.
    Metadata,
    /// It must fit one of the schemas at least; what it breaks of each.
    AnyOf(Vec<Vec<Violation<'a>>>),
    /// It must fit exactly one of the schemas; what it breaks of each.
    OneOf(Vec<Vec<Violation<'a>>>),
    /// It must not fit a schema.
    Not,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// The characters of a text.
    Characters,
    /// The items of a list.
    Items,
    /// The fields of an object.
    Properties,
}

/// What of a value breaks its schema. What an update has not changed of `old` is not checked, and no list for duplicates if one
/// of `old` has any. Defaults must have been set, and unknown fields removed.
pub fn validate<'a>(
    schema: &'a Value,
    value: &'a Value,
    old: Option<&Value>,
    notation: Notation,
) -> Vec<Violation<'a>> {
    let mut walk = Walk { found: Vec::new(), notation };
    walk.value(schema, value, old, &Path::ROOT);
    if let Some(old) = old
        && walk.found.iter().any(is_duplicate)
        && validate(schema, old, None, notation).iter().any(is_duplicate)
    {
        walk.found.retain(|violation| !is_duplicate(violation));
    }
    walk.found
}

fn is_duplicate(violation: &Violation<'_>) -> bool {
    matches!(violation.rule, Rule::Duplicate(..))
}

/// The type of a value, as schemas name it.
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        // Go reads a number beyond 64 bits as a float. A float is an integer only while floats distinguish all integers.
        Value::Number(number) => {
            let is_safe = |float: f64| float.fract() == 0.0 && float.abs() < 2_f64.powi(53);
            let is_integer = number.as_i64().is_some() || number.as_f64().is_some_and(is_safe);
            if is_integer { "integer" } else { "number" }
        }
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a number is whole and has so many bits.
fn is_whole(number: f64, bits: i32) -> bool {
    let most = 2_f64.powi(bits - 1);
    number.fract() == 0.0 && (-most..most).contains(&number)
}

/// The type that a value should have, if it has another one.
fn wanted<'a>(schema: &'a Value, value: &Value) -> Option<&'a str> {
    let wanted = match schema["type"].as_str() {
        None | Some("") if is_int_or_string(schema) => "integer,string",
        wanted => wanted?,
    };
    if value.is_null() && schema["nullable"] == true {
        return None;
    }
    let found = type_of(value);
    let fits = match wanted {
        "integer,string" => matches!(found, "integer" | "string"),
        "number" => matches!(found, "integer" | "number"),
        "array" | "boolean" | "integer" | "object" | "string" => wanted == found,
        _ => true,
    };
    (!fits).then_some(wanted)
}

struct Walk<'a> {
    found: Vec<Violation<'a>>,
    notation: Notation,
}

impl<'a> Walk<'a> {
    fn report(&mut self, path: &Path<'_>, value: &'a Value, rule: Rule<'a>) {
        self.found.push(Violation { path: path.show(self.notation), value, rule });
    }

    fn value(&mut self, schema: &'a Value, value: &'a Value, old: Option<&Value>, path: &Path<'_>) {
        if old == Some(value) {
            return;
        }
        if let Some(wanted) = wanted(schema, value) {
            return self.report(path, value, Rule::Type(wanted));
        }
        if let Some(choices) = schema["enum"].as_array()
            && !choices.is_empty()
            && !choices.iter().any(|choice| choice == value || value.is_number() && same(choice, value))
        {
            self.report(path, value, Rule::Enum(choices));
        }
        match value {
            Value::Null => return,
            Value::Bool(_) => {}
            Value::String(text) => self.text(schema, value, text, path),
            Value::Number(_) => self.number(schema, value, path),
            Value::Array(items) => self.list(schema, value, items, old, path),
            Value::Object(map) => self.object(schema, value, map, old, path),
        }
        self.combined(schema, value, path);
    }

    fn size(&mut self, schema: &'a Value, value: &'a Value, (unit, have): (Unit, usize), path: &Path<'_>) {
        let (least, most) = match unit {
            Unit::Characters => ("minLength", "maxLength"),
            Unit::Items => ("minItems", "maxItems"),
            Unit::Properties => ("minProperties", "maxProperties"),
        };
        if let Some(most) = schema[most].as_u64().filter(|most| have as u64 > *most) {
            self.report(path, value, Rule::Most(unit, most, have));
        }
        if let Some(least) = schema[least].as_u64().filter(|least| (have as u64) < *least) {
            self.report(path, value, Rule::Least(unit, least, have));
        }
    }

    fn text(&mut self, schema: &'a Value, value: &'a Value, text: &str, path: &Path<'_>) {
        let before = self.found.len();
        self.size(schema, value, (Unit::Characters, text.chars().count()), path);
        if let Some(pattern) = schema["pattern"].as_str()
            && self.found.len() == before
            && !pattern::matches(pattern, text)
        {
            self.report(path, value, Rule::Pattern(pattern));
        }
        if let Some(format) = schema["format"].as_str().filter(|format| !formats::fits(format, text)) {
            self.report(path, value, Rule::Format(format));
        }
    }

    fn number(&mut self, schema: &'a Value, value: &'a Value, path: &Path<'_>) {
        let Some(number) = value.as_f64() else { return };
        let format = schema["format"].as_str();
        // Others of 64 bits are of another type.
        if schema["type"] == "integer" && format == Some("int32") && !is_whole(number, 32) {
            self.report(path, value, Rule::Range("Checked", format));
        }
        if let Some(factor) = self.limit(schema, value, ("multipleOf", "MultipleOf"), path) {
            let quotient = number / factor;
            if factor <= 0.0 {
                self.report(path, value, Rule::Factor(factor));
            } else if (quotient - quotient.round()).abs() > 1e-9 {
                self.report(path, value, Rule::MultipleOf(factor));
            }
        }
        if let Some(most) = self.limit(schema, value, ("maximum", "Maximum boundary"), path) {
            let exclusive = schema["exclusiveMaximum"] == true;
            if number > most || exclusive && number >= most {
                self.report(path, value, Rule::Maximum(most, exclusive));
            }
        }
        if let Some(least) = self.limit(schema, value, ("minimum", "Minimum boundary"), path) {
            let exclusive = schema["exclusiveMinimum"] == true;
            if number < least || exclusive && number <= least {
                self.report(path, value, Rule::Minimum(least, exclusive));
            }
        }
    }

    /// What a number is compared with. The API server cuts it for whole numbers. If it does not have the type of the schema, the server
    /// refuses every value, and still compares.
    fn limit(
        &mut self,
        schema: &'a Value,
        value: &'a Value,
        (key, name): (&str, &'static str),
        path: &Path<'_>,
    ) -> Option<f64> {
        let limit = schema[key].as_f64()?;
        let format = schema["format"].as_str();
        let bits = if format == Some("int32") { 32 } else { 64 };
        // The largest integer is read as the float above it.
        let is_largest = bits == 64 && limit.to_bits() == 2_f64.powi(63).to_bits();
        let is_refused = schema["type"] == "integer" && !is_whole(limit, bits) && !is_largest;
        if is_refused {
            self.report(path, value, Rule::Range(name, format));
        }
        Some(if is_refused || value.is_f64() { limit } else { limit.trunc() })
    }

    fn list(
        &mut self,
        schema: &'a Value,
        value: &'a Value,
        items: &'a [Value],
        old: Option<&Value>,
        path: &Path<'_>,
    ) {
        self.size(schema, value, (Unit::Items, items.len()), path);
        let keys: Option<Vec<&str>> = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Some(Vec::new()),
            Some("map") => Some(list_keys(schema).collect()),
            _ => None,
        };
        if let Some(keys) = keys {
            let mut seen: HashMap<Vec<Option<&Value>>, usize> = HashMap::new();
            for (at, item) in items.iter().enumerate() {
                let own = keys.iter().map(|key| item.get(*key));
                let identity = if keys.is_empty() { vec![Some(item)] } else { own.collect() };
                let first = *seen.entry(identity).or_insert(at);
                if first != at {
                    self.report(&path.index(at), item, Rule::Duplicate(keys.clone(), first));
                }
            }
        }
        if let Some(below) = schema.get("items").filter(|below| below.is_object()) {
            let counterparts = Counterparts::new(schema, old);
            for (at, item) in items.iter().enumerate() {
                self.value(below, item, counterparts.of(item), &path.index(at));
            }
        }
    }

    fn object(
        &mut self,
        schema: &'a Value,
        value: &'a Value,
        map: &'a Map<String, Value>,
        old: Option<&Value>,
        path: &Path<'_>,
    ) {
        self.size(schema, value, (Unit::Properties, map.len()), path);
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(name) {
                self.report(&path.field(name), value, Rule::Required(false));
            }
        }
        if is_embedded(schema) {
            for name in ["apiVersion", "kind"] {
                if map.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
                    self.report(&path.field(name), value, Rule::Required(true));
                }
            }
            if let Some(metadata) = map.get("metadata").filter(|metadata| !metadata.is_object()) {
                self.report(&path.field("metadata"), metadata, Rule::Metadata);
            }
        }
        for (name, value) in map {
            if let Some(below) = field(schema, name) {
                self.value(below, value, old.and_then(|old| old.get(name)), &path.field(name));
            }
        }
    }

    fn combined(&mut self, schema: &'a Value, value: &'a Value, path: &Path<'_>) {
        let notation = self.notation;
        let broken = |part: &'a Value| {
            let mut walk = Walk { found: Vec::new(), notation };
            walk.value(part, value, None, path);
            walk.found
        };
        let parts = |key: &str| schema[key].as_array().map(Vec::as_slice).unwrap_or_default();
        self.found.extend(parts("allOf").iter().flat_map(broken));
        let any: Vec<_> = parts("anyOf").iter().map(broken).collect();
        if !any.is_empty() && !any.iter().any(Vec::is_empty) {
            self.report(path, value, Rule::AnyOf(any));
        }
        let one: Vec<_> = parts("oneOf").iter().map(broken).collect();
        if !one.is_empty() && one.iter().filter(|part| part.is_empty()).count() != 1 {
            self.report(path, value, Rule::OneOf(one));
        }
        if let Some(not) = schema.get("not").filter(|not| not.is_object())
            && broken(not).is_empty()
        {
            self.report(path, value, Rule::Not);
        }
    }
}

impl Violation<'_> {
    /// The causes with which the API server refuses the object. `prefix` is the path of the checked value, which their texts do
    /// not name.
    pub fn faults(&self, prefix: &str) -> Vec<Fault> {
        let (name, path) = (&self.path, below(prefix, &self.path));
        let found = type_of(self.value);
        let invalid = |value: Value, text: String| Fault::invalid(path.clone(), value, text);
        let body = |text: String| invalid(self.value.clone(), format!("{name} in body should {text}"));
        let wrong = |wanted: &str, found: &str| {
            let text = format!("{name} in body must be of type {wanted}: {found:?}");
            Fault::type_invalid(path.clone(), found.into(), text)
        };
        let range = |what: &str, format: Option<&str>| {
            let format =
                format.map_or("(default format)".to_owned(), |format| format!("with format {format}"));
            let text = format!("{what} value must be of type integer {format} in {name}");
            Fault::invalid("<nil>", "", text)
        };
        // Faults of several schemas have no path.
        let several = |text: String| Fault::invalid("<nil>", "", format!("\"{name}\" must {text}"));
        let first = |parts: &[Vec<Violation<'_>>]| -> Vec<Fault> {
            parts.first().into_iter().flatten().flat_map(|violation| violation.faults(prefix)).collect()
        };
        let one = match &self.rule {
            Rule::Type("integer") if found == "number" => {
                let is_whole = self.value.as_f64().is_some_and(|number| is_whole(number, 64));
                let range = (!is_whole).then(|| range("Checked", None));
                return std::iter::once(wrong("integer", found)).chain(range).collect();
            }
            Rule::Type(wanted) => wrong(wanted, found),
            Rule::Enum(choices) => {
                let choices: Vec<String> =
                    choices.iter().map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned)).collect();
                let choices: Vec<&str> = choices.iter().map(String::as_str).collect();
                Fault::not_supported(path.clone(), self.value.clone(), &choices)
            }
            Rule::Most(Unit::Characters, most, _) => {
                Fault::too_long(path.clone(), format!("may not be more than {most} bytes"))
            }
            Rule::Most(_, most, have) => Fault::too_many(path.clone(), *have, *most),
            Rule::Least(Unit::Characters, least, _) => body(format!("be at least {least} chars long")),
            Rule::Least(unit, least, have) => {
                let what = if *unit == Unit::Items { "items" } else { "properties" };
                invalid((*have).into(), format!("{name} in body should have at least {least} {what}"))
            }
            Rule::Pattern(pattern) => body(format!("match '{pattern}'")),
            Rule::Format(format) => wrong(format, self.value.as_str().unwrap_or_default()),
            Rule::Range(what, format) => range(what, *format),
            Rule::MultipleOf(factor) => body(format!("be a multiple of {factor}")),
            Rule::Factor(factor) => invalid(
                self.value.clone(),
                format!("factor MultipleOf declared for {name} must be positive: {factor}"),
            ),
            Rule::Maximum(most, true) => body(format!("be less than {most}")),
            Rule::Maximum(most, false) => body(format!("be less than or equal to {most}")),
            Rule::Minimum(least, true) => body(format!("be greater than {least}")),
            Rule::Minimum(least, false) => body(format!("be greater than or equal to {least}")),
            Rule::Duplicate(keys, _) if keys.is_empty() => Fault::duplicate(path.clone(), self.value.clone()),
            Rule::Duplicate(keys, _) => {
                let own =
                    keys.iter().filter_map(|key| Some(((*key).to_owned(), self.value.get(*key)?.clone())));
                Fault::duplicate(path.clone(), own.collect::<Map<String, Value>>())
            }
            Rule::Required(_) => Fault::required(path.clone(), ""),
            Rule::Metadata => wrong("object", found),
            Rule::AnyOf(parts) => {
                let whole = several("validate at least one schema (anyOf)".to_owned());
                return [vec![whole], first(parts)].concat();
            }
            Rule::OneOf(parts) => {
                let valid = parts.iter().filter(|part| part.is_empty()).count();
                let (how, rest) = match valid {
                    0 => ("Found none valid".to_owned(), first(parts)),
                    _ => (format!("Found {valid} valid alternatives"), Vec::new()),
                };
                let whole = several(format!("validate one and only one schema (oneOf). {how}"));
                return [vec![whole], rest].concat();
            }
            Rule::Not => several("not validate the schema (not)".to_owned()),
        };
        vec![one]
    }
}

#[cfg(test)]
mod tests;
