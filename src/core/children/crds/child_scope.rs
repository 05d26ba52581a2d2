//! The record of child kinds, child namespaces and runs in the annotations of a CRD. It is the union over all
//! versions of the package. A part that no template needs and no child uses is removed again, so that the
//! manager stops watching it and needs no right to it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::Gvk;
use crate::children::names;
use crate::children::namespace_scope::NamespaceScope;
use crate::package::Resource;

/// The kinds and namespaces that children of a CRD's instances have, or had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildScope {
    /// Their kinds.
    pub kinds: BTreeSet<Gvk>,
    /// Their namespaces.
    pub namespaces: NamespaceScope,
    /// Whether objects of runs of plans may belong to the instances.
    pub has_runs: bool,
}

/// The part of a record that can be taken out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnusedChildScope {
    kinds: BTreeSet<Gvk>,
    /// The recorded namespaces, if the namespaces of the templates are enough for all existing children.
    namespaces: Option<NamespaceScope>,
    /// Whether no object of a run is left.
    runs: bool,
}

impl UnusedChildScope {
    /// The part of a record in which everything is used.
    pub(crate) const NOTHING: Self = Self { kinds: BTreeSet::new(), namespaces: None, runs: false };

    /// Whether nothing can be taken out.
    pub fn is_nothing(&self) -> bool {
        *self == Self::NOTHING
    }
}

/// What the children of a CRD's instances use of its record.
#[derive(Debug, Clone, Default)]
pub struct ChildScopeUsage {
    /// The use of each kind in the record and in the templates; a kind that is missing here counts as unlisted.
    pub kinds: BTreeMap<Gvk, KindUsage>,
    /// The namespaces of children that are not in the namespace of their instance.
    pub namespaces: BTreeSet<String>,
    /// Whether objects of runs are left, or may be.
    pub has_runs: bool,
}

/// Whether children of a kind exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindUsage {
    /// All objects of the kind are known.
    Listed {
        /// Whether one of them is a child of the CRD's instances.
        has_children: bool,
    },
    /// The API server does not serve the kind.
    NotServed {
        /// Whether a CRD of its group exists.
        has_group: bool,
    },
    /// The objects of the kind are not known.
    Unlisted,
}

impl ChildScope {
    /// The record on a CRD.
    pub fn of(crd: &Value) -> Self {
        let annotation = |name: &str| crd["metadata"]["annotations"][name].as_str();
        Self {
            kinds: names::read_kinds(annotation(names::CHILD_KINDS).unwrap_or_default()).collect(),
            namespaces: NamespaceScope::read(annotation(names::CHILD_NAMESPACES)),
            has_runs: annotation(names::HAS_RUNS) == Some("true"),
        }
    }

    /// The kinds and namespaces in the templates of a resource. `operator`: the manager's namespace.
    pub fn needed(resource: &Resource, operator: &str) -> Self {
        Self {
            kinds: resource.children.iter().flat_map(|child| &child.kinds).cloned().collect(),
            namespaces: NamespaceScope::of(resource, operator),
            has_runs: !resource.plans.is_empty(),
        }
    }

    /// The union of both.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.kinds.extend(other.kinds);
        Self {
            kinds: self.kinds,
            namespaces: self.namespaces.and(other.namespaces),
            has_runs: self.has_runs || other.has_runs,
        }
    }

    /// The record without its unused part. The namespaces stay if another client has added to them since.
    #[must_use]
    pub fn without(mut self, unused: &UnusedChildScope) -> Self {
        self.kinds.retain(|kind| !unused.kinds.contains(kind));
        if unused.namespaces.as_ref() == Some(&self.namespaces) {
            self.namespaces = NamespaceScope::HOME;
        }
        self.has_runs &= !unused.runs;
        self
    }

    /// The part that neither the templates need nor an existing child uses. The children of a kind that cannot be listed
    /// are not known, so it stays.
    pub fn unused(&self, needed: &Self, usage: &ChildScopeUsage) -> UnusedChildScope {
        let usage_of = |kind: &Gvk| usage.kinds.get(kind).copied().unwrap_or(KindUsage::Unlisted);
        let is_listed = |kind: &Gvk| matches!(usage_of(kind), KindUsage::Listed { .. });
        let is_unused = |kind: &Gvk| {
            // The same objects are found in the version that the package uses now.
            let is_other_version = |other: &&Gvk| other.is_version_of(kind);
            needed.kinds.iter().filter(is_other_version).any(is_listed)
                || match usage_of(kind) {
                    KindUsage::Listed { has_children } => !has_children,
                    // The objects were deleted with their CRD.
                    KindUsage::NotServed { has_group } => !has_group,
                    KindUsage::Unlisted => false,
                }
        };
        let kinds: BTreeSet<Gvk> =
            self.kinds.difference(&needed.kinds).filter(|kind| is_unused(kind)).cloned().collect();
        let is_wider = self.namespaces.clone().and(needed.namespaces.clone()) != needed.namespaces;
        let is_known = self.kinds.iter().all(|kind| kinds.contains(kind) || is_listed(kind));
        let is_needed = |namespace: &String| needed.namespaces.has(namespace);
        let is_unused = is_wider && is_known && usage.namespaces.iter().all(is_needed);
        let runs = self.has_runs && !needed.has_runs && !usage.has_runs;
        UnusedChildScope { kinds, namespaces: is_unused.then(|| self.namespaces.clone()), runs }
    }

    /// Whether it holds more than the templates need.
    pub fn exceeds(&self, needed: &Self) -> bool {
        self.clone().and(needed.clone()) != *needed
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(kinds: &str, namespaces: &str) -> ChildScope {
        ChildScope::of(&json!({"metadata": {"annotations": {
            names::CHILD_KINDS: kinds, names::CHILD_NAMESPACES: namespaces,
        }}}))
    }

    fn usage(kinds: &[(&str, &str, KindUsage)], namespaces: &[&str]) -> ChildScopeUsage {
        let kinds = kinds.iter().map(|(of, kind, usage)| (Gvk::new(*of, *kind), *usage)).collect();
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        ChildScopeUsage { kinds, namespaces, has_runs: false }
    }

    #[test]
    fn runs_stay_on_record_while_objects_of_them_may_be_left() {
        let recorded = ChildScope::of(&json!({"metadata": {"annotations": {names::HAS_RUNS: "true"}}}));
        let needed = ChildScope { has_runs: false, ..recorded.clone() };
        assert!(recorded.has_runs && recorded.exceeds(&needed));
        for has_runs in [true, false] {
            let usage = ChildScopeUsage { has_runs, ..ChildScopeUsage::default() };
            assert_eq!(recorded.clone().without(&recorded.unused(&needed, &usage)).has_runs, has_runs);
            assert!(recorded.unused(&recorded, &usage).is_nothing(), "the package has plans");
        }
    }

    #[test]
    fn a_kind_is_unused_once_no_child_of_it_can_exist() {
        let (recorded, needed) = (record("g/v1/Gadget,v1/ConfigMap", "x"), record("v1/ConfigMap", "x"));
        assert!(recorded.exceeds(&needed) && !needed.exceeds(&needed));
        for (of_gadget, is_unused) in [
            (KindUsage::Listed { has_children: true }, false),
            (KindUsage::Listed { has_children: false }, true),
            (KindUsage::Unlisted, false),
            (KindUsage::NotServed { has_group: true }, false),
            (KindUsage::NotServed { has_group: false }, true),
        ] {
            let listed = KindUsage::Listed { has_children: false };
            let usage = usage(&[("g/v1", "Gadget", of_gadget), ("v1", "ConfigMap", listed)], &[]);
            let left = recorded.clone().without(&recorded.unused(&needed, &usage));
            assert_eq!(left, if is_unused { needed.clone() } else { recorded.clone() }, "{of_gadget:?}");
        }
    }

    #[test]
    fn old_version_of_a_kind_is_unused_once_the_new_is_listed() {
        let (recorded, needed) = (record("g/v1/Gadget,g/v2/Gadget", "x"), record("g/v2/Gadget", "x"));
        let used = KindUsage::Listed { has_children: true };
        let unused = |newer: KindUsage| {
            recorded.unused(&needed, &usage(&[("g/v1", "Gadget", used), ("g/v2", "Gadget", newer)], &[]))
        };
        assert!(unused(KindUsage::Unlisted).is_nothing());
        assert_eq!(recorded.clone().without(&unused(used)), needed);
    }

    #[test]
    fn unused_namespaces_are_removed_once_all_kinds_are_listed() {
        let (recorded, needed) = (record("g/v1/Gadget", "x,y"), record("g/v1/Gadget", "x"));
        let listed = KindUsage::Listed { has_children: true };
        for (state, namespaces, is_unused) in
            [(listed, &["x"][..], true), (listed, &["x", "y"], false), (KindUsage::Unlisted, &[], false)]
        {
            let unused = recorded.unused(&needed, &usage(&[("g/v1", "Gadget", state)], namespaces));
            let left = recorded.clone().without(&unused).and(needed.clone());
            assert_eq!(left.namespaces.text(), if is_unused { "x" } else { "x,y" }, "{namespaces:?}");
            // Another client has added a namespace since.
            let more = record("g/v1/Gadget", "x,y,z").without(&unused);
            assert_eq!(more.namespaces.text(), "x,y,z");
        }
    }
}
