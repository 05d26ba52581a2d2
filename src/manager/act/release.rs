//! Letting go of an instance: its finalizer, and the live looks before it is taken off.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tracing::warn;

use super::super::Shared;
use super::super::index::{InstanceKey, Origin};
use super::super::registry::Registered;
use super::NOTES;
use crate::children::fields::FieldSet;
use crate::children::{Memory, ObjectRef, names};
use crate::cluster::{ApiKind, CallError, Class, Cluster};

impl Shared {
    /// Takes the finalizer off. That an instance which goes cannot be let go for now is remembered, and told.
    pub(super) async fn try_release(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        memory: &mut Memory,
    ) -> Result<(), CallError> {
        if instance["metadata"]["deletionTimestamp"].is_null() {
            return self.set_finalizer(key, registered, false).await;
        }
        match self.release(key, registered, instance).await {
            Err(error) if matches!(error.class, Class::Retry | Class::Permanent) => {
                warn!(instance = %key, %error, "the finalizer cannot be taken off");
                memory.release = Some(self.failure(memory.release.as_ref(), String::new(), error));
                Ok(())
            }
            result => {
                memory.release = None;
                result
            }
        }
    }

    /// Only after a live look at every kind on record has found nothing that the finalizer guards: no such
    /// decision on the word of a cache.
    async fn release(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
    ) -> Result<(), CallError> {
        let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        let selector = format!("{}={uid}", names::INSTANCE_UID);
        let cluster = self.for_children(registered);
        for (api_version, kind_name) in &registered.child_kinds {
            let Some((kind, found)) =
                self.look_for(&cluster, api_version, kind_name, None, &selector).await?
            else {
                continue;
            };
            let mut left = false;
            for mut object in found {
                let meta = &object["metadata"];
                let is_owner = |owner: &Value| owner["uid"] == uid;
                let is_owned = meta["ownerReferences"].as_array().is_some_and(|all| all.iter().any(is_owner));
                let is_retained = meta["annotations"][names::RETAINED] == "true" && !is_owned;
                if is_retained || !is_made_by_us(&object) {
                    continue;
                }
                let api_version = kind.api_version();
                object["apiVersion"] = api_version.as_str().into();
                object["kind"] = kind_name.as_str().into();
                let meta = &object["metadata"];
                let reference = ObjectRef {
                    api_version: api_version.into(),
                    kind: kind_name.as_str().into(),
                    namespace: meta["namespace"].as_str().map(Into::into),
                    name: meta["name"].as_str().unwrap_or_default().into(),
                };
                if !registered.reaches(key.namespace.as_deref(), &reference) {
                    continue;
                }
                left = true;
                self.learn_child(&reference, object, Origin::Read);
            }
            if left {
                return Ok(());
            }
        }
        self.set_finalizer(key, registered, false).await
    }

    /// The live objects of a kind that a selector names; `None` if no version of it is served. Not found is not
    /// there; not to be told is no ground to let go of what may be there.
    async fn look_for(
        &self,
        cluster: &Cluster,
        api_version: &str,
        kind_name: &str,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Option<(ApiKind, Vec<Value>)>, CallError> {
        let client = cluster.client();
        if let Some(kind) = self.kinds.find(&client, api_version, kind_name).await? {
            match cluster.list(&kind, namespace, selector).await {
                Ok(found) => return Ok(Some(((*kind).clone(), found))),
                Err(error) if error.class == Class::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // The version may have been taken away, and the objects live on in another.
        let Some(kind) = self.kinds.in_any_version(&client, api_version, kind_name).await? else {
            return Ok(None);
        };
        let found = cluster.list(&kind, namespace, selector).await?;
        Ok(Some(((*kind).clone(), found)))
    }

    /// What lies in a namespace, seen live: an instance other than `except`, or a child of any.
    pub(super) async fn occupied(
        &self,
        namespace: &str,
        except: &InstanceKey,
    ) -> Result<Option<String>, CallError> {
        let registry = self.registry();
        // What another manager cares for lies there as well.
        let all = || registry.iter().chain(registry.others());
        for registered in all().filter(|r| r.kind.namespaced) {
            let cluster = self.for_instances(registered);
            let instances = match cluster.list(&registered.kind, Some(namespace), "").await {
                Ok(instances) => instances,
                Err(error) if error.class == Class::NotFound => continue,
                Err(error) => return Err(error),
            };
            for instance in instances {
                let found = InstanceKey {
                    crd: registered.crd.clone(),
                    namespace: Some(namespace.into()),
                    name: instance["metadata"]["name"].as_str().unwrap_or_default().into(),
                };
                if found != *except {
                    return Ok(Some(found.to_string()));
                }
            }
        }
        let cluster = self.clients.own();
        let kinds: BTreeSet<_> = all().flat_map(|r| &r.child_kinds).collect();
        for (api_version, kind_name) in kinds {
            if self.kinds.known(api_version, kind_name).is_some_and(|kind| !kind.namespaced) {
                continue;
            }
            let found =
                self.look_for(cluster, api_version, kind_name, Some(namespace), names::INSTANCE_UID).await?;
            for object in found.into_iter().flat_map(|(_, objects)| objects) {
                if is_made_by_us(&object) {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    return Ok(Some(format!("{kind_name} {namespace}/{name}")));
                }
            }
        }
        Ok(None)
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
            .merge_patch(&registered.kind, key.namespace.as_deref(), &key.name, None, &patch, NOTES)
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

/// Labels alone may have been copied: see [`crate::children::Observed::is_made_by_us`].
fn is_made_by_us(object: &Value) -> bool {
    let operator = object["metadata"]["labels"][names::OPERATOR].as_str().unwrap_or_default();
    FieldSet::of_manager(object, &names::field_manager(operator)).is_some()
}
