//! Waiting times after failures.

use std::time::Duration;

/// The waiting time after consecutive failures: it doubles with each failure, up to a cap.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
}

impl Backoff {
    /// Creates a backoff that starts at `first` and is capped at `cap`.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap }
    }

    /// The waiting time after this number of consecutive failures, without jitter.
    pub fn exact(self, failures: u32) -> Duration {
        let doubled = 2u32.saturating_pow(failures.saturating_sub(1).min(24));
        self.first.saturating_mul(doubled).min(self.cap)
    }

    /// The waiting time after this number of consecutive failures, with jitter.
    pub fn after(self, failures: u32) -> Duration {
        jitter(self.exact(failures), fastrand::f64())
    }
}

/// A [`Backoff`] with the number of failures so far.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    backoff: Backoff,
    failures: u32,
}

impl Retry {
    /// Creates a counter without failures.
    pub fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    /// Creates a counter whose next waiting time is already the longest.
    pub fn exhausted(backoff: Backoff) -> Self {
        Self { backoff, failures: u32::MAX }
    }

    /// Counts a failure, and returns how long to wait.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.after(self.failures)
    }

    /// Resets the counter after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Varies a waiting time by up to a fifth, so that waits that start together do not end together. `share` is
/// a random number from 0 to 1.
pub fn jitter(wait: Duration, share: f64) -> Duration {
    wait.mul_f64(0.8 + 0.4 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_doubles_up_to_its_cap() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let exact: Vec<_> = (0..10).map(|failures| backoff.exact(failures).as_secs()).collect();
        assert_eq!(exact, [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.exact(u32::MAX).as_secs(), 60);
        let mut retry = Retry::new(backoff);
        for failures in 1..10 {
            let (wait, exact) = (retry.failed(), backoff.exact(failures));
            assert!(wait >= exact.mul_f64(0.8) && wait <= exact.mul_f64(1.2), "{wait:?}");
        }
        retry.reset();
        assert!(retry.failed() <= Duration::from_millis(1_200));
        assert!(Retry::exhausted(backoff).failed() >= Duration::from_secs(48));
    }
}
