//! What a case says that could not be otherwise, as its play shows.

use super::super::absence::Claim;
use super::super::ended::Failure;
use super::super::suite::Case;
use super::super::vacuous::without_expectation;
use super::Play;
use crate::diag::Diagnostic;

/// What to do about an invariant that reads nothing in a case.
const MAY_BE_ABSENT: &str = "correct the name; if it may be absent, write `... is undefined or ...`, or move it to the cases that have it";
/// What to do about an absence that says nothing, if no name is like it.
const NEVER_THERE: &str =
    "correct the name, or remove it; if it can be there, a case of the package must have or expect it";

impl Play {
    /// Fails if something that the case says is absent was never there, an `always` has read nothing, a `break` has struck nothing, or
    /// nothing is expected after the last change.
    pub(super) fn vacuous(&self, case: &Case) -> Result<(), Failure> {
        let mut found: Vec<Diagnostic> = self.server.read(|api| {
            let watcher = self.watcher();
            let claims = case.claims.iter().filter(|claim| !watcher.was_there(&claim.absence));
            let undecided = watcher.undecided(api).into_iter().map(|(invariant, why)| {
                let check = &invariant.expression;
                let message = format!("always: {}: it reads nothing in the whole case: {why}", check.text);
                let error = Diagnostic::error("test::vacuous", message).located(check.location.clone());
                error.help(MAY_BE_ABSENT)
            });
            claims.map(Claim::mistake).chain(undecided).collect()
        });
        found.extend(self.faults.unstruck().into_iter().map(|at| {
            let message = "this `break` has struck nothing";
            let help =
                "put it before the step that sends such a request or runs such a command, or remove it";
            Diagnostic::error("test::vacuous", message).located(at).help(help)
        }));
        found.extend(without_expectation(case));
        let mut found = found.into_iter();
        let Some(mut first) = found.next() else { return Ok(()) };
        let help = first.help.take().unwrap_or_else(|| NEVER_THERE.to_owned());
        let lines: Vec<String> = std::iter::once(help).chain(found.map(|one| one.to_string())).collect();
        first.help = Some(lines.join("\n"));
        Err(Box::new(first))
    }
}
