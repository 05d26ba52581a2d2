//! Waits until something is done, is known to be blocked, or takes too long.

use std::time::Duration;

use tokio::time::Instant;

use super::command::{Failure, TIMED_OUT};
use super::out;

/// What a look at the cluster has found.
pub(super) enum Look<T> {
    /// It is done.
    Done(T),
    /// It may go on by itself. The text says what is awaited; it is empty if there is nothing to say.
    Waits(String),
    /// It does not go on until a person acts. The failure says why. It must be found for this long without a change, because
    /// the cluster may still show what was before.
    Blocked(Failure, Duration),
}

/// How to wait.
pub(super) struct Wait {
    /// How often to look.
    pub period: Duration,
    /// How long to wait; `None`: without a limit.
    pub timeout: Option<Duration>,
    /// Do not print what is awaited.
    pub is_quiet: bool,
}

impl Wait {
    pub(super) fn new(period: Duration, timeout: Duration) -> Self {
        Self { period, timeout: Some(timeout), is_quiet: false }
    }

    /// Looks until something is done, and prints what is awaited whenever that changes.
    ///
    /// # Errors
    /// The failure of a look, what blocks it, or that the time is over: `over` says so, and is given what was awaited last.
    pub(super) async fn until<T>(
        self,
        over: impl FnOnce(&str) -> String,
        mut look: impl AsyncFnMut() -> Result<Look<T>, Failure>,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        let mut told = String::new();
        let mut blocked: Option<(Failure, Instant)> = None;
        loop {
            match look().await? {
                Look::Done(done) => return Ok(done),
                Look::Waits(words) => {
                    blocked = None;
                    if !words.is_empty() && words != told {
                        if !self.is_quiet {
                            out::note(&words);
                        }
                        told = words;
                    }
                }
                Look::Blocked(failure, holds) => {
                    let before = blocked.take().filter(|(before, _)| *before == failure);
                    let since = before.map_or_else(Instant::now, |(_, since)| since);
                    if since.elapsed() >= holds {
                        return Err(failure);
                    }
                    blocked = Some((failure, since));
                }
            }
            if self.timeout.is_some_and(|timeout| started.elapsed() >= timeout) {
                // A known cause is reported, although it has not lasted long enough yet.
                return Err(blocked
                    .map_or_else(|| Failure::with_code(TIMED_OUT, over(&told)), |(failure, _)| failure));
            }
            tokio::time::sleep(self.period).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Waits with one look a second and repeats the last one. Returns how the wait ended, and after how many seconds.
    async fn ends(looks: &[&str]) -> (Result<(), Failure>, u64) {
        let started = Instant::now();
        let mut next = looks.iter();
        let mut last = "";
        let wait = Wait { is_quiet: true, ..Wait::new(SECOND, SECOND * 10) };
        let end = wait.until(
            |why| format!("late: {why}"),
            async || {
                last = next.next().copied().unwrap_or(last);
                Ok(match last.split_once('!') {
                    Some((why, _)) => Look::Blocked(why.into(), SECOND * 3),
                    None if last == "done" => Look::Done(()),
                    None => Look::Waits(last.to_owned()),
                })
            },
        );
        (end.await, started.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_the_cause_has_lasted() {
        let late = |why: &str| Err(Failure::with_code(TIMED_OUT, format!("late: {why}")));
        for (looks, expected, seconds) in [
            (&["a", "done"][..], Ok(()), 1),
            (&["a", "b", ""], late("b"), 10),
            (&["a", "x!"], Err("x".into()), 4),
            // A cause that passes was about the state before, and does not end the wait.
            (&["x!", "x!", "done"], Ok(()), 2),
            (&["x!", "x!", "a", "x!"], Err("x".into()), 6),
            (&["x!", "x!", "y!"], Err("y".into()), 5),
            // When the time is over, a known cause is reported instead.
            (&["a", "a", "a", "a", "a", "a", "a", "a", "a", "x!"], Err("x".into()), 10),
        ] {
            assert_eq!(ends(looks).await, (expected, seconds), "{looks:?}");
        }
    }
}
