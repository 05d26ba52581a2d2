//! What all evaluations for one instance may use together, in one decision. [`Limits`](super::Limits) bound a
//! single evaluation; an instance may cause thousands of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::errors::EvalError;
use super::json::json_bytes;
use crate::diag::Diagnostic;

/// The bounds of one decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Steps, counted as [`Limits::fuel`](super::Limits::fuel).
    pub fuel: u64,
    /// Bytes of all values that are kept: those of the instance, of lets, and what expressions give.
    pub memory: usize,
    /// Bytes of all that is rendered, roughly as JSON.
    pub output: usize,
    /// Bytes of rendered objects that are kept to be written. The others have to wait; that is no error.
    pub bodies: usize,
}

impl Totals {
    /// What an instance may use. Beyond it, it is Stalled.
    pub const FULL: Self = Self { fuel: 10_000_000, memory: 32 << 20, output: 32 << 20, bodies: 16 << 20 };

    /// What nearly every instance needs. Who needs more is decided about alone, so that many at once do not need
    /// much memory, and none waits long for a processor.
    pub const SMALL: Self = Self { fuel: 2_000_000, memory: 4 << 20, output: 8 << 20, bodies: 1 << 20 };
}

/// The limit that was passed.
#[derive(Debug, Clone)]
pub struct Exceeded {
    /// What was being evaluated: a child, a ref, a field of the status.
    pub subject: String,
    /// Which limit, and where.
    pub error: Box<Diagnostic>,
    /// Whether it is one of the [`Totals`]; otherwise a single evaluation passed its own limit.
    pub is_total: bool,
}

/// The budget of one decision. Scopes share it; once a limit is passed, nothing more is evaluated.
#[derive(Debug)]
pub struct Budget {
    totals: Totals,
    /// Objects of which no body is kept: those up to this one. `None`: those that need no write.
    shown: Option<usize>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: Totals,
    subject: String,
    exceeded: Option<Exceeded>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(Totals::FULL)
    }
}

impl Budget {
    /// A budget of that size, unused.
    pub fn new(totals: Totals) -> Self {
        let state = State { left: totals, subject: String::new(), exceeded: None };
        Self { totals, shown: None, state: Mutex::new(state) }
    }

    /// The full budget for somebody who shows all objects, be they as they should be or not, and has shown so many.
    pub fn to_show(shown: usize) -> Self {
        Self { shown: Some(shown), ..Self::default() }
    }

    /// How many of all objects were shown already, for who shows them.
    pub fn shown(&self) -> Option<usize> {
        self.shown
    }

    /// Names what the next evaluations are about, for the message.
    pub fn about(&self, subject: &str) {
        let mut state = self.lock();
        if state.exceeded.is_none() {
            state.subject.clear();
            state.subject.push_str(subject);
        }
    }

    /// The first limit that was passed, if one was.
    pub fn exceeded(&self) -> Option<Exceeded> {
        self.lock().exceeded.clone()
    }

    /// What was used so far.
    pub fn used(&self) -> Totals {
        let left = self.lock().left;
        Totals {
            fuel: self.totals.fuel - left.fuel,
            memory: self.totals.memory - left.memory,
            output: self.totals.output - left.output,
            bodies: self.totals.bodies - left.bodies,
        }
    }

    /// Whether what was used would have fit these bounds.
    pub fn fits(&self, totals: Totals) -> bool {
        let used = self.used();
        used.fuel <= totals.fuel
            && used.memory <= totals.memory
            && used.output <= totals.output
            && used.bodies <= totals.bodies
    }

    /// Charges values of the instance and of live objects, which no evaluation makes: twice, for they are
    /// converted. `false` if a limit is passed.
    pub fn charge(&self, value: &Value) -> bool {
        self.charge_bytes(json_bytes(value).saturating_mul(2))
    }

    /// Charges that many bytes. `false` if a limit is passed.
    pub fn charge_bytes(&self, bytes: usize) -> bool {
        let mut state = self.lock();
        if state.exceeded.is_some() {
            return false;
        }
        if let Some(left) = state.left.memory.checked_sub(bytes) {
            state.left.memory = left;
            return true;
        }
        drop(state);
        let diagnostic = Diagnostic::error("template::limit", self.memory_message())
            .help("put fewer values into the instance, or read less of its children");
        self.stop(&diagnostic, true);
        false
    }

    /// What is left; the first limit that was passed, if one was.
    pub(super) fn left(&self) -> Result<Totals, EvalError> {
        let state = self.lock();
        match &state.exceeded {
            None => Ok(state.left),
            Some(exceeded) => Err(EvalError::Limit(exceeded.error.clone())),
        }
    }

    pub(super) fn spend(&self, used: Totals) {
        let left = &mut self.lock().left;
        left.fuel = left.fuel.saturating_sub(used.fuel);
        left.memory = left.memory.saturating_sub(used.memory);
        left.output = left.output.saturating_sub(used.output);
    }

    /// Whether a rendered object can be kept.
    pub fn keep_body(&self, body: &Value) -> bool {
        let bytes = json_bytes(body);
        let left = &mut self.lock().left.bodies;
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or(0);
        rest.is_some()
    }

    /// Ends all evaluation.
    pub(super) fn stop(&self, error: &Diagnostic, is_total: bool) {
        let mut state = self.lock();
        let subject = state.subject.clone();
        state.exceeded.get_or_insert_with(|| Exceeded { subject, error: Box::new(error.clone()), is_total });
    }

    pub(super) fn fuel_message(&self) -> String {
        format!(
            "evaluating this instance passes the limit of {} steps for all its templates together",
            self.totals.fuel
        )
    }

    pub(super) fn memory_message(&self) -> String {
        format!(
            "evaluating this instance passes the limit of {} MiB for all values together",
            self.totals.memory >> 20
        )
    }

    pub(super) fn output_message(&self) -> String {
        format!("the objects of this instance pass the limit of {} MiB together", self.totals.output >> 20)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shared budget, if there is one.
pub(super) type Shared = Option<Arc<Budget>>;
