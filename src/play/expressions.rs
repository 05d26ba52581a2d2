//! Checks the types of expressions of cases: fields that no schema has, and comparisons that never hold.

use std::collections::{BTreeMap, BTreeSet};

use operetta_lang::schema::{Basic, Field, Fields, Type};

use super::catalog::Catalog;
use super::suite::{Action, Check, Invariant, Step, Suite};
use crate::api::Gvk;
use crate::diag::Diagnostic;
use crate::template::{Engine, Infer, Lets};

/// The kinds of the instances that expressions are about; `None` is a kind that is not known.
type Subjects = BTreeSet<Option<Gvk>>;

/// The mistakes in the expressions of a file.
pub(super) fn mistyped(suite: &Suite, catalog: &Catalog<'_>) -> Vec<Diagnostic> {
    let variables = Variables::of(catalog);
    let mut found = Vec::new();
    if let Some(first) = suite.cases.first() {
        // What all cases share must have a meaning in one of them.
        let subjects = suite.cases.iter().map(|case| catalog.subject(case)).collect();
        let shared = written(&first.invariants[..first.shared], &first.steps[..first.before]);
        found.extend(variables.check(catalog, &subjects, &shared));
    }
    for case in &suite.cases {
        let own = written(&case.invariants[case.shared..], &case.steps[case.before..]);
        found.extend(variables.check(catalog, &Subjects::from([catalog.subject(case)]), &own));
    }
    found
}

/// The expressions of invariants and of expectations.
fn written<'c>(invariants: &'c [Invariant], steps: &'c [Step]) -> Vec<&'c Check> {
    let expected = steps.iter().flat_map(|step| match &step.action {
        Action::Expect(expect) => &expect.that[..],
        _ => &[],
    });
    invariants.iter().map(|invariant| &invariant.expression).chain(expected).collect()
}

/// The types of the variables that are the same in all cases.
struct Variables<'a> {
    objects: Type<'a>,
    deleted: Type<'a>,
    pods: Type<'a>,
    runs: Type<'a>,
}

fn list(item: Type<'_>) -> Type<'_> {
    Type::each(Basic::LIST, item)
}

fn map<'a>(entries: impl Iterator<Item = (String, Type<'a>)>, is_open: bool) -> Type<'a> {
    let entries = entries.map(|(key, value)| Field { key, at: None, value }).collect();
    Type::map(Fields { entries, is_open })
}

impl<'a> Variables<'a> {
    fn of(catalog: &'a Catalog<'_>) -> Self {
        let kinds = catalog.kinds();
        let objects = kinds.iter().map(|kind| {
            let object = catalog.object(|gvk| *gvk.kind == **kind);
            ((*kind).to_owned(), list(object))
        });
        let deleted = kinds.iter().map(|kind| ((*kind).to_owned(), list(Type::string())));
        Self {
            objects: map(objects, catalog.is_open()),
            deleted: map(deleted, catalog.is_open()),
            pods: list(catalog.object(|gvk| gvk.is("v1", "Pod"))),
            runs: list(catalog.run()),
        }
    }

    fn check(&self, catalog: &'a Catalog<'_>, subjects: &Subjects, checks: &[&Check]) -> Vec<Diagnostic> {
        let (engine, lets) = (Engine::empty(), Lets::new([]));
        let mut infer = Infer::new(&engine, &lets, "");
        // While an expression reads something that is not there, it does not count.
        infer.reports_absent = false;
        infer.set("objects", self.objects.clone());
        infer.set("deleted", self.deleted.clone());
        infer.set("pods", self.pods.clone());
        infer.set("runs", self.runs.clone());
        let known: Option<Vec<&Gvk>> = subjects.iter().map(Option::as_ref).collect();
        if let Some(known) = known {
            let types = known.iter().map(|subject| catalog.object(|gvk| gvk == *subject)).collect();
            infer.set("instance", Type::one_of(types));
            infer.set("children", children(catalog, &known));
        }
        let mut found = Vec::new();
        for check in checks {
            infer.refuel();
            infer.expression(&check.expr);
            found.extend(infer.take_found().into_iter().map(|mistake| mistake.path(check.path.clone())));
        }
        found
    }
}

/// The type of the children of instances of these kinds.
fn children<'a>(catalog: &'a Catalog<'_>, subjects: &[&Gvk]) -> Type<'a> {
    let mut types: BTreeMap<String, Vec<(bool, Type<'a>)>> = BTreeMap::new();
    let resources = catalog.resources.iter().copied();
    for resource in resources.filter(|resource| subjects.iter().any(|subject| resource.is_of(subject))) {
        for child in &resource.children {
            let known = child.kinds.iter().map(|kind| catalog.object(|gvk| gvk == kind));
            let object = Type::one_of(known.collect());
            types.entry(child.id.clone()).or_default().push((child.for_each.is_some(), object));
        }
    }
    let entries = types.into_iter().map(|(id, types)| {
        let is_each = types.iter().any(|(is_each, _)| *is_each);
        let is_mixed = types.iter().any(|(other, _)| *other != is_each);
        let object = Type::one_of(types.into_iter().map(|(_, object)| object).collect());
        let ty = match (is_mixed, is_each) {
            (true, _) => Type::any(),
            (false, true) => Type::each(Basic::MAP, object),
            (false, false) => object,
        };
        (id, ty)
    });
    map(entries, false)
}
