//! Whether the API server checks who requests, cancels and answers runs. It does by admission policies, which somebody may
//! delete or alter. What is written meanwhile may be forged.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

/// How long API servers may take until a policy that is back is in force.
pub const SETTLE: Duration = Duration::from_secs(10);

/// Whether the API server checks who requests, cancels and answers runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Protection {
    /// Whether it is known now. If not, what is new waits.
    pub is_unknown: bool,
    /// Why it does not check now: names the policy.
    pub broken: Option<Arc<str>>,
    /// Since when it has been checking; `None` if always. May be in the future.
    pub since: Option<Timestamp>,
}

impl Protection {
    /// Whether it is being found out: what is new waits.
    pub fn is_awaited(&self) -> bool {
        self.is_unknown && self.broken.is_none()
    }

    /// Why requests and answers do not count now.
    pub fn problem(&self, now: Timestamp) -> Option<String> {
        if let Some(broken) = &self.broken {
            return Some(broken.to_string());
        }
        if self.is_unknown {
            return Some("an admission policy of Operetta has changed and is being checked".to_owned());
        }
        let since = self.since.filter(|since| now < *since)?;
        Some(format!("an admission policy of Operetta was restored and counts from {since:.0} on"))
    }

    /// How long until it counts again, if it is known.
    pub fn wake(&self, now: Timestamp) -> Option<Duration> {
        let since = self.since.filter(|since| self.broken.is_none() && now < *since)?;
        Duration::try_from(since.duration_since(now)).ok()
    }

    /// Whether what was created at that time was checked. The API server cuts times to seconds.
    pub fn covers(&self, created: &str) -> bool {
        let covers = |since: Timestamp| {
            let created = created.parse::<Timestamp>();
            created.is_ok_and(|created| created.as_second() >= since.as_second())
        };
        self.since.is_none_or(covers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_only_from_the_time_when_a_restored_policy_is_in_force() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-01-01T00:00:05Z");
        let whole = Protection::default();
        assert_eq!(
            (whole.problem(now), whole.wake(now), whole.covers("2020-01-01T00:00:00Z")),
            (None, None, true)
        );
        let broken = Protection { broken: Some("gone".into()), ..Protection::default() };
        assert_eq!((broken.problem(now).as_deref(), broken.wake(now)), (Some("gone"), None));
        let settling = Protection { since: Some(at("2026-01-01T00:00:10Z")), ..Protection::default() };
        assert!(settling.problem(now).unwrap().ends_with("counts from 2026-01-01T00:00:10Z on"));
        assert_eq!(settling.wake(now), Some(Duration::from_secs(5)));
        assert_eq!(settling.problem(at("2026-01-01T00:00:10Z")), None);
        assert!(settling.covers("2026-01-01T00:00:10Z"));
        let settled = Protection { since: Some(at("2026-01-01T00:00:10.7Z")), ..Protection::default() };
        assert!(
            settled.covers("2026-01-01T00:00:10Z"),
            "it was created in the second in which it counts again"
        );
        assert!(!settling.covers("2026-01-01T00:00:09Z") && !settling.covers(""));
    }
}
