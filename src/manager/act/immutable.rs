//! Asks the server whether a refused change concerns an immutable field: see [`crate::children::immutable`].

use serde_json::Value;
use tracing::debug;

use super::service_addresses;
use crate::api::{ApiKind, CallError};
use crate::children::immutable::{is_immutable, may_be_immutable};
use crate::children::{Desired, fields};
use crate::cluster::Cluster;

/// The refusal of a change of a live object, classified as an immutable change if dry runs show that it is one.
pub(super) async fn classify(
    cluster: &Cluster,
    kind: &ApiKind,
    desired: &Desired,
    manager: &str,
    refusal: CallError,
) -> CallError {
    if !may_be_immutable(&refusal) || try_creation(cluster, kind, &desired.body, manager).await.is_err() {
        return refusal;
    }
    let object = &desired.object;
    let live = match cluster.get(kind, object.namespace.as_deref(), &object.name).await {
        Ok(Some(live)) => live,
        Ok(None) => return refusal,
        Err(error) => {
            debug!(%object, %error, "the object cannot be read, so an immutable change is not detected");
            return refusal;
        }
    };
    let creation = try_creation(cluster, kind, &fields::merged(&live, &desired.body), manager).await;
    if is_immutable(&refusal, &creation) { refusal.into_immutable_change() } else { refusal }
}

/// A dry run that creates the object under a generated name.
pub(super) async fn try_creation(
    cluster: &Cluster,
    kind: &ApiKind,
    body: &Value,
    manager: &str,
) -> Result<(), CallError> {
    let mut body = body.clone();
    let namespace = body["metadata"]["namespace"].as_str().map(str::to_owned);
    if let Some(meta) = body["metadata"].as_object_mut()
        && let Some(Value::String(name)) = meta.remove("name")
    {
        meta.insert("generateName".into(), format!("{name}-").into());
    }
    match cluster.create_checked(kind, namespace.as_deref(), &body, manager, true).await {
        Err(error) if service_addresses::is_undecided(cluster, &body, &error).await => Ok(()),
        result => result.map(drop),
    }
}
