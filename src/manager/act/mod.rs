//! Carrying out what was decided. Every write has a precondition, so that a decision that came too late
//! does nothing; every reply goes into the index, so that the next decision sees it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tracing::warn;

mod apply;
mod check;
mod immutable;
mod record;
mod recreate;
mod release;
mod remove;
mod secrets;
mod take;
mod win_back;

use super::Shared;
use super::index::{InstanceKey, Origin};
use super::raw::Raw;
use super::registry::Registered;
use check::Checked;

use crate::children::{
    Action, Apply, Check, Expect, Failure, Memory, ObjectRef, Observed, Repairs, Why, exceeds, fields,
    is_covered, names,
};
use crate::cluster::{CallError, scattered};

/// How many children of one instance are written at once: one with a thousand leaves room for its neighbours.
const CALLS_OF_ONE: usize = 8;
/// How long a refused intent rests before it is tried again: doubled each time, up to the last.
const REFUSED_FIRST: Duration = Duration::from_secs(2);
const REFUSED_LAST: Duration = Duration::from_secs(300);

const NOTES: &str = names::NOTES;

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
    /// Taken over: it was another's, or that of a former instance.
    pub adopted: Vec<ObjectRef>,
    /// Deleted, to be made anew.
    pub replaced: Vec<ObjectRef>,
    pub asked: Vec<ObjectRef>,
    pub orphaned: Vec<ObjectRef>,
    /// Somebody else was first with one of them; it was read anew.
    pub clashed: bool,
    /// Nothing was done, for another instance tries the same just now; this one is queued when it has.
    pub waits: bool,
}

/// What an apply came to.
enum Applied {
    /// The object as it is now, and whether the apply changed it.
    Done(Box<Observed>, bool),
    /// The same of an object that was not this instance's.
    Adopted(Box<Observed>),
    /// Read anew; decide again.
    Again,
    /// Deleted; decide again.
    Replaced,
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
        checks: &[Check],
        mut actions: Vec<Action>,
        memory: &mut Memory,
    ) -> Result<Acted, CallError> {
        let mut acted = Acted::default();
        if !checks.is_empty() {
            match self.check(key, registered, checks, memory).await? {
                Checked::Passed { later } => put_off(&mut actions, &later),
                Checked::Elsewhere => {
                    acted.waits = true;
                    return Ok(acted);
                }
                // What exists is still repaired.
                Checked::Refused => actions.retain(|a| match a {
                    Action::AddFinalizer => false,
                    Action::Apply(apply) => !matches!(apply.why, Why::Create | Why::Update),
                    _ => true,
                }),
            }
        }
        let mut applies = Vec::new();
        let mut rest = Vec::new();
        let mut add_finalizer = false;
        let mut record = None;
        for action in actions {
            match action {
                Action::Record(text) => record = Some(text),
                Action::AddFinalizer => add_finalizer = true,
                Action::Apply(apply) => applies.push(*apply),
                other => rest.push(other),
            }
        }
        if applies.iter().any(|apply| apply.gives_life) && !self.is_alive(key, registered, instance).await? {
            return Ok(acted);
        }
        if add_finalizer {
            self.set_finalizer(key, registered, true).await?;
        }
        if let Some(record) = record {
            self.set_record(key, registered, record, memory).await?;
        }
        self.apply_all(applies, registered, memory, &mut acted).await?;
        self.take_away(key, registered, instance, rest, memory, &mut acted).await?;
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
        let running = futures::stream::iter(applies)
            .map(|apply| async move {
                let rival = if apply.contested { self.rival(&apply, registered).await } else { None };
                let result = self.apply(&apply, registered).await;
                (apply, rival, result)
            })
            .buffer_unordered(CALLS_OF_ONE);
        let mut running = std::pin::pin!(running);
        while let Some((apply, rival, result)) = running.next().await {
            let result = match result {
                Ok(Applied::Adopted(observed)) => {
                    acted.adopted.push(apply.intent.object.clone());
                    Ok(Applied::Done(observed, false))
                }
                other => other,
            };
            match result {
                Ok(Applied::Done(observed, changed)) => {
                    memory.failures.remove(&apply.item);
                    if matches!(apply.why, Why::Repair | Why::Recheck) {
                        memory.reapplied.insert(apply.intent.object.clone(), self.started.elapsed());
                    }
                    if apply.why == Why::Repair {
                        Repairs::count(memory, &apply.intent.object, self.started.elapsed(), rival);
                    }
                    if is_covered(&apply.intent, &observed) && !exceeds(&apply.intent, &observed, true) {
                        memory.accepted.remove(&apply.intent.object);
                    } else {
                        memory.accepted.insert(apply.intent.object.clone(), Arc::from(observed));
                    }
                    let list = match apply.why {
                        Why::Create | Why::Restore => &mut acted.created,
                        Why::Update => &mut acted.updated,
                        Why::Repair | Why::Recheck => &mut acted.repaired,
                    };
                    // Who looks again mostly finds that nothing was amiss; what others write meanwhile is
                    // no work of ours.
                    if changed && apply.why != Why::Recheck {
                        list.push(apply.intent.object.clone());
                    }
                }
                Ok(Applied::Again | Applied::Adopted(_)) => acted.clashed = true,
                Ok(Applied::Replaced) => acted.replaced.push(apply.intent.object.clone()),
                Err(error) => self.remember(&apply, error, memory),
            }
        }
        Ok(())
    }

    /// Who it is that takes fields of a child from us; only for the message.
    async fn rival(&self, apply: &Apply, registered: &Registered) -> Option<(String, Option<String>)> {
        let object = &apply.intent.object;
        let kind = self.kinds.known(&object.api_version, &object.kind)?;
        let cluster = self.for_children(registered);
        let live = cluster.get(&kind, object.namespace.as_deref(), &object.name).await.ok()??;
        fields::rival(&live, &apply.intent.body, &names::field_manager(registered.operator()))
    }

    fn remember(&self, apply: &Apply, error: CallError, memory: &mut Memory) {
        let before = memory.failures.get(&apply.item).filter(|f| f.hash == apply.intent.hash);
        warn!(object = %apply.intent.object, child = %apply.item, class = ?error.class, %error, "an apply failed");
        let mut failure = self.failure(before, apply.intent.hash.clone(), error);
        failure.uid = uid_of(&apply.expect);
        // A person mends it, and need not wait for our next try.
        failure.version = apply
            .version
            .clone()
            .filter(|_| matches!(failure.error.reason.as_str(), secrets::LOST | secrets::FOREIGN));
        memory.failures.insert(apply.item.clone(), failure);
    }

    fn remember_blocked(&self, check: &Check, error: CallError, memory: &mut Memory) {
        let before = memory.failures.get(&check.item).filter(|f| f.hash == check.intent.hash);
        let mut failure = self.failure(before, check.intent.hash.clone(), error);
        failure.uid = uid_of(&check.expect);
        failure.blocks = true;
        memory.failures.insert(check.item.clone(), failure);
    }

    pub(super) fn failure(&self, before: Option<&Failure>, hash: String, error: CallError) -> Failure {
        self.monitor.metrics.child_error(error.class);
        let count = before.map_or(0, |f| f.count).saturating_add(1);
        let rest = REFUSED_FIRST.saturating_mul(2u32.saturating_pow(count.min(16) - 1)).min(REFUSED_LAST);
        let rest = error.asked_to_wait().unwrap_or_else(|| scattered(rest));
        Failure {
            hash,
            error,
            retry_at: self.started.elapsed() + rest,
            count,
            uid: None,
            blocks: false,
            version: None,
        }
    }

    /// Takes a reply of the server about a child into the index.
    fn learn_child(&self, object: &ObjectRef, reply: Value, origin: Origin) -> Option<Observed> {
        let raw = Raw::from_value(reply).ok()?;
        let registry = self.registry();
        let reports = self.kinds.reports_status(&object.api_version, &object.kind);
        let reads = |operator: &str, child: &str| registry.reads(operator, child);
        let mut observed = raw.observe(&object.api_version, &object.kind, reports, reads)?;
        if origin == Origin::OwnWrite {
            observed.settled = observed.mark.clone();
        }
        self.index().put_child(observed.clone(), origin);
        Some(observed)
    }
}

/// Takes out what may be refused only because what it leans on is not there yet, if that is made now: the next
/// round tries it again. What will not come now is said by the server itself.
fn put_off(actions: &mut Vec<Action>, later: &[(String, Vec<String>)]) {
    let coming: HashSet<String> = actions
        .iter()
        .filter_map(|a| match a {
            Action::Apply(apply) if !later.iter().any(|(item, _)| *item == apply.item) => {
                Some(apply.item.clone())
            }
            _ => None,
        })
        .collect();
    actions.retain(|action| {
        let Action::Apply(apply) = action else { return true };
        let leans_on = later.iter().find(|(item, _)| *item == apply.item);
        !leans_on.is_some_and(|(_, others)| others.iter().any(|other| coming.contains(other)))
    });
}

fn uid_of(expect: &Expect) -> Option<Box<str>> {
    match expect {
        Expect::Absent => None,
        Expect::Present(uid) => Some(uid.clone()),
    }
}
