//! What waits, or ends, while the API server does not check who requests and answers runs.

use super::super::run::{Phase, PlanRun};
use super::Rules;
use crate::package::plan::{Event, Plan};

/// The reason of a run that was changed after it was admitted.
pub(super) const SPEC_CHANGED: &str = "SpecChanged";

impl<'a> Rules<'a> {
    /// Why new runs and answers do not count now.
    pub(super) fn unprotected(&mut self) -> Option<String> {
        let protection = self.situation.protection;
        if let Some(wake) = protection.wake(self.situation.now) {
            self.wake_after(wake);
        }
        protection.problem(self.situation.now)
    }

    /// Whether a new run may be admitted; else it waits, or ends. The annotations of a new run, which say that the manager
    /// has created it, are checked by the same policy, so they count no more than the request.
    pub(super) fn is_verified(&mut self, run: &'a PlanRun) -> bool {
        if let Some(problem) = self.unprotected() {
            self.wait(run, format!("{problem}; until then no new run is admitted"));
            return false;
        }
        let is_covered = self.situation.protection.covers(&run.created);
        if !is_covered {
            let message = "it was created while an admission policy of Operetta was not in force, so nobody has checked who \
                           requests it: request it again";
            self.end(run, Phase::Failed, "NotVerified", message);
        }
        is_covered
    }

    /// Ends a run that requests something else than what was admitted; `false` if it does not. The CRD keeps most of `spec` as it is, and
    /// the admission policy its parameters. A run that an earlier version has admitted is as it is.
    pub(super) fn end_changed(&mut self, run: &'a PlanRun) -> bool {
        let admitted = run.status.as_ref().and_then(|status| status.request_digest.as_ref());
        let is_compared = run.has_object() && run.left_out.is_none();
        let is_changed = is_compared && admitted.is_some_and(|admitted| *admitted != run.spec.digest());
        if is_changed {
            let message = "its spec was changed after it was admitted, while an admission policy of Operetta was not in force: \
                           request it again";
            self.stop(run, Phase::Failed, SPEC_CHANGED, message);
        }
        is_changed
    }

    /// Records the answers to runs that are not active; [`super::super::advance()`] does for the others.
    pub(super) fn note_answers(&mut self) {
        for run in self.open() {
            let noted = run.noted(self.situation.protection, self.situation.now);
            if let Some(noted) = noted.filter(|_| run.phase() != Phase::Running) {
                self.write(run, noted);
            }
        }
    }

    /// Why a run cannot be requested: its plan belongs to the deletion of the instance.
    pub(super) fn not_requestable(&self, run: &PlanRun, plan: &Plan) -> Option<String> {
        let is_cleanup = plan.triggers.iter().any(|trigger| matches!(trigger.event, Event::Deleted));
        let is_retry = self.situation.deleting && run.spec.retry_of.is_some();
        (is_cleanup && !is_retry).then(|| {
            format!("plan `{}` runs when the instance is deleted: it cannot be requested", plan.name)
        })
    }
}
