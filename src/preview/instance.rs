//! An instance as the new CRD shows it.

use serde_json::Value;

use crate::crd;

/// An instance as a CRD shows it, and the fields that differ from before.
#[derive(Debug)]
pub struct Adjusted {
    /// The instance.
    pub instance: Value,
    /// Whether the CRD changes its spec: a default, or a field that it drops.
    pub is_changed: bool,
}

/// The instance in a version of a CRD: fields that the schema does not have are dropped, and its defaults are filled in.
pub fn adjusted(instance: &Value, crd: &Value, group: &str, version: &str) -> Adjusted {
    let mut adjusted = instance.clone();
    adjusted["apiVersion"] = format!("{group}/{version}").into();
    if let Some(schema) = crd::schema_of(crd, version) {
        crd::prune(schema, &mut adjusted);
        crd::apply_defaults(schema, &mut adjusted);
    }
    // The status schema of the package keeps what the manager writes.
    if let Some(status) = instance.get("status") {
        adjusted["status"] = status.clone();
    }
    let is_changed = adjusted["spec"] != instance["spec"];
    Adjusted { instance: adjusted, is_changed }
}
