//! How a case has ended.

use std::collections::BTreeSet;
use std::time::Duration;

use super::deeds::Deed;
use super::end::End;
use super::faults::Struck;
use super::update::Edit;
use super::view::Seen;
use crate::diag::{Diagnostic, Location};

/// What a case has reached: children that were there, steps of plans that have run, and images of pods, after [`IMAGE`].
pub(crate) type Reached = BTreeSet<String>;
/// The word before an image that pods have used.
pub(crate) const IMAGE: &str = "image ";

/// How a case has ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// The index of the suite and of the case in it.
    pub place: (usize, usize),
    pub failure: Option<Box<Diagnostic>>,
    /// What there was when it failed, in lines.
    pub scene: Vec<String>,
    /// Why it was not played.
    pub skipped: Option<Box<Diagnostic>>,
    /// The time that has passed in the play.
    pub passed: Duration,
    pub reached: Reached,
    /// What managers have done.
    pub deeds: Vec<Deed>,
    /// How many requests managers have sent.
    pub requests: u64,
    /// What has struck.
    pub struck: Vec<Struck>,
    /// What there is at the end.
    pub end: End,
    /// What the file must say instead, if the suite records.
    pub edits: Vec<Edit>,
    /// The instance and its children at the end, if the suite observes.
    pub seen: Option<Seen>,
}

impl Ended {
    /// A case of which nothing is known yet.
    pub(super) fn of(place: (usize, usize)) -> Self {
        Self { place, ..Self::default() }
    }
}

/// Why a play has failed.
pub(super) type Failure = Box<Diagnostic>;

/// A step fails.
pub(super) fn failed(at: &Location, message: impl Into<String>) -> Failure {
    Box::new(Diagnostic::error("test::failed", message.into()).located(at.clone()))
}
