//! How children go: in reverse order, a wave at a time, from what is observed. Nothing is rendered, so a
//! package that no longer compiles cannot hold a deletion.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::decide::{self, Action, Decision, Memory, Verdict};
use super::names;
use super::observed::{Asking, Observed, once};
use super::status::Status;
use crate::package::Child;

/// How long until it is looked again whether a namespace is empty: what others have in it wakes nobody.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// What is observed of an instance that goes.
pub struct Leaving<'a> {
    /// The instance.
    pub instance: &'a Value,
    /// Its children.
    pub observed: &'a [Arc<Observed>],
    /// See [`super::Context::former`].
    pub former: &'a [Arc<Observed>],
    /// See [`super::Context::occupant`].
    pub occupant: &'a dyn Fn(&str) -> Option<String>,
    /// Kinds that its children may have and that cannot be listed now.
    pub unlisted: &'a [Unlisted],
}

/// A kind on record of which nobody can tell what there is. (A kind that is not served has nothing that could be
/// deleted.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlisted {
    /// The apiVersion.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Why.
    pub reason: String,
    /// The highest order that its objects may have, where the package tells.
    pub order: Option<u32>,
}

impl Unlisted {
    /// With the order that the children of a package give it.
    #[must_use]
    pub fn ordered(&self, children: &[Child]) -> Self {
        let is_of_it = |child: &&Child| child.has_kind(&self.api_version, &self.kind);
        let order = children.iter().filter(is_of_it).map(|child| child.depth).max();
        Self { order, ..self.clone() }
    }
}

/// Whether our finalizer is on the object.
pub(super) fn has_finalizer(object: &Value) -> bool {
    has(object, names::FINALIZER)
}

fn has(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|f| f == finalizer))
}

fn annotated(object: &Value, annotation: &str) -> bool {
    object["metadata"]["annotations"][annotation] == "true"
}

/// Decides about an instance that is being deleted, with neither package nor schema: an instance whose
/// package cannot be loaded any more goes like any other.
pub fn decide_from(leaving: &Leaving<'_>, memory: &Memory, now: Duration) -> Decision {
    let Leaving { instance, observed, .. } = leaving;
    let mut decision = Decision {
        checks: Vec::new(),
        actions: Vec::new(),
        verdict: Verdict::Deleting {
            message: "waits for the garbage collector or the finalizers of others".into(),
        },
        status: None,
        again: None,
        children: observed
            .iter()
            .map(|o| {
                (
                    names::item_name(&o.child, o.key.as_deref()),
                    Some(o.object.clone()),
                    Err("is being deleted".into()),
                )
            })
            .collect(),
        wants: Vec::new(),
        pending: false,
        accepted: false,
        swings: Vec::new(),
        is_partial: false,
        exceeded: None,
    };
    if is_orphaning(instance, observed) {
        orphan(leaving, memory, now, &mut decision);
    } else if has_finalizer(instance) {
        delete(leaving, memory, now, &mut decision);
    }
    // Without it all children carry ownerReferences.
    decision
}

/// Whether the instance was deleted with `--cascade=orphan`. The garbage collector takes the mark away as soon
/// as it has done its part, which is to take the ownerReferences off: so children without theirs are as good.
fn is_orphaning(instance: &Value, observed: &[Arc<Observed>]) -> bool {
    if has(instance, names::ORPHAN_FINALIZER)
        || instance["metadata"]["annotations"][names::ORPHANED].is_string()
    {
        return true;
    }
    let foreground = has(instance, "foregroundDeletion");
    !foreground
        && observed.iter().any(|o| o.is_orphaned())
        && observed.iter().filter(|o| o.is_made_by_us()).all(|o| !o.owner_reference)
}

/// Lets go of all children: nothing is deleted.
fn orphan(leaving: &Leaving<'_>, memory: &Memory, now: Duration, decision: &mut Decision) {
    decision.verdict = Verdict::Deleting { message: "lets go of its children (--cascade=orphan)".into() };
    let of_ours = leaving.observed.iter().filter(|o| o.is_made_by_us());
    let mut actions: Vec<Action> = of_ours.cloned().map(Action::Orphan).collect();
    if actions.is_empty() {
        if has_finalizer(leaving.instance) {
            decision.actions.push(Action::RemoveFinalizer);
        }
        return;
    }
    let resting = decide::rest(&mut actions, memory, now);
    decision.again = resting.iter().map(|(_, failure)| failure.retry_at.saturating_sub(now)).min();
    if let Some((object, failure)) = resting.first() {
        let message = format!("{object} cannot be orphaned: {}", failure.error);
        decision.verdict = Verdict::Deleting { message };
        decision.status = Some(Status::deleting(leaving.instance, &decision.verdict));
    }
    if !annotated(leaving.instance, names::ORPHANED) {
        decision.actions.push(Action::MarkOrphaned);
    }
    decision.actions.extend(actions);
}

fn delete(leaving: &Leaving<'_>, memory: &Memory, now: Duration, decision: &mut Decision) {
    let Leaving { instance, observed, former, occupant, unlisted } = leaving;
    let remaining =
        once(observed.iter().filter(|o| o.is_to_go()).chain(former.iter().filter(|o| is_leftover(o))));
    if annotated(instance, names::SKIP_CLEANUP) {
        skip(&remaining, memory, decision);
        return;
    }
    let Wave { mut actions, mut waits, pending, again } = wave(&remaining, occupant);
    let hidden = hold_back(&mut actions, unlisted);
    let held = hidden.is_some();
    waits = hidden.or(waits);
    let resting = decide::rest(&mut actions, memory, now);
    decision.again =
        resting.iter().map(|(_, failure)| failure.retry_at.saturating_sub(now)).chain(again).min();
    decision.actions = actions;
    let mut tell = !pending.is_empty();
    if let Some((object, failure)) = resting.first() {
        let message = format!("{object} cannot be deleted: {}", failure.error);
        decision.verdict = Verdict::Deleting { message };
        tell = true;
    } else if let Some(message) = waits {
        decision.verdict = Verdict::Deleting { message };
        // Only then is it worth a write: what merely takes a moment is gone before anybody looks.
        tell |= held || again.is_some() || remaining.iter().any(|o| o.terminating && !o.held_by.is_empty());
    } else if let Some(first) = pending.first() {
        decision.verdict = Verdict::Deleting { message: first.clone() };
    } else if let Some(failure) = memory.release.as_ref().filter(|failure| failure.retry_at > now) {
        let message = format!("whether all children are gone cannot be told: {}", failure.error);
        decision.again = Some(failure.retry_at.saturating_sub(now));
        decision.verdict = Verdict::Deleting { message };
        tell = true;
    } else if decision.actions.is_empty() {
        decision.actions.push(Action::RemoveFinalizer);
    }
    if tell {
        decision.status = Some(Status::deleting(instance, &decision.verdict).pending(&pending));
    }
}

/// Takes out what must wait for what cannot be seen: an object of a kind that cannot be listed may be of a higher
/// order. Says which kind.
pub(super) fn hold_back(actions: &mut Vec<Action>, unlisted: &[Unlisted]) -> Option<String> {
    let mut hidden = None;
    actions.retain(|action| {
        let Action::Delete(observed) = action else { return true };
        let above = unlisted.iter().find(|kind| kind.order.is_none_or(|order| order > observed.order));
        if let Some(kind) = above {
            hidden.get_or_insert_with(|| {
                format!(
                    "{} stays until it is known that each {} of {} that depends on it is gone: {}",
                    observed.object, kind.kind, kind.api_version, kind.reason
                )
            });
        }
        above.is_none()
    });
    hidden
}

/// A person does not want to wait: all that may go is sent on its way at once, in no order, and the instance
/// let go. What asks stays; what holds data was never to go.
fn skip(remaining: &[&Arc<Observed>], memory: &Memory, decision: &mut Decision) {
    let tried = |o: &Observed| memory.kept.get(&o.object).is_some_and(|failure| *failure.hash == *o.uid);
    for observed in remaining.iter().filter(|o| !o.terminating && !o.awaits_approval() && !tried(o)) {
        decision.actions.push(match observed.retained {
            Some(_) => Action::Retain(Arc::clone(observed)),
            None => Action::Delete(Arc::clone(observed)),
        });
    }
    if decision.actions.is_empty() {
        decision.actions.push(Action::LetGo);
    }
}

/// Whether a child of a former instance is to go when nothing wants it. What carries an ownerReference is the
/// garbage collector's; what lost it was orphaned by a person.
pub(super) fn is_leftover(former: &Observed) -> bool {
    former.is_to_go() && former.guarded && !former.owner_reference
}

/// What goes now, and what does not.
#[derive(Debug, Default)]
pub(super) struct Wave {
    /// To do.
    pub actions: Vec<Action>,
    /// What all lower orders wait for.
    pub waits: Option<String>,
    /// What waits for approval, a sentence each. Holds nothing else back.
    pub pending: Vec<String>,
    /// When to look again, though no event comes.
    pub again: Option<Duration>,
}

/// The objects that may go now: of the highest order those not yet terminating. What is still on its way
/// holds the lower orders back, and is named. A namespace goes only when nothing is left in it.
pub(super) fn wave(objects: &[&Arc<Observed>], occupant: &dyn Fn(&str) -> Option<String>) -> Wave {
    let mut wave = Wave::default();
    let mut going: Vec<&Arc<Observed>> = Vec::new();
    for object in objects {
        // What says that it is retained, and comes here all the same, the garbage collector would take.
        if object.retained.is_some() {
            wave.actions.push(Action::Retain(Arc::clone(object)));
        } else if object.awaits_approval() {
            wave.pending.push(asks(object));
            if object.asking == Some(Asking::No) {
                wave.actions.push(Action::Ask(Arc::clone(object)));
            }
        } else {
            going.push(object);
        }
    }
    let holds = |namespace: &Observed| {
        is_namespace(namespace)
            && going.iter().any(|o| o.object.namespace.as_deref() == Some(&*namespace.object.name))
    };
    let candidates: Vec<_> = going.iter().filter(|o| !holds(o)).collect();
    let Some(highest) = candidates.iter().map(|o| o.order).max() else { return wave };
    let now: Vec<_> = candidates.into_iter().filter(|o| o.order == highest).collect();
    let mut occupied = None;
    for object in now.iter().filter(|o| !o.terminating) {
        match Some(&object.object.name).filter(|_| is_namespace(object)).and_then(|name| occupant(name)) {
            None => wave.actions.push(Action::Delete(Arc::clone(object))),
            Some(occupant) => {
                wave.again = Some(LOOK_AGAIN);
                occupied =
                    Some(format!("{} goes only when nothing is left in it: {occupant} is", object.object));
            }
        }
    }
    let stuck = now.iter().filter(|o| o.terminating).max_by_key(|o| !o.held_by.is_empty()).map(|o| {
        let held = if o.held_by.is_empty() {
            String::new()
        } else {
            format!(", held by finalizer {}", o.held_by.join(", "))
        };
        format!("{} is being deleted{held}", o.object)
    });
    wave.waits = stuck.or(occupied).or_else(|| now.first().map(|o| format!("{} is being deleted", o.object)));
    wave
}

fn is_namespace(observed: &Observed) -> bool {
    (&*observed.object.api_version, &*observed.object.kind) == ("v1", "Namespace")
}

fn asks(observed: &Observed) -> String {
    let item = names::item_name(&observed.child, observed.key.as_deref());
    format!(
        "{} ({item}) stays until its deletion is approved: operetta approve, or annotation {}={}",
        observed.object,
        names::APPROVED,
        observed.uid
    )
}
