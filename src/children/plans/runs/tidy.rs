//! What is written about runs that have ended: which children exist since, the record, released Jobs, and what is pruned.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::effects::reference;
use super::super::history::item_id;
use super::super::{RunAction, RunObject, RunRef};
use super::Runs;
use crate::children::origins::ItemId;
use crate::children::target::Item;
use crate::package::plan::OnLoss;
use crate::plan::{self, Member, PlanRun, RECORD};

impl Runs<'_> {
    /// Notes on runs that have ended which items exist since, if a plan restores them when they are lost: an object that is
    /// gone cannot say that it was there.
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
        let created = self.history.created(origins);
        let new: BTreeMap<ItemId, Member> = there
            .filter(|item| !created.contains(item.name.as_str()))
            .map(|item| (item.id(), Member::new(origins.child_id(item.child), item.key.clone())))
            .collect();
        if new.is_empty() {
            return;
        }
        let mut unrecorded = new.clone();
        let rollouts = self.history.rollouts();
        for run in &rollouts {
            let Some(status) = &run.status else { continue };
            for member in &status.applied {
                unrecorded.remove(&origins.in_newest(item_id(member)));
            }
        }
        for run in rollouts.into_iter().filter(|run| run.is_final()) {
            let Some(mut status) = run.status.clone() else { continue };
            status.uncreated.retain(|member| !new.contains_key(&origins.in_newest(item_id(member))));
            if run.has_rolled_out() {
                // The record, or what is observed, has added them to what was rolled out.
                status.applied.extend(std::mem::take(&mut unrecorded).into_values());
            }
            if run.status.as_ref() != Some(&status) {
                self.actions.push(RunAction::store(run, &status, Vec::new()));
            }
        }
    }

    /// Notes what exists, repeats the record on the newest run that has ended, releases Jobs, and prunes.
    pub(super) fn tidy(&mut self) {
        self.note_created();
        if !self.actions.is_empty() {
            return;
        }
        let newest = self.history.runs.iter().rev().find(|run| run.is_final());
        if let Some(run) = newest
            && !self.record.is_empty()
            && !run.annotations.contains_key(RECORD)
            && !run.deleting
        {
            let record = serde_json::to_string(&self.record).unwrap_or_default();
            let patch = json!({"metadata": {"annotations": {RECORD: record}}});
            self.actions.push(RunAction::Change(RunObject::PlanRun, reference(run), Box::new(patch)));
        }
        for run in &self.plans.runs {
            if let Some(status) = &run.status {
                let effects = self.in_world(run, |world| plan::releases(status, world));
                self.actions.extend(effects.iter().filter_map(|effect| self.naming.action(run, effect)));
            }
        }
        for run in plan::prunable(&self.plans.runs, self.plans.now) {
            self.actions.push(RunAction::Delete(RunObject::PlanRun, reference(run)));
        }
        for origin in &self.plans.origins {
            let name = origin["metadata"]["name"].as_str().unwrap_or_default();
            let is_used = |run: &PlanRun| {
                run.status.as_ref().is_some_and(|status| status.origin.as_deref() == Some(name))
            };
            if !self.plans.runs.iter().any(is_used) && origin["metadata"]["deletionTimestamp"].is_null() {
                self.actions.push(RunAction::Delete(RunObject::Origin, RunRef::of(origin)));
            }
        }
    }
}
