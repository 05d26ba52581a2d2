//! Which shapes of writes have passed a dry run, and which are being tried now.
//!
//! A thousand equal instances cost one dry run of each of their children: the first tries, the others come
//! back when it is done, and none of them holds a worker meanwhile.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many shapes are remembered. Eight bytes each; beyond, all are forgotten and tried once more.
const MOST: usize = 1 << 16;

/// The answer to who asks for a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// The caller, who must [`Shapes::land`] it.
    Try,
    /// Somebody else; the caller is told when it is done.
    Wait,
    /// Nobody any more: it has passed.
    Passed,
}

/// The memory of shapes. `K` names those who wait.
pub(super) struct Shapes<K> {
    state: Mutex<State<K>>,
}

struct State<K> {
    passed: HashSet<u64>,
    /// Those that somebody was refused: it may have been for the values, so nobody waits for another.
    refused: HashSet<u64>,
    flying: HashMap<u64, Vec<K>>,
}

impl<K> Default for Shapes<K> {
    fn default() -> Self {
        let state = State { passed: HashSet::new(), refused: HashSet::new(), flying: HashMap::new() };
        Self { state: Mutex::new(state) }
    }
}

impl<K: Clone + Eq + Hash> Shapes<K> {
    /// Whether a shape has passed.
    pub(super) fn passed(&self, shape: u64) -> bool {
        self.lock().passed.contains(&shape)
    }

    /// Who is to try it.
    pub(super) fn claim(&self, shape: u64, who: &K) -> Claim {
        let mut state = self.lock();
        if state.passed.contains(&shape) {
            // Since the caller decided that it is to be tried.
            return Claim::Passed;
        }
        if state.refused.contains(&shape) {
            return Claim::Try;
        }
        if let Some(waiting) = state.flying.get_mut(&shape) {
            waiting.push(who.clone());
            return Claim::Wait;
        }
        state.flying.insert(shape, Vec::new());
        Claim::Try
    }

    /// The end of a try: `None` if it came to nothing. Who is to be told.
    pub(super) fn land(&self, shape: u64, passed: Option<bool>) -> Vec<K> {
        let mut state = self.lock();
        match passed {
            Some(true) => {
                state.refused.remove(&shape);
                insert(&mut state.passed, shape);
            }
            Some(false) => insert(&mut state.refused, shape),
            None => {}
        }
        state.flying.remove(&shape).unwrap_or_default()
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
    fn one_tries_and_the_others_are_told() {
        let shapes = Shapes::default();
        assert_eq!(shapes.claim(1, &"a"), Claim::Try);
        assert_eq!([shapes.claim(1, &"b"), shapes.claim(1, &"c")], [Claim::Wait; 2]);
        assert_eq!(shapes.claim(2, &"b"), Claim::Try);
        assert_eq!(shapes.land(1, Some(true)), ["b", "c"]);
        assert!(shapes.passed(1) && !shapes.passed(2));
        // Who decided before that does not try it once more.
        assert_eq!(shapes.claim(1, &"d"), Claim::Passed);
        // Cut off: the next one tries.
        assert_eq!(shapes.claim(2, &"c"), Claim::Wait);
        assert_eq!(shapes.land(2, None), ["c"]);
        assert_eq!(shapes.claim(2, &"c"), Claim::Try);
        // Refused: nobody waits for what may be another's own fault.
        shapes.land(2, Some(false));
        assert_eq!([shapes.claim(2, &"a"), shapes.claim(2, &"b")], [Claim::Try; 2]);
        shapes.land(2, Some(true));
        assert!(shapes.passed(2));
    }

    #[test]
    fn the_memory_is_bounded() {
        let shapes = Shapes::<u8>::default();
        for shape in 0..=MOST as u64 {
            shapes.land(shape, Some(true));
        }
        assert_eq!(shapes.lock().passed.len(), 1);
    }
}
