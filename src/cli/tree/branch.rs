//! The tree as values: what is told of an object, and how children, workloads and pods hang together. No I/O.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::children::names;
use crate::cli::out::printable;
use crate::cli::standing::{Standing, State};
use crate::manager::raw::Raw;
use crate::readiness::{self, Readiness};

/// Whose a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    /// A child: the uid of its instance, id, key, and depth in the graph.
    Child {
        instance: String,
        id: String,
        key: Option<String>,
        order: u32,
    },
    /// Owned by a workload; the uid of its owner.
    Dependent {
        owner: String,
    },
}

impl Place {
    /// Whether it is that of a child of the instance with this uid.
    pub(super) fn is_of(&self, uid: &str) -> bool {
        matches!(self, Self::Child { instance, .. } if instance == uid)
    }
}

/// What is told of one object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub place: Place,
    pub api_version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
    pub ready: bool,
    /// True or False; of an instance Unknown, too, as `operetta get` shows it.
    pub shown_ready: String,
    /// Ready, `NotReady`, Failed or Terminating; of an instance how it stands.
    pub status: &'static str,
    pub reason: String,
    pub message: String,
    pub created: Option<String>,
    pub deleted: Option<String>,
    /// What holds it while it is being deleted.
    pub finalizers: Vec<String>,
    pub marks: Vec<Mark>,
    /// Of an instance: its conditions.
    pub conditions: Vec<Value>,
    pub children: Vec<Node>,
    pub dependents: Vec<Node>,
}

/// What else there is to know of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// It has left the target, and is kept.
    Retained,
    /// It is to go, once somebody approves.
    DeletionPending,
    /// It has the labels of a child, but nobody has applied it: a copy, mostly.
    NotApplied,
    /// It is no Secret and may hold data of Secrets.
    ExposesSecretData,
}

impl Mark {
    fn text(self) -> &'static str {
        match self {
            Self::Retained => "Retained",
            Self::DeletionPending => "DeletionPending",
            Self::NotApplied => "NotApplied",
            Self::ExposesSecretData => "ExposesSecretData",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::Retained => "kept, though no longer wanted",
            Self::DeletionPending => "its deletion waits for approval: operetta approve",
            Self::NotApplied => "has the labels of a child, but Operetta has not applied it",
            Self::ExposesSecretData => "may hold data of Secrets: its package exposes it",
        }
    }
}

impl Node {
    /// An instance of a package.
    pub(super) fn instance(place: Place, raw: &Raw) -> Self {
        let standing = Standing::of(&raw.body);
        let conditions = raw.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Self {
            ready: standing.state == State::Ready,
            shown_ready: standing.ready,
            status: standing.state.text(),
            reason: standing.reason,
            message: standing.message,
            conditions,
            ..Self::bare(place, raw)
        }
    }

    /// Any other object; `whole` if more than its metadata is there, `reports` as [`readiness::of_kind`] has it.
    pub(super) fn object(place: Place, raw: &Raw, whole: bool, reports: bool) -> Self {
        let readiness = match (whole, raw.metadata.deletion_timestamp.is_some()) {
            (true, _) => readiness::of_kind(&raw.body, reports),
            (false, true) => Readiness::Terminating,
            (false, false) => Readiness::Ready,
        };
        let (status, reason, message) = match readiness {
            Readiness::Ready => ("Ready", String::new(), String::new()),
            Readiness::NotReady { reason, message } => ("NotReady", reason, message),
            Readiness::Failed { reason, message } => ("Failed", reason, message),
            Readiness::Terminating => ("Terminating", String::new(), String::new()),
        };
        Self {
            ready: status == "Ready",
            shown_ready: if status == "Ready" { "True" } else { "False" }.to_owned(),
            status,
            reason: printable(&reason),
            message: printable(&message),
            ..Self::bare(place, raw)
        }
    }

    fn bare(place: Place, raw: &Raw) -> Self {
        let (meta, body) = (&raw.metadata, &raw.body);
        let text = |value: &Value| printable(value.as_str().unwrap_or_default());
        let is = |key: &str| {
            meta.annotations.as_ref().is_some_and(|all| all.get(key).is_some_and(|v| v == "true"))
        };
        let child = matches!(place, Place::Child { .. });
        let marks = [
            (Mark::Retained, is(names::RETAINED)),
            (Mark::DeletionPending, is(names::PENDING)),
            (Mark::NotApplied, child && !raw.is_applied()),
            (Mark::ExposesSecretData, child && is(names::EXPOSES_SECRET_DATA)),
        ];
        let deleted = body["metadata"]["deletionTimestamp"].as_str().map(str::to_owned);
        Self {
            place,
            api_version: text(&body["apiVersion"]),
            kind: text(&body["kind"]),
            namespace: meta.namespace.as_deref().map(printable),
            name: printable(meta.name.as_deref().unwrap_or_default()),
            uid: meta.uid.clone().unwrap_or_default(),
            ready: false,
            shown_ready: String::new(),
            status: "",
            reason: String::new(),
            message: String::new(),
            created: body["metadata"]["creationTimestamp"].as_str().map(str::to_owned),
            finalizers: match &deleted {
                Some(_) => meta.finalizers.iter().flatten().map(|name| printable(name)).collect(),
                None => Vec::new(),
            },
            deleted,
            marks: marks.into_iter().filter(|(_, holds)| *holds).map(|(mark, _)| mark).collect(),
            conditions: Vec::new(),
            children: Vec::new(),
            dependents: Vec::new(),
        }
    }

    /// What is said of it in one line.
    pub(super) fn sentence(&self) -> String {
        let mut parts = Vec::new();
        if !self.message.is_empty() {
            parts.push(self.message.clone());
        }
        if !self.finalizers.is_empty() {
            let noun = if self.finalizers.len() == 1 { "finalizer" } else { "finalizers" };
            parts.push(format!("waits for the {noun} {}", self.finalizers.join(", ")));
        }
        parts.extend(self.marks.iter().map(|mark| mark.sentence().to_owned()));
        parts.join("; ")
    }

    /// The documented shape of `-o json`: all keys are always there.
    pub(super) fn to_json(&self) -> Value {
        let (id, key) = match &self.place {
            Place::Child { id, key, .. } => (Some(id), key.as_ref()),
            _ => (None, None),
        };
        let list = |nodes: &[Self]| nodes.iter().map(Self::to_json).collect::<Vec<_>>();
        json!({
            "id": id, "key": key,
            "object": {
                "apiVersion": self.api_version, "kind": self.kind, "namespace": self.namespace, "name": self.name,
                "uid": self.uid,
            },
            "ready": self.ready, "status": self.status, "reason": self.reason, "message": self.message,
            "creationTimestamp": self.created, "deletionTimestamp": self.deleted, "finalizers": self.finalizers,
            "marks": self.marks.iter().map(|mark| mark.text()).collect::<Vec<_>>(),
            "conditions": self.conditions,
            "children": list(&self.children), "dependents": list(&self.dependents),
        })
    }
}

/// Where a child belongs, from its labels; `None` if it is none.
pub(super) fn child_place(raw: &Raw) -> Option<Place> {
    let meta = &raw.metadata;
    let labels = meta.labels.as_ref()?;
    let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
    Some(Place::Child {
        instance: labels.get(names::INSTANCE_UID)?.clone(),
        id: printable(labels.get(names::CHILD).map_or("", String::as_str)),
        key: annotation(names::KEY).or_else(|| labels.get(names::KEY)).map(|key| printable(key)),
        order: annotation(names::ORDER).and_then(|order| order.parse().ok()).unwrap_or(0),
    })
}

/// The uid of the controller that owns an object.
pub(super) fn owner(raw: &Raw) -> Option<String> {
    let mut owners = raw.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
}

/// The selector of a workload's pods, as a list takes it; `None` if the kind has none.
pub(super) fn selector(workload: &Value) -> Option<String> {
    let kind = (workload["apiVersion"].as_str()?, workload["kind"].as_str()?);
    let text = |map: &Value| -> Vec<String> {
        let labels = map.as_object().into_iter().flatten();
        labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect()
    };
    let selector = &workload["spec"]["selector"];
    let parts = match kind {
        ("v1", "ReplicationController") => text(selector),
        ("apps/v1", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet") | ("batch/v1", "Job") => {
            let mut parts = text(&selector["matchLabels"]);
            for term in selector["matchExpressions"].as_array().into_iter().flatten() {
                let key = term["key"].as_str()?;
                let values: Vec<&str> =
                    term["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                parts.push(match term["operator"].as_str()? {
                    "In" => format!("{key} in ({})", values.join(",")),
                    "NotIn" => format!("{key} notin ({})", values.join(",")),
                    "Exists" => key.to_owned(),
                    "DoesNotExist" => format!("!{key}"),
                    _ => return None,
                });
            }
            parts
        }
        _ => return None,
    };
    (!parts.is_empty()).then(|| parts.join(","))
}

/// Whether a `ReplicaSet` is of an earlier revision and has no pods.
pub(super) fn is_spent(raw: &Raw) -> bool {
    let body = &raw.body;
    body["kind"] == "ReplicaSet"
        && body["spec"]["replicas"] == 0
        && body["status"]["replicas"].as_i64().unwrap_or(0) == 0
}

/// The tree under a root, of nodes in any order. Those that belong to nobody in it are left out.
pub(super) fn grow(root: Node, nodes: Vec<Node>) -> Node {
    let mut children: HashMap<String, Vec<Node>> = HashMap::new();
    let mut dependents: HashMap<String, Vec<Node>> = HashMap::new();
    for node in nodes {
        match &node.place {
            Place::Child { instance, .. } => children.entry(instance.clone()).or_default().push(node),
            Place::Dependent { owner } => dependents.entry(owner.clone()).or_default().push(node),
            Place::Root => {}
        }
    }
    attach(root, &mut children, &mut dependents)
}

/// Each list is taken once, so that this ends whatever uids say.
fn attach(
    mut node: Node,
    children: &mut HashMap<String, Vec<Node>>,
    dependents: &mut HashMap<String, Vec<Node>>,
) -> Node {
    let mut own = children.remove(&node.uid).unwrap_or_default();
    // A child stands where its id does first; the members of a forEach stand together.
    let mut first: HashMap<String, u32> = HashMap::new();
    for child in &own {
        if let Place::Child { id, order, .. } = &child.place {
            let least = first.entry(id.clone()).or_insert(*order);
            *least = (*least).min(*order);
        }
    }
    own.sort_by_cached_key(|child| match &child.place {
        Place::Child { id, key, .. } => (
            first.get(id).copied(),
            id.clone(),
            natural(key.as_deref().unwrap_or_default()),
            child.name.clone(),
        ),
        _ => (None, String::new(), natural(""), child.name.clone()),
    });
    node.children = own.into_iter().map(|child| attach(child, children, dependents)).collect();
    let mut owned = dependents.remove(&node.uid).unwrap_or_default();
    owned.sort_by_cached_key(|dependent| (dependent.kind.clone(), natural(&dependent.name)));
    node.dependents = owned.into_iter().map(|one| attach(one, children, dependents)).collect();
    node
}

/// `a-10` after `a-9`.
fn natural(text: &str) -> Vec<(bool, u64, String)> {
    let mut parts: Vec<(bool, u64, String)> = Vec::new();
    for c in text.chars() {
        let digit = c.is_ascii_digit();
        match parts.last_mut() {
            Some((is_text, _, part)) if *is_text != digit => part.push(c),
            _ => parts.push((!digit, 0, c.to_string())),
        }
    }
    for (is_text, number, part) in &mut parts {
        if !*is_text {
            *number = part.parse().unwrap_or(u64::MAX);
        }
    }
    parts
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::cli::tree) fn raw(mut object: Value) -> Raw {
        let applied = json!([{"manager": "operetta/p", "operation": "Apply"}]);
        if object["metadata"].get("managedFields").is_none() {
            object["metadata"]["managedFields"] = applied;
        }
        Raw::from_value(object).unwrap()
    }

    pub(in crate::cli::tree) fn child(
        id: &str,
        key: Option<&str>,
        order: u32,
        name: &str,
        status: &Value,
    ) -> Node {
        let raw = raw(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "n", "uid": name, "creationTimestamp": "2026-11-21T11:59:30Z",
                "labels": {"operetta.dev/instance-uid": "root", "operetta.dev/child": id},
                "annotations": {"operetta.dev/order": order.to_string()}},
            "status": status,
        }));
        let Some(Place::Child { instance, id, order, .. }) = child_place(&raw) else { panic!() };
        let place = Place::Child { instance, id, key: key.map(str::to_owned), order };
        Node::object(place, &raw, true, false)
    }

    pub(in crate::cli::tree) fn running() -> Value {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
    }

    pub(in crate::cli::tree) fn root(conditions: &Value) -> Node {
        let object = json!({
            "apiVersion": "a/v1", "kind": "Web",
            "metadata": {"name": "web", "namespace": "n", "uid": "root", "generation": 1, "creationTimestamp": "2026-11-21T11:00:00Z"},
            "status": {"observedGeneration": 1, "conditions": conditions},
        });
        Node::instance(Place::Root, &raw(object))
    }

    #[test]
    fn members_stand_together_in_the_order_of_the_graph_and_of_numbers() {
        let nodes =
            ["10", "9", "0"].map(|key| child("members", Some(key), 1, &format!("m-{key}"), &running()));
        let mut nodes = nodes.to_vec();
        nodes.push(child("a-last", None, 2, "z", &running()));
        nodes.push(child("first", None, 0, "y", &running()));
        let tree = grow(root(&json!([])), nodes);
        let order: Vec<&str> = tree.children.iter().map(|child| child.name.as_str()).collect();
        assert_eq!(order, ["y", "m-0", "m-9", "m-10", "z"]);
    }

    #[test]
    fn what_belongs_to_a_child_hangs_below_it_and_a_circle_ends() {
        let dependent = |name: &str, owner: &str| Node {
            place: Place::Dependent { owner: owner.to_owned() },
            uid: name.to_owned(),
            ..child("x", None, 0, name, &running())
        };
        let mut inner = child("inner", None, 0, "inner", &running());
        // An instance of another package, whose child claims to be its instance's instance.
        let mut deep = child("deep", None, 0, "deep", &running());
        deep.place = Place::Child { instance: "inner".into(), id: "deep".into(), key: None, order: 0 };
        inner.uid = "inner".into();
        let mut back = child("back", None, 0, "root", &running());
        back.place = Place::Child { instance: "deep".into(), id: "back".into(), key: None, order: 0 };
        back.uid = "root".into();
        let nodes = vec![
            inner,
            deep,
            back,
            dependent("rs", "inner"),
            dependent("pod", "rs"),
            dependent("stray", "none"),
        ];
        let tree = grow(root(&json!([])), nodes);
        let inner = &tree.children[0];
        assert_eq!((inner.children[0].name.as_str(), inner.dependents[0].name.as_str()), ("deep", "rs"));
        assert_eq!(inner.dependents[0].dependents[0].name, "pod");
        assert!(inner.children[0].children[0].children.is_empty());
    }

    #[test]
    fn marks_and_finalizers_are_told() {
        let object = raw(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "uid": "c", "deletionTimestamp": "2026-11-21T12:00:00Z", "finalizers": ["a/b", "c"],
                "annotations": {"operetta.dev/retained": "true", "operetta.dev/deletion-pending": "true"},
                "labels": {"operetta.dev/instance-uid": "root"}, "managedFields": []},
        }));
        let node = Node::object(child_place(&object).unwrap(), &object, false, false);
        assert_eq!(node.status, "Terminating");
        assert_eq!(node.marks, [Mark::Retained, Mark::DeletionPending, Mark::NotApplied]);
        assert_eq!(
            node.sentence(),
            "waits for the finalizers a/b, c; kept, though no longer wanted; its deletion waits for approval: operetta approve; has \
             the labels of a child, but Operetta has not applied it"
        );
        let shape = node.to_json();
        assert_eq!(shape["marks"], json!(["Retained", "DeletionPending", "NotApplied"]));
        assert_eq!((&shape["key"], &shape["children"]), (&Value::Null, &json!([])));
    }

    #[test]
    fn selectors_are_written_as_lists_take_them() {
        let of = |api: &str, kind: &str, selector: Value| {
            super::selector(&json!({"apiVersion": api, "kind": kind, "spec": {"selector": selector}}))
        };
        let labels = json!({"matchLabels": {"a": "b", "c": "d"}, "matchExpressions": [
            {"key": "e", "operator": "In", "values": ["f", "g"]}, {"key": "h", "operator": "DoesNotExist"},
        ]});
        assert_eq!(of("apps/v1", "Deployment", labels.clone()).unwrap(), "a=b,c=d,e in (f,g),!h");
        assert_eq!(of("v1", "ReplicationController", json!({"a": "b"})).unwrap(), "a=b");
        assert_eq!(of("v1", "Service", labels), None);
        // It would select every pod.
        assert_eq!(of("apps/v1", "Deployment", json!({})), None);
    }
}
