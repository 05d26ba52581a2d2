//! The state of one watch: whether its objects are known, and its errors.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::Gvk;
use crate::children::ReadError;
use crate::clock::Instant;

/// How long a refusal counts: the pause between two attempts is at most half of it.
const REFUSED: Duration = Duration::from_secs(90);

/// Whether the objects of a watch are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::manager) enum WatchState {
    /// The first list is under way.
    Pending,
    /// Listed, and watched since.
    Watching,
    /// Listed and watched in this version of the group, because the server does not serve the requested one.
    OtherVersion(String),
    /// The objects cannot be listed: what exists is unknown, not empty.
    Unavailable(ReadError),
}

impl WatchState {
    /// Whether there can be no objects, because the API server does not serve the kind.
    pub(in crate::manager) fn is_missing(&self) -> bool {
        matches!(self, Self::Unavailable(ReadError::KindMissing))
    }

    /// Why the objects of the kind are unknown; `None` if they are known.
    pub(in crate::manager) fn reason(&self, gvk: &Gvk) -> Option<String> {
        match self {
            Self::Watching => None,
            Self::OtherVersion(other) => Some(format!(
                "the API server does not serve {gvk}, but of {other}: the package is to ask for that"
            )),
            Self::Pending => Some("its objects are being listed".to_owned()),
            Self::Unavailable(ReadError::KindMissing) => Some(format!("the API server does not serve {gvk}")),
            Self::Unavailable(ReadError::Forbidden(reason) | ReadError::Failed(reason)) => {
                Some(reason.clone())
            }
        }
    }
}

/// One watch.
#[derive(Debug)]
pub(in crate::manager) struct Watch {
    /// What is watched, such as `children apps/v1 Deployment`.
    pub(in crate::manager) name: String,
    record: Mutex<Record>,
}

#[derive(Debug)]
struct Record {
    state: WatchState,
    /// The watch fails; the objects of the last list are still used.
    is_degraded: bool,
    last: Option<Instant>,
    lists: u64,
    events: u64,
    failures: u64,
    error: Option<(String, Instant)>,
    is_forbidden: bool,
}

impl Record {
    fn set(&mut self, state: WatchState) -> bool {
        let is_news = self.state != state;
        self.state = state;
        is_news
    }

    fn word(&self) -> &'static str {
        match &self.state {
            WatchState::Pending => "Listing",
            WatchState::Unavailable(_) => "Unknown",
            WatchState::Watching | WatchState::OtherVersion(_) if self.is_degraded => "Degraded",
            WatchState::Watching | WatchState::OtherVersion(_) => "Watching",
        }
    }
}

impl Watch {
    pub(in crate::manager) fn new(name: String) -> Self {
        let record = Record {
            state: WatchState::Pending,
            is_degraded: false,
            last: None,
            lists: 0,
            events: 0,
            failures: 0,
            error: None,
            is_forbidden: false,
        };
        Self { name, record: Mutex::new(record) }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the objects are known.
    pub(in crate::manager) fn state(&self) -> WatchState {
        self.lock().state.clone()
    }

    /// Counts an event.
    pub(super) fn event(&self) {
        let mut record = self.lock();
        record.events += 1;
        record.is_degraded = false;
        record.last = Some(Instant::now());
    }

    /// Records that a list is complete. Returns whether the state changes.
    pub(super) fn listed(&self, state: WatchState) -> bool {
        let mut record = self.lock();
        record.is_degraded = false;
        record.is_forbidden = false;
        record.lists += 1;
        record.last = Some(Instant::now());
        record.set(state)
    }

    /// Counts a failed request.
    pub(super) fn failed(&self, error: &str, is_forbidden: bool) {
        let mut record = self.lock();
        record.failures += 1;
        record.error = Some((error.to_owned(), Instant::now()));
        record.is_forbidden |= is_forbidden;
    }

    /// Marks the watch as failing, perhaps temporarily. Listed objects stay usable. Before the first list the
    /// objects become unavailable, so that waiting instances have a reason. Returns whether the state
    /// changes.
    pub(super) fn mark_degraded(&self, error: ReadError) -> bool {
        let mut record = self.lock();
        record.is_degraded = true;
        record.state == WatchState::Pending && record.set(WatchState::Unavailable(error))
    }

    /// Marks the objects as unavailable until a list succeeds. Returns whether the state changes.
    pub(super) fn mark_unavailable(&self, error: ReadError) -> bool {
        self.lock().set(WatchState::Unavailable(error))
    }

    /// Marks the listed objects as outdated though none has changed: they are unknown until the next list.
    pub(super) fn reset(&self) {
        self.lock().state = WatchState::Pending;
    }

    /// Why the server does not allow the watch, if so.
    pub(super) fn refusal(&self) -> Option<String> {
        let record = self.lock();
        // A refused watch is retried: one that has not failed for that long works, even if it is silent.
        let is_recent = |(_, at): &&(String, Instant)| record.is_forbidden && at.elapsed() < REFUSED;
        let (error, _) = record.error.as_ref().filter(is_recent)?;
        Some(format!("{}: {error}", self.name))
    }

    /// Whether its first list may still come.
    pub(super) fn is_awaited(&self) -> bool {
        let record = self.lock();
        record.lists == 0 && record.state == WatchState::Pending
    }

    /// The state in one word: `Listing`, `Watching`, `Degraded`, or `Unknown` if its objects cannot be listed
    /// now.
    pub(in crate::manager) fn word(&self) -> &'static str {
        self.lock().word()
    }

    pub(in crate::manager) fn to_json(&self) -> Value {
        let record = self.lock();
        let age = |at: &Instant| at.elapsed().as_secs_f64();
        json!({
            "watch": self.name,
            "state": record.word(),
            "lists": record.lists,
            "events": record.events,
            "lastEventSecondsAgo": record.last.as_ref().map(age),
            "failures": record.failures,
            "lastError": record.error.as_ref().map(|(error, at)| json!({"message": error, "secondsAgo": age(at)})),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(text: &str) -> ReadError {
        ReadError::Failed(text.into())
    }

    #[test]
    fn unavailable_objects_are_not_awaited() {
        let watch = Watch::new("children v1 Pod".into());
        assert!(watch.is_awaited());
        watch.failed("forbidden", true);
        watch.mark_unavailable(ReadError::Forbidden("forbidden".into()));
        assert!(!watch.is_awaited());
        assert_eq!(watch.refusal().as_deref(), Some("children v1 Pod: forbidden"));
        assert_eq!((watch.word(), watch.to_json()["state"].as_str()), ("Unknown", Some("Unknown")));
        watch.listed(WatchState::Watching);
        watch.event();
        assert_eq!(watch.to_json()["state"], "Watching");
        assert_eq!(watch.to_json()["lastError"]["message"], "forbidden");
        assert_eq!(watch.refusal(), None);
    }

    #[test]
    fn unavailable_objects_stay_so_until_a_list_succeeds() {
        let watch = Watch::new("children v1 Pod".into());
        assert!(watch.mark_degraded(failed("500")), "else all instances wait without a reason");
        assert_eq!(watch.state(), WatchState::Unavailable(failed("500")));
        assert!(!watch.mark_degraded(failed("501")), "each attempt would wake all instances");
        assert!(!watch.mark_unavailable(failed("500")));
        assert!(watch.listed(WatchState::Watching) && !watch.listed(WatchState::Watching));
        // A temporary failure changes nothing while the objects are known.
        assert!(!watch.mark_degraded(failed("500")));
        assert_eq!((watch.state(), watch.word()), (WatchState::Watching, "Degraded"));
        watch.event();
        assert_eq!(watch.word(), "Watching");
        watch.reset();
        assert!(!watch.is_awaited(), "the manager was ready, and is");
        assert!(watch.listed(WatchState::Watching));
    }
}
