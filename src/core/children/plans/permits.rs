//! What the steps of runs permit to be applied and deleted.

use std::sync::Arc;

use super::history::item_id;
use super::run_order::Kept;
use crate::children::model::{Action, Context, Observed, Target};
use crate::children::prune;
use crate::plan::{self, Verb};

/// Permits the items that steps may apply: they wait for nothing, lost or not.
pub(super) fn permit_applies(target: &mut Target, kept: &mut Kept, permits: &[plan::Permit]) {
    for permit in permits.iter().filter(|permit| permit.verb == Verb::Apply) {
        let name = item_id(&permit.member).to_string();
        if let Some(item) = target.items.iter_mut().find(|item| item.name == name) {
            item.lost = None;
        }
        if permit.is_named {
            kept.named.insert(name.clone());
        }
        kept.permitted.insert(name);
    }
}

/// The deletions that steps permit, and the objects among them that wait for approval.
pub(super) fn deletions(ctx: &Context<'_>, permits: &[plan::Permit]) -> (Vec<Action>, Vec<Arc<Observed>>) {
    let (mut actions, mut asks) = (Vec::new(), Vec::new());
    for permit in permits.iter().filter(|permit| permit.verb != Verb::Apply) {
        let force = permit.verb == Verb::ForceDelete;
        let id = item_id(&permit.member);
        for observed in &ctx.snapshot.observed {
            let number = ctx.origins.number(&observed.child);
            let is_it = observed.is_made_by_us()
                && number.is_some_and(|number| ctx.origins.child_id(number) == id.child())
                && observed.key.as_deref() == id.key()
                && (!observed.terminating || force && !observed.goes_at_once);
            if is_it && ctx.snapshot.awaits_approval(observed) {
                actions.extend(prune::to_ask(observed));
                asks.push(Arc::clone(observed));
            } else if is_it && force {
                actions.push(Action::ForceDelete(Arc::clone(observed)));
            } else if is_it {
                actions.push(Action::Delete(Arc::clone(observed)));
            }
        }
    }
    (actions, asks)
}
