//! Recreating a child one of whose immutable fields changes, if its package permits that.

use serde_json::{Value, json};
use tracing::info;

use super::super::index::InstanceKey;
use super::super::registry::Registered;
use super::immutable::try_creation;
use super::{Executor, NOTES, Reply};
use crate::api::{ApiKind, CallError};
use crate::children::immutable::permit_recreation;
use crate::children::{Apply, Observed, names};
use crate::cluster::{Cluster, Propagation};
use crate::package::ImmutableChange;

impl Executor {
    /// Deletes the object after a dry run has shown that the server would create the desired one. The next decisions
    /// create it.
    pub(super) async fn recreate(
        &self,
        cluster: &Cluster,
        kind: &ApiKind,
        apply: &Apply,
        live: &Observed,
        manager: &str,
        refusal: CallError,
    ) -> Result<Reply, CallError> {
        let object = &apply.desired.object;
        let package = self.owner_of_kind(kind);
        let creation = match package {
            Some(_) => Ok(()),
            None => try_creation(cluster, kind, &apply.desired.body, manager).await,
        };
        permit_recreation(object, &refusal, package.as_deref(), creation)?;
        info!(object = %object, child = %apply.item, "a field is immutable; recreating the object");
        if apply.notes_recreation {
            self.note_recreation(&live.instance_uid, &apply.item).await?;
        }
        let propagation = match apply.policy.on_immutable_change {
            ImmutableChange::Orphan => Propagation::Orphan,
            ImmutableChange::Recreate | ImmutableChange::Fail => Propagation::Background,
        };
        self.delete(cluster, live, propagation).await?;
        // If the precondition failed, the object was read again and still exists.
        let left = self.store.index().children_of(&live.instance_uid);
        let stays = left.iter().any(|o| o.object == *object && o.uid == live.uid && !o.terminating);
        Ok(if stays { Reply::Again } else { Reply::Recreating })
    }

    /// Records on the instance that a child is being recreated. If this manager ends before it creates the
    /// child, the next one must not take the child for lost.
    async fn note_recreation(&self, instance: &str, item: &str) -> Result<(), CallError> {
        let key = self.store.index().by_uid(instance).cloned();
        let Some((key, registered)) = key.and_then(|key| {
            let registered = self.store.registry().get(&key.crd)?;
            Some((key, registered))
        }) else {
            return Ok(());
        };
        let annotations = json!({names::recreating(item): item});
        self.annotate_instance(&key, &registered, instance, &annotations).await
    }

    /// Changes annotations of the instance with that uid.
    pub(super) async fn annotate_instance(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        uid: &str,
        annotations: &Value,
    ) -> Result<(), CallError> {
        let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
        let cluster = self.effects.for_instances(registered);
        let (namespace, name) = (key.namespace.as_deref(), &*key.name);
        let reply = cluster.merge_patch(&registered.kind, namespace, name, None, &patch, NOTES).await?;
        self.store.learn_instance(key, &reply);
        Ok(())
    }

    /// The loaded package that provides this kind.
    fn owner_of_kind(&self, kind: &ApiKind) -> Option<String> {
        let registry = self.store.registry();
        let owner = registry.iter().find(|r| r.kind.group == kind.group && r.kind.kind == kind.kind)?;
        Some(owner.operator().to_owned())
    }
}
