//! What is known of the APIs that the server serves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::api::Apis;

/// What the server serves, or why that is not known; nothing until it was asked.
pub(in crate::manager) type Known = Option<Result<Arc<Apis>, String>>;

/// What the server serves, while an instance reads it.
#[derive(Default)]
pub(super) struct ServedApis {
    state: Mutex<(Known, Option<JoinHandle<()>>)>,
    /// Wakes the task when an API may have come or gone.
    pub(super) changed: Notify,
}

impl ServedApis {
    fn state(&self) -> MutexGuard<'_, (Known, Option<JoinHandle<()>>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known. `ask` starts to ask the server, when this is called first.
    pub(super) fn get(&self, ask: impl FnOnce() -> JoinHandle<()>) -> Known {
        let mut state = self.state();
        if state.1.is_none() {
            state.1 = Some(ask());
        }
        state.0.clone()
    }

    /// Notes that an API may have come or gone.
    pub(super) fn note_change(&self) {
        self.changed.notify_one();
    }

    /// Stops asking.
    pub(super) fn stop(&self) {
        if let Some(task) = self.state().1.take() {
            task.abort();
        }
    }

    /// Records what was found. Returns whether it is news.
    pub(super) fn put(&self, found: Result<Arc<Apis>, String>) -> bool {
        let mut state = self.state();
        // A failure does not replace what is known: the server may only be overloaded.
        if found.is_err() && matches!(state.0, Some(Ok(_))) {
            return false;
        }
        let news = state.0.as_ref() != Some(&found);
        state.0 = Some(found);
        news
    }
}
