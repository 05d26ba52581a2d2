//! Time. Nothing else asks the system for the wall-clock time (`clippy.toml`), so that tests can move it.
//!
//! Waits and backoffs use `Clock::elapsed`, which never jumps. The wall-clock time may jump by days in either
//! direction. It is for people to read (Events, conditions, the Lease, ages in tables) and for what users give as a
//! time of day. Leadership depends on the time since boot (`cluster::fence`).

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
pub(crate) use tokio::time::Instant;

/// The file with the number of seconds to add to the wall-clock time. It is read at each use. Tests move the clock of
/// a running process with it.
static OFFSET_FILE: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| std::env::var_os("OPERETTA_CLOCK_OFFSET_FILE").map(Into::into));

/// The clock of one manager. Clones are the same clock.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    started: Instant,
    #[cfg(test)]
    manual: Option<std::sync::Arc<std::sync::Mutex<Timestamp>>>,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            #[cfg(test)]
            manual: None,
        }
    }

    /// The monotonic time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The wall-clock time.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "in tests each clock has its own"))]
    pub(crate) fn now(&self) -> Timestamp {
        #[cfg(test)]
        if let Some(manual) = &self.manual {
            return *manual.lock().unwrap() + self.elapsed();
        }
        now()
    }
}

#[cfg(test)]
impl Clock {
    /// A clock whose wall-clock time is `at` now. It advances with tokio's clock.
    pub(crate) fn manual(at: Timestamp) -> Self {
        Self { started: Instant::now(), manual: Some(std::sync::Arc::new(at.into())) }
    }

    /// Moves the wall-clock time; the monotonic time stays.
    pub(crate) fn jump(&self, by: SignedDuration) {
        let mut at = self.manual.as_ref().expect("a manual clock").lock().unwrap();
        *at += by;
    }
}

thread_local! {
    /// The wall-clock time of this thread at a moment of tokio's clock, if it is virtual.
    static VIRTUAL: std::cell::Cell<Option<(Timestamp, Instant)>> = const { std::cell::Cell::new(None) };
}

/// Makes the wall-clock time of this thread virtual: it is `at` now, and advances with tokio's clock, which a test may pause.
pub fn set_virtual(at: Timestamp) {
    VIRTUAL.set(Some((at, Instant::now())));
}

/// The wall-clock time.
#[expect(clippy::disallowed_methods, reason = "the only place that asks the system")]
pub fn now() -> Timestamp {
    if let Some((at, since)) = VIRTUAL.get() {
        return at + since.elapsed();
    }
    let now = Timestamp::now();
    let offset = OFFSET_FILE.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
    let offset = offset.and_then(|text| text.trim().parse().ok()).map(SignedDuration::from_secs);
    offset.and_then(|offset| now.checked_add(offset).ok()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_manual_clock_advances_with_the_runtime_and_jumps_alone() {
        let noon: Timestamp = "2026-03-29T12:00:00Z".parse().unwrap();
        let clock = Clock::manual(noon);
        let shared = clock.clone();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.now(), noon + SignedDuration::from_mins(1));
        shared.jump(SignedDuration::from_hours(-24));
        assert_eq!(clock.now(), noon + SignedDuration::from_mins(1) - SignedDuration::from_hours(24));
        assert_eq!(clock.elapsed(), Duration::from_secs(60));
    }
}
