//! Plays cases under schedules of disturbances: each must end as without them. A schedule under which a case fails is made as
//! short as it can be. What is played and found depends on the seed and the number of schedules alone, not on threads or speed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::case;
use super::course::{Course, Part, Start};
use super::deeds::Deed;
use super::disturbance::Disturbance;
use super::ended::Ended;
use super::schedules::{Base, Schedules};
use super::story::{Story, failure};
use super::suite::Suite;
use super::{side_by_side, starts};

/// How many schedules are played until failures are counted.
const ROUND: usize = 16;

/// What bounds an exploration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub schedules: usize,
    /// How many failures end it.
    pub failures: usize,
    pub time: Option<Duration>,
    pub seed: u64,
    pub threads: usize,
}

/// What an exploration has found.
#[derive(Debug)]
pub(crate) struct Explored {
    /// How many schedules were played.
    pub played: usize,
    /// The stories of the schedules that fail.
    pub stories: Vec<Story>,
}

/// The suites with where the steps before their cases have ended.
struct Plays<'a> {
    suites: &'a [Suite],
    starts: Vec<Option<Start>>,
}

impl Plays<'_> {
    fn course(&self, place: (usize, usize), part: Part) -> Course<'_> {
        let start = self.starts[place.0].as_ref().filter(|_| part == Part::After);
        Course { part, start, schedule: Some(&[]), ..Course::whole(self.suites, place) }
    }

    fn disturbed(&self, base: &Base, schedule: &[Disturbance], traced: bool) -> Ended {
        let course = self.course(base.place, base.part);
        case::play(Course { schedule: Some(schedule), end: Some(&base.end), traced, ..course })
    }

    /// Leaves out what the failure does not need, and tells what happens then.
    fn shrink(&self, base: &Base, mut schedule: Vec<Disturbance>) -> Story {
        let mut index = 0;
        while schedule.len() > 1 && index < schedule.len() {
            let mut shorter = schedule.clone();
            shorter.remove(index);
            if failure(&self.disturbed(base, &shorter, false), &base.end).is_some() {
                schedule = shorter;
            } else {
                index += 1;
            }
        }
        let ended = self.disturbed(base, &schedule, true);
        Story::new(self.suites, base, schedule, &ended)
    }
}

/// Explores the selected cases.
pub(crate) fn explore(suites: &[Suite], selected: &[(usize, usize)], limits: Limits) -> Explored {
    let used: BTreeSet<usize> = selected.iter().map(|place| place.0).collect();
    let has_steps = |suite: &Suite| suite.cases.iter().any(|case| case.before > 0);
    let plays = Plays { suites, starts: starts(suites, selected, limits.threads, has_steps) };
    let mut parts = Vec::new();
    for &suite in &used {
        let cases = selected.iter().filter(|place| place.0 == suite);
        if plays.starts[suite].is_some() {
            parts.push(((suite, 0), Part::Before));
            parts.extend(cases.map(|&place| (place, Part::After)));
        } else {
            parts.extend(cases.map(|&place| (place, Part::Whole)));
        }
    }
    let bases = side_by_side(limits.threads, parts.len(), |index| {
        let (place, part) = parts[index];
        Base::new(place, part, case::play(Course { traced: true, ..plays.course(place, part) }))
    });
    let mut explored = Explored { played: 0, stories: Vec::new() };
    let mut sound = Vec::new();
    for base in bases {
        match base {
            Ok(base) => sound.push(base),
            Err(ended) => explored.stories.push(Story::undisturbed(&ended)),
        }
    }
    let Some(mut schedules) = Schedules::new(sound, limits.seed) else { return explored };
    let started = Instant::now();
    let is_over = || limits.time.is_some_and(|time| started.elapsed() >= time);
    let mut failing = Vec::new();
    let mut left = limits.schedules;
    while left > 0 && failing.len() < limits.failures && !is_over() {
        let count = ROUND.min(left);
        left -= count;
        let round: Vec<_> = (0..count).map(|_| schedules.choose()).collect();
        let ends = side_by_side(limits.threads, count, |index| {
            let (base, schedule) = &round[index];
            (!is_over()).then(|| plays.disturbed(schedules.base(*base), schedule, false))
        });
        for ((base, schedule), ended) in round.into_iter().zip(ends) {
            let Some(ended) = ended else { continue };
            explored.played += 1;
            if failure(&ended, &schedules.base(base).end).is_some() {
                failing.push((base, schedule));
            } else {
                schedules.learn(base, &schedule, &ended);
            }
        }
    }
    failing.truncate(limits.failures);
    let stories = side_by_side(limits.threads, failing.len(), |index| {
        let (base, schedule) = &failing[index];
        plays.shrink(schedules.base(*base), schedule.clone())
    });
    explored.stories.extend(stories);
    explored
}

/// Plays one schedule of a case again. Returns its story if it fails.
pub(crate) fn replay(
    suites: &[Suite],
    place: (usize, usize),
    part: Part,
    schedule: &[Disturbance],
) -> Option<Story> {
    first_that_fails(suites, place, part, |_| vec![schedule.to_vec()])
}

/// Plays schedules of a case, which `choose` makes from what is done without disturbance. Returns the story of the first that fails.
pub(super) fn first_that_fails(
    suites: &[Suite],
    place: (usize, usize),
    part: Part,
    choose: impl FnOnce(&[Deed]) -> Vec<Vec<Disturbance>>,
) -> Option<Story> {
    let starts = (0..suites.len())
        .map(|suite| (part == Part::After && suite == place.0).then(|| case::start(suites, suite)).flatten());
    let plays = Plays { suites, starts: starts.collect() };
    let base = match Base::new(place, part, case::play(plays.course(place, part))) {
        Ok(base) => base,
        Err(ended) => return Some(Story::undisturbed(&ended)),
    };
    choose(&base.deeds).into_iter().find_map(|schedule| {
        let ended = plays.disturbed(&base, &schedule, true);
        failure(&ended, &base.end)?;
        Some(Story::new(suites, &base, schedule, &ended))
    })
}
