//! Evaluates expressions and statements abstractly: instead of a value, an expression yields the paths that the value may
//! come from, and which parts of it may be secret.
//!
//! Names that stand for a path (`set`, `for`, `with`, variables of a partial) are followed, so that
//! `{% set c = refs.cluster %}{{ c.spec.size }}` reads `refs.cluster.spec.size`. Both branches of a condition are
//! evaluated, and afterwards a variable may have the value of either. An uncertain value counts as tainted. See
//! `docs/design/0039-one-walker.md`.

mod calls;
mod expressions;
mod filters;
mod paths;
mod statements;

use std::collections::{BTreeMap, BTreeSet};

use super::code::{Node, Stmt, Unit};
use super::names::Names;
use super::reads::{Reads, Segment};
use super::taint::{Inserted, Level, Position, Taint, TaintScope, TaintTree};
use super::text::TextUnit;
use super::value::Name;
use super::{Engine, Expr, Template, Text};
use crate::diag::{Diagnostic, Location, Span};

use paths::Paths;

/// The maximum number of visited nodes per analysis of secrets. Beyond it, everything counts as tainted.
const MAX_STEPS: usize = 50_000;

/// The maximum depth of calls of macros, partials and `let`s.
const MAX_OPEN: usize = 20;

/// The maximum number of partials in one analysis of reads, counted for each insertion.
const MAX_PARTIALS: usize = 500;

/// The maximum number of rounds until the fields of namespaces no longer change.
const MAX_ROUNDS: usize = 8;

impl Engine {
    /// The paths that a unit reads, and errors about missing partials.
    pub(super) fn reads_of_unit(&self, unit: &Unit) -> (Reads, Vec<Diagnostic>) {
        let mut tracer = Tracer::new(self, unit, Goal::Reads);
        tracer.unit_body(unit);
        (tracer.reads, tracer.errors)
    }

    /// The paths that an expression of a unit reads.
    pub(super) fn reads_of_node(&self, node: &Node, unit: &Unit) -> (Reads, Vec<Diagnostic>) {
        let mut tracer = Tracer::new(self, unit, Goal::Reads);
        tracer.read(node, false);
        (tracer.reads, tracer.errors)
    }

    /// The taint of the value of an expression.
    pub fn taint_of(&self, expr: &Expr, scope: &TaintScope<'_>) -> TaintTree {
        let Some(mut tracer) = Tracer::for_secrets(self, &expr.0.unit, scope) else {
            return TaintTree::default();
        };
        let tree = tracer.eval(&expr.0.node, false).taint;
        tracer.finished(tree)
    }

    /// The taint of the value of a string of `operator.yaml`.
    pub fn taint_of_text(&self, text: &Text, scope: &TaintScope<'_>) -> TaintTree {
        let TextUnit::Template(unit) = &*text.0 else { return TaintTree::default() };
        let Some(mut tracer) = Tracer::for_secrets(self, unit, scope) else { return TaintTree::default() };
        let tree = tracer.text(unit);
        tracer.finished(tree)
    }

    /// The values in the document of a template that may be secret.
    pub fn taint_of_template(&self, template: &Template, scope: &TaintScope<'_>) -> Vec<Inserted> {
        let tracer = Tracer::for_secrets(self, &template.unit, scope);
        tracer.map(|mut tracer| tracer.document(&template.unit)).unwrap_or_default()
    }
}

/// What is known of a value.
#[derive(Clone, Default)]
struct Value {
    paths: Paths,
    taint: TaintTree,
}

impl From<TaintTree> for Value {
    fn from(taint: TaintTree) -> Self {
        Self { paths: Paths::default(), taint }
    }
}

impl Value {
    /// The same value with an additional taint of the whole.
    fn with(self, taint: Option<Taint>) -> Self {
        Self { taint: self.taint.with(taint), ..self }
    }
}

/// What is collected. Reads are known before the variables are, so `let`s and macros are not followed for them.
enum Goal<'e> {
    Reads,
    /// The secrets in this scope. The taint is that of everything that is not visited.
    Secrets(&'e TaintScope<'e>, Taint),
}

/// A value in a document.
struct Placed {
    positions: Vec<Position>,
    tree: TaintTree,
    location: Location,
}

struct Tracer<'e> {
    engine: &'e Engine,
    unit: &'e Unit,
    goal: Goal<'e>,
    names: Names<Value>,
    /// The variables that the enclosing partials have received.
    given: Vec<(Name, Value)>,
    /// The open partials, `let`s and macros.
    open: Vec<String>,
    reads: Reads,
    seen: BTreeSet<ReadKey>,
    errors: Vec<Diagnostic>,
    /// Partials that were analysed without their own variables: once is enough for their reads.
    done: BTreeSet<String>,
    partials: usize,
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
}

/// The variable, the steps, whether it is guarded and a flag, the file and the position of a read.
type ReadKey = (String, Vec<Segment>, bool, bool, String, usize);

impl<'e> Tracer<'e> {
    fn new(engine: &'e Engine, unit: &'e Unit, goal: Goal<'e>) -> Self {
        Self {
            engine,
            unit,
            goal,
            names: Names::default(),
            given: Vec::new(),
            open: Vec::new(),
            reads: Reads::default(),
            seen: BTreeSet::new(),
            errors: Vec::new(),
            done: BTreeSet::new(),
            partials: 0,
            namespaces: BTreeMap::new(),
            control: None,
            out: Vec::new(),
            keys: Vec::new(),
            yaml: false,
            placed: false,
            steps: 0,
        }
    }

    /// A tracer of the secrets in a unit; `None` if the unit reads none.
    fn for_secrets(engine: &'e Engine, unit: &'e Unit, scope: &'e TaintScope<'e>) -> Option<Self> {
        Some(Self::new(engine, unit, Goal::Secrets(scope, scope.reached(&unit.reads)?)))
    }

    /// The scope, if secrets are collected.
    fn scope(&self) -> Option<&'e TaintScope<'e>> {
        match self.goal {
            Goal::Reads => None,
            Goal::Secrets(scope, _) => Some(scope),
        }
    }

    fn location(&self, span: Span) -> Location {
        Location::new(&self.unit.source, span)
    }

    /// The result, or everything tainted if the analysis was cut off.
    fn finished(&self, tree: TaintTree) -> TaintTree {
        if self.is_exhausted() { self.anything() } else { tree }
    }

    fn is_exhausted(&self) -> bool {
        self.steps > MAX_STEPS
    }

    /// Counts a visited node. Every node is visited for reads, because only partials are followed for them.
    fn visit(&mut self) {
        self.steps += usize::from(self.scope().is_some());
    }

    /// The taint of an unknown value.
    fn anything(&self) -> TaintTree {
        match &self.goal {
            Goal::Reads => TaintTree::default(),
            Goal::Secrets(_, secret) => TaintTree::tainted(secret.at_least(Level::Bits)),
        }
    }

    /// The taint of a text, whose only expression yields its native value.
    fn text(&mut self, unit: &'e Unit) -> TaintTree {
        if let [Stmt::Emit(node)] = unit.body.as_slice() {
            return self.eval(node, false).taint;
        }
        let yaml = std::mem::replace(&mut self.yaml, false);
        let out = self.collect(false, |tracer| tracer.unit_body(unit));
        self.yaml = yaml;
        folded(&out)
    }

    /// The tainted values that a template inserts.
    fn document(&mut self, unit: &'e Unit) -> Vec<Inserted> {
        self.yaml = true;
        let out = self.collect(true, |tracer| tracer.unit_body(unit));
        if self.is_exhausted() {
            let location = Location::new(&unit.source, Span::default());
            let taint = self.anything().any();
            return taint
                .map(|taint| Inserted { path: Vec::new(), key: false, taint, location })
                .into_iter()
                .collect();
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
        let names = self.names.clone();
        self.stable(|tracer| {
            tracer.out.truncate(start);
            tracer.names = names.clone();
            tracer.stmts(&unit.body);
        });
        if self.scope().is_none() {
            self.uncalled(unit);
        }
    }

    fn stable(&mut self, mut round: impl FnMut(&mut Self)) {
        if self.scope().is_none() {
            return round(self);
        }
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

    /// Records literal text whose presence depends on a condition.
    fn put_written(&mut self, text: &str, offset: usize) {
        let Some(scope) = self.scope().filter(|_| self.control.is_some() && !text.trim().is_empty()) else {
            return;
        };
        let start = offset + text.len() - text.trim_start().len();
        let end = offset + text.trim_end().len();
        let ends = [Span::new(start, start + 1), Span::new(end - 1, end)];
        let positions = ends.into_iter().flat_map(|end| (scope.positions)(&self.unit.source, end));
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
        if let Some(scope) = self.scope()
            && tree.any().is_some()
        {
            let positions = (scope.positions)(&self.unit.source, span);
            self.place(tree, span, positions);
        }
    }

    fn place(&mut self, tree: TaintTree, span: Span, mut positions: Vec<Position>) {
        let location = self.location(span);
        if !self.placed {
            // The position of the text is known only to the caller, which inserts it. But a key is a key
            // wherever it is inserted.
            if self.yaml && positions.iter().any(|position| position.key) {
                self.key(&tree, &location);
            }
            positions = vec![Position { path: Vec::new(), key: false }];
        }
        self.out.push(Placed { positions, tree, location });
    }

    /// Records a tainted key of text that is inserted elsewhere.
    fn key(&mut self, tree: &TaintTree, location: &Location) {
        if let Some(taint) = tree.any()
            && !self.keys.iter().any(|known| known.location == *location)
        {
            self.keys.push(Inserted { path: Vec::new(), key: true, taint, location: location.clone() });
        }
    }
}

/// The taint of a text that is composed of inserted values.
fn folded(out: &[Placed]) -> TaintTree {
    let told = out.iter().fold(None, |told, placed| Taint::higher(told, placed.tree.any()));
    TaintTree::of(told.map(|told| told.at_least(Level::Derived)))
}
