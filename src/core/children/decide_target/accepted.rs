//! While a change is refused, the last accepted target is maintained: its missing children are restored, and
//! its drift is repaired. Only the children that the change concerns wait.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::work::Work;
use crate::api::ObjectRef;
use crate::children::accepted::{AcceptedTarget, annotation, there};
use crate::children::accepted_key::AcceptedKey;
use crate::children::apply::failure;
use crate::children::desired::target;
use crate::children::model::{
    AS_ACCEPTED, Action, Context, Difference, Drift, Failure, Finding, InstanceInput, Item, ItemId, Origin,
    ReconcileState, Target, Why,
};
use crate::children::write_order;

impl Work {
    /// Restores and repairs the last accepted target where a change is not made. Returns the record of it, or
    /// `None` while there is no key to verify records with. `unchanged`: the positions of items that keep
    /// what they had.
    pub(super) fn maintain_accepted(
        &mut self,
        ctx: &Context<'_>,
        target_now: &Target,
        unchanged: &HashSet<usize>,
        at: (&ReconcileState, Duration),
    ) -> Option<AcceptedTarget> {
        let key = &ctx.snapshot.accepted_key;
        self.needs.accepted_key = !key.is_usable();
        if let AcceptedKey::Unreadable(why) = key {
            self.findings.push(Finding::RecordUnknown { message: why.to_string() });
        }
        let mut record = AcceptedTarget::read(&ctx.snapshot.instance, key);
        let there = there(&ctx.snapshot.observed);
        let mut missing = record.children.clone();
        let is_absent = |name: &str| ctx.origins.memory(&ctx.origins.in_newest(ItemId::named(name))).absent;
        missing.retain(|name, _| !there.contains_key(name) && !is_absent(name));
        record.children.extend(there);
        let mut handled: HashSet<ObjectRef> = HashSet::new();
        for (position, item) in target_now.items.iter().enumerate() {
            let Ok(desired) = &item.desired else { continue };
            if !unchanged.contains(&position) {
                handled.insert(desired.object.clone());
            } else if item.observed.is_none() && !item.done && missing.get(&item.name) == Some(&desired.hash)
            {
                // The refused change does not concern this item.
                missing.remove(&item.name);
                handled.insert(desired.object.clone());
                self.restore(ctx, target_now, item, Why::Restore, at);
            }
        }
        let mut maintain = |origin: Origin<'_>| {
            let origins = ctx.origins.only(origin);
            let earlier_target = target(&Context { origins: &origins, origin, ..ctx.clone() });
            for item in &earlier_target.items {
                self.maintain(ctx, &earlier_target, item, &mut missing, &mut handled, at);
            }
            earlier_target
        };
        let before = ctx.snapshot.previous.as_ref().map(InstanceInput::of);
        let mut inputs: Vec<InstanceInput> = record.origin.take().into_iter().chain(before).collect();
        inputs.dedup();
        let mut best = 0;
        for input in inputs {
            let instance = input.restored(&ctx.snapshot.instance);
            // The input that renders the most children as they were applied is taken; if it renders none,
            // their origin is unknown.
            let renders = same(&maintain(Origin { instance: &instance, ..ctx.origin }), &record);
            if renders > best {
                best = renders;
                record.origin = Some(input);
            }
        }
        for origin in ctx.origins.earlier() {
            maintain(origin);
        }
        if !missing.is_empty() {
            self.findings.push(Finding::Missing { items: missing.into_keys().collect() });
        }
        key.is_usable().then_some(record)
    }

    /// Restores or repairs an item of the last accepted target.
    fn maintain(
        &mut self,
        ctx: &Context<'_>,
        target: &Target,
        item: &Item,
        missing: &mut BTreeMap<String, String>,
        handled: &mut HashSet<ObjectRef>,
        at: (&ReconcileState, Duration),
    ) {
        let Ok(desired) = &item.desired else { return };
        if handled.contains(&desired.object) {
            return;
        }
        let why = match item.difference(at.0) {
            Some(Difference::Missing) if missing.get(&item.name) == Some(&desired.hash) => Why::Restore,
            Some(Difference::Drifted(drift)) => {
                handled.insert(desired.object.clone());
                self.report_conflict(item, at);
                if let Some(block) = write_order::repair_block(item, drift, at.0, at.1) {
                    return self.wake(block.ends_after());
                }
                if drift == Drift::FieldsLost { Why::Repair } else { Why::Recheck }
            }
            Some(Difference::Current) if item.observed.is_some() => {
                handled.insert(desired.object.clone());
                return self.report_conflict(item, at);
            }
            _ => return,
        };
        missing.remove(&item.name);
        handled.insert(desired.object.clone());
        self.restore(ctx, target, item, why, at);
    }

    /// Applies an item as it was accepted. Its failures are kept under another name than those of the change.
    fn restore(
        &mut self,
        ctx: &Context<'_>,
        target: &Target,
        item: &Item,
        why: Why,
        at: (&ReconcileState, Duration),
    ) {
        let Ok(desired) = &item.desired else { return };
        let item = Item { name: format!("{}{AS_ACCEPTED}", item.name), ..item.clone() };
        let failure = failure(ctx, target, &item, at.0);
        if let Some(failure) = failure {
            self.findings.push(Finding::refused(ctx, target, &item, desired, failure));
        }
        match failure.and_then(|failure| failure.rest(at.1)) {
            Some(rest) => self.wake(Some(rest)),
            None => self.apply(ctx, target, &item, desired, why, at),
        }
    }

    /// Records the last accepted target on the instance once there is nothing else to do, and removes the record when a
    /// target has been accepted.
    pub(super) fn record_accepted(
        &mut self,
        ctx: &Context<'_>,
        target: &Target,
        record: Option<AcceptedTarget>,
        state: &ReconcileState,
    ) {
        if !self.actions.is_empty() {
            return;
        }
        let key = &ctx.snapshot.accepted_key;
        let annotation = annotation(&ctx.snapshot.instance);
        let wanted = match record {
            Some(record) if is_lasting(ctx, target, state) => record.text(),
            _ if target.is_applied() => None,
            _ => return,
        };
        let is_recorded = match (&wanted, annotation) {
            (Some(record), Some(annotation)) => key.open(annotation).as_ref() == Some(record),
            (wanted, annotation) => wanted.is_none() && annotation.is_none(),
        };
        let sealed = wanted.and_then(|record| key.seal(&record));
        let is_refused = sealed.as_deref().is_some_and(|record| state.is_unrecorded(record));
        if !is_recorded && !is_refused {
            self.actions.push(Action::Record(sealed));
        }
    }
}

/// Whether a refusal may last, so that the state is recorded.
fn is_lasting(ctx: &Context<'_>, target: &Target, state: &ReconcileState) -> bool {
    let lasting = |item: &Item| match &item.desired {
        Ok(_) => failure(ctx, target, item, state).is_some_and(Failure::is_lasting),
        Err(error) => !error.is_waiting(),
    };
    target.items.iter().any(lasting) || target.open.values().any(|error| !error.is_waiting())
}

/// How many children of a target are the same as accepted.
fn same(target: &Target, record: &AcceptedTarget) -> usize {
    let same = |item: &&Item| {
        item.desired.as_ref().is_ok_and(|desired| record.children.get(&item.name) == Some(&desired.hash))
    };
    target.items.iter().filter(same).count()
}
