//! Operetta's own kinds, and the common parts of their CRDs.

use serde_json::{Value, json};

use super::augment::CATEGORY;
use crate::api::ApiKind;

/// The group of the kinds of Operetta.
pub const GROUP: &str = "operetta.dev";
/// The version of these kinds.
pub const VERSION: &str = "v1alpha1";
/// The group and version of these kinds, as `apiVersion` names them.
pub const API_VERSION: &str = "operetta.dev/v1alpha1";

/// A kind of Operetta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnKind {
    /// The kind.
    pub kind: &'static str,
    /// The plural name of the resource.
    pub plural: &'static str,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
}

impl OwnKind {
    /// The kind as an [`ApiKind`], for requests.
    pub fn api_kind(self) -> ApiKind {
        ApiKind {
            group: GROUP.into(),
            version: VERSION.into(),
            kind: self.kind.into(),
            plural: self.plural.into(),
            namespaced: self.namespaced,
        }
    }

    /// The `CustomResourceDefinition` of the kind. `schema` is that of the objects, without the fields that
    /// all objects have. With a status in the schema, the CRD gets the status subresource. `selectable`: the
    /// paths of fields for field selectors.
    pub fn crd(self, mut schema: Value, mut columns: Vec<Value>, selectable: &[&str]) -> Value {
        schema["type"] = "object".into();
        schema["required"] = json!(["spec"]);
        let properties = &mut schema["properties"];
        properties["apiVersion"] = json!({"type": "string"});
        properties["kind"] = json!({"type": "string"});
        if properties.get("metadata").is_none() {
            properties["metadata"] = json!({"type": "object"});
        }
        let has_status = properties.get("status").is_some();
        let age = json!({
            "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "How old it is.",
        });
        columns.push(age);
        let mut version = json!({
            "name": VERSION,
            "served": true,
            "storage": true,
            "schema": {"openAPIV3Schema": schema},
            "additionalPrinterColumns": columns,
        });
        if has_status {
            version["subresources"] = json!({"status": {}});
        }
        if !selectable.is_empty() {
            let fields: Vec<Value> = selectable.iter().map(|path| json!({"jsonPath": path})).collect();
            version["selectableFields"] = fields.into();
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{}.{GROUP}", self.plural)},
            "spec": {
                "group": GROUP,
                "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
                "names": {
                    "kind": self.kind,
                    "listKind": format!("{}List", self.kind),
                    "plural": self.plural,
                    "singular": self.kind.to_lowercase(),
                    "categories": [CATEGORY],
                },
                "versions": [version],
            },
        })
    }
}

/// A column of `kubectl get`. A column with a priority is shown with `-o wide`.
pub fn column(name: &str, path: &str, description: &str, priority: u8) -> Value {
    let mut column = json!({"name": name, "type": "string", "jsonPath": path, "description": description});
    // The API server drops a priority that is the default.
    if priority > 0 {
        column["priority"] = priority.into();
    }
    column
}
