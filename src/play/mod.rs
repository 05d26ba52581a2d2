//! Plays: a case of a test file on the embedded API, with the real manager, in virtual time.
//!
//! Everything runs on one thread whose clock tokio moves as soon as nothing is left to do, so hours pass in milliseconds and
//! nothing depends on speed.

mod case;
mod end;
mod ended;
mod expect;
mod explore;
mod faults;
mod matching;
mod suite;
mod view;
mod watcher;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::package::Resource;
use crate::package::plan::{Action, Step};

pub(crate) use ended::Ended;
pub(crate) use explore::{Limits, Story, explore, replay};
pub(crate) use faults::{Disturbance, What};
pub(crate) use suite::{Suite, load};
pub(crate) use watcher::Reached;

/// Plays cases, as many at once as the machine has processors, and tells of each as it ends.
pub(crate) fn play(
    suites: &[Suite],
    selected: &[(usize, usize)],
    threads: usize,
    ended: impl Fn(&Ended) + Sync,
) -> Vec<Ended> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, selected.len().max(1)) {
            scope.spawn(|| {
                while let Some(&place) = selected.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = case::play(suites, place, None);
                    ended(&result);
                    all.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by_key(|ended| ended.place);
    all
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
            _ => drop(all.insert(path)),
        }
    }
}
