//! While a change is refused, the last accepted target is kept up: what is missing of it comes back, and what
//! somebody changed of it is repaired. Only what the change is about waits.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::super::accepted::{Accepted, Origin, there};
use super::super::observed::ObjectRef;
use super::super::target::{Item, Target, target};
use super::{Action, Context, Deciding, Why, names};
use crate::cluster::Class;

/// What the name of an item has at its end that is applied as it was accepted.
pub(super) const AS_ACCEPTED: &str = " as last accepted";
/// How many missing children a message names.
const NAMED: usize = 5;
/// From how many refusals in a row on one counts that may pass by itself.
const LASTING: u32 = 3;

impl Deciding<'_> {
    /// Plans what keeps up the last accepted target. `lapsed` are the positions of items whose change is not made
    /// now.
    pub(super) fn keep_accepted(&mut self, lapsed: &[usize]) {
        let mut record = Accepted::read(self.ctx.instance);
        let there = there(self.ctx.observed);
        let mut missing = record.children.clone();
        missing.retain(|name, _| !there.contains_key(name));
        record.children.extend(there);
        let mut handled: HashSet<ObjectRef> = HashSet::new();
        for (position, item) in self.target.items.iter().enumerate() {
            let Ok(intent) = &item.intent else { continue };
            if !lapsed.contains(&position) {
                handled.insert(intent.object.clone());
            } else if item.observed.is_none() && !item.done && missing.get(&item.name) == Some(&intent.hash) {
                // The change is not about this one.
                missing.remove(&item.name);
                handled.insert(intent.object.clone());
                self.restore(item, Why::Restore);
            }
        }
        let before = self.memory.previous.as_deref().map(Origin::of);
        let mut best = 0;
        for origin in [record.origin.clone(), before].into_iter().flatten() {
            let instance = origin.restored(self.ctx.instance);
            let former =
                target(&Context { instance: &instance, budget: Arc::clone(&self.ctx.budget), ..*self.ctx });
            // What does not render as it was applied is of another origin.
            let renders = same(&former, &record);
            if renders > best {
                best = renders;
                record.origin = Some(origin);
            }
            self.keep_items(&former, &mut missing, &mut handled);
        }
        if best == 0 {
            record.origin = None;
        }
        self.name_missing(&missing);
        self.record = Some(record);
    }

    fn keep_items(
        &mut self,
        former: &Target,
        missing: &mut BTreeMap<String, String>,
        handled: &mut HashSet<ObjectRef>,
    ) {
        for item in &former.items {
            let Ok(intent) = &item.intent else { continue };
            if handled.contains(&intent.object) {
                continue;
            }
            let why = match &item.observed {
                None if !item.done && missing.get(&item.name) == Some(&intent.hash) => Some(Why::Restore),
                Some(live) if live.intent.as_deref() == Some(&intent.hash) && !live.terminating => {
                    handled.insert(intent.object.clone());
                    self.due(item, intent)
                }
                _ => None,
            };
            if let Some(why) = why {
                missing.remove(&item.name);
                handled.insert(intent.object.clone());
                self.restore(item, why);
            }
        }
    }

    /// Applies an item as it was accepted. Its own failures are told from those of the change.
    fn restore(&mut self, item: &Item, why: Why) {
        let Ok(intent) = &item.intent else { return };
        let item = Item { name: format!("{}{AS_ACCEPTED}", item.name), ..item.clone() };
        if !self.refused(&item, intent) {
            let apply = self.apply_of(&item, intent, why);
            self.actions.push(Action::Apply(Box::new(apply)));
        }
    }

    fn name_missing(&mut self, missing: &BTreeMap<String, String>) {
        if missing.is_empty() {
            return;
        }
        let names: Vec<&str> = missing.keys().take(NAMED).map(String::as_str).collect();
        let more = missing.len().saturating_sub(NAMED);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!(
            "missing until a change is accepted: {}{rest} (deleted while the change is refused, and what it was rendered from is not known)",
            names.join(", ")
        );
        let notes =
            if self.notes.stalled.is_empty() { &mut self.notes.waiting } else { &mut self.notes.stalled };
        // Near the front: a message has room for three.
        let at = notes.len().min(1);
        notes.insert(at, ("Missing".into(), message));
    }

    /// Whether a refusal may last, so that what is there is worth a record.
    pub(super) fn is_lasting(&self) -> bool {
        let lasting = |item: &Item| match &item.intent {
            Ok(intent) => super::applies::failure(self.memory, item, intent)
                .is_some_and(|f| f.error.class != Class::Retry || f.count >= LASTING),
            Err(error) => !error.is_waiting(),
        };
        self.target.items.iter().any(lasting) || self.target.open.values().any(|error| !error.is_waiting())
    }

    /// Records the last accepted target on the instance once there is nothing else to do, and takes the record off when a
    /// target has been accepted.
    pub(super) fn keep_record(&mut self) {
        if !self.actions.is_empty() {
            return;
        }
        let there = self.ctx.instance["metadata"]["annotations"][names::ACCEPTED].as_str();
        let wanted = match self.record.take() {
            Some(record) if self.is_lasting() => record.text(),
            _ if self.is_accepted() => None,
            _ => return,
        };
        let is_vain = wanted.is_some() && self.memory.unrecorded == wanted;
        if there != wanted.as_deref() && !is_vain {
            self.actions.push(Action::Record(wanted));
        }
    }

    /// Whether all of the target was applied.
    pub(super) fn is_accepted(&self) -> bool {
        self.target.open.is_empty() && self.target.items.iter().all(Item::is_current)
    }
}

/// How many children a target has just as they were accepted.
fn same(target: &Target, record: &Accepted) -> usize {
    let same = |item: &&Item| {
        item.intent.as_ref().is_ok_and(|intent| record.children.get(&item.name) == Some(&intent.hash))
    };
    target.items.iter().filter(same).count()
}
