//! Answers to approve steps, as the manager has seen them: when each came, and whether it counts.

use jiff::Timestamp;

use super::protection::Protection;
use super::run::{Approval, PlanRun, RunStatus, SeenApproval, short};

/// What the user name of every `ServiceAccount` begins with.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Why answers do not count that a run had when it was seen first.
const UNCHECKED: &str = "the run was created while an admission policy of Operetta was not in force";

/// Records the answers that are new. They never count if the API server did not check who gave them: now, or, if the run is seen
/// first, when it was created.
pub fn note_answers(run: &PlanRun, status: &mut RunStatus, protection: &Protection, now: Timestamp) {
    let is_new = run.status.is_none();
    if protection.is_awaited() && !is_new {
        return;
    }
    let is_unchecked = is_new && !protection.covers(&run.created);
    let problem = protection.problem(now).or_else(|| is_unchecked.then(|| UNCHECKED.to_owned()));
    let ignored = problem.map(|problem| short(&problem));
    let new = run.spec.approvals.iter().skip(status.answers.len());
    let seen = new.map(|answer| SeenApproval {
        by: answer.by.clone(),
        at: now.to_string(),
        ignored: ignored.clone(),
    });
    status.answers.extend(seen.collect::<Vec<_>>());
}

impl PlanRun {
    /// Its state with the answers that are new; `None` if there are none, or no manager has seen the run yet.
    pub fn noted(&self, protection: &Protection, now: Timestamp) -> Option<RunStatus> {
        let known = self.status.as_ref().filter(|known| known.answers.len() < self.spec.approvals.len())?;
        let mut status = known.clone();
        note_answers(self, &mut status, protection, now);
        (status != *known).then_some(status)
    }
}

impl RunStatus {
    /// The answers of a run that were recorded, with their positions; without those that never count.
    pub fn counted<'r>(&self, run: &'r PlanRun) -> impl Iterator<Item = (usize, &'r Approval)> {
        let answers = run.spec.approvals.iter().zip(&self.answers).enumerate();
        answers.filter(|(_, (_, seen))| seen.ignored.is_none()).map(|(index, (answer, _))| (index, answer))
    }

    /// The users whose recorded answers never count.
    pub fn ignored(&self, asked: usize) -> impl Iterator<Item = &str> {
        self.answers.iter().skip(asked).filter(|seen| seen.ignored.is_some()).map(|seen| seen.by.as_str())
    }
}

impl Approval {
    /// Whether a `ServiceAccount` answers. Whoever may create pods of a namespace can act as any of its accounts.
    pub fn is_by_account(&self) -> bool {
        self.by.starts_with(SERVICE_ACCOUNT)
    }

    /// Whether an approval that another run was given was checked at least as strictly as a step with these groups asks.
    pub(super) fn satisfies(&self, groups: &[String]) -> bool {
        groups.is_empty() || !self.groups.is_empty() && self.groups.iter().all(|group| groups.contains(group))
    }
}
