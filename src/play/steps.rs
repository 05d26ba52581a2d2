//! What steps are in every play, on the embedded API and on a real control plane.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::ended::{Failure, failed};
use super::expect::Problem;
use super::suite::{Action, Case, Check, Expect, Invariant, Step};
use crate::api::{ApiKind, CallError};
use crate::children::RIGHTS_MISSING;
use crate::diag::{Diagnostic, Location};
use crate::package::test_file::Partial;
use crate::plan::{Of, PlanRun, approval_patch, run_request};

/// The field manager of the steps.
pub(super) const FIELD_MANAGER: &str = "operetta-test";
/// The reasons of conditions that say that a right is missing.
const REFUSED: [&str; 3] = ["Forbidden", "RefForbidden", RIGHTS_MISSING];

/// The expressions of cases: their invariants, and what their steps expect.
pub(super) fn checks<'c>(cases: impl IntoIterator<Item = &'c Case>) -> impl Iterator<Item = &'c Check> {
    cases.into_iter().flat_map(|case| {
        let expected = case.steps.iter().flat_map(|step| match &step.action {
            Action::Expect(expect) => &expect.that[..],
            _ => &[],
        });
        case.invariants.iter().map(|invariant| &invariant.expression).chain(expected)
    })
}

/// The kinds of which expressions of cases read the names of deleted objects.
pub(super) fn tracked<'c>(cases: impl IntoIterator<Item = &'c Case>) -> BTreeSet<String> {
    let gone = checks(cases).filter(|check| check.reads.contains("deleted"));
    gone.flat_map(|check| check.kinds.iter().cloned()).collect()
}

/// Whether a right is to be missing: steps expect a condition with a reason that says so.
pub(super) fn expect_refusal(steps: &[Step]) -> bool {
    let mut expectations = steps.iter().filter_map(|step| match &step.action {
        Action::Expect(expect) => Some(&**expect),
        _ => None,
    });
    expectations.any(names_refusal)
}

fn names_refusal(expect: &Expect) -> bool {
    let children = expect.children.iter().map(|(_, partial)| partial);
    let objects = expect.objects.iter().map(|(.., partial)| partial);
    let parts = expect.instance.iter().chain(children).chain(objects).filter_map(|partial| match partial {
        Partial::Part(part) => Some(part),
        Partial::Absent(_) | Partial::Count(_) => None,
    });
    let mut parts = parts.chain(&expect.runs).chain(&expect.events);
    let is_quoted = |text: &str, reason: &str| {
        ["'", "\""].iter().any(|quote| text.contains(&format!("{quote}{reason}{quote}")))
    };
    parts.any(|part| has_refusal(&part.value.value))
        || expect.that.iter().any(|check| REFUSED.iter().any(|reason| is_quoted(&check.text, reason)))
}

fn has_refusal(value: &Value) -> bool {
    match value {
        Value::String(text) => REFUSED.contains(&text.as_str()),
        Value::Array(items) => items.iter().any(has_refusal),
        Value::Object(fields) => fields.values().any(has_refusal),
        _ => false,
    }
}

/// The request for a run of a plan of an instance.
pub(super) fn request(
    kind: &ApiKind,
    (namespace, name): (&str, &str),
    (plan, params, user): (&str, Option<&Value>, &str),
) -> Value {
    let of = Of {
        api_version: kind.api_version(),
        kind: kind.kind.clone(),
        resource: kind.plural.clone(),
        name: name.to_owned(),
    };
    run_request(&of, namespace, json!({"plan": plan, "params": params, "requestedBy": user}))
}

/// Whether a run of a plan of an instance asks.
pub(super) fn asks(run: &Value, plan: &str, of: &str) -> bool {
    run["spec"]["plan"] == plan && run["spec"]["of"]["name"] == of && question(run).is_some()
}

/// The patch by which a user approves the first question of a run.
pub(super) fn approval(run: &Value, user: &str) -> Value {
    approval_patch(run, &json!({"step": question(run), "verdict": "Approve", "by": user}))
}

/// The path of the step of a run that asks.
fn question(run: &Value) -> Option<String> {
    let run = PlanRun::parse(run).ok()?;
    run.questions().first().map(|step| step.path.clone())
}

/// Compares what the API server says to a step with what the step says that it must refuse.
pub(super) fn judge(
    done: Result<(), CallError>,
    refused: Option<&str>,
    at: &Location,
) -> Result<(), Failure> {
    // What tests write is no secret.
    match (done.map_err(|error| error.about(false)), refused) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(text)) => Err(failed(at, format!("the API server accepts it; expected: {text}"))),
        (Err(error), None) => Err(failed(at, format!("the API server refuses it: {error}"))),
        (Err(error), Some(text)) if error.to_string().contains(text) || error.message.contains(text) => {
            Ok(())
        }
        (Err(error), Some(text)) => {
            Err(failed(at, format!("the API server refuses it, but not for {text:?}: {error}")))
        }
    }
}

/// An invariant did not hold. `when` follows the reason.
pub(super) fn violation(invariant: &Invariant, why: &str, when: &str) -> Failure {
    let word = if invariant.is_never { "never" } else { "always" };
    let message = format!("{word}: {}: {why}{when}", invariant.expression.text);
    Box::new(Diagnostic::error("test::invariant", message).located(invariant.expression.location.clone()))
}

/// An expectation does not hold.
pub(super) fn unmet(message: String, problems: &[Problem<'_>], at: &Location) -> Failure {
    let lines: Vec<String> = problems.iter().flat_map(Problem::lines).collect();
    Box::new(Diagnostic::error("test::expect", message).located(at.clone()).help(lines.join("\n")))
}
