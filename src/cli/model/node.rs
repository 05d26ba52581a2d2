//! The tree of an instance as values: children, workloads and pods. No I/O.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{Object, Status};
use crate::children::names;
use crate::cli::out::printable;
use crate::manager::raw::Raw;
use crate::readiness::{self, Readiness};
use crate::selector::Selector;

/// The position of a node in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum NodePosition {
    Root,
    /// A child: the uid of its instance, id, key, and depth in the graph.
    Child {
        instance: String,
        id: String,
        key: Option<String>,
        order: u32,
    },
    /// An object of a workload, with the uid of its owner.
    Dependent {
        owner: String,
    },
}

impl NodePosition {
    /// The id of a child.
    pub(in crate::cli) fn id(&self) -> &str {
        if let Self::Child { id, .. } = self { id } else { "" }
    }

    /// The key of a child that is the member of a forEach.
    pub(in crate::cli) fn key(&self) -> Option<&str> {
        if let Self::Child { key, .. } = self { key.as_deref() } else { None }
    }

    /// Whether it is a child of the instance with this uid.
    pub(in crate::cli) fn is_of(&self, uid: &str) -> bool {
        matches!(self, Self::Child { instance, .. } if instance == uid)
    }
}

/// One object of the tree.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct Node {
    pub position: NodePosition,
    pub object: Object,
    pub deleted: Option<String>,
    /// The finalizers of an object that is being deleted.
    pub finalizers: Vec<String>,
    pub marks: Vec<Mark>,
    /// The conditions of an instance.
    pub conditions: Vec<Value>,
    pub children: Vec<Node>,
    pub dependents: Vec<Node>,
}

/// A remark about a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Mark {
    /// It is no longer desired, and is retained.
    Retained,
    /// Its deletion waits for approval.
    DeletionPending,
    /// It has the labels of a child, but Operetta has not applied it: usually a copy.
    NotApplied,
    /// It is not a Secret and may contain data of Secrets.
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
            Self::Retained => "retained, although it is no longer desired",
            Self::DeletionPending => "its deletion waits for approval: operetta plan approve",
            Self::NotApplied => "has the labels of a child, but Operetta has not applied it",
            Self::ExposesSecretData => "may contain data of Secrets: its package exposes it",
        }
    }
}

impl Node {
    /// An instance of a package.
    pub(in crate::cli) fn instance(position: NodePosition, raw: &Raw) -> Self {
        let conditions = raw.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Self { conditions, ..Self::new(position, raw, Status::of_instance(&raw.body)) }
    }

    /// Any other object. `whole`: more than its metadata is known. `reports`: see [`readiness::of_kind`].
    pub(in crate::cli) fn object(position: NodePosition, raw: &Raw, whole: bool, reports: bool) -> Self {
        let readiness = match (whole, raw.metadata.deletion_timestamp.is_some()) {
            (true, _) => readiness::of_kind(&raw.body, reports),
            (false, true) => Readiness::Terminating,
            (false, false) => Readiness::Ready,
        };
        Self::new(position, raw, Status::of_object(&readiness))
    }

    fn new(position: NodePosition, raw: &Raw, status: Status) -> Self {
        let meta = &raw.metadata;
        let is = |key: &str| {
            meta.annotations.as_ref().is_some_and(|all| all.get(key).is_some_and(|v| v == "true"))
        };
        let child = matches!(position, NodePosition::Child { .. });
        let marks = [
            (Mark::Retained, is(names::RETAINED)),
            (Mark::DeletionPending, is(names::PENDING)),
            (Mark::NotApplied, child && !raw.is_applied()),
            (Mark::ExposesSecretData, child && is(names::EXPOSES_SECRET_DATA)),
        ];
        let deleted = raw.body["metadata"]["deletionTimestamp"].as_str().map(str::to_owned);
        Self {
            position,
            object: Object::new(&raw.body, status),
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

    /// Whether it is desired, so that it counts among the children of its instance.
    pub(in crate::cli) fn is_desired(&self) -> bool {
        !self.marks.iter().any(|mark| *mark != Mark::ExposesSecretData)
    }

    /// The message in one line.
    pub(in crate::cli) fn sentence(&self) -> String {
        let mut parts = Vec::new();
        let message = &self.object.status.message;
        if !message.is_empty() {
            parts.push(message.clone());
        }
        if !self.finalizers.is_empty() {
            let noun = if self.finalizers.len() == 1 { "finalizer" } else { "finalizers" };
            parts.push(format!("waits for the {noun} {}", self.finalizers.join(", ")));
        }
        parts.extend(self.marks.iter().map(|mark| mark.sentence().to_owned()));
        parts.join("; ")
    }

    /// The documented format of `-o json`: all keys are always present.
    pub(in crate::cli) fn to_json(&self) -> Value {
        let (id, key) = match &self.position {
            NodePosition::Child { id, key, .. } => (Some(id), key.as_ref()),
            _ => (None, None),
        };
        let list = |nodes: &[Self]| nodes.iter().map(Self::to_json).collect::<Vec<_>>();
        let Object { api_version, kind, namespace, name, uid, created, status } = &self.object;
        json!({
            "id": id, "key": key,
            "object": {
                "apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name, "uid": uid,
            },
            "ready": self.object.is_ready(), "status": status.state.text(), "reason": status.reason,
            "message": status.message, "creationTimestamp": created, "deletionTimestamp": self.deleted, "finalizers": self.finalizers,
            "marks": self.marks.iter().map(|mark| mark.text()).collect::<Vec<_>>(),
            "conditions": self.conditions,
            "children": list(&self.children), "dependents": list(&self.dependents),
        })
    }
}

/// The position of a child, from its labels; `None` if the object is not a child.
pub(in crate::cli) fn child_position(raw: &Raw) -> Option<NodePosition> {
    let meta = &raw.metadata;
    let labels = meta.labels.as_ref()?;
    let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
    Some(NodePosition::Child {
        instance: labels.get(names::INSTANCE_UID)?.clone(),
        id: printable(labels.get(names::CHILD).map_or("", String::as_str)),
        key: annotation(names::KEY).or_else(|| labels.get(names::KEY)).map(|key| printable(key)),
        order: annotation(names::ORDER).and_then(|order| order.parse().ok()).unwrap_or(0),
    })
}

/// The uid of the controller that owns an object.
pub(in crate::cli) fn owner(raw: &Raw) -> Option<String> {
    let mut owners = raw.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
}

/// The selector of a workload's pods, in the format of list requests; `None` if the kind has none.
pub(in crate::cli) fn selector(workload: &Value) -> Option<String> {
    let has_pods = matches!(
        (workload["apiVersion"].as_str()?, workload["kind"].as_str()?),
        ("v1", "ReplicationController")
            | ("apps/v1", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
            | ("batch/v1", "Job")
    );
    let selector = Selector::parse(&workload["spec"]["selector"]).ok()?;
    // An empty selector would select every pod.
    (has_pods && !selector.is_empty()).then(|| selector.to_string())
}

/// Whether a `ReplicaSet` is of an earlier revision and has no pods.
pub(in crate::cli) fn is_spent(raw: &Raw) -> bool {
    let body = &raw.body;
    body["kind"] == "ReplicaSet"
        && body["spec"]["replicas"] == 0
        && body["status"]["replicas"].as_i64().unwrap_or(0) == 0
}

/// Builds the tree below a root from nodes in any order. Nodes without a parent in the tree are omitted.
pub(in crate::cli) fn grow(root: Node, nodes: Vec<Node>) -> Node {
    let mut children: HashMap<String, Vec<Node>> = HashMap::new();
    let mut dependents: HashMap<String, Vec<Node>> = HashMap::new();
    for node in nodes {
        match &node.position {
            NodePosition::Child { instance, .. } => children.entry(instance.clone()).or_default().push(node),
            NodePosition::Dependent { owner } => dependents.entry(owner.clone()).or_default().push(node),
            NodePosition::Root => {}
        }
    }
    attach(root, &mut children, &mut dependents)
}

/// Attaches children and dependents to a node. Each list is removed from the maps when it is used, so that
/// the recursion ends even if uids form a cycle.
fn attach(
    mut node: Node,
    children: &mut HashMap<String, Vec<Node>>,
    dependents: &mut HashMap<String, Vec<Node>>,
) -> Node {
    let mut own = children.remove(&node.object.uid).unwrap_or_default();
    // Children are sorted by the lowest order of their id, so that the members of a forEach stay together.
    let mut first: HashMap<String, u32> = HashMap::new();
    for child in &own {
        if let NodePosition::Child { id, order, .. } = &child.position {
            let least = first.entry(id.clone()).or_insert(*order);
            *least = (*least).min(*order);
        }
    }
    own.sort_by_cached_key(|child| match &child.position {
        NodePosition::Child { id, key, .. } => (
            first.get(id).copied(),
            id.clone(),
            natural(key.as_deref().unwrap_or_default()),
            child.object.name.clone(),
        ),
        _ => (None, String::new(), natural(""), child.object.name.clone()),
    });
    node.children = own.into_iter().map(|child| attach(child, children, dependents)).collect();
    let mut owned = dependents.remove(&node.object.uid).unwrap_or_default();
    owned.sort_by_cached_key(|dependent| (dependent.object.kind.clone(), natural(&dependent.object.name)));
    node.dependents = owned.into_iter().map(|one| attach(one, children, dependents)).collect();
    node
}

/// A sort key that puts `a-10` after `a-9`.
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
pub(in crate::cli) mod tests {
    use super::*;

    pub(in crate::cli) fn raw(mut object: Value) -> Raw {
        let applied = json!([{"manager": "operetta/p", "operation": "Apply"}]);
        if object["metadata"].get("managedFields").is_none() {
            object["metadata"]["managedFields"] = applied;
        }
        Raw::from_value(object).unwrap()
    }

    pub(in crate::cli) fn child(id: &str, key: Option<&str>, order: u32, name: &str, status: &Value) -> Node {
        let raw = raw(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "n", "uid": name, "creationTimestamp": "2026-11-21T11:59:30Z",
                "labels": {"operetta.dev/instance-uid": "root", "operetta.dev/child": id},
                "annotations": {"operetta.dev/order": order.to_string()}},
            "status": status,
        }));
        let Some(NodePosition::Child { instance, id, order, .. }) = child_position(&raw) else { panic!() };
        let position = NodePosition::Child { instance, id, key: key.map(str::to_owned), order };
        Node::object(position, &raw, true, false)
    }

    pub(in crate::cli) fn running() -> Value {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
    }

    pub(in crate::cli) fn root(conditions: &Value) -> Node {
        let object = json!({
            "apiVersion": "a/v1", "kind": "Web",
            "metadata": {"name": "web", "namespace": "n", "uid": "root", "generation": 1, "creationTimestamp": "2026-11-21T11:00:00Z"},
            "status": {"observedGeneration": 1, "conditions": conditions},
        });
        Node::instance(NodePosition::Root, &raw(object))
    }

    #[test]
    fn children_are_sorted_by_order_and_members_by_key() {
        let nodes =
            ["10", "9", "0"].map(|key| child("members", Some(key), 1, &format!("m-{key}"), &running()));
        let mut nodes = nodes.to_vec();
        nodes.push(child("a-last", None, 2, "z", &running()));
        nodes.push(child("first", None, 0, "y", &running()));
        let tree = grow(root(&json!([])), nodes);
        let order: Vec<&str> = tree.children.iter().map(|child| child.object.name.as_str()).collect();
        assert_eq!(order, ["y", "m-0", "m-9", "m-10", "z"]);
    }

    #[test]
    fn dependents_are_below_their_owner_and_cycles_end() {
        let dependent = |name: &str, owner: &str| Node {
            position: NodePosition::Dependent { owner: owner.to_owned() },
            ..child("x", None, 0, name, &running())
        };
        let inner = child("inner", None, 0, "inner", &running());
        // An instance of another package, whose child has the uid of the root instance.
        let mut deep = child("deep", None, 0, "deep", &running());
        deep.position =
            NodePosition::Child { instance: "inner".into(), id: "deep".into(), key: None, order: 0 };
        let mut back = child("back", None, 0, "root", &running());
        back.position =
            NodePosition::Child { instance: "deep".into(), id: "back".into(), key: None, order: 0 };
        back.object.uid = "root".into();
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
        assert_eq!(
            (inner.children[0].object.name.as_str(), inner.dependents[0].object.name.as_str()),
            ("deep", "rs")
        );
        assert_eq!(inner.dependents[0].dependents[0].object.name, "pod");
        assert!(inner.children[0].children[0].children.is_empty());
    }

    #[test]
    fn marks_and_finalizers_are_shown() {
        let object = raw(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "uid": "c", "deletionTimestamp": "2026-11-21T12:00:00Z", "finalizers": ["a/b", "c"],
                "annotations": {"operetta.dev/retained": "true", "operetta.dev/deletion-pending": "true"},
                "labels": {"operetta.dev/instance-uid": "root"}, "managedFields": []},
        }));
        let node = Node::object(child_position(&object).unwrap(), &object, false, false);
        assert_eq!(node.object.status.state.text(), "Terminating");
        assert_eq!(node.marks, [Mark::Retained, Mark::DeletionPending, Mark::NotApplied]);
        assert_eq!(
            node.sentence(),
            "waits for the finalizers a/b, c; retained, although it is no longer desired; its deletion waits for approval: operetta plan approve; has \
             the labels of a child, but Operetta has not applied it"
        );
        let shape = node.to_json();
        assert_eq!(shape["marks"], json!(["Retained", "DeletionPending", "NotApplied"]));
        assert_eq!((&shape["key"], &shape["children"]), (&Value::Null, &json!([])));
    }

    #[test]
    fn selectors_have_the_format_of_list_requests() {
        let of = |api: &str, kind: &str, selector: Value| {
            super::selector(&json!({"apiVersion": api, "kind": kind, "spec": {"selector": selector}}))
        };
        let labels = json!({"matchLabels": {"a": "b", "c": "d"}, "matchExpressions": [
            {"key": "e", "operator": "In", "values": ["f", "g"]}, {"key": "h", "operator": "DoesNotExist"},
        ]});
        assert_eq!(of("apps/v1", "Deployment", labels.clone()).unwrap(), "a=b,c=d,e in (f,g),!h");
        assert_eq!(of("v1", "ReplicationController", json!({"a": "b"})).unwrap(), "a=b");
        assert_eq!(of("v1", "Service", labels), None);
        // An empty selector would select every pod.
        assert_eq!(of("apps/v1", "Deployment", json!({})), None);
    }
}
