//! How a case has ended.

use std::time::Duration;

use super::watcher::Reached;
use crate::diag::Diagnostic;

/// How a case has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The index of the suite and of the case in it.
    pub place: (usize, usize),
    pub failure: Option<Box<Diagnostic>>,
    /// The time that has passed in the play.
    pub passed: Duration,
    pub reached: Reached,
}
