//! Deletions of exactly one object.

use http::Method;
use serde_json::{Value, json};

use super::{Cluster, JSON, path, reply};
use crate::api::{ApiKind, CallError, Class};

/// How a deletion propagates to dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The garbage collector deletes dependents afterwards.
    Background,
    /// The object stays until its dependents are gone.
    Foreground,
    /// Dependents stay, without an owner.
    Orphan,
    /// As `Background`, and without a grace period: a Pod goes without an answer of its node.
    AtOnce,
}

impl Cluster {
    /// Deletes exactly the object of that uid and resourceVersion. The reply is the object if it stays for its
    /// finalizers, or a `Status`.
    pub async fn delete(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
        (uid, resource_version): (&str, &str),
        propagation: Propagation,
    ) -> Result<Value, CallError> {
        let policy = match propagation {
            Propagation::Background | Propagation::AtOnce => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        };
        let mut body = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy,
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        });
        if propagation == Propagation::AtOnce {
            body["gracePeriodSeconds"] = 0.into();
        }
        let path = path::path(kind, namespace, Some(name))?;
        let reply: Value = self.call(Method::DELETE, &path, Some(JSON), Some(&body)).await?;
        reply::check_deletion(kind, namespace, name, &reply)?;
        Ok(reply)
    }

    /// Deletes exactly this object, if it is still there. The garbage collector deletes its dependents afterwards.
    ///
    /// # Errors
    /// The API server refuses it, or another client has changed the object.
    pub async fn delete_object(&self, kind: &ApiKind, object: &Value) -> Result<(), CallError> {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let (namespace, version) =
            (object["metadata"]["namespace"].as_str(), (text("uid"), text("resourceVersion")));
        match self.delete(kind, namespace, text("name"), version, Propagation::Background).await {
            Err(error) if error.class != Class::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
