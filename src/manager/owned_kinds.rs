//! The kinds of objects that belong to instances and are kept whole.

use std::sync::LazyLock;

use super::owned::OwnerField;
use super::registry::Registered;
use crate::api::Gvk;
use crate::children::names;
use crate::plan::RunObject;
use crate::selector::Selector;

/// Objects that belong to instances and are kept whole. A kind has one watch of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnedKind {
    pub(super) gvk: Gvk,
    /// Which objects of the kind, in all namespaces; `None` is all.
    pub(super) labels: Option<Selector>,
    /// How they name their instance.
    pub(super) owner: OwnerField,
}

/// The kinds of objects that belong to runs.
pub(super) static RUN_KINDS: LazyLock<[(RunObject, OwnedKind); 4]> = LazyLock::new(|| {
    RunObject::ALL.map(|sort| {
        let (labels, owner) = match sort {
            RunObject::PlanRun | RunObject::State => (None, OwnerField::SpecOf),
            RunObject::Origin | RunObject::Job => (Some(Selector::exists(names::RUN_OF)), OwnerField::Labels),
        };
        (sort, OwnedKind { gvk: sort.kind().gvk(), labels, owner })
    })
});

/// The kind of an object of a run.
pub(super) fn kind_of(sort: RunObject) -> &'static OwnedKind {
    let found = RUN_KINDS.iter().find(|(known, _)| *known == sort);
    found.map_or(&RUN_KINDS[0].1, |(_, kind)| kind)
}

/// What is watched for these kinds: all objects of runs if one has plans, or had; the runs alone if a child may ask.
pub(super) fn run_kinds<'r, I: Iterator<Item = &'r Registered>>(
    registered: impl Fn() -> I,
) -> Vec<OwnedKind> {
    if registered().any(|registered| registered.has_runs) {
        RUN_KINDS.iter().map(|(_, kind)| kind.clone()).collect()
    } else if registered().flat_map(Registered::in_use).any(|(_, resource)| resource.may_ask()) {
        vec![kind_of(RunObject::PlanRun).clone()]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::children::NamespaceScope;

    #[test]
    fn deletion_runs_are_watched_while_a_revision_in_use_may_ask() {
        let load = |name: &str| {
            let folder = std::path::Path::new("tests/fixtures/packages").join(name);
            Arc::new(crate::package::load(&folder).expect("a package").0)
        };
        let registered = |active: &str, earlier: &[&str]| {
            let package = load(active);
            Registered {
                crd: "lights.fixtures.operetta.dev".into(),
                kind: Arc::new(package.resources[0].kind.clone()),
                package_name: "p".into(),
                former: Arc::default(),
                package: Some((package, 0)),
                is_staged: true,
                earlier: earlier.iter().map(|name| (load(name), 0)).collect(),
                child_kinds: BTreeSet::new(),
                namespace_scope: NamespaceScope::Anywhere,
                has_runs: false,
                crd_conflict: None,
                inactive: None,
            }
        };
        let asking = [kind_of(RunObject::PlanRun).clone()];
        for (active, earlier, expected) in
            [("light", &[][..], &[][..]), ("claims", &[], &asking[..]), ("light", &["claims"], &asking[..])]
        {
            let registered = registered(active, earlier);
            assert_eq!(run_kinds(|| std::iter::once(&registered)), expected, "{active} after {earlier:?}");
        }
    }
}
