//! Instances whose evaluation stopped at a limit. The same input would stop again, at the highest cost. The instance is
//! evaluated again when its input has changed; if the input keeps changing, with growing pauses.

use std::time::Duration;

use crate::backoff::Backoff;

/// After how many evaluations in a row that stop at a limit the pauses begin.
const FREE: u32 = 3;
/// The pauses between evaluations.
const PAUSE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// What is remembered of an instance whose evaluation stopped at a limit.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// A hash of the input, if the status already reports the limit.
    input: Option<u64>,
    /// How many evaluations in a row stopped.
    count: u32,
    /// The time before which it is not evaluated again.
    not_before: Duration,
}

/// Whether to evaluate an instance now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Evaluate {
    /// Now.
    Now,
    /// After a pause.
    Later(Duration),
    /// Not before the input changes.
    OnChange,
}

impl Stopped {
    /// Whether to evaluate this input.
    pub(super) fn evaluate(&self, input: impl FnOnce() -> u64, now: Duration) -> Evaluate {
        if self.input.is_some_and(|before| before == input()) {
            return Evaluate::OnChange;
        }
        match self.not_before.checked_sub(now) {
            Some(pause) if !pause.is_zero() => Evaluate::Later(pause),
            _ => Evaluate::Now,
        }
    }

    /// Counts an evaluation that stopped at a limit.
    pub(super) fn note(&mut self, input: Option<u64>, now: Duration) {
        self.input = input;
        self.count = self.count.saturating_add(1);
        if self.count >= FREE {
            self.not_before = now + PAUSE.exact(self.count - FREE + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_input_is_not_evaluated_again_and_changing_input_pauses() {
        let secs = Duration::from_secs;
        let mut stopped = Stopped::default();
        // The status does not report the limit yet, so the same input is evaluated again.
        stopped.note(None, secs(0));
        assert_eq!(stopped.evaluate(|| 1, secs(0)), Evaluate::Now);
        stopped.note(Some(1), secs(0));
        assert_eq!(stopped.evaluate(|| 1, secs(1_000)), Evaluate::OnChange);
        assert_eq!(stopped.evaluate(|| 2, secs(0)), Evaluate::Now);
        let mut pauses = Vec::new();
        for input in 2..12 {
            stopped.note(Some(input), secs(0));
            assert_eq!(stopped.evaluate(|| input, secs(0)), Evaluate::OnChange);
            match stopped.evaluate(|| 99, secs(0)) {
                Evaluate::Later(pause) => pauses.push(pause.as_secs()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(stopped.evaluate(|| 99, secs(60)), Evaluate::Now);
    }
}
