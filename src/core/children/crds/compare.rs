//! A live CRD compared with what its package wants.
//!
//! `spec.versions` is one atomic list: its writer owns all of it. A CRD that another client applies too would be changed
//! back and forth, unless their text is the base and only Operetta's additions are made, or their text already contains
//! the additions. Then Operetta applies nothing of the spec, so that their next apply meets no conflict.

use std::collections::BTreeSet;
use std::sync::Arc;

use operetta_kube_model::fields::{Entry, FieldSet, Owner, entries};
use serde_json::{Map, Value, json};

use super::child_scope::{ChildScope, UnusedChildScope};
use super::conversion::{self, Wanted};
use super::model::{MANAGER, ManagerIdentity, lease};
use crate::api::Gvk;
use crate::children::crd_owner::{
    former_packages, former_packages_of, is_child_crd_value, package_of_crd_value,
};
use crate::children::fields::{of_manager, uncovered};
use crate::children::names;
use crate::children::namespace_scope::NamespaceScope;
use crate::crd;
use crate::diag::Diagnostic;
use crate::facts::{condition, has_condition};
use crate::package::{Package, Resource};

/// The result of a comparison.
#[derive(Debug)]
pub(super) enum Comparison {
    /// The CRD is as the package wants it.
    Same,
    /// The CRD is being deleted, and its instances with it. It is created again once it is gone.
    Terminating,
    /// The CRD is absent or differs.
    Differs(Box<CrdPatch>),
    /// The package must not have this CRD.
    Refused(Diagnostic),
    /// The CRD was handed over to the package of that name.
    HandedOver(String),
    /// The conversion webhook is not ready.
    NoCertificate,
}

/// What is to be applied to a CRD.
#[derive(Debug)]
pub struct CrdPatch {
    /// The complete spec that the package wants.
    pub(super) spec: Value,
    /// Our labels and annotations.
    metadata: Value,
    /// Top-level fields of the spec that only we own: an apply without them would remove them.
    owned_alone: BTreeSet<String>,
    base: Base,
    /// Whether the spec is written. The server normalizes a spec, so a dry run may show that it is the same.
    pub with_spec: bool,
    /// Whether the spec still has versions that the package removes, because objects are stored in them.
    pub is_interim: bool,
}

/// Whose CRD the additions are made to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Base {
    Package,
    /// The CRD of another field manager, by the name of the manager.
    Foreign(String),
}

/// Compares the live CRD, if there is one, with what the package wants. `takes_from`: the package that this
/// one may take the CRD from.
pub(super) fn compare(
    live: Option<&Value>,
    (package, resource): (&Package, &Resource),
    takes_from: Option<&str>,
    manager: &ManagerIdentity<'_>,
    unused: &UnusedChildScope,
) -> Comparison {
    let name = resource.crd_name();
    if let Some(live) = live {
        if let Some(refusal) = refusal(live, (package, resource), takes_from, manager) {
            return refusal;
        }
        if !live["metadata"]["deletionTimestamp"].is_null() {
            return Comparison::Terminating;
        }
    }
    let (conversion, rules) = match conversion::wanted(resource, live, manager.webhook) {
        Wanted::Nothing => (None, None),
        Wanted::Conversion(spec, rules) => (Some(spec), rules),
        Wanted::Starting => return Comparison::NoCertificate,
        Wanted::Refused(problem) => return Comparison::Refused(problem),
    };
    let base = live.filter(|_| resource.adopt).and_then(foreign_base).map_or(Base::Package, Base::Foreign);
    let mut augmented = match (&base, live) {
        (Base::Foreign(_), Some(live)) => {
            if let Some(mismatch) = mismatch(live, name, resource) {
                return Comparison::Refused(mismatch);
            }
            let mut augmented = crd::augment(live, &resource.additions());
            // Adding the category would take the list of categories from its owner.
            augmented["spec"]["names"] = live["spec"]["names"].clone();
            augmented
        }
        _ => resource.augmented_crd(),
    };
    if let Some(conversion) = conversion {
        augmented["spec"]["conversion"] = conversion;
    }
    if let Some(rules) = rules {
        augmented["metadata"]["annotations"][names::CONVERSION] = rules.into();
    }
    let patch = CrdPatch {
        metadata: metadata(&augmented, &base, live, (package, resource), takes_from, manager, unused),
        owned_alone: live.map(owned_alone).unwrap_or_default(),
        with_spec: live.is_none_or(|live| !same(&augmented["spec"], &live["spec"])),
        spec: augmented["spec"].clone(),
        base,
        is_interim: false,
    };
    match live {
        // Without the label as we apply it, the CRD is not recognized as that of a package.
        Some(live) if patch.is_applied(live) && package_of_crd_value(live).is_some() => Comparison::Same,
        _ => Comparison::Differs(Box::new(patch)),
    }
}

impl CrdPatch {
    /// Whether the live CRD has everything that this patch applies: by value, or, where the server writes a
    /// value in another way, by the hash that was applied and the fields that we own.
    fn is_applied(&self, live: &Value) -> bool {
        let owns_spec = || {
            self.base == Base::Package
                && of_manager(live, MANAGER)
                    .is_some_and(|owned| uncovered(&json!({"spec": self.spec}), &owned).is_none())
        };
        self.has_metadata(live) && (!self.with_spec || owns_spec())
    }

    /// Whether the live CRD has our labels and annotations.
    pub(super) fn has_metadata(&self, live: &Value) -> bool {
        ["labels", "annotations"].iter().all(|part| {
            let wanted = self.metadata[part].as_object();
            wanted.into_iter().flatten().all(|(key, value)| live["metadata"][part][key] == *value)
        })
    }

    /// Whether the package or the webhook has changed since the live spec was applied, so that it must be replaced.
    pub(super) fn differs_from_applied(&self, live: &Value) -> bool {
        self.metadata["annotations"][names::INTENT] != live["metadata"]["annotations"][names::INTENT]
    }

    /// Keeps versions that the package removes while objects may be stored in them. Returns whether there are
    /// any.
    pub(super) fn keep_stored_versions(
        &mut self,
        live: &Value,
        resource: &Resource,
        manager: &ManagerIdentity<'_>,
    ) -> Result<bool, Diagnostic> {
        let new = json!({"spec": self.spec});
        let Some(mut spec) = crd::interim_spec(live, &new) else { return Ok(false) };
        let whole = json!({"spec": spec, "status": live["status"]});
        let removed: Vec<&str> = crd::outdated_versions(&whole)
            .into_iter()
            .filter(|name| crd::schema_of(&new, name).is_none())
            .collect();
        if let Some((conversion, rules)) = conversion::interim(resource, live, &removed, manager.webhook)? {
            spec["conversion"] = conversion;
            self.metadata["annotations"][names::CONVERSION] = rules.into();
        }
        self.with_spec = !same(&spec, &live["spec"]);
        // The hash is not that of the final spec, which would be taken for applied.
        let text = format!("{}{spec}", self.metadata);
        self.metadata["annotations"][names::INTENT] = names::short_hash(&text, 16).into();
        (self.spec, self.is_interim) = (spec, true);
        Ok(true)
    }

    /// The body of the apply, with the live object, or its absence, as the precondition.
    pub fn body(&self, name: &str, live: Option<&Value>) -> Value {
        let mut metadata = self.metadata.clone();
        metadata["name"] = name.into();
        match live {
            Some(live) => {
                metadata["uid"] = live["metadata"]["uid"].clone();
                metadata["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            }
            // No object has this version: the server refuses the apply if another client creates the CRD first.
            None => metadata["resourceVersion"] = "1".into(),
        }
        let whole = self.with_spec && self.base == Base::Package;
        let is_written =
            |key: &str| whole || self.owned_alone.contains(key) || self.with_spec && key == "versions";
        let fields = self.spec.as_object().into_iter().flatten();
        let spec: Map<String, Value> = fields
            .filter(|(key, _)| is_written(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut body = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata,
        });
        if !spec.is_empty() {
            body["spec"] = Value::Object(spec);
        }
        body
    }
}

/// Our labels and annotations, and those of the package's CRD if that is the base.
fn metadata(
    augmented: &Value,
    base: &Base,
    live: Option<&Value>,
    (package, resource): (&Package, &Resource),
    takes_from: Option<&str>,
    manager: &ManagerIdentity<'_>,
    unused: &UnusedChildScope,
) -> Value {
    let needed = ChildScope::needed(resource, manager.namespace);
    let record = live.map(ChildScope::of).into_iter().fold(needed, |needed, mut recorded| {
        // Before the first record of namespaces, no child was created outside the namespace of its instance.
        if live.is_some_and(|live| live["metadata"]["annotations"][names::CHILD_NAMESPACES].is_null()) {
            recorded.namespaces = NamespaceScope::HOME;
        }
        needed.and(recorded.without(unused))
    });
    let kinds: Vec<String> =
        record.kinds.iter().map(|Gvk { api_version, kind }| format!("{api_version}/{kind}")).collect();
    let mut metadata = match base {
        Base::Package => json!({
            "labels": object(&augmented["metadata"]["labels"]),
            "annotations": object(&augmented["metadata"]["annotations"]),
        }),
        Base::Foreign(_) => json!({"labels": {}, "annotations": {}}),
    };
    metadata["labels"][names::OPERATOR] = package.name.as_str().into();
    metadata["annotations"][names::CHILD_KINDS] = kinds.join(",").into();
    metadata["annotations"][names::CHILD_NAMESPACES] = record.namespaces.text().into();
    if record.has_runs {
        metadata["annotations"][names::HAS_RUNS] = "true".into();
    }
    let former = former_packages_of(&package.name, live, takes_from);
    if !former.is_empty() {
        metadata["annotations"][names::FORMER_PACKAGES] = former.join(",").into();
    }
    if let Some(plans) = super::plans::published(resource) {
        metadata["annotations"][names::PLANS] = plans.into();
    }
    match base {
        Base::Package => {
            metadata["labels"][names::MANAGED_BY] = "operetta".into();
            let text = format!("{}{}", metadata, augmented["spec"]);
            metadata["annotations"][names::INTENT] = names::short_hash(&text, 16).into();
        }
        Base::Foreign(base) => metadata["annotations"][names::CRD_BASE] = base.as_str().into(),
    }
    // The manager's name is not part of the hash: another manager of the same package applies the same text.
    metadata["annotations"][names::MANAGER] = manager.lease.into();
    metadata
}

fn object(value: &Value) -> Value {
    if value.is_object() { value.clone() } else { json!({}) }
}

/// Why the package may not manage a live CRD. Two packages cannot have one kind: one takes it from the other
/// only if its `Operator` says so. A package takes over a CRD that others installed only with `adopt: true`.
fn refusal(
    live: &Value,
    (package, resource): (&Package, &Resource),
    takes_from: Option<&str>,
    manager: &ManagerIdentity<'_>,
) -> Option<Comparison> {
    let name = resource.crd_name();
    let Some(owner) = package_of_crd_value(live).filter(|owner| *owner != package.name) else {
        return unowned(live, name, package, resource).map(Comparison::Refused);
    };
    if takes_from == Some(&*owner) {
        let other = lease(live).filter(|lease| *lease != manager.lease);
        return other.map(|other| Comparison::Refused(of_other_manager(name, &owner, other)));
    }
    if former_packages(live).contains(&package.name) {
        return Some(Comparison::HandedOver(owner));
    }
    Some(Comparison::Refused(claimed(name, &owner, &package.name)))
}

/// The refusal of a CRD that belongs to no other package.
fn unowned(live: &Value, name: &str, package: &Package, resource: &Resource) -> Option<Diagnostic> {
    let owner = live["metadata"]["labels"][names::OPERATOR].as_str();
    if is_child_crd_value(live) {
        let owner = owner.unwrap_or("another package");
        let message = format!("the CRD {name} is a child of an instance of {owner}");
        return Some(
            Diagnostic::error("crd::child", message)
                .help("a CRD has one owner: remove it from that package's children, or remove this package"),
        );
    }
    match owner {
        Some(owner) if owner == package.name => None,
        // A client replaced the CRD and removed our label, but our entry in managedFields remains. A label that the
        // registrar has not applied does not count.
        _ if resource.adopt || of_manager(live, MANAGER).is_some() => None,
        _ => Some(
            Diagnostic::error(
                "crd::foreign",
                format!("the CRD {name} exists and was not installed by Operetta"),
            )
            .help("set `adopt: true` beside `crd` to take it over, or delete it if it is not in use"),
        ),
    }
}

/// The refusal of a package whose kind another package has already.
pub(crate) fn claimed(name: &str, owner: &str, package: &str) -> Diagnostic {
    Diagnostic::error("crd::claimed", format!("the CRD {name} belongs to the package {owner}")).help(format!(
        "one kind has one package: to hand the CRD over to {package}, give `--take-over-from {owner}` to `operetta install` \
         or `operetta upgrade`, or set spec.takesOver of the Operator {package} to [{{crd: {name}, from: {owner}}}]; \
         otherwise remove {owner}, or give this package's kind another group"
    ))
}

/// The refusal of two packages each of which is to take a CRD from the other.
pub(crate) fn taken_by_both(name: &str, owner: &str, package: &str) -> Diagnostic {
    let message = format!(
        "the Operators {owner} and {package} both say that they take over the CRD {name} from the other"
    );
    Diagnostic::error("crd::claimed", message).help(format!(
        "remove the CRD from spec.takesOver of the Operator that is to give it away, such as {owner}"
    ))
}

/// The refusal to take a CRD that another manager reconciles: two managers of one kind would be at work for a moment.
fn of_other_manager(name: &str, owner: &str, lease: &str) -> Diagnostic {
    let message = format!(
        "the CRD {name} of the package {owner} cannot be taken over: the manager {lease} reconciles its instances"
    );
    Diagnostic::error("crd::claimed", message).help(format!(
        "install {owner} in this manager first: its Operator, and not another manager, has to bring the package"
    ))
}

/// Why another field manager's CRD cannot be the base: it lacks the kind, scope or version of the package.
fn mismatch(live: &Value, name: &str, resource: &Resource) -> Option<Diagnostic> {
    let spec = &live["spec"];
    let kind = &resource.kind;
    let scope = if kind.namespaced { "Namespaced" } else { "Cluster" };
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let wrong = if spec["names"]["kind"] != kind.kind.as_str() {
        format!("is of kind {}, the package's of kind {}", spec["names"]["kind"], kind.kind)
    } else if spec["scope"] != scope {
        format!("is {}, the package's {scope}", spec["scope"].as_str().unwrap_or("without scope"))
    } else if !versions.iter().any(|v| v["name"] == kind.version.as_str() && v["served"] == true) {
        format!("does not serve the version {}, which the package uses", kind.version)
    } else {
        return None;
    };
    Some(
        Diagnostic::error("crd::mismatch", format!("the CRD {name} as it is installed {wrong}"))
            .help("install the CRD that fits the package, or use a package for the installed one"),
    )
}

/// The field manager whose CRD is the base; `None` if the package's is.
fn foreign_base(live: &Value) -> Option<String> {
    let meta = &live["metadata"];
    if let Some(manager) = meta["annotations"][names::CRD_BASE].as_str() {
        return Some(manager.to_owned());
    }
    let (mut ours, mut other) = (false, None);
    for owner in writers(live) {
        if owner.is_apply_of(MANAGER) {
            ours = true;
        } else {
            other = Some(owner.manager.clone());
        }
    }
    let never_ours = meta["labels"][names::OPERATOR].is_null() && of_manager(live, MANAGER).is_none();
    match other {
        Some(manager) if !ours => Some(manager),
        None if never_ours => Some("unknown".to_owned()),
        _ => None,
    }
}

/// The last writer of the spec other than us.
pub(super) fn last_writer(live: &Value) -> Option<String> {
    let writer = writers(live).find(|owner| !owner.is_apply_of(MANAGER))?;
    Some(writer.manager.clone())
}

/// Who owns versions of the CRD.
fn writers(live: &Value) -> impl Iterator<Item = Arc<Owner>> {
    let has_versions = |entry: &Entry| entry.set().get(&["spec", "versions"]).is_some();
    entries(live).filter(has_versions).map(|entry| entry.owner).filter(|owner| owner.subresource.is_empty())
}

/// Fields of the spec that only we own.
fn owned_alone(live: &Value) -> BTreeSet<String> {
    let (mut ours, mut theirs) = (BTreeSet::new(), BTreeSet::new());
    for entry in entries(live).filter(|entry| entry.owner.subresource.is_empty()) {
        let fields = entry.set().field("spec").map(FieldSet::below).into_iter().flatten();
        let names = fields.filter_map(|(key, _)| key.name()).map(str::to_owned);
        if entry.owner.is_apply_of(MANAGER) { ours.extend(names) } else { theirs.extend(names) }
    }
    &ours - &theirs
}

/// Whether a live spec has all wanted fields, and its versions nothing else. Defaults that the server sets and empty
/// values that it drops are no difference.
fn same(wanted: &Value, live: &Value) -> bool {
    let fields = wanted.as_object().into_iter().flatten();
    let (mut versions, mut rest) = (true, true);
    for (key, value) in fields {
        match key.as_str() {
            "versions" => versions = plain(value, true) == plain(&live[key], true),
            _ => rest &= within(&plain(value, false), &live[key]),
        }
    }
    versions && rest
}

fn within(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            wanted.iter().all(|(key, value)| live.get(key).is_some_and(|live| within(value, live)))
        }
        _ => wanted == live,
    }
}

/// A value without what the server omits when it writes a CRD: null, false, empty texts and lists. Data of the author
/// (defaults, enums, examples) stays. `flags`: whether to keep `served` and `storage`, which the server always writes.
fn plain(value: &Value, flags: bool) -> Value {
    let is_silent = |key: &str, value: &Value| match value {
        Value::Null => true,
        Value::Bool(false) => !(flags && matches!(key, "served" | "storage")),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(key, value)| !is_silent(key, value))
            .map(|(key, value)| {
                let is_data = matches!(key.as_str(), "default" | "enum" | "example");
                (key.clone(), if is_data { value.clone() } else { plain(value, flags) })
            })
            .collect(),
        Value::Array(items) => items.iter().map(|item| plain(item, flags)).collect(),
        Value::Number(number) => whole(number),
        _ => value.clone(),
    }
}

/// Writes a whole number without its fraction: `1.0` becomes `1`.
fn whole(number: &serde_json::Number) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "it is a small whole number")]
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => (float as i64).into(),
        _ => Value::Number(number.clone()),
    }
}

/// Whether the API server serves the instances of a CRD.
pub(super) fn is_established(crd: &Value) -> bool {
    has_condition(crd, "Established")
}

/// Why the server refuses the names of a CRD, if it does.
pub(super) fn names_refused(crd: &Value) -> Option<String> {
    let condition = condition(crd, "NamesAccepted").filter(|c| c["status"] == "False")?;
    condition["message"].as_str().map(str::to_owned)
}
