//! Whether the API server refuses a change because the object exists: whether a field of it must not change.
//!
//! The words of a refusal differ from kind to kind, and authors of CRDs choose their own. So the server is asked:
//! a dry run shows whether it would take the same as a new object. See
//! `docs/design/0016-fields-of-others-and-refused-edits.md`.

use tracing::debug;

use super::check::try_anew;
use crate::children::{Intent, fields};
use crate::cluster::{ApiKind, CallError, Class, Cluster};

/// The refusal of a change of a live object; if the server would take a new object of that intent, as one that is known
/// to be about a field that must not change.
pub(super) async fn classify(
    cluster: &Cluster,
    kind: &ApiKind,
    intent: &Intent,
    manager: &str,
    refusal: CallError,
) -> CallError {
    let is_open = refusal.code == 422
        && refusal.class == Class::Permanent
        && !refusal.is_immutable_change()
        // A policy is not to be evaded.
        && !refusal.is_of_policy();
    if !is_open || try_anew(cluster, kind, &intent.body, manager).await.is_err() {
        return refusal;
    }
    // What others have put into the object may be at fault, and not the change.
    let object = &intent.object;
    let live = match cluster.get(kind, object.namespace.as_deref(), &object.name).await {
        Ok(Some(live)) => live,
        Ok(None) => return refusal,
        Err(error) => {
            debug!(%object, %error, "it cannot be told whether a field must not change");
            return refusal;
        }
    };
    match try_anew(cluster, kind, &fields::merged(&live, &intent.body), manager).await {
        Err(error) if error.class == Class::Retry || error.shares_cause(&refusal) => refusal,
        _ => refusal.into_immutable_change(),
    }
}
