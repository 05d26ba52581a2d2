//! What the status and the conditions of an instance say about its runs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::history::is_exclusive;
use super::Runs;
use super::reasons::Reasons;
use crate::children::model::{Block, Finding};
use crate::plan::{self, Cause, Phase, PlanRun, RunWrite};

impl Runs<'_> {
    /// Adds what the status and the conditions say about runs.
    pub(super) fn report(&mut self, reasons: &Reasons) {
        let plans = &self.ctx.origin.resource.plans;
        let active = self.past.history.exclusive(plans);
        let started: Vec<&PlanRun> =
            self.past.history.runs.iter().rev().filter(|run| run.has_started()).copied().collect();
        let last = started.iter().find(|run| is_exclusive(run, plans)).copied();
        self.outcome.summary.0 = active.or(last).map(announcement);
        self.outcome.summary.1 = json!(plan::history(self.plans.runs.iter().chain(&self.plans.strangers)));
        for (name, message) in &self.plans.unreadable {
            let (run, reason) = (name.clone(), "Unreadable".to_owned());
            self.outcome.findings.push(Finding::RunFailed {
                run,
                reason,
                message: message.clone(),
                is_undone: true,
            });
        }
        // A plan that the package no longer has cannot be run again.
        let is_known = |run: &PlanRun| {
            run.cause() == Cause::Rollout || plans.iter().any(|plan| plan.name == run.spec.plan)
        };
        let last_rollout = started.iter().find(|run| run.cause() == Cause::Rollout).copied();
        let mut undone: Vec<&PlanRun> = [last_rollout, last].into_iter().flatten().collect();
        undone.retain(|run| {
            let leaves_undone = run.status.as_ref().is_some_and(|status| reasons.leaves_undone(run, status));
            let is_undone = leaves_undone && self.affects_ready(run);
            active.is_none() && run.phase() == Phase::Failed && is_known(run) && is_undone
        });
        undone.dedup_by_key(|run| &run.name);
        let mut failed: Vec<(&PlanRun, bool)> = undone.iter().map(|run| (*run, true)).collect();
        // Only the newest run of each plan counts; the newest failure is named first.
        let mut seen = BTreeSet::new();
        for run in started.iter().filter(|run| run.cause() != Cause::Rollout && is_known(run)) {
            let is_told = || undone.iter().any(|undone| undone.name == run.name);
            // A person who deletes a PlanRun does not want it reported any more.
            let is_told = || is_told() || !run.has_object();
            if seen.insert(&run.spec.plan) && run.phase() == Phase::Failed && !is_told() {
                failed.push((run, false));
            }
        }
        for (run, is_undone) in failed {
            let Some(status) = &run.status else { continue };
            self.outcome.findings.push(Finding::RunFailed {
                run: format!("plan {} (run {})", run.plans().join(", "), run.name),
                reason: status.reason.clone(),
                message: status.message.clone(),
                is_undone,
            });
        }
        if active.is_none()
            && reasons.is_rollout_needed
            && let Some(run) = last_rollout.filter(|run| run.phase() == Phase::Cancelled)
        {
            let kind = self.ctx.origin.resource.kind.kind.to_lowercase();
            let instance = format!("{kind}/{}", self.ctx.origin.name());
            let (run, retry) = (run.name.clone(), if run.has_object() { run.name.clone() } else { instance });
            self.outcome.findings.push(Finding::RolloutCancelled { run, retry });
        }
        let absent = self.target.newest.iter().map(|member| &member.name);
        let absent: Vec<String> =
            absent.filter(|name| self.ctx.origins.memory(*name).absent).cloned().collect();
        match active {
            None if !absent.is_empty() && !plans.is_empty() => {
                self.outcome.findings.push(Finding::StaysDeleted { items: absent });
            }
            // The run does not affect Ready, but what it has deleted and not applied again does.
            Some(run) if !self.affects_ready(run) => {
                let block = Block::Run(format!("the run {}", run.name));
                let waiting = |item| Finding::Waiting { item, block: block.clone() };
                self.outcome.findings.extend(absent.into_iter().map(waiting));
            }
            _ => {}
        }
    }

    /// Says what is not written because the API server has refused it.
    pub(super) fn report_refused(&mut self, write: &RunWrite) {
        let Some((name, subject)) = write.subject(&self.plans.runs) else { return };
        let Some((error, rest)) = self.state.refused_run(&subject, self.now) else { return };
        self.outcome.wake = Some(self.outcome.wake.map_or(rest, |known| known.min(rest)));
        let (message, affects_ready) = if let RunWrite::Create(new) = write {
            let plan = self.ctx.origin.resource.plans.iter().find(|plan| plan.name == new.plan);
            let is_rollout = matches!(new.cause, Cause::Rollout | Cause::Cleanup);
            let message = format!("its PlanRun cannot be created: {error}");
            (message, is_rollout || plan.is_none_or(|plan| plan.affects_ready))
        } else {
            let message = format!("its PlanRun cannot be written: {error}");
            (message, self.run(name).is_some_and(|run| self.affects_ready(run)))
        };
        let (run, step) = (name.to_owned(), String::new());
        self.outcome.findings.push(Finding::RunWaits { run, step, message, affects_ready });
    }
}

/// The value of `status.plan` for a run.
pub(super) fn announcement(run: &PlanRun) -> Value {
    let mut shown = json!(plan::Summary::of(run));
    shown["uid"] = run.uid.as_str().into();
    let status = run.status.as_ref();
    let open = status.iter().flat_map(|status| &status.steps).rfind(|step| !step.phase.is_final());
    if let Some(step) = open {
        shown["step"] = step.path.as_str().into();
    }
    shown
}
