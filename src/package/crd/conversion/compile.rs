//! Compiles declared conversion rules.

mod compare;

use operetta_kube_model::schema::{
    OBJECT_FIELDS, apply_defaults, default_of, is_int_or_string, join, preserves, properties, values,
};
use serde_json::{Map, Value};

use super::Conversion;
use super::path::{Path, Segment, show};
use super::rules::{Field, Rules};
use crate::crd::{Lookup, kind, lookup, schema_of, storage_version, validate_part, versions};
use crate::diag::did_you_mean;

/// The maximum size of a compiled conversion, because it is stored in an annotation of the CRD.
const MAX_BYTES: usize = 64 << 10;

/// A declared rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The path of the field: in the version of the rule if that has the field, otherwise in the storage
    /// version.
    pub path: String,
    /// The treatment of the field.
    pub kind: RuleKind,
}

/// The treatment of a field by a rule.
#[derive(Debug, Clone, PartialEq)]
pub enum RuleKind {
    /// The field has this other path in the storage version.
    Move(String),
    /// Only one version has the field. An object that comes from the other version gets this value.
    Default(Value),
    /// Only one version has the field. Its value is kept while the object is in the other version.
    Keep,
}

/// A problem with the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The version whose rules have the problem; `None` for a problem of the whole conversion.
    pub version: Option<String>,
    /// The index of the rule among those of its version; `None` if a rule is missing.
    pub rule: Option<usize>,
    /// The message.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// Compiles the rules of the versions of a CRD. The CRD must include Operetta's additions.
///
/// # Errors
/// All problems that were found.
pub fn compile(crd: &Value, declared: &[(&str, Vec<Rule>)]) -> Result<Conversion, Vec<Problem>> {
    let whole = |message: &str, help: Option<&str>| Problem {
        version: None,
        rule: None,
        message: message.to_owned(),
        help: help.map(str::to_owned),
    };
    let (Some(kind), Some(hub)) = (kind(crd), storage_version(crd)) else { return Err(Vec::new()) };
    if crd["spec"]["conversion"]["strategy"].as_str().is_some_and(|strategy| strategy != "None") {
        let help = "remove spec.conversion from the CRD: the manager sets it";
        return Err(vec![whole("the CRD declares a conversion of its own", Some(help))]);
    }
    let names: Vec<&str> = versions(crd).filter_map(|version| version["name"].as_str()).collect();
    if names.len() < 2 {
        return Err(vec![whole("the CRD has one version, so there is nothing to convert", None)]);
    }
    let mut problems = Vec::new();
    for (name, _) in declared {
        let problem =
            |message, help| Problem { version: Some((*name).to_owned()), rule: None, message, help };
        if *name == hub {
            let message = format!("{name} is the storage version, to which the rules of the others lead");
            problems.push(problem(message, Some("declare the rules of the other versions".to_owned())));
        } else if !names.contains(name) {
            let help =
                did_you_mean(name, names.iter().copied()).map(|near| format!("did you mean `{near}`?"));
            problems.push(problem(format!("the CRD has no version {name}"), help));
        }
    }
    let mut conversion = Conversion {
        group: kind.group,
        kind: kind.kind,
        hub: hub.to_owned(),
        versions: std::collections::BTreeMap::new(),
    };
    for name in names.iter().filter(|name| **name != hub) {
        let (Some(own), Some(stored)) = (schema_of(crd, name), schema_of(crd, hub)) else { continue };
        let rules = declared.iter().find(|(of, _)| of == name).map_or(&[][..], |(_, rules)| rules);
        let mut pair = Pair {
            own: Side { version: name, schema: own, taken: Vec::new() },
            hub: Side { version: hub, schema: stored, taken: Vec::new() },
            problems: Vec::new(),
        };
        let compiled = pair.rules(rules);
        problems.append(&mut pair.problems);
        conversion.versions.insert((*name).to_owned(), compiled);
    }
    if serde_json::to_string(&conversion).is_ok_and(|text| text.len() > MAX_BYTES) {
        problems.push(whole(&format!("the rules and defaults take more than {} KiB", MAX_BYTES >> 10), None));
    }
    if problems.is_empty() { Ok(conversion) } else { Err(problems) }
}

/// One side of a conversion: a version with its schema.
struct Side<'a> {
    version: &'a str,
    schema: &'a Value,
    /// The fields that rules handle, each with the index of its rule.
    taken: Vec<(Path, usize)>,
}

/// The two sides of a conversion: a version, and the storage version as the hub.
struct Pair<'a> {
    own: Side<'a>,
    hub: Side<'a>,
    problems: Vec<Problem>,
}

/// A field that was found in a schema.
struct Found<'a> {
    path: Path,
    schema: &'a Value,
    is_required: bool,
}

impl<'a> Side<'a> {
    /// Finds the field at a path, or describes why the path is wrong.
    fn find(&self, text: &str) -> Result<Found<'a>, (String, Option<String>)> {
        let steps = parse(text).ok_or_else(|| {
            let help = "such as spec.size, or spec.pools[*].size for each item of a list or map".to_owned();
            (format!("`{text}` is no path of a field"), Some(help))
        })?;
        if !matches!(steps.first(), Some(first) if *first != "*" && !OBJECT_FIELDS.contains(first)) {
            return Err((format!("`{text}` must be a field of the spec or the status"), None));
        }
        if let Lookup::Unknown { parent, candidates } = lookup(self.schema, &steps) {
            let wrong = steps.iter().rev().find(|step| !candidates.contains(&(**step).to_owned()));
            let near = wrong.and_then(|step| did_you_mean(step, candidates.iter().map(String::as_str)));
            let help = near.map(|near| format!("did you mean `{}`?", join(&parent, near)));
            return Err((format!("{} has no field `{text}`", self.version), help));
        }
        let mut here = self.schema;
        let (mut path, mut is_required) = (Path::new(), false);
        for step in steps {
            let next = if step == "*" {
                let keys = here.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                let keys = keys.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
                path.push(Segment::Each { each: keys.collect() });
                is_required = false;
                here.get("items").or_else(|| values(here))
            } else {
                if let Some(Segment::Each { each }) = path.last()
                    && each.iter().any(|key| key == step)
                {
                    return Err((
                        format!("`{text}` is a key of its list, by which items are recognized"),
                        None,
                    ));
                }
                path.push(Segment::Key(step.to_owned()));
                let required = here.get("required").and_then(Value::as_array);
                is_required = required.is_some_and(|names| names.iter().any(|name| name == step));
                properties(here).and_then(|known| known.get(step))
            };
            here = next.ok_or_else(|| {
                (format!("the schema of {} does not describe `{text}`", self.version), None)
            })?;
        }
        Ok(Found { path, schema: here, is_required })
    }

    fn is_taken(&self, path: &[Segment]) -> bool {
        self.taken.iter().any(|(taken, _)| taken == path)
    }

    fn has_taken_below(&self, path: &[Segment]) -> bool {
        self.taken.iter().any(|(taken, _)| taken.len() > path.len() && taken.starts_with(path))
    }
}

/// Splits `spec.pools[*].size` into `["spec", "pools", "*", "size"]`.
fn parse(text: &str) -> Option<Vec<&str>> {
    let mut steps = Vec::new();
    for part in text.split('.') {
        let (name, each) = match part.strip_suffix("[*]") {
            Some(name) => (name, true),
            None => (part, false),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '$');
        if name.is_empty() || !name.chars().all(fits) {
            return None;
        }
        steps.push(name);
        if each {
            steps.push("*");
        }
    }
    Some(steps)
}

impl<'a> Pair<'a> {
    fn report(&mut self, rule: Option<usize>, message: String, help: Option<String>) {
        self.problems.push(Problem { version: Some(self.own.version.to_owned()), rule, message, help });
    }

    fn rules(&mut self, rules: &[Rule]) -> Rules {
        let mut compiled = Rules::default();
        // Moves come first, because a field that one version moves away may exist in the other under the same
        // path.
        for (index, rule) in rules.iter().enumerate() {
            if let RuleKind::Move(to) = &rule.kind {
                compiled.moves.extend(self.moved(index, &rule.path, to));
            }
        }
        for (index, rule) in rules.iter().enumerate() {
            let default = match &rule.kind {
                RuleKind::Move(_) => continue,
                RuleKind::Default(value) => Some(value.clone()),
                RuleKind::Keep => None,
            };
            if let Some((is_own, field)) = self.kept(index, &rule.path, default) {
                let only = if is_own { &mut compiled.own } else { &mut compiled.hub };
                only.fields.push(field);
            }
        }
        self.overlaps();
        if self.problems.is_empty() {
            self.compare(&mut compiled);
        }
        compiled
    }

    fn moved(&mut self, index: usize, from: &str, to: &str) -> Option<(Path, Path)> {
        let (own, hub) = match (self.own.find(from), self.hub.find(to)) {
            (Ok(own), Ok(hub)) => (own, hub),
            (own, hub) => {
                for (message, help) in own.err().into_iter().chain(hub.err()) {
                    self.report(Some(index), message, help);
                }
                return None;
            }
        };
        let prefix = |path: &Path| {
            let last = path.iter().rposition(|segment| matches!(segment, Segment::Each { .. }));
            path[..last.map_or(0, |last| last + 1)].to_vec()
        };
        if prefix(&own.path) != prefix(&hub.path) {
            let message =
                format!("`{from}` and `{to}` are in different lists; a field moves within its item");
            self.report(Some(index), message, None);
            return None;
        }
        let mut differences = Vec::new();
        same(own.schema, hub.schema, from, &mut differences);
        for difference in differences {
            let (own, hub) = (self.own.version, self.hub.version);
            let message =
                format!("{difference} in {own} and {hub}, so that a value cannot move without a change");
            self.report(Some(index), message, None);
        }
        for (this, other, there, back) in [(&own, &hub, to, &self.hub), (&hub, &own, from, &self.own)] {
            if other.is_required
                && !this.is_required
                && default_of(this.schema).is_none()
                && default_of(other.schema).is_none()
            {
                let message = format!(
                    "{} requires `{there}`, and the field from which it comes may be absent",
                    back.version
                );
                let help = "require both or none, or give the field a default in the schema".to_owned();
                let version = Some(self.own.version.to_owned());
                self.problems.push(Problem { version, rule: Some(index), message, help: Some(help) });
                break;
            }
        }
        self.own.taken.push((own.path.clone(), index));
        self.hub.taken.push((hub.path.clone(), index));
        Some((own.path, hub.path))
    }

    /// The field of a rule that only one version has, and whether that is the version of the rule.
    fn kept(&mut self, index: usize, text: &str, default: Option<Value>) -> Option<(bool, Field)> {
        let free = |side: &Side<'a>| {
            side.find(text).map(|found| if side.is_taken(&found.path) { None } else { Some(found) })
        };
        let (is_own, found) = match (free(&self.own), free(&self.hub)) {
            (Ok(Some(_)), Ok(Some(_))) => {
                let message = format!(
                    "both {} and {} have `{text}`, so it needs no rule",
                    self.own.version, self.hub.version
                );
                let help =
                    "for a field of another type or meaning, choose another name in one of them".to_owned();
                self.report(Some(index), message, Some(help));
                return None;
            }
            (Ok(Some(found)), _) => (true, found),
            (_, Ok(Some(found))) => (false, found),
            (Ok(None), _) | (_, Ok(None)) => {
                self.report(Some(index), format!("`{text}` is in two rules"), None);
                return None;
            }
            (Err((message, help)), Err((_, other))) => {
                let message = format!("{message}, nor has {}", self.hub.version);
                self.report(Some(index), message, help.or(other));
                return None;
            }
        };
        let side = if is_own { &self.own } else { &self.hub };
        let (version, other) =
            (side.version.to_owned(), if is_own { self.hub.version } else { self.own.version });
        if found.path.iter().any(|s| matches!(s, Segment::Each { each } if each.is_empty()))
            && !self.is_map(&found)
        {
            let message = format!(
                "`{text}` is in a list without keys, so its value could not be given back to the item it came from"
            );
            let help =
                "set `x-kubernetes-list-type: map` and the keys of the list in both versions".to_owned();
            self.report(Some(index), message, Some(help));
            return None;
        }
        match &default {
            Some(value) => {
                let mut filled = value.clone();
                apply_defaults(found.schema, &mut filled);
                for violation in validate_part(found.schema, &filled, text) {
                    let message = format!(
                        "the default of {version} is invalid: {} {}",
                        violation.path, violation.message
                    );
                    self.report(Some(index), message, None);
                }
            }
            None if found.is_required && default_of(found.schema).is_none() => {
                let message =
                    format!("{version} requires `{text}`, and objects of {other} have no value for it");
                let help = format!("give it one: {{default: {text}, value: ...}}");
                self.report(Some(index), message, Some(help));
            }
            None => {}
        }
        let side = if is_own { &mut self.own } else { &mut self.hub };
        side.taken.push((found.path.clone(), index));
        Some((is_own, Field { path: found.path, default, schema: undescribed(found.schema) }))
    }

    /// Whether the path contains no lists, only maps.
    fn is_map(&self, found: &Found<'_>) -> bool {
        let is_map_in = |schema: &Value| {
            let mut here = Some(schema);
            found.path.iter().all(|segment| {
                let Some(schema) = here else { return true };
                let is_list = schema.get("items").is_some();
                here = match segment {
                    Segment::Key(key) => properties(schema).and_then(|known| known.get(key)),
                    Segment::Each { .. } => schema.get("items").or_else(|| values(schema)),
                };
                !(is_list && matches!(segment, Segment::Each { each } if each.is_empty()))
            })
        };
        is_map_in(self.own.schema) && is_map_in(self.hub.schema)
    }

    fn overlaps(&mut self) {
        let mut found = Vec::new();
        for side in [&self.own, &self.hub] {
            for (position, (path, rule)) in side.taken.iter().enumerate() {
                for (other, earlier) in &side.taken[..position] {
                    if path.starts_with(other) || other.starts_with(path) {
                        let message = format!(
                            "`{}` and `{}` of {} are in two rules: a rule is about a whole field",
                            show(path),
                            show(other),
                            side.version
                        );
                        found.push(((*rule).max(*earlier), message));
                    }
                }
            }
        }
        for (rule, message) in found {
            self.report(Some(rule), message, None);
        }
    }
}

/// The difference between two schemas of the same value, apart from their fields and items.
pub(super) fn differ(own: &Value, hub: &Value) -> Option<&'static str> {
    let is_true = |schema: &Value, key: &str| schema.get(key) == Some(&Value::Bool(true));
    if own.get("type") != hub.get("type") || is_int_or_string(own) != is_int_or_string(hub) {
        return Some("has different types");
    }
    let open =
        |schema: &Value| (preserves(schema), schema.get("additionalProperties") == Some(&Value::Bool(true)));
    if open(own) != open(hub) || values(own).is_some() != values(hub).is_some() {
        return Some("allows different unknown fields");
    }
    let embedded = "x-kubernetes-embedded-resource";
    if is_true(own, embedded) != is_true(hub, embedded) {
        return Some("has different `x-kubernetes-embedded-resource`");
    }
    if is_true(own, "nullable") != is_true(hub, "nullable") {
        return Some("has different `nullable`");
    }
    None
}

/// Collects the fields in which two schemas do not keep the same values.
fn same(own: &Value, hub: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(difference) = differ(own, hub) {
        found.push(format!("`{path}` {difference}"));
        return;
    }
    let empty = Map::new();
    let (own_fields, hub_fields) = (properties(own).unwrap_or(&empty), properties(hub).unwrap_or(&empty));
    for (name, field) in own_fields {
        match hub_fields.get(name) {
            Some(other) => same(field, other, &join(path, name), found),
            None => found.push(format!("`{}` is not the same field", join(path, name))),
        }
    }
    for name in hub_fields.keys().filter(|name| !own_fields.contains_key(*name)) {
        found.push(format!("`{}` is not the same field", join(path, name)));
    }
    for (own, hub) in [(own.get("items"), hub.get("items")), (values(own), values(hub))] {
        if let (Some(own), Some(hub)) = (own, hub) {
            same(own, hub, &format!("{path}[*]"), found);
        }
    }
}

/// Returns the schema without descriptions.
fn undescribed(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => map
            .iter()
            .filter(|(key, value)| !(*key == "description" && value.is_string()))
            .map(|(key, value)| (key.clone(), undescribed(value)))
            .collect(),
        Value::Array(items) => items.iter().map(undescribed).collect(),
        _ => schema.clone(),
    }
}
