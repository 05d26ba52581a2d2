//! The manager's own namespace, which is made when it is needed first.

use serde_json::{Value, json};

use crate::api::{ApiKind, CallError, Class};
use crate::children::names::NOTES;
use crate::cluster::Cluster;

/// Creates an object in the manager's namespace, and that namespace if it does not exist.
pub(super) async fn create(
    cluster: &Cluster,
    kind: &ApiKind,
    namespace: &str,
    body: &Value,
) -> Result<Value, CallError> {
    let create = || cluster.create(kind, Some(namespace), body, NOTES);
    match create().await {
        Err(error) if error.class == Class::NotFound => {}
        created => return created,
    }
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    match cluster.create(&ApiKind::built_in("v1", "Namespace"), None, &made, NOTES).await {
        Err(error) if error.class != Class::Conflict => Err(error),
        _ => create().await,
    }
}
