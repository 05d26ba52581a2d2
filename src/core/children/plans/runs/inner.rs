//! Runs that only the memory of an instance has: in a namespace that is being deleted no PlanRun can be created.

use serde::Deserialize;

use super::Runs;
use crate::plan::{NewRun, PlanRun, RunAction, RunSpec, RunStatus, Start, started};

impl Runs<'_> {
    /// Whether the namespace of the instance is being deleted. A manager that has just started knows it from such a run.
    pub(super) fn is_namespace_terminating(&self) -> bool {
        self.state.is_namespace_terminating() || self.plans.runs.iter().any(|run| run.is_inner)
    }

    /// Starts a run in the memory.
    pub(super) fn start_inner(&self, new: &NewRun) -> RunAction {
        let (of, plan) = (self.instance.of.clone(), new.plan.clone());
        let run = PlanRun {
            name: new.name.clone(),
            uid: format!("{}-{}", self.ctx.origin.uid(), new.name),
            created: format!("{:.0}", self.plans.now),
            is_inner: true,
            spec: RunSpec { of, plan, ..RunSpec::default() },
            ..PlanRun::default()
        };
        let start = Start {
            cause: new.cause,
            plans: vec![new.plan.clone()],
            revision: Some(self.past.current.revision.clone()),
            exclusive: Some(true),
            interruptible: Some(false),
            ..Start::default()
        };
        let status = started(&run, start, self.plans.now);
        self.plans.remember(&self.plans.state.memory.with_inner(&run, &status))
    }

    /// Lets the memory store the state of such a run, if an action does. Nothing else has it.
    pub(super) fn remember_inner(&mut self) -> bool {
        for action in &mut self.outcome.actions {
            if let RunAction::Store { run, status, memory, .. } = action
                && let Some(known) =
                    self.plans.runs.iter().find(|known| known.uid == run.uid && known.is_inner)
                && let Ok(next) = RunStatus::deserialize(&**status)
            {
                let whole = self.plans.state.memory.with_inner(known, &next);
                *memory = Some(Box::new(self.plans.state_write(&whole)));
                return true;
            }
        }
        false
    }
}
