//! What is applied: one object of the target.

use std::sync::Arc;

use serde_json::{Value, json};

use super::job::Completion;
use crate::api::ObjectRef;
use crate::template::Certificate;

/// One object of the target, ready to be applied.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// The identity of the object.
    pub object: ObjectRef,
    /// What is applied, with labels, annotations and owner; without preconditions. All writers share it,
    /// because it may be large. An object that needs no apply keeps only its owner.
    pub body: Arc<Value>,
    /// Hash of the body with the `names::Stamp`, which its annotation carries.
    pub hash: String,
    /// Keys of a Secret's data that have no value in the body: the live value is kept, or a new one is
    /// generated.
    pub generated: Vec<Generated>,
    /// Yielded fields that the body does not set and that only we own. The apply contains their live values:
    /// without them it would remove the fields before another manager owns them.
    pub keep: Vec<String>,
    /// For a Job: whether it has completed before.
    pub completion: Option<Completion>,
}

/// A value in a Secret that is generated once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The key in `data`.
    pub key: String,
    /// What a new value is.
    pub what: Secret,
}

/// The type of a generated value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Secret {
    /// A password with this number of characters.
    Password(usize),
    /// The certificate of `names::TLS`, generated together with the key.
    Certificate(Arc<Certificate>),
    /// The private key of the certificate.
    PrivateKey,
}

impl Desired {
    /// Drops the body except for its owner: there is nothing to apply, and the hash is enough to compare.
    pub(in crate::children) fn forget_body(&mut self) {
        let owners = self.body["metadata"].get("ownerReferences");
        let metadata = owners.map_or_else(|| json!({}), |owners| json!({"ownerReferences": owners}));
        self.body = Arc::new(json!({"metadata": metadata}));
    }
}
