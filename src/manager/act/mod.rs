//! Executes actions. Every write has a precondition, so that an outdated decision changes nothing. Every reply enters the
//! index, so that the next decision includes it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tracing::warn;

mod adopt;
mod apply;
mod certificates;
mod dry_run;
mod immutable;
mod instance;
mod job;
mod proof;
mod reclaim;
mod recreate;
mod release;
mod remove;
mod run;
mod secrets;
mod service_addresses;

pub(crate) use dry_run::send as send_dry_run;
pub(super) use proof::ProofKey;

use super::effects::Effects;
use super::index::{InstanceKey, Provenance};
use super::queue::Queue;
use super::registry::Registered;
use super::rights::At;
use super::scheduler::Key;
use super::store::Store;
use crate::api::{CallError, ObjectRef};
use crate::children::adoption::Adopted;
use crate::children::{Action, ActionOutcome, Applied, Apply, Check, FieldConflict, Observed, fields, names};

/// How many children of one instance are written at once, so that a large instance does not delay others.
const CALLS_OF_ONE: usize = 8;

const NOTES: &str = names::NOTES;

/// How long until an object that is being deleted is checked again, if its end queues no instance.
const GOING: Duration = Duration::from_secs(3);

/// Executes actions: it sends the requests and takes the replies into the store.
pub(super) struct Executor {
    pub(super) store: Arc<Store>,
    pub(super) effects: Arc<Effects>,
    /// Queues instances that wait for the dry run of another one.
    pub(super) queue: Arc<Queue<Key>>,
    /// The namespace of the manager.
    pub(super) namespace: String,
}

/// The result of an apply.
enum Reply {
    /// The object after the apply, and how it was adopted, if it was.
    Done { live: Box<Observed>, adopted: Option<Adopted> },
    /// The object was read again; a new decision follows.
    Again,
    /// The object was deleted; a new decision creates it.
    Recreating,
}

impl Executor {
    /// Carries out actions: the finalizer first, then applies side by side, then deletions.
    ///
    /// # Errors
    /// A failure that concerns the instance as a whole.
    pub(super) async fn act(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        instance: &Value,
        checks: &[Check],
        actions: Vec<Action>,
        outcomes: &mut Vec<ActionOutcome>,
    ) -> Result<(), CallError> {
        let actions = if checks.is_empty() {
            actions
        } else {
            self.dry_run(key, registered, checks, outcomes).await?.permitted(actions)
        };
        let mut applies = Vec::new();
        let mut rest = Vec::new();
        let mut runs = Vec::new();
        let mut add_finalizer = false;
        let mut record = None;
        for action in actions {
            match action {
                Action::Record(text) => record = Some(text),
                Action::AddFinalizer => add_finalizer = true,
                Action::Apply(apply) => applies.push(*apply),
                Action::Run(action) => runs.push(*action),
                other => rest.push(other),
            }
        }
        if applies.iter().any(|apply| apply.requires_live_owner)
            && !self.is_alive(key, registered, instance).await?
        {
            return Ok(());
        }
        if add_finalizer {
            self.patch_instance(key, registered, &Action::AddFinalizer).await?;
        }
        if let Some(record) = record {
            outcomes.push(self.record_target(key, registered, record).await?);
        }
        self.apply_all(applies, registered, outcomes).await;
        self.remove_all(key, registered, instance, rest, outcomes).await?;
        let result = self.act_for_runs(key, registered, instance, runs, outcomes).await;
        self.explain(key, registered, outcomes).await?;
        if result.as_ref().is_err_and(CallError::is_namespace_terminating) {
            outcomes.push(ActionOutcome::NamespaceTerminating);
        }
        result
    }

    /// A refusal that names the rights that the account of the package lacks. `again`: asks again for rights
    /// that were granted before.
    async fn missing_rights(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        again: bool,
    ) -> Result<Option<CallError>, CallError> {
        let Effects { clients, rights, .. } = &*self.effects;
        let at = At { manager: &self.namespace, home: key.namespace.as_deref() };
        rights.refusal(clients, &self.store, registered, at, again).await
    }

    /// Names all missing rights in refusals of the authorizer: those of removals, for which there is no dry run, and those of
    /// writes whose right was taken back.
    async fn explain(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        outcomes: &mut [ActionOutcome],
    ) -> Result<(), CallError> {
        let mut refused = Vec::new();
        for outcome in outcomes {
            if let ActionOutcome::Refused(_, error) | ActionOutcome::RunRefused(_, error) = outcome
                && error.is_unauthorized()
            {
                refused.push(error);
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        if let Some(missing) = self.missing_rights(key, registered, true).await? {
            for error in refused {
                error.clone_from(&missing);
            }
        }
        Ok(())
    }

    /// Whether a live read shows the same instance, not being deleted.
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
        &self,
        applies: Vec<Apply>,
        registered: &Arc<Registered>,
        outcomes: &mut Vec<ActionOutcome>,
    ) {
        let running = futures::stream::iter(applies)
            .map(|apply| async move {
                let conflict =
                    if apply.repair.is_frequent { self.conflict(&apply, registered).await } else { None };
                match self.apply(&apply, registered).await {
                    Ok(Reply::Done { live, adopted }) => {
                        let live = Arc::from(live);
                        ActionOutcome::Applied(Box::new(Applied { apply, live, adopted, conflict }))
                    }
                    Ok(Reply::Again) => ActionOutcome::Conflict,
                    Ok(Reply::Recreating) => ActionOutcome::Recreating(apply.desired.object),
                    Err(error) => {
                        warn!(object = %apply.desired.object, child = %apply.item, class = ?error.class, %error, "an apply failed");
                        ActionOutcome::Refused(Action::Apply(Box::new(apply)), error)
                    }
                }
            })
            .buffer_unordered(CALLS_OF_ONE);
        let mut running = std::pin::pin!(running);
        while let Some(outcome) = running.next().await {
            outcomes.push(outcome);
        }
    }

    /// Takes a live child, or the reply to a write of it, into the index, and queues the other instances that it concerns.
    fn learn_child(&self, object: &ObjectRef, reply: Value, provenance: Provenance) -> Option<Observed> {
        let (observed, concerned) = self.store.learn_child(object, reply, provenance)?;
        for key in concerned {
            self.queue.add(key);
        }
        Some(observed)
    }

    /// Which manager takes fields of a child from ours, for the message.
    async fn conflict(&self, apply: &Apply, registered: &Registered) -> Option<FieldConflict> {
        let object = &apply.desired.object;
        let kind = self.store.kinds.known(&object.gvk)?;
        let cluster = self.effects.for_children(registered);
        let live = cluster.get(&kind, object.namespace.as_deref(), &object.name).await.ok()??;
        fields::conflicting_manager(&live, &apply.desired.body, &names::field_manager(registered.operator()))
    }
}
