//! Kinds of CRDs.

use serde_json::{Map, Value, json};

use crate::api::Api;
use crate::kinds::Kind;
use crate::schema::{Arena, Id, Typed, definition};
use crate::status::Fault;

/// One version of a CRD.
#[derive(Debug)]
pub(crate) struct Custom {
    arena: Arena,
    id: Id,
    /// Its `openAPIV3Schema`.
    pub(crate) schema: Value,
    pub(crate) has_status: bool,
    /// The version of the CRD object with its subresources and columns.
    pub(crate) version: Value,
    pub(crate) selectable: Vec<String>,
    /// Whether no earlier schema stored objects that this one reads.
    pub(crate) is_first: bool,
}

impl Custom {
    pub(crate) fn typed(&self) -> Typed<'_> {
        self.arena.typed(self.id)
    }

    /// Prunes and completes an object that was stored by another version or schema.
    pub(crate) fn settle(&self, value: &mut Value) {
        operetta_package::crd::prune(&self.schema, value);
        operetta_package::crd::apply_defaults(&self.schema, value);
    }
}

/// Reads an object: unknown fields are dropped and returned, defaults are set.
pub(crate) fn read_into(custom: &Custom, value: &mut Value) -> Result<Vec<String>, String> {
    let mut unknown = Vec::new();
    if let Some(typed) = definition("meta.v1.ObjectMeta")
        && let Some(meta) = value.get_mut("metadata")
    {
        unknown.extend(crate::decode::decode(typed, meta)?.into_iter().map(|path| format!("metadata.{path}")));
    }
    custom.settle(value);
    Ok(unknown)
}

/// What is wrong with a custom resource.
pub(crate) fn validate(custom: &Custom, object: &Value, live: Option<&Value>) -> Vec<Fault> {
    let _ = (custom, object, live);
    Vec::new()
}

/// The names that a CRD leaves to the server.
pub(crate) fn default_names(spec: &mut Map<String, Value>) {
    let names = &mut spec["names"];
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    if names["singular"].as_str().unwrap_or_default().is_empty() {
        names["singular"] = kind.to_lowercase().into();
    }
    if names["listKind"].as_str().unwrap_or_default().is_empty() && !kind.is_empty() {
        names["listKind"] = format!("{kind}List").into();
    }
}

/// Changes a new CRD before it is checked.
pub(crate) fn prepare(object: &mut Value) {
    let versions = object["spec"]["versions"].as_array().into_iter().flatten();
    let stored: Vec<Value> =
        versions.filter(|version| version["storage"] == true).map(|version| version["name"].clone()).collect();
    object["status"] = json!({"conditions": [], "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
}

/// Follows a change of a CRD.
pub(crate) fn changed(api: &mut Api, kind: &Kind, object: Option<&Value>) {
    let _ = (api, kind, object);
}
