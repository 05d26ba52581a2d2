//! The rules between a version and the hub, as they are stored.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::path::Path;

/// The differences between one version and the hub.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rules {
    /// The paths of a moved field in this version and in the hub.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) moves: Vec<(Path, Path)>,
    /// Fields that only this version has.
    #[serde(default, skip_serializing_if = "Only::is_empty")]
    pub(super) own: Only,
    /// Fields that only the hub has.
    #[serde(default, skip_serializing_if = "Only::is_empty")]
    pub(super) hub: Only,
}

/// The fields that only one of two versions has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Only {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) fields: Vec<Field>,
    /// Objects all of whose fields rules handle, the deepest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) objects: Vec<Path>,
}

/// A field that only one of two versions has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Field {
    pub(super) path: Path,
    /// The value in an object that comes from the other version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) default: Option<Value>,
    /// The schema validates values from the annotation, because users can edit it and the API server
    /// validates an object only in the version of the request.
    pub(super) schema: Value,
}

impl Only {
    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.objects.is_empty()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.objects.iter().rev().chain(self.fields.iter().map(|field| &field.path))
    }
}
