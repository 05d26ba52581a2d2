//! The kinds, children and plans that the cases of a file can meet, with the schemas of their objects.

use std::collections::{BTreeMap, BTreeSet};

use operetta_lang::schema::{Kubernetes, Schema, Type};
use serde_json::{Value, json};

use super::suite::{Action, Case, Suite};
use crate::api::Gvk;
use crate::crd;
use crate::diag::{Diagnostic, did_you_mean};
use crate::package::{Package, Resource};
use crate::plan::crds;

/// The conditions of each instance.
const CONDITIONS: [&str; 5] = ["Ready", "Reconciling", "Stalled", "StatusFailed", "CRDFieldManagerConflict"];
/// The table of all reasons that Operetta gives. A test compares it with the source.
const REASONS: &str = include_str!("../../docs/guide/reasons.md");
/// The kind of CRDs.
const CRD: &str = "CustomResourceDefinition";
/// Lets a schema allow fields that it does not name.
const OPEN: &str = "x-kubernetes-preserve-unknown-fields";

/// The kinds, children and plans that a file can meet.
pub(super) struct Catalog<'s> {
    pub(super) kubernetes: &'s Kubernetes,
    /// The kinds of the packages, of Operetta and of CRDs that cases apply, with the schema of each version.
    customs: Vec<(Gvk, Value)>,
    /// Whether the packages make CRDs, whose kinds are not known.
    makes_crds: bool,
    /// The resources of the revisions of the package.
    pub(super) own: Vec<&'s Resource>,
    /// These, and those of other packages.
    pub(super) resources: Vec<&'s Resource>,
    /// The kinds of the children, by id.
    pub(super) children: BTreeMap<&'s str, BTreeSet<&'s Gvk>>,
    /// The kinds of instances of the package, and the conditions of each.
    pub(super) instances: BTreeMap<Gvk, Conditions<'s>>,
    pub(super) plans: BTreeSet<&'s str>,
    /// The schema of a run as an object.
    run: Value,
    /// The schema of a run as expectations see it.
    pub(super) run_fields: Value,
}

/// The reasons of conditions, by type. Those of Operetta have none here: see [`reasons`].
pub(super) type Conditions<'s> = BTreeMap<&'s str, BTreeSet<&'s str>>;

/// The reasons that Operetta gives.
pub(super) fn reasons() -> BTreeSet<&'static str> {
    let rows = REASONS.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(reason, _)| reason).collect()
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
    pub(super) fn of(suite: &'s Suite, kubernetes: &'s Kubernetes) -> Self {
        let steps = || suite.cases.iter().flat_map(|case| &case.steps).map(|step| &step.action);
        let upgrades = steps().filter_map(|action| match action {
            Action::Upgrade(package) => Some(package),
            _ => None,
        });
        let revisions: Vec<&'s Package> =
            suite.packages.iter().take(1).chain(upgrades).map(|package| &**package).collect();
        let others = suite.packages.iter().skip(1).map(|package| &**package);
        let own: Vec<&'s Resource> = revisions.into_iter().flat_map(|package| &package.resources).collect();
        let resources: Vec<&'s Resource> =
            own.iter().copied().chain(others.flat_map(|package| &package.resources)).collect();
        let applied = steps().filter_map(|action| match action {
            Action::Apply(objects) => Some(objects),
            _ => None,
        });
        let applied = applied.flatten().map(|object| &object.value).filter(|object| object["kind"] == CRD);
        let crds = resources.iter().map(|resource| resource.augmented_crd());
        let crds = crds.chain([crds::plan_run(), crds::instance_state()]).chain(applied.cloned());
        let customs: BTreeMap<String, (Gvk, Value)> = crds
            .flat_map(|crd| schemas_of(&crd))
            // Revisions mostly have the same schema.
            .map(|(gvk, schema)| (format!("{gvk:?} {schema}"), (gvk, schema)))
            .collect();
        let mut children: BTreeMap<&str, BTreeSet<&Gvk>> = BTreeMap::new();
        for child in resources.iter().flat_map(|resource| &resource.children) {
            children.entry(&child.id).or_default().extend(&child.kinds);
        }
        let makes_crds = children.values().flatten().any(|gvk| &*gvk.kind == CRD);
        let mut instances: BTreeMap<Gvk, Conditions<'_>> = BTreeMap::new();
        for resource in own.iter().copied() {
            for gvk in resource.served_kinds() {
                let conditions = instances.entry(gvk).or_default();
                conditions.extend(CONDITIONS.map(|name| (name, BTreeSet::new())));
                for condition in &resource.conditions {
                    conditions.entry(&condition.type_).or_default().insert(&condition.reason);
                }
            }
        }
        let plans: BTreeSet<&str> =
            resources.iter().flat_map(|resource| &resource.plans).map(|plan| &*plan.name).collect();
        let run = run_schema();
        let run_fields = run_fields(&run);
        Self {
            kubernetes,
            customs: customs.into_values().collect(),
            makes_crds,
            own,
            resources,
            children,
            instances,
            plans,
            run,
            run_fields,
        }
    }

    /// The kind of the instance that a case is about.
    pub(super) fn subject(&self, case: &Case) -> Option<Gvk> {
        let applied = case.steps.iter().filter_map(|step| match &step.action {
            Action::Apply(objects) => Some(objects),
            _ => None,
        });
        let mut kinds = applied.flatten().filter_map(|object| Gvk::of(&object.value));
        kinds.find(|gvk| self.instances.contains_key(gvk))
    }

    /// The schemas that objects of a kind may have, and the kind if it is built in.
    pub(super) fn schemas(&self, fits: impl Fn(&Gvk) -> bool) -> Vec<(Option<&str>, Schema<'_>)> {
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

    /// The type of the objects of a kind; any type if nothing is known of it.
    pub(super) fn object(&self, fits: impl Fn(&Gvk) -> bool) -> Type<'_> {
        let schemas = self.schemas(fits).into_iter();
        Type::one_of(schemas.map(|(_, schema)| Type::of_schema(schema)).collect())
    }

    /// The type of a run as an object.
    pub(super) fn run(&self) -> Type<'_> {
        Type::of_schema(Schema::of_object(&self.run, self.kubernetes))
    }

    /// The kinds that are known, without their groups.
    pub(super) fn kinds(&self) -> BTreeSet<&str> {
        let built_in = self.kubernetes.kinds().iter().map(|known| &known.gvk);
        built_in.chain(self.customs.iter().map(|(gvk, _)| gvk)).map(|gvk| &*gvk.kind).collect()
    }

    /// Whether there may be kinds that are not known.
    pub(super) fn is_open(&self) -> bool {
        self.makes_crds
    }

    /// The mistake that a kind does not exist.
    pub(super) fn unknown_kind(&self, kind: &str) -> Option<Diagnostic> {
        let known = self.kinds();
        if known.contains(kind) || self.is_open() {
            return None;
        }
        let error = Diagnostic::error("test::kind", format!("there is no kind `{kind}`"));
        let meant = did_you_mean(kind, known.iter().copied());
        Some(match meant {
            Some(_) => near(error, meant),
            None => {
                error.help("Kubernetes, the packages and the CRDs that cases apply have none of that name")
            }
        })
    }

    /// The mistake that a version of a kind does not exist.
    pub(super) fn unknown_version(&self, gvk: &Gvk) -> Option<Diagnostic> {
        if self.is_open() || !self.schemas(|known| known == gvk).is_empty() {
            return None;
        }
        let known = self.kubernetes.kinds().iter().map(|known| &known.gvk);
        let known = known.chain(self.customs.iter().map(|(gvk, _)| gvk));
        let versions: BTreeSet<&str> =
            known.filter(|known| known.kind == gvk.kind).map(|known| &*known.api_version).collect();
        if versions.is_empty() {
            return self.unknown_kind(&gvk.kind);
        }
        let message = format!("there is no kind `{}` in {}", gvk.kind, gvk.api_version);
        let versions: Vec<&str> = versions.into_iter().collect();
        Some(
            Diagnostic::error("test::kind", message)
                .help(format!("write apiVersion: {}", versions.join(" or "))),
        )
    }
}

/// The mistake with the name that was probably meant.
pub(super) fn near(error: Diagnostic, meant: Option<&str>) -> Diagnostic {
    match meant {
        Some(meant) => error.help(format!("did you mean `{meant}`?")),
        None => error,
    }
}

/// The schema of a run. The status has the fields that it names and no others.
fn run_schema() -> Value {
    let schema = schemas_of(&crds::plan_run()).pop().map(|(_, schema)| schema);
    let mut schema = schema.unwrap_or_default();
    if let Some(status) = schema.pointer_mut("/properties/status").and_then(Value::as_object_mut) {
        status.remove(OPEN);
    }
    schema
}

/// The schema of a run in expectations: the fields of its status beside its plan, parameters and name.
fn run_fields(run: &Value) -> Value {
    let mut schema = run["properties"]["status"].clone();
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        fields.insert("plan".to_owned(), json!({"type": "string"}));
        fields.insert("params".to_owned(), json!({OPEN: true}));
        fields.insert("name".to_owned(), json!({"type": "string"}));
    }
    schema
}
