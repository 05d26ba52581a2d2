//! What is to go because nothing wants it any more, and the finalizer that guards what must not be forgotten.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::super::deletion::{self, Unlisted, Wave};
use super::{Action, Deciding, Failure, Item, Memory};
use crate::children::intent::Intent;
use crate::children::names::{self, Stamp};
use crate::children::observed::{ObjectRef, Observed, once};
use crate::cluster::Class;
use crate::package::DeletionPolicy;

impl Deciding<'_> {
    /// Prunes what is not in the target: only once all of the target is applied, and in reverse order. What a
    /// former instance of that name has left behind is pruned as well.
    pub(super) fn leftovers(&mut self) {
        let wanted: HashSet<_> = self
            .target
            .items
            .iter()
            .filter_map(|i| i.intent.as_ref().ok())
            .map(|i| i.object.identity())
            .collect();
        let unwanted = |o: &&Arc<Observed>| {
            !wanted.contains(&o.object.identity()) && (self.ctx.listed)(&o.object.api_version, &o.object.kind)
        };
        let own = self.ctx.observed.iter().filter(|o| o.is_to_go());
        let former = self.ctx.former.iter().filter(|o| deletion::is_leftover(o));
        let leftovers = once(own.chain(former).filter(unwanted));
        let orphans = once(self.ctx.former.iter().filter(|o| o.is_orphaned()).filter(unwanted));
        if leftovers.is_empty() && orphans.is_empty() {
            self.unseen();
            return;
        }
        let applied = self.target.open.is_empty()
            && self.target.items.iter().all(Item::is_current)
            && !self.actions.iter().any(|a| matches!(a, Action::Apply(_)));
        if !applied {
            if let Some(first) = leftovers.iter().find(|o| !self.may_be_wanted(o)) {
                let text = format!("{} is pruned once all else is applied", first.object);
                self.notes.waiting.push(("Pruning".into(), text));
            }
            return;
        }
        let Wave { mut actions, waits, pending, again } = deletion::wave(&leftovers, self.ctx.occupant);
        let hidden = deletion::hold_back(&mut actions, &self.ctx.unlisted_in_order());
        if hidden.is_none() {
            self.unseen();
        }
        self.hold_swinging(&mut actions);
        actions.extend(orphans.into_iter().map(|o| Action::Orphan(Arc::clone(o))));
        for (object, failure) in rest(&mut actions, self.memory, self.now) {
            let note =
                ("DeletionRefused".to_owned(), format!("{object} cannot be deleted: {}", failure.error));
            self.wake(failure.retry_at.saturating_sub(self.now));
            if failure.error.class == Class::Permanent {
                self.notes.stalled.push(note);
            } else {
                self.notes.waiting.push(note);
            }
        }
        self.actions.extend(actions);
        if let Some(waits) = hidden.or(waits) {
            self.notes.waiting.push(("Pruning".into(), waits));
        }
        if let Some(again) = again {
            self.wake(again);
        }
        self.notes.pending = pending;
    }

    /// What was noted while nothing wanted an object says nothing once something wants it again, unless its policy
    /// says the same: else it would be kept, or asked for, by a policy of long ago.
    pub(super) fn stale_marks(&mut self) {
        let mut actions = Vec::new();
        for item in self.target.items.iter().filter(|item| item.is_current()) {
            let (Ok(intent), Some(observed)) = (&item.intent, &item.observed) else { continue };
            let policy = Stamp::read(&intent.hash).policy;
            let noted = observed.noted;
            let is_stale = noted.retained && policy != Some(DeletionPolicy::Retain)
                || noted.pending && policy != Some(DeletionPolicy::Ask);
            if is_stale {
                actions.push(Action::Unmark(Arc::clone(observed)));
            }
        }
        for (object, failure) in rest(&mut actions, self.memory, self.now) {
            let text = format!("the marks of {object} cannot be taken off: {}", failure.error);
            self.notes.waiting.push(("MarksRefused".into(), text));
            self.wake(failure.retry_at.saturating_sub(self.now));
        }
        self.actions.extend(actions);
    }

    /// Whether it belongs to a child of which cannot be told now what it should be. It goes with nobody, so
    /// nobody shall read that it will.
    fn may_be_wanted(&self, observed: &Observed) -> bool {
        let mut unknown = self.target.items.iter().filter(|item| item.intent.is_err());
        let mut open = self.target.open.keys().filter_map(|index| self.ctx.resource.children.get(*index));
        let is_of = |id: &str| *id == *observed.child;
        unknown.any(|item| item.observed.as_ref().is_some_and(|live| live.object == observed.object))
            || open.any(|child| is_of(&child.id) || child.renamed_from.iter().any(|id| is_of(id)))
    }

    /// Of a kind that no child has any more something may be left, and cannot be seen: nobody shall take it for pruned.
    fn unseen(&mut self) {
        let children = &self.ctx.resource.children;
        let is_had =
            |kind: &Unlisted| children.iter().any(|child| child.has_kind(&kind.api_version, &kind.kind));
        for Unlisted { api_version, kind, reason, .. } in
            self.ctx.unlisted.iter().filter(|kind| !is_had(kind))
        {
            let text = format!(
                "whether a {kind} of {api_version}, which the package has no more, is left to prune cannot be told: \
                 {reason}; if none is, take it out of the annotation {} of the CRD {}",
                names::CHILD_KINDS,
                self.ctx.resource.crd_name()
            );
            self.notes.waiting.push(("Pruning".into(), text));
        }
    }

    /// The finalizer stands before the first child that the garbage collector must not take, and only
    /// while there is one.
    pub(super) fn finalizer(&mut self) {
        let has = deletion::has_finalizer(self.ctx.instance);
        let observed = self.ctx.observed.iter().any(|o| !o.owner_reference && o.is_to_go());
        let unowned = |intent: &Intent| intent.body["metadata"].get("ownerReferences").is_none();
        let planned = self.target.items.iter().any(|item| item.intent.as_ref().is_ok_and(unowned));
        if (observed || planned) && !has {
            self.actions.insert(0, Action::AddFinalizer);
        } else if has
            && !observed
            && !planned
            && self.target.open.is_empty()
            && self.target.items.iter().all(Item::is_current)
        {
            self.actions.push(Action::RemoveFinalizer);
        }
    }
}

/// Takes out the deletions that the server has refused and that it is not yet time to try again.
pub(in crate::children) fn rest<'m>(
    actions: &mut Vec<Action>,
    memory: &'m Memory,
    now: Duration,
) -> Vec<(ObjectRef, &'m Failure)> {
    let mut resting = Vec::new();
    actions.retain(|action| {
        let (Action::Delete(o) | Action::Retain(o) | Action::Ask(o) | Action::Orphan(o) | Action::Unmark(o)) =
            action
        else {
            return true;
        };
        let failure = memory.kept.get(&o.object).filter(|f| *f.hash == *o.uid && f.retry_at > now);
        resting.extend(failure.map(|failure| (o.object.clone(), failure)));
        failure.is_none()
    });
    resting
}
