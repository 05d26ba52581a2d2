//! Whether this process may write: only while it is the leader, by its own monotonic clock.
//!
//! The clock runs on while the process is stopped (SIGSTOP, a paused virtual machine that keeps its time), so
//! a leader that wakes up after its time finds the fence closed before any task has noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

/// Open for good.
const ALWAYS: u64 = u64::MAX;

/// What every write passes. Clones are the same fence.
#[derive(Debug, Clone)]
pub struct Fence(Arc<State>);

#[derive(Debug)]
struct State {
    started: Instant,
    /// Until when it is open, in milliseconds since `started`.
    until: AtomicU64,
    /// Ends what is under way when it closes for good.
    closed: CancellationToken,
}

impl Fence {
    /// One that is always open, where there is only one manager.
    pub fn open() -> Self {
        Self::until(ALWAYS)
    }

    /// One that is closed until its time is set.
    pub fn shut() -> Self {
        Self::until(0)
    }

    fn until(until: u64) -> Self {
        Self(Arc::new(State {
            started: Instant::now(),
            until: AtomicU64::new(until),
            closed: CancellationToken::new(),
        }))
    }

    /// Opens it until then.
    pub fn extend(&self, until: Instant) {
        let until = until.saturating_duration_since(self.0.started);
        self.0.until.store(u64::try_from(until.as_millis()).unwrap_or(ALWAYS), Ordering::SeqCst);
    }

    /// Closes it for good, and ends all writes that are under way.
    pub fn close(&self) {
        self.0.until.store(0, Ordering::SeqCst);
        self.0.closed.cancel();
    }

    /// Whether a write may pass now.
    pub fn is_open(&self) -> bool {
        match self.0.until.load(Ordering::SeqCst) {
            ALWAYS => true,
            until => self.0.started.elapsed() < Duration::from_millis(until) && !self.0.closed.is_cancelled(),
        }
    }

    /// Returns once it is closed for good.
    pub async fn closed(&self) {
        self.0.closed.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_by_itself_and_for_good() {
        assert!(Fence::open().is_open());
        let fence = Fence::shut();
        assert!(!fence.is_open());
        fence.extend(Instant::now() + Duration::from_secs(60));
        assert!(fence.is_open());
        fence.extend(Instant::now());
        assert!(!fence.is_open(), "its time is over, and nobody had to notice");
        fence.extend(Instant::now() + Duration::from_secs(60));
        fence.close();
        fence.extend(Instant::now() + Duration::from_secs(60));
        assert!(!fence.is_open(), "a late renewal opens it again");
    }
}
