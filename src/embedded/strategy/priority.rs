//! Priority classes.

use serde_json::{Value, json};

/// The classes that every cluster has.
pub(crate) fn system_classes() -> [Value; 2] {
    [
        ("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
        ("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
    ]
    .map(|(name, value, description)| json!({"metadata": {"name": name}, "value": value, "description": description}))
}
