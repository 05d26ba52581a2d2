//! Finds names in steps that mean nothing: kinds, plans, parameters, steps of plans, keys of children, resources, fields of patches.

use std::collections::BTreeSet;

use operetta_lang::schema::{Conform, Field, Fields, Schema, Type};
use serde_json::Value;

use super::catalog::{Catalog, near};
use super::suite::{Action, Suite};
use crate::api::{ApiKind, Gvk};
use crate::diag::{Diagnostic, Location, did_you_mean};
use crate::package::Resource;
use crate::package::decode::{At, Constants};
use crate::package::plan::Plan;
use crate::package::test_file::{Address, Expect, Part, Step};
use crate::plan::crds::{INSTANCE_STATE, PLAN_RUN};
use crate::yaml::Node;

/// What stands in the path of a step for the plan that runs because a step has failed.
const ON_FAILURE: &str = "onFailure";

/// The kinds of the instances that a step may be about; `None` is a kind that is not known.
type Subjects = BTreeSet<Option<Gvk>>;

/// The names in the steps of a file that mean nothing.
pub(super) fn meaningless(suite: &Suite, catalog: &Catalog<'_>) -> Vec<Diagnostic> {
    let objects = suite.cases.iter().flat_map(|case| &case.steps).filter_map(|step| match &step.action {
        // What is refused may be meant to be unknown.
        Action::Apply(objects) if step.refused.is_none() => Some(objects),
        _ => None,
    });
    let objects: Vec<_> = objects.flatten().collect();
    let plurals = objects.iter().filter_map(|object| object.value["spec"]["names"]["plural"].as_str());
    let mut names = Names { catalog, plurals: plurals.collect(), found: Vec::new() };
    for object in &objects {
        let unknown = Gvk::of(&object.value).and_then(|gvk| catalog.unknown_version(&gvk));
        names.found.extend(unknown.map(|error| error.located(object.at.clone())));
    }
    let subjects: Subjects = suite.cases.iter().map(|case| catalog.subject(case)).collect();
    for step in suite.written.before.iter().flatten() {
        names.step(&step.value, &subjects);
    }
    for (written, case) in suite.written.cases.0.iter().flatten().zip(&suite.cases) {
        let subject = Subjects::from([catalog.subject(case)]);
        for step in written.steps.0.iter().flatten() {
            names.step(&step.value, &subject);
        }
    }
    names.found
}

struct Names<'a> {
    catalog: &'a Catalog<'a>,
    /// The resources of the CRDs that cases apply.
    plurals: BTreeSet<&'a str>,
    found: Vec<Diagnostic>,
}

impl<'a> Names<'a> {
    fn step(&mut self, step: &Step, subjects: &Subjects) {
        for address in step.patch.iter().chain(&step.delete).chain(&step.of) {
            let unknown = self.catalog.unknown_kind(&address.value.kind);
            let unknown = unknown.map(|error| error.located(address.at.clone()).path(address.path.clone()));
            self.found.extend(unknown);
        }
        if step.refused.is_none() {
            if let (Some(address), Some(with)) = (&step.patch, &step.with) {
                self.patch(&address.value.kind, with);
            }
            let resources = self.resources(step.of.as_ref(), subjects);
            for plan in step.run.iter().chain(&step.approve) {
                self.plan(plan, step.params.as_ref(), &resources);
            }
        }
        if let Some(expect) = &step.expect {
            self.expect(&expect.value);
        }
        if let Some(resource) = step.breakage.as_ref().and_then(|breakage| breakage.value.resource.as_ref()) {
            self.resource(resource);
        }
    }

    /// The resources that the instance of a run may have.
    fn resources(&self, of: Option<&At<Address>>, subjects: &Subjects) -> Vec<&'a Resource> {
        let catalog = self.catalog;
        let is_possible = |resource: &&Resource| match of {
            Some(of) => resource.kind.kind == of.value.kind,
            None => subjects.iter().any(|subject| subject.as_ref().is_none_or(|gvk| resource.is_of(gvk))),
        };
        let all = if of.is_some() { &catalog.resources } else { &catalog.own };
        all.iter().copied().filter(is_possible).collect()
    }

    /// A plan that is run or approved, and its parameters.
    fn plan(&mut self, name: &At<String>, params: Option<&At<Constants>>, resources: &[&Resource]) {
        let plans: Vec<&Plan> = resources.iter().flat_map(|resource| &resource.plans).collect();
        let named: Vec<&Plan> = plans.iter().copied().filter(|plan| plan.name == name.value).collect();
        // A kind without a resource is reported as a kind. The manager has plans of its own.
        if named.is_empty() && !resources.is_empty() && !name.value.contains('/') {
            let kinds: BTreeSet<&str> = resources.iter().map(|resource| &*resource.kind.kind).collect();
            let kinds: Vec<&str> = kinds.into_iter().collect();
            let known: BTreeSet<&str> = plans.iter().map(|plan| &*plan.name).collect();
            let message = format!("{} has no plan `{}`", kinds.join(", "), name.value);
            let error = name.error("test::plan", message);
            let meant = did_you_mean(&name.value, known.iter().copied());
            let known: Vec<&str> = known.into_iter().collect();
            self.found.push(match meant {
                None if !known.is_empty() => error.help(format!("there is {}", known.join(", "))),
                _ => near(error, meant),
            });
        }
        let schemas: Option<Vec<&Value>> = named.iter().map(|plan| plan.params.as_ref()).collect();
        if let (Some(params), Some(schemas)) = (params, schemas) {
            let value = Value::Object(params.value.0.clone());
            let what = format!("`params` of the plan `{}`", name.value);
            let schemas = schemas.iter().map(|schema| (None, Schema::new(schema, self.catalog.kubernetes)));
            let mut unknown = unknown_fields(&what, schemas, &value, &params.at);
            // Wrong parameters make a run fail, which may be what the case shows. A misspelt name is no such case.
            unknown.retain(|found| found.help.as_ref().is_some_and(|help| help.starts_with("did you mean")));
            self.found.extend(unknown);
        }
    }

    /// A patch writes no fields that an API server drops.
    fn patch(&mut self, kind: &str, with: &At<Constants>) {
        let value = Value::Object(with.value.0.clone());
        let schemas = self.catalog.schemas(|gvk| *gvk.kind == *kind);
        self.found.extend(unknown_fields(kind, schemas, &value, &with.at));
    }

    fn expect(&mut self, expect: &Expect) {
        for (name, _) in expect.children.iter().flat_map(|children| &children.0) {
            let Some((id, _)) = name.value.split_once('[') else { continue };
            let children = self.catalog.resources.iter().flat_map(|resource| &resource.children);
            let mut children = children.filter(|child| child.id == id).peekable();
            // A child that does not exist is reported by itself.
            if children.peek().is_some() && children.all(|child| child.for_each.is_none()) {
                let error =
                    name.error("test::child", format!("the child `{id}` has no forEach, so it has no keys"));
                self.found.push(error.help(format!("write `{id}`")));
            }
        }
        for run in expect.runs.iter().flatten() {
            self.step_paths(run);
        }
    }

    /// The paths of steps that an expected run names.
    fn step_paths(&mut self, run: &At<Part>) {
        let mut known = BTreeSet::from([ON_FAILURE]);
        let plans = self.catalog.resources.iter().flat_map(|resource| &resource.plans);
        known.extend(plans.flat_map(Plan::all_steps).map(|step| &*step.name));
        let steps = run.value.node.get("steps").and_then(Node::as_seq).unwrap_or_default();
        for path in steps.iter().filter_map(|step| step.get("path")) {
            let text = without_keys(path.as_str().unwrap_or_default());
            for name in text.split('/').filter(|name| !known.contains(name)) {
                // Only what is near to a step is sure to be a mistake.
                if let Some(meant) = did_you_mean(name, known.iter().copied()) {
                    let error = Diagnostic::error("test::step", format!("no plan has a step `{name}`"));
                    self.found
                        .push(near(error.at(&run.at.source, path.span).path("steps.path"), Some(meant)));
                }
            }
        }
    }

    /// The resource of the requests that are to fail.
    fn resource(&mut self, name: &At<String>) {
        let built_in = self.catalog.kubernetes.kinds().iter();
        let built_in =
            built_in.map(|known| ApiKind::built_in(&known.gvk.api_version, &known.gvk.kind).plural);
        let own = self.catalog.resources.iter().map(|resource| resource.kind.plural.clone());
        let applied = self.plurals.iter().map(|plural| (*plural).to_owned());
        let operetta = [PLAN_RUN.plural, INSTANCE_STATE.plural].map(str::to_owned);
        let known: BTreeSet<String> = built_in.chain(own).chain(applied).chain(operetta).collect();
        if known.contains(&name.value) {
            return;
        }
        // The manager may know resources that are not listed here.
        if let Some(meant) = did_you_mean(&name.value, known.iter().map(String::as_str)) {
            let error = name.error("test::resource", format!("there is no resource `{}`", name.value));
            self.found.push(near(error, Some(meant)));
        }
    }
}

/// The path of a step without the keys of items: `leaving/sure` for `leaving[prod]/sure`.
fn without_keys(path: &str) -> String {
    let mut depth = 0_usize;
    let mut text = String::new();
    for c in path.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            c if depth == 0 => text.push(c),
            _ => {}
        }
    }
    text
}

/// The fields of a value that the most similar of the schemas does not have.
fn unknown_fields<'s>(
    what: &str,
    schemas: impl IntoIterator<Item = (Option<&'s str>, Schema<'s>)>,
    value: &Value,
    at: &Location,
) -> Vec<Diagnostic> {
    let each = schemas.into_iter().map(|(built_in, schema)| {
        let mut check = Conform::new(what, built_in, Some(schema));
        check.check(&partial(value), schema, at);
        let mut found = check.finish();
        found.retain(|found| found.code == "schema::unknown-field");
        found
    });
    each.min_by_key(Vec::len).unwrap_or_default()
}

/// The type of a part of an object: its maps may have other fields, too.
fn partial<'a>(value: &Value) -> Type<'a> {
    match value {
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| Field {
                key: key.clone(),
                at: None,
                value: partial(value),
            });
            Type::map(Fields { entries: entries.collect(), is_open: true })
        }
        Value::Array(items) => Type::list(items.iter().map(partial).collect()),
        scalar => Type::literal(scalar),
    }
}

#[cfg(test)]
mod tests {
    use super::without_keys;

    #[test]
    fn path_of_a_step_has_keys_of_items() {
        assert_eq!(without_keys("leaving[prod]/sure"), "leaving/sure");
        assert_eq!(without_keys("leaving[a[0]]/sure[2]"), "leaving/sure");
    }
}
