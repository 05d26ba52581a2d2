//! The active packages and their kinds.

use crate::api::{ApiKind, BuiltIn, Gvk, ObjectRef};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::children::{KindOwner, NamespaceScope, Paths, names};
use crate::package::{Package, Resource};

/// A kind whose instances this manager reconciles.
pub(super) struct Registered {
    /// `plural.group`.
    pub crd: Arc<str>,
    /// The kind of the instances.
    pub kind: Arc<ApiKind>,
    /// The name of the package, loaded or not.
    pub package_name: Arc<str>,
    /// The packages that have handed the kind over, oldest first.
    pub former: Arc<[Arc<str>]>,
    /// The package and the index of the resource in it; `None` if the package could not be loaded: then only
    /// deletions of instances are completed.
    pub package: Option<(Arc<Package>, usize)>,
    /// Whether an instance keeps the revision that its status records until it is moved to another one.
    pub is_staged: bool,
    /// The earlier revisions of the package that instances still use, and the index of the resource in each.
    pub earlier: Vec<(Arc<Package>, usize)>,
    /// The kinds of children, now or earlier.
    pub child_kinds: BTreeSet<Gvk>,
    /// The namespaces of children, now or earlier.
    pub namespace_scope: NamespaceScope,
    /// Whether the kind has plans, or an earlier version of its package had and objects of their runs may be left.
    pub has_runs: bool,
    /// The message on every instance while another manager keeps reverting the CRD.
    pub crd_conflict: Option<Arc<str>>,
    /// Why the package is not active.
    pub inactive: Option<Arc<str>>,
}

impl Registered {
    /// Whether both are equal for reconciles of instances, given the same package.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.package_name == other.package_name
            && self.former == other.former
            && self.child_kinds == other.child_kinds
            && self.namespace_scope == other.namespace_scope
            && self.has_runs == other.has_runs
            && self.crd_conflict == other.crd_conflict
            && self.inactive == other.inactive
            && self.earlier().map(|(package, _)| &package.digest).eq(other.earlier().map(|(p, _)| &p.digest))
    }

    /// The digest of the package, if it is loaded.
    pub(super) fn digest(&self) -> Option<&str> {
        self.package.as_ref().map(|(package, _)| package.digest.as_str())
    }

    /// Whether commands of other kinds of the package run in its children.
    pub(super) fn is_reached(&self) -> bool {
        self.resource().into_iter().chain(self.earlier()).any(|(_, resource)| resource.is_reached)
    }

    /// The revision of the package, if it is loaded.
    pub(super) fn revision(&self) -> Option<String> {
        self.package.as_ref().map(|(package, _)| package.revision())
    }

    /// The name of the package; empty if it is not loaded.
    pub(super) fn operator(&self) -> &str {
        self.package.as_ref().map(|(package, _)| package.name.as_str()).unwrap_or_default()
    }

    /// The package that the kind belongs to, loaded or not.
    pub(super) fn owner(&self) -> KindOwner {
        KindOwner { package: Arc::clone(&self.package_name), former: Arc::clone(&self.former) }
    }

    /// The label [`names::KIND`] of its instances' children.
    pub(super) fn kind_label(&self) -> String {
        names::kind_label(&self.kind.kind, &self.kind.group)
    }

    /// Whether an object with the label of an instance in that namespace can be its child.
    pub(super) fn reaches(&self, home: Option<&str>, object: &ObjectRef) -> bool {
        self.namespace_scope.holds(home, &self.child_kinds, object)
    }

    /// The namespaces beside that of an instance in which its children of a kind may be; `None`: all, or the kind is
    /// cluster-scoped. `known`: the kind as it is served; one that is not known yet is taken for namespaced.
    pub(super) fn namespaces_of(&self, gvk: &Gvk, known: Option<&ApiKind>) -> Option<&BTreeSet<String>> {
        let is_namespaced = match known {
            Some(known) => known.namespaced,
            None => BuiltIn::find(gvk.group(), &gvk.kind).is_none_or(|kind| kind.namespaced),
        };
        match &self.namespace_scope {
            NamespaceScope::Beyond(all) if is_namespaced => Some(all),
            NamespaceScope::Beyond(_) | NamespaceScope::Anywhere => None,
        }
    }

    /// The package and its resource.
    pub(super) fn resource(&self) -> Option<(&Arc<Package>, &Resource)> {
        let (package, index) = self.package.as_ref()?;
        Some((package, package.resources.get(*index)?))
    }

    /// The earlier revisions of its package that instances still use, and its resource in each.
    pub(super) fn earlier(&self) -> impl Iterator<Item = (&Arc<Package>, &Resource)> {
        self.earlier.iter().filter_map(|(package, index)| Some((package, package.resources.get(*index)?)))
    }

    /// The revisions of its package that its instances are reconciled with, and its resource in each.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (&Arc<Package>, &Resource)> {
        self.resource().into_iter().chain(self.earlier())
    }
}

/// All managed kinds. Immutable: a change creates a new registry.
#[derive(Default)]
pub(super) struct Registry {
    by_crd: HashMap<Arc<str>, Arc<Registered>>,
    /// Kinds that other managers reconcile.
    others: Vec<Arc<Registered>>,
    /// The fields of live children that expressions read, by operator and child id.
    reads: HashMap<String, HashMap<String, Paths>>,
}

impl Registry {
    pub(super) fn new(
        registered: impl IntoIterator<Item = Arc<Registered>>,
        others: Vec<Arc<Registered>>,
    ) -> Self {
        let mut registry = Self { others, ..Self::default() };
        for entry in registered {
            // Children that were not applied since a handover have the label of the package before.
            let labels = || std::iter::once(&entry.package_name).chain(entry.former.iter());
            for ((_, resource), label) in
                entry.in_use().flat_map(|used| labels().map(move |label| (used, label)))
            {
                let reads = registry.reads.entry(label.to_string()).or_default();
                for child in &resource.children {
                    // Two kinds of one package may use the same id: keep what either reads.
                    let mut paths: Vec<Vec<String>> =
                        reads.get(&child.id).map(|p| p.to_vec()).unwrap_or_default();
                    paths.extend(child.kept_paths());
                    paths.sort();
                    paths.dedup();
                    // An object with an id of an earlier version belongs to this child as well.
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

    /// Kinds whose instances other managers reconcile.
    pub(super) fn others(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.others.iter()
    }

    /// Whether the objects of a kind are instances of a package, loaded or not, of this manager or another.
    pub(super) fn is_instance_kind(&self, gvk: &Gvk) -> bool {
        let mut all = self.iter().chain(self.others());
        all.any(|r| r.kind.group == gvk.group() && *r.kind.kind == *gvk.kind)
    }

    /// The kinds of children that are on record.
    pub(super) fn child_kinds(&self) -> BTreeSet<Gvk> {
        self.iter().flat_map(|registered| registered.child_kinds.iter().cloned()).collect()
    }

    /// Whether children of that kind are on record.
    pub(super) fn has_child_kind(&self, gvk: &Gvk) -> bool {
        self.iter().any(|r| r.child_kinds.contains(gvk))
    }

    /// The kind whose instances have that value of the label [`names::KIND`].
    pub(super) fn by_kind_label(&self, label: &str) -> Option<Arc<Registered>> {
        self.by_crd.values().find(|r| r.kind_label() == label).cloned()
    }

    /// The fields that expressions read of a live child.
    pub(super) fn reads(&self, operator: &str, child: &str) -> Paths {
        self.reads
            .get(operator)
            .and_then(|children| children.get(child))
            .cloned()
            .unwrap_or_else(|| Arc::from([]))
    }

    /// The kinds of children of which more is read than in `before`, and which are not all new. `is_upgraded`: whether the
    /// active revision is another one than before.
    pub(super) fn more_read(&self, before: &Self, of: &Registered, is_upgraded: bool) -> BTreeSet<Gvk> {
        let mut kinds = BTreeSet::new();
        for (_, resource) in of.resource().filter(|_| is_upgraded).into_iter().chain(of.earlier()) {
            for child in resource.children.iter().filter(|child| !child.reads_live.is_empty()) {
                let known = before.reads(&of.package_name, &child.id);
                let is_new = |path: &Vec<String>| !known.iter().any(|known| path.starts_with(known));
                if self.reads(&of.package_name, &child.id).iter().any(is_new) {
                    kinds.extend(child.kinds.iter().cloned());
                }
            }
        }
        kinds
    }

    /// Whether any expression reads more of the objects of a kind than their metadata.
    pub(super) fn reads_content(&self, gvk: &Gvk) -> bool {
        self.by_crd.values().any(|registered| registered.reads_content(gvk))
    }
}

impl Registered {
    /// Whether an expression of its package reads more of a child of that kind than its metadata.
    pub(super) fn reads_content(&self, gvk: &Gvk) -> bool {
        self.in_use().any(|(_, resource)| {
            resource.children.iter().any(|child| !child.reads_live.is_empty() && child.has_kind(gvk))
        })
    }
}
