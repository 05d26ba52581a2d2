//! Finds expectations that can never hold: the kind has no such field, or the field never has such a value.

use std::collections::{BTreeMap, BTreeSet};

use operetta_lang::schema::{Conform, Field, Fields, Lookup, Schema, Shape, Type};

use super::catalog::{Catalog, near, reasons};
use super::suite::{Action, Expect, Suite};
use crate::api::Gvk;
use crate::diag::{Diagnostic, Location, Source, did_you_mean};
use crate::package::decode::At;
use crate::package::test_file::{Part, Partial};
use crate::yaml::{Node, NodeValue};

/// The statuses of a condition.
const STATUSES: [&str; 3] = ["True", "False", "Unknown"];
/// The key of a part that stands for the conditions of the status.
const BY_TYPE: &str = "conditions";

/// The expectations of a file that can never hold.
pub(super) fn impossible(suite: &Suite, catalog: &Catalog<'_>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    // The steps of `before` are in each case.
    let mut seen = BTreeSet::new();
    for case in &suite.cases {
        let subject = catalog.subject(case);
        for step in &case.steps {
            if let Action::Expect(expect) = &step.action
                && seen.insert(step.location.span.start)
            {
                found.extend(catalog.expect(expect, subject.as_ref()));
            }
        }
    }
    found
}

impl Catalog<'_> {
    fn expect(&self, expect: &Expect, subject: Option<&Gvk>) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        if let Some(Partial::Part(part)) = &expect.instance {
            let is_subject = |gvk: &Gvk| {
                subject.map_or_else(|| self.instances.contains_key(gvk), |subject| gvk == subject)
            };
            found.extend(part_misfits(&self.schemas(is_subject), kind_of(subject, "the instance"), part));
            found.extend(self.conditions_of_instance(subject, part));
        }
        for (name, partial) in &expect.children {
            let id = name.value.split('[').next().unwrap_or_default();
            let Some(kinds) = self.children.get(id) else {
                let error = name.error("test::child", format!("the package has no child `{id}`"));
                found.push(near(error, did_you_mean(id, self.children.keys().copied())));
                continue;
            };
            if let Partial::Part(part) = partial {
                let kind = kinds.first().copied().filter(|_| kinds.len() == 1);
                let schemas = self.schemas(|gvk| kinds.contains(gvk));
                // A kind of which nothing is known may have any field.
                if kinds.iter().all(|kind| !self.schemas(|gvk| gvk == *kind).is_empty()) {
                    found.extend(part_misfits(&schemas, kind_of(kind, "the child"), part));
                }
            }
        }
        for (name, address, partial) in &expect.objects {
            let schemas = self.schemas(|gvk| *gvk.kind == address.kind);
            if let Some(unknown) = self.unknown_kind(&address.kind) {
                found.push(unknown.located(name.at.clone()).path(name.path.clone()));
            } else if let Partial::Part(part) = partial {
                found.extend(part_misfits(&schemas, &address.kind, part));
            }
        }
        for run in &expect.runs {
            let schema = Schema::new(&self.run_fields, self.kubernetes);
            found.extend(part_misfits(&[(None, schema)], "a run", run));
            // The manager has plans of its own.
            let plan = run.value.node.get("plan").filter(|plan| {
                plan.as_str().is_some_and(|name| !self.plans.contains(name) && !name.contains('/'))
            });
            if let Some(plan) = plan {
                let name = plan.as_str().unwrap_or_default();
                let error = Diagnostic::error("test::plan", format!("the package has no plan `{name}`"));
                let error = error.at(&run.at.source, plan.span);
                found.push(near(error, did_you_mean(name, self.plans.iter().copied())));
            }
        }
        let events = self.schemas(|gvk| gvk.parts() == ("v1", "Event"));
        for event in &expect.events {
            found.extend(part_misfits(&events, "an Event", event));
        }
        found
    }

    /// Conditions that an instance never has, if their names are near to those that it may have, and reasons that they never have.
    fn conditions_of_instance(&self, subject: Option<&Gvk>, part: &At<Part>) -> Vec<Diagnostic> {
        let mut known: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let of_subject = { self.instances.iter() }
            .filter(|(gvk, _)| subject.is_none_or(|subject| subject == *gvk))
            .flat_map(|(_, conditions)| conditions);
        for (name, reasons) in of_subject {
            known.entry(*name).or_default().extend(reasons);
        }
        let ours = reasons();
        let written = part.value.node.get(BY_TYPE).and_then(Node::as_map).unwrap_or_default();
        let wrong = written.iter().filter_map(|(key, condition)| {
            let name = key.as_str()?;
            let (message, span, meant) = if let Some(reasons) = known.get(name) {
                let node = condition.get("reason")?;
                let reasons = if reasons.is_empty() { &ours } else { reasons };
                let reason = node.as_str().filter(|reason| !reasons.contains(reason))?;
                let message = format!("the condition `{name}` never has the reason `{reason}`");
                (message, node.span, did_you_mean(reason, reasons.iter().copied()))
            } else {
                let meant = did_you_mean(name, known.keys().copied())?;
                (format!("there is no condition `{name}`"), key.span, Some(meant))
            };
            let error = Diagnostic::error("test::condition", message).at(&part.at.source, span);
            Some(near(error, meant))
        });
        wrong.collect()
    }
}

fn kind_of<'g>(gvk: Option<&'g Gvk>, otherwise: &'g str) -> &'g str {
    gvk.map_or(otherwise, |gvk| &gvk.kind)
}

/// What a part has that no schema allows.
fn part_misfits(schemas: &[(Option<&str>, Schema<'_>)], what: &str, part: &At<Part>) -> Vec<Diagnostic> {
    let mut least: Option<Vec<Diagnostic>> = None;
    for (built_in, schema) in schemas {
        let found = misfits(what, *built_in, *schema, part);
        if found.is_empty() {
            return found;
        }
        if least.as_ref().is_none_or(|least| found.len() < least.len()) {
            least = Some(found);
        }
    }
    least.unwrap_or_default()
}

/// What a part has that a schema does not allow.
fn misfits(what: &str, built_in: Option<&str>, schema: Schema<'_>, part: &At<Part>) -> Vec<Diagnostic> {
    let source = &part.at.source;
    let mut node = (*part.value.node).clone();
    let mut conditions = None;
    if let (NodeValue::Map(entries), Lookup::Unknown(_)) = (&mut node.value, schema.field(BY_TYPE))
        && let Some(place) = entries.iter().position(|(key, _)| key.as_str() == Some(BY_TYPE))
    {
        conditions = Some(entries.remove(place).1);
    }
    let mut check = Conform::new(what, built_in, Some(schema));
    check.check(&typed(&node, source), schema, &part.at);
    let mut found = check.finish();
    let Some(conditions) = conditions.as_ref().and_then(Node::as_map) else { return found };
    let of_status = match schema.field("status") {
        Lookup::Known(status) => match status.field(BY_TYPE) {
            Lookup::Known(list) => list.items(),
            Lookup::Unknown(_) => {
                let error = Diagnostic::error("test::condition", format!("{what} has no conditions"));
                found.push(error.located(part.at.clone()));
                None
            }
            Lookup::Open => None,
        },
        Lookup::Unknown(_) | Lookup::Open => None,
    };
    for (key, condition) in conditions {
        match (&condition.value, of_status) {
            (NodeValue::String(status), _) if !STATUSES.contains(&status.as_str()) => {
                let error = format!("a condition is {}, not {status:?}", STATUSES.join(", "));
                found.push(Diagnostic::error("test::condition", error).at(source, condition.span));
            }
            (NodeValue::Number(_) | NodeValue::Seq(_), _) => {
                let error = format!("a condition is {}, or a map", STATUSES.join(", "));
                found.push(Diagnostic::error("test::condition", error).at(source, condition.span));
            }
            (NodeValue::Map(_), Some(schema)) => {
                let path = format!("conditions.{}", key.as_str().unwrap_or_default());
                let mut check = Conform::new(what, built_in, None).below(&path);
                check.check(&typed(condition, source), schema, &Location::new(source, key.span));
                found.extend(check.finish());
            }
            _ => {}
        }
    }
    found
}

/// A part as a type. Its maps are open: a part need not have what an object must have.
fn typed<'a>(node: &Node, source: &std::sync::Arc<Source>) -> Type<'a> {
    let at = |node: &Node| Location::new(source, node.span);
    let ty = match &node.value {
        NodeValue::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| Field {
                key: key.as_str().unwrap_or_default().to_owned(),
                at: Some(at(key)),
                value: typed(value, source),
            });
            Type::map(Fields { entries: entries.collect(), is_open: true })
        }
        NodeValue::Seq(items) => Type::list(items.iter().map(|item| typed(item, source)).collect()),
        _ => Type::literal(&node.to_json()),
    };
    let is_scalar = matches!(ty.shape, Shape::Literal(_));
    if is_scalar { ty.written(at(node)) } else { ty }
}
