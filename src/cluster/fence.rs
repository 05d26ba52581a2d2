//! Whether this process may write: only while it leads, by its own monotonic clock.
//!
//! The clock also counts while the process is stopped and the machine is suspended, so that a leader that wakes up
//! too late finds the fence closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

/// The deadline of a fence that is always open.
const ALWAYS: u64 = u64::MAX;

/// The fence that every write passes. Clones are the same fence.
#[derive(Debug, Clone)]
pub struct Fence(Arc<State>);

#[derive(Debug)]
struct State {
    /// Until when it is open, in milliseconds of [`uptime`].
    until: AtomicU64,
    /// Cancels writes in flight when it closes for good.
    closed: CancellationToken,
}

/// Time since the machine started; suspended time counts.
pub(super) fn uptime() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    // On other systems the monotonic clock counts suspended time.
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let now = clock_gettime(clock);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}

impl Fence {
    /// A fence that is always open, for a single manager.
    pub fn open() -> Self {
        Self::until(ALWAYS)
    }

    /// A fence that is closed until its time is extended.
    pub fn shut() -> Self {
        Self::until(0)
    }

    fn until(until: u64) -> Self {
        Self(Arc::new(State { until: AtomicU64::new(until), closed: CancellationToken::new() }))
    }

    /// Opens it until that value of [`uptime`].
    pub(super) fn extend(&self, until: Duration) {
        self.0.until.store(u64::try_from(until.as_millis()).unwrap_or(ALWAYS), Ordering::SeqCst);
    }

    /// Closes it for good and cancels all writes in flight.
    pub fn close(&self) {
        self.0.closed.cancel();
    }

    /// Whether a write may pass now.
    pub fn is_open(&self) -> bool {
        if self.0.closed.is_cancelled() {
            return false;
        }
        match self.0.until.load(Ordering::SeqCst) {
            ALWAYS => true,
            0 => false,
            until => uptime() < Duration::from_millis(until),
        }
    }

    /// Whether it was open once, and will never be open again.
    pub(super) fn is_over(&self) -> bool {
        match self.0.until.load(Ordering::SeqCst) {
            ALWAYS | 0 => self.0.closed.is_cancelled(),
            until => self.0.closed.is_cancelled() || uptime() >= Duration::from_millis(until),
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
    fn a_fence_closes_at_its_deadline_and_stays_closed() {
        assert!(Fence::open().is_open());
        let fence = Fence::shut();
        assert!(!fence.is_open() && !fence.is_over(), "whoever stands by may read");
        fence.extend(uptime() + Duration::from_secs(60));
        assert!(fence.is_open() && !fence.is_over());
        fence.extend(uptime());
        assert!(!fence.is_open() && fence.is_over(), "its time is over, and nobody had to notice");
        fence.extend(uptime() + Duration::from_secs(60));
        fence.close();
        fence.extend(uptime() + Duration::from_secs(60));
        assert!(!fence.is_open() && fence.is_over(), "a late renewal opens it again");
    }
}
