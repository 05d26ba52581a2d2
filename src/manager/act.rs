//! Carrying out what was decided. Every write has a precondition, so that a decision that came too late
//! does nothing; every reply goes into the index, so that the next decision sees it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::Shared;
use super::index::{InstanceKey, Origin};
use super::raw::Raw;
use super::registry::Registered;
use crate::children::fields::{self, FieldSet};
use crate::children::{Action, Apply, Expect, Failure, Memory, ObjectRef, Observed, Why, is_covered, names};
use crate::cluster::{ApiKind, CallError, Class, Propagation};

/// How long a refused intent rests before it is tried again: doubled each time, up to the last.
const REFUSED_FIRST: Duration = Duration::from_secs(2);
const REFUSED_LAST: Duration = Duration::from_secs(300);
/// How often a patch of managedFields is made anew because somebody else wrote the object meanwhile.
const WIN_BACK_ATTEMPTS: usize = 5;

/// How long until what is being deleted is looked at again: it belongs to nobody whom its end would wake.
const GOING: Duration = Duration::from_secs(3);

/// What was done, for Events.
#[derive(Debug, Default)]
pub(super) struct Acted {
    pub created: Vec<ObjectRef>,
    pub updated: Vec<ObjectRef>,
    pub repaired: Vec<ObjectRef>,
    pub deleted: Vec<ObjectRef>,
    pub retained: Vec<ObjectRef>,
}

/// What an apply came to.
enum Applied {
    /// The object as it is now, and whether the apply changed it.
    Done(Box<Observed>, bool),
    /// Read anew; decide again.
    Again,
}

impl Shared {
    /// Carries out actions: the finalizer first, then applies side by side, then deletions.
    ///
    /// # Errors
    /// A failure that concerns the instance as a whole. Failures of one child are remembered.
    pub(super) async fn act(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        instance: &Value,
        actions: Vec<Action>,
        memory: &mut Memory,
    ) -> Result<Acted, CallError> {
        let mut acted = Acted::default();
        let mut applies = Vec::new();
        let mut rest = Vec::new();
        let mut add_finalizer = false;
        for action in actions {
            match action {
                Action::AddFinalizer => add_finalizer = true,
                Action::Apply(apply) => applies.push(*apply),
                other => rest.push(other),
            }
        }
        let gives_life = applies.iter().any(|a| a.expect == Expect::Absent || owns(&a.intent.body));
        if gives_life && !self.is_alive(key, registered, instance).await? {
            return Ok(acted);
        }
        if add_finalizer {
            self.set_finalizer(key, registered, true).await?;
        }
        self.apply_all(applies, registered, memory, &mut acted).await?;
        for action in rest {
            match action {
                // One that the server keeps stops no other.
                Action::Delete(observed) => match self.delete(&observed).await {
                    Ok(()) => {
                        memory.kept.remove(&observed.object);
                        acted.deleted.push(observed.object.clone());
                    }
                    Err(error) => self.remember_kept(&observed, error, memory),
                },
                Action::Retain(observed) => match self.retain(&observed).await {
                    Ok(()) => {
                        memory.kept.remove(&observed.object);
                        acted.retained.push(observed.object.clone());
                    }
                    Err(error) => self.remember_kept(&observed, error, memory),
                },
                Action::RemoveFinalizer => self.release(key, registered, instance).await?,
                Action::AddFinalizer | Action::Apply(_) => {}
            }
        }
        Ok(acted)
    }

    /// Whether the instance, read live, is the one that was decided about and is to stay.
    async fn is_alive(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
    ) -> Result<bool, CallError> {
        let Some(live) = self.refresh(key, registered).await? else { return Ok(false) };
        let meta = &live["metadata"];
        Ok(meta["uid"] == instance["metadata"]["uid"] && meta["deletionTimestamp"].is_null())
    }

    async fn apply_all(
        self: &Arc<Self>,
        applies: Vec<Apply>,
        registered: &Arc<Registered>,
        memory: &mut Memory,
        acted: &mut Acted,
    ) -> Result<(), CallError> {
        let mut running: FuturesUnordered<_> = applies
            .into_iter()
            .map(|apply| async move {
                let result = self.apply(&apply, registered).await;
                (apply, result)
            })
            .collect();
        while let Some((apply, result)) = running.next().await {
            match result {
                Ok(Applied::Done(observed, changed)) => {
                    memory.failures.remove(&apply.item);
                    if matches!(apply.why, Why::Repair | Why::Recheck) {
                        memory.reapplied.insert(apply.intent.object.clone(), self.started.elapsed());
                    }
                    if is_covered(&apply.intent, &observed) {
                        memory.accepted.remove(&apply.intent.object);
                    } else {
                        memory.accepted.insert(apply.intent.object.clone(), Arc::from(observed));
                    }
                    let list = match apply.why {
                        Why::Create => &mut acted.created,
                        Why::Update => &mut acted.updated,
                        Why::Repair | Why::Recheck => &mut acted.repaired,
                    };
                    // Who looks again mostly finds that nothing was amiss; what others write meanwhile is
                    // no work of ours.
                    if changed && apply.why != Why::Recheck {
                        list.push(apply.intent.object.clone());
                    }
                }
                Ok(Applied::Again) => {}
                Err(error) => self.remember(&apply, error, memory),
            }
        }
        Ok(())
    }

    fn remember(&self, apply: &Apply, error: CallError, memory: &mut Memory) {
        let before = memory.failures.get(&apply.item).filter(|f| f.hash == apply.intent.hash);
        warn!(object = %apply.intent.object, child = %apply.item, class = ?error.class, %error, "an apply failed");
        let failure = self.failure(before, apply.intent.hash.clone(), error);
        memory.failures.insert(apply.item.clone(), failure);
    }

    fn remember_kept(&self, observed: &Observed, error: CallError, memory: &mut Memory) {
        let before = memory.kept.get(&observed.object).filter(|f| *f.hash == *observed.uid);
        warn!(object = %observed.object, class = ?error.class, %error, "a deletion failed");
        let failure = self.failure(before, observed.uid.to_string(), error);
        memory.kept.insert(observed.object.clone(), failure);
    }

    fn failure(&self, before: Option<&Failure>, hash: String, error: CallError) -> Failure {
        let count = before.map_or(0, |f| f.count).saturating_add(1);
        let rest = REFUSED_FIRST.saturating_mul(2u32.saturating_pow(count.min(16) - 1)).min(REFUSED_LAST);
        let rest = error.retry_after.unwrap_or(rest).mul_f64(0.8 + 0.4 * fastrand::f64());
        Failure { hash, error, retry_at: self.started.elapsed() + rest, count }
    }

    async fn apply(&self, apply: &Apply, registered: &Registered) -> Result<Applied, CallError> {
        let object = &apply.intent.object;
        let Some(kind) = self.kinds.known(&object.api_version, &object.kind) else {
            return Ok(Applied::Again);
        };
        let manager = names::field_manager(registered.operator());
        let mut body = apply.intent.body.clone();
        match &apply.expect {
            // The version of no object: the server creates it (201), or says that there is one (409).
            Expect::Absent => body["metadata"]["resourceVersion"] = "1".into(),
            Expect::Present(uid) => body["metadata"]["uid"] = Value::from(&**uid),
        }
        if matches!(apply.why, Why::Repair | Why::Recheck) {
            match self.win_back(&kind, apply, &manager).await {
                // Somebody wrote in between, which says nothing about the intent.
                Err(error) if error.class == Class::Conflict => return Ok(Applied::Again),
                result => result?,
            }
        }
        let reply = {
            let _permit = self.permit().await;
            self.cluster.apply(&kind, &body, &manager, apply.force).await
        };
        match reply {
            Ok(reply) => Ok(self.applied(apply, reply)),
            Err(error) if error.class == Class::Conflict && !error.is_apply_conflict() => {
                debug!(object = %object, "not as expected; reading it");
                self.after_conflict(&kind, apply, body, &manager, error).await
            }
            Err(error) => Err(error),
        }
    }

    /// The object is there though it should not, or is another than expected: look, and take it if it is
    /// ours to take.
    async fn after_conflict(
        &self,
        kind: &ApiKind,
        apply: &Apply,
        mut body: Value,
        manager: &str,
        error: CallError,
    ) -> Result<Applied, CallError> {
        let object = &apply.intent.object;
        let live = {
            let _permit = self.permit().await;
            self.cluster.get(kind, object.namespace.as_deref(), &object.name).await?
        };
        let Some(live) = live else {
            if let Expect::Present(uid) = &apply.expect {
                self.index().remove_child(object, uid, None);
            }
            return Ok(Applied::Again);
        };
        let uid = live["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let ours = |label: &str| live["metadata"]["labels"][label] == body["metadata"]["labels"][label];
        let labelled = ours(names::INSTANCE_UID);
        // Ours after all: a write whose reply was lost, or a stale cache. Unless somebody took the labels by
        // which we would know it: then it is told what it is once more.
        if labelled && self.learn_child(object, live.clone(), Origin::Read).is_some() {
            return Ok(Applied::Again);
        }
        if !labelled && is_going(&live, &body) {
            return Err(CallError {
                class: Class::Retry,
                code: error.code,
                reason: "Terminating".into(),
                message: format!("{object} of a former instance of that name is still being deleted"),
                causes: Vec::new(),
                retry_after: Some(GOING),
            });
        }
        if !labelled && !self.may_take(&live, &body) {
            return Err(CallError {
                class: Class::Conflict,
                code: error.code,
                reason: "NameTaken".into(),
                message: format!(
                    "{object} exists and does not belong to this instance; delete it, or annotate it with {}=true to hand it over",
                    names::ADOPT
                ),
                causes: Vec::new(),
                retry_after: None,
            });
        }
        if let Some(meta) = body["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
            meta.insert("uid".into(), uid.into());
        }
        let _permit = self.permit().await;
        let reply = self.cluster.apply(kind, &body, manager, true).await?;
        Ok(self.applied(apply, reply))
    }

    fn applied(&self, apply: &Apply, reply: Value) -> Applied {
        match self.learn_child(&apply.intent.object, reply, Origin::OwnWrite) {
            Some(observed) => {
                let changed = apply.version.as_ref() != Some(&observed.resource_version);
                Applied::Done(Box::new(observed), changed)
            }
            None => Applied::Again,
        }
    }

    /// Whether an object that is not labelled as this instance's may become its: it was made for it and
    /// somebody changed the label, a person said so, or it was that of a former instance of the same name and
    /// nobody owns it any more. Never that of another living instance.
    fn may_take(&self, live: &Value, body: &Value) -> bool {
        let meta = &live["metadata"];
        let uid = body["metadata"]["labels"][names::INSTANCE_UID].as_str().unwrap_or_default();
        let owners = meta["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        let former = meta["labels"][names::INSTANCE_UID].as_str();
        if former.is_some_and(|uid| self.index().by_uid(uid).is_some()) {
            return false;
        }
        // The hash of an intent covers the instance's uid, so no other object has it.
        let intent = |meta: &Value| meta["annotations"][names::INTENT].as_str().map(str::to_owned);
        let made_for_it = intent(meta).is_some() && intent(meta) == intent(&body["metadata"]);
        if made_for_it
            || owners.iter().any(|owner| owner["uid"] == uid)
            || meta["annotations"][names::ADOPT] == "true"
        {
            return true;
        }
        let same = [names::OPERATOR, names::KIND, names::INSTANCE, names::CHILD]
            .iter()
            .all(|label| meta["labels"][*label] == body["metadata"]["labels"][*label]);
        same && owners.is_empty()
    }

    /// Before a repair: items that somebody put into a keyed list in place of ours are moved into our
    /// entry, so that the apply removes them. Else it would be refused for ever, or leave both.
    async fn win_back(&self, kind: &ApiKind, apply: &Apply, manager: &str) -> Result<(), CallError> {
        if !has_list_of_maps(&apply.intent.body) {
            return Ok(());
        }
        let object = &apply.intent.object;
        for _ in 0..WIN_BACK_ATTEMPTS {
            let live = {
                let _permit = self.permit().await;
                self.cluster.get(kind, object.namespace.as_deref(), &object.name).await?
            };
            let Some(live) = live else { return Ok(()) };
            let strays = fields::strays(&live, &apply.intent.body, manager);
            if strays.is_empty() {
                return Ok(());
            }
            let meta = &live["metadata"];
            let Some(entries) = fields::take_over(&meta["managedFields"], manager, &strays) else {
                return Ok(());
            };
            debug!(object = %object, strays = strays.len(), "winning back items of keyed lists");
            let patch = json!([
                // A test that fails would be a 422, like a patch that can never do; this is a 409.
                {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
                {"op": "replace", "path": "/metadata/managedFields", "value": entries},
            ]);
            let patched = {
                let _permit = self.permit().await;
                self.cluster
                    .json_patch(kind, object.namespace.as_deref(), &object.name, &patch, "operetta")
                    .await
            };
            match patched {
                // Somebody, a controller mostly, was faster.
                Err(error) if error.class == Class::Conflict => {}
                other => return other.map(drop),
            }
        }
        Ok(())
    }

    async fn delete(&self, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        let Some(kind) = self.kinds.known(&object.api_version, &object.kind) else { return Ok(()) };
        let preconditions = (&*observed.uid, &*observed.resource_version);
        let reply = {
            let _permit = self.permit().await;
            self.cluster
                .delete(
                    &kind,
                    object.namespace.as_deref(),
                    &object.name,
                    preconditions,
                    Propagation::Background,
                )
                .await
        };
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
                self.reread(&kind, observed).await
            }
            Err(error) => Err(error),
        }
    }

    /// The object is not as it was believed to be: see how it is.
    async fn reread(&self, kind: &ApiKind, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        let live = {
            let _permit = self.permit().await;
            self.cluster.get(kind, object.namespace.as_deref(), &object.name).await?
        };
        match live {
            Some(live) if live["metadata"]["uid"] == *observed.uid => {
                self.learn_child(object, live, Origin::Read);
            }
            _ => {
                self.index().remove_child(object, &observed.uid, None);
            }
        }
        Ok(())
    }

    async fn retain(&self, observed: &Observed) -> Result<(), CallError> {
        let object = &observed.object;
        let Some(kind) = self.kinds.known(&object.api_version, &object.kind) else { return Ok(()) };
        let patch = json!({"metadata": {
            "uid": &*observed.uid, "resourceVersion": &*observed.resource_version,
            "annotations": {names::RETAINED: "true"},
        }});
        let reply = {
            let _permit = self.permit().await;
            self.cluster
                .merge_patch(&kind, object.namespace.as_deref(), &object.name, None, &patch, "operetta")
                .await
        };
        match reply {
            Ok(reply) => {
                self.learn_child(object, reply, Origin::OwnWrite);
                Ok(())
            }
            Err(error) if matches!(error.class, Class::NotFound | Class::Conflict) => {
                self.reread(&kind, observed).await
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the finalizer off. Of an instance that goes, only after a live look at every kind on record
    /// has found nothing that it guards: no such decision on the word of a cache.
    async fn release(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
    ) -> Result<(), CallError> {
        let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        if !instance["metadata"]["deletionTimestamp"].is_null() {
            let selector = format!("{}={uid}", names::INSTANCE_UID);
            for (api_version, kind_name) in &registered.child_kinds {
                // Not found is not there; not to be told is no ground to let go of what may be there.
                let found = {
                    let _permit = self.permit().await;
                    self.kinds.find(&self.cluster.client(), api_version, kind_name).await?
                };
                let Some(kind) = found else { continue };
                let found = {
                    let _permit = self.permit().await;
                    self.cluster.list(&kind, None, &selector, 500).await
                };
                let found = match found {
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

    async fn set_finalizer(
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
        let _permit = self.permit().await;
        match self
            .cluster
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

    /// Takes a reply of the server about a child into the index.
    fn learn_child(&self, object: &ObjectRef, reply: Value, origin: Origin) -> Option<Observed> {
        let raw = Raw::from_value(reply).ok()?;
        let registry = self.registry();
        let mut observed = raw
            .observe(&object.api_version, &object.kind, |operator, child| registry.reads(operator, child))?;
        if origin == Origin::OwnWrite {
            observed.settled = observed.mark.clone();
        }
        self.index().put_child(observed.clone(), origin);
        Some(observed)
    }
}

/// Whether the object was a child of a former instance of the same name and is on its way out: terminating,
/// or the garbage collector's.
fn is_going(live: &Value, body: &Value) -> bool {
    let meta = &live["metadata"];
    let label = |meta: &Value, label: &str| meta["labels"][label].as_str().map(str::to_owned);
    let same = [names::OPERATOR, names::KIND, names::INSTANCE]
        .iter()
        .all(|name| label(meta, name) == label(&body["metadata"], name));
    let Some(former) = label(meta, names::INSTANCE_UID).filter(|_| same) else { return false };
    let owned = meta["ownerReferences"].as_array().is_some_and(|all| all.iter().any(|o| o["uid"] == *former));
    former.as_str() != body["metadata"]["labels"][names::INSTANCE_UID]
        && (owned || !meta["deletionTimestamp"].is_null())
}

/// Whether the intent makes the garbage collector responsible.
fn owns(body: &Value) -> bool {
    body["metadata"].get("ownerReferences").is_some()
}

fn has_list_of_maps(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| item.is_object() || has_list_of_maps(item)),
        Value::Object(map) => {
            map.iter().any(|(key, value)| key != "ownerReferences" && has_list_of_maps(value))
        }
        _ => false,
    }
}
