//! What blocks a write.

use std::time::Duration;

/// What blocks a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Another child comes first. Names it.
    Dependency(String),
    /// A run comes to it later, or must end first. Names the run and its step.
    Run(String),
    /// The instance is paused.
    Paused,
    /// The item is lost, and its `onLoss` has that value.
    Lost(Loss),
    /// `maxUnavailable` members are unavailable. Names the first, and why it is; `None` if no number is known.
    MaxUnavailable(Option<String>),
    /// Other children are written first, because all of them together are large.
    Size,
    /// A dry run of the change was refused.
    DryRun,
    /// The server has refused it. It is tried again after this time.
    Backoff(Duration),
    /// Another manager keeps changing the same fields. They are restored after this time.
    Conflict(Duration),
    /// The object was applied again because of an unexplained change. It may be again after this time.
    Recheck(Duration),
    /// Its desired object keeps changing while the instance stays as it is. It may change after this time.
    Oscillation(Duration),
}

/// What becomes of a lost item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// The plan of that name restores it.
    Plan(String),
    /// `onLoss` of the child has no value that decides it.
    Undecided {
        /// Why `onLoss` decides nothing.
        why: String,
        /// Whether what `onLoss` reads may become known.
        is_unknown: bool,
    },
}

impl Block {
    /// Whether the last accepted state of the child is maintained meanwhile.
    pub(in crate::children) fn keeps_accepted(&self) -> bool {
        matches!(self, Self::Dependency(_) | Self::DryRun | Self::Backoff(_))
    }

    /// Whether the block is reported by a finding of its own. The other blocks follow from one: a refusal, a
    /// conflict of managers.
    pub(in crate::children) fn is_reported(&self) -> bool {
        matches!(
            self,
            Self::Dependency(_)
                | Self::Run(_)
                | Self::Lost(_)
                | Self::MaxUnavailable(_)
                | Self::Size
                | Self::Oscillation(_)
        )
    }

    /// Whether the child would be applied but for its own refusals and limits.
    pub(in crate::children) fn comes_after_refusals(&self) -> bool {
        matches!(self, Self::Backoff(_) | Self::MaxUnavailable(_) | Self::Oscillation(_))
    }

    /// When the block ends by itself.
    pub(in crate::children) fn ends_after(&self) -> Option<Duration> {
        match self {
            Self::Backoff(rest) | Self::Conflict(rest) | Self::Recheck(rest) | Self::Oscillation(rest) => {
                Some(*rest)
            }
            Self::Dependency(_)
            | Self::Run(_)
            | Self::Paused
            | Self::Lost(_)
            | Self::MaxUnavailable(_)
            | Self::Size
            | Self::DryRun => None,
        }
    }
}
