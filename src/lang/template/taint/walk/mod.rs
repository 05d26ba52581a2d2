//! Evaluates a text abstractly and records which value it inserts at which position of the document.

mod calls;
mod expressions;
mod statements;

use std::collections::BTreeMap;

use super::{Inserted, Level, Locals, Position, Taint, TaintScope, TaintTree, lone};
use crate::diag::{Location, Span};
use crate::template::Engine;
use crate::template::code::{Stmt, Unit};
use crate::template::value::Name;

/// The maximum number of visited nodes per analysis. Beyond it, everything counts as tainted.
const MAX_STEPS: usize = 50_000;

/// The maximum depth of calls of macros, partials and `let`s.
const MAX_OPEN: usize = 20;

/// The maximum number of rounds until the fields of namespaces no longer change.
const MAX_ROUNDS: usize = 8;

/// The source that is named for a generated value.
pub(super) const GENERATED: &str = "a generated value";

/// A value in a document.
struct Placed {
    positions: Vec<Position>,
    tree: TaintTree,
    location: Location,
}

pub(super) struct Walk<'e> {
    engine: &'e Engine,
    scope: &'e TaintScope<'e>,
    unit: &'e Unit,
    /// The taint of everything that the walk does not visit.
    secret: Taint,
    /// The variables that the enclosing partials have received.
    given: Locals,
    locals: Locals,
    frames: Vec<usize>,
    /// The fields of all namespaces, by name.
    namespaces: BTreeMap<Name, TaintTree>,
    /// The taint of the conditions of the current statement.
    control: Option<Taint>,
    out: Vec<Placed>,
    /// Tainted keys in text that is inserted elsewhere.
    keys: Vec<Inserted>,
    /// Whether the text is YAML, not a single value.
    yaml: bool,
    /// Whether the output is a document whose positions are known.
    placed: bool,
    steps: usize,
    open: usize,
    lets: Vec<String>,
}

impl<'e> Walk<'e> {
    pub(super) fn new(engine: &'e Engine, scope: &'e TaintScope<'e>, unit: &'e Unit, secret: Taint) -> Self {
        Self {
            engine,
            scope,
            unit,
            secret,
            given: Locals::new(),
            locals: Locals::new(),
            frames: Vec::new(),
            namespaces: BTreeMap::new(),
            control: None,
            out: Vec::new(),
            keys: Vec::new(),
            yaml: false,
            placed: false,
            steps: 0,
            open: 0,
            lets: Vec::new(),
        }
    }

    /// The result, or everything tainted if the analysis was cut off.
    pub(super) fn finished(&self, tree: TaintTree) -> TaintTree {
        if self.is_exhausted() { self.anything() } else { tree }
    }

    fn is_exhausted(&self) -> bool {
        self.steps > MAX_STEPS
    }

    /// The taint of an unknown value.
    fn anything(&self) -> TaintTree {
        TaintTree::tainted(self.secret.at_least(Level::Bits))
    }

    /// The taint of a text.
    pub(super) fn text(&mut self, unit: &'e Unit) -> TaintTree {
        if let Some(node) = lone(unit) {
            return self.eval(node);
        }
        let yaml = std::mem::replace(&mut self.yaml, false);
        let out = self.collect(false, |walk| walk.unit_body(unit));
        self.yaml = yaml;
        folded(&out)
    }

    /// The tainted values that a template inserts.
    pub(super) fn document(&mut self, unit: &'e Unit) -> Vec<Inserted> {
        self.yaml = true;
        let out = self.collect(true, |walk| walk.unit_body(unit));
        if self.is_exhausted() {
            let location = Location::new(&unit.source, Span::default());
            let taint = self.secret.at_least(Level::Bits);
            return vec![Inserted { path: Vec::new(), key: false, taint, location }];
        }
        let mut found = std::mem::take(&mut self.keys);
        for Placed { positions, tree, location } in out {
            for (below, taint) in tree.parts() {
                for Position { path, key } in &positions {
                    let path: Vec<String> = path.iter().chain(&below).cloned().collect();
                    let inserted =
                        Inserted { path, key: *key, taint: taint.clone(), location: location.clone() };
                    let same = |known: &Inserted| {
                        known.location == inserted.location
                            && known.path == inserted.path
                            && known.key == inserted.key
                    };
                    if !found.iter().any(same) {
                        found.push(inserted);
                    }
                }
            }
        }
        found
    }

    /// Walks all statements until the fields of namespaces no longer change.
    fn unit_body(&mut self, unit: &'e Unit) {
        let start = self.out.len();
        self.stable(|walk| {
            walk.out.truncate(start);
            walk.locals.clear();
            walk.frames.clear();
            walk.stmts(&unit.body);
        });
    }

    fn stable(&mut self, mut round: impl FnMut(&mut Self)) {
        for _ in 0..MAX_ROUNDS {
            let before = self.namespaces.clone();
            round(self);
            let same =
                |(name, tree): (&Name, &TaintTree)| before.get(name).is_some_and(|old| old.covers(tree));
            if self.namespaces.iter().all(same) {
                return;
            }
        }
        for tree in self.namespaces.values_mut() {
            *tree = std::mem::take(tree).limited(0);
        }
        round(self);
    }

    /// Collects the values that are inserted during `work`.
    fn collect(&mut self, placed: bool, work: impl FnOnce(&mut Self)) -> Vec<Placed> {
        let out = std::mem::take(&mut self.out);
        let was_placed = std::mem::replace(&mut self.placed, placed);
        work(self);
        self.placed = was_placed;
        std::mem::replace(&mut self.out, out)
    }

    /// The output of statements as one value.
    fn captured(&mut self, body: &'e [Stmt]) -> TaintTree {
        let out = self.collect(false, |walk| {
            walk.frames.push(walk.locals.len());
            walk.stmts(body);
            walk.close();
        });
        folded(&out)
    }

    fn close(&mut self) {
        if let Some(start) = self.frames.pop() {
            self.locals.truncate(start);
        }
    }

    /// Records literal text whose presence depends on a condition.
    fn put_written(&mut self, span: Span) {
        let ends = [Span::new(span.start, span.start + 1), Span::new(span.end - 1, span.end)];
        let positions = ends.into_iter().flat_map(|end| (self.scope.positions)(&self.unit.source, end));
        // A literal key is not secret.
        let mut positions: Vec<_> = positions.map(|position| Position { key: false, ..position }).collect();
        if positions.is_empty() {
            positions.push(Position { path: Vec::new(), key: false });
        }
        self.place(TaintTree::of(self.control.clone()), ends[0], positions);
    }

    /// Inserts a value.
    fn put(&mut self, tree: TaintTree, span: Span) {
        let tree = tree.with(self.control.clone());
        if tree.any().is_none() {
            return;
        }
        let positions = (self.scope.positions)(&self.unit.source, span);
        self.place(tree, span, positions);
    }

    fn place(&mut self, tree: TaintTree, span: Span, mut positions: Vec<Position>) {
        let location = Location::new(&self.unit.source, span);
        if !self.placed {
            // The position of the text is known only to the caller, which inserts it. But a key is a key
            // wherever it is inserted.
            if self.yaml
                && positions.iter().any(|position| position.key)
                && let Some(taint) = tree.any()
                && !self.keys.iter().any(|known| known.location == location)
            {
                self.keys.push(Inserted { path: Vec::new(), key: true, taint, location: location.clone() });
            }
            positions = vec![Position { path: Vec::new(), key: false }];
        }
        self.out.push(Placed { positions, tree, location });
    }
}

/// The taint of a text that is composed of inserted values.
fn folded(out: &[Placed]) -> TaintTree {
    let told = out.iter().fold(None, |told, placed| Taint::higher(told, placed.tree.any()));
    TaintTree::of(told.map(|told| told.at_least(Level::Derived)))
}
