//! The results of dry runs, and which writes they permit.

use std::collections::HashSet;

use super::model::{Action, ActionOutcome, Check, Why};
use crate::api::{CallError, Class};

/// The result of a dry run.
#[derive(Debug, Clone)]
pub enum DryRun {
    /// The server would accept the write.
    Passed,
    /// The result is not known before the apply.
    Unknown,
    /// The server would refuse the change of an immutable field, for this reason. It would create a new object, and the
    /// package permits that: the apply deletes the object.
    Recreate(CallError),
    /// The server would refuse it.
    Refused(CallError),
}

impl DryRun {
    /// The result that a failed call shows.
    ///
    /// # Errors
    /// The server is not available now, which says nothing about the child.
    pub fn of_failure(error: CallError) -> Result<Self, CallError> {
        // A webhook that has side effects does not support dry runs: only the apply shows the result.
        if error.code == 400 && error.message.contains("does not support dry run") {
            return Ok(Self::Passed);
        }
        match error.class {
            // A precondition failed, or another manager owns fields: the apply reads the object live and reports it.
            Class::Conflict => Ok(Self::Unknown),
            Class::Retry if matches!(error.code, 0 | 401 | 429 | 503 | 504) => Err(error),
            Class::Retry | Class::NotFound | Class::Permanent => Ok(Self::Refused(error)),
        }
    }

    /// Whether writes of this shape pass; `None` if that is not known.
    pub fn passes(&self, check: &Check) -> Option<bool> {
        match self {
            Self::Passed => Some(true),
            Self::Refused(_) if check.depends_on.is_empty() => Some(false),
            Self::Refused(_) | Self::Unknown | Self::Recreate(_) => None,
        }
    }
}

/// The results of all dry runs of a change.
#[derive(Debug, Default)]
pub struct DryRuns {
    is_refused: bool,
    is_pending: bool,
    /// Items that may be refused only because others do not exist yet.
    early: Vec<(String, Vec<String>)>,
}

impl DryRuns {
    /// Notes that another instance has the same dry run in flight.
    pub fn wait(&mut self) {
        self.is_pending = true;
    }

    /// Adds a result. Returns an outcome if the result is a refusal that concerns the change.
    pub fn add(&mut self, check: &Check, result: DryRun) -> Option<ActionOutcome> {
        let DryRun::Refused(error) = result else { return None };
        if !check.depends_on.is_empty() && matches!(error.code, 403 | 404) {
            self.early.push((check.item.clone(), check.depends_on.clone()));
            return None;
        }
        self.is_refused = true;
        Some(ActionOutcome::DryRunRefused(Box::new(check.clone()), error))
    }

    /// Whether nothing is written yet, because another instance has the same dry run in flight.
    pub fn is_pending(&self) -> bool {
        self.is_pending && !self.is_refused
    }

    /// The actions that are carried out now.
    pub fn permitted(&self, mut actions: Vec<Action>) -> Vec<Action> {
        if self.is_pending() {
            return Vec::new();
        }
        if self.is_refused {
            // Existing objects are still repaired.
            actions.retain(|action| match action {
                Action::AddFinalizer => false,
                Action::Apply(apply) => !matches!(apply.why, Why::Create | Why::Update),
                _ => true,
            });
            return actions;
        }
        // An item that depends on another waits if that one is applied now. Otherwise the server itself refuses it.
        let early = |item: &str| self.early.iter().find(|(name, _)| name == item);
        let applied: HashSet<String> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Apply(apply) if early(&apply.item).is_none() => Some(apply.item.clone()),
                _ => None,
            })
            .collect();
        actions.retain(|action| {
            let Action::Apply(apply) = action else { return true };
            !early(&apply.item).is_some_and(|(_, others)| others.iter().any(|other| applied.contains(other)))
        });
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(class: Class, code: u16, message: &str) -> CallError {
        CallError::new(class, code, "", message.to_owned())
    }

    #[test]
    fn failed_dry_run_refuses_only_if_the_write_is_at_fault() {
        let of = |class, code, message| DryRun::of_failure(failure(class, code, message));
        assert!(matches!(of(Class::Permanent, 422, "no"), Ok(DryRun::Refused(_))));
        assert!(matches!(of(Class::Retry, 500, "a webhook failed"), Ok(DryRun::Refused(_))));
        assert!(matches!(of(Class::Conflict, 409, "exists"), Ok(DryRun::Unknown)));
        for code in [0, 401, 429, 503, 504] {
            assert!(of(Class::Retry, code, "not now").is_err(), "{code}");
        }
        assert!(matches!(
            of(Class::Permanent, 400, "admission webhook \"w\" does not support dry run"),
            Ok(DryRun::Passed)
        ));
    }
}
