//! Reads and writes of the instance itself: its finalizer, and what is recorded in annotations.

use serde_json::Value;
use tracing::warn;

use super::super::index::{InstanceKey, ReadChange};
use super::super::registry::Registered;
use super::{Executor, NOTES};
use crate::api::{CallError, Class};
use crate::children::{Action, ActionOutcome, patches};

impl Executor {
    /// Reads the instance live. An instance that is gone leaves the index; another one of the name is queued.
    pub(in crate::manager) async fn refresh(
        &self,
        key: &InstanceKey,
        registered: &Registered,
    ) -> Result<Option<Value>, CallError> {
        let asked = self.store.index().uid_of(key);
        let cluster = self.effects.for_instances(registered);
        let live = cluster.get(&registered.kind, key.namespace.as_deref(), &key.name).await?;
        if self.store.learn_read(key, asked.as_deref(), live.as_ref()) == ReadChange::Replaced {
            self.queue.add(key.clone());
        }
        Ok(live)
    }

    /// Writes or removes the record of the last accepted target. If the server refuses the record, there is
    /// none.
    pub(super) async fn record_target(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        record: Option<String>,
    ) -> Result<ActionOutcome, CallError> {
        let action = Action::Record(record);
        match self.patch_instance(key, registered, &action).await {
            Ok(()) => Ok(ActionOutcome::Done(action)),
            Err(error) if error.class == Class::Permanent => {
                warn!(instance = %key, %error, "the last accepted target cannot be recorded on the instance");
                Ok(ActionOutcome::Refused(action, error))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the patch of an action, if it changes the instance.
    pub(super) async fn patch_instance(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        action: &Action,
    ) -> Result<(), CallError> {
        let Some(instance) = self.store.index().instance(key) else { return Ok(()) };
        let Some(patch) = patches::of_instance(action, &instance) else { return Ok(()) };
        let cluster = self.effects.for_instances(registered);
        let (namespace, name) = (key.namespace.as_deref(), &*key.name);
        match cluster.merge_patch(&registered.kind, namespace, name, None, &patch, NOTES).await {
            Ok(object) => {
                let meta = &object["metadata"];
                let has_finalizers = meta["finalizers"].as_array().is_some_and(|all| !all.is_empty());
                // Without its last finalizer an instance that is being deleted is gone with the reply.
                if meta["deletionTimestamp"].is_null() || has_finalizers {
                    self.store.learn_instance(key, &object);
                } else {
                    let uid = meta["uid"].as_str().unwrap_or_default();
                    // Earlier events, which the watch may still bring, would make it known again.
                    self.store.index().remove_instance(key, uid, meta["resourceVersion"].as_str());
                }
                Ok(())
            }
            Err(error) if error.class == Class::NotFound => match action {
                Action::RemoveFinalizer | Action::ForceRemoveFinalizer => {
                    let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
                    self.store.index().remove_instance(key, uid, None);
                    Ok(())
                }
                Action::MarkOrphaned | Action::RecordJobs(_) => Ok(()),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }
}
