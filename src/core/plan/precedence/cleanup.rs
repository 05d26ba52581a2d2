//! The runs of an instance that is being deleted.

use super::super::progress::{Directive, Ending};
use super::super::run::{Cause, Phase, PlanRun};
use super::super::start::{Start, resumed, started};
use super::protected::SPEC_CHANGED;
use super::{Cleanup, NewRun, Rules, RunWrite, cause_of};
use crate::package::plan::{CleanupFailure, Event};

impl<'a> Rules<'a> {
    /// Whether the instance has another spec, or its package another revision, than when a run started.
    fn has_changed_since(&self, run: &PlanRun) -> bool {
        let name = run.status.as_ref().and_then(|status| status.origin.as_deref());
        let origin = self.situation.origins.iter().find(|origin| Some(origin.name) == name);
        let newest = &self.situation.newest;
        origin.is_some_and(|origin| (origin.spec, origin.revision) != (newest.spec, newest.revision))
    }

    /// Ends every run but the cleanup, which then runs.
    pub(super) fn delete(&mut self) {
        let situation = self.situation;
        let plan =
            self.triggered(|event| matches!(event, Event::Deleted)).filter(|_| !situation.skip_cleanup);
        let message = "the instance is being deleted";
        let mut ending = false;
        for run in self.open() {
            if cause_of(run, situation.runs) == Cause::Cleanup && plan.is_some() {
                continue;
            }
            if run.phase() != Phase::Running {
                self.end(run, Phase::Cancelled, "InstanceDeleted", message);
                continue;
            }
            ending = true;
            let phase = Phase::Cancelled;
            let end = Ending { phase, reason: "InstanceDeleted", message: message.to_owned() };
            let directive = if plan.is_some() { Directive::Settle(end) } else { Directive::Abandon(end) };
            self.agenda.active.push((run.name.clone(), directive));
        }
        // A run that was being settled for another reason is in the list already.
        ending |= !self.agenda.active.is_empty();
        let Some(plan) = plan else {
            self.agenda.cleanup = if ending { Cleanup::Active } else { Cleanup::Done };
            return;
        };
        // The newest cleanup counts. An active one goes first, and a retry that was refused does not count.
        let is_cleanup = |run: &&&PlanRun| {
            // Nor does one that was deleted, or changed, before it had begun.
            let is_none = run.status.as_ref().is_some_and(|status| {
                status.reason == "NotRetryable"
                    || ["Deleted", SPEC_CHANGED].contains(&&*status.reason) && status.started_at.is_none()
            });
            cause_of(run, situation.runs) == Cause::Cleanup && !is_none
        };
        let mut cleanups: Vec<&'a PlanRun> = self.runs.iter().filter(is_cleanup).copied().collect();
        cleanups.sort_by_key(|run| run.phase() == Phase::Running);
        let newest = cleanups.last().copied();
        self.agenda.cleanup = Cleanup::Active;
        let Some(run) = newest else {
            if ending {
                return;
            }
            let new = NewRun { plan: plan.name.clone(), cause: Cause::Cleanup, ..self.numbered() };
            if !situation.namespace_terminating {
                self.propose(RunWrite::Create(new));
            } else if situation.has_memory {
                self.propose(RunWrite::StartInner(new));
            } else {
                // Nothing has run.
                self.agenda.cleanup = Cleanup::Done;
            }
            return;
        };
        match run.phase() {
            Phase::Succeeded => self.agenda.cleanup = Cleanup::Done,
            Phase::Failed | Phase::Cancelled | Phase::Superseded => {
                let holds = match plan.on_cleanup_failure {
                    Some(CleanupFailure::Hold) => true,
                    Some(CleanupFailure::Skip) => false,
                    None => !situation.namespace_terminating,
                };
                let why = run.status.as_ref().map(|status| status.message.clone()).unwrap_or_default();
                if !holds {
                    self.agenda.cleanup = Cleanup::Done;
                } else if !ending
                    && !situation.namespace_terminating
                    && self.has_changed_since(run)
                    && self.unprotected().is_none()
                {
                    let new = NewRun { plan: plan.name.clone(), cause: Cause::Cleanup, ..self.numbered() };
                    self.propose(RunWrite::Create(new));
                } else {
                    self.agenda.cleanup = Cleanup::Held(run.name.clone(), why);
                }
            }
            // It is being ended.
            Phase::Running if self.ended.contains(run.name.as_str()) => {}
            Phase::Running if !run.is_taken() => self.take(run),
            Phase::Running => self.agenda.active.push((run.name.clone(), Directive::Continue)),
            Phase::Pending if run.is_new() => {
                // The manager would create the first one itself, so nobody gains anything by forging it.
                let is_first = cleanups.len() == 1 && run.spec.plan == plan.name;
                let is_plain = run.spec.retry_of.is_none() && run.spec.params.is_null();
                if is_first && is_plain || self.is_verified(run) {
                    self.admit(run);
                }
            }
            Phase::Pending | Phase::Interrupted if ending => self.wait(run, "other runs are being ended"),
            Phase::Pending | Phase::Interrupted => {
                if !self.begin(run) {
                    return;
                }
                let status = match (&run.status, &run.spec.retry_of) {
                    (Some(status), _) if run.phase() == Phase::Interrupted => resumed(status),
                    (_, Some(_)) => match self.retried(run) {
                        Some(status) => status,
                        None => return,
                    },
                    _ => started(
                        run,
                        Start { plans: vec![plan.name.clone()], ..self.start(run) },
                        situation.now,
                    ),
                };
                self.write(run, status);
            }
        }
    }
}
