//! Derives the verdict of a decision from its findings.

use std::fmt::Write as _;

use crate::children::model::{
    Action, Block, ChildError, Context, Finding, Item, MAX_FINDINGS, Severity, Target, Verdict, join,
    join_some,
};
use crate::template::EvalError;

/// How many writes the message of a paused instance names.
const MAX_PAUSED_WRITES: usize = 8;

/// Derives the verdict.
pub(super) fn verdict(
    ctx: &Context<'_>,
    target: &Target,
    actions: &[Action],
    findings: &[Finding],
) -> Verdict {
    let of = |severity: Severity| -> Vec<&Finding> {
        let all = findings.iter().filter(|finding| finding.severity() == severity);
        all.filter(|finding| !finding.is_about_missing()).collect()
    };
    let (mut stalled, mut waiting) = (of(Severity::Stalled), of(Severity::Waiting));
    stalled.dedup_by(|later, earlier| later.is_same_refusal(earlier));
    let absent: Vec<&Finding> =
        waiting.iter().filter(|finding| is_absent(target, finding)).copied().collect();
    // What the current step waits for explains why all else waits for the run.
    if waiting.iter().any(|finding| matches!(finding, Finding::RunWaits { .. })) {
        waiting.retain(|finding| !finding.waits_for_run());
    }
    if let Some(missing) = findings.iter().find(|finding| finding.is_about_missing()) {
        let all = if stalled.is_empty() { &mut waiting } else { &mut stalled };
        // Near the front, because a message contains few.
        all.insert(all.len().min(1), missing);
    }
    if let Some(reason) = stalled.first().map(|first| first.reason().to_owned()) {
        stalled.extend(absent);
        return Verdict::Stalled { reason, message: join(&words(&stalled)) };
    }
    if let Some(message) = first_write(actions) {
        return Verdict::Reconciling { reason: "Applying".into(), message };
    }
    if let Some(first) = waiting.first() {
        return Verdict::Reconciling { reason: first.reason().to_owned(), message: join(&words(&waiting)) };
    }
    // Items that are missing only because of a ref that does not affect Ready do not count.
    let is_beside = |item: &&Item| match &item.desired {
        Err(ChildError::Eval(EvalError::Unknown { path, .. })) if item.observed.is_none() => {
            target.refs.problem_of(path).is_some_and(|(_, problem)| !problem.affects_ready)
        }
        _ => false,
    };
    let items: Vec<&Item> = target.items.iter().filter(|item| !is_beside(item)).collect();
    let unready = items.iter().filter(|item| item.ready.is_err());
    let unready: Vec<_> = unready.map(|item| format!("{}: {}", item.name, item.unready())).collect();
    let not_ready = || Verdict::Reconciling { reason: "ChildrenNotReady".into(), message: join(&unready) };
    let children = items.len();
    let Some(ready_when) = &ctx.origin.resource.ready_when else {
        return if unready.is_empty() { Verdict::Ready { children } } else { not_ready() };
    };
    ctx.budget.about("readyWhen");
    let pending = |message| Verdict::Reconciling { reason: "ReadyWhen".into(), message };
    match ctx.origin.package.engine.truthy(ready_when, &target.scope) {
        Ok(true) => Verdict::Enough { children },
        // A value that is not there yet may come by itself; other errors do not pass.
        Err(error) if !is_not_yet(&error) => {
            Verdict::Stalled { reason: "ReadyWhenFailed".into(), message: format!("readyWhen: {error}") }
        }
        _ if !unready.is_empty() => not_ready(),
        Err(error) => pending(format!("readyWhen has no value yet: {error}")),
        Ok(_) => pending("readyWhen is not met yet".into()),
    }
}

/// Whether a child that does not exist waits to be created: that is said whatever else stalls the instance.
fn is_absent(target: &Target, finding: &Finding) -> bool {
    let Finding::Waiting { item, .. } = finding else { return false };
    target.items.iter().any(|known| known.name == *item && known.observed.is_none())
}

/// The findings in words. Children that wait for the same run are in one sentence.
fn words(findings: &[&Finding]) -> Vec<String> {
    let waits = |finding: &&Finding| match finding {
        Finding::Waiting { item, block: Block::Run(run) } => Some((run.clone(), item.clone())),
        _ => None,
    };
    let mut words = Vec::new();
    for finding in findings {
        let Some((run, first)) = waits(finding) else {
            words.push(finding.to_string());
            continue;
        };
        let same = findings.iter().filter_map(waits).filter(|(other, _)| *other == run);
        let items: Vec<String> = same.map(|(_, item)| item).collect();
        match &items[..] {
            [_] => words.push(finding.to_string()),
            [head, ..] if *head == first => {
                words.push(format!("{} wait for {run}", join_some(&items, MAX_FINDINGS, ", ")));
            }
            _ => {}
        }
    }
    words
}

/// The verdict of a paused instance: what it would write, and what else stalls it.
pub(super) fn paused(findings: &[Finding]) -> Verdict {
    let mut message = "paused: nothing is written until it is resumed".to_owned();
    let writes: Vec<_> = findings.iter().filter_map(Finding::paused_write).collect();
    if !writes.is_empty() {
        let _ = write!(message, "; then it would {}", join_some(&writes, MAX_PAUSED_WRITES, ", "));
    }
    let stalled: Vec<_> = findings.iter().filter(|f| f.severity() == Severity::Stalled).collect();
    if !stalled.is_empty() {
        let _ = write!(message, "; {}", join(&stalled));
    }
    Verdict::Paused { message }
}

fn is_not_yet(error: &EvalError) -> bool {
    matches!(error, EvalError::Undefined(_) | EvalError::NotYet(_) | EvalError::Unknown { .. })
}

fn first_write(actions: &[Action]) -> Option<String> {
    actions.iter().find_map(|action| match action {
        Action::Apply(apply) => Some(format!("applies {}", apply.item)),
        Action::Delete(observed) | Action::ForceDelete(observed) => {
            Some(format!("deletes {}", observed.object))
        }
        _ => None,
    })
}
