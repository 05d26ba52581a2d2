//! Steps that wait until people approve.

use std::collections::BTreeSet;

use super::super::eval::string;
use super::super::run::{Approval, ApprovalDecision, Cause, short};
use super::step::Acted;
use super::{APPROVAL, Advancer, At, Failure};
use crate::package::plan::{Action, Step};

/// The users whose approvals a step has.
#[derive(Default)]
struct Given {
    /// The users whose approvals count, each once.
    counted: BTreeSet<String>,
    /// The users whose approvals do not count, each with the reason.
    others: BTreeSet<String>,
}

impl Advancer<'_> {
    pub(super) fn approve(&mut self, step: &Step, path: &str, at: &At<'_>, expired: bool) -> Acted {
        let Action::Approve { message, count, not_requester, service_accounts, groups } = &step.action else {
            return Acted::done();
        };
        if self.state(path).is_none_or(|state| state.asked.is_none()) {
            let scope = self.scope(step, path, at);
            match string(self.inputs.engine, message, &scope, "approve.message") {
                Ok(question) => {
                    let asked = self.run.spec.approvals.len();
                    let state = self.state_mut(path);
                    state.message = short(&question);
                    state.asked = Some(asked);
                    state.groups.clone_from(groups);
                }
                Err(error) => return self.no_value(step, path, at, expired, error),
            }
        }
        if *not_requester && self.run.spec.requested_by.is_none() && self.stored.cause == Cause::Request {
            let message = "the PlanRun does not name its requester (spec.requestedBy), so the approval of another user \
                           cannot be checked: request the run again";
            return Acted::Failed(Failure::new(path, "RequesterUnknown", message));
        }
        let state = self.state(path);
        let asked = state.and_then(|state| state.asked).unwrap_or_default();
        let question = state.map(|state| state.message.clone()).unwrap_or_default();
        let last = |path: &str| path.rsplit('/').next().map(str::to_owned);
        let carried = self.stored.approvals.iter().filter(|answer| {
            answer.message.as_deref() == Some(&*question)
                && last(&answer.step) == last(path)
                && answer.satisfies(groups)
        });
        let own =
            self.status.counted(self.run).filter(|(index, answer)| *index >= asked && answer.step == path);
        let answers: Vec<&Approval> = carried.chain(own.map(|(_, answer)| answer)).collect();
        if let Some(answer) = answers.iter().find(|answer| answer.verdict == ApprovalDecision::Reject) {
            let message = format!("{} has rejected: {question}", answer.by);
            return Acted::Failed(Failure::new(path, "Rejected", message));
        }
        let mut given = Given::default();
        for answer in answers {
            let is_requester = self.run.spec.requested_by.as_ref() == Some(&answer.by);
            if *not_requester && is_requester {
                given.others.insert(format!("{} (the requester)", answer.by));
            } else if answer.is_by_account() && !service_accounts {
                given.others.insert(format!("{} (a ServiceAccount)", answer.by));
            } else {
                given.counted.insert(answer.by.clone());
            }
        }
        let unchecked =
            self.status.ignored(asked).map(|by| format!("{by} (not checked by an admission policy)"));
        given.others.extend(unchecked);
        if u32::try_from(given.counted.len()).unwrap_or(u32::MAX) >= (*count).max(1) {
            return Acted::done();
        }
        if expired {
            return Acted::Failed(self.timed_out(step, path, at, &question));
        }
        let mut message = format!("{question}{}", progress(&given, *count, groups));
        if let Some(problem) = self.inputs.protection.problem(self.inputs.now) {
            message = format!("{message}, but answers do not count now: {problem}");
        }
        self.wait(path, APPROVAL, message);
        Acted::Waiting
    }
}

/// The approvals so far, for messages: ` (1 of 2 approvals: ann, not counted: eve (the requester))`.
fn progress(given: &Given, count: u32, groups: &[String]) -> String {
    let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let mut parts = Vec::new();
    if count > 1 {
        let names =
            if given.counted.is_empty() { String::new() } else { format!(": {}", list(&given.counted)) };
        parts.push(format!("{} of {count} approvals{names}", given.counted.len()));
    }
    if !groups.is_empty() {
        parts.push(format!("by members of {}", groups.join(" or ")));
    }
    if !given.others.is_empty() {
        parts.push(format!("not counted: {}", list(&given.others)));
    }
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}
