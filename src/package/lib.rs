//! Packages: the format of `operator.yaml`, loading, linting.
//!
//! [`load()`] reads a folder and reports all its errors. [`compile()`] does the same with files in memory.
//! Both return a [`Package`]: everything that a decision about an instance needs, with all expressions and
//! templates parsed.

// Only tests may panic; product code returns an error instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod check;
mod child;
mod compile;
mod conflicts;
mod conversion;
pub mod crd;
pub mod decode;
mod expression_sites;
mod graph;
mod key;
mod lint;
mod load;
mod locate;
pub mod manifest;
mod metadata;
mod observation;
mod order;
mod permissions;
pub mod plan;
pub mod readiness;
mod ready;
mod refs;
mod requires;
mod resource;
pub mod schema;
mod secrecy;
mod status_types;
pub mod store;
mod tarball;
mod template_scan;
#[cfg(test)]
#[path = "../../tests/support/crd.rs"]
mod test_crd;

use std::collections::BTreeSet;
use std::sync::Arc;

use semver::{Version, VersionReq};
use serde_json::{Map, Value};

// Makes the modules of the crate `operetta-lang` available under `crate::`.
use operetta_lang::{api, diag, naming, printable, template, yaml};

use crate::api::{ApiKind, Gvk};
use crate::diag::Location;
use crate::template::{Engine, Expr, Lets, Search, Segment, Text};

pub use check::{check, is_news};
pub use child::holds_data;
pub use compile::compile;
pub use compile::{place, sort};
pub use conflicts::conflicts;
pub use key::key_problem;
pub use load::{Files, OPERATOR_YAML, UNREADABLE, inspect, load};
pub use locate::locate;
pub use manifest::{ConflictPolicy, DeletionPolicy, ImmutableChange};
pub use metadata::{NEVER, may_come_from_values};
pub use observation::{Call, MAX_ANSWER, Observation};
pub use permissions::Permission;
pub use refs::{NamespaceRef, NamespaceRefs, Ref, Target as RefTarget, Tree};
pub use tarball::load_archive;
pub use template_scan::{Namespaces, is_label_value};

/// A compiled package.
#[derive(Debug)]
pub struct Package {
    /// Its name: a DNS label of at most 40 characters.
    pub name: String,
    /// The location of its name in `operator.yaml`.
    pub location: Location,
    /// Its version.
    pub version: Version,
    /// The version of the application.
    pub app_version: Option<String>,
    /// The description, one sentence.
    pub description: Option<String>,
    /// The supported versions of Kubernetes.
    pub kubernetes: Option<VersionReq>,
    /// SHA-256 of all files, in hex.
    pub digest: String,
    /// The RBAC rules that cannot be derived from templates and refs.
    pub permissions: Vec<Permission>,
    /// The constants, `defaults.x`: an object.
    pub defaults: Value,
    /// The templates.
    pub engine: Arc<Engine>,
    /// Its kinds; at least one, without duplicates.
    pub resources: Vec<Resource>,
    /// The files from which it was compiled. Their root is the folder, as given.
    pub files: Files,
}

impl Package {
    /// The index of the resource of a CRD.
    pub fn position(&self, crd: &str) -> Option<usize> {
        self.resources.iter().position(|resource| resource.crd_name() == crd)
    }

    /// Whether a template renders objects of this kind.
    pub fn has_child_kind(&self, gvk: &Gvk) -> bool {
        self.resources.iter().flat_map(|resource| &resource.children).any(|child| child.has_kind(gvk))
    }

    /// The identity of this package: its version with the start of the digest, `0.1.0-3f1c22ab90`.
    pub fn revision(&self) -> String {
        store::revision(&self.version.to_string(), &self.digest)
    }

    /// The constants `defaults.x` with overrides. An override for an unknown constant, or of another type
    /// than the constant, is ignored: see [`Self::wrong_defaults`].
    pub fn defaults_with(&self, overrides: &Map<String, Value>) -> Value {
        let mut defaults = self.defaults.clone();
        for (name, value) in overrides {
            if let Some(default) = defaults.get_mut(name).filter(|default| is_like(default, value)) {
                default.clone_from(value);
            }
        }
        defaults
    }

    /// The overrides that are ignored, each with the reason.
    pub fn wrong_defaults(&self, overrides: &Map<String, Value>) -> Vec<String> {
        let wrong = overrides.iter().filter_map(|(name, value)| match self.defaults.get(name) {
            None => {
                let known = self.defaults.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
                let known: Vec<&str> = known.collect();
                let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Some(format!("{name}: the package {} has no such default; it has {has}", self.name))
            }
            Some(default) if !is_like(default, value) => Some(format!(
                "{name}: the package {} has {} there, not {}",
                self.name,
                type_of(default),
                type_of(value)
            )),
            Some(_) => None,
        });
        wrong.collect()
    }

    /// The resource of an instance of this kind, in any served version.
    pub fn resource(&self, gvk: &Gvk) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.served_kinds().any(|served| served == *gvk))
    }
}

/// Whether a value may override a default.
fn is_like(default: &Value, value: &Value) -> bool {
    default.is_null() || type_of(default) == type_of(value)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// One kind of a package.
#[derive(Debug)]
pub struct Resource {
    /// The `CustomResourceDefinition`, as written.
    pub crd: Value,
    /// Its location.
    pub crd_location: Location,
    /// The kind that it defines.
    pub kind: ApiKind,
    /// Whether the CRD that another manager applies is the base of this one.
    pub adopt: bool,
    /// The conversion of objects between the versions, if the author declared one.
    pub conversion: Option<crd::Conversion>,
    /// The `let`s of the package and of the resource.
    pub lets: Arc<Lets>,
    /// Nothing is written while it is true.
    pub paused: Option<Expr>,
    /// When an instance is ready, if the author set it.
    pub ready_when: Option<Expr>,
    /// The objects and observations that instances read and do not own. A ref comes after the refs that it
    /// reads.
    pub refs: Vec<Ref>,
    /// The children. A child comes after those that it depends on, otherwise they keep the order of
    /// declaration.
    pub children: Vec<Child>,
    /// Whether any expression reads `cluster`.
    pub reads_cluster: bool,
    /// The projected status.
    pub status: Vec<StatusField>,
    /// The package's own conditions.
    pub conditions: Vec<Condition>,
    /// The plans, in the order of the file.
    pub plans: Vec<plan::Plan>,
    /// The location of the resource in `operator.yaml`.
    pub location: Location,
}

impl Resource {
    /// The plan with this name.
    pub fn plan(&self, name: &str) -> Option<&plan::Plan> {
        self.plans.iter().find(|plan| plan.name == name)
    }

    /// The child with this id.
    pub fn child(&self, id: &str) -> Option<&Child> {
        self.children.iter().find(|child| child.id == id)
    }

    /// Whether the deletion of one of its children needs an approval.
    pub fn may_ask(&self) -> bool {
        self.children.iter().any(|child| child.deletion_policy == DeletionPolicy::Ask)
    }

    /// Whether a version of its CRD has the subresource `scale`.
    pub fn has_scale(&self) -> bool {
        let versions = self.crd.pointer("/spec/versions").and_then(Value::as_array);
        versions.into_iter().flatten().any(|version| version.pointer("/subresources/scale").is_some())
    }

    /// The facts that plans record.
    pub fn recorded(&self) -> BTreeSet<&str> {
        let visits = self.plans.iter().flat_map(plan::Plan::visits);
        visits.flat_map(|visit| &visit.step.record).map(|(key, _)| key.as_str()).collect()
    }

    /// Whether its instances can have runs.
    pub fn has_runs(&self) -> bool {
        !self.plans.is_empty() || self.may_ask()
    }

    /// The kinds of its children and refs, each once.
    pub fn kinds(&self) -> BTreeSet<&Gvk> {
        let refs = self.refs.iter().filter_map(|reference| reference.gvk.as_ref());
        self.children.iter().flat_map(|child| &child.kinds).chain(refs).collect()
    }

    /// The name of its CRD, `plural.group`.
    pub fn crd_name(&self) -> &str {
        self.crd["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The package's additions to its CRD.
    pub fn additions(&self) -> crd::Additions {
        crd::Additions {
            status: self.status.iter().map(|field| field.name.clone()).collect(),
            has_plans: !self.plans.is_empty(),
        }
    }

    /// The CRD with Operetta's additions.
    pub fn augmented_crd(&self) -> Value {
        let mut crd = crd::augment(&self.crd, &self.additions());
        if let Some(map) = crd.as_object_mut() {
            map.remove("status");
        }
        crd
    }

    /// The kind in each version that the CRD serves.
    pub fn served_kinds(&self) -> impl Iterator<Item = Gvk> {
        let Self { kind, .. } = self;
        self.served_versions()
            .map(|version| Gvk::new(format!("{}/{version}", kind.group), kind.kind.as_str()))
    }

    /// Names of the versions that the CRD serves.
    pub fn served_versions(&self) -> impl Iterator<Item = &str> {
        let versions = self.crd.pointer("/spec/versions").and_then(Value::as_array);
        versions
            .into_iter()
            .flatten()
            .filter(|version| version.get("served") == Some(&Value::Bool(true)))
            .filter_map(|version| version.get("name").and_then(Value::as_str))
    }
}

/// A Kubernetes object, or with `for_each` several, that belongs to an instance.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is an independent fact
pub struct Child {
    /// Its id in the package.
    pub id: String,
    /// The path of its template, a key of the engine.
    pub template: String,
    /// The kinds that its template renders: several with branches, at least one.
    pub kinds: Vec<Gvk>,
    /// The child exists only while it is true. Evaluated for each member of a forEach child.
    pub when: Option<Expr>,
    /// One object for each item of a list.
    pub for_each: Option<ForEach>,
    /// The index of its group. Between the children of a group, dependencies apply per key.
    pub group: Option<usize>,
    /// The `when` of its group, which must be true as well.
    pub group_when: Option<Expr>,
    /// Whether it reads values that it may influence itself: refs, live children, `self`, the instance's
    /// status.
    pub reads_own_output: bool,
    /// The ids of the refs to objects that its template, `forEach`, `when` and `yields` read, sorted.
    pub reads_refs: Vec<String>,
    /// For a forEach child: how many members are updated at a time; `None` means all.
    pub max_unavailable: Option<MaxUnavailable>,
    /// The indices of the children that must be ready first: sorted, and all less than its own index.
    pub depends_on: Vec<usize>,
    /// Its depth in the graph: 0 without dependencies, otherwise one more than the deepest dependency.
    pub depth: u32,
    /// When the object is ready, if the author set it.
    pub ready_when: Option<Expr>,
    /// What happens when the object is lost.
    pub on_loss: plan::OnLoss,
    /// A condition for treating an existing object as lost.
    pub lost_when: Option<Expr>,
    /// What happens to the object when it is no longer desired.
    pub deletion_policy: DeletionPolicy,
    /// Whether the author set the policy. If not, children that are instances of packages are retained: see
    /// `KindInfo::is_instance_kind` of the core.
    pub explicit_policy: bool,
    /// Its ids in earlier versions of the package.
    pub renamed_from: Vec<String>,
    /// Whether it adopts an existing object with its name.
    pub adopt: bool,
    /// What happens when another manager owns one of its fields.
    pub conflict_policy: ConflictPolicy,
    /// What happens when a field of the live object cannot be changed.
    pub on_immutable_change: OnImmutableChange,
    /// Fields that are released once another manager owns them.
    pub yields: Option<Yields>,
    /// Whether an object that is not a Secret may contain data of Secrets.
    pub exposes_secret_data: bool,
    /// The paths of the live object that expressions of the package read: sorted, and none within another. An
    /// empty path is the whole object. For a forEach child, the key of the member is left out.
    pub reads_live: Vec<Vec<Segment>>,
    /// Whether it depends on another child, or another child depends on it.
    pub ordered: bool,
    /// The allowed values of its `metadata.namespace`.
    pub namespaces: Namespaces,
    /// The location of its id in `operator.yaml`.
    pub location: Location,
}

impl Child {
    /// The settings that are templates, with their keys. Each has one value for all members.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&'static str, &Text)> {
        let max = match &self.max_unavailable {
            Some(MaxUnavailable::Text(text)) => Some(("maxUnavailable", text)),
            _ => None,
        };
        let on_change = match &self.on_immutable_change {
            OnImmutableChange::Computed(text) => Some(("onImmutableChange", text)),
            OnImmutableChange::Word(_) => None,
        };
        let on_loss = match &self.on_loss {
            plan::OnLoss::Computed(text) => Some(("onLoss", text)),
            _ => None,
        };
        [max, on_change, on_loss].into_iter().flatten()
    }

    /// The paths of the live object that must be kept because expressions read them. Each ends before its
    /// first computed segment, and includes everything below.
    pub fn kept_paths(&self) -> impl Iterator<Item = Vec<String>> {
        let plain = |segment: &Segment| match segment {
            Segment::Key(key) => Some(key.clone()),
            Segment::Index(_) | Segment::Any => None,
        };
        self.reads_live.iter().map(move |path| path.iter().map_while(plain).collect())
    }

    /// Whether all its objects are Secrets.
    pub fn is_secret(&self) -> bool {
        !self.kinds.is_empty() && self.kinds.iter().all(secrecy::is_secret)
    }

    /// Whether its template renders objects of this kind.
    pub fn has_kind(&self, gvk: &Gvk) -> bool {
        self.kinds.contains(gvk)
    }

    /// Whether this is its id, or its id in an earlier version of the package.
    pub fn is_called(&self, id: &str) -> bool {
        self.id == id || self.renamed_from.iter().any(|former| former == id)
    }
}

/// One object for each item of a list.
#[derive(Debug, Clone)]
pub struct ForEach {
    /// The list.
    pub in_: Expr,
    /// The variable of the item.
    pub as_: String,
    /// The key of the member, a string or an integer; `None` means the item itself.
    pub key: Option<Expr>,
}

/// How many members of a forEach child are updated at a time.
#[derive(Debug)]
pub enum MaxUnavailable {
    /// A number, from 1.
    Number(u64),
    /// A percentage of all members, from 1 to 100.
    Percent(u64),
    /// A template that yields either: evaluate it, then call [`MaxUnavailable::from_value`].
    Text(Text),
}

impl MaxUnavailable {
    /// Parses a number from 1 (`3` or `"3"`), or a percentage from `"1%"` to `"100%"`.
    pub fn from_value(value: &Value) -> Option<Self> {
        match manifest::MaxUnavailable::parse(value)? {
            manifest::MaxUnavailable::Number(number) => Some(Self::Number(number)),
            manifest::MaxUnavailable::Percent(percent) => Some(Self::Percent(percent)),
            manifest::MaxUnavailable::Text(_) => None,
        }
    }

    /// The number for `total` members, at least 1; percentages are rounded down. `None` for a template.
    pub fn of(&self, total: usize) -> Option<usize> {
        let number = match self {
            Self::Number(number) => usize::try_from(*number).unwrap_or(usize::MAX),
            Self::Percent(percent) => total.saturating_mul(usize::try_from(*percent).unwrap_or(100)) / 100,
            Self::Text(_) => return None,
        };
        Some(number.max(1))
    }
}

/// What happens when a field of the live object cannot be changed.
#[derive(Debug)]
pub enum OnImmutableChange {
    /// A literal, which is the same for all instances.
    Word(ImmutableChange),
    /// A template that yields `Fail` or `Recreate`.
    Computed(Text),
}

/// Fields that are released once another manager owns them.
#[derive(Debug)]
pub enum Yields {
    /// A template that yields a list of paths.
    One(Text),
    /// Templates that yield one path each; omitted ones are skipped.
    List(Vec<Text>),
}

/// One projected field of the status.
#[derive(Debug)]
pub struct StatusField {
    /// Its dotted name, for example `members.ready`.
    pub name: String,
    /// Its value.
    pub expr: Expr,
    /// The JSONPath to search in the expression's value; `None` if the value is the result.
    pub search: Option<Search>,
    /// Whether the search must find exactly one value; otherwise it yields a list.
    pub one: bool,
    /// Whether it may contain data of Secrets.
    pub exposes_secret_data: bool,
    /// The schema of the field in the CRD, if it is known and the CRD is the package's own.
    pub schema: Option<Value>,
    /// The location of its name in `operator.yaml`.
    pub location: Location,
}

/// One of the package's own conditions.
#[derive(Debug)]
pub struct Condition {
    /// Its type.
    pub type_: String,
    /// The condition is True while this is true.
    pub when: Expr,
    /// The reason, one word.
    pub reason: String,
    /// The message, a sentence.
    pub message: Text,
    /// Whether it may contain data of Secrets.
    pub exposes_secret_data: bool,
    /// The location of its type in `operator.yaml`.
    pub location: Location,
}
