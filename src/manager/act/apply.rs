//! One apply: with its precondition, and what to do if the object is not as expected.

use serde_json::{Value, json};
use tracing::debug;

use super::super::Shared;
use super::super::index::Origin;
use super::super::registry::Registered;
use super::{Applied, NOTES, WIN_BACK_ATTEMPTS, secrets};
use crate::children::fields::{self, FieldPath};
use crate::children::{Apply, Expect, ObjectRef, Why, names};
use crate::cluster::{ApiKind, CallError, Cause, Class, Cluster};

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
                Err(error) if error.class == Class::Conflict && !error.is_apply_conflict() => {
                    return Ok(Applied::Again);
                }
                result => result?,
            }
        }
        secrets::complete(&cluster, &kind, &apply.intent, &apply.expect, &mut body).await?;
        match apply_body(&cluster, &kind, &body, &manager, apply.force).await {
            Ok(reply) => Ok(self.applied(apply, reply)),
            Err(error) if error.class == Class::Conflict && !error.is_apply_conflict() => {
                debug!(object = %object, "not as expected; reading it");
                self.after_conflict(&cluster, registered, &kind, apply, body, error).await
            }
            Err(error) => match &apply.recreate {
                Some(live) if error.is_immutable_change() => {
                    self.recreate(&cluster, &kind, apply, live, &manager, error).await
                }
                _ => Err(error),
            },
        }
    }

    pub(super) fn applied(&self, apply: &Apply, reply: Value) -> Applied {
        match self.learn_child(&apply.intent.object, reply, Origin::OwnWrite) {
            Some(observed) => {
                let changed = apply.version.as_ref() != Some(&observed.resource_version);
                Applied::Done(Box::new(observed), changed)
            }
            None => Applied::Again,
        }
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
            if !apply.force {
                return Err(conflict(object, &strays, &meta["managedFields"]));
            }
            debug!(object = %object, strays = strays.len(), "winning back items of keyed lists");
            let patch = json!([
                // A test that fails would be a 422, like a patch that can never do; this is a 409.
                {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
                {"op": "replace", "path": "/metadata/managedFields", "value": entries},
            ]);
            let patched =
                cluster.json_patch(kind, object.namespace.as_deref(), &object.name, &patch, NOTES).await;
            match patched {
                // Somebody, a controller mostly, was faster.
                Err(error) if error.class == Class::Conflict => {}
                other => return other.map(drop),
            }
        }
        Ok(())
    }
}

/// One apply. What Operetta itself has noted on the object is no other manager's, whatever the policy.
pub(super) async fn apply_body(
    cluster: &Cluster,
    kind: &ApiKind,
    body: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, CallError> {
    match cluster.apply(kind, body, manager, force).await {
        Err(error) if !force && error.conflicts_only_with(NOTES) => {
            cluster.apply(kind, body, manager, true).await
        }
        reply => reply,
    }
}

/// What the server says of a field that another manager has taken, said of items that stand in the way.
fn conflict(object: &ObjectRef, strays: &[FieldPath], managed_fields: &Value) -> CallError {
    let causes = strays.iter().map(|stray| Cause {
        field: stray.to_string(),
        reason: "FieldManagerConflict".into(),
        message: format!("conflict with {:?}", fields::holder(managed_fields, stray).unwrap_or("?")),
    });
    let message = format!("somebody else has put other items in place of those of {object}");
    let mut error = CallError::new(Class::Conflict, 409, "Conflict", message);
    error.causes = causes.collect();
    error
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
