//! Limits of one evaluation. A package and the values of an instance are input; neither may crash the manager.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::Engine;
use super::budget::{Shared, Totals};
use super::errors::{EvalError, Fault, Res};
use super::json::Meter;
use super::scope::Scope;
use super::value::Val;

/// Limits of templates and of their evaluation. Exceeding one is an error that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steps of one evaluation: an operation, or an item that a filter visits.
    pub fuel: u64,
    /// Bytes of strings, lists and maps that one evaluation creates.
    pub memory: usize,
    /// Bytes of one rendered document, roughly as JSON.
    pub output: usize,
    /// Nested calls at evaluation: operators within operators, macros, partials, lets.
    pub nesting: usize,
    /// Bytes of one template file.
    pub source: usize,
    /// Bytes of one expression, or of one string of `operator.yaml`.
    pub expression: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel: 500_000,
            memory: 16 << 20,
            output: 1 << 20,
            nesting: 400,
            source: 256 << 10,
            expression: 16 << 10,
        }
    }
}

/// The maximum nesting of a value. Deeper values cannot be created, so all code may recurse over values.
pub(super) const VALUE_DEPTH: u16 = 128;

/// The bytes that a value in a list or a map counts for.
pub(super) const VALUE_BYTES: usize = 48;

/// The bytes that a map counts for in addition to its entries: a small map takes as much memory as one of ten entries.
pub(super) const MAP_BYTES: usize = 512;

/// One evaluation, with its remaining limits.
pub(super) struct Run<'e> {
    pub(super) engine: &'e Engine,
    pub(super) limits: Limits,
    /// Whether the result is a decision, for instance whether a child exists. Then a field that is absent
    /// from the status of a live object is unknown.
    pub(super) decides: bool,
    /// The shared budget, and what was left of it at the start.
    budget: Shared,
    start: Totals,
    fuel: Cell<u64>,
    memory: Cell<usize>,
    output: Cell<usize>,
    /// Bytes of values that outlive the evaluation.
    kept: Cell<usize>,
    /// Whether a shared limit was exceeded.
    passed_total: Cell<bool>,
    depth: Cell<usize>,
    /// How many values calls have generated.
    generated: Cell<usize>,
    /// The lets being evaluated, each with the layer it is evaluated in.
    pub(super) lets: RefCell<Vec<(usize, Arc<str>)>>,
}

impl<'e> Run<'e> {
    /// Creates an evaluation without a shared budget.
    pub(super) fn new(engine: &'e Engine) -> Self {
        let left = Totals { fuel: u64::MAX, memory: usize::MAX, output: usize::MAX, bodies: usize::MAX };
        Self::with(engine, None, left)
    }

    /// Creates an evaluation within the budget of a scope.
    ///
    /// # Errors
    /// A limit of the budget has been exceeded before.
    pub(super) fn within(engine: &'e Engine, scope: &Scope) -> Result<Self, EvalError> {
        let run = match scope.budget() {
            None => Self::new(engine),
            Some(shared) => Self::with(engine, Some(Arc::clone(shared)), shared.left()?),
        };
        Ok(Self { decides: scope.decides(), ..run })
    }

    fn with(engine: &'e Engine, budget: Shared, left: Totals) -> Self {
        let limits = engine.limits;
        let start = Totals { fuel: left.fuel.min(limits.fuel), ..left };
        Self {
            engine,
            limits,
            decides: false,
            budget,
            start,
            fuel: Cell::new(start.fuel),
            memory: Cell::new(limits.memory),
            kept: Cell::new(0),
            output: Cell::new(start.output),
            passed_total: Cell::new(false),
            depth: Cell::new(0),
            generated: Cell::new(0),
            lets: RefCell::new(Vec::new()),
        }
    }

    /// The same evaluation, with a result that is a decision.
    pub(super) fn deciding(self) -> Self {
        Self { decides: true, ..self }
    }

    /// Ends the evaluation and charges the budget. If a limit is exceeded, all evaluation stops.
    pub(super) fn finish<T>(self, result: Res<T>) -> Result<T, EvalError> {
        let result = result.map_err(EvalError::from);
        if let Some(budget) = &self.budget {
            budget.spend(Totals {
                fuel: self.start.fuel - self.fuel.get(),
                memory: self.kept.get(),
                output: self.start.output - self.output.get(),
                bodies: 0,
            });
            if let Err(EvalError::Limit(diagnostic)) = &result {
                budget.stop(diagnostic, self.passed_total.get());
            }
        }
        result
    }

    /// Charges steps.
    pub(super) fn fuel(&self, steps: usize) -> Res<()> {
        let steps = steps as u64;
        let left = self.fuel.get();
        if left < steps {
            self.fuel.set(0);
            let help = "loop over less";
            if let Some(budget) = self.budget.as_ref().filter(|_| self.start.fuel < self.limits.fuel) {
                self.passed_total.set(true);
                return Err(Fault::limit(budget.fuel_message(), help));
            }
            return Err(Fault::limit(
                format!("this evaluation exceeds the limit of {} steps", self.limits.fuel),
                help,
            ));
        }
        self.fuel.set(left - steps);
        Ok(())
    }

    /// Charges bytes. Must be called before they are allocated.
    pub(super) fn memory(&self, bytes: usize) -> Res<()> {
        let left = self.memory.get();
        if left < bytes {
            return Err(Fault::limit(
                format!("the values of this evaluation exceed the limit of {} bytes", self.limits.memory),
                "create smaller strings and lists",
            ));
        }
        self.memory.set(left - bytes);
        Ok(())
    }

    /// The number of the next generated value.
    pub(super) fn next_generated(&self) -> Val {
        self.generated.set(self.generated.get() + 1);
        Val::usize(self.generated.get())
    }

    /// The remaining bytes.
    pub(super) fn memory_left(&self) -> usize {
        self.memory.get()
    }

    /// Counts bytes that outlive the evaluation.
    pub(super) fn keep(&self, bytes: usize) -> Res<()> {
        let kept = self.kept.get().saturating_add(bytes);
        self.kept.set(kept);
        match &self.budget {
            Some(budget) if kept > self.start.memory => {
                self.passed_total.set(true);
                Err(Fault::limit(budget.memory_message(), "create fewer or smaller values"))
            }
            _ => Ok(()),
        }
    }

    /// Charges the bytes of a map in addition to those of its entries.
    pub(super) fn map(&self, entries: usize) -> Res<()> {
        if entries == 0 { Ok(()) } else { self.memory(MAP_BYTES) }
    }

    /// Charges the bytes of a result.
    pub(super) fn output(&self, meter: &Meter) -> Res<()> {
        let left = self.output.get();
        let Some(rest) = left.checked_sub(meter.used()) else {
            self.passed_total.set(true);
            let message = self.budget.as_ref().map(|budget| budget.output_message()).unwrap_or_default();
            return Err(Fault::limit(message, "render fewer or smaller objects"));
        };
        self.output.set(rest);
        Ok(())
    }

    /// Charges the bytes of a list with that many items.
    pub(super) fn items(&self, count: usize) -> Res<()> {
        self.fuel(count)?;
        self.memory(count.saturating_mul(VALUE_BYTES))
    }

    /// Enters `levels` levels. Each success must be followed by a [`Run::leave`].
    pub(super) fn enter(&self, levels: usize) -> Res<()> {
        let depth = self.depth.get() + levels;
        if depth > self.limits.nesting {
            return Err(Fault::limit(
                format!("the nesting exceeds the limit of {} levels", self.limits.nesting),
                "end the recursion, or split the expression with `set`",
            ));
        }
        self.depth.set(depth);
        Ok(())
    }

    pub(super) fn leave(&self, levels: usize) {
        self.depth.set(self.depth.get().saturating_sub(levels));
    }
}
