//! An instance as the new CRD shows it.

use serde_json::Value;

use crate::crd;

/// The instance in a version of a CRD: fields that the schema does not have are dropped, and its defaults are filled in.
pub fn adjusted(instance: &Value, crd: &Value, group: &str, version: &str) -> Value {
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
    adjusted
}
