//! Finds expectations that can never hold: the kind has no such field, or the field never has such a value.

use std::collections::{BTreeMap, BTreeSet};

use operetta_lang::schema::{Conform, Field, Fields, Kubernetes, Lookup, Schema, Shape, Type};
use serde_json::{Value, json};

use super::suite::{Action, Case, Expect, Suite};
use crate::api::Gvk;
use crate::crd;
use crate::diag::{Diagnostic, Location, Source, did_you_mean};
use crate::package::Package;
use crate::package::decode::At;
use crate::package::test_file::{Part, Partial};
use crate::plan::crds;
use crate::yaml::{Node, NodeValue};

/// The statuses of a condition.
const STATUSES: [&str; 3] = ["True", "False", "Unknown"];
/// The conditions of each instance.
const CONDITIONS: [&str; 5] = ["Ready", "Reconciling", "Stalled", "StatusFailed", "CRDFieldManagerConflict"];
/// The key of a part that stands for the conditions of the status.
const BY_TYPE: &str = "conditions";

/// All expectations that can never hold.
pub(super) fn impossible(suites: &[Suite]) -> Vec<Diagnostic> {
    let kubernetes = Kubernetes::load();
    let mut found: Vec<Diagnostic> = Vec::new();
    for suite in suites {
        let catalog = Catalog::of(suite, &kubernetes);
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
    }
    found
}

/// The kinds and children that a suite can meet.
struct Catalog<'s> {
    kubernetes: &'s Kubernetes,
    /// The kinds of the packages and of Operetta, with the schema of each version.
    customs: Vec<(Gvk, Value)>,
    /// The kinds of other CRDs that cases apply.
    applied: BTreeSet<String>,
    /// The kinds of the children, by id.
    children: BTreeMap<&'s str, BTreeSet<&'s Gvk>>,
    /// The kinds of instances of the package, and the conditions of each.
    instances: BTreeMap<Gvk, BTreeSet<&'s str>>,
    plans: BTreeSet<&'s str>,
    /// The schema of a run as expectations see it.
    runs: Value,
}

fn schemas_of(crd: &Value) -> Vec<(Gvk, Value)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, kind) = (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["kind"]));
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    let schemas = versions.map(|version| {
        let name = text(&version["name"]);
        let schema = crd::schema_of(crd, &name).cloned().unwrap_or_default();
        (Gvk::new(format!("{group}/{name}"), kind.as_str()), schema)
    });
    schemas.collect()
}

impl<'s> Catalog<'s> {
    fn of(suite: &'s Suite, kubernetes: &'s Kubernetes) -> Self {
        let steps = || suite.cases.iter().flat_map(|case| &case.steps).map(|step| &step.action);
        let upgrades = steps().filter_map(|action| match action {
            Action::Upgrade(package) => Some(package),
            _ => None,
        });
        let revisions: Vec<&Package> =
            suite.packages.iter().take(1).chain(upgrades).map(|package| &**package).collect();
        let others = suite.packages.iter().skip(1).map(|package| &**package);
        let resources: Vec<_> =
            { revisions.iter().copied() }.chain(others).flat_map(|package| &package.resources).collect();
        let own = [crds::plan_run(), crds::instance_state()];
        let crds = resources.iter().map(|resource| resource.augmented_crd()).chain(own);
        let mut children: BTreeMap<&str, BTreeSet<&Gvk>> = BTreeMap::new();
        for child in resources.iter().flat_map(|resource| &resource.children) {
            children.entry(&child.id).or_default().extend(&child.kinds);
        }
        let mut instances: BTreeMap<Gvk, BTreeSet<&str>> = BTreeMap::new();
        for resource in revisions.iter().flat_map(|package| &package.resources) {
            for gvk in resource.served_kinds() {
                let own = resource.conditions.iter().map(|condition| &*condition.type_);
                instances.entry(gvk).or_default().extend(own.chain(CONDITIONS));
            }
        }
        let applied = steps().filter_map(|action| match action {
            Action::Apply(objects) => Some(objects),
            _ => None,
        });
        let applied = applied.flatten().filter(|object| object.value["kind"] == "CustomResourceDefinition");
        let applied = applied.filter_map(|crd| crd.value["spec"]["names"]["kind"].as_str());
        let plans: BTreeSet<&str> =
            { resources.iter() }.flat_map(|resource| &resource.plans).map(|plan| &*plan.name).collect();
        Self {
            kubernetes,
            customs: crds.flat_map(|crd| schemas_of(&crd)).collect(),
            applied: applied.map(str::to_owned).collect(),
            children,
            instances,
            plans,
            runs: run_schema(),
        }
    }

    /// The kind of the instance that a case is about.
    fn subject(&self, case: &Case) -> Option<Gvk> {
        let applied = case.steps.iter().filter_map(|step| match &step.action {
            Action::Apply(objects) => Some(objects),
            _ => None,
        });
        let mut kinds = applied.flatten().filter_map(|object| Gvk::of(&object.value));
        kinds.find(|gvk| self.instances.contains_key(gvk))
    }

    /// The schemas that objects of a kind may have, and the kind if it is built in.
    fn schemas(&self, fits: impl Fn(&Gvk) -> bool) -> Vec<(Option<&str>, Schema<'_>)> {
        let built_in = self
            .kubernetes
            .kinds()
            .iter()
            .filter(|known| fits(&known.gvk))
            .filter_map(|known| Some((Some(&*known.gvk.kind), self.kubernetes.schema(known)?)));
        let customs = self.customs.iter().filter(|(gvk, _)| fits(gvk));
        let customs = customs.map(|(_, schema)| (None, Schema::of_object(schema, self.kubernetes)));
        built_in.chain(customs).collect()
    }

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
            if schemas.is_empty() && !self.applied.contains(&address.kind) {
                let built_in = self.kubernetes.kinds().iter().map(|known| &*known.gvk.kind);
                let known = built_in.chain(self.customs.iter().map(|(gvk, _)| &*gvk.kind));
                let error = name.error("test::kind", format!("there is no kind `{}`", address.kind));
                found.push(near(error, did_you_mean(&address.kind, known)));
            } else if let Partial::Part(part) = partial {
                found.extend(part_misfits(&schemas, &address.kind, part));
            }
        }
        for run in &expect.runs {
            let schema = Schema::new(&self.runs, self.kubernetes);
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

    /// Conditions that an instance never has, if their names are near to those that it may have.
    fn conditions_of_instance(&self, subject: Option<&Gvk>, part: &At<Part>) -> Vec<Diagnostic> {
        let known: BTreeSet<&str> = { self.instances.iter() }
            .filter(|(gvk, _)| subject.is_none_or(|subject| subject == *gvk))
            .flat_map(|(_, types)| types.iter().copied())
            .collect();
        let written = part.value.node.get(BY_TYPE).and_then(Node::as_map).unwrap_or_default();
        let unknown = written.iter().filter_map(|(key, value)| {
            let name = key.as_str().filter(|name| !known.contains(name) && !value.is_null())?;
            let meant = did_you_mean(name, known.iter().copied())?;
            let error = Diagnostic::error("test::condition", format!("there is no condition `{name}`"));
            Some(near(error.at(&part.at.source, key.span), Some(meant)))
        });
        unknown.collect()
    }
}

fn kind_of<'g>(gvk: Option<&'g Gvk>, otherwise: &'g str) -> &'g str {
    gvk.map_or(otherwise, |gvk| &gvk.kind)
}

fn near(error: Diagnostic, meant: Option<&str>) -> Diagnostic {
    match meant {
        Some(meant) => error.help(format!("did you mean `{meant}`?")),
        None => error,
    }
}

/// The schema of a run: the fields of its status beside its plan, parameters and name.
fn run_schema() -> Value {
    let crd = crds::plan_run();
    let mut schema = schemas_of(&crd).pop().map(|(_, schema)| schema["properties"]["status"].clone());
    if let Some(schema) = schema.as_mut().and_then(Value::as_object_mut) {
        schema.remove("x-kubernetes-preserve-unknown-fields");
        if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            fields.insert("plan".to_owned(), json!({"type": "string"}));
            fields.insert("params".to_owned(), json!({"x-kubernetes-preserve-unknown-fields": true}));
            fields.insert("name".to_owned(), json!({"type": "string"}));
        }
    }
    schema.unwrap_or_default()
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
