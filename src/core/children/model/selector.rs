//! Label selectors, as Kubernetes writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash, Hasher};

use kube_core::{Expression, SelectorExt};
use serde_json::{Map, Value};

/// A label selector: all of its requirements hold. A selector without requirements fits everything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Selector(Vec<Expression>);

impl Hash for Selector {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_string().hash(state);
    }
}

impl Selector {
    /// The selector of objects that have a label, whatever its value.
    pub fn exists(label: &str) -> Self {
        Self(vec![Expression::Exists(label.to_owned())])
    }

    /// The same, without the objects that have a label.
    #[must_use]
    pub fn without(mut self, label: &str) -> Self {
        self.0.push(Expression::DoesNotExist(label.to_owned()));
        self.0.sort();
        self
    }

    /// Parses `{matchLabels, matchExpressions}`, or a plain map of labels.
    ///
    /// # Errors
    /// Says what is wrong with it; never shows a value.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let Value::Object(map) = value else { return Err("its selector is not a map".into()) };
        let structured = !map.is_empty() && map.keys().all(|k| k == "matchLabels" || k == "matchExpressions");
        let mut all = Vec::new();
        if structured {
            match map.get("matchLabels") {
                None | Some(Value::Null) => {}
                Some(Value::Object(labels)) => equal(labels, &mut all)?,
                Some(_) => return Err("matchLabels of its selector is not a map".into()),
            }
            match map.get("matchExpressions") {
                None | Some(Value::Null) => {}
                Some(Value::Array(expressions)) => {
                    for expression in expressions {
                        all.push(requirement(expression)?);
                    }
                }
                Some(_) => return Err("matchExpressions of its selector is not a list".into()),
            }
        } else {
            equal(map, &mut all)?;
        }
        all.sort();
        all.dedup();
        Ok(Self(all))
    }

    /// Whether the selector fits these labels.
    pub fn fits(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let none = BTreeMap::new();
        let labels = labels.unwrap_or(&none);
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

impl fmt::Display for Selector {
    /// Writes the selector as the parameter `labelSelector` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, requirement) in self.0.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

fn equal(labels: &Map<String, Value>, out: &mut Vec<Expression>) -> Result<(), String> {
    for (name, value) in labels {
        out.push(Expression::Equal(key(name)?, label(value)?));
    }
    Ok(())
}

fn requirement(expression: &Value) -> Result<Expression, String> {
    let text = |field: &str| expression[field].as_str().unwrap_or_default();
    let name = key(text("key"))?;
    let values = expression["values"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(label)
        .collect::<Result<BTreeSet<_>, _>>()?;
    match (text("operator"), values.is_empty()) {
        ("In", false) => Ok(Expression::In(name, values)),
        ("NotIn", false) => Ok(Expression::NotIn(name, values)),
        ("Exists", true) => Ok(Expression::Exists(name)),
        ("DoesNotExist", true) => Ok(Expression::DoesNotExist(name)),
        ("In" | "NotIn", true) => Err("In and NotIn in its selector need values".into()),
        ("Exists" | "DoesNotExist", false) => {
            Err("Exists and DoesNotExist in its selector take no values".into())
        }
        _ => Err("an operator in its selector is none of In, NotIn, Exists, DoesNotExist".into()),
    }
}

/// Whether a text may be a part of a label. Other characters in a selector would be taken for another
/// requirement.
fn is_word(text: &str, max: usize) -> bool {
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= max
        && end(text.chars().next())
        && end(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn key(text: &str) -> Result<String, String> {
    let (prefix, name) = text.rsplit_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    if is_word(name, 63) && prefix.is_none_or(|prefix| is_word(prefix, 253)) {
        return Ok(text.to_owned());
    }
    Err("a key of its selector is no key of a label".into())
}

fn label(value: &Value) -> Result<String, String> {
    match value.as_str() {
        Some(text) if text.is_empty() || is_word(text, 63) => Ok(text.to_owned()),
        Some(_) => Err("a value of its selector is no value of a label".into()),
        None => Err("a value of its selector is not a string; quote it".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_written_as_the_server_reads_them() {
        for (value, text) in [
            (json!({}), ""),
            (json!({"app": "web", "a.b/c": ""}), "a.b/c=,app=web"),
            (json!({"matchLabels": {"app": "web"}}), "app=web"),
            (json!({"matchLabels": null, "matchExpressions": [{"key": "a", "operator": "Exists"}]}), "a"),
            (
                json!({"matchExpressions": [
                    {"key": "d", "operator": "DoesNotExist"},
                    {"key": "b", "operator": "NotIn", "values": ["2", "1"]},
                    {"key": "a", "operator": "In", "values": ["y", "x"]},
                ]}),
                "a in (x,y),b notin (1,2),!d",
            ),
        ] {
            assert_eq!(Selector::parse(&value).map(|s| s.to_string()), Ok(text.to_owned()), "{value}");
        }
    }

    #[test]
    fn malformed_selectors_and_injected_requirements_are_refused() {
        for value in [
            json!("app=web"),
            json!({"app": "web,admin=true"}),
            json!({"app in (a)": "x"}),
            json!({"app": 1}),
            json!({"matchLabels": ["a"]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
        ] {
            assert!(Selector::parse(&value).is_err(), "{value}");
        }
    }

    #[test]
    fn selectors_match_labels_as_on_the_server() {
        let labels: BTreeMap<String, String> = [("app".into(), "web".into())].into();
        let fits = |value: Value| Selector::parse(&value).unwrap().fits(Some(&labels));
        let one = |operator: &str, key: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (value, expected) in [
            (json!({}), true),
            (json!({"app": "web"}), true),
            (json!({"app": "db"}), false),
            (one("In", "app", &["db", "web"]), true),
            (one("In", "tier", &["x"]), false),
            (one("NotIn", "tier", &["x"]), true),
            (one("NotIn", "app", &["web"]), false),
            (one("Exists", "app", &[]), true),
            (one("DoesNotExist", "app", &[]), false),
            (
                json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}),
                false,
            ),
        ] {
            assert_eq!(fits(value.clone()), expected, "{value}");
        }
        assert!(Selector::default().fits(None));
    }
}
