//! Validates custom resources, with the texts of the API server.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::Regex;
use serde_json::{Map, Value};

use crate::decode::Path;
use crate::status::Fault;

/// What of a value breaks its schema. Faults have paths below `prefix`, which their messages do not name. What an update
/// has not changed is not checked.
pub(super) fn check(
    schema: &Value,
    value: &Value,
    old: Option<&Value>,
    is_root: bool,
    prefix: &'static str,
) -> Vec<Fault> {
    let mut walk = Walk { faults: Vec::new(), prefix };
    walk.value(schema, value, old, is_root, &Path::ROOT);
    walk.faults
}

/// The item of the old list that has the keys of `item`, if the list is a map.
pub(super) fn counterpart<'a>(schema: &Value, old: &'a Value, item: &Value) -> Option<&'a Value> {
    if schema["x-kubernetes-list-type"] != "map" {
        return None;
    }
    let keys = schema["x-kubernetes-list-map-keys"].as_array()?;
    let same = |old: &&Value| keys.iter().filter_map(Value::as_str).all(|key| old[key] == item[key]);
    old.as_array()?.iter().find(same)
}

struct Walk {
    faults: Vec<Fault>,
    prefix: &'static str,
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() && number.as_f64().is_some_and(|n| n.fract() != 0.0) => {
            "number"
        }
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Walk {
    /// The path of a fault.
    fn path(&self, name: &Path<'_>) -> String {
        let (prefix, name) = (self.prefix, name.exact());
        let dot = if prefix.is_empty() || name.is_empty() || name.starts_with('[') { "" } else { "." };
        format!("{prefix}{dot}{name}")
    }

    fn value(&mut self, schema: &Value, value: &Value, old: Option<&Value>, is_root: bool, name: &Path<'_>) {
        if old == Some(value) {
            return;
        }
        let int_or_string = schema["x-kubernetes-int-or-string"] == true;
        if value.is_null() && schema["nullable"] == true {
            return;
        }
        let found = type_of(value);
        if let Some(wanted) = schema["type"].as_str() {
            let fits = wanted == found || wanted == "number" && found == "integer";
            if !fits {
                let text = format!("{name} in body must be of type {wanted}: {found:?}");
                self.faults.push(Fault::type_invalid(self.path(name), found.into(), text));
                if wanted == "integer" && found == "number" {
                    let text = format!("Checked value must be of type integer (default format) in {name}");
                    self.faults.push(Fault::invalid("<nil>", "", text));
                }
                return;
            }
        } else if int_or_string && !matches!(found, "integer" | "string") {
            let text = format!("{name} in body must be of type integer,string: {found:?}");
            self.faults.push(Fault::type_invalid(self.path(name), found.into(), text));
            return;
        }
        if let Some(choices) = schema["enum"].as_array()
            && !choices.contains(value)
        {
            let choices: Vec<String> =
                choices.iter().map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned)).collect();
            let choices: Vec<&str> = choices.iter().map(String::as_str).collect();
            self.faults.push(Fault::not_supported(self.path(name), value.clone(), &choices));
        }
        match value {
            Value::String(text) => self.text(schema, text, name),
            Value::Number(_) => self.number(schema, value, name),
            Value::Array(items) => self.list(schema, items, old, name),
            Value::Object(map) => self.object(schema, map, old, is_root, name),
            _ => {}
        }
        self.combined(schema, value, name);
    }

    fn invalid(&mut self, name: &Path<'_>, value: &Value, text: String) {
        self.faults.push(Fault::invalid(self.path(name), value.clone(), text));
    }

    fn text(&mut self, schema: &Value, text: &str, name: &Path<'_>) {
        let length = text.chars().count() as u64;
        if let Some(most) = schema["maxLength"].as_u64().filter(|most| length > *most) {
            self.faults.push(Fault::too_long(self.path(name), format!("may not be more than {most} bytes")));
        } else if let Some(least) = schema["minLength"].as_u64().filter(|least| length < *least) {
            self.invalid(name, &text.into(), format!("{name} in body should be at least {least} chars long"));
        } else if let Some(pattern) = schema["pattern"].as_str()
            && !matches(pattern, text)
        {
            self.invalid(name, &text.into(), format!("{name} in body should match '{pattern}'"));
        }
        if let Some(format) = schema["format"].as_str().filter(|format| !fits_format(format, text)) {
            let detail = format!("{name} in body must be of type {format}: {text:?}");
            self.faults.push(Fault::type_invalid(self.path(name), text.into(), detail));
        }
    }

    fn number(&mut self, schema: &Value, value: &Value, name: &Path<'_>) {
        let Some(number) = value.as_f64() else { return };
        if let Some(factor) = schema["multipleOf"].as_f64() {
            if number == 0.0 {
                let text = format!("factor MultipleOf declared for {name} must be positive: 0");
                self.invalid(name, value, text);
            } else if (number / factor).fract().abs() > 1e-9 {
                self.invalid(name, value, format!("{name} in body should be a multiple of {factor}"));
            }
        }
        if let Some(most) = schema["maximum"].as_f64() {
            let exclusive = schema["exclusiveMaximum"] == true;
            if number > most || exclusive && number >= most {
                let what = if exclusive { "less than" } else { "less than or equal to" };
                self.invalid(name, value, format!("{name} in body should be {what} {most}"));
            }
        }
        if let Some(least) = schema["minimum"].as_f64() {
            let exclusive = schema["exclusiveMinimum"] == true;
            if number < least || exclusive && number <= least {
                let what = if exclusive { "greater than" } else { "greater than or equal to" };
                self.invalid(name, value, format!("{name} in body should be {what} {least}"));
            }
        }
    }

    fn list(&mut self, schema: &Value, items: &[Value], old: Option<&Value>, name: &Path<'_>) {
        let length = items.len();
        if let Some(most) = schema["maxItems"].as_u64().filter(|most| length as u64 > *most) {
            self.faults.push(Fault::too_many(self.path(name), length, most));
        }
        if let Some(least) = schema["minItems"].as_u64().filter(|least| (length as u64) < *least) {
            self.invalid(name, &length.into(), format!("{name} in body should have at least {least} items"));
        }
        let keys: Option<Vec<&str>> = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Some(Vec::new()),
            Some("map") => Some(
                schema["x-kubernetes-list-map-keys"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect(),
            ),
            _ => None,
        };
        if let Some(keys) = keys {
            let mut seen: Vec<Value> = Vec::new();
            for (at, item) in items.iter().enumerate() {
                let identity = if keys.is_empty() {
                    item.clone()
                } else {
                    let fields =
                        keys.iter().filter_map(|key| Some(((*key).to_owned(), item.get(key)?.clone())));
                    Value::Object(fields.collect())
                };
                if seen.contains(&identity) {
                    self.faults.push(Fault::duplicate(self.path(&name.index(at)), identity));
                } else {
                    seen.push(identity);
                }
            }
        }
        if schema["items"].is_object() {
            for (at, item) in items.iter().enumerate() {
                let old = old.and_then(|old| counterpart(schema, old, item));
                self.value(&schema["items"], item, old, false, &name.index(at));
            }
        }
    }

    fn object(
        &mut self,
        schema: &Value,
        map: &Map<String, Value>,
        old: Option<&Value>,
        is_root: bool,
        name: &Path<'_>,
    ) {
        let length = map.len();
        if let Some(most) = schema["maxProperties"].as_u64().filter(|most| length as u64 > *most) {
            self.faults.push(Fault::too_many(self.path(name), length, most));
        }
        if let Some(least) = schema["minProperties"].as_u64().filter(|least| (length as u64) < *least) {
            self.invalid(
                name,
                &length.into(),
                format!("{name} in body should have at least {least} properties"),
            );
        }
        for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(field) {
                self.faults.push(Fault::required(self.path(&name.field(field)), ""));
            }
        }
        let embedded = schema["x-kubernetes-embedded-resource"] == true;
        if embedded {
            for field in ["apiVersion", "kind"] {
                if map.get(field).and_then(Value::as_str).is_none_or(str::is_empty) {
                    self.faults.push(Fault::required(self.path(&name.field(field)), ""));
                }
            }
        }
        for (field, value) in map {
            if is_root && ["apiVersion", "kind", "metadata"].contains(&field.as_str()) {
                continue;
            }
            let below = schema["properties"].get(field);
            let below = below.or_else(|| Some(&schema["additionalProperties"]).filter(|s| s.is_object()));
            if let Some(below) = below {
                let old = old.and_then(|old| old.get(field));
                self.value(below, value, old, false, &name.field(field));
            }
        }
    }

    fn combined(&mut self, schema: &Value, value: &Value, name: &Path<'_>) {
        let parts = |key: &str| schema[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let prefix = self.prefix;
        let faults = |part: &Value| {
            let mut walk = Walk { faults: Vec::new(), prefix };
            walk.value(part, value, None, false, name);
            walk.faults
        };
        for part in parts("allOf") {
            self.faults.extend(faults(part));
        }
        let all = parts("anyOf");
        if !all.is_empty() && all.iter().all(|part| !faults(part).is_empty()) {
            let text = format!("\"{name}\" must validate at least one schema (anyOf)");
            self.faults.push(Fault::invalid("<nil>", "", text));
            self.faults.extend(all.first().map(faults).unwrap_or_default());
        }
        let all = parts("oneOf");
        let valid = all.iter().filter(|part| faults(part).is_empty()).count();
        if !all.is_empty() && valid != 1 {
            let what = if valid == 0 {
                "Found none valid".to_owned()
            } else {
                format!("Found {valid} valid alternatives")
            };
            let text = format!("\"{name}\" must validate one and only one schema (oneOf). {what}");
            self.faults.push(Fault::invalid("<nil>", "", text));
            if valid == 0 {
                self.faults.extend(all.first().map(faults).unwrap_or_default());
            }
        }
        if schema["not"].is_object() && faults(&schema["not"]).is_empty() {
            let text = format!("\"{name}\" must not validate the schema (not)");
            self.faults.push(Fault::invalid("<nil>", "", text));
        }
    }
}

/// Whether a text matches a pattern. A pattern that cannot be compiled matches everything.
fn matches(pattern: &str, text: &str) -> bool {
    thread_local! {
        // Compiling takes thousands of times as long as matching.
        static COMPILED: RefCell<HashMap<String, Option<Regex>>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|known| {
        let regex = known.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).ok());
        regex.as_ref().is_none_or(|regex| regex.is_match(text))
    })
}

fn fits_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" => text.contains(['T', 't']) && text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "byte" => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        _ => true,
    }
}
