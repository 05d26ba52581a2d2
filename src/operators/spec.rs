//! The `spec` of an `Operator`.

use serde::Deserialize;
use serde_json::Value;

/// The `spec` of an `Operator`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OperatorSpec {
    /// The name of the `OperatorRevision` that is to be active.
    pub revision: String,
    /// Whether the active revision stays, whatever [`Self::revision`] says.
    pub paused: bool,
}

impl OperatorSpec {
    /// Of a live `Operator`. The CRD guarantees the types.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(operator: &Value) -> Result<Self, String> {
        let spec: Self =
            serde_json::from_value(operator["spec"].clone()).map_err(|error| format!("spec: {error}"))?;
        if spec.revision.is_empty() { Err("spec.revision is empty".into()) } else { Ok(spec) }
    }
}
