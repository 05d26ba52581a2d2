//! An embedded API that lets `operetta` wait for the answer to one of its writes, so that a test can kill it there.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use operetta::apiserver::Answered;

/// The pause between two looks at a process that may have ended.
const LOOK: Duration = Duration::from_millis(20);

/// Which write is held.
#[derive(Debug, Default)]
pub struct Hold {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many writes are answered before; `None`: all are.
    left: Option<usize>,
    is_held: bool,
}

impl Hold {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the write after that many others wait. It is carried out.
    pub fn after(&self, writes: usize) {
        self.state().left = Some(writes);
    }

    /// Waits until a write is held. Returns false if the process has ended before.
    pub fn until_held(&self, mut has_ended: impl FnMut() -> bool) -> bool {
        let mut state = self.state();
        while !state.is_held {
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !state.is_held && has_ended() {
                return false;
            }
        }
        true
    }

    /// Answers everything again.
    pub fn release(&self) {
        *self.state() = State::default();
        self.changed.notify_all();
    }

    /// Is called with each request that was carried out, before it is answered.
    pub(super) fn carried_out(&self, request: &Answered) {
        if request.method == "GET" || !request.user_agent.starts_with("operetta/") {
            return;
        }
        let mut state = self.state();
        let Some(left) = state.left else { return };
        state.left = left.checked_sub(1);
        if left > 0 {
            return;
        }
        state.is_held = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.is_held));
    }
}
