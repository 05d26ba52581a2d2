//! What one evaluation may use. A package and the values of an instance are both input; neither may
//! take the manager down.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::Engine;
use super::budget::{Shared, Totals};
use super::errors::{EvalError, Fault, Res};
use super::json::Meter;

/// Bounds of templates and of their evaluation. Past each of them is an error that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steps of one evaluation: an operation, an item that a filter looks at.
    pub fuel: u64,
    /// Bytes of strings, lists and maps that one evaluation makes.
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

/// How deep a value may be nested. Deeper ones cannot be made, so all code may recurse over values.
pub(super) const VALUE_DEPTH: u16 = 128;

/// Bytes that a value in a list or a map counts for.
pub(super) const VALUE_BYTES: usize = 48;

/// Bytes that a map counts for beside its entries: a small one takes as much room as one of ten entries.
pub(super) const MAP_BYTES: usize = 512;

/// One evaluation, with what is left of its bounds.
pub(super) struct Run<'e> {
    pub(super) engine: &'e Engine,
    pub(super) limits: Limits,
    /// Whether something is decided by it, such as whether there is a child: what the status of a live object does
    /// not have is then unknown.
    pub(super) decides: bool,
    /// The budget that it shares with others, and what was left of that at its begin.
    budget: Shared,
    start: Totals,
    fuel: Cell<u64>,
    memory: Cell<usize>,
    output: Cell<usize>,
    /// Bytes of what outlives the evaluation.
    kept: Cell<usize>,
    /// Whether a limit was passed that others share.
    passed_total: Cell<bool>,
    depth: Cell<usize>,
    /// The lets being evaluated, each with the layer it is evaluated in.
    pub(super) lets: RefCell<Vec<(usize, Arc<str>)>>,
}

impl<'e> Run<'e> {
    /// An evaluation without others.
    pub(super) fn new(engine: &'e Engine) -> Self {
        let left = Totals { fuel: u64::MAX, memory: usize::MAX, output: usize::MAX, bodies: usize::MAX };
        Self::with(engine, None, left)
    }

    /// An evaluation within a budget.
    ///
    /// # Errors
    /// A limit has been passed before.
    pub(super) fn within(engine: &'e Engine, budget: &Shared) -> Result<Self, EvalError> {
        let Some(shared) = budget else { return Ok(Self::new(engine)) };
        let left = shared.left()?;
        Ok(Self::with(engine, Some(Arc::clone(shared)), left))
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
            lets: RefCell::new(Vec::new()),
        }
    }

    /// The same, by which something is decided.
    pub(super) fn deciding(self) -> Self {
        Self { decides: true, ..self }
    }

    /// Ends it: charges the budget, and stops all evaluation once a limit is passed.
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

    /// Uses up that many steps.
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
                format!("the work of this evaluation passes the limit of {} steps", self.limits.fuel),
                help,
            ));
        }
        self.fuel.set(left - steps);
        Ok(())
    }

    /// Uses up that many bytes. To be called before they are allocated.
    pub(super) fn memory(&self, bytes: usize) -> Res<()> {
        let left = self.memory.get();
        if left < bytes {
            return Err(Fault::limit(
                format!("the values made here pass the limit of {} bytes", self.limits.memory),
                "make smaller strings and lists",
            ));
        }
        self.memory.set(left - bytes);
        Ok(())
    }

    /// How many bytes are left.
    pub(super) fn memory_left(&self) -> usize {
        self.memory.get()
    }

    /// Counts what outlives the evaluation.
    pub(super) fn keep(&self, bytes: usize) -> Res<()> {
        let kept = self.kept.get().saturating_add(bytes);
        self.kept.set(kept);
        match &self.budget {
            Some(budget) if kept > self.start.memory => {
                self.passed_total.set(true);
                Err(Fault::limit(budget.memory_message(), "make fewer or smaller values"))
            }
            _ => Ok(()),
        }
    }

    /// Uses up what a map takes beside its entries.
    pub(super) fn map(&self, entries: usize) -> Res<()> {
        if entries == 0 { Ok(()) } else { self.memory(MAP_BYTES) }
    }

    /// Counts the bytes of a result.
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

    /// Uses up what a list of that many items takes.
    pub(super) fn items(&self, count: usize) -> Res<()> {
        self.fuel(count)?;
        self.memory(count.saturating_mul(VALUE_BYTES))
    }

    /// Goes `levels` deeper. Each success needs a [`Run::leave`].
    pub(super) fn enter(&self, levels: usize) -> Res<()> {
        let depth = self.depth.get() + levels;
        if depth > self.limits.nesting {
            return Err(Fault::limit(
                format!("the nesting passes the limit of {} levels", self.limits.nesting),
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
