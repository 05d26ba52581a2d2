//! The state of an instance in one word and one sentence, for conditions, Events, `get`, `tree` and `dev`.

use std::fmt::{Display, Write as _};

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
    /// The instance makes no progress by itself.
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
    /// The instance equals its target, and is ready.
    Ready,
    /// The instance is on the way to its target.
    Reconciling,
    /// The instance does not get further by itself.
    Stalled,
    /// A user has paused it.
    Paused,
    /// The instance is being deleted.
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
pub(in crate::children) const MAX_FINDINGS: usize = 3;

pub(in crate::children) fn join<T: Display>(findings: &[T]) -> String {
    join_some(findings, MAX_FINDINGS, "; ")
}

pub(in crate::children) fn join_some<T: Display>(parts: &[T], most: usize, separator: &str) -> String {
    let mut text = parts.iter().take(most).map(T::to_string).collect::<Vec<_>>().join(separator);
    if parts.len() > most {
        let _ = write!(text, "{separator}and {} more", parts.len() - most);
    }
    text
}
