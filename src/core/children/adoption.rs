//! An object exists where a child should be created: whose it is, and whether it may be adopted.

use serde_json::Value;

use super::names;
use crate::api::{ApiKind, ObjectRef};
use crate::facts::controller;

/// What may be done with an object that has the name of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adoption {
    /// The object is a child of this instance that has lost its labels.
    Ours,
    /// The object was a child of a previous instance of the same name, and has no ownerReference.
    Inherited,
    /// Another client created it and handed it over, unless the instance that its labels name exists.
    HandedOver,
    /// The object belongs to another owner: the owner, and what to do.
    Refused(String),
}

/// How an object has become a child of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopted {
    /// A deleted instance of the same name has left it.
    Inherited,
    /// Other clients have created the object and handed it over.
    HandedOver,
}

/// What the manager knows about the object beside its content.
#[derive(Debug, Clone, Default)]
pub struct AdoptionContext {
    /// The existing instance with the uid on the object's label.
    pub owner: Option<String>,
    /// Whether it was observed as a child of this instance.
    pub was_child: bool,
}

/// An instance that the labels of an object name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimant<'a> {
    /// The label of its kind.
    pub kind: &'a str,
    /// Its namespace, if it has one.
    pub namespace: Option<&'a str>,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
}

impl<'a> Claimant<'a> {
    /// The instance that a live object names.
    pub fn of(live: &'a Value) -> Option<Self> {
        let namespace = label(live, names::INSTANCE_NAMESPACE).or(live["metadata"]["namespace"].as_str());
        Some(Self {
            kind: label(live, names::KIND).unwrap_or_default(),
            namespace: namespace.filter(|namespace| !namespace.is_empty()),
            name: label(live, names::INSTANCE).unwrap_or_default(),
            uid: label(live, names::INSTANCE_UID)?,
        })
    }

    /// Why the object is not adopted while this instance exists.
    pub fn refusal(&self) -> String {
        belongs(&format!("{} {}", self.kind, self.name))
    }

    /// Why the object is not adopted if it is unknown whether this instance exists. An object that a person
    /// has annotated is adopted.
    pub fn unknown(&self, live: &Value) -> Option<String> {
        let Self { kind, name, .. } = self;
        (!is_annotated(live))
            .then(|| belongs(&format!("{kind} {name}, a kind that this manager does not know")))
    }
}

/// Whether a live object may become the child. `adopts`: the package lets the child adopt existing objects. A child of
/// another existing instance is never adopted.
pub fn adoption(
    kind: &ApiKind,
    object: &ObjectRef,
    live: &Value,
    desired: &Value,
    adopts: bool,
    known: &AdoptionContext,
) -> Adoption {
    if let Some(owner) = &known.owner {
        return Adoption::Refused(belongs(owner));
    }
    let uid = label(desired, names::INSTANCE_UID).unwrap_or_default();
    let owners = live["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    // The hash of a desired object covers the instance's uid, so no other object has it.
    let hash = &live["metadata"]["annotations"][names::INTENT];
    let has_hash = hash.is_string() && *hash == desired["metadata"]["annotations"][names::INTENT];
    let is_owned = owners.iter().any(|owner| owner["uid"] == *uid);
    // Only one instance of a kind, namespace and name exists at a time, so the labels name this one or a
    // deleted one.
    if has_hash || is_owned || (is_same_instance(live, desired) && owners.is_empty()) {
        return match label(live, names::INSTANCE_UID) {
            Some(_) => Adoption::Inherited,
            None => Adoption::Ours,
        };
    }
    // An apply under our name takes everything else from the object: labels, owner and hash included. It is the same
    // object nevertheless.
    if label(live, names::INSTANCE_UID).is_none() && owners.is_empty() && known.was_child {
        return Adoption::Ours;
    }
    if !is_annotated(live) && !adopts {
        return Adoption::Refused(format!(
            "exists and does not belong to this instance: delete it, or hand it over by `{}`; it is tried again \
             within minutes, and at once when the instance changes",
            handing_over(kind, object)
        ));
    }
    Adoption::HandedOver
}

/// Why an object that was handed over is not adopted: it has a controller.
pub fn controlled(live: &Value) -> Option<String> {
    let owner = controller(live)?;
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    Some(format!(
        "cannot be adopted: {} {} controls it; delete that owner with --cascade=orphan first",
        text("kind"),
        text("name")
    ))
}

/// Whether the object was a child of a previous instance of the same name and is on its way out: terminating, or
/// to be deleted by the garbage collector.
pub fn is_going(live: &Value, desired: &Value) -> bool {
    let Some(previous) = label(live, names::INSTANCE_UID).filter(|_| is_same_instance(live, desired)) else {
        return false;
    };
    let meta = &live["metadata"];
    let owned =
        meta["ownerReferences"].as_array().is_some_and(|all| all.iter().any(|o| o["uid"] == *previous));
    Some(previous) != label(desired, names::INSTANCE_UID) && (owned || !meta["deletionTimestamp"].is_null())
}

/// The command with which a person hands over an object.
fn handing_over(kind: &ApiKind, object: &ObjectRef) -> String {
    let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
    let place = object.namespace.as_ref().map(|namespace| format!("-n {namespace} ")).unwrap_or_default();
    format!("kubectl {place}annotate {}{group} {} {}=true", kind.plural, object.name, names::ADOPT)
}

fn belongs(owner: &str) -> String {
    format!(
        "belongs to {owner}, which lives: two instances cannot share it; give one of them another name, or delete \
         it there"
    )
}

fn is_annotated(live: &Value) -> bool {
    live["metadata"]["annotations"][names::ADOPT] == "true"
}

fn label<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["labels"][name].as_str()
}

fn is_same_instance(live: &Value, desired: &Value) -> bool {
    [names::OPERATOR, names::KIND, names::INSTANCE, names::INSTANCE_NAMESPACE]
        .iter()
        .all(|name| label(live, name) == label(desired, name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Gvk;

    fn object(uid: Option<&str>, owners: &Value) -> Value {
        let mut object = json!({"metadata": {"name": "x", "namespace": "n", "labels": {
            names::OPERATOR: "o", names::KIND: "Thing.example.org", names::INSTANCE: "a", names::INSTANCE_NAMESPACE: "n",
        }, "annotations": {}, "ownerReferences": owners}});
        if let Some(uid) = uid {
            object["metadata"]["labels"][names::INSTANCE_UID] = uid.into();
        }
        object
    }

    fn decide(live: &Value, adopts: bool, known: &AdoptionContext) -> Adoption {
        let kind = ApiKind::built_in("v1", "ConfigMap");
        let place =
            ObjectRef { gvk: Gvk::new("v1", "ConfigMap"), namespace: Some("n".into()), name: "x".into() };
        let mut desired = object(Some("uid-2"), &json!([]));
        desired["metadata"]["annotations"][names::INTENT] = "hash".into();
        adoption(&kind, &place, live, &desired, adopts, known)
    }

    fn refusal(adoption: Adoption) -> String {
        let Adoption::Refused(why) = adoption else { panic!("{adoption:?}") };
        why
    }

    #[test]
    fn objects_created_for_the_instance_are_its_children() {
        let nothing = AdoptionContext::default();
        assert_eq!(decide(&object(Some("uid-1"), &json!([])), false, &nothing), Adoption::Inherited);
        let mut owned = object(None, &json!([{"uid": "uid-2"}]));
        owned["metadata"]["labels"] = json!({});
        assert_eq!(decide(&owned, false, &nothing), Adoption::Ours);
        let mut hashed = json!({"metadata": {"annotations": {names::INTENT: "hash"}}});
        assert_eq!(decide(&hashed, false, &nothing), Adoption::Ours);
        hashed["metadata"]["annotations"][names::INTENT] = "another".into();
        assert!(refusal(decide(&hashed, false, &nothing)).contains("does not belong to this instance"));
        // It has lost all labels and annotations, but was observed as a child before.
        let seen = AdoptionContext { was_child: true, ..AdoptionContext::default() };
        assert_eq!(decide(&hashed, false, &seen), Adoption::Ours);
    }

    #[test]
    fn objects_of_others_are_adopted_only_when_handed_over() {
        let nothing = AdoptionContext::default();
        let foreign = json!({"metadata": {"name": "x"}});
        let why = refusal(decide(&foreign, false, &nothing));
        assert!(why.contains("`kubectl -n n annotate configmaps x operetta.dev/adopt=true`"), "{why}");
        assert_eq!(decide(&foreign, true, &nothing), Adoption::HandedOver);
        let annotated = json!({"metadata": {"annotations": {names::ADOPT: "true"}}});
        assert_eq!(decide(&annotated, false, &nothing), Adoption::HandedOver);
        // A child of another existing instance is never adopted.
        let owner = AdoptionContext { owner: Some("things/n/b".into()), was_child: true };
        assert!(refusal(decide(&annotated, true, &owner)).contains("belongs to things/n/b, which lives"));
        let controlled_by =
            json!({"metadata": {"ownerReferences": [{"kind": "Other", "name": "o", "controller": true}]}});
        assert!(controlled(&controlled_by).is_some_and(|why| why.contains("Other o controls it")));
        assert_eq!(controlled(&foreign), None);
    }

    #[test]
    fn objects_due_for_garbage_collection_are_going() {
        let desired = object(Some("uid-2"), &json!([]));
        assert!(is_going(&object(Some("uid-1"), &json!([{"uid": "uid-1"}])), &desired));
        assert!(!is_going(&object(Some("uid-1"), &json!([])), &desired));
        let mut terminating = object(Some("uid-1"), &json!([]));
        terminating["metadata"]["deletionTimestamp"] = "now".into();
        assert!(is_going(&terminating, &desired));
        terminating["metadata"]["labels"][names::INSTANCE] = "b".into();
        assert!(!is_going(&terminating, &desired), "of another instance");
    }

    #[test]
    fn a_claimant_is_read_from_the_labels() {
        let live = object(Some("uid-1"), &json!([]));
        let claimant = Claimant::of(&live).unwrap();
        let expected = Claimant { kind: "Thing.example.org", namespace: Some("n"), name: "a", uid: "uid-1" };
        assert_eq!(claimant, expected);
        assert!(claimant.unknown(&live).is_some_and(|why| why.contains("does not know")));
        assert_eq!(claimant.unknown(&json!({"metadata": {"annotations": {names::ADOPT: "true"}}})), None);
    }
}
