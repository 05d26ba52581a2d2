//! Stable names for what differs between two runs: uids, versions, times, addresses, generated names.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// The names of one side.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names {
    known: BTreeMap<String, String>,
}

static PATTERNS: LazyLock<[(Regex, &str); 16]> = LazyLock::new(|| {
    [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "uid"),
        (r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z", "time"),
        (r"10\.96\.[0-9]+\.[0-9]+", "ip"),
        (r"generated-[bcdfghjklmnpqrstvwxz2456789]{5}", "generated"),
        (r#"patch: Invalid value: \"(\\.|[^\"\\])*\""#, "patched"),
        (r#"^Invalid value: \"(\{|map\[)(\\.|[^\"\\])*\""#, "patched"),
        (r"compilation failed: (.|\n)*", "why"),
        (r"yaml: line [0-9]+: .*", "why"),
        (r"continue key is not valid: .*", "why"),
        (r"(error decoding patch|json parse error): .*", "why"),
        (r"in record \([0-9]+\)", "why"),
        (r"\n@@ (.|\n)*", ""),
        (r"Invalid value: \{.*\}: field is immutable", "struct"),
        (r"^[0-9]+s$", "age"),
        (r"^127.0.0.1:[0-9]+$", "address"),
        (r"kube-api-access-[bcdfghjklmnpqrstvwxz2456789]{5}", "token-volume"),
    ]
    .map(|(pattern, name)| (Regex::new(pattern).unwrap(), name))
});

impl Names {
    fn name(&mut self, kind: &str, value: &str) -> String {
        if kind.is_empty() {
            return String::new();
        }
        if ["time", "patched", "why", "struct", "age", "address"].contains(&kind) {
            return format!("<{kind}>");
        }
        let key = format!("{kind} {value}");
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let number = self.known.keys().filter(|key| key.starts_with(kind)).count() + 1;
        self.known.entry(key).or_insert(format!("<{kind}-{number}>")).clone()
    }

    /// A value with stable names.
    pub(crate) fn map(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(text).into(),
            Value::Array(items) => items.iter().map(|item| self.map(item)).collect::<Vec<_>>().into(),
            Value::Object(map) => {
                let mut out = serde_json::Map::new();
                for (key, value) in map {
                    let mapped = match (key.as_str(), value) {
                        // The resourceVersion of a list depends on what else happens in the cluster.
                        ("resourceVersion", Value::String(_)) if !map.contains_key("uid") => {
                            "<version>".into()
                        }
                        ("resourceVersion", Value::String(text)) if text.parse::<u64>().is_ok() => {
                            self.name("version", text).into()
                        }
                        ("continue", Value::String(_)) => "<token>".into(),
                        ("nodePort" | "healthCheckNodePort", Value::Number(_)) => "<port>".into(),
                        ("token", Value::String(text)) if text.len() > 30 => "<opaque>".into(),
                        (
                            "managedFields" | "causes" | "WARNINGS" | "resourceRules" | "nonResourceRules",
                            Value::Array(items),
                        ) => {
                            let mut items: Vec<Value> = items.iter().map(|item| self.map(item)).collect();
                            items.sort_by_key(Value::to_string);
                            items.into()
                        }
                        _ => self.map(value),
                    };
                    out.insert(self.text(key), mapped);
                }
                out.into()
            }
            other => other.clone(),
        }
    }

    fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (pattern, kind) in PATTERNS.iter() {
            let found: Vec<String> = pattern.find_iter(&text).map(|m| m.as_str().to_owned()).collect();
            for value in found {
                let name = self.name(kind, &value);
                text = text.replace(&value, &name);
            }
        }
        // The order of faults is not always the same.
        if let Some((head, faults)) = text.split_once(" is invalid: [")
            && let Some(faults) = faults.strip_suffix(']')
        {
            let mut faults: Vec<&str> = faults.split(", ").collect();
            faults.sort_unstable();
            return format!("{head} is invalid: [{}]", faults.join(", "));
        }
        text
    }
}

/// The headers of a step that is sent in the name of a `user`.
pub(crate) fn headers(step: &Value) -> Vec<(String, String)> {
    let user = &step["user"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    for (field, header) in [("name", "impersonate-user"), ("uid", "impersonate-uid")] {
        headers.extend(user[field].as_str().map(|value| (header.to_owned(), value.to_owned())));
    }
    for group in user["groups"].as_array().into_iter().flatten() {
        headers.push(("impersonate-group".to_owned(), text(group)));
    }
    for (key, values) in user["extra"].as_object().into_iter().flatten() {
        let values = values.as_array().into_iter().flatten();
        headers.extend(values.map(|value| (format!("impersonate-extra-{key}"), text(value))));
    }
    headers
}

/// A text with the values of earlier answers: `${name.path}`.
pub(crate) fn filled(text: &str, known: &BTreeMap<String, Value>) -> String {
    let mut text = text.to_owned();
    while let Some((before, rest)) = text.split_once("${") {
        let (path, after) = rest.split_once('}').expect("the end of a reference");
        let (name, path) = path.split_once('.').expect("a name and a path");
        let found = known.get(name).unwrap_or_else(|| panic!("no answer is named {name}"));
        let value = path
            .split('.')
            .fold(found, |at, step| step.parse::<usize>().map_or_else(|_| &at[step], |index| &at[index]));
        text = format!("{before}{}{after}", value.as_str().unwrap_or_default());
    }
    text
}

/// How two values differ, by path.
pub(crate) fn differences(wanted: &Value, got: &Value, path: &str, found: &mut Vec<String>) {
    match (wanted, got) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                match b.get(key) {
                    Some(other) => differences(value, other, &format!("{path}.{key}"), found),
                    None => found.push(format!("{path}.{key}: wanted {value}, got nothing")),
                }
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                found.push(format!("{path}.{key}: wanted nothing, got {value}"));
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{path}[{at}]"), found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push(format!("{path}: wanted {a}\n        got {b}")),
    }
}
