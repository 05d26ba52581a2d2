//! What takes away: deleting a child, leaving one alone for good, letting go of an instance.

use serde_json::{Value, json};

use super::super::Shared;
use super::super::index::{InstanceKey, Origin};
use super::super::registry::Registered;
use crate::children::fields::FieldSet;
use crate::children::{ObjectRef, Observed, names};
use crate::cluster::{ApiKind, CallError, Class, Cluster, Propagation};

impl Shared {
    pub(super) async fn delete(&self, cluster: &Cluster, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        let Some(kind) = self.kinds.known(&object.api_version, &object.kind) else { return Ok(()) };
        let preconditions = (&*observed.uid, &*observed.resource_version);
        let namespace = object.namespace.as_deref();
        let reply =
            cluster.delete(&kind, namespace, &object.name, preconditions, Propagation::Background).await;
        match reply {
            // It lives on for its finalizers or its grace period. Some kinds answer with an object that is gone.
            Ok(reply) if reply["kind"] != "Status" && !reply["metadata"]["deletionTimestamp"].is_null() => {
                self.learn_child(object, reply, Origin::OwnWrite);
                Ok(())
            }
            Ok(_) => {
                self.index().remove_child(object, &observed.uid, None);
                Ok(())
            }
            Err(error) if matches!(error.class, Class::NotFound | Class::Conflict) => {
                self.reread(cluster, &kind, observed).await
            }
            Err(error) => Err(error),
        }
    }

    /// The object is not as it was believed to be: see how it is.
    async fn reread(&self, cluster: &Cluster, kind: &ApiKind, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        match cluster.get(kind, object.namespace.as_deref(), &object.name).await? {
            Some(live) if live["metadata"]["uid"] == *observed.uid => {
                self.learn_child(object, live, Origin::Read);
            }
            _ => {
                self.index().remove_child(object, &observed.uid, None);
            }
        }
        Ok(())
    }

    pub(super) async fn retain(&self, cluster: &Cluster, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        let Some(kind) = self.kinds.known(&object.api_version, &object.kind) else { return Ok(()) };
        let patch = json!({"metadata": {
            "uid": &*observed.uid, "resourceVersion": &*observed.resource_version,
            "annotations": {names::RETAINED: "true"},
        }});
        let namespace = object.namespace.as_deref();
        match cluster.merge_patch(&kind, namespace, &object.name, None, &patch, "operetta").await {
            Ok(reply) => {
                self.learn_child(object, reply, Origin::OwnWrite);
                Ok(())
            }
            Err(error) if matches!(error.class, Class::NotFound | Class::Conflict) => {
                self.reread(cluster, &kind, observed).await
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the finalizer off. Of an instance that goes, only after a live look at every kind on record
    /// has found nothing that it guards: no such decision on the word of a cache.
    pub(super) async fn release(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
    ) -> Result<(), CallError> {
        let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        if !instance["metadata"]["deletionTimestamp"].is_null() {
            let selector = format!("{}={uid}", names::INSTANCE_UID);
            let cluster = self.for_children(registered);
            for (api_version, kind_name) in &registered.child_kinds {
                // Not found is not there; not to be told is no ground to let go of what may be there.
                let found = self.kinds.find(&cluster.client(), api_version, kind_name).await?;
                let Some(kind) = found else { continue };
                let found = match cluster.list(&kind, None, &selector, 500).await {
                    Ok(found) => found,
                    Err(error) if error.class == Class::NotFound => continue,
                    Err(error) => return Err(error),
                };
                let mut left = false;
                for mut object in found {
                    if object["metadata"]["annotations"][names::RETAINED] == "true" {
                        continue;
                    }
                    // Labels alone may have been copied: see `Observed::is_made_by_us`.
                    let operator = object["metadata"]["labels"][names::OPERATOR].as_str().unwrap_or_default();
                    if FieldSet::of_manager(&object, &names::field_manager(operator)).is_none() {
                        continue;
                    }
                    left = true;
                    object["apiVersion"] = api_version.as_str().into();
                    object["kind"] = kind_name.as_str().into();
                    let meta = &object["metadata"];
                    let text = |v: &Value| v.as_str().map(str::to_owned);
                    let reference = ObjectRef {
                        api_version: api_version.as_str().into(),
                        kind: kind_name.as_str().into(),
                        namespace: text(&meta["namespace"]).map(Into::into),
                        name: text(&meta["name"]).unwrap_or_default().into(),
                    };
                    self.learn_child(&reference, object, Origin::Read);
                }
                if left {
                    return Ok(());
                }
            }
        }
        self.set_finalizer(key, registered, false).await
    }

    pub(super) async fn set_finalizer(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        wanted: bool,
    ) -> Result<(), CallError> {
        let Some(instance) = self.index().instance(key) else { return Ok(()) };
        let meta = &instance["metadata"];
        let mut finalizers: Vec<Value> = meta["finalizers"].as_array().cloned().unwrap_or_default();
        let has = finalizers.iter().any(|f| f == names::FINALIZER);
        if has == wanted {
            return Ok(());
        }
        if wanted {
            finalizers.push(names::FINALIZER.into());
        } else {
            finalizers.retain(|f| f != names::FINALIZER);
        }
        let patch = json!({"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "finalizers": finalizers}});
        match self
            .for_instances(registered)
            .merge_patch(&registered.kind, key.namespace.as_deref(), &key.name, None, &patch, "operetta")
            .await
        {
            Ok(object) => {
                // Without its last finalizer an instance that is being deleted is gone with the reply.
                let gone =
                    !wanted && finalizers.is_empty() && !object["metadata"]["deletionTimestamp"].is_null();
                if gone {
                    self.index().remove_instance(
                        key,
                        object["metadata"]["uid"].as_str().unwrap_or_default(),
                        None,
                    );
                } else {
                    self.learn_instance(key, &object);
                }
                Ok(())
            }
            Err(error) if !wanted && error.class == Class::NotFound => {
                self.index().remove_instance(key, meta["uid"].as_str().unwrap_or_default(), None);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
