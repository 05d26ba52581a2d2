//! Removing children: deleting, retaining, orphaning, and asking for approval.

use std::sync::Arc;

use serde_json::Value;
use tracing::warn;

use super::super::index::{InstanceKey, Provenance};
use super::super::registry::Registered;
use super::{Executor, GOING, NOTES};
use crate::api::{ApiKind, CallError, Class};
use crate::children::{Action, ActionOutcome, Observed, patches};
use crate::cluster::{Cluster, Propagation};

impl Executor {
    /// Removes children one after another. A refusal does not stop the others.
    pub(super) async fn remove_all(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        actions: Vec<Action>,
        outcomes: &mut Vec<ActionOutcome>,
    ) -> Result<(), CallError> {
        let uid = &instance["metadata"]["uid"];
        // Children of a previous instance are removed only if this instance is the live one.
        let is_of_previous = |action: &Action| action.removed().is_some_and(|o| *uid != *o.instance_uid);
        if actions.iter().any(is_of_previous) {
            let live = self.refresh(key, registered).await?;
            if live.is_none_or(|live| live["metadata"]["uid"] != *uid) {
                return Ok(());
            }
        }
        let finalizers = instance["metadata"]["finalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let propagation = if finalizers.iter().any(|f| f == "foregroundDeletion") {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let cluster = self.effects.for_children(registered);
        for action in actions {
            let done = match &action {
                Action::Delete(o) => self.delete_wanted(&cluster, key, o, propagation).await,
                Action::ForceDelete(o) => self.delete_wanted(&cluster, key, o, Propagation::AtOnce).await,
                Action::Retain(o) | Action::Ask(o) | Action::Orphan(o) | Action::Unmark(o) => {
                    self.mark(&cluster, &action, o).await
                }
                // The garbage collector removes its own mark of an orphaning deletion, so ours must be written first.
                Action::MarkOrphaned | Action::RecordJobs(_) | Action::ForceRemoveFinalizer => {
                    self.patch_instance(key, registered, &action).await?;
                    Ok(())
                }
                Action::RemoveFinalizer => {
                    outcomes.push(self.try_release(key, registered, instance).await?);
                    continue;
                }
                Action::AddFinalizer | Action::Apply(_) | Action::Record(_) | Action::Run(_) => continue,
            };
            outcomes.push(match done {
                Ok(()) => ActionOutcome::Done(action),
                Err(error) => {
                    if let Some(observed) = action.removed() {
                        warn!(object = %observed.object, class = ?error.class, %error, "a deletion failed");
                    }
                    ActionOutcome::Refused(action, error)
                }
            });
        }
        Ok(())
    }

    /// Deletes an object. A namespace is deleted only if nothing uses it, because its objects are deleted with it.
    async fn delete_wanted(
        &self,
        cluster: &Cluster,
        key: &InstanceKey,
        observed: &Observed,
        propagation: Propagation,
    ) -> Result<(), CallError> {
        let object = &observed.object;
        if object.gvk.is("v1", "Namespace")
            && let Some(namespace_user) = self.namespace_user(&object.name, key).await?
        {
            let message = format!("{namespace_user} is still in it");
            return Err(CallError::new(Class::Retry, 409, "NamespaceOccupied", message).after(GOING));
        }
        self.delete(cluster, observed, propagation).await
    }

    pub(super) async fn delete(
        &self,
        cluster: &Cluster,
        observed: &Observed,
        propagation: Propagation,
    ) -> Result<(), CallError> {
        let object = &observed.object;
        let Some(kind) = self.kind_of(cluster, observed).await? else { return Ok(()) };
        let preconditions = (&*observed.uid, &*observed.resource_version);
        let namespace = object.namespace.as_deref();
        match cluster.delete(&kind, namespace, &object.name, preconditions, propagation).await {
            // Finalizers or a grace period keep it. Some kinds reply with an object that is gone.
            Ok(reply) if reply["kind"] != "Status" && !reply["metadata"]["deletionTimestamp"].is_null() => {
                self.learn_child(object, reply, Provenance::OwnWrite);
                Ok(())
            }
            Ok(_) => {
                self.store.index().remove_child(object, &observed.uid, None);
                Ok(())
            }
            Err(error) if matches!(error.class, Class::NotFound | Class::Conflict) => {
                self.reread(cluster, &kind, observed).await
            }
            Err(error) => Err(error),
        }
    }

    /// The kind of a known object, in any version that the server serves now. If it serves none, the object
    /// is gone.
    async fn kind_of(
        &self,
        cluster: &Cluster,
        observed: &Observed,
    ) -> Result<Option<Arc<ApiKind>>, CallError> {
        let object = &observed.object;
        if let Some(kind) = self.store.kinds.find(cluster, &object.gvk).await? {
            return Ok(Some(kind));
        }
        let kind = self.store.kinds.in_any_version(cluster, &object.gvk).await?;
        if kind.is_none() {
            self.store.index().remove_child(object, &observed.uid, None);
        }
        Ok(kind)
    }

    /// Reads an object again that was not as expected.
    async fn reread(&self, cluster: &Cluster, kind: &ApiKind, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        match cluster.get(kind, object.namespace.as_deref(), &object.name).await? {
            Some(live) if live["metadata"]["uid"] == *observed.uid => {
                self.learn_child(object, live, Provenance::Read);
            }
            _ => {
                self.store.index().remove_child(object, &observed.uid, None);
            }
        }
        Ok(())
    }

    /// Writes the patch of an action: marks an object, removes marks, or orphans it.
    async fn mark(&self, cluster: &Cluster, action: &Action, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        let Some(kind) = self.kind_of(cluster, observed).await? else { return Ok(()) };
        let namespace = object.namespace.as_deref();
        let live = if patches::reads_live(action) {
            cluster.get(&kind, namespace, &object.name).await?
        } else {
            None
        };
        let is_orphaned = matches!(action, Action::Orphan(_));
        let Some(patch) = patches::of_child(action, live.as_ref()) else {
            if is_orphaned {
                self.store.index().remove_child(object, &observed.uid, None);
                return Ok(());
            }
            return self.reread(cluster, &kind, observed).await;
        };
        match cluster.merge_patch(&kind, namespace, &object.name, None, &patch, NOTES).await {
            Ok(reply) if is_orphaned => {
                let version = reply["metadata"]["resourceVersion"].as_str();
                self.store.index().remove_child(object, &observed.uid, version);
                Ok(())
            }
            Ok(reply) => {
                self.learn_child(object, reply, Provenance::OwnWrite);
                Ok(())
            }
            Err(error) if matches!(error.class, Class::NotFound | Class::Conflict) => {
                self.reread(cluster, &kind, observed).await
            }
            Err(error) => Err(error),
        }
    }
}
