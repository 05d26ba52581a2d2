//! How the instance stands, in one word and one sentence: what its conditions, its Events, `get`, `tree` and `dev` say.

use std::fmt::Write as _;

use super::super::target::Target;
use super::{Action, Context, Notes, Verdict, unready};
use crate::template::EvalError;

/// How an instance stands, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// All is as it should be.
    Ready,
    /// Under way.
    Reconciling,
    /// Nothing will change until somebody does something.
    Stalled,
    /// A person has stopped it.
    Paused,
    /// It is being deleted.
    Deleting,
}

/// A [`Verdict`] in the words that all who tell it share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// In one word.
    pub health: Health,
    /// The condition Ready; `None`: Unknown.
    pub ready: Option<bool>,
    /// Camel case.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

impl Verdict {
    /// What is told of it, everywhere.
    pub fn summary(&self) -> Summary {
        let (health, ready, reason, message) = match self {
            Self::Ready { children: 1 } => {
                (Health::Ready, Some(true), "Ready", "its child is applied and ready".to_owned())
            }
            Self::Ready { children } => {
                (Health::Ready, Some(true), "Ready", format!("all {children} children are applied and ready"))
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
            Self::Paused => (
                Health::Paused,
                Some(false),
                "Paused",
                "paused: nothing is written until it is resumed".to_owned(),
            ),
            Self::Deleting { message } => (Health::Deleting, Some(false), "Deleting", message.clone()),
        };
        Summary { health, ready, reason: reason.to_owned(), message }
    }
}

/// The reason of the conditions of an instance whose package is not active.
pub const NOT_LOADED: &str = "PackageNotLoaded";

pub(super) fn verdict(ctx: &Context<'_>, target: &Target, actions: &[Action], notes: &Notes) -> Verdict {
    let join = |notes: &[(String, String)]| {
        let mut text = notes.iter().take(3).map(|(_, m)| m.as_str()).collect::<Vec<_>>().join("; ");
        if notes.len() > 3 {
            let _ = write!(text, "; and {} more", notes.len() - 3);
        }
        text
    };
    if let Some((reason, _)) = notes.stalled.first() {
        return Verdict::Stalled { reason: reason.clone(), message: join(&notes.stalled) };
    }
    if let Some(message) = first_write(actions) {
        return Verdict::Reconciling { reason: "Applying".into(), message };
    }
    if let Some((reason, _)) = notes.waiting.first() {
        return Verdict::Reconciling { reason: reason.clone(), message: join(&notes.waiting) };
    }
    let unready_items: Vec<(String, String)> = target
        .items
        .iter()
        .filter(|i| i.ready.is_err())
        .map(|i| (String::new(), format!("{}: {}", i.name, unready(i))))
        .collect();
    if let Some(ready_when) = &ctx.resource.ready_when {
        ctx.budget.about("readyWhen");
        return match ctx.package.engine.truthy(ready_when, &target.scope) {
            Ok(true) => Verdict::Enough { children: target.items.len() },
            // What is not there yet is no mistake; of the rest nothing comes by waiting.
            Err(error) if !is_not_yet(&error) => {
                Verdict::Stalled { reason: "ReadyWhenFailed".into(), message: format!("readyWhen: {error}") }
            }
            _ if !unready_items.is_empty() => {
                Verdict::Reconciling { reason: "ChildrenNotReady".into(), message: join(&unready_items) }
            }
            Err(error) => Verdict::Reconciling {
                reason: "ReadyWhen".into(),
                message: format!("readyWhen has no value yet: {error}"),
            },
            Ok(_) => Verdict::Reconciling {
                reason: "ReadyWhen".into(),
                message: "readyWhen is not met yet".into(),
            },
        };
    }
    if unready_items.is_empty() {
        Verdict::Ready { children: target.items.len() }
    } else {
        Verdict::Reconciling { reason: "ChildrenNotReady".into(), message: join(&unready_items) }
    }
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
