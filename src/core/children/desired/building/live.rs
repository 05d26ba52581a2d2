//! A live object in expressions.

use serde_json::{Value, json};

use crate::children::model::Observed;
use crate::readiness::Readiness;

/// What expressions read of a live object.
pub(super) fn value_of(observed: &Observed) -> Value {
    // The text was written as JSON, so it is read as JSON.
    observed
        .live
        .as_ref()
        .and_then(|live| serde_json::from_str(live).ok())
        .unwrap_or_else(|| json!({"metadata": {"name": &*observed.object.name, "uid": &*observed.uid}}))
}

/// Whether an object is ready by the rules of its kind.
pub(super) fn is_ready(observed: &Observed) -> bool {
    !observed.terminating && observed.readiness == Readiness::Ready
}
