//! Schemas in the form in which values are decoded, merged and compared. Those of the built-in kinds are shared by all
//! APIs; each version of a CRD has its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde_json::Value;

/// Marks the number of a node of the built-in kinds.
const BUILT_IN: u32 = 1 << 31;

/// The number of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id(u32);

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basic {
    Object,
    Array,
    Text,
    Integer,
    Number,
    Bool,
    /// No type is given: anything.
    Any,
}

/// The type of a scalar, as merges check it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Number,
    Text,
    Bool,
    Any,
}

/// How a list is merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListKind {
    Atomic,
    Set,
    Map(Vec<Box<str>>),
}

/// A named field.
#[derive(Debug)]
pub(crate) struct Field {
    id: Id,
    pub(crate) default: Option<Value>,
    /// Go's type of the field.
    pub(crate) go: Box<str>,
    /// Whether the zero value is not written.
    pub(crate) omits_zero: bool,
    /// Whether Go knows the zero value from an absent one.
    pub(crate) is_pointer: bool,
    pub(crate) patch: Patch,
}

/// How strategic merge patches change a field.
#[derive(Debug, Default)]
pub(crate) struct Patch {
    pub(crate) merges: bool,
    pub(crate) key: Option<Box<str>>,
}

/// One schema.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) basic: Basic,
    pub(crate) format: Box<str>,
    pub(crate) fields: BTreeMap<Box<str>, Field>,
    extra: Option<Id>,
    items: Option<Id>,
    list: ListKind,
    atomic: bool,
    /// The definition, for example `apps.v1.DeploymentSpec`.
    pub(crate) name: Box<str>,
}

/// Many schemas.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    nodes: Vec<Node>,
    mark: u32,
    pub(crate) names: HashMap<Box<str>, Id>,
}

/// A schema in its arena.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Typed<'a> {
    arena: &'a Arena,
    id: Id,
}

/// What a value is, by its schema.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'a> {
    Scalar(Scalar),
    Map(MapShape<'a>),
    List(ListShape<'a>),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct MapShape<'a>(Typed<'a>);

#[derive(Debug, Clone, Copy)]
pub(crate) struct ListShape<'a>(Typed<'a>);

/// The schemas of the built-in kinds.
pub(crate) fn built_in() -> &'static Arena {
    static ARENA: OnceLock<Arena> = OnceLock::new();
    ARENA.get_or_init(|| Arena::built_in(text()))
}

/// The fixed nodes at the beginning of each arena.
const DEDUCED: u32 = 0;
const UNTYPED: u32 = 1;

impl Arena {
    fn new(mark: u32) -> Self {
        let any = |extra, atomic| Node {
            basic: Basic::Any,
            format: "".into(),
            fields: BTreeMap::new(),
            extra: Some(Id(extra | mark)),
            items: Some(Id(UNTYPED | mark)),
            list: ListKind::Atomic,
            atomic,
            name: "".into(),
        };
        Self { nodes: vec![any(DEDUCED, false), any(UNTYPED, true)], mark, names: HashMap::new() }
    }

    fn built_in(text: &str) -> Self {
        let mut arena = Self::new(BUILT_IN);
        let mut lines: Vec<(&str, Value)> = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(name, json)| Some((name, serde_json::from_str(json).ok()?)))
            .collect();
        // A reference is atomic, but that of a volume to its claim is not.
        let reference = lines.iter().find(|(name, _)| *name == "core.v1.ObjectReference");
        let properties = reference.map(|(_, json)| json["properties"].clone()).unwrap_or_default();
        for (_, json) in lines.iter_mut().filter(|(name, _)| *name == "core.v1.PersistentVolumeSpec") {
            if let Some(claim) = json["properties"]["claimRef"].as_object_mut() {
                claim.remove("$ref");
                claim.insert("type".to_owned(), "object".into());
                claim.insert("properties".to_owned(), properties.clone());
            }
        }
        for (name, _) in &lines {
            let id = arena.push();
            arena.names.insert((*name).into(), id);
        }
        for (name, json) in &lines {
            let id = arena.names[*name];
            let mut node = match *name {
                "apimachinery.pkg.runtime.RawExtension" => Self::new(BUILT_IN).nodes.swap_remove(1),
                _ => arena.node(json, false),
            };
            node.name = (*name).into();
            if *name == "apimachinery.pkg.api.resource.Quantity" {
                node.basic = Basic::Any;
                node.format = "quantity".into();
            }
            arena.set(id, node);
        }
        arena
    }

    /// The schema of the objects of a version of a CRD.
    pub(crate) fn custom(schema: &Value) -> (Self, Id) {
        let mut arena = Self::new(0);
        let id = arena.add(schema, false);
        let text = arena.add(&serde_json::json!({"type": "string"}), false);
        arena.object_fields(id, text);
        (arena, id)
    }

    /// Adds the fields that all objects have.
    fn object_fields(&mut self, id: Id, text: Id) {
        let meta = built_in().names.get("meta.v1.ObjectMeta").copied();
        let node = &mut self.nodes[id.0 as usize];
        node.basic = Basic::Object;
        for (name, id) in [("apiVersion", Some(text)), ("kind", Some(text)), ("metadata", meta)] {
            if let Some(id) = id {
                node.fields.insert(name.into(), Field::plain(id));
            }
        }
    }

    fn push(&mut self) -> Id {
        let id = Id(u32::try_from(self.nodes.len()).unwrap_or(0) | self.mark);
        self.nodes.push(Node {
            basic: Basic::Any,
            format: "".into(),
            fields: BTreeMap::new(),
            extra: None,
            items: None,
            list: ListKind::Atomic,
            atomic: false,
            name: "".into(),
        });
        id
    }

    fn set(&mut self, id: Id, node: Node) {
        self.nodes[(id.0 & !BUILT_IN) as usize] = node;
    }

    fn add(&mut self, json: &Value, preserve: bool) -> Id {
        if let Some(id) = json["$ref"].as_str().and_then(|name| self.names.get(name)).copied() {
            return id;
        }
        let id = self.push();
        let node = self.node(json, preserve);
        self.set(id, node);
        id
    }

    fn node(&mut self, json: &Value, preserve: bool) -> Node {
        let text = |key: &str| json[key].as_str().unwrap_or_default();
        let preserve = preserve || json["x-kubernetes-preserve-unknown-fields"] == true;
        let basic = match text("type") {
            "object" => Basic::Object,
            "array" => Basic::Array,
            "string" if text("format") == "int-or-string" => Basic::Any,
            "string" => Basic::Text,
            "integer" => Basic::Integer,
            "number" => Basic::Number,
            "boolean" => Basic::Bool,
            _ => Basic::Any,
        };
        let mut fields: BTreeMap<Box<str>, Field> = json["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, json)| {
                let id = self.add(json, preserve);
                (name.as_str().into(), Field::new(id, json))
            })
            .collect();
        if json["x-kubernetes-embedded-resource"] == true {
            let text = self.add(&serde_json::json!({"type": "string"}), false);
            let meta = built_in().names.get("meta.v1.ObjectMeta").copied();
            for (name, id) in [("apiVersion", Some(text)), ("kind", Some(text)), ("metadata", meta)] {
                if let Some(id) = id {
                    fields.entry(name.into()).or_insert_with(|| Field::plain(id));
                }
            }
        }
        let deduced = Id(DEDUCED | self.mark);
        let extra = match &json["additionalProperties"] {
            Value::Bool(true) => Some(deduced),
            values @ Value::Object(_) => Some(self.add(values, preserve)),
            Value::Bool(false) => None,
            _ if preserve || fields.is_empty() => Some(deduced),
            _ => None,
        };
        let items = match &json["items"] {
            items @ Value::Object(_) => Some(self.add(items, preserve)),
            _ => Some(Id(UNTYPED | self.mark)),
        };
        let strategy = text("x-kubernetes-patch-strategy");
        let list = match text("x-kubernetes-list-type") {
            "set" => ListKind::Set,
            "map" => ListKind::Map(texts(&json["x-kubernetes-list-map-keys"])),
            "atomic" => ListKind::Atomic,
            _ if strategy.starts_with("merge") => match text("x-kubernetes-patch-merge-key") {
                "" => ListKind::Set,
                key => ListKind::Map(vec![key.into()]),
            },
            _ => ListKind::Atomic,
        };
        let atomic = text("x-kubernetes-map-type") == "atomic";
        Node { basic, format: text("format").into(), fields, extra, items, list, atomic, name: "".into() }
    }

    pub(crate) fn typed(&self, id: Id) -> Typed<'_> {
        Typed { arena: self, id }
    }

    /// The definition of that name.
    pub(crate) fn find(&self, name: &str) -> Option<Typed<'_>> {
        self.names.get(name).map(|id| self.typed(*id))
    }
}

/// A definition of the built-in kinds.
pub(crate) fn definition(name: &str) -> Option<Typed<'static>> {
    built_in().find(name)
}

fn texts(value: &Value) -> Vec<Box<str>> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

impl Field {
    fn plain(id: Id) -> Self {
        Self {
            id,
            default: None,
            go: "".into(),
            omits_zero: true,
            is_pointer: false,
            patch: Patch::default(),
        }
    }

    fn new(id: Id, json: &Value) -> Self {
        let go = json["go"].as_str().unwrap_or_default();
        let (go, omits_zero) = go.strip_prefix('-').map_or((go, false), |rest| (rest, true));
        let (go, is_pointer) = go.strip_prefix('?').map_or((go, false), |rest| (rest, true));
        let strategy = json["x-kubernetes-patch-strategy"].as_str().unwrap_or_default();
        let patch = Patch {
            merges: strategy.contains("merge"),
            key: json["x-kubernetes-patch-merge-key"].as_str().map(Into::into),
        };
        let default = json.get("default").cloned();
        Self { id, default, go: go.into(), omits_zero, is_pointer, patch }
    }
}

impl<'a> Typed<'a> {
    pub(crate) fn node(self) -> &'a Node {
        let arena = if self.id.0 & BUILT_IN == 0 { self.arena } else { built_in() };
        &arena.nodes[(self.id.0 & !BUILT_IN) as usize]
    }

    fn at(self, id: Id) -> Self {
        Self { arena: self.arena, id }
    }

    /// A named field.
    pub(crate) fn named(self, name: &str) -> Option<(&'a Field, Self)> {
        self.node().fields.get(name).map(|field| (field, self.at(field.id)))
    }

    /// The schema of a field: of its name, or of all others.
    pub(crate) fn field(self, name: &str) -> Option<Self> {
        let node = self.node();
        node.fields.get(name).map(|field| field.id).or(node.extra).map(|id| self.at(id))
    }

    pub(crate) fn extra(self) -> Option<Self> {
        self.node().extra.map(|id| self.at(id))
    }

    pub(crate) fn items(self) -> Option<Self> {
        self.node().items.map(|id| self.at(id))
    }

    pub(crate) fn list_kind(self) -> &'a ListKind {
        &self.node().list
    }

    /// The default of a field that is a key of a list.
    pub(crate) fn default_of(self, name: &str) -> Option<&'a Value> {
        self.node().fields.get(name)?.default.as_ref()
    }

    pub(crate) fn map(self) -> Option<MapShape<'a>> {
        matches!(self.node().basic, Basic::Object | Basic::Any).then_some(MapShape(self))
    }

    pub(crate) fn list(self) -> Option<ListShape<'a>> {
        matches!(self.node().basic, Basic::Array | Basic::Any).then_some(ListShape(self))
    }

    /// Whether a map or list is owned as a whole.
    pub(crate) fn is_atomic(self) -> bool {
        match self.node().basic {
            Basic::Object => self.node().atomic,
            Basic::Array => *self.list_kind() == ListKind::Atomic,
            _ => false,
        }
    }

    /// How a value is merged and compared.
    pub(crate) fn shape(self, value: &Value) -> Shape<'a> {
        match self.node().basic {
            Basic::Object => Shape::Map(MapShape(self)),
            Basic::Array => Shape::List(ListShape(self)),
            Basic::Integer | Basic::Number => Shape::Scalar(Scalar::Number),
            Basic::Bool => Shape::Scalar(Scalar::Bool),
            Basic::Text if self.node().format.is_empty() || &*self.node().format == "byte" => {
                Shape::Scalar(Scalar::Text)
            }
            Basic::Text => Shape::Scalar(Scalar::Any),
            Basic::Any if &*self.node().format == "quantity" => Shape::Scalar(Scalar::Any),
            Basic::Any => match value {
                Value::Array(_) => Shape::List(ListShape(self)),
                Value::Object(_) | Value::Null => Shape::Map(MapShape(self)),
                _ => Shape::Scalar(Scalar::Any),
            },
        }
    }
}

impl Shape<'_> {
    pub(crate) fn is_atomic(&self) -> bool {
        match self {
            Self::Scalar(_) => false,
            Self::Map(map) => map.0.node().atomic,
            Self::List(list) => list.is_atomic(),
        }
    }

    pub(crate) fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl<'a> MapShape<'a> {
    pub(crate) fn named(self, name: &str) -> Option<Typed<'a>> {
        self.0.named(name).map(|(_, typed)| typed)
    }

    pub(crate) fn field(self, name: &str) -> Option<Typed<'a>> {
        self.0.field(name)
    }
}

impl<'a> ListShape<'a> {
    pub(crate) fn is_atomic(self) -> bool {
        *self.0.list_kind() == ListKind::Atomic
    }

    pub(crate) fn keys(self) -> &'a [Box<str>] {
        match self.0.list_kind() {
            ListKind::Map(keys) => keys,
            _ => &[],
        }
    }

    pub(crate) fn items(self) -> Option<Typed<'a>> {
        self.0.items()
    }
}

fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(operetta_kube_model::built_in::definitions)
}

/// All definitions of the built-in kinds, for their OpenAPI documents.
pub(crate) fn definitions() -> impl Iterator<Item = (&'static str, &'static str)> {
    text().lines().filter_map(|line| line.split_once(' '))
}
