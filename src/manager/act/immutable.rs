//! Asks the server whether a refused change concerns an immutable field: see [`crate::children::immutable`].

use tracing::debug;

use super::dry_run::try_creation;
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
