//! Label and field selectors.

use serde_json::Value;

use crate::kinds::Kind;
use crate::status::{Failure, Outcome};
use crate::store::Object;
use crate::versions;

/// One requirement for labels.
#[derive(Debug, Clone)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

/// Which objects of a list are asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    /// Path, value, and whether it must be equal.
    fields: Vec<(String, String, bool)>,
}

impl Selector {
    pub(crate) fn parse(kind: &Kind, labels: &str, fields: &str) -> Outcome<Self> {
        let mut selector = Self::default();
        if let Some(why) = unexpected(labels.trim()) {
            return Err(Failure::bad_request(why));
        }
        for part in split(labels) {
            let requirement = requirement(part.trim())
                .map_err(|why| Failure::bad_request(format!("unable to parse requirement: {why}")))?;
            selector.labels.push(requirement);
        }
        for part in fields.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value, equal) = if let Some((key, value)) = part.split_once("!=") {
                (key, value, false)
            } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (key, value, true)
            } else {
                return Err(Failure::bad_request(format!(
                    "invalid selector: '{fields}'; can't understand '{part}'"
                )));
            };
            if !known_fields(kind).iter().any(|known| known == key) {
                let own = matches!(&*kind.plural, "pods" | "nodes" | "secrets" | "namespaces");
                let message = if kind.custom().is_none() && !own {
                    format!(
                        "{key:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    )
                } else {
                    format!("field label not supported: {key}")
                };
                return Err(Failure::bad_request(message));
            }
            selector.fields.push((key.to_owned(), value.to_owned(), equal));
        }
        Ok(selector)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, key: &str, object: &Object) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(|name| object.label(name)))
            && (self.fields.is_empty() || self.fits(key, object))
    }

    fn fits(&self, key: &str, object: &Object) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let mut parsed: Option<Value> = None;
        self.fields.iter().all(|(path, wanted, equal)| {
            let value = match path.as_str() {
                "metadata.name" => name.to_owned(),
                "metadata.namespace" => namespace.to_owned(),
                path => field(parsed.get_or_insert_with(|| versions::selectable(object)), path),
            };
            (value == *wanted) == *equal
        })
    }
}

fn field(object: &Value, path: &str) -> String {
    let value = path.split('.').fold(object, |at, name| &at[name]);
    match value {
        Value::String(text) => text.clone(),
        Value::Null if path == "spec.unschedulable" => "false".to_owned(),
        Value::Null if path == "status.successful" => "0".to_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The fields by which objects of a kind can be selected.
fn known_fields(kind: &Kind) -> Vec<String> {
    let own: &[&str] = match kind.resource() {
        "pods" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        "nodes" => &["spec.unschedulable"],
        "namespaces" => &["status.phase"],
        "secrets" => &["type"],
        "services" => &["spec.clusterIP", "spec.type"],
        "events" | "events.events.k8s.io" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        "jobs.batch" => &["status.successful"],
        "replicasets.apps" | "replicationcontrollers" => &["status.replicas"],
        _ => &[],
    };
    let selectable = kind.custom().map(|custom| custom.selectable.as_slice()).unwrap_or_default();
    ["metadata.name", "metadata.namespace"]
        .into_iter()
        .chain(own.iter().copied())
        .map(str::to_owned)
        .chain(selectable.iter().cloned())
        .collect()
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let key = |key: &str| -> Result<String, String> {
        let key = key.trim();
        match crate::meta::qualified_name(key) {
            Some(why) => Err(format!("key: Invalid value: {key:?}: {why}")),
            None => Ok(key.to_owned()),
        }
    };
    let values = |text: &str| -> Result<Vec<String>, String> {
        let inner = text.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        let inner = inner.ok_or_else(|| format!("found '{text}', expected: '('"))?;
        Ok(inner.split(',').map(|value| value.trim().to_owned()).collect())
    };
    if let Some(name) = text.strip_prefix('!') {
        return Ok(Requirement { key: key(name)?, test: Test::Absent });
    }
    let one = |value: &str| -> Result<Vec<String>, String> {
        let value = value.trim();
        match crate::meta::label_value(value) {
            Some(why) => Err(format!("values[0][]: Invalid value: {value:?}: {why}")),
            None => Ok(vec![value.to_owned()]),
        }
    };
    if let Some((name, value)) = text.split_once("!=") {
        return Ok(Requirement { key: key(name)?, test: Test::NotIn(one(value)?) });
    }
    if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Requirement { key: key(name)?, test: Test::In(one(value)?) });
    }
    if let Some((name, rest)) = text.split_once(" notin ").or_else(|| text.split_once(" notin")) {
        return Ok(Requirement { key: key(name)?, test: Test::NotIn(values(rest)?) });
    }
    if let Some((name, rest)) =
        text.split_once(" in ").or_else(|| text.split_once(" in(").map(|(n, _)| (n, "")))
    {
        let rest = if rest.is_empty() { &text[text.find('(').unwrap_or(0)..] } else { rest };
        return Ok(Requirement { key: key(name)?, test: Test::In(values(rest)?) });
    }
    for (sign, greater) in [('>', true), ('<', false)] {
        if let Some((name, value)) = text.split_once(sign) {
            let number = value.trim().parse().map_err(|_| {
                format!("values[0][{}]: Invalid value: {:?}: for 'Gt', 'Lt' operators, the value must be an integer", name.trim(), value.trim())
            })?;
            let test = if greater { Test::Greater(number) } else { Test::Less(number) };
            return Ok(Requirement { key: key(name)?, test });
        }
    }
    Ok(Requirement { key: key(text)?, test: Test::Exists })
}

/// The word at which a label selector cannot be read.
fn unexpected(text: &str) -> Option<String> {
    let start = text.find(['=', '>', '<', ')']).filter(|at| *at == 0)?;
    let end = text[start..].find(|c| !"=!<>".contains(c)).unwrap_or(text.len());
    Some(format!("found '{}', expected: !, identifier, or 'end of string'", &text[start..end.max(1)]))
}

impl Requirement {
    fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let value = label(&self.key);
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.iter().any(|known| known == value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.iter().any(|known| known == value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::Greater(least) => number().is_some_and(|number| number > *least),
            Test::Less(most) => number().is_some_and(|number| number < *most),
        }
    }
}

/// Whether labels fit a selector as objects have it: `matchLabels` and `matchExpressions`.
pub(crate) fn labels_match(selector: &Value, labels: &Value) -> bool {
    let exact = selector["matchLabels"].as_object().into_iter().flatten();
    let rules = selector["matchExpressions"].as_array().into_iter().flatten();
    exact.clone().all(|(key, value)| labels.get(key) == Some(value))
        && rules.clone().all(|rule| {
            let label = labels.get(rule["key"].as_str().unwrap_or_default());
            let listed = || {
                rule["values"].as_array().is_some_and(|all| label.is_some_and(|label| all.contains(label)))
            };
            match rule["operator"].as_str().unwrap_or_default() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => label.is_some(),
                _ => label.is_none(),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_selected_by_each_operator() {
        let labels = [("a", "1"), ("b", "x")];
        let fits = |text: &str| {
            split(text).into_iter().all(|part| {
                requirement(part.trim())
                    .unwrap()
                    .matches(|key| labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value))
            })
        };
        for text in
            ["", "a", "a=1", "a==1,b", "a!=2", "c!=1", "!c", "a in (1, 2)", "b notin (y,z)", "a>0", "a<2"]
        {
            assert!(fits(text), "{text}");
        }
        for text in ["c", "a=2", "a!=1", "!a", "a in (2)", "b notin (x)", "a>1", "b>0"] {
            assert!(!fits(text), "{text}");
        }
        assert!(requirement("-=1").is_err() && requirement("a=-").is_err() && requirement("a>x").is_err());
    }
}
