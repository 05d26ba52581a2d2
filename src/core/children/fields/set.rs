//! The fields that one entry of managedFields owns.

use std::hash::Hash;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::path::{FieldsError, Key};

/// The fields that one manager owns. Equal sets are equal values, so that siblings can share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldSet {
    pub(super) root: Node,
}

/// A place in the set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Node {
    /// The place itself is owned, not only some of what is below.
    pub(super) member: bool,
    /// What is below, in the order of fieldsV1's keys: fields come first, sorted by name.
    pub(super) children: Box<[(Key, Node)]>,
}

impl Node {
    fn parse(value: &Value) -> Result<Self, FieldsError> {
        let map = value.as_object().ok_or(FieldsError::NotAMap)?;
        let mut children = Vec::with_capacity(map.len());
        for (raw, below) in map {
            if raw == "." {
                continue;
            }
            if let Some(key) = Key::parse(raw)? {
                children.push((key, Self::parse(below)?));
            }
        }
        // `{}` is how a member without children is written.
        Ok(Self { member: map.is_empty() || map.contains_key("."), children: children.into() })
    }

    /// Whether the place is owned as a whole: nothing is known below it.
    pub(super) fn is_leaf(&self) -> bool {
        self.member && self.children.is_empty()
    }

    /// The child at a field of a map.
    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        self.place(name).map(|at| &self.children[at].1)
    }

    fn field_mut(&mut self, name: &str) -> Option<&mut Self> {
        self.place(name).map(|at| &mut self.children[at].1)
    }

    fn place(&self, name: &str) -> Option<usize> {
        let fields = self.children.partition_point(|(key, _)| matches!(key, Key::Field(_)));
        let at = self.children[..fields].binary_search_by(|(key, _)| match key {
            Key::Field(field) => (**field).cmp(name),
            _ => std::cmp::Ordering::Greater,
        });
        at.ok()
    }

    /// The child at any key.
    pub(super) fn child(&self, wanted: &Key) -> Option<&Self> {
        self.children.iter().find(|(key, _)| key == wanted).map(|(_, node)| node)
    }

    /// The items of a keyed list.
    pub(super) fn items(&self) -> impl Iterator<Item = (&Key, &Self)> {
        self.children.iter().filter(|(key, _)| matches!(key, Key::Item(_))).map(|(key, node)| (key, node))
    }
}

/// A selection of the entries of managedFields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entries {
    /// All entries but our own Apply.
    Others,
    /// The entries of plain writes: what a person or controller changed without declaring it.
    Updates,
    /// The Apply entries of other managers: their declarations.
    OtherApplies,
}

impl FieldSet {
    /// Reads the `fieldsV1` of one entry of managedFields.
    pub fn parse(fields_v1: &Value) -> Result<Self, FieldsError> {
        let mut root = Node::parse(fields_v1)?;
        // The object itself has no owner; `{}` here is the empty set.
        root.member = false;
        Ok(Self { root })
    }

    /// [`Self::parse`] for a child of the instance with that uid. The uid is left out of the instance's place
    /// among the owners: the sets of all siblings are equal then, and one is kept for all.
    pub fn parse_of(fields_v1: &Value, instance_uid: &str) -> Result<Self, FieldsError> {
        let mut set = Self::parse(fields_v1)?;
        let owners =
            set.root.field_mut("metadata").and_then(|metadata| metadata.field_mut("ownerReferences"));
        for (key, _) in owners.into_iter().flat_map(|owners| &mut owners.children) {
            if let Key::Item(fields) = key
                && matches!(&**fields, [(name, Value::String(uid))] if &**name == "uid" && uid == instance_uid)
            {
                *key = Key::Owner;
            }
        }
        Ok(set)
    }

    /// What `manager` owns by server-side apply of the object itself (no subresource). `None`: there
    /// is no such entry, or it cannot be read; then the manager owns nothing. Takes an object or its
    /// metadata.
    pub fn of_manager(object_or_metadata: &Value, manager: &str) -> Option<Self> {
        let entry = managed_fields(object_or_metadata)?.iter().find(|entry| is_our_apply(entry, manager))?;
        Self::parse(entry.get("fieldsV1")?).ok()
    }

    /// The union of what everybody else owns, except by subresources. Takes an object or its metadata.
    pub fn of_others(object_or_metadata: &Value, manager: &str) -> Self {
        Self::union_of(object_or_metadata, manager, Entries::Others)
    }

    pub(super) fn union_of(object_or_metadata: &Value, manager: &str, entries: Entries) -> Self {
        let mut union = Map::new();
        for entry in managed_fields(object_or_metadata).into_iter().flatten() {
            let wanted = match entries {
                Entries::Others => has_no_subresource(entry) && !is_our_apply(entry, manager),
                Entries::Updates => is_update(entry),
                Entries::OtherApplies => is_apply(entry) && !is_our_apply(entry, manager),
            };
            if let (true, Some(fields)) = (wanted, entry.get("fieldsV1").and_then(Value::as_object)) {
                unite(&mut union, fields);
            }
        }
        Self::parse(&Value::Object(union)).unwrap_or_default()
    }

    /// Whether nothing is owned.
    pub fn is_empty(&self) -> bool {
        self.root.children.is_empty()
    }

    /// A hash that stays the same between processes and versions: it may be stored.
    pub fn hash64(&self) -> u64 {
        let mut hasher = Sha256::new();
        digest(&self.root, &mut hasher);
        let digest = hasher.finalize();
        digest.iter().take(8).fold(0, |hash, byte| (hash << 8) | u64::from(*byte))
    }
}

/// Feeds a node in an unambiguous form: every part is preceded by its kind and length.
fn digest(node: &Node, hasher: &mut Sha256) {
    let mut part = |kind: u8, bytes: &[u8]| {
        hasher.update([kind]);
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(b'.', &[u8::from(node.member)]);
    part(b'n', &(node.children.len() as u64).to_le_bytes());
    for (key, below) in &node.children {
        let mut part = |kind: u8, bytes: &[u8]| {
            hasher.update([kind]);
            hasher.update((bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        match key {
            Key::Field(name) => part(b'f', name.as_bytes()),
            Key::Item(fields) => {
                for (name, value) in fields {
                    part(b'k', name.as_bytes());
                    part(b'=', value.to_string().as_bytes());
                }
            }
            Key::Owner => part(b'o', &[]),
            Key::Value(value) => part(b'v', value.to_string().as_bytes()),
            Key::Index(index) => part(b'i', &index.to_le_bytes()),
        }
        digest(below, hasher);
    }
}

fn managed_fields(object_or_metadata: &Value) -> Option<&Vec<Value>> {
    let metadata = object_or_metadata.get("metadata").unwrap_or(object_or_metadata);
    metadata.get("managedFields")?.as_array()
}

fn has_no_subresource(entry: &Value) -> bool {
    entry.get("subresource").and_then(Value::as_str).is_none_or(str::is_empty)
}

fn is_apply(entry: &Value) -> bool {
    entry["operation"] == "Apply" && has_no_subresource(entry)
}

/// Whether an entry of managedFields is what `manager` applied to the object itself.
pub(super) fn is_our_apply(entry: &Value, manager: &str) -> bool {
    is_apply(entry) && entry["manager"] == manager
}

/// Whether an entry of managedFields comes from plain writes to the object itself.
pub(super) fn is_update(entry: &Value) -> bool {
    entry["operation"] == "Update" && has_no_subresource(entry)
}

/// Adds one fieldsV1 to another. `{}` is a member without children, so one that gets children needs
/// its `"."` to stay a member.
pub(super) fn unite(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, below) in from {
        match (into.get_mut(key), below) {
            (Some(Value::Object(have)), Value::Object(more)) => {
                if have.is_empty() != more.is_empty() {
                    have.insert(".".to_owned(), Value::Object(Map::new()));
                }
                unite(have, more);
            }
            _ => {
                into.insert(key.clone(), below.clone());
            }
        }
    }
}
