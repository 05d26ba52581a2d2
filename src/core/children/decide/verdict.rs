//! The state of an instance in one word and one sentence, for conditions, Events, `get`, `tree` and `dev`.

use std::fmt::{Display, Write as _};

use super::{Action, Context};
use crate::children::ChildError;
use crate::children::findings::{Finding, Severity};
use crate::children::schedule::Block;
use crate::children::target::{Item, Target};
use crate::template::EvalError;

/// The state of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The cluster equals the target, and all of it is ready.
    Ready {
        /// The number of children.
        children: usize,
    },
    /// All of the target is applied, and `readyWhen` holds. Children need not be ready.
    Enough {
        /// The number of children.
        children: usize,
    },
    /// The target is being reached.
    Reconciling {
        /// The reason, in camel case.
        reason: String,
        /// What is awaited, with the name of the child.
        message: String,
    },
    /// It makes no progress by itself.
    Stalled {
        /// The reason, in camel case.
        reason: String,
        /// Names the child, the place and what to do.
        message: String,
    },
    /// Its package is not active, so it is not evaluated.
    NotLoaded {
        /// Names the package and why.
        message: String,
    },
    /// A user has paused it.
    Paused {
        /// What would be written.
        message: String,
    },
    /// The instance is being deleted.
    Deleting {
        /// What is awaited, with the name of the child.
        message: String,
    },
}

/// The state of an instance, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It equals its target, and is ready.
    Ready,
    /// On the way to its target.
    Reconciling,
    /// It does not get further by itself.
    Stalled,
    /// A user has paused it.
    Paused,
    /// It is being deleted.
    Deleting,
}

/// A [`Verdict`] in the words that all outputs share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The state in one word.
    pub health: Health,
    /// The status of the condition Ready; `None` stands for Unknown.
    pub ready: Option<bool>,
    /// The reason, in camel case.
    pub reason: String,
    /// The message, one sentence.
    pub message: String,
}

impl Verdict {
    /// The summary that all outputs share.
    pub fn summary(&self) -> Summary {
        let (health, ready, reason, message) = match self {
            Self::Ready { children: 0 } => {
                (Health::Ready, Some(true), "Ready", "it has no children".to_owned())
            }
            Self::Ready { children: 1 } => {
                (Health::Ready, Some(true), "Ready", "its child is applied and ready".to_owned())
            }
            Self::Ready { children } => {
                (Health::Ready, Some(true), "Ready", format!("all {children} children are applied and ready"))
            }
            Self::Enough { children: 0 } => {
                (Health::Ready, Some(true), "Ready", "readyWhen is met".to_owned())
            }
            Self::Enough { children: 1 } => {
                (Health::Ready, Some(true), "Ready", "readyWhen is met, its child is applied".to_owned())
            }
            Self::Enough { children } => (
                Health::Ready,
                Some(true),
                "Ready",
                format!("readyWhen is met, {children} children are applied"),
            ),
            Self::Reconciling { reason, message } => {
                (Health::Reconciling, Some(false), reason.as_str(), message.clone())
            }
            Self::Stalled { reason, message } => {
                (Health::Stalled, Some(false), reason.as_str(), message.clone())
            }
            Self::NotLoaded { message } => (Health::Stalled, None, NOT_LOADED, message.clone()),
            Self::Paused { message } => (Health::Paused, Some(false), "Paused", message.clone()),
            Self::Deleting { message } => (Health::Deleting, Some(false), "Deleting", message.clone()),
        };
        Summary { health, ready, reason: reason.to_owned(), message }
    }
}

/// The reason of the conditions of an instance whose package is not active.
pub const NOT_LOADED: &str = "PackageNotLoaded";

/// How many findings a message contains.
const MAX_FINDINGS: usize = 3;

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

pub(in crate::children) fn join<T: Display>(findings: &[T]) -> String {
    join_some(findings, MAX_FINDINGS, "; ")
}

fn join_some<T: Display>(parts: &[T], most: usize, separator: &str) -> String {
    let mut text = parts.iter().take(most).map(T::to_string).collect::<Vec<_>>().join(separator);
    if parts.len() > most {
        let _ = write!(text, "{separator}and {} more", parts.len() - most);
    }
    text
}

fn is_not_yet(error: &EvalError) -> bool {
    matches!(error, EvalError::Undefined(_) | EvalError::NotYet(_) | EvalError::Unknown { .. })
}

fn first_write(actions: &[Action]) -> Option<String> {
    actions.iter().find_map(|action| match action {
        Action::Apply(apply) => Some(format!("applies {}", apply.item)),
        Action::Delete(observed) => Some(format!("deletes {}", observed.object)),
        _ => None,
    })
}
