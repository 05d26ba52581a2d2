//! A child of which a field may not be changed is deleted and made anew, if its package says so.

use tracing::info;

use super::super::Shared;
use super::Applied;
use super::check::try_anew;
use crate::children::{Apply, Observed};
use crate::cluster::{ApiKind, CallError, Class, Cluster, Propagation};

impl Shared {
    /// Deletes the object, once a dry run has shown that the server takes a new one; the next decisions create
    /// it. Values count here: it is this very object that is tried.
    pub(super) async fn recreate(
        &self,
        cluster: &Cluster,
        kind: &ApiKind,
        apply: &Apply,
        live: &Observed,
        manager: &str,
        refusal: CallError,
    ) -> Result<Applied, CallError> {
        let object = &apply.intent.object;
        if let Some(package) = self.owner_of_kind(kind) {
            let message = format!(
                "{refusal}; {object} is of a kind of the package {package} and may hold data, so it is not made anew: delete it by hand"
            );
            return Err(CallError::new(Class::Permanent, refusal.code, "RecreateRefused", message));
        }
        if let Err(error) = try_anew(cluster, kind, &apply.intent.body, manager).await {
            if error.class == Class::Retry {
                return Err(error);
            }
            let message = format!("{refusal}; it is not deleted, for a new one is refused too: {error}");
            return Err(CallError::new(Class::Permanent, error.code, "RecreateRefused", message));
        }
        info!(object = %object, child = %apply.item, "a field may not be changed; deleting it to make it anew");
        self.delete(cluster, live, Propagation::Background).await?;
        // Its precondition may have failed: then it was read anew, and is as it was.
        let left = self.index().children_of(&live.instance_uid);
        let stays = left.iter().any(|o| o.object == *object && o.uid == live.uid && !o.terminating);
        Ok(if stays { Applied::Again } else { Applied::Replaced })
    }

    /// The package that brings this kind, if one of those loaded does.
    fn owner_of_kind(&self, kind: &ApiKind) -> Option<String> {
        let registry = self.registry();
        let owner = registry.iter().find(|r| r.kind.group == kind.group && r.kind.kind == kind.kind)?;
        Some(owner.operator().to_owned())
    }
}
