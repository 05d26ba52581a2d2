//! What one evaluation may use. A package and the values of an instance are both input; neither may
//! take the manager down.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::Engine;
use super::errors::{Fault, Res};

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

/// One evaluation, with what is left of its bounds.
pub(super) struct Run<'e> {
    pub(super) engine: &'e Engine,
    pub(super) limits: Limits,
    /// Whether something is decided by it, such as whether there is a child: what the status of a live object does
    /// not have is then unknown.
    pub(super) decides: bool,
    fuel: Cell<u64>,
    memory: Cell<usize>,
    depth: Cell<usize>,
    /// The lets being evaluated, each with the layer it is evaluated in.
    pub(super) lets: RefCell<Vec<(usize, Arc<str>)>>,
}

impl<'e> Run<'e> {
    pub(super) fn new(engine: &'e Engine) -> Self {
        let limits = engine.limits;
        Self {
            engine,
            limits,
            decides: false,
            fuel: Cell::new(limits.fuel),
            memory: Cell::new(limits.memory),
            depth: Cell::new(0),
            lets: RefCell::new(Vec::new()),
        }
    }

    /// One by which something is decided.
    pub(super) fn deciding(engine: &'e Engine) -> Self {
        Self { decides: true, ..Self::new(engine) }
    }

    /// Uses up that many steps.
    pub(super) fn fuel(&self, steps: usize) -> Res<()> {
        let steps = steps as u64;
        let left = self.fuel.get();
        if left < steps {
            self.fuel.set(0);
            return Err(Fault::limit(
                format!("the work of this evaluation passes the limit of {} steps", self.limits.fuel),
                "loop over less",
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
