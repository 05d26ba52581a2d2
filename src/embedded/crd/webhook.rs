//! Conversion webhooks of CRDs.

use std::fmt::Debug;
use std::sync::Arc;

use serde_json::Value;

/// Knows the conversion webhooks of CRDs.
pub trait Converter: Debug + Send + Sync {
    /// The webhook of a CRD as it is now; `None` if it is not known, so that versions differ in their schema only.
    fn webhook(&self, crd: &Value) -> Option<Arc<dyn Webhook>>;
}

/// Answers what a conversion webhook of a CRD is asked, during a request: it must not send another one to this API.
pub trait Webhook: Debug + Send + Sync {
    /// Answers a `ConversionReview` with a request by one with a response.
    ///
    /// # Errors
    ///
    /// Why there is no answer.
    fn convert(&self, review: &Value) -> Result<Value, String>;
}

/// A webhook that converts the objects of a CRD.
#[derive(Debug, Clone)]
pub(crate) struct Hook {
    pub(crate) webhook: Arc<dyn Webhook>,
    /// The version of storage.
    pub(crate) storage: String,
}
