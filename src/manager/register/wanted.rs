//! What a CRD should be beside what it is. Pure.
//!
//! `spec.versions` is one atomic list: whoever writes it owns all of it. So a CRD that somebody else applies,
//! too, is fought over, unless their text is the base and only what Operetta needs is added, or their text has
//! it already. Then the spec is left to them: nothing of it is applied, so that their next apply meets no
//! conflict.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::record::{Record, Spent};
use crate::children::fields::{FieldSet, uncovered};
use crate::children::{Reach, condition, is_child_crd_value, names, package_of_crd_value};
use crate::crd;
use crate::diag::Diagnostic;
use crate::package::{Package, Resource};

/// The field manager of CRDs.
pub(super) const MANAGER: &str = names::REGISTRAR;

/// This manager, as far as a CRD tells of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ours<'a> {
    /// The Lease that it leads with: which manager cares for a CRD's instances.
    pub lease: &'a str,
    /// Its namespace, which templates call `operator.namespace`.
    pub namespace: &'a str,
    /// What it has found to be of no use any more on the CRD.
    pub spent: &'a Spent,
}

/// How a CRD stands.
#[derive(Debug)]
pub(super) enum Stand {
    /// As it should be.
    Right,
    /// It is being deleted, which takes its instances along. It is made anew once it is gone.
    Going,
    /// Something is missing.
    Wrong(Box<Wrong>),
    /// The package must not have it.
    Refused(Diagnostic),
}

/// What is to be applied.
#[derive(Debug)]
pub(super) struct Wrong {
    /// The spec as it should be.
    pub spec: Value,
    /// The metadata that is ours.
    metadata: Value,
    /// Top-level fields of the spec that nobody but us owns: left out of an apply, they would be gone.
    ours_alone: BTreeSet<String>,
    /// Whose CRD is the base.
    base: Base,
    /// Whether the spec itself differs, as far as that can be told here. The server normalises what it is
    /// given, so a dry run may show that it does not.
    pub spec_differs: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Base {
    Package,
    /// Another manager's CRD, and what that one is called.
    Theirs(String),
}

/// Compares a live CRD, if there is one, with what the package wants.
pub(super) fn stand(live: Option<&Value>, package: &Package, resource: &Resource, ours: Ours<'_>) -> Stand {
    let name = resource.crd_name();
    if let Some(live) = live {
        if let Some(refusal) = refusal(live, name, package, resource) {
            return Stand::Refused(refusal);
        }
        if !live["metadata"]["deletionTimestamp"].is_null() {
            return Stand::Going;
        }
    }
    let base = live.filter(|_| resource.adopt).and_then(theirs).map_or(Base::Package, Base::Theirs);
    let augmented = match (&base, live) {
        (Base::Theirs(_), Some(live)) => {
            if let Some(mismatch) = mismatch(live, name, resource) {
                return Stand::Refused(mismatch);
            }
            crd::augment(live, &resource.additions())
        }
        _ => resource.augmented_crd(),
    };
    let mut metadata = metadata(&augmented, &base, live, package, resource, ours);
    metadata["annotations"][names::MANAGER] = ours.lease.into();
    let spec_differs = live.is_none_or(|live| !same(&augmented["spec"], &live["spec"]));
    let wrong = Wrong {
        metadata,
        ours_alone: live.map(ours_alone).unwrap_or_default(),
        spec: augmented["spec"].clone(),
        base,
        spec_differs,
    };
    match live {
        // By the label alone nobody would know it for the package's.
        Some(live) if wrong.is_there(live) && package_of_crd_value(live).is_some() => Stand::Right,
        _ => Stand::Wrong(Box::new(wrong)),
    }
}

impl Wrong {
    /// Whether all of it is there already: by value, or by the hash of what was applied and what we own of it,
    /// where the server has written something in another way.
    fn is_there(&self, live: &Value) -> bool {
        let as_applied = || {
            self.base == Base::Package
                && FieldSet::of_manager(live, MANAGER)
                    .is_some_and(|owned| uncovered(&json!({"spec": self.spec}), &owned).is_none())
        };
        self.metadata_is_there(live) && (!self.spec_differs || as_applied())
    }

    /// Whether the labels and annotations are there.
    pub(super) fn metadata_is_there(&self, live: &Value) -> bool {
        ["labels", "annotations"].iter().all(|part| {
            let wanted = self.metadata[part].as_object();
            wanted.into_iter().flatten().all(|(key, value)| live["metadata"][part][key] == *value)
        })
    }

    /// The body of the apply, with `live`, or its absence, as its precondition. `with_spec`: whether the spec
    /// is to be written.
    pub(super) fn body(&self, name: &str, live: Option<&Value>, with_spec: bool) -> Value {
        let mut metadata = self.metadata.clone();
        metadata["name"] = name.into();
        match live {
            Some(live) => {
                metadata["uid"] = live["metadata"]["uid"].clone();
                metadata["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            }
            // The version of no object: refused if somebody was first.
            None => metadata["resourceVersion"] = "1".into(),
        }
        let whole = with_spec && self.base == Base::Package;
        let is_written = |key: &str| whole || self.ours_alone.contains(key) || with_spec && key == "versions";
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

/// Labels and annotations of ours, and of the package's CRD where that is the base.
fn metadata(
    augmented: &Value,
    base: &Base,
    live: Option<&Value>,
    package: &Package,
    resource: &Resource,
    ours: Ours<'_>,
) -> Value {
    let needed = Record::needed(resource, ours.namespace);
    let record = live.map(Record::of).into_iter().fold(needed, |needed, mut recorded| {
        // Without a record of namespaces no child was made that it would have told of.
        if live.is_some_and(|live| live["metadata"]["annotations"][names::CHILD_NAMESPACES].is_null()) {
            recorded.reach = Reach::HOME;
        }
        needed.and(recorded.without(ours.spent))
    });
    let kinds: Vec<String> =
        record.kinds.iter().map(|(api_version, kind)| format!("{api_version}/{kind}")).collect();
    let mut metadata = match base {
        Base::Package => json!({
            "labels": object(&augmented["metadata"]["labels"]),
            "annotations": object(&augmented["metadata"]["annotations"]),
        }),
        Base::Theirs(_) => json!({"labels": {}, "annotations": {}}),
    };
    metadata["labels"][names::OPERATOR] = package.name.as_str().into();
    metadata["annotations"][names::CHILD_KINDS] = kinds.join(",").into();
    metadata["annotations"][names::CHILD_NAMESPACES] = record.reach.text().into();
    match base {
        Base::Package => {
            metadata["labels"][names::MANAGED_BY] = "operetta".into();
            let text = format!("{}{}", metadata, augmented["spec"]);
            metadata["annotations"][names::INTENT] = names::short_hash(&text, 16).into();
        }
        Base::Theirs(manager) => metadata["annotations"][names::CRD_BASE] = manager.as_str().into(),
    }
    metadata
}

fn object(value: &Value) -> Value {
    if value.is_object() { value.clone() } else { json!({}) }
}

/// Two packages cannot have one kind, and a CRD that others installed is theirs unless the package says
/// `adopt: true`.
fn refusal(live: &Value, name: &str, package: &Package, resource: &Resource) -> Option<Diagnostic> {
    let owner = live["metadata"]["labels"][names::OPERATOR].as_str();
    if is_child_crd_value(live) {
        let owner = owner.unwrap_or("another package");
        let message = format!("the CRD {name} is a child of an instance of {owner}");
        return Some(
            Diagnostic::error("crd::child", message).help(
                "one CRD has one owner: take it out of that package's children, or remove this package",
            ),
        );
    }
    match owner {
        Some(owner) if owner == package.name => None,
        Some(owner) if package_of_crd_value(live).is_some() => Some(claimed(name, owner)),
        // Whoever replaced it took our label off; our entry shows that it was ours. The label of a package that has not
        // registered it says nothing.
        _ if resource.adopt || FieldSet::of_manager(live, MANAGER).is_some() => None,
        _ => Some(
            Diagnostic::error(
                "crd::foreign",
                format!("the CRD {name} exists and was not installed by Operetta"),
            )
            .help("set `adopt: true` beside `crd` to take it over, or delete it if nobody uses it"),
        ),
    }
}

/// What is told to the second package of a kind.
pub(super) fn claimed(name: &str, owner: &str) -> Diagnostic {
    Diagnostic::error("crd::claimed", format!("the CRD {name} belongs to the package {owner}"))
        .help(format!("one kind has one package: remove {owner}, or give this package's kind another group"))
}

/// Where another manager's CRD is the base, it must have what the package is about.
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
        format!("does not serve the version {}, which the package is about", kind.version)
    } else {
        return None;
    };
    Some(
        Diagnostic::error("crd::mismatch", format!("the CRD {name} as it is installed {wrong}"))
            .help("install the CRD that fits the package, or use a package for the installed one"),
    )
}

/// The manager whose CRD is the base, if it is not the package's.
fn theirs(live: &Value) -> Option<String> {
    let meta = &live["metadata"];
    if let Some(manager) = meta["annotations"][names::CRD_BASE].as_str() {
        return Some(manager.to_owned());
    }
    let (mut ours, mut other) = (false, None);
    for entry in entries(live).filter(|entry| !entry["fieldsV1"]["f:spec"]["f:versions"].is_null()) {
        if is_ours(entry) {
            ours = true;
        } else {
            other = entry["manager"].as_str().map(str::to_owned);
        }
    }
    let never_ours =
        meta["labels"][names::OPERATOR].is_null() && FieldSet::of_manager(live, MANAGER).is_none();
    match other {
        Some(manager) if !ours => Some(manager),
        None if never_ours => Some("unknown".to_owned()),
        _ => None,
    }
}

/// Who wrote the spec last, if it was not us.
pub(super) fn last_writer(live: &Value) -> Option<String> {
    let mut writers = entries(live).filter(|entry| !entry["fieldsV1"]["f:spec"]["f:versions"].is_null());
    let writer = writers.find(|entry| !is_ours(entry))?;
    writer["manager"].as_str().map(str::to_owned)
}

fn entries(live: &Value) -> impl Iterator<Item = &Value> {
    live["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|entry| entry["subresource"].as_str().unwrap_or_default().is_empty())
}

fn is_ours(entry: &Value) -> bool {
    entry["manager"] == MANAGER && entry["operation"] == "Apply"
}

/// Fields of the spec that we own and nobody else.
fn ours_alone(live: &Value) -> BTreeSet<String> {
    let (mut ours, mut theirs) = (BTreeSet::new(), BTreeSet::new());
    for entry in entries(live) {
        let fields = entry["fieldsV1"]["f:spec"].as_object().into_iter().flatten();
        let names = fields.filter_map(|(key, _)| key.strip_prefix("f:")).map(str::to_owned);
        if is_ours(entry) { ours.extend(names) } else { theirs.extend(names) }
    }
    &ours - &theirs
}

/// Whether a live spec has all that is wanted of it, and its versions nothing else. What the server fills in
/// beside is no difference, nor what it drops because it says nothing.
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

/// A value without what the server leaves out when it writes a CRD: null, false, empty texts and lists. What
/// the author's data is (defaults, enums, examples) stays as it is. `flags`: whether `served` and `storage`,
/// which it always writes, are to be kept.
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

/// `1.0` as `1`.
fn whole(number: &serde_json::Number) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "it is a small whole number")]
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => (float as i64).into(),
        _ => Value::Number(number.clone()),
    }
}

/// The manager that cares for a CRD's instances, if it says so.
pub(super) fn lease(crd: &Value) -> Option<&str> {
    crd["metadata"]["annotations"][names::MANAGER].as_str()
}

/// Whether its instances are served.
pub(super) fn is_established(crd: &Value) -> bool {
    condition(crd, "Established").is_some_and(|c| c["status"] == "True")
}

/// Why the server does not take its names, if it does not.
pub(super) fn names_refused(crd: &Value) -> Option<String> {
    let condition = condition(crd, "NamesAccepted").filter(|c| c["status"] == "False")?;
    condition["message"].as_str().map(str::to_owned)
}

/// Whether a version of it has the status subresource.
pub(super) fn has_status(crd: &Value, version: &str) -> bool {
    let versions = crd["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    versions.iter().any(|v| v["name"] == version && v["subresources"]["status"].is_object())
}

#[cfg(test)]
mod tests;
