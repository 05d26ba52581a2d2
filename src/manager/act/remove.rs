//! What takes away: deleting a child, leaving one alone for good or until a person approves, orphaning one.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tracing::warn;

use super::super::Shared;
use super::super::index::{InstanceKey, Origin};
use super::super::registry::Registered;
use super::{Acted, GOING, NOTES};
use crate::children::names::{self, Stamp};
use crate::children::{Action, Memory, Observed};
use crate::cluster::{ApiKind, CallError, Class, Cluster, Propagation};
use crate::package::DeletionPolicy;

impl Shared {
    /// Carries out what takes away, one after another. One object that the server keeps stops no other.
    pub(super) async fn take_away(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        actions: Vec<Action>,
        memory: &mut Memory,
        acted: &mut Acted,
    ) -> Result<(), CallError> {
        let uid = &instance["metadata"]["uid"];
        // What a former instance left is this one's to take only if this one is the one that lives.
        let of_former = |action: &Action| object_of(action).is_some_and(|o| *uid != *o.instance_uid);
        if actions.iter().any(of_former) {
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
        let cluster = self.for_children(registered);
        for action in actions {
            let (done, list, observed) = match &action {
                Action::Delete(o) => {
                    (self.delete_wanted(&cluster, key, o, propagation).await, &mut acted.deleted, o)
                }
                Action::Retain(o) => (self.note(&cluster, o, names::RETAINED).await, &mut acted.retained, o),
                Action::Ask(o) => (self.note(&cluster, o, names::PENDING).await, &mut acted.asked, o),
                Action::Orphan(o) => (self.orphan(&cluster, o).await, &mut acted.orphaned, o),
                Action::Unmark(o) => (self.unmark(&cluster, o).await, &mut acted.updated, o),
                // The API server's own mark is gone before a manager that comes later could see it.
                Action::MarkOrphaned => {
                    self.annotate_instance(key, registered, names::ORPHANED, &"true".into()).await?;
                    continue;
                }
                Action::RecordJobs(text) => {
                    let text = if text.is_empty() { Value::Null } else { text.as_str().into() };
                    self.annotate_instance(key, registered, names::COMPLETED_JOBS, &text).await?;
                    continue;
                }
                Action::LetGo => {
                    self.set_finalizer(key, registered, false).await?;
                    continue;
                }
                Action::RemoveFinalizer => {
                    self.try_release(key, registered, instance, memory).await?;
                    continue;
                }
                Action::AddFinalizer | Action::Apply(_) | Action::Record(_) => continue,
            };
            match done {
                Ok(()) => {
                    memory.kept.remove(&observed.object);
                    list.push(observed.object.clone());
                }
                Err(error) => self.remember_kept(observed, error, memory),
            }
        }
        Ok(())
    }

    fn remember_kept(&self, observed: &Observed, error: CallError, memory: &mut Memory) {
        let before = memory.kept.get(&observed.object).filter(|f| *f.hash == *observed.uid);
        warn!(object = %observed.object, class = ?error.class, %error, "a deletion failed");
        let failure = self.failure(before, observed.uid.to_string(), error);
        memory.kept.insert(observed.object.clone(), failure);
    }

    /// A namespace takes all that is in it along: nothing may be.
    async fn delete_wanted(
        &self,
        cluster: &Cluster,
        key: &InstanceKey,
        observed: &Observed,
        propagation: Propagation,
    ) -> Result<(), CallError> {
        let object = &observed.object;
        if (&*object.api_version, &*object.kind) == ("v1", "Namespace")
            && let Some(occupant) = self.occupied(&object.name, key).await?
        {
            let message = format!("{occupant} is still in it");
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

    /// The kind of an object that is known, in whatever version the server has it now. If it has none, its objects
    /// are gone.
    async fn kind_of(
        &self,
        cluster: &Cluster,
        observed: &Observed,
    ) -> Result<Option<Arc<ApiKind>>, CallError> {
        let object = &observed.object;
        let client = cluster.client();
        if let Some(kind) = self.kinds.find(&client, &object.api_version, &object.kind).await? {
            return Ok(Some(kind));
        }
        let kind = self.kinds.in_any_version(&client, &object.api_version, &object.kind).await?;
        if kind.is_none() {
            self.index().remove_child(object, &observed.uid, None);
        }
        Ok(kind)
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

    /// Says on the object what is the matter with it. What stays must not be the garbage collector's any more.
    async fn note(&self, cluster: &Cluster, observed: &Observed, annotation: &str) -> Result<(), CallError> {
        let object = &observed.object;
        let mut change = json!({"annotations": {annotation: "true"}});
        if observed.owner_reference {
            let Some(kind) = self.kind_of(cluster, observed).await? else { return Ok(()) };
            let live = cluster.get(&kind, object.namespace.as_deref(), &object.name).await?;
            let Some(live) = live.filter(|live| live["metadata"]["uid"] == *observed.uid) else {
                return self.reread(cluster, &kind, observed).await;
            };
            let owners = live["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let others = owners.filter(|owner| owner["uid"] != *observed.instance_uid).cloned();
            change["ownerReferences"] = others.collect();
            // Without it, it would look as if a person had orphaned it.
            let hash = observed.intent.as_deref().unwrap_or_default();
            let hash = hash.split('.').next().unwrap_or_default();
            let stamp = Stamp { order: Some(observed.order), policy: Some(DeletionPolicy::Retain) };
            change["annotations"][names::INTENT] = stamp.seal(hash).into();
        }
        self.patch_metadata(cluster, observed, change).await
    }

    /// Takes off what was said of the object while nothing wanted it.
    async fn unmark(&self, cluster: &Cluster, observed: &Observed) -> Result<(), CallError> {
        let mut annotations = Map::new();
        for (is_noted, annotation) in
            [(observed.noted.retained, names::RETAINED), (observed.noted.pending, names::PENDING)]
        {
            if is_noted {
                annotations.insert(annotation.to_owned(), Value::Null);
            }
        }
        self.patch_metadata(cluster, observed, json!({"annotations": annotations})).await
    }

    async fn patch_metadata(
        &self,
        cluster: &Cluster,
        observed: &Observed,
        mut change: Value,
    ) -> Result<(), CallError> {
        let object = &observed.object;
        let Some(kind) = self.kind_of(cluster, observed).await? else { return Ok(()) };
        change["uid"] = Value::from(&*observed.uid);
        change["resourceVersion"] = Value::from(&*observed.resource_version);
        let patch = json!({"metadata": change});
        let namespace = object.namespace.as_deref();
        match cluster.merge_patch(&kind, namespace, &object.name, None, &patch, NOTES).await {
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

    /// Takes our labels, annotations, ownerReference and field ownership off the object: whoever has it next
    /// finds no trace that binds it.
    async fn orphan(&self, cluster: &Cluster, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        let Some(kind) = self.kind_of(cluster, observed).await? else { return Ok(()) };
        let namespace = object.namespace.as_deref();
        let live = cluster.get(&kind, namespace, &object.name).await?;
        let Some(live) = live.filter(|live| {
            let meta = &live["metadata"];
            meta["uid"] == *observed.uid && meta["labels"][names::INSTANCE_UID] == *observed.instance_uid
        }) else {
            self.index().remove_child(object, &observed.uid, None);
            return Ok(());
        };
        let patch = released(&live["metadata"], &observed.instance_uid);
        match cluster.merge_patch(&kind, namespace, &object.name, None, &patch, NOTES).await {
            Ok(reply) => {
                let version = reply["metadata"]["resourceVersion"].as_str();
                self.index().remove_child(object, &observed.uid, version);
                Ok(())
            }
            Err(error) if matches!(error.class, Class::NotFound | Class::Conflict) => {
                self.reread(cluster, &kind, observed).await
            }
            Err(error) => Err(error),
        }
    }

    /// Sets an annotation of the instance; null takes it off.
    async fn annotate_instance(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        annotation: &str,
        value: &Value,
    ) -> Result<(), CallError> {
        let Some(instance) = self.index().instance(key) else { return Ok(()) };
        let meta = &instance["metadata"];
        let patch = json!({"metadata": {
            "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
            "annotations": {annotation: value},
        }});
        let (namespace, name) = (key.namespace.as_deref(), &*key.name);
        let cluster = self.for_instances(registered);
        match cluster.merge_patch(&registered.kind, namespace, name, None, &patch, NOTES).await {
            Ok(object) => {
                self.learn_instance(key, &object);
                Ok(())
            }
            Err(error) if error.class == Class::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn object_of(action: &Action) -> Option<&Observed> {
    match action {
        Action::Delete(o) | Action::Retain(o) | Action::Ask(o) | Action::Orphan(o) | Action::Unmark(o) => {
            Some(o)
        }
        _ => None,
    }
}

/// The merge patch that makes an object nobody's.
fn released(meta: &Value, instance_uid: &str) -> Value {
    let nulls = |field: &str| -> Map<String, Value> {
        let map = meta[field].as_object().into_iter().flatten();
        map.filter(|(key, value)| {
            key.starts_with(names::DOMAIN) || (*key == names::MANAGED_BY && *value == NOTES)
        })
        .map(|(key, _)| (key.clone(), Value::Null))
        .collect()
    };
    let without = |field: &str, ours: &dyn Fn(&Value) -> bool| -> Vec<Value> {
        meta[field].as_array().into_iter().flatten().filter(|entry| !ours(entry)).cloned().collect()
    };
    let operator = meta["labels"][names::OPERATOR].as_str().unwrap_or_default();
    let manager = names::field_manager(operator);
    let mut patch = json!({
        "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
        "labels": nulls("labels"), "annotations": nulls("annotations"),
        "managedFields": without("managedFields", &|entry| entry["manager"] == manager.as_str()),
    });
    if !meta["ownerReferences"].is_null() {
        patch["ownerReferences"] = without("ownerReferences", &|owner| owner["uid"] == instance_uid).into();
    }
    json!({"metadata": patch})
}
