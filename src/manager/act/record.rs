//! The record of the last accepted target, an annotation of the instance.

use serde_json::json;
use tracing::warn;

use super::super::Shared;
use super::super::index::InstanceKey;
use super::super::registry::Registered;
use super::NOTES;
use crate::children::{Memory, names};
use crate::cluster::{CallError, Class};

impl Shared {
    /// Writes or removes the record. One that the server does not take is done without.
    pub(super) async fn set_record(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        record: Option<String>,
        memory: &mut Memory,
    ) -> Result<(), CallError> {
        let Some(instance) = self.index().instance(key) else { return Ok(()) };
        let meta = &instance["metadata"];
        let patch = json!({"metadata": {
            "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
            "annotations": {names::ACCEPTED: record},
        }});
        let cluster = self.for_instances(registered);
        let written = cluster
            .merge_patch(&registered.kind, key.namespace.as_deref(), &key.name, None, &patch, NOTES)
            .await;
        match written {
            Ok(object) => {
                memory.unrecorded = None;
                self.learn_instance(key, &object);
                Ok(())
            }
            Err(error) if error.class == Class::Permanent => {
                warn!(instance = %key, %error, "the last accepted target cannot be recorded on the instance");
                memory.unrecorded = record;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
