//! How a case has ended.

use std::time::Duration;

use super::end::End;
use super::faults::Disturbance;
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
    /// How many writes the managers have sent.
    pub writes: u64,
    /// What has struck, with the request that it has struck.
    pub struck: Vec<(Disturbance, String)>,
    /// What there is at the end.
    pub end: End,
}
