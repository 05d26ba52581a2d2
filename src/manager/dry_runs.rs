//! Which shapes of writes have passed a dry run, and which dry runs are in flight.
//!
//! A thousand equal instances cost one dry run for each child: the first instance sends it, the others are queued
//! again when it is complete and hold no worker meanwhile.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many shapes are remembered, eight bytes each. Beyond that all are forgotten and tried again.
const MOST: usize = 1 << 16;

/// Who sends the dry run of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// The caller, who must [`DryRunCache::complete`] it.
    Run,
    /// Another instance. The caller is queued when it is complete.
    Wait,
    /// No one: a dry run of the shape has passed already.
    Passed,
}

/// The known shapes. `K` identifies the waiting instances.
pub(super) struct DryRunCache<K> {
    state: Mutex<State<K>>,
}

struct State<K> {
    passed: HashSet<u64>,
    /// Shapes of which a dry run was refused. The values may be the cause, so no instance waits for another.
    refused: HashSet<u64>,
    in_flight: HashMap<u64, Vec<K>>,
}

impl<K> Default for DryRunCache<K> {
    fn default() -> Self {
        let state = State { passed: HashSet::new(), refused: HashSet::new(), in_flight: HashMap::new() };
        Self { state: Mutex::new(state) }
    }
}

impl<K: Clone + Eq + Hash> DryRunCache<K> {
    /// Whether a shape has passed.
    pub(super) fn passed(&self, shape: u64) -> bool {
        self.lock().passed.contains(&shape)
    }

    /// Returns who sends the dry run.
    pub(super) fn begin(&self, shape: u64, who: &K) -> Begin {
        let mut state = self.lock();
        if state.passed.contains(&shape) {
            // It has passed since the caller decided.
            return Begin::Passed;
        }
        if state.refused.contains(&shape) {
            return Begin::Run;
        }
        if let Some(waiting) = state.in_flight.get_mut(&shape) {
            waiting.push(who.clone());
            return Begin::Wait;
        }
        state.in_flight.insert(shape, Vec::new());
        Begin::Run
    }

    /// Ends a dry run; `None` if it has no result. Returns the waiting instances.
    pub(super) fn complete(&self, shape: u64, passed: Option<bool>) -> Vec<K> {
        let mut state = self.lock();
        match passed {
            Some(true) => {
                state.refused.remove(&shape);
                insert(&mut state.passed, shape);
            }
            Some(false) => insert(&mut state.refused, shape),
            None => {}
        }
        state.in_flight.remove(&shape).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn insert(set: &mut HashSet<u64>, shape: u64) {
    if set.len() >= MOST {
        set.clear();
    }
    set.insert(shape);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_sends_a_dry_run_and_the_others_wait() {
        let shapes = DryRunCache::default();
        assert_eq!(shapes.begin(1, &"a"), Begin::Run);
        assert_eq!([shapes.begin(1, &"b"), shapes.begin(1, &"c")], [Begin::Wait; 2]);
        assert_eq!(shapes.begin(2, &"b"), Begin::Run);
        assert_eq!(shapes.complete(1, Some(true)), ["b", "c"]);
        assert!(shapes.passed(1) && !shapes.passed(2));
        // A caller that decided earlier does not send it again.
        assert_eq!(shapes.begin(1, &"d"), Begin::Passed);
        // A dry run that ends without a result is sent by the next caller.
        assert_eq!(shapes.begin(2, &"c"), Begin::Wait);
        assert_eq!(shapes.complete(2, None), ["c"]);
        assert_eq!(shapes.begin(2, &"c"), Begin::Run);
        // Refused: no other write waits, because the values may be the cause.
        shapes.complete(2, Some(false));
        assert_eq!([shapes.begin(2, &"a"), shapes.begin(2, &"b")], [Begin::Run; 2]);
        shapes.complete(2, Some(true));
        assert!(shapes.passed(2));
    }

    #[test]
    fn the_memory_is_bounded() {
        let shapes = DryRunCache::<u8>::default();
        for shape in 0..=MOST as u64 {
            shapes.complete(shape, Some(true));
        }
        assert_eq!(shapes.lock().passed.len(), 1);
    }
}
