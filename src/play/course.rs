//! What is played: a case or a part of it, from where, and under which schedule.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use operetta_embedded::Api;
use serde_json::Value;

use super::disturbance::Disturbance;
use super::end::End;
use super::ended::Reached;
use super::suite::{Case, Step, Suite};
use super::watcher::Remembered;
use crate::package::Package;

/// Which steps of a case are played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Whole,
    /// The steps before the cases of the file.
    Before,
    /// The others, from where those have ended, with a manager that starts there.
    After,
}

/// Where the steps before each case of a file have ended.
pub(super) struct Start {
    pub api: Mutex<Api>,
    /// The bindings that grant rights in namespaces.
    pub bindings: Vec<Value>,
    pub passed: Duration,
    pub packages: Vec<Arc<Package>>,
    pub remembered: Remembered,
    pub reached: Reached,
}

/// What is played.
#[derive(Clone, Copy)]
pub(super) struct Course<'a> {
    pub suites: &'a [Suite],
    pub place: (usize, usize),
    pub part: Part,
    /// Where the part begins, if that is not the beginning.
    pub start: Option<&'a Start>,
    /// With a schedule the play goes on until nothing changes.
    pub schedule: Option<&'a [Disturbance]>,
    /// The end without disturbance, if it is known.
    pub end: Option<&'a End>,
    /// Whether it is noted who decided what managers do.
    pub traced: bool,
}

impl<'a> Course<'a> {
    /// A whole case without disturbance.
    pub(super) fn whole(suites: &'a [Suite], place: (usize, usize)) -> Self {
        Self { suites, place, part: Part::Whole, start: None, schedule: None, end: None, traced: false }
    }

    /// A case without disturbance, from where the steps before the cases have ended if that is known.
    pub(super) fn of(suites: &'a [Suite], place: (usize, usize), starts: &'a [Option<Start>]) -> Self {
        let start = starts[place.0].as_ref();
        Self { start, part: start.map_or(Part::Whole, |_| Part::After), ..Self::whole(suites, place) }
    }

    pub(super) fn case(&self) -> &'a Case {
        &self.suites[self.place.0].cases[self.place.1]
    }

    pub(super) fn steps(&self) -> &'a [Step] {
        let case = self.case();
        match self.part {
            Part::Whole => &case.steps,
            Part::Before => &case.steps[..case.before],
            Part::After => &case.steps[case.before..],
        }
    }
}
