//! Writes a first test file of a package: what an instance becomes, a change of it, and its deletion, as they are seen in plays.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::case;
use super::course::Course;
use super::end::is_generated;
use super::sources::Sources;
use super::suite::{self, Suite};
use super::update::{flow, plain};
use super::view::Seen;
use crate::api::Gvk;
use crate::diag::{Diagnostic, Source};
use crate::facts::has_condition;
use crate::package::capability::SIZES;
use crate::package::{Package, Resource};

/// How many fields are changed at most until a change is found that reaches children.
const CANDIDATES: usize = 16;
/// How deep in a spec fields are changed.
const DEPTH: usize = 4;
/// How long after a change one looks at what has become of it.
const LATER: &str = "30m";

/// Where the instance of the new file is from.
pub(crate) struct Instance<'a> {
    /// The path of its file, from the folder of the tests; `None` if tests may not read it.
    pub file: Option<String>,
    pub object: &'a Value,
}

/// The text of a test file that passes, and what could not be written.
///
/// # Errors
/// Why the instance is not ready, or is not deleted.
pub(crate) fn init(
    tests: &Path,
    package: &Arc<Package>,
    instance: &Instance<'_>,
) -> Result<(String, Vec<String>), Vec<Diagnostic>> {
    let Some(resource) = resource_of(package, instance.object) else {
        return Err(vec![Diagnostic::error("test::init", "the instance is of no kind of the package")]);
    };
    let init = Init { tests, package, resource, instance };
    let first = init.play("")?;
    if !is_ready(&first) {
        let conditions = first.instance.map(|object| object["status"]["conditions"].clone());
        let message = format!("the instance is not Ready: {}", conditions.unwrap_or_default());
        return Err(vec![Diagnostic::error("test::init", message)]);
    }
    let mut notes = Vec::new();
    let mut text = init.head();
    let _ = write!(
        text,
        "cases:\n- name: an instance becomes ready with all its children\n  steps:\n{}",
        expect(&first, &init.children(&first, &Map::new()))
    );
    match init.change(&first) {
        Some((path, patch, seen)) => {
            let changed = changes(&first, &seen);
            let what = if changed.is_empty() { "is accepted" } else { "reaches the children" };
            let _ = write!(
                text,
                "- name: {} {what}\n  steps:\n  - patch: {}\n    with: {}\n{}",
                plain(&format!("a change of {path}")),
                init.address(),
                flow(&patch),
                expect(&seen, &changed)
            );
        }
        None => notes.push("no field was found that can be changed".to_owned()),
    }
    let end = init.play(&format!("  - delete: {}\n  - wait: {LATER}\n", init.address()))?;
    let left: Vec<&str> = end.children.iter().map(|(id, ..)| id.as_str()).collect();
    let gone = init.gone(&first, &left);
    match &end.instance {
        None => {
            let _ = write!(
                text,
                "- name: a deleted instance takes its children along\n  steps:\n  - delete: {}\n  - expect:\n      \
                 instance: absent\n",
                init.address(),
            );
            if gone.as_object().is_some_and(|gone| !gone.is_empty()) {
                let _ = writeln!(text, "      children: {}", flow(&gone));
            }
        }
        Some(_) => notes.push(format!("the instance is still there {LATER} after its deletion")),
    }
    // What is written must pass.
    for place in 0..init.suite(&text)?.cases.len() {
        let mut suite = init.suite(&text)?;
        suite.observes = false;
        let suites = [suite];
        if let Some(failure) = case::play(Course::whole(&suites, (0, place))).failure {
            return Err(vec![*failure]);
        }
    }
    Ok((text, notes))
}

/// The resource of an object, if it is an instance.
pub(crate) fn resource_of<'p>(package: &'p Package, object: &Value) -> Option<&'p Resource> {
    package.resource(&Gvk::of(object)?)
}

struct Init<'a> {
    tests: &'a Path,
    package: &'a Arc<Package>,
    resource: &'a Resource,
    instance: &'a Instance<'a>,
}

impl Init<'_> {
    fn head(&self) -> String {
        format!(
            "# Written by `operetta test --init`: what was seen. Keep what must be so, and add what must never be.\n\
             apiVersion: operetta.dev/v1alpha1\nkind: PackageTest\nbefore:\n- apply: {}\n- expect:\n    instance: {{conditions: \
             {{Ready: \"True\"}}}}\n",
            self.instance.file.as_deref().map_or_else(|| self.instance.object.to_string(), plain)
        )
    }

    fn address(&self) -> String {
        let meta = &self.instance.object["metadata"];
        let (kind, name) = (&self.resource.kind.kind, meta["name"].as_str().unwrap_or_default());
        match meta["namespace"].as_str() {
            Some(namespace) if namespace != "default" => format!("{namespace}/{kind}/{name}"),
            _ => format!("{kind}/{name}"),
        }
    }

    fn suite(&self, text: &str) -> Result<Suite, Vec<Diagnostic>> {
        let mut suite = suite::parse(
            self.tests,
            self.package,
            Source::new("the new test file", text),
            &mut Sources::of(self.tests.parent().unwrap_or(self.tests)),
        )?;
        suite.observes = true;
        Ok(suite)
    }

    /// What there is after the instance is ready, these steps are done, and some time has passed.
    fn play(&self, steps: &str) -> Result<Seen, Vec<Diagnostic>> {
        let text = format!("{}cases:\n- name: one\n  steps:\n{steps}  - wait: {LATER}\n", self.head());
        let suites = [self.suite(&text)?];
        let ended = case::play(Course::whole(&suites, (0, 0)));
        match (ended.failure, ended.seen) {
            (Some(failure), _) => Err(vec![*failure]),
            (None, Some(seen)) => Ok(seen),
            (None, None) => Err(Vec::new()),
        }
    }

    /// A change of one field that is accepted, if possible one that reaches a child: the field, the patch, and what there is then.
    fn change(&self, first: &Seen) -> Option<(String, Value, Seen)> {
        let spec = first.instance.as_ref().map(|instance| instance["spec"].clone()).unwrap_or_default();
        let version = self.instance.object["apiVersion"].as_str()?.rsplit('/').next()?;
        let schema = crate::crd::schema_of(&self.resource.crd, version).cloned().unwrap_or_default();
        let mut fields = Vec::new();
        candidates(&spec, &schema["properties"]["spec"], &mut vec!["spec".to_owned()], &mut fields);
        fields.sort_by_key(|(path, _, rank)| (*rank, path.len()));
        let mut accepted = None;
        for (path, value, _) in fields.into_iter().take(CANDIDATES) {
            let patch = path.iter().rev().fold(value, |value, key| json!({key: value}));
            let steps = format!("  - patch: {}\n    with: {}\n", self.address(), flow(&patch));
            // A refused change is none.
            let Ok(seen) = self.play(&steps) else { continue };
            if is_ready(&seen) {
                let reaches = !changes(first, &seen).is_empty();
                let found = Some((path.join("."), patch, seen));
                if reaches {
                    return found;
                }
                accepted = accepted.or(found);
            }
        }
        accepted
    }

    /// The children as expectations: the parts that are given, and of the others that they are there.
    fn children(&self, seen: &Seen, parts: &Map<String, Value>) -> Map<String, Value> {
        let mut all: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, ..) in &seen.children {
            *all.entry(id).or_default() += 1;
        }
        let each = |id: &str| self.resource.child(id).is_some_and(|child| child.for_each.is_some());
        let of = |(id, count): (&str, u64)| {
            let part =
                parts.get(id).cloned().unwrap_or_else(|| if each(id) { count.into() } else { json!({}) });
            (id.to_owned(), part)
        };
        all.into_iter().map(of).collect()
    }

    /// The children after the deletion.
    fn gone(&self, first: &Seen, left: &[&str]) -> Value {
        let mut all = self.children(first, &Map::new());
        for (id, part) in &mut all {
            if left.contains(&id.as_str()) {
                continue;
            }
            *part = if part.is_u64() { 0.into() } else { "absent".into() };
        }
        // Some members of a forEach child may be left: their number says nothing.
        all.retain(|id, part| !part.is_u64() || !left.contains(&id.as_str()));
        all.into()
    }
}

fn is_ready(seen: &Seen) -> bool {
    seen.instance.as_ref().is_some_and(|instance| has_condition(instance, "Ready"))
}

/// A step that expects the conditions of an instance, and children.
fn expect(seen: &Seen, children: &Map<String, Value>) -> String {
    let conditions = seen.instance.as_ref().and_then(|instance| instance["status"]["conditions"].as_array());
    let conditions: Map<String, Value> = { conditions.into_iter().flatten() }
        .filter_map(|one| Some((one["type"].as_str()?.to_owned(), one["status"].clone())))
        .collect();
    let conditions: Vec<String> =
        conditions.iter().map(|(name, status)| format!("{}: {status}", plain(name))).collect();
    let conditions = conditions.join(", ");
    let mut text = format!("  - expect:\n      instance: {{conditions: {{{conditions}}}}}\n");
    if !children.is_empty() {
        let _ = writeln!(text, "      children:");
        for (id, part) in children {
            let _ = writeln!(text, "        {}: {}", plain(id), flow(part));
        }
    }
    text
}

/// What has changed in the children that are not lists of objects: the new values of their specs and data.
fn changes(before: &Seen, after: &Seen) -> Map<String, Value> {
    let mut all = Map::new();
    let of = |seen: &Seen, id: &str| -> Vec<Value> {
        { seen.children.iter() }.filter(|child| child.0 == id).map(|child| child.2.clone()).collect()
    };
    let ids: std::collections::BTreeSet<&String> =
        before.children.iter().chain(&after.children).map(|(id, ..)| id).collect();
    for id in ids {
        let (old, new) = (of(before, id), of(after, id));
        let keyed =
            before.children.iter().chain(&after.children).any(|child| child.0 == *id && child.1.is_some());
        if keyed || old.len() > 1 || new.len() > 1 {
            if old.len() != new.len() {
                all.insert(id.clone(), new.len().into());
            }
            continue;
        }
        match (old.first(), new.first()) {
            (None, Some(_)) => drop(all.insert(id.clone(), json!({}))),
            (Some(_), None) => drop(all.insert(id.clone(), "absent".into())),
            (Some(old), Some(new)) => {
                let mut part = Map::new();
                for key in ["spec", "data"] {
                    if let Some(changed) = changed(&old[key], &new[key]) {
                        part.insert(key.to_owned(), changed);
                    }
                }
                if !part.is_empty() {
                    all.insert(id.clone(), part.into());
                }
            }
            (None, None) => {}
        }
    }
    all
}

/// The part of a new value that is not as before; `None` if all is, or if it differs in each play.
fn changed(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let part: Map<String, Value> = { new.iter() }
                .filter_map(|(key, value)| {
                    Some((key.clone(), changed(old.get(key).unwrap_or(&Value::Null), value)?))
                })
                .collect();
            (!part.is_empty()).then(|| part.into())
        }
        (Value::Array(old), Value::Array(new)) if new.iter().any(Value::is_object) => {
            let part: Vec<Value> = { new.iter() }
                .filter_map(|item| {
                    let name = item["name"].as_str()?;
                    let before = old.iter().find(|one| one["name"] == name).unwrap_or(&Value::Null);
                    let mut part = changed(before, item)?;
                    part.as_object_mut()?.insert("name".to_owned(), name.into());
                    Some(part)
                })
                .collect();
            (!part.is_empty()).then(|| part.into())
        }
        (old, new) => (old != new && !is_generated(&new.to_string())).then(|| new.clone()),
    }
}

/// Fields that can be changed, with another value, those that rather reach children first.
fn candidates(
    value: &Value,
    schema: &Value,
    path: &mut Vec<String>,
    found: &mut Vec<(Vec<String>, Value, u8)>,
) {
    let is_size = path.last().is_some_and(|name| SIZES.contains(&name.as_str()));
    let other = match value {
        Value::Number(number) => {
            let most = schema["maximum"].as_i64().unwrap_or(i64::MAX);
            number.as_i64().map(|now| (if now < most { now + 1 } else { now - 1 }.into(), u8::from(!is_size)))
        }
        Value::Bool(now) => Some(((!now).into(), 2)),
        Value::String(now) => {
            let choices = schema["enum"].as_array().into_iter().flatten();
            let other = choices
                .filter(|choice| choice.is_string() && *choice != now)
                .map(|other| (other.clone(), 3))
                .next();
            let is_free =
                schema["enum"].is_null() && schema["pattern"].is_null() && schema["format"].is_null();
            other.or_else(|| is_free.then(|| (format!("{now}-2").into(), 4)))
        }
        Value::Object(fields) if path.len() < DEPTH => {
            for (key, value) in fields {
                let below = match &schema["properties"][key] {
                    Value::Null => &schema["additionalProperties"],
                    known => known,
                };
                path.push(key.clone());
                candidates(value, below, path, found);
                path.pop();
            }
            None
        }
        _ => None,
    };
    found.extend(other.map(|(other, rank)| (path.clone(), other, rank)));
}
