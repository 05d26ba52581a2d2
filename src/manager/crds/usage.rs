//! Which parts of a CRD's record its instances' children use, according to the index.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use super::state::{CrdReconciler, State};
use crate::api::{Gvk, ObjectRef};
use crate::children::ReadError;
use crate::children::crds::{ChildScope, ChildScopeUsage, KindUsage};
use crate::manager::index::{Index, InstanceKey};
use crate::manager::owned_kinds;
use crate::manager::watches::WatchState;
use crate::plan::RunObject;

impl CrdReconciler {
    /// Checks the records of a package's CRDs for unused parts, where that is due. Costs no request.
    pub(super) fn check_records(&self, state: &mut State, index: usize, now: Duration) {
        let State { packages, live, .. } = state;
        let earlier = self.watches.revisions.of(&packages[index].package.name);
        let usage = |crd: &str, record: &ChildScope, needed: &ChildScope| {
            let homes = self.store.index().instances_of(crd).map(|key| key.namespace.clone()).collect();
            let state_of = |kind: &Gvk| self.watches.children_state_of_crd(kind, crd, &homes);
            // A run of an earlier revision may still create children.
            let resources =
                earlier.iter().filter_map(|package| package.resources.get(package.position(crd)?));
            let earlier = resources.map(|resource| ChildScope::needed(resource, &self.namespace));
            let needed = earlier.fold(needed.clone(), ChildScope::and);
            let has_runs = record.has_runs && self.may_have_runs(crd);
            let usage =
                usage(&self.store.index(), crd, record, &needed, state_of, |group| live.has_group(group));
            ChildScopeUsage { has_runs, ..usage }
        };
        packages[index].record_usage(self.identity(None), usage, now);
    }

    /// Whether objects of runs of a CRD's instances are left, or may be.
    fn may_have_runs(&self, crd: &str) -> bool {
        let Some(registered) = self.store.registry().get(crd) else { return true };
        RunObject::ALL.into_iter().any(|sort| {
            let kind = owned_kinds::kind_of(sort);
            match self.watches.owned_state(kind) {
                WatchState::Watching | WatchState::OtherVersion(_) => {
                    self.store.has_run_object(&kind.gvk, &registered.kind_label())
                }
                state => !state.is_missing(),
            }
        })
    }
}

/// The usage of a CRD's record, according to the index. `state_of`: whether the children of a kind are known.
/// `has_group`: whether a CRD of a group exists.
fn usage(
    index: &Index,
    crd: &str,
    record: &ChildScope,
    needed: &ChildScope,
    state_of: impl Fn(&Gvk) -> WatchState,
    has_group: impl Fn(&str) -> bool,
) -> ChildScopeUsage {
    let has_children =
        |kind: &Gvk| index.has_child(crd, |_: Option<&InstanceKey>, object: &ObjectRef| object.gvk == *kind);
    let kind_usage = |kind: &Gvk| match state_of(kind) {
        WatchState::Watching | WatchState::OtherVersion(_) => {
            KindUsage::Listed { has_children: needed.kinds.contains(kind) || has_children(kind) }
        }
        WatchState::Unavailable(ReadError::KindMissing) => {
            KindUsage::NotServed { has_group: has_group(kind.group()) }
        }
        WatchState::Pending | WatchState::Unavailable(_) => KindUsage::Unlisted,
    };
    let namespaces = RefCell::new(BTreeSet::new());
    index.has_child(crd, |owner, object| {
        let home = owner.and_then(|owner| owner.namespace.as_deref());
        let namespace = object.namespace.as_deref().filter(|namespace| home != Some(*namespace));
        namespaces.borrow_mut().extend(namespace.map(str::to_owned));
        false
    });
    ChildScopeUsage {
        kinds: record.kinds.union(&needed.kinds).map(|kind| (kind.clone(), kind_usage(kind))).collect(),
        namespaces: namespaces.into_inner(),
        has_runs: false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::children::{Observed, RawObject, names};
    use crate::manager::index::Provenance;

    const CRD: &str = "ws.example.org";

    fn record(kinds: &str, namespaces: &str) -> ChildScope {
        ChildScope::of(&json!({"metadata": {"annotations": {
            names::CHILD_KINDS: kinds, names::CHILD_NAMESPACES: namespaces,
        }}}))
    }

    /// The watch of `g/v1` is in that state, and others are listed.
    fn in_state(gadgets: &WatchState) -> impl Fn(&Gvk) -> WatchState {
        move |kind| if &*kind.api_version == "g/v1" { gadgets.clone() } else { WatchState::Watching }
    }

    /// An index with the instance `home/a` of that CRD and `home/b` of another.
    fn index() -> Index {
        let mut index = Index::default();
        index.name_kind(&CRD.into(), "W.example.org");
        for (crd, name) in [(CRD, "a"), ("others.example.org", "b")] {
            let key = InstanceKey { crd: crd.into(), namespace: Some("home".into()), name: name.into() };
            index.put_instance(key, &json!({"metadata": {"uid": name, "resourceVersion": "1"}}));
        }
        index
    }

    /// A gadget of an instance, applied by us or with copied labels only.
    fn gadget(namespace: &str, instance: &str, is_ours: bool) -> Observed {
        let kind = if instance == "another's" { "Other.example.org" } else { "W.example.org" };
        let entry = json!({"manager": "operetta/p", "operation": "Apply", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {}}});
        let metadata = serde_json::from_value(json!({
            "name": "g", "namespace": namespace, "uid": format!("{namespace}-{instance}"), "resourceVersion": "2",
            "labels": {names::OPERATOR: "p", names::CHILD: "c", names::INSTANCE_UID: instance,
                names::KIND: kind},
            "managedFields": if is_ours { json!([entry]) } else { json!([]) },
        }))
        .unwrap();
        let gvk = Gvk::new("g/v1", "Gadget");
        let seen = RawObject { gvk: &gvk, metadata: &metadata, body: None, reports: false };
        seen.observe(|_, _| Arc::from([])).unwrap()
    }

    fn put(index: &mut Index, namespace: &str, instance: &str, is_ours: bool) -> ObjectRef {
        let observed = gadget(namespace, instance, is_ours);
        let object = observed.object.clone();
        index.put_child(observed, Provenance::Watch);
        object
    }

    fn left(record: &ChildScope, needed: &ChildScope, index: &Index, has_crds: bool) -> (String, String) {
        left_in(&WatchState::Watching, record, needed, index, has_crds)
    }

    /// What is left of a record while the watch of gadgets is in that state.
    fn left_in(
        gadgets: &WatchState,
        record: &ChildScope,
        needed: &ChildScope,
        index: &Index,
        has_crds: bool,
    ) -> (String, String) {
        let usage = usage(index, CRD, record, needed, in_state(gadgets), |_| has_crds);
        let left = record.clone().without(&record.unused(needed, &usage)).and(needed.clone());
        let kinds: Vec<_> = left.kinds.iter().map(|gvk| &*gvk.kind).collect();
        (kinds.join(","), left.namespaces.text())
    }

    #[test]
    fn a_kind_stays_on_record_while_something_of_it_may_be_left() {
        let (recorded, needed) = (record("g/v1/Gadget,v1/ConfigMap", "x"), record("v1/ConfigMap", "x"));
        assert!(recorded.exceeds(&needed) && !needed.exceeds(&needed));
        let (kept, gone) = (("Gadget,ConfigMap".into(), "x".into()), ("ConfigMap".into(), "x".into()));
        let mut index = index();
        assert_eq!(left(&recorded, &needed, &index, true), gone, "there is none");
        // A copy of a child and a child of another CRD do not count; a child of a previous instance does.
        for (instance, is_ours, expected) in [
            ("a", true, &kept),
            ("a", false, &gone),
            ("b", true, &gone),
            ("former", true, &kept),
            ("another's", true, &gone),
        ] {
            let object = put(&mut index, "home", instance, is_ours);
            assert_eq!(left(&recorded, &needed, &index, true), *expected, "{instance} {is_ours}");
            index.remove_child(&object, &format!("home-{instance}"), None);
        }
        // Objects that cannot be listed may exist, unless their CRD is gone.
        let unavailable = WatchState::Unavailable;
        for (state, has_crds, expected) in [
            (unavailable(ReadError::Forbidden("403".into())), false, &kept),
            (WatchState::Pending, false, &kept),
            (WatchState::OtherVersion("g/v2".into()), false, &gone),
            (unavailable(ReadError::KindMissing), true, &kept),
            (unavailable(ReadError::KindMissing), false, &gone),
        ] {
            assert_eq!(left_in(&state, &recorded, &needed, &index, has_crds), *expected, "{state:?}");
        }
        // A list in the current version shows the objects of the older one.
        let newer = record("g/v1/Gadget", "x");
        let recorded = record("g/v1/Gadget,g/v0/Gadget", "x");
        let in_older = |metadata: Observed| Observed {
            object: ObjectRef { gvk: Gvk::new("g/v0", "Gadget"), ..metadata.object.clone() },
            ..metadata
        };
        index.put_child(in_older(gadget("home", "a", true)), Provenance::Watch);
        let unused = |gadgets: &WatchState| {
            recorded.unused(&newer, &usage(&index, CRD, &recorded, &newer, in_state(gadgets), |_| true))
        };
        assert!(unused(&WatchState::Pending).is_nothing(), "before that version is listed");
        assert_eq!(recorded.clone().without(&unused(&WatchState::Watching)), newer);
    }

    #[test]
    fn a_namespace_stays_on_record_while_a_child_is_there() {
        let (recorded, needed) = (record("g/v1/Gadget", "x,y"), record("g/v1/Gadget", "x"));
        let mut index = index();
        for (namespace, instance, is_kept) in [
            ("y", "a", true),
            ("home", "a", false),
            ("x", "a", false),
            ("y", "b", false),
            ("home", "gone", true),
        ] {
            let object = put(&mut index, namespace, instance, true);
            let namespaces = left(&recorded, &needed, &index, true).1;
            assert_eq!(namespaces, if is_kept { "x,y" } else { "x" }, "{namespace} {instance}");
            index.remove_child(&object, &format!("{namespace}-{instance}"), None);
        }
        let unknown = WatchState::Unavailable(ReadError::Forbidden("403".into()));
        let left = left_in(&unknown, &recorded, &needed, &index, true).1;
        assert_eq!(left, "x,y", "nobody knows where they are");
        // Another manager has added to the record since the check.
        let listed = in_state(&WatchState::Watching);
        let unused = recorded.unused(&needed, &usage(&index, CRD, &recorded, &needed, listed, |_| true));
        assert_eq!(record("g/v1/Gadget", "x,y,z").without(&unused).namespaces.text(), "x,y,z");
    }
}
