//! One apply: with its precondition, and what to do if the object is not as expected.

use serde_json::{Value, json};
use tracing::debug;

use super::super::Shared;
use super::super::index::Origin;
use super::super::registry::Registered;
use super::{Applied, GOING, WIN_BACK_ATTEMPTS, secrets};
use crate::children::{Apply, Expect, Why, fields, names};
use crate::cluster::{ApiKind, CallError, Class, Cluster};

impl Shared {
    pub(super) async fn apply(&self, apply: &Apply, registered: &Registered) -> Result<Applied, CallError> {
        let object = &apply.intent.object;
        let Some(kind) = self.kinds.known(&object.api_version, &object.kind) else {
            return Ok(Applied::Again);
        };
        let cluster = self.for_children(registered);
        let manager = names::field_manager(registered.operator());
        let mut body = apply.intent.body.clone();
        match &apply.expect {
            // The version of no object: the server creates it (201), or says that there is one (409).
            Expect::Absent => body["metadata"]["resourceVersion"] = "1".into(),
            Expect::Present(uid) => body["metadata"]["uid"] = Value::from(&**uid),
        }
        if matches!(apply.why, Why::Repair | Why::Recheck) {
            match self.win_back(&cluster, &kind, apply, &manager).await {
                // Somebody wrote in between, which says nothing about the intent.
                Err(error) if error.class == Class::Conflict => return Ok(Applied::Again),
                result => result?,
            }
        }
        secrets::complete(&cluster, &kind, &apply.intent, &apply.expect, &mut body).await?;
        match cluster.apply(&kind, &body, &manager, apply.force).await {
            Ok(reply) => Ok(self.applied(apply, reply)),
            Err(error) if error.class == Class::Conflict && !error.is_apply_conflict() => {
                debug!(object = %object, "not as expected; reading it");
                self.after_conflict(&cluster, &kind, apply, body, &manager, error).await
            }
            Err(error) => match &apply.recreate {
                Some(live) if error.is_immutable_change() => {
                    self.recreate(&cluster, &kind, apply, live, &manager, error).await
                }
                _ => Err(error),
            },
        }
    }

    /// The object is there though it should not, or is another than expected: look, and take it if it is
    /// ours to take.
    async fn after_conflict(
        &self,
        cluster: &Cluster,
        kind: &ApiKind,
        apply: &Apply,
        mut body: Value,
        manager: &str,
        error: CallError,
    ) -> Result<Applied, CallError> {
        let object = &apply.intent.object;
        let live = cluster.get(kind, object.namespace.as_deref(), &object.name).await?;
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
            let message = format!("{object} of a former instance of that name is still being deleted");
            return Err(CallError::new(Class::Retry, error.code, "Terminating", message).after(GOING));
        }
        if !labelled && !self.may_take(&live, &body) {
            let message = format!(
                "{object} exists and does not belong to this instance; delete it, or annotate it with {}=true to hand it over",
                names::ADOPT
            );
            return Err(CallError::new(Class::Conflict, error.code, "NameTaken", message));
        }
        if let Some(meta) = body["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
            meta.insert("uid".into(), uid.into());
        }
        secrets::fill(&apply.intent, Some(&live), &mut body)?;
        let reply = cluster.apply(kind, &body, manager, true).await?;
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
    async fn win_back(
        &self,
        cluster: &Cluster,
        kind: &ApiKind,
        apply: &Apply,
        manager: &str,
    ) -> Result<(), CallError> {
        if !has_list_of_maps(&apply.intent.body) {
            return Ok(());
        }
        let object = &apply.intent.object;
        for _ in 0..WIN_BACK_ATTEMPTS {
            let live = cluster.get(kind, object.namespace.as_deref(), &object.name).await?;
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
            let patched =
                cluster.json_patch(kind, object.namespace.as_deref(), &object.name, &patch, "operetta").await;
            match patched {
                // Somebody, a controller mostly, was faster.
                Err(error) if error.class == Class::Conflict => {}
                other => return other.map(drop),
            }
        }
        Ok(())
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

fn has_list_of_maps(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| item.is_object() || has_list_of_maps(item)),
        Value::Object(map) => {
            map.iter().any(|(key, value)| key != "ownerReferences" && has_list_of_maps(value))
        }
        _ => false,
    }
}
