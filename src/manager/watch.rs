//! How a watch fares, for metrics and for people.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a refusal counts: the pause between two attempts is at most half of it.
const REFUSED: Duration = Duration::from_secs(90);

/// One watch.
#[derive(Debug)]
pub(super) struct Watch {
    /// What is watched, such as `children apps/v1 Deployment`.
    pub name: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    listed: bool,
    /// Why the kind cannot be listed: nobody waits for it.
    unknown: Option<String>,
    last: Option<Instant>,
    lists: u64,
    events: u64,
    failures: u64,
    error: Option<(String, Instant)>,
    /// The server does not let us watch it.
    refused: bool,
}

impl State {
    fn word(&self) -> &'static str {
        match &self.unknown {
            _ if self.listed => "Watching",
            Some(_) => "Unknown",
            None => "Listing",
        }
    }
}

impl Watch {
    pub(super) fn new(name: String) -> Self {
        Self { name, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event came.
    pub(super) fn event(&self) {
        let mut state = self.lock();
        state.events += 1;
        state.last = Some(Instant::now());
    }

    /// A list is complete.
    pub(super) fn listed(&self) {
        let mut state = self.lock();
        state.listed = true;
        state.unknown = None;
        state.refused = false;
        state.lists += 1;
        state.last = Some(Instant::now());
    }

    /// It failed and is tried again.
    pub(super) fn failed(&self, error: &str) {
        let mut state = self.lock();
        state.failures += 1;
        state.error = Some((error.to_owned(), Instant::now()));
        if !state.listed {
            state.unknown = Some(error.to_owned());
        }
    }

    /// The server does not let us watch it: that is not for its events to mend.
    pub(super) fn refused(&self) {
        self.lock().refused = true;
    }

    /// Why the server does not let us watch it, if so.
    pub(super) fn refusal(&self) -> Option<String> {
        let state = self.lock();
        // It is tried again and again: what has not failed for so long works, though it is silent.
        let error = state.error.as_ref().filter(|(_, at)| state.refused && at.elapsed() < REFUSED)?;
        Some(format!("{}: {}", self.name, error.0))
    }

    /// Whether somebody still has to wait for its first list.
    pub(super) fn is_awaited(&self) -> bool {
        let state = self.lock();
        !state.listed && state.unknown.is_none()
    }

    /// In one word: `Watching`, `Listing`, or `Unknown` if its objects cannot be listed now.
    pub(super) fn state(&self) -> &'static str {
        self.lock().word()
    }

    pub(super) fn to_json(&self) -> Value {
        let state = self.lock();
        let age = |at: &Instant| at.elapsed().as_secs_f64();
        json!({
            "watch": self.name,
            "state": state.word(),
            "lists": state.lists,
            "events": state.events,
            "lastEventSecondsAgo": state.last.as_ref().map(age),
            "failures": state.failures,
            "lastError": state.error.as_ref().map(|(error, at)| json!({"message": error, "secondsAgo": age(at)})),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_what_cannot_be_listed() {
        let watch = Watch::new("children v1 Pod".into());
        assert!(watch.is_awaited());
        watch.failed("forbidden");
        assert!(!watch.is_awaited());
        assert_eq!((watch.state(), watch.to_json()["state"].as_str()), ("Unknown", Some("Unknown")));
        watch.listed();
        watch.event();
        assert_eq!(watch.to_json()["state"], "Watching");
        assert_eq!(watch.to_json()["lastError"]["message"], "forbidden");
    }
}
