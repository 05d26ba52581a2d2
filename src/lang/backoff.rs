//! How long to wait after failures.

use std::time::Duration;

/// How long to wait after failures in a row: twice as long after each, up to a cap.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
}

impl Backoff {
    /// From `first` to `cap`.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap }
    }

    /// The wait after so many failures in a row, without jitter.
    pub fn exact(self, failures: u32) -> Duration {
        let doubled = 2u32.saturating_pow(failures.saturating_sub(1).min(24));
        self.first.saturating_mul(doubled).min(self.cap)
    }

    /// The wait after so many failures in a row.
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
    /// Before the first failure.
    pub fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    /// As after so many failures that the next wait is the longest.
    pub fn exhausted(backoff: Backoff) -> Self {
        Self { backoff, failures: u32::MAX }
    }

    /// Counts a failure, and returns how long to wait.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.after(self.failures)
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A wait that differs by up to a fifth, so that many which start together do not end together. `share`: 0 to 1.
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
