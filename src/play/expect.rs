//! Checks what a step expects.

use serde_json::{Value, json};

use super::matching::{Difference, differences};
use super::scene::said;
use super::suite::{Check, Expect};
use super::view::View;
use crate::package::decode::At;
use crate::package::test_file::{Part, Partial};
use crate::template::{Engine, EvalError, Scope};

/// What is not as expected.
#[derive(Debug, Clone)]
pub(super) struct Problem<'e> {
    /// What it is about, such as `EtcdCluster/example`.
    pub what: String,
    pub why: Why,
    pub written: Written<'e>,
}

/// Where an expectation is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Written<'e> {
    Part(&'e At<Part>),
    Count(&'e At<u64>),
    Otherwise,
}

impl<'e> Written<'e> {
    fn of(partial: &'e Partial) -> Self {
        match partial {
            Partial::Part(part) => Self::Part(part),
            Partial::Count(count) => Self::Count(count),
            Partial::Absent(_) => Self::Otherwise,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) enum Why {
    /// It does not exist.
    Missing,
    /// It exists, and should not.
    Present,
    Count {
        expected: u64,
        found: usize,
    },
    Differs(Vec<Difference>),
    /// Why an expression does not hold.
    Untrue(String),
}

/// The result of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckResult {
    True,
    False,
    /// It reads what is not there.
    Undefined(String),
    Failed(String),
}

pub(super) fn evaluate(engine: &Engine, check: &Check, scope: &Scope) -> CheckResult {
    match engine.truthy(&check.expr, scope) {
        Ok(true) => CheckResult::True,
        Ok(false) => CheckResult::False,
        Err(EvalError::Unknown { path, reason }) => CheckResult::Undefined(format!("{path}: {reason}")),
        Err(EvalError::Undefined(error) | EvalError::NotYet(error)) => CheckResult::Undefined(error.message),
        Err(EvalError::Limit(error) | EvalError::Failed(error)) => CheckResult::Failed(error.message),
    }
}

/// What an expression says, and the values that decide it.
pub(super) fn with_operands(said: &str, engine: &Engine, check: &Check, scope: &Scope) -> String {
    let operands = engine.operands(&check.expr, scope);
    // An expression that is its only operand has the value that is said.
    let values = operands.iter().filter(|(_, value)| !value.is_boolean() || operands.len() > 1);
    let values: Vec<String> = values.map(|(text, value)| format!("{text} is {value}")).collect();
    if values.is_empty() { said.to_owned() } else { format!("{said}, for {}", values.join(", and ")) }
}

/// All that is not as expected.
pub(super) fn problems<'e>(engine: &Engine, expect: &'e Expect, view: &View<'_>) -> Vec<Problem<'e>> {
    let mut all = Vec::new();
    let mut add = |what: &str, written: Written<'e>, why: Option<Why>| {
        all.extend(why.map(|why| Problem { what: what.to_owned(), why, written }));
    };
    if let Some(partial) = &expect.instance {
        let instance = view.instance().map(|object| object.value);
        add("instance", Written::of(partial), of_object(partial, instance.as_deref()));
    }
    if !expect.children.is_empty() {
        let children = view.children();
        for (name, partial) in &expect.children {
            let (id, key) = match name.value.split_once('[') {
                Some((id, key)) => (id, Some(key.trim_end_matches(']').trim_matches(['\'', '"']))),
                None => (&*name.value, None),
            };
            let found: Vec<&Value> = children
                .iter()
                .filter(|(of, of_key, _)| of == id && key.is_none_or(|key| of_key.as_deref() == Some(key)))
                .map(|(.., object)| &*object.value)
                .collect();
            let what = format!("child {}", name.value);
            if let Partial::Part(_) = partial
                && found.len() > 1
            {
                // Each member of a list of children.
                for object in found {
                    let what = format!("{what} {}", object["metadata"]["name"].as_str().unwrap_or_default());
                    add(&what, Written::of(partial), of_object(partial, Some(object)));
                }
            } else if let Partial::Count(count) = partial {
                add(&what, Written::of(partial), counted(count.value, found.len()));
            } else {
                add(&what, Written::of(partial), of_object(partial, found.first().copied()));
            }
        }
    }
    for (name, address, partial) in &expect.objects {
        let why = match partial {
            Partial::Count(count) => counted(count.value, view.list(&address.kind, &address.namespace).len()),
            partial => of_object(partial, view.find(address).map(|object| object.value).as_deref()),
        };
        add(&name.value, Written::of(partial), why);
    }
    if !expect.runs.is_empty() {
        let runs: Vec<Value> = view.runs().iter().map(|run| flat_run(run)).collect();
        in_order(&expect.runs, &runs, &mut add);
    }
    if !expect.events.is_empty() {
        let events = view.list("Event", "");
        for event in &expect.events {
            let mut part = event.value.value.clone();
            let message = part.as_object_mut().and_then(|part| part.remove("message"));
            let fits = |found: &&Value| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let said = text(&found["message"]) + &text(&found["note"]);
                differences(&part, Some(found), "").is_empty()
                    && message.as_ref().and_then(Value::as_str).is_none_or(|message| said.contains(message))
            };
            if !events.iter().any(|found| fits(&&*found.value)) {
                add(&format!("Event {}", event.value.value), Written::Otherwise, Some(Why::Missing));
            }
        }
    }
    let scope = view.scope(&expect.that);
    for check in &expect.that {
        let why = match evaluate(engine, check, &scope) {
            CheckResult::True => continue,
            CheckResult::False => with_operands("it is false", engine, check, &scope),
            CheckResult::Undefined(why) | CheckResult::Failed(why) => {
                with_operands(&why, engine, check, &scope)
            }
        };
        add(&check.text, Written::Otherwise, Some(Why::Untrue(why)));
    }
    all
}

fn counted(expected: u64, found: usize) -> Option<Why> {
    (expected != found as u64).then_some(Why::Count { expected, found })
}

fn of_object(partial: &Partial, found: Option<&Value>) -> Option<Why> {
    match (partial, found) {
        (Partial::Absent(_), None) => None,
        (Partial::Absent(_), Some(_)) => Some(Why::Present),
        (Partial::Part(_), None) => Some(Why::Missing),
        (Partial::Part(part), Some(found)) => {
            let expected = with_generation(with_conditions(&part.value.value), found);
            let object = with_map(found);
            let mut found = differences(&expected, Some(&object), "");
            for difference in &mut found {
                difference.said = of_condition(&object, &difference.path);
            }
            (!found.is_empty()).then_some(Why::Differs(found))
        }
        (Partial::Count(count), found) => counted(count.value, usize::from(found.is_some())),
    }
}

/// What the condition at a path says: `conditions.Ready.status`.
fn of_condition(object: &Value, path: &str) -> Option<String> {
    let name = path.strip_prefix("conditions.")?.split('.').next()?;
    object["conditions"].get(name).map(said)
}

/// A part whose `conditions` are those of the status: `{Ready: "True"}` stands for the whole condition.
fn with_conditions(part: &Value) -> Value {
    let mut part = part.clone();
    if let Some(conditions) = part.get_mut("conditions").and_then(Value::as_object_mut) {
        for condition in conditions.values_mut() {
            let status = match &*condition {
                Value::String(text) => text.clone(),
                Value::Bool(true) => "True".to_owned(),
                Value::Bool(false) => "False".to_owned(),
                _ => continue,
            };
            *condition = json!({"status": status});
        }
    }
    part
}

/// A part with conditions holds only for a status that has seen the present spec, as with `kubectl wait`.
fn with_generation(mut part: Value, object: &Value) -> Value {
    let (has_conditions, generation) = (part.get("conditions").is_some(), &object["metadata"]["generation"]);
    if has_conditions && generation.is_u64() && object["status"]["observedGeneration"].is_u64() {
        let status = part.as_object_mut().map(|part| part.entry("status").or_insert_with(|| json!({})));
        if let Some(status) = status.and_then(Value::as_object_mut) {
            status.entry("observedGeneration").or_insert_with(|| generation.clone());
        }
    }
    part
}

/// An object with its conditions by their type.
fn with_map(object: &Value) -> Value {
    let mut object = object.clone();
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let conditions: serde_json::Map<String, Value> =
        conditions.filter_map(|one| Some((one["type"].as_str()?.to_owned(), one.clone()))).collect();
    if object.get("conditions").is_none() {
        object["conditions"] = conditions.into();
    }
    object
}

/// A run with its plan and phase beside the whole object.
fn flat_run(run: &Value) -> Value {
    let mut flat = run["status"].as_object().cloned().unwrap_or_default();
    flat.insert("plan".to_owned(), run["spec"]["plan"].clone());
    flat.insert("params".to_owned(), run["spec"]["params"].clone());
    flat.insert("name".to_owned(), run["metadata"]["name"].clone());
    flat.into()
}

/// Each expected run fits one of those after the one before.
fn in_order<'e>(
    expected: &'e [At<Part>],
    found: &[Value],
    add: &mut impl FnMut(&str, Written<'e>, Option<Why>),
) {
    let mut rest = found;
    for run in expected {
        let part = &run.value.value;
        let Some(at) = rest.iter().position(|one| differences(part, Some(one), "").is_empty()) else {
            // The nearest one says more than that none fits.
            let same = rest.iter().rev().find(|one| one["plan"] == part["plan"]);
            let why = same.map_or(Why::Missing, |one| Why::Differs(differences(part, Some(one), "")));
            add(&format!("run {part}"), Written::Part(run), Some(why));
            return;
        };
        rest = &rest[at + 1..];
    }
}

impl Problem<'_> {
    /// The problem as lines for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let what = &self.what;
        match &self.why {
            Why::Missing => vec![format!("{what}: there is none")],
            Why::Present => vec![format!("{what}: it is there, and should not be")],
            Why::Count { expected, found } => vec![format!("{what}: {found}, not {expected}")],
            Why::Untrue(why) => vec![format!("{what}: {why}")],
            Why::Differs(differences) => differences
                .iter()
                .map(|Difference { path, expected, found, is_item, said, .. }| {
                    match found.as_ref().map(Value::to_string) {
                        Some(found) if *is_item => {
                            format!("{what}: no item of {path} fits {expected}; the nearest is {found}")
                        }
                        None if *is_item => format!("{what}: no item of {path} is left for {expected}"),
                        found => {
                            let said = said.as_ref().map(|said| format!(" ({said})")).unwrap_or_default();
                            format!(
                                "{what}: {path} is {}, not {expected}{said}",
                                found.as_deref().unwrap_or("absent")
                            )
                        }
                    }
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_count_once_the_status_is_of_the_present_spec() {
        let differing = |part: Value, seen: u64| -> Vec<String> {
            let object = json!({
                "metadata": {"generation": 2},
                "status": {"observedGeneration": seen, "conditions": [{"type": "Ready", "status": "True"}]},
            });
            let part = with_generation(with_conditions(&part), &object);
            differences(&part, Some(&with_map(&object)), "").into_iter().map(|one| one.path).collect()
        };
        let ready = || json!({"conditions": {"Ready": "True"}});
        assert_eq!(differing(ready(), 2), [""; 0]);
        assert_eq!(differing(ready(), 1), ["status.observedGeneration"]);
        assert_eq!(
            differing(json!({"conditions": {"Ready": "True"}, "status": {}}), 1),
            ["status.observedGeneration"]
        );
        let old = json!({"conditions": {"Ready": "True"}, "status": {"observedGeneration": 1}});
        assert_eq!(differing(old, 1), [""; 0], "the case says so");
    }
}
