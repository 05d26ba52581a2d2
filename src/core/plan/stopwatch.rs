//! For how long this process has run a run.

use std::time::Duration;

/// Measures how long a run has been running since its stored state was seen first. The time in which no manager runs it, or
/// in which the instance is paused, does not count; the time of day plays no role.
#[derive(Debug, Clone, Default)]
pub struct Stopwatch {
    stored: Option<u64>,
    elapsed: Duration,
    last: Option<Duration>,
}

impl Stopwatch {
    /// For how long the run has been running beyond its stored `usedMilliseconds`. `now` is a monotonic time.
    pub fn read(&mut self, used_milliseconds: u64, now: Duration, paused: bool) -> Duration {
        if self.stored != Some(used_milliseconds) {
            *self = Self { stored: Some(used_milliseconds), elapsed: Duration::ZERO, last: None };
        }
        if let Some(last) = self.last
            && !paused
        {
            self.elapsed += now.saturating_sub(last);
        }
        self.last = (!paused).then_some(now);
        self.elapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paused_time_does_not_count() {
        let second = Duration::from_secs;
        let mut watch = Stopwatch::default();
        assert_eq!(watch.read(0, second(100), false), second(0));
        assert_eq!(watch.read(0, second(103), false), second(3));
        assert_eq!(watch.read(0, second(104), true), second(3));
        assert_eq!(watch.read(0, second(200), false), second(3));
        assert_eq!(watch.read(0, second(201), false), second(4));
        // The state was stored.
        assert_eq!(watch.read(5000, second(201), false), second(0));
        assert_eq!(watch.read(5000, second(202), false), second(1));
    }
}
