//! Packages: the format of `operator.yaml`, loading, linting.
//!
//! [`load()`] reads a folder and says all that is wrong with it; [`compile()`] does the same with files
//! that are in memory. Both give a [`Package`]: everything that deciding about an instance needs,
//! with every expression and template parsed.

mod check;
mod child;
mod compile;
pub mod decode;
mod graph;
mod key;
mod lint;
mod load;
mod locate;
pub mod manifest;
mod metadata;
mod order;
mod outline;
mod refs;
mod resource;
mod rivals;
pub mod schema;
mod secrecy;
mod status_types;
mod uses;

use std::path::PathBuf;
use std::sync::Arc;

use semver::{Version, VersionReq};
use serde_json::Value;

use crate::crd;
use crate::diag::Location;
use crate::template::{Engine, Expr, Lets, Search, Segment, Text};

pub use check::{check, is_news};
pub use child::holds_data;
pub use compile::compile;
pub(crate) use compile::{place, sort};
pub use key::key_problem;
pub use load::{Files, OPERATOR_YAML, UNREADABLE, inspect, load};
pub use locate::locate;
pub use manifest::{ConflictPolicy, DeletionPolicy, OnImmutableChange};
pub(crate) use metadata::{NEVER, may_come_from_values};
pub use outline::{Namespaces, is_label_value};
pub use refs::{Place, Places, Ref, Target as RefTarget, Tree};
pub use rivals::rivals;

/// A package, ready to be interpreted.
#[derive(Debug)]
pub struct Package {
    /// Its name: a DNS label of at most 40 characters.
    pub name: String,
    /// Its version.
    pub version: Version,
    /// The version of what it runs.
    pub app_version: Option<String>,
    /// One sentence for people.
    pub description: Option<String>,
    /// Versions of Kubernetes that it works with.
    pub kubernetes: Option<VersionReq>,
    /// SHA-256 of all files, in hex.
    pub digest: String,
    /// `defaults.x`: an object.
    pub defaults: Value,
    /// The templates.
    pub engine: Arc<Engine>,
    /// The kinds that it brings; at least one, no kind twice.
    pub resources: Vec<Resource>,
    /// The folder, as it was given.
    pub root: PathBuf,
}

impl Package {
    /// What names this very package: its version with the beginning of the digest, `0.1.0-3f1c22ab90`.
    pub fn revision(&self) -> String {
        format!("{}-{}", self.version, self.digest.get(..10).unwrap_or(&self.digest))
    }

    /// The resource of an instance of that apiVersion (any served version) and kind.
    pub fn resource(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        self.resources.iter().find(|resource| {
            resource.kind.kind == kind
                && resource
                    .served_versions()
                    .any(|version| format!("{}/{version}", resource.kind.group) == api_version)
        })
    }
}

/// One kind that a package brings.
#[derive(Debug)]
pub struct Resource {
    /// The `CustomResourceDefinition`, as it is written.
    pub crd: Value,
    /// Where it is written.
    pub crd_location: Location,
    /// The kind that it defines.
    pub kind: crd::Kind,
    /// Whether a CRD that another manager applies is the base.
    pub adopt: bool,
    /// `let.x`: of the package and of the resource together.
    pub lets: Arc<Lets>,
    /// While it holds, nothing is written.
    pub paused: Option<Expr>,
    /// When an instance is ready, if the author says so.
    pub ready_when: Option<Expr>,
    /// What instances read and do not own; what others read comes first.
    pub refs: Vec<Ref>,
    /// Dependencies first, else as declared.
    pub children: Vec<Child>,
    /// Whether anything reads `cluster`.
    pub reads_cluster: bool,
    /// The projected status.
    pub status: Vec<StatusField>,
    /// The package's own conditions.
    pub conditions: Vec<Condition>,
    /// Where the resource stands in `operator.yaml`.
    pub location: Location,
}

impl Resource {
    /// The child of that id.
    pub fn child(&self, id: &str) -> Option<&Child> {
        self.children.iter().find(|child| child.id == id)
    }

    /// The name of its CRD, `plural.group`.
    pub fn crd_name(&self) -> &str {
        self.crd["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// What the package needs of its CRD beside what every package needs.
    pub fn additions(&self) -> crd::Additions {
        crd::Additions {
            status: self.status.iter().map(|field| field.name.clone()).collect(),
            ..crd::Additions::default()
        }
    }

    /// The CRD with what Operetta adds to it.
    pub fn augmented_crd(&self) -> Value {
        let mut crd = crd::augment(&self.crd, &self.additions());
        if let Some(map) = crd.as_object_mut() {
            map.remove("status");
        }
        crd
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
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct Child {
    /// Its name in the package.
    pub id: String,
    /// The path of its template, a key of the engine.
    pub template: String,
    /// The apiVersion and kind that its template gives; with branches several, never none.
    pub kinds: Vec<(String, String)>,
    /// The child exists only while it holds; of a forEach child asked for each member.
    pub when: Option<Expr>,
    /// One object for each item of a list.
    pub for_each: Option<ForEach>,
    /// The group that it stands in: between its children, an edge is key by key.
    pub group: Option<usize>,
    /// The `when` of its group, which must hold as well.
    pub group_when: Option<Expr>,
    /// Whether it reads what may follow from itself: refs, live children, `self`, the instance's status.
    pub feeds_back: bool,
    /// Of a forEach child: members given a new intent at a time; without it all.
    pub max_unavailable: Option<MaxUnavailable>,
    /// Indices of the children that must be ready before: sorted, all smaller than its own.
    pub depends_on: Vec<usize>,
    /// How deep in the graph it stands: 0 without dependencies, else one more than the deepest of them.
    pub depth: u32,
    /// When the object is ready, if the author says so.
    pub ready_when: Option<Expr>,
    /// What happens when it is no longer wanted.
    pub deletion_policy: DeletionPolicy,
    /// Whether the author said so. If not, instances of packages are retained: see
    /// [`crate::children::Context::is_package_kind`].
    pub policy_chosen: bool,
    /// Ids that it had in earlier versions of the package.
    pub renamed_from: Vec<String>,
    /// Whether it takes over an object of its name that it finds.
    pub adopt: bool,
    /// What happens when another manager owns one of its fields.
    pub conflict_policy: ConflictPolicy,
    /// What happens when a field may not be changed on the live object.
    pub on_immutable_change: OnImmutableChange,
    /// Fields given up once another manager owns them.
    pub yields: Option<Yields>,
    /// Whether an object that is no Secret may hold data of Secrets.
    pub exposes_secret_data: bool,
    /// What any expression of the package reads of the live object: sorted paths, none within
    /// another. No path at all: nothing; an empty path: the whole object. Of a forEach child without
    /// the member's key.
    pub reads_live: Vec<Vec<Segment>>,
    /// Whether it is at either end of an edge of the graph.
    pub ordered: bool,
    /// What its `metadata.namespace` may be.
    pub namespaces: Namespaces,
    /// Where its id stands in `operator.yaml`.
    pub location: Location,
}

impl Child {
    /// Whether all its objects are Secrets.
    pub fn is_secret(&self) -> bool {
        !self.kinds.is_empty()
            && self.kinds.iter().all(|(api_version, kind)| secrecy::is_secret(api_version, kind))
    }

    /// Whether its template gives objects of that `apiVersion` and kind.
    pub fn has_kind(&self, api_version: &str, kind: &str) -> bool {
        self.kinds.iter().any(|(a, k)| a == api_version && k == kind)
    }
}

/// One object for each item of a list.
#[derive(Debug, Clone)]
pub struct ForEach {
    /// The list.
    pub in_: Expr,
    /// The variable that holds the item.
    pub as_: String,
    /// What tells the members apart, a string or an integer; without it the item itself.
    pub key: Option<Expr>,
}

/// How many members of a forEach child are given a new intent at a time.
#[derive(Debug)]
pub enum MaxUnavailable {
    /// That many, from 1.
    Number(u64),
    /// That part of all, from 1 to 100.
    Percent(u64),
    /// A template that gives either: evaluate it, then [`MaxUnavailable::from_value`].
    Text(Text),
}

impl MaxUnavailable {
    /// A number from 1 (`3` or `"3"`) or a percentage from `"1%"` to `"100%"`.
    pub fn from_value(value: &Value) -> Option<Self> {
        match manifest::MaxUnavailable::parse(value)? {
            manifest::MaxUnavailable::Number(number) => Some(Self::Number(number)),
            manifest::MaxUnavailable::Percent(percent) => Some(Self::Percent(percent)),
            manifest::MaxUnavailable::Text(_) => None,
        }
    }

    /// How many of `total` that is: at least 1, percentages rounded down; nothing for a template.
    pub fn of(&self, total: usize) -> Option<usize> {
        let number = match self {
            Self::Number(number) => usize::try_from(*number).unwrap_or(usize::MAX),
            Self::Percent(percent) => total.saturating_mul(usize::try_from(*percent).unwrap_or(100)) / 100,
            Self::Text(_) => return None,
        };
        Some(number.max(1))
    }
}

/// Fields given up once another manager owns them.
#[derive(Debug)]
pub enum Yields {
    /// A template that gives a list of paths.
    One(Text),
    /// Templates that give a path each; an omitted one is left out.
    List(Vec<Text>),
}

/// One projected field of the status.
#[derive(Debug)]
pub struct StatusField {
    /// Its dotted name, for instance `members.ready`.
    pub name: String,
    /// What it shows.
    pub expr: Expr,
    /// Of a JSONPath what is looked for in the expression's value; nothing where that is all of it.
    pub search: Option<Search>,
    /// Whether the search is to find one value; else it gives a list.
    pub one: bool,
    /// Whether it may show data of Secrets.
    pub exposes_secret_data: bool,
    /// The schema of the field in the CRD, if it is known and the CRD the package's own.
    pub schema: Option<Value>,
    /// Where its name stands in `operator.yaml`.
    pub location: Location,
}

/// A condition of the package's own.
#[derive(Debug)]
pub struct Condition {
    /// Its type.
    pub type_: String,
    /// It is True while this holds.
    pub when: Expr,
    /// Why, as one word.
    pub reason: String,
    /// Why, as a sentence.
    pub message: Text,
    /// Whether it may tell data of Secrets.
    pub exposes_secret_data: bool,
    /// Where its type stands in `operator.yaml`.
    pub location: Location,
}
