//! One child of a kind.

use serde_json::Value;

use crate::api::{BuiltIn, Gvk};
use crate::diag::Location;
use crate::manifest::{self, ConflictPolicy, DeletionPolicy, ImmutableChange};
use crate::plan::OnLoss;
use crate::template::{Expr, Segment, Text};
use crate::template_scan::Namespaces;

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
    pub on_loss: OnLoss,
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
            OnLoss::Computed(text) => Some(("onLoss", text)),
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

    /// Whether an object may be deleted to be created again with another immutable field.
    pub(crate) fn may_be_recreated(&self) -> bool {
        !matches!(self.on_immutable_change, OnImmutableChange::Word(ImmutableChange::Fail))
    }

    /// Whether all its objects are Secrets.
    pub fn is_secret(&self) -> bool {
        !self.kinds.is_empty() && self.kinds.iter().all(is_secret)
    }

    /// The item variable of a forEach child.
    pub(crate) fn item(&self) -> Option<&str> {
        self.for_each.as_ref().map(|for_each| for_each.as_.as_str())
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

/// Whether deleting an object of this kind loses data that cannot be rendered again.
pub fn holds_data(gvk: &Gvk) -> bool {
    BuiltIn::find(gvk.group(), &gvk.kind).is_some_and(|known| known.holds_data)
}

/// The field that autoscalers set.
pub const REPLICAS: [&str; 2] = ["spec", "replicas"];

/// Whether a kind of Kubernetes has [`REPLICAS`]. If an apply removes the number, the API server sets 1.
pub fn has_replicas(gvk: &Gvk) -> bool {
    matches!(
        (gvk.group(), &*gvk.kind),
        ("apps", "Deployment" | "StatefulSet" | "ReplicaSet") | ("", "ReplicationController")
    )
}

/// Whether objects of a kind contain secret data.
pub(crate) fn is_secret(gvk: &Gvk) -> bool {
    gvk.is("v1", "Secret")
}
