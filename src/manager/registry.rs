//! Which packages are in force, and which instance belongs to which.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::children::{ObjectRef, Paths, Reach, names};
use crate::cluster::ApiKind;
use crate::crd;
use crate::package::{Package, Resource};
use crate::template::Segment;

/// A kind whose instances this manager reconciles.
pub(super) struct Registered {
    /// `plural.group`.
    pub crd: Arc<str>,
    /// The kind of the instances.
    pub kind: Arc<ApiKind>,
    /// The package and the index of the resource in it; `None` if the package could not be loaded: then
    /// instances are only helped to go.
    pub package: Option<(Arc<Package>, usize)>,
    /// Kinds that children have, or had, as `(apiVersion, kind)`.
    pub child_kinds: BTreeSet<(String, String)>,
    /// In which namespaces children lie, or lay.
    pub reach: Reach,
    /// What is told on every instance while somebody else puts the CRD back again and again.
    pub contested: Option<Arc<str>>,
    /// Why the package is not active.
    pub inactive: Option<Arc<str>>,
}

impl Registered {
    /// The same, with another reason why the package is not active.
    pub(super) fn because(&self, why: Arc<str>) -> Self {
        Self {
            crd: Arc::clone(&self.crd),
            kind: Arc::clone(&self.kind),
            package: self.package.clone(),
            child_kinds: self.child_kinds.clone(),
            reach: self.reach.clone(),
            contested: self.contested.clone(),
            inactive: Some(why),
        }
    }

    /// The name of the package; empty if it is not loaded.
    pub(super) fn operator(&self) -> &str {
        self.package.as_ref().map(|(package, _)| package.name.as_str()).unwrap_or_default()
    }

    /// The label [`names::KIND`] of its instances' children.
    pub(super) fn kind_label(&self) -> String {
        names::kind_label(&self.kind.kind, &self.kind.group)
    }

    /// Whether an object that bears the label of an instance in that namespace can be its child.
    pub(super) fn reaches(&self, home: Option<&str>, object: &ObjectRef) -> bool {
        self.reach.holds(home, &self.child_kinds, object)
    }

    /// The package and its resource.
    pub(super) fn resource(&self) -> Option<(&Arc<Package>, &Resource)> {
        let (package, index) = self.package.as_ref()?;
        Some((package, package.resources.get(*index)?))
    }
}

/// All of them. Immutable: a change makes a new one.
#[derive(Default)]
pub(super) struct Registry {
    by_crd: HashMap<Arc<str>, Arc<Registered>>,
    /// Kinds that other managers care for.
    others: Vec<Arc<Registered>>,
    /// What expressions read of a child's live object, by operator and child id.
    reads: HashMap<String, HashMap<String, Paths>>,
}

impl Registry {
    pub(super) fn new(
        registered: impl IntoIterator<Item = Arc<Registered>>,
        others: Vec<Arc<Registered>>,
    ) -> Self {
        let mut registry = Self { others, ..Self::default() };
        for entry in registered {
            if let Some((package, resource)) = entry.resource() {
                let reads = registry.reads.entry(package.name.clone()).or_default();
                for child in &resource.children {
                    // Two kinds of one package may use the same id: keep what either reads.
                    let mut paths: Vec<Vec<String>> =
                        reads.get(&child.id).map(|p| p.to_vec()).unwrap_or_default();
                    paths.extend(child.reads_live.iter().map(|path| plain_prefix(path)));
                    paths.sort();
                    paths.dedup();
                    // What bears an id of earlier versions is this child's as well.
                    for id in child.renamed_from.iter().chain([&child.id]) {
                        reads.insert(id.clone(), paths.as_slice().into());
                    }
                }
            }
            registry.by_crd.insert(Arc::clone(&entry.crd), entry);
        }
        registry
    }

    pub(super) fn get(&self, crd: &str) -> Option<Arc<Registered>> {
        self.by_crd.get(crd).cloned()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.by_crd.values()
    }

    /// Kinds whose instances other managers care for.
    pub(super) fn others(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.others.iter()
    }

    /// Whether the objects of a kind are instances of a package, loaded or not, whoever cares for them.
    pub(super) fn is_instance_kind(&self, api_version: &str, kind: &str) -> bool {
        let group = crd::group_of(api_version);
        self.iter().chain(self.others()).any(|r| r.kind.group == group && r.kind.kind == kind)
    }

    /// The kinds of children that are on record.
    pub(super) fn child_kinds(&self) -> BTreeSet<(String, String)> {
        self.iter().flat_map(|registered| registered.child_kinds.iter().cloned()).collect()
    }

    /// Whether children of that kind are on record.
    pub(super) fn has_child_kind(&self, api_version: &str, kind: &str) -> bool {
        self.iter().any(|r| r.child_kinds.iter().any(|(of, name)| of == api_version && name == kind))
    }

    /// Whose instances have that value of the label [`names::KIND`].
    pub(super) fn by_kind_label(&self, label: &str) -> Option<Arc<Registered>> {
        self.by_crd.values().find(|r| r.kind_label() == label).cloned()
    }

    /// What is read of a child's live object.
    pub(super) fn reads(&self, operator: &str, child: &str) -> Paths {
        self.reads
            .get(operator)
            .and_then(|children| children.get(child))
            .cloned()
            .unwrap_or_else(|| Arc::from([]))
    }

    /// Whether any expression reads more of the objects of a kind than their metadata.
    pub(super) fn reads_content(&self, api_version: &str, kind: &str) -> bool {
        self.by_crd.values().any(|registered| registered.reads_content(api_version, kind))
    }
}

impl Registered {
    /// Whether an expression of its package reads more of a child of that kind than its metadata.
    pub(super) fn reads_content(&self, api_version: &str, kind: &str) -> bool {
        self.resource().is_some_and(|(_, resource)| {
            resource
                .children
                .iter()
                .any(|child| !child.reads_live.is_empty() && child.has_kind(api_version, kind))
        })
    }
}

/// The path up to where it is computed: all below is kept.
fn plain_prefix(path: &[Segment]) -> Vec<String> {
    path.iter()
        .map_while(|segment| match segment {
            Segment::Key(key) => Some(key.clone()),
            Segment::Index(_) | Segment::Any => None,
        })
        .collect()
}
