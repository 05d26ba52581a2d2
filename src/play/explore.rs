//! Plays cases under schedules of disturbances: each must end as without them. A schedule under which a case fails is made as
//! short as it can be.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::case;
use super::end::{self, End};
use super::ended::Ended;
use super::faults::{Disturbance, What};
use super::suite::Suite;

/// How many disturbances a random schedule has at most.
const MOST: usize = 3;
/// How many failures end the exploration.
const FAILURES: usize = 5;

/// What bounds an exploration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub schedules: usize,
    pub time: Option<Duration>,
    pub seed: u64,
    pub threads: usize,
}

/// A schedule under which a case fails, as short as it can be.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub place: (usize, usize),
    pub schedule: Vec<Disturbance>,
    /// What has struck, with the request that it has struck.
    pub struck: Vec<(Disturbance, String)>,
    pub failure: String,
}

/// A case without disturbance.
struct Undisturbed {
    place: (usize, usize),
    writes: u64,
    end: End,
}

/// Why a play counts as failed.
fn failure(ended: &Ended, undisturbed: &End) -> Option<String> {
    if let Some(failure) = &ended.failure {
        return Some(failure.to_string());
    }
    let differences = end::differences(undisturbed, &ended.end);
    (!differences.is_empty()).then(|| format!("the end differs:\n{}", differences.join("\n")))
}

/// Explores the selected cases. Returns how many schedules were played, and the stories of those that fail.
pub(crate) fn explore(suites: &[Suite], selected: &[(usize, usize)], limits: Limits) -> (usize, Vec<Story>) {
    let mut stories = Vec::new();
    let mut all = Vec::new();
    for &place in selected {
        let ended = case::play(suites, place, Some(&[]));
        match ended.failure {
            Some(failure) => stories.push(Story {
                place,
                schedule: Vec::new(),
                struck: Vec::new(),
                failure: failure.to_string(),
            }),
            None => all.push(Undisturbed { place, writes: ended.writes, end: ended.end }),
        }
    }
    if all.is_empty() {
        return (0, stories);
    }
    let singles = singles(&all, limits.seed);
    let (next, played) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let started = Instant::now();
    let found = Mutex::new(Vec::new());
    let is_over = || {
        let failures = found.lock().unwrap_or_else(PoisonError::into_inner).len();
        failures >= FAILURES || limits.time.is_some_and(|time| started.elapsed() >= time)
    };
    std::thread::scope(|scope| {
        for _ in 0..limits.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= limits.schedules || is_over() {
                        break;
                    }
                    let (index, schedule) = match singles.get(number) {
                        Some((index, single)) => (*index, vec![*single]),
                        None => random(&all, limits.seed.wrapping_add(number as u64)),
                    };
                    let undisturbed = &all[index];
                    let ended = case::play(suites, undisturbed.place, Some(&schedule));
                    played.fetch_add(1, Ordering::Relaxed);
                    if failure(&ended, &undisturbed.end).is_some() {
                        let story = shrink(suites, undisturbed, schedule);
                        found.lock().unwrap_or_else(PoisonError::into_inner).push(story);
                    }
                }
            });
        }
    });
    stories.extend(found.into_inner().unwrap_or_else(PoisonError::into_inner));
    (played.into_inner(), stories)
}

/// Plays one schedule of a case.
pub(crate) fn replay(suites: &[Suite], place: (usize, usize), schedule: &[Disturbance]) -> Option<Story> {
    let undisturbed = case::play(suites, place, Some(&[]));
    let ended = case::play(suites, place, Some(schedule));
    let failure = failure(&ended, &undisturbed.end)?;
    Some(Story { place, schedule: schedule.to_vec(), struck: ended.struck, failure })
}

/// Each disturbance of each write alone, in an order that the seed gives.
fn singles(all: &[Undisturbed], seed: u64) -> Vec<(usize, Disturbance)> {
    let mut singles = Vec::new();
    for (index, undisturbed) in all.iter().enumerate() {
        for write in 1..=undisturbed.writes {
            singles.extend(What::ALL.map(|what| (index, Disturbance { write, what })));
        }
    }
    fastrand::Rng::with_seed(seed).shuffle(&mut singles);
    singles
}

/// Two or three disturbances of one case.
fn random(all: &[Undisturbed], seed: u64) -> (usize, Vec<Disturbance>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let index = random.usize(..all.len());
    let mut schedule: Vec<Disturbance> = (0..random.usize(2..=MOST))
        .map(|_| {
            let write = random.u64(1..=all[index].writes.max(1));
            Disturbance { write, what: What::ALL[random.usize(..What::ALL.len())] }
        })
        .collect();
    schedule.sort_unstable();
    schedule.dedup_by_key(|disturbance| disturbance.write);
    (index, schedule)
}

/// Leaves out what the failure does not need.
fn shrink(suites: &[Suite], undisturbed: &Undisturbed, mut schedule: Vec<Disturbance>) -> Story {
    let fails = |schedule: &[Disturbance]| {
        let ended = case::play(suites, undisturbed.place, Some(schedule));
        failure(&ended, &undisturbed.end).map(|failure| (ended.struck, failure))
    };
    let mut last = fails(&schedule);
    let mut index = 0;
    while schedule.len() > 1 && index < schedule.len() {
        let mut shorter = schedule.clone();
        shorter.remove(index);
        match fails(&shorter) {
            Some(found) => (schedule, last) = (shorter, Some(found)),
            None => index += 1,
        }
    }
    let (struck, failure) = last.unwrap_or_else(|| {
        (Vec::new(), "it fails only sometimes: the same schedule has passed now".to_owned())
    });
    Story { place: undisturbed.place, schedule, struck, failure }
}
