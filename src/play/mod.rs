//! Plays: a case of a test file on the embedded API, with the real manager, in virtual time.
//!
//! Everything runs on one thread whose clock tokio moves as soon as nothing is left to do, so hours pass in milliseconds and
//! nothing depends on speed.

mod absence;
mod bounds;
mod case;
mod catalog;
mod check;
mod commands;
mod course;
mod deeds;
mod disturbance;
mod end;
mod ended;
mod expect;
mod explore;
mod expressions;
mod faults;
mod impossible;
mod init;
mod installed;
mod matching;
mod names;
mod objects;
mod ours;
#[cfg(test)]
mod planted;
mod pods;
mod possible;
mod real;
mod refused;
mod scene;
mod schedules;
mod sources;
mod steps;
mod story;
mod suite;
#[cfg(test)]
mod tests;
mod update;
mod vacuous;
mod view;
mod watcher;
mod witness;
mod worlds;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::diag::Diagnostic;
use crate::package::plan::{Action, OnFailure, Step};
use crate::package::{Package, Resource};

pub(crate) use course::Part;
pub(crate) use disturbance::{Disturbance, InjectedFault};
pub(crate) use ended::{Ended, IMAGE, Reached};
pub(crate) use explore::{Limits, explore, replay};
pub(crate) use init::{Instance, init, resource_of};
pub(crate) use ours::Ours;
pub(crate) use real::Ground;
pub(crate) use sources::Sources;
pub(crate) use story::Story;
pub(crate) use suite::{Suite, select};
pub(crate) use update::{Edit, rewrite};

/// Loads all files of cases of a package.
///
/// # Errors
/// All mistakes of all files, and all expectations that can never hold.
pub(crate) fn load(folder: &Path, package: &Arc<Package>) -> Result<Vec<Suite>, Vec<Diagnostic>> {
    load_from(folder, package, &mut Sources::of(folder))
}

/// The same; `sources` remembers what was read, and says what may be.
///
/// # Errors
/// The same.
pub(crate) fn load_from(
    folder: &Path,
    package: &Arc<Package>,
    sources: &mut Sources,
) -> Result<Vec<Suite>, Vec<Diagnostic>> {
    inspect(folder, package, sources).map(|(suites, _)| suites)
}

/// The same; the result contains the warnings.
///
/// # Errors
/// All mistakes and warnings, if one of them is a mistake.
pub(crate) fn inspect(
    folder: &Path,
    package: &Arc<Package>,
    sources: &mut Sources,
) -> Result<(Vec<Suite>, Vec<Diagnostic>), Vec<Diagnostic>> {
    let _loading = bounds::loading(folder);
    let (mut suites, mut found) = suite::load(folder, package, sources);
    let world = folder.join("tests").join(suite::WORLD);
    let alone = if suites.is_empty() && found.is_empty() && world.exists() {
        sources.world(&world).map_err(|errors| found.extend(errors)).ok()
    } else {
        None
    };
    found.extend(check::check(&mut suites, alone.as_ref(), package, sources));
    check::once(&mut found);
    crate::package::sort(&mut found);
    if found.iter().any(Diagnostic::is_error) { Err(found) } else { Ok((suites, found)) }
}

/// Plays cases, as many at once as the machine has processors, and tells of each as it ends.
pub(crate) fn play(
    suites: &[Suite],
    selected: &[(usize, usize)],
    threads: usize,
    ended: impl Fn(&Ended) + Sync,
) -> Vec<Ended> {
    let starts = starts(suites, selected, threads, |_| true);
    let began = Instant::now();
    side_by_side(threads, selected.len(), |index| {
        let result = match bounds::too_late(began.elapsed()) {
            Some(failure) => Ended { failure: Some(failure), ..Ended::of(selected[index]) },
            None => case::play(course::Course::of(suites, selected[index], &starts)),
        };
        ended(&result);
        result
    })
}

/// Plays what comes before the cases, once for each wanted file that has selected cases.
fn starts(
    suites: &[Suite],
    selected: &[(usize, usize)],
    threads: usize,
    is_wanted: impl Fn(&Suite) -> bool + Sync,
) -> Vec<Option<course::Start>> {
    side_by_side(threads, suites.len(), |suite| {
        let is_used = selected.iter().any(|place| place.0 == suite) && is_wanted(&suites[suite]);
        is_used.then(|| case::start(suites, suite)).flatten()
    })
}

/// The results of a function for the numbers below `count`, computed by several threads that take them in order.
fn side_by_side<T: Send>(threads: usize, count: usize, compute: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = compute(index);
                    all.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}

/// How many children, plans and steps were reached, and how many the package has.
pub(crate) fn coverage(suites: &[Suite], reached: &Reached) -> [(&'static str, usize, usize); 3] {
    let all = reachable(suites);
    ["children", "plans", "steps"].map(|what| {
        let of = all.iter().filter(|name| kind_of(name) == what);
        let (hit, missed): (Vec<_>, Vec<_>) = of.partition(|name| reached.contains(*name));
        (what, hit.len(), hit.len() + missed.len())
    })
}

/// What a name of something reached is about.
fn kind_of(name: &str) -> &'static str {
    if name.contains(" step ") {
        "steps"
    } else if name.contains(" child ") {
        "children"
    } else {
        "plans"
    }
}

/// All that the package of these suites has: children, plans and their steps.
pub(crate) fn reachable(suites: &[Suite]) -> Reached {
    let mut all = Reached::new();
    let Some(package) = suites.first().and_then(|suite| suite.packages.first()) else { return all };
    for resource in &package.resources {
        let kind = &resource.kind.kind;
        all.extend(resource.children.iter().map(|child| format!("{kind} child {}", child.id)));
        for plan in &resource.plans {
            let of = format!("{kind} plan {}", plan.name);
            leaves(resource, &plan.steps, &format!("{of} step "), 0, &mut all);
            all.insert(of);
        }
    }
    all
}

/// How many plans that run each other are entered.
const INNER: usize = 8;

/// The steps that do something, those of inner plans included.
fn leaves(resource: &Resource, steps: &[Step], prefix: &str, depth: usize, all: &mut Reached) {
    for step in steps {
        let path = format!("{prefix}{}", step.name);
        match &step.action {
            Action::Steps(_, steps) => leaves(resource, steps, &format!("{path}/"), depth, all),
            Action::Plan(call) if depth < INNER && call.of.is_none() => {
                let plan = resource.plan(&call.plan);
                leaves(resource, plan.map_or(&[], |plan| &plan.steps), &format!("{path}/"), depth + 1, all);
            }
            _ => drop(all.insert(path.clone())),
        }
        if let OnFailure::Plan(name) = &step.on_failure
            && depth < INNER
        {
            let plan = resource.plan(name);
            let steps = plan.map_or(&[][..], |plan| &plan.steps);
            leaves(resource, steps, &format!("{path}/onFailure/"), depth + 1, all);
        }
    }
}
