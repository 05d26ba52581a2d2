//! The validation of built-in kinds that people meet.

use serde_json::Value;

use crate::api::Api;
use crate::kinds::Kind;
use crate::status::Fault;

/// What is wrong with a new object.
pub(crate) fn create(api: &Api, kind: &Kind, object: &Value) -> Vec<Fault> {
    if let Some(custom) = kind.custom() {
        return crate::crd::validate(custom, object, None);
    }
    let _ = api;
    Vec::new()
}

/// What is wrong with the next state of an object.
pub(crate) fn update(api: &Api, kind: &Kind, subresource: &str, live: &Value, object: &Value) -> Vec<Fault> {
    if let Some(custom) = kind.custom() {
        return crate::crd::validate(custom, object, Some(live));
    }
    let _ = (api, subresource, live, object);
    Vec::new()
}
