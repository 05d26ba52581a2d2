//! What the annotations of a CRD hold of its instances' children: their kinds, and the namespaces in which they lie.
//! The union over all versions of the package; what none of them has left behind is taken out again, so that nobody
//! watches it, or needs the right to, for ever. No I/O.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::children::{ObjectRef, Reach, names};
use crate::crd::group_of;
use crate::manager::index::{Index, InstanceKey, KindState};
use crate::package::Resource;

/// A kind, as `(apiVersion, kind)`.
type KindName = (String, String);

/// Where children are, or were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Their kinds.
    pub kinds: BTreeSet<KindName>,
    /// Their namespaces.
    pub reach: Reach,
}

/// What of a record may be taken out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Spent {
    kinds: BTreeSet<KindName>,
    /// The namespaces on record, if those of the package's templates do for all children that are there.
    reach: Option<Reach>,
}

impl Spent {
    /// All of the record is of use.
    pub(super) const NOTHING: Self = Self { kinds: BTreeSet::new(), reach: None };

    /// Whether there is nothing to take out.
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::NOTHING
    }
}

impl Record {
    /// What is on record.
    pub(super) fn of(crd: &Value) -> Self {
        let annotation = |name: &str| crd["metadata"]["annotations"][name].as_str();
        Self {
            kinds: names::read_kinds(annotation(names::CHILD_KINDS).unwrap_or_default()).collect(),
            reach: Reach::read(annotation(names::CHILD_NAMESPACES)),
        }
    }

    /// What the templates of a resource say. `operator`: the manager's namespace.
    pub(super) fn needed(resource: &Resource, operator: &str) -> Self {
        Self {
            kinds: resource.children.iter().flat_map(|child| child.kinds.iter().cloned()).collect(),
            reach: Reach::of(resource, operator),
        }
    }

    /// Both.
    #[must_use]
    pub(super) fn and(mut self, other: Self) -> Self {
        self.kinds.extend(other.kinds);
        Self { kinds: self.kinds, reach: self.reach.and(other.reach) }
    }

    /// What is left when that is taken out, provided nobody has added to it meanwhile.
    #[must_use]
    pub(super) fn without(mut self, spent: &Spent) -> Self {
        self.kinds.retain(|kind| !spent.kinds.contains(kind));
        if spent.reach.as_ref() == Some(&self.reach) {
            self.reach = Reach::HOME;
        }
        self
    }

    /// What of it the templates do not need, and no child of the CRD's instances either, as far as can be seen: of a
    /// kind that cannot be listed nothing is known. `has_crds`: whether a CRD of that group is there.
    pub(super) fn spent(
        &self,
        needed: &Self,
        crd: &str,
        index: &Index,
        has_crds: impl Fn(&str) -> bool,
    ) -> Spent {
        let is_listed = |(api_version, kind): &KindName| {
            matches!(index.kind_state(api_version, kind), KindState::Synced | KindState::Elsewhere(_))
        };
        let is_spent = |kind: &KindName| {
            let (api_version, name) = kind;
            let group = group_of(api_version);
            // The same objects are found in the version that the package has now.
            let mut others = needed.kinds.iter().filter(|(of, other)| other == name && group_of(of) == group);
            if others.any(is_listed) {
                return true;
            }
            let is_of_kind = |_: Option<&InstanceKey>, object: &ObjectRef| {
                *object.api_version == **api_version && *object.kind == **name
            };
            match index.kind_state(api_version, name) {
                KindState::Synced | KindState::Elsewhere(_) => !index.has_child(crd, is_of_kind),
                // With its CRD its objects went.
                KindState::NotServed => !has_crds(group),
                KindState::Syncing | KindState::Unknown(_) => false,
            }
        };
        let kinds: BTreeSet<KindName> =
            self.kinds.difference(&needed.kinds).filter(|kind| is_spent(kind)).cloned().collect();
        let is_wider = self.reach.clone().and(needed.reach.clone()) != needed.reach;
        let is_astray = |owner: Option<&InstanceKey>, object: &ObjectRef| {
            let Some(namespace) = object.namespace.as_deref() else { return false };
            let is_at_home = owner.is_some_and(|owner| owner.namespace.as_deref() == Some(namespace));
            !is_at_home && !needed.reach.has(namespace)
        };
        let is_known = |kind: &KindName| kinds.contains(kind) || is_listed(kind);
        let is_spent = is_wider && self.kinds.iter().all(is_known) && !index.has_child(crd, is_astray);
        Spent { kinds, reach: is_spent.then(|| self.reach.clone()) }
    }

    /// Whether it holds more than the templates need.
    pub(super) fn exceeds(&self, needed: &Self) -> bool {
        self.clone().and(needed.clone()) != *needed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::children::Seen;
    use crate::manager::index::Origin;

    const CRD: &str = "ws.example.org";

    fn record(kinds: &str, namespaces: &str) -> Record {
        Record::of(&json!({"metadata": {"annotations": {
            names::CHILD_KINDS: kinds, names::CHILD_NAMESPACES: namespaces,
        }}}))
    }

    /// With the instance `home/a` of that CRD and `home/b` of another.
    fn index() -> Index {
        let mut index = Index::default();
        index.name_kind(&CRD.into(), "W.example.org");
        for (crd, name) in [(CRD, "a"), ("others.example.org", "b")] {
            let key = InstanceKey { crd: crd.into(), namespace: Some("home".into()), name: name.into() };
            index.put_instance(key, &json!({"metadata": {"uid": name, "resourceVersion": "1"}}));
        }
        for (api_version, kind) in [("v1", "ConfigMap"), ("g/v1", "Gadget")] {
            index.end_kind(&api_version.into(), &kind.into(), &KindState::Synced);
        }
        index
    }

    /// A gadget of an instance; made by us, unless somebody has only copied the labels.
    fn put(index: &mut Index, namespace: &str, instance: &str, is_ours: bool) -> ObjectRef {
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
        let (api_version, kind): (Arc<str>, Arc<str>) = ("g/v1".into(), "Gadget".into());
        let seen =
            Seen { api_version: &api_version, kind: &kind, metadata: &metadata, body: None, reports: false };
        let observed = seen.observe(|_, _| Arc::from([])).unwrap();
        let object = observed.object.clone();
        index.put_child(observed, Origin::Watch);
        object
    }

    fn left(record: &Record, needed: &Record, index: &Index, has_crds: bool) -> (String, String) {
        let spent = record.spent(needed, CRD, index, |_| has_crds);
        let left = record.clone().without(&spent).and(needed.clone());
        let kinds: Vec<_> = left.kinds.iter().map(|(_, kind)| kind.as_str()).collect();
        (kinds.join(","), left.reach.text())
    }

    #[test]
    fn a_kind_stays_on_record_while_something_of_it_may_be_left() {
        let (recorded, needed) = (record("g/v1/Gadget,v1/ConfigMap", "x"), record("v1/ConfigMap", "x"));
        assert!(recorded.exceeds(&needed) && !needed.exceeds(&needed));
        let (kept, gone) = (("Gadget,ConfigMap".into(), "x".into()), ("ConfigMap".into(), "x".into()));
        let mut index = index();
        assert_eq!(left(&recorded, &needed, &index, true), gone, "there is none");
        // A copy of a child, and another CRD's child, are none of its own; that of a former instance is.
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
        // What cannot be listed is not known to be nothing; with its CRD it would be gone.
        let (api_version, kind) = ("g/v1".into(), "Gadget".into());
        for (state, has_crds, expected) in [
            (KindState::Unknown("403".into()), false, &kept),
            (KindState::Syncing, false, &kept),
            (KindState::Elsewhere("g/v2".into()), false, &gone),
            (KindState::NotServed, true, &kept),
            (KindState::NotServed, false, &gone),
        ] {
            index.lose_kind(&api_version, &kind, state.clone());
            assert_eq!(left(&recorded, &needed, &index, has_crds), *expected, "{state:?}");
        }
        // In the version that the package has now the same objects are found.
        let newer = record("g/v2/Gadget", "x");
        let recorded = record("g/v1/Gadget,g/v2/Gadget", "x");
        index.end_kind(&api_version, &kind, &KindState::Synced);
        put(&mut index, "home", "a", true);
        let spent = |index: &Index| recorded.spent(&newer, CRD, index, |_| true);
        assert!(spent(&index).is_nothing(), "before that version is listed");
        index.end_kind(&"g/v2".into(), &kind, &KindState::Synced);
        assert_eq!(recorded.clone().without(&spent(&index)), newer);
    }

    #[test]
    fn a_namespace_stays_on_record_while_a_child_lies_there() {
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
        let kind = "Gadget".into();
        index.lose_kind(&"g/v1".into(), &kind, KindState::Unknown("403".into()));
        assert_eq!(left(&recorded, &needed, &index, true).1, "x,y", "nobody knows where they are");
        // Somebody has added to it since it was looked at.
        index.end_kind(&"g/v1".into(), &kind, &KindState::Synced);
        let spent = recorded.spent(&needed, CRD, &index, |_| true);
        assert_eq!(record("g/v1/Gadget", "x,y,z").without(&spent).reach.text(), "x,y,z");
    }
}
