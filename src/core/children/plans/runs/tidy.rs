//! What is written about runs that have ended: which children were created since, the release of PlanRuns and
//! Jobs, and pruning.

use std::collections::BTreeMap;

use serde_json::json;

use super::Runs;
use crate::children::model::{Item, ItemId};
use crate::children::names;
use crate::children::plans::history::item_id;
use crate::children::plans::secrets::drop_unneeded;
use crate::package::plan::OnLoss;
use crate::plan::{self, Member, PlanRun, RUN_FINALIZER, RunAction, RunObject, RunRef, reference};

impl Runs<'_> {
    /// Notes in the memory which items have been created since the rollouts ended, if a plan restores them
    /// when they are lost: an object that is gone does not show that it existed.
    fn note_created(&mut self) {
        let origins = self.ctx.origins;
        let is_there = |item: &&Item| {
            let live = item.observed.as_ref().filter(|live| live.is_made_by_us() && !live.terminating);
            item.desired.is_ok()
                && live.is_some()
                && !matches!(self.ctx.child(item).on_loss, OnLoss::Recreate)
        };
        let mut there = self.target.items.iter().filter(is_there).peekable();
        if there.peek().is_none() {
            return;
        }
        let new: BTreeMap<ItemId, Member> = there
            .filter(|item| !origins.memory(&item.name).existed)
            .map(|item| (item.id(), Member::new(origins.child_id(item.child), item.key.clone())))
            .collect();
        if new.is_empty() {
            return;
        }
        let mut unrecorded = new.clone();
        unrecorded.retain(|item, _| !origins.memory(item).is_reached);
        let mut changed = Vec::new();
        for run in self.past.history.rollouts().into_iter().filter(|run| run.is_final()) {
            let Some(mut status) = run.status.clone() else { continue };
            status.uncreated.retain(|member| !new.contains_key(&origins.in_newest(item_id(member))));
            if run.has_rolled_out() {
                // The facts of plans, or observations, have added these members to what was rolled out.
                status.applied.extend(std::mem::take(&mut unrecorded).into_values());
            }
            if run.status.as_ref() != Some(&status) {
                changed.push((run.uid.clone(), status));
            }
        }
        if !changed.is_empty() {
            let memory = self.plans.state.memory.with_states(changed);
            self.outcome.actions.push(self.plans.remember(&memory));
        }
    }

    /// Annotates an instance that has a memory, so that a missing memory is known to be lost.
    fn mark_instance(&mut self) {
        let annotations = &self.ctx.snapshot.instance["metadata"]["annotations"];
        let uid = self.ctx.origin.uid();
        if self.plans.state.object.is_some() && annotations[names::STATE] != uid {
            let mark = vec![(names::STATE.to_owned(), Some(uid.to_owned()))];
            self.outcome.actions.push(RunAction::Annotate(mark));
        }
    }

    /// Deletes PlanRuns that are history, also while others are active.
    pub(super) fn prune(&mut self) {
        for run in plan::prunable(self.plans.runs.iter().chain(&self.plans.strangers), self.plans.now) {
            self.outcome.actions.push(RunAction::Delete(RunObject::PlanRun, reference(run)));
        }
    }

    /// Notes what exists, releases PlanRuns and Jobs of runs that have ended, and deletes the origins that nothing names.
    pub(super) fn tidy(&mut self) {
        self.mark_instance();
        self.note_created();
        if !self.outcome.actions.is_empty() {
            return;
        }
        let all = self.plans.runs.iter().chain(&self.plans.strangers);
        for run in all.filter(|run| run.is_final() && run.has_object() && run.has_finalizer()) {
            self.outcome.actions.push(released(run));
        }
        for run in self.plans.runs.iter().filter(|run| run.has_object()) {
            if let Some(status) = &run.status {
                let releases = self.with_inputs(run, |inputs| plan::releases(status, inputs));
                self.outcome.actions.extend(releases);
            }
        }
        self.hold_refused();
        // Jobs are released before secret outputs are dropped, because the steps name the Jobs.
        if self.outcome.actions.is_empty() {
            self.outcome.actions.extend(drop_unneeded(self.plans));
        }
        for origin in &self.plans.origins {
            let name = origin["metadata"]["name"].as_str().unwrap_or_default();
            let is_used = |run: &PlanRun| {
                run.status.as_ref().is_some_and(|status| status.origin.as_deref() == Some(name))
            };
            // The next run begins with the present one, and its start may have been refused after that was stored.
            let is_current = self.past.current.name == name;
            let is_kept = is_current || self.plans.runs.iter().any(is_used);
            if !is_kept && origin["metadata"]["deletionTimestamp"].is_null() {
                self.outcome.actions.push(RunAction::Delete(RunObject::Origin, RunRef::of(origin)));
            }
        }
    }
}

/// Removes the finalizer from a PlanRun.
pub fn released(run: &PlanRun) -> RunAction {
    let rest: Vec<&String> = run.finalizers.iter().filter(|name| *name != RUN_FINALIZER).collect();
    let patch = json!({"metadata": {"finalizers": rest}});
    RunAction::Change(RunObject::PlanRun, reference(run), Box::new(patch))
}
