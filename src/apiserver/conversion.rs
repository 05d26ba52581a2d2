//! Instances in another version of their kind: as the manager's webhook converts them, without a connection to it. The
//! rules are in the CRD, so nothing has to be asked while a request is answered.

use std::sync::Arc;

use operetta_embedded::{Converter, Webhook};
use serde_json::Value;

use crate::manager::CrdConversion;

/// Knows the CRDs in which the manager keeps rules.
#[derive(Debug)]
pub(super) struct Rules;

impl Converter for Rules {
    fn webhook(&self, crd: &Value) -> Option<Arc<dyn Webhook>> {
        Some(Arc::new(Rule(CrdConversion::of(crd)?)))
    }
}

#[derive(Debug)]
struct Rule(CrdConversion);

impl Webhook for Rule {
    fn convert(&self, review: &Value) -> Result<Value, String> {
        let answer = self.0.answer(&review.to_string())?;
        serde_json::from_str(&answer).map_err(|error| error.to_string())
    }
}
