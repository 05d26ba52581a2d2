//! The CustomResourceDefinition of `InstanceState`.

use serde_json::{Value, json};

use crate::crd::{OwnKind, column};

/// The kind of the memory of an instance.
pub const INSTANCE_STATE: OwnKind =
    OwnKind { kind: "InstanceState", plural: "instancestates", namespaced: true };

/// The CustomResourceDefinition of `InstanceState`. All is in `spec`, so that backups keep it.
pub fn instance_state() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let preserved = |description: &str| json!({"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({
        "description": "The memory of an instance with plans: what its runs did, and the facts that they recorded. Only managers \
                        write it; keep it in backups.",
        "properties": {"spec": {
            "type": "object",
            "required": ["of", "uid"],
            "properties": {
                "of": {
                    "type": "object",
                    "description": "The instance, in the namespace of this object.",
                    "required": ["apiVersion", "kind", "name"],
                    "properties": {
                        "apiVersion": text("Its apiVersion."),
                        "kind": text("Its kind."),
                        "resource": text("The plural of its kind."),
                        "name": text("Its name."),
                    },
                },
                "format": {"type": "integer", "minimum": 1, "description": "The format of the memory; 1 if it is missing."},
                "uid": text("The uid of the instance."),
                "number": {"type": "integer", "format": "int64", "description": "The highest number in the names of its runs."},
                "active": text("The uid of the PlanRun that may be active among those that change children."),
                "record": preserved("The facts that plans have recorded."),
                "runs": {
                    "type": "array",
                    "x-kubernetes-list-type": "atomic",
                    "description": "What is remembered of the runs that something is still decided from.",
                    "items": preserved("A run."),
                },
                "hasEnded": {
                    "type": "boolean",
                    "description": "Whether the instance has been deleted, and all of its children with it.",
                },
            },
        }},
    });
    let columns = vec![
        column("Kind", ".spec.of.kind", "The kind of the instance.", 0),
        column("Of", ".spec.of.name", "The instance.", 0),
    ];
    INSTANCE_STATE.crd(schema, columns, &[])
}
