//! One apply: with its precondition, and what to do if the object is not as expected.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use serde_json::Value;
use tracing::debug;

use super::super::Shared;
use super::super::index::Origin;
use super::super::registry::Registered;
use super::win_back::{Hand, Moved};
use super::{Applied, NOTES, immutable, secrets};
use crate::children::{Apply, Expect, Intent, names};
use crate::cluster::{ApiKind, CallError, Class, Cluster, Trial};

impl Shared {
    pub(super) async fn apply(&self, apply: &Apply, registered: &Registered) -> Result<Applied, CallError> {
        let object = &apply.intent.object;
        let Some(kind) = self.kinds.known(&object.api_version, &object.kind) else {
            return Ok(Applied::Again);
        };
        let cluster = self.for_children(registered);
        let manager = names::field_manager(registered.operator());
        let mut body = (*apply.intent.body).clone();
        match &apply.expect {
            // The version of no object: the server creates it (201), or says that there is one (409).
            Expect::Absent => body["metadata"]["resourceVersion"] = "1".into(),
            Expect::Present(uid) => body["metadata"]["uid"] = Value::from(&**uid),
        }
        let trial = if apply.tried && kind.is_built_in() { Trial::Passed } else { Trial::None };
        let hand = Hand { cluster: &cluster, kind: &kind, intent: &apply.intent, manager: &manager };
        // Somebody wrote in between, which says nothing about the intent.
        let again = |error: &CallError| error.class == Class::Conflict && !error.is_apply_conflict();
        // First, for what follows may give us an entry in managedFields.
        let is_trusted = |live: &Value| self.is_trusted(&apply.intent, live, &manager);
        secrets::complete(&cluster, &kind, &apply.intent, &apply.expect, &is_trusted, &mut body).await?;
        let mut moved: Vec<Moved> = match hand.prepare(apply, &mut body).await {
            Err(error) if again(&error) => return Ok(Applied::Again),
            result => result?.into_iter().collect(),
        };
        let mut result = apply_body(&cluster, &kind, &body, &manager, apply.force, trial).await;
        if let Err(refusal) = &result {
            match hand.make_way(apply, refusal).await {
                Ok(None) => {}
                Ok(Some(more)) => {
                    moved.push(more);
                    result = apply_body(&cluster, &kind, &body, &manager, apply.force, trial).await;
                }
                Err(error) => result = Err(error),
            }
        }
        if result.is_err() {
            for moved in moved.iter().rev() {
                hand.give_back(moved).await;
            }
        }
        match result {
            Ok(reply) => Ok(self.applied(apply, hand.disown_the_rest(reply).await)),
            Err(error) if error.class == Class::Conflict && !error.is_apply_conflict() => {
                debug!(object = %object, "not as expected; reading it");
                self.after_conflict(&cluster, registered, &kind, apply, body, error).await
            }
            Err(error) if apply.expect == Expect::Absent => Err(error),
            Err(error) => {
                let error = immutable::classify(&cluster, &kind, &apply.intent, &manager, error).await;
                match &apply.recreate {
                    Some(live) if error.is_immutable_change() => {
                        self.recreate(&cluster, &kind, apply, live, &manager, error).await
                    }
                    _ => Err(error),
                }
            }
        }
    }

    pub(super) fn applied(&self, apply: &Apply, reply: Value) -> Applied {
        match self.learn_child(&apply.intent.object, reply, Origin::OwnWrite) {
            Some(observed) => {
                if !apply.intent.generated.is_empty() {
                    self.proven().insert(observed.uid.clone());
                }
                let changed = apply.version.as_ref() != Some(&observed.resource_version);
                Applied::Done(Box::new(observed), changed)
            }
            None => Applied::Again,
        }
    }

    /// Whether the generated values of a live object are ours: our apply has made it, as this process knows or its
    /// managedFields say, or the instance accepts them.
    pub(super) fn is_trusted(&self, intent: &Intent, live: &Value, manager: &str) -> bool {
        let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
        if self.proven().contains(uid) || secrets::is_applied(live, manager) {
            return true;
        }
        let owner = intent.body["metadata"]["labels"][names::INSTANCE_UID].as_str().unwrap_or_default();
        let index = self.index();
        let instance = index.by_uid(owner).and_then(|key| index.instance(key));
        instance.is_some_and(|instance| {
            !uid.is_empty() && instance["metadata"]["annotations"][names::ACCEPT_GENERATED] == uid
        })
    }

    /// The uids of objects whose generated values this process has made or found to be ours.
    fn proven(&self) -> MutexGuard<'_, HashSet<Box<str>>> {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One apply. What Operetta itself has noted on the object is no other manager's, whatever the policy.
pub(super) async fn apply_body(
    cluster: &Cluster,
    kind: &ApiKind,
    body: &Value,
    manager: &str,
    force: bool,
    trial: Trial,
) -> Result<Value, CallError> {
    match cluster.apply_as(kind, body, manager, force, trial).await {
        Err(error) if !force && error.conflicts_only_with(NOTES) => {
            cluster.apply_as(kind, body, manager, true, trial).await
        }
        reply => reply,
    }
}
