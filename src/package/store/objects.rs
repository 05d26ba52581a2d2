//! Stored revisions as Kubernetes objects.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{FORMAT, MOST_PARTS, StoreError, StoredRevision};
use crate::api::ApiKind;
use crate::crd::{API_VERSION, OwnKind, column};

const OPERATOR_REVISION: OwnKind =
    OwnKind { kind: "OperatorRevision", plural: "operatorrevisions", namespaced: false };
/// The label of a revision and of its parts that contains the name of the package.
pub const PACKAGE: &str = "operetta.dev/package";
/// The label of a revision that contains the namespace of its parts, which is that of the manager that stored
/// it.
pub const PARTS_NAMESPACE: &str = "operetta.dev/parts-namespace";
/// The label of a part that contains the name of its revision.
pub const REVISION: &str = "operetta.dev/revision";
/// The key of the data in a part's `binaryData`.
const ENTRY: &str = "part";

/// Annotations that keep Argo CD and Flux from deleting an object that is no longer in Git. An earlier
/// revision is needed for rollbacks and while instances use it; then the manager deletes it.
pub const KEPT: [(&str, &str); 2] =
    [("argocd.argoproj.io/sync-options", "Prune=false"), ("kustomize.toolkit.fluxcd.io/prune", "disabled")];

/// The kind of stored revisions.
pub fn kind() -> ApiKind {
    OPERATOR_REVISION.api_kind()
}

/// The `OperatorRevision` object. `namespace`: the namespace of its parts.
pub fn revision(revision: &StoredRevision, namespace: &str) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": OPERATOR_REVISION.kind,
        "metadata": {
            "name": revision.name(),
            "labels": {
                "app.kubernetes.io/managed-by": "operetta", PACKAGE: revision.package, PARTS_NAMESPACE: namespace,
            },
        },
        "spec": revision,
    })
}

/// The `ConfigMap` of a part, in the manager's namespace. `owner`: the uid of the `OperatorRevision`, because
/// of which the garbage collector deletes the part. It is unknown if both are applied together; then the
/// manager adds it later.
pub fn part(
    revision: &StoredRevision,
    index: usize,
    data: &[u8],
    namespace: &str,
    owner: Option<&str>,
) -> Value {
    let name = revision.name();
    let mut part = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": revision.parts[index].name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "operetta", PACKAGE: revision.package, REVISION: name},
        },
        "immutable": true,
        "binaryData": {ENTRY: STANDARD.encode(data)},
    });
    if let Some(owner) = owner {
        part["metadata"]["ownerReferences"] = owners(&name, owner);
    }
    part
}

/// The `ownerReferences` of the parts of a revision.
pub fn owners(revision: &str, uid: &str) -> Value {
    json!([{"apiVersion": API_VERSION, "kind": OPERATOR_REVISION.kind, "name": revision, "uid": uid}])
}

/// The data of a part.
///
/// # Errors
/// The `ConfigMap` contains no data.
pub fn part_data(config_map: &Value) -> Result<Vec<u8>, StoreError> {
    let data = config_map["binaryData"][ENTRY].as_str().and_then(|text| STANDARD.decode(text).ok());
    data.ok_or_else(|| {
        let name = config_map["metadata"]["name"].as_str().unwrap_or_default();
        StoreError::PartAltered(name.to_owned())
    })
}

/// The `CustomResourceDefinition` of `OperatorRevision`.
pub fn crd() -> Value {
    let text = |description: &str, most: usize| json!({"type": "string", "minLength": 1, "maxLength": most, "description": description});
    let digest = |description: &str| json!({"type": "string", "maxLength": 64, "pattern": "^[0-9a-f]{64}$", "description": description});
    let spec = json!({
        "type": "object",
        "required": ["package", "version", "digest", "format", "operetta", "parts"],
        "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "a revision is immutable: create another OperatorRevision"},
        ],
        "properties": {
            "package": text("The name of the package.", 63),
            "version": text("The version of the package.", 128),
            "digest": digest("SHA-256 of all files of the package."),
            "format": {"type": "integer", "minimum": 1, "description": format!("The format of the parts, now {FORMAT}.")},
            "operetta": text("The version of Operetta that has written it.", 128),
            "parts": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_PARTS,
                "x-kubernetes-list-type": "atomic",
                "description": "The compressed files: immutable ConfigMaps in the manager's namespace, in this order.",
                "items": {
                    "type": "object",
                    "required": ["name", "digest"],
                    "properties": {
                        "name": text("The name of the ConfigMap.", 253),
                        "digest": digest("SHA-256 of its data."),
                    },
                },
            },
        },
    });
    let schema = json!({
        "description": "A revision of a package: the files with which its instances are, or were, rendered.",
        "properties": {"spec": spec},
    });
    let columns = vec![
        column("Package", ".spec.package", "The package.", 0),
        column("Version", ".spec.version", "Its version.", 0),
    ];
    OPERATOR_REVISION.crd(schema, columns, &[])
}
