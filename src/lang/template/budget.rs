//! The budget of all evaluations for one instance in one decision. [`Limits`](super::Limits) limits a single
//! evaluation, but an instance may cause thousands of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::errors::EvalError;
use super::json::json_bytes;
use crate::diag::Diagnostic;

/// The limits of one decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Steps, counted like [`Limits::fuel`](super::Limits::fuel).
    pub fuel: u64,
    /// Bytes of all kept values: those of the instance, of lets, and results of expressions.
    pub memory: usize,
    /// Bytes of all rendered objects, roughly as JSON.
    pub output: usize,
    /// Bytes of rendered objects that are kept to be written. Objects beyond it wait for a later decision.
    pub bodies: usize,
}

impl Totals {
    /// The limits of an instance. An instance that exceeds them becomes Stalled.
    pub const FULL: Self = Self { fuel: 10_000_000, memory: 32 << 20, output: 32 << 20, bodies: 8 << 20 };

    /// A budget that allows nothing.
    pub const NONE: Self = Self { fuel: 0, memory: 0, output: 0, bodies: 0 };

    /// The limits of the first evaluation, enough for nearly every instance. Larger instances are evaluated one at
    /// a time, so that parallel evaluations need little memory and none waits long for a processor.
    pub const SMALL: Self = Self { fuel: 2_000_000, memory: 4 << 20, output: 8 << 20, bodies: 1 << 20 };

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            fuel: self.fuel.saturating_add(other.fuel),
            memory: self.memory.saturating_add(other.memory),
            output: self.output.saturating_add(other.output),
            bodies: self.bodies.saturating_add(other.bodies),
        }
    }

    /// Whether no part exceeds its bound.
    pub fn fits(&self, bounds: Self) -> bool {
        self.fuel <= bounds.fuel
            && self.memory <= bounds.memory
            && self.output <= bounds.output
            && self.bodies <= bounds.bodies
    }
}

/// The exceeded limit.
#[derive(Debug, Clone)]
pub struct Exceeded {
    /// The subject of the evaluation: a child, a ref, a field of the status.
    pub subject: String,
    /// The limit and its position.
    pub error: Box<Diagnostic>,
    /// Whether it is one of the [`Totals`]; otherwise a single evaluation exceeded its own limit.
    pub is_total: bool,
}

/// The budget of one decision, shared by its scopes. After a limit is exceeded, nothing more is evaluated.
#[derive(Debug)]
pub struct Budget {
    totals: Totals,
    /// The number of objects that the caller has already shown. `None`: the caller does not show objects, and
    /// up-to-date objects need no body.
    shown: Option<usize>,
    /// Whether it is the budget of the steps of a run.
    is_of_run: bool,
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
    /// An unused budget with these limits.
    pub fn new(totals: Totals) -> Self {
        let state = State { left: totals, subject: String::new(), exceeded: None };
        Self { totals, shown: None, is_of_run: false, state: Mutex::new(state) }
    }

    /// The budget of the steps of one run in one decision. An evaluation that exceeds its own limit stops no other. Once the
    /// totals are exceeded, all further evaluations are unknown: the next decision has another budget.
    pub fn of_run(totals: Totals) -> Self {
        Self { is_of_run: true, ..Self::new(totals) }
    }

    /// The full budget for a caller that shows all objects and has already shown that many.
    pub fn to_show(shown: usize) -> Self {
        Self { shown: Some(shown), ..Self::default() }
    }

    /// How many objects the caller has already shown.
    pub fn shown(&self) -> Option<usize> {
        self.shown
    }

    /// Sets the subject of the next evaluations, for the message.
    pub fn about(&self, subject: &str) {
        let mut state = self.lock();
        if state.exceeded.is_none() {
            state.subject.clear();
            state.subject.push_str(subject);
        }
    }

    /// The first exceeded limit.
    pub fn exceeded(&self) -> Option<Exceeded> {
        self.lock().exceeded.clone()
    }

    /// The use so far.
    pub fn used(&self) -> Totals {
        let left = self.lock().left;
        Totals {
            fuel: self.totals.fuel - left.fuel,
            memory: self.totals.memory - left.memory,
            output: self.totals.output - left.output,
            bodies: self.totals.bodies - left.bodies,
        }
    }

    /// Charges values of the instance and of live objects twice, because they are converted. Returns false if a limit
    /// is exceeded.
    pub fn charge(&self, value: &Value) -> bool {
        self.charge_bytes(json_bytes(value).saturating_mul(2))
    }

    /// Charges bytes. Returns false if a limit is exceeded.
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

    /// The remaining totals, or the error of the first exceeded limit.
    pub(super) fn left(&self) -> Result<Totals, EvalError> {
        let state = self.lock();
        match &state.exceeded {
            None => Ok(state.left),
            Some(_) if self.is_of_run => Err(EvalError::Unknown {
                path: "the step".to_owned(),
                reason: "the steps before it have used up what one decision may compute".to_owned(),
            }),
            Some(exceeded) => Err(EvalError::Limit(exceeded.error.clone())),
        }
    }

    pub(super) fn spend(&self, used: Totals) {
        let left = &mut self.lock().left;
        left.fuel = left.fuel.saturating_sub(used.fuel);
        left.memory = left.memory.saturating_sub(used.memory);
        left.output = left.output.saturating_sub(used.output);
    }

    /// Whether a rendered object fits into the kept bodies.
    pub fn keep_body(&self, body: &Value) -> bool {
        let bytes = json_bytes(body);
        let left = &mut self.lock().left.bodies;
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or(0);
        rest.is_some()
    }

    /// Stops all evaluation.
    pub(super) fn stop(&self, error: &Diagnostic, is_total: bool) {
        if self.is_of_run && !is_total {
            return;
        }
        let mut state = self.lock();
        let subject = state.subject.clone();
        state.exceeded.get_or_insert_with(|| Exceeded { subject, error: Box::new(error.clone()), is_total });
    }

    pub(super) fn fuel_message(&self) -> String {
        let (what, of) = self.names();
        format!("evaluating {what} exceeds the limit of {} steps for all {of} together", self.totals.fuel)
    }

    /// The subject of the budget and its parts, for messages.
    fn names(&self) -> (&'static str, &'static str) {
        if self.is_of_run { ("the steps of this run", "of them") } else { ("this instance", "its templates") }
    }

    pub(super) fn memory_message(&self) -> String {
        format!(
            "evaluating {} exceeds the limit of {} MiB for all values together",
            self.names().0,
            self.totals.memory >> 20
        )
    }

    pub(super) fn output_message(&self) -> String {
        format!("the objects of this instance exceed the limit of {} MiB together", self.totals.output >> 20)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shared budget, if there is one.
pub(super) type Shared = Option<Arc<Budget>>;
