//! Schemas of built-in kinds and of CRDs, and the types of values that are checked against them. All functions are
//! pure; nothing is cached between two checks.

mod basic;
mod conform;
pub mod kubernetes;
mod limits;
mod removed;
mod types;

use operetta_kube_model::schema::{
    OBJECT_FIELDS, OtherKeys, is_embedded, is_int_or_string, list_keys, other_keys, properties, values,
};
use serde_json::Value;

pub use basic::Basic;
pub(crate) use basic::literal_basic;
pub use conform::Conform;
pub use kubernetes::Kubernetes;
pub use removed::{gone, successor};
pub use types::{Field, Fields, Member, Shape, Type};

/// The definition of `metadata` of every object.
const OBJECT_META: &str = "meta.v1.ObjectMeta";

/// One schema, with the definitions that it references.
#[derive(Clone, Copy)]
pub struct Schema<'a> {
    value: &'a Value,
    kubernetes: &'a Kubernetes,
    /// Whether it is the schema of a whole custom resource.
    is_root: bool,
}

/// The schema of a field.
pub enum Lookup<'a> {
    /// The field has this schema.
    Known(Schema<'a>),
    /// The field does not exist; these do.
    Unknown(Vec<&'a str>),
    /// Any field is allowed.
    Open,
}

impl std::fmt::Debug for Schema<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.value)
    }
}

impl PartialEq for Schema<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.value, other.value)
    }
}

impl<'a> Schema<'a> {
    /// A schema of a CRD.
    pub fn new(value: &'a Value, kubernetes: &'a Kubernetes) -> Self {
        Self { value, kubernetes, is_root: false }
    }

    /// The schema of a whole custom resource.
    pub fn of_object(value: &'a Value, kubernetes: &'a Kubernetes) -> Self {
        Self { value, kubernetes, is_root: true }
    }

    /// The schema of a definition; references are followed.
    fn at(self, value: &'a Value) -> Self {
        let mut value = value;
        // The server never serves a reference to a reference; the bound is for a manipulated file.
        for _ in 0..8 {
            let Some(name) = value.get("$ref").and_then(Value::as_str) else { break };
            match self.kubernetes.definition(name) {
                Some(found) => value = found,
                None => break,
            }
        }
        Self { value, is_root: false, ..self }
    }

    fn flag(self, key: &str) -> bool {
        self.value.get(key) == Some(&Value::Bool(true))
    }

    fn text(self, key: &str) -> Option<&'a str> {
        self.value.get(key).and_then(Value::as_str)
    }

    /// Its `format`.
    pub fn format(self) -> Option<&'a str> {
        self.text("format")
    }

    /// The basic types that it allows.
    pub fn basic(self) -> Basic {
        if is_int_or_string(self.value) {
            return Basic::INT | Basic::STRING;
        }
        let basic = match self.text("type") {
            Some("string") => Basic::STRING,
            Some("integer") => Basic::INT,
            Some("number") => Basic::INT | Basic::FLOAT,
            Some("boolean") => Basic::BOOL,
            Some("array") => Basic::LIST,
            Some("object") => Basic::MAP,
            _ if self.format() == Some("quantity") => Basic::STRING | Basic::INT | Basic::FLOAT,
            _ => Basic::ANY,
        };
        if self.flag("nullable") { basic | Basic::NULL } else { basic }
    }

    /// Whether the value is a quantity.
    pub(crate) fn is_quantity(self) -> bool {
        self.format() == Some("quantity") && self.text("type").is_none()
    }

    /// The named fields.
    pub fn fields(self) -> impl Iterator<Item = (&'a str, Self)> {
        let known = properties(self.value).into_iter().flatten();
        known.map(move |(name, value)| (name.as_str(), self.at(value)))
    }

    /// Looks up a field.
    pub fn field(self, name: &str) -> Lookup<'a> {
        let object_field = OBJECT_FIELDS.contains(&name);
        if self.is_root && object_field {
            return match self.kubernetes.definition(OBJECT_META).filter(|_| name == "metadata") {
                Some(meta) => Lookup::Known(self.at(meta)),
                None => Lookup::Open,
            };
        }
        let known = properties(self.value);
        if let Some(found) = known.and_then(|known| known.get(name)) {
            return Lookup::Known(self.at(found));
        }
        if object_field && is_embedded(self.value) {
            return Lookup::Open;
        }
        match (other_keys(self.value), known, self.text("type")) {
            (OtherKeys::Schema(values), ..) => Lookup::Known(self.at(values)),
            (OtherKeys::Shallow | OtherKeys::Open, ..) | (_, None, Some("object") | None) => Lookup::Open,
            (_, Some(known), _) => Lookup::Unknown(known.keys().map(String::as_str).collect()),
            (_, None, Some(_)) => Lookup::Unknown(Vec::new()),
        }
    }

    /// The schema of the items of a list.
    pub fn items(self) -> Option<Self> {
        self.value.get("items").map(|items| self.at(items))
    }

    /// The schema of the values of a map without named fields.
    pub fn values(self) -> Option<Self> {
        values(self.value).map(|values| self.at(values))
    }

    /// Whether it names fields.
    pub(crate) fn has_named_fields(self) -> bool {
        properties(self.value).is_some_and(|known| !known.is_empty())
    }

    /// The required fields.
    pub fn required(self) -> impl Iterator<Item = &'a str> {
        self.value.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Whether the API server sets a default.
    pub fn has_default(self) -> bool {
        self.value.get("default").is_some()
    }

    /// The allowed values, if they are listed.
    pub fn choices(self) -> Option<&'a [Value]> {
        self.value.get("enum").and_then(Value::as_array).map(Vec::as_slice)
    }

    /// The keys that identify the items of a list.
    pub(crate) fn list_keys(self) -> Vec<&'a str> {
        list_keys(self.value).collect()
    }

    /// The JSON of the schema.
    pub fn json(self) -> &'a Value {
        self.value
    }
}
