//! One apply with its precondition, and what follows if the precondition fails.

use serde_json::Value;
use tracing::debug;

use super::super::index::Provenance;
use super::super::registry::Registered;
use super::reclaim::{FieldOwnership, Moved};
use super::{Executor, NOTES, Reply, immutable};
use crate::api::{ApiKind, BuiltIn, CallError, Class, ObjectRef};
use crate::children::adoption::Adopted;
use crate::children::{Apply, Expect, Observed, names};
use crate::cluster::{Cluster, Trial};
use crate::package::ConflictPolicy;

impl Executor {
    pub(super) async fn apply(&self, apply: &Apply, registered: &Registered) -> Result<Reply, CallError> {
        let object = &apply.desired.object;
        let Some(kind) = self.store.kinds.known(&object.gvk) else {
            return Ok(Reply::Again);
        };
        let cluster = self.effects.for_children(registered);
        let manager = names::field_manager(registered.operator());
        let mut body = apply.expect.body(&apply.desired);
        let has_passed = apply.shape.is_some_and(|shape| self.effects.dry_runs.passed(shape));
        let trial = if has_passed && BuiltIn::has_group(&kind.group) { Trial::Passed } else { Trial::None };
        let fields =
            FieldOwnership { cluster: &cluster, kind: &kind, desired: &apply.desired, manager: &manager };
        // Another client wrote in between, which says nothing about the desired object.
        let again = |error: &CallError| error.class == Class::Conflict && !error.is_apply_conflict();
        let adopted = self.is_of_others(apply).then_some(Adopted::HandedOver);
        let is_first = self.is_not_made_by_us(apply);
        if let Some(former) = self.former_package(object, registered) {
            match fields.take_over(&former, registered.operator()).await {
                Err(error) if again(&error) => return Ok(Reply::Again),
                result => result?,
            }
        }
        self.complete(&cluster, &kind, (&apply.desired, &apply.expect), &mut body).await?;
        let mut moved: Vec<Moved> = match fields.prepare(apply, &mut body).await {
            Err(error) if again(&error) => {
                return self.after_conflict(&cluster, registered, &kind, apply, body, error).await;
            }
            result => result?.into_iter().collect(),
        };
        let mut result = apply_body(&cluster, &kind, &body, &manager, apply.policy.conflicts, trial).await;
        if let Err(refusal) = &result {
            match fields.resolve_conflict(apply, refusal).await {
                Ok(None) => {}
                Ok(Some(more)) => {
                    more.renew(&mut body);
                    moved.push(more);
                    result =
                        apply_body(&cluster, &kind, &body, &manager, apply.policy.conflicts, trial).await;
                }
                Err(error) => result = Err(error),
            }
        }
        if result.is_err() {
            for moved in moved.iter().rev() {
                fields.give_back(moved).await;
            }
        }
        match result {
            Ok(reply) => {
                let reply = fields.own_alone(reply, is_first, apply.policy.conflicts).await;
                let send = async |body: &Value| {
                    apply_body(&cluster, &kind, body, &manager, apply.policy.conflicts, Trial::Passed).await
                };
                let reply = self.seal(apply, reply, body, send).await;
                Ok(self.applied(apply, reply, adopted))
            }
            Err(error) if error.class == Class::Conflict && !error.is_apply_conflict() => {
                debug!(object = %object, "the precondition failed; reading the object");
                self.after_conflict(&cluster, registered, &kind, apply, body, error).await
            }
            Err(error) if apply.expect == Expect::Absent => Err(error),
            Err(error) => {
                let error = immutable::classify(&cluster, &kind, &apply.desired, &manager, error).await;
                match &apply.recreate {
                    Some(live) if error.is_immutable_change() => {
                        self.recreate(&cluster, &kind, apply, live, &manager, error).await
                    }
                    _ => Err(error),
                }
            }
        }
    }

    /// The package that the kind belonged to when the live object was applied, if it was another one.
    pub(super) fn former_package(&self, object: &ObjectRef, registered: &Registered) -> Option<Box<str>> {
        let index = self.store.index();
        let live = index.child(object)?;
        registered.owner().is_former(&live.package).then(|| live.package.clone())
    }

    pub(super) fn applied(&self, apply: &Apply, reply: Value, adopted: Option<Adopted>) -> Reply {
        match self.learn_child(&apply.desired.object, reply, Provenance::OwnWrite) {
            Some(observed) => {
                if !apply.desired.generated.is_empty() {
                    self.effects.proven().insert(observed.uid.clone());
                }
                Reply::Done { live: Box::new(observed), adopted }
            }
            None => Reply::Again,
        }
    }

    /// Whether an apply takes over an object that others have put there with the labels of this child.
    fn is_of_others(&self, apply: &Apply) -> bool {
        self.is_live(apply, Observed::is_of_others)
    }

    /// Whether the object of an apply exists and our field manager owns nothing of it.
    fn is_not_made_by_us(&self, apply: &Apply) -> bool {
        self.is_live(apply, |child| !child.is_made_by_us())
    }

    fn is_live(&self, apply: &Apply, is_wanted: impl Fn(&Observed) -> bool) -> bool {
        let Expect::Present(uid) = &apply.expect else { return false };
        let index = self.store.index();
        index.child(&apply.desired.object).is_some_and(|child| child.uid == *uid && is_wanted(child))
    }
}

/// One apply. Fields that Operetta itself has noted on the object are no conflict, whatever the policy.
pub(super) async fn apply_body(
    cluster: &Cluster,
    kind: &ApiKind,
    body: &Value,
    manager: &str,
    conflicts: ConflictPolicy,
    trial: Trial,
) -> Result<Value, CallError> {
    let is_forced = conflicts == ConflictPolicy::Force;
    match cluster.apply_as(kind, body, manager, is_forced, trial).await {
        Err(error) if !is_forced && error.conflicts_only_with(NOTES) => {
            cluster.apply_as(kind, body, manager, true, trial).await
        }
        reply => reply,
    }
}
