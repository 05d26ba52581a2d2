//! Label and field selectors.

use serde_json::Value;

use crate::facts::{items, text};
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
            let key = selectable(kind, key).map_err(Failure::bad_request)?;
            selector.fields.push((key, value.to_owned(), equal));
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

/// The value of a field as the real server selects by it.
fn field(object: &Value, path: &str) -> String {
    let at = |path: &str| path.split('.').fold(object, |at, name| &at[name]);
    let value = match path {
        "status.podIP" => &object["status"]["podIPs"][0]["ip"],
        // Known, but never filled.
        "status.podIPs" => &Value::Null,
        "source" if !at("source.component").is_null() => at("source.component"),
        "source" => at("reportingComponent"),
        path => at(path),
    };
    match value {
        Value::String(text) => text.clone(),
        Value::Null => match path {
            "spec.unschedulable" | "spec.hostNetwork" => "false".to_owned(),
            "status.successful" | "status.replicas" => "0".to_owned(),
            _ => String::new(),
        },
        other => other.to_string(),
    }
}

/// Kinds with fields of their own by which objects can be selected, beside the name.
const SELECTABLE: [(&str, &[&str]); 10] = [
    (
        "pods",
        &[
            "metadata.namespace",
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
    ),
    ("nodes", &["spec.unschedulable"]),
    ("namespaces", &["status.phase"]),
    ("secrets", &["metadata.namespace", "type"]),
    ("services", &["metadata.namespace", "spec.clusterIP", "spec.type"]),
    ("replicationcontrollers", &["metadata.namespace", "status.replicas"]),
    (
        "events",
        &[
            "metadata.namespace",
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
    ),
    ("jobs.batch", &["metadata.namespace", "status.successful"]),
    ("certificatesigningrequests.certificates.k8s.io", &["spec.signerName"]),
    ("resourceslices.resource.k8s.io", &["spec.nodeName", "spec.driver"]),
];

/// The field that a label of a field selector names, or that objects of the kind cannot be selected by it.
fn selectable(kind: &Kind, label: &str) -> Result<String, String> {
    let found = Ok(label.to_owned());
    let unsupported = || Err(format!("field label not supported: {label}"));
    if label == "metadata.name" {
        return found;
    }
    if let Some(custom) = kind.custom() {
        let is_known = kind.namespaced && label == "metadata.namespace"
            || custom.selectable.iter().any(|known| known == label);
        return if is_known { found } else { unsupported() };
    }
    if kind.resource() == "events.events.k8s.io" {
        // Fields that both groups have, or have renamed.
        return match label {
            "metadata.namespace" | "reason" | "type" => found,
            "reportingController" => Ok("reportingComponent".to_owned()),
            _ => match label.strip_prefix("regarding.") {
                Some(
                    field @ ("kind" | "namespace" | "name" | "uid" | "apiVersion" | "resourceVersion"
                    | "fieldPath"),
                ) => Ok(format!("involvedObject.{field}")),
                _ => unsupported(),
            },
        };
    }
    let own = SELECTABLE.iter().find(|(resource, _)| *resource == kind.resource());
    match (own, kind.resource()) {
        (Some((_, fields)), _) if fields.contains(&label) => found,
        (_, "pods") if label == "spec.host" => Ok("spec.nodeName".to_owned()),
        (_, "jobs.batch") => Err(format!("field label {label:?} not supported for Job")),
        (_, "resourceslices.resource.k8s.io") => {
            let version = kind.api_version();
            Err(format!("field label not supported for {version}, Kind=ResourceSlice: {label}"))
        }
        (Some(_), _) => unsupported(),
        (None, _) if label == "metadata.namespace" => found,
        (None, _) => Err(format!(
            "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )),
    }
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
    let mut exact = selector["matchLabels"].as_object().into_iter().flatten();
    exact.all(|(key, value)| labels.get(key) == Some(value))
        && items(&selector["matchExpressions"]).iter().all(|rule| {
            let label = labels.get(text(&rule["key"]));
            let is_listed = label.is_some_and(|label| items(&rule["values"]).contains(label));
            match text(&rule["operator"]) {
                "In" => is_listed,
                "NotIn" => !is_listed,
                "Exists" => label.is_some(),
                _ => label.is_none(),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_refuses_fields_in_its_own_words() {
        let kinds = crate::kinds::Kinds::built_in();
        let check = |(group, version, plural): (&str, &str, &str), label: &str| {
            selectable(kinds.find(group, version, plural).unwrap(), label)
        };
        let events = ("events.k8s.io", "v1", "events");
        assert_eq!(check(events, "regarding.name").unwrap(), "involvedObject.name");
        assert_eq!(check(events, "reportingController").unwrap(), "reportingComponent");
        assert!(check(events, "involvedObject.name").is_err() && check(events, "regarding.x").is_err());
        assert!(check(("", "v1", "events"), "regarding.name").is_err());
        assert_eq!(check(("", "v1", "pods"), "spec.host").unwrap(), "spec.nodeName");
        for (kind, why) in [
            (("", "v1", "pods"), "field label not supported: x"),
            (("batch", "v1", "jobs"), "field label \"x\" not supported for Job"),
            (
                ("resource.k8s.io", "v1", "resourceslices"),
                "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: x",
            ),
            (
                ("apps", "v1", "replicasets"),
                "\"x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
        ] {
            assert_eq!(check(kind, "x").unwrap_err(), why);
        }
        assert!(check(("apps", "v1", "replicasets"), "status.replicas").is_err());
        assert!(check(("", "v1", "nodes"), "metadata.namespace").is_err());
    }

    #[test]
    fn fields_have_the_values_of_the_server() {
        let pod = serde_json::json!({"spec": {}, "status": {"podIPs": [{"ip": "10.0.0.1"}]}});
        let found = ["status.podIP", "status.podIPs", "spec.hostNetwork", "spec.nodeName"];
        assert_eq!(found.map(|path| field(&pod, path)), ["10.0.0.1", "", "false", ""]);
        let event = serde_json::json!({"source": {}, "reportingComponent": "a"});
        assert_eq!(field(&event, "source"), "a");
        let event = serde_json::json!({"source": {"component": "b"}, "reportingComponent": "a"});
        assert_eq!(field(&event, "source"), "b");
    }

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
        let other = serde_json::json!({"key": "a", "operator": "NotIn", "values": [null]});
        assert!(labels_match(&serde_json::json!({"matchExpressions": [other]}), &Value::Null));
        assert!(requirement("-=1").is_err() && requirement("a=-").is_err() && requirement("a>x").is_err());
    }
}
