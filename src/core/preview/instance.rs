//! An instance as the new CRD shows it.

use operetta_kube_model::schema::{Notation, apply_defaults, prune};
use serde_json::Value;

use crate::crd::{self, Conversion};

/// The instance in a version of a CRD: it is converted as the webhook would convert it, fields that the schema does not have
/// are dropped, and its defaults are filled in.
pub fn adjusted(
    instance: &Value,
    crd: &Value,
    conversion: Option<&Conversion>,
    (group, version): (&str, &str),
) -> Value {
    let api_version = format!("{group}/{version}");
    let from = instance["apiVersion"].as_str().and_then(|from| from.rsplit('/').next()).unwrap_or_default();
    let converted = conversion.filter(|_| from != version).and_then(|conversion| {
        let text = conversion.convert(&instance.to_string(), &api_version, &[from.to_owned()]);
        serde_json::from_str(&text.ok()?).ok()
    });
    let mut adjusted: Value = converted.unwrap_or_else(|| instance.clone());
    adjusted["apiVersion"] = api_version.into();
    if let Some(schema) = crd::schema_of(crd, version) {
        prune(schema, &mut adjusted, true, Notation::Quoted);
        apply_defaults(schema, &mut adjusted);
    }
    // The status schema of the package keeps what the manager writes.
    if let Some(status) = instance.get("status") {
        adjusted["status"] = status.clone();
    }
    adjusted
}
