//! Finds the paths that a unit reads. Names that stand for a path (`set`, `for`, `with`, variables of a partial) are
//! followed, so that `{% set c = refs.cluster %}{{ c.spec.size }}` reads `refs.cluster.spec.size`.

mod filters;
mod statements;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::code::{Kind, Node, Unit};
use super::errors::near;
use super::reads::{ReadPath, Reads, Segment};
use super::value::{Name, Val};
use super::{Engine, partial_path};
use crate::diag::{Diagnostic, Location, Source, Span};

/// The maximum number of partials in one analysis, counted for each insertion.
const MAX_PARTIALS: usize = 500;

/// The maximum number of paths of a name; beyond it the paths are recorded without further steps.
const MAX_REFS: usize = 64;

/// The maximum number of steps of a path; deeper reads count as reading the whole value.
const MAX_SEGMENTS: usize = 32;

/// The paths that a unit reads, and errors about missing partials.
pub(super) fn of_unit(unit: &Unit, engine: &Engine) -> (Reads, Vec<Diagnostic>) {
    let mut analysis = Analysis::new(&unit.source, engine);
    analysis.unit(unit);
    analysis.finish()
}

/// The paths that an expression reads.
pub(super) fn of_node(node: &Node, source: &Arc<Source>, engine: &Engine) -> (Reads, Vec<Diagnostic>) {
    let mut analysis = Analysis::new(source, engine);
    analysis.record(node, false);
    analysis.finish()
}

/// A path that a value may come from.
#[derive(Clone)]
struct Ref {
    root: Name,
    segments: Vec<Segment>,
    location: Location,
    guarded: bool,
}

/// The paths that a value may come from. A value without paths is computed, and the paths of its inputs are recorded.
#[derive(Clone, Default)]
struct Origin {
    refs: Vec<Ref>,
    shape: Shape,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Shape {
    /// The value at the paths.
    #[default]
    Value,
    /// A list of the values at the paths.
    Elements,
    /// A list of pairs of a key and the value at the paths.
    Pairs,
    /// Too many paths: they are recorded and not followed further.
    Recorded,
}

struct Analysis<'e> {
    engine: &'e Engine,
    source: Arc<Source>,
    locals: Vec<(Name, Origin)>,
    frames: Vec<usize>,
    /// For each open branch, the number of frames at its start, and the names set in it.
    branches: Vec<(usize, BTreeSet<Name>)>,
    found: Vec<ReadPath>,
    generates: Vec<Location>,
    seen: BTreeSet<(String, Vec<Segment>, bool, bool, String, usize)>,
    errors: Vec<Diagnostic>,
    /// The open partials.
    open: Vec<String>,
    /// Partials that were analysed without their own variables: once is enough.
    done: BTreeSet<String>,
    partials: usize,
}

impl<'e> Analysis<'e> {
    fn new(source: &Arc<Source>, engine: &'e Engine) -> Self {
        Self {
            engine,
            source: Arc::clone(source),
            locals: Vec::new(),
            frames: Vec::new(),
            branches: Vec::new(),
            found: Vec::new(),
            generates: Vec::new(),
            seen: BTreeSet::new(),
            errors: Vec::new(),
            open: Vec::new(),
            done: BTreeSet::new(),
            partials: 0,
        }
    }

    fn finish(self) -> (Reads, Vec<Diagnostic>) {
        (Reads { paths: self.found, generates: self.generates }, self.errors)
    }

    fn unit(&mut self, unit: &Unit) {
        self.stmts(&unit.body);
        // Macros last, because they see what the top level has set.
        for def in &unit.macros {
            self.open();
            for (name, default) in &def.params {
                if let Some(default) = default {
                    self.record(default, false);
                }
                self.locals.push((Arc::clone(name), Origin::default()));
            }
            self.stmts(&def.body);
            self.close();
        }
    }

    fn open(&mut self) {
        self.frames.push(self.locals.len());
    }

    fn close(&mut self) {
        if let Some(start) = self.frames.pop() {
            self.locals.truncate(start);
        }
    }

    fn location(&self, span: Span) -> Location {
        Location::new(&self.source, span)
    }

    fn variable(&self, name: &Name, location: &Location, guarded: bool) -> Origin {
        match self.locals.iter().rev().find(|(known, _)| known == name) {
            Some((_, origin)) => {
                let mut origin = origin.clone();
                for found in &mut origin.refs {
                    found.location = location.clone();
                    found.guarded |= guarded;
                }
                origin
            }
            None => root(name, location, guarded),
        }
    }

    /// Records that the value of an expression is read.
    fn record(&mut self, node: &Node, guarded: bool) {
        let origin = self.origin(node, guarded);
        self.add(&origin, false);
    }

    fn record_all<'n>(&mut self, nodes: impl IntoIterator<Item = &'n Node>, guarded: bool) {
        for node in nodes {
            self.record(node, guarded);
        }
    }

    fn add(&mut self, origin: &Origin, flag: bool) {
        for found in &origin.refs {
            let key = (
                found.root.to_string(),
                found.segments.clone(),
                found.guarded,
                flag,
                found.location.source.name.clone(),
                found.location.span.start,
            );
            if self.seen.insert(key) {
                self.found.push(ReadPath {
                    root: found.root.to_string(),
                    segments: found.segments.clone(),
                    location: found.location.clone(),
                    guarded: found.guarded,
                    flag,
                });
            }
        }
    }

    /// The origin of the value of an expression. Other reads are recorded.
    fn origin(&mut self, node: &Node, guarded: bool) -> Origin {
        match &node.kind {
            Kind::Const(_) => Origin::default(),
            Kind::Var(name) => self.variable(name, &self.location(node.span), guarded),
            Kind::Attr(base, name) => {
                let base = self.origin(base, guarded);
                self.step(base, &Segment::Key(name.to_string()), &self.location(node.span))
            }
            Kind::Item(base, key) => {
                let base = self.origin(base, guarded);
                let segment = self.segment(key);
                self.step(base, &segment, &self.location(node.span))
            }
            Kind::And(sides) => {
                self.record(&sides.0, true);
                self.origin(&sides.1, guarded)
            }
            Kind::Or(sides) => {
                let left = self.origin(&sides.0, true);
                self.or(left, Some(&sides.1), guarded)
            }
            Kind::If(parts) => {
                let (test, then, otherwise) = &**parts;
                self.record(test, true);
                let then = self.origin(then, guarded);
                self.or(then, otherwise.as_ref(), guarded)
            }
            Kind::Default(parts) => {
                let (value, other, boolean) = &**parts;
                self.record_all(boolean, false);
                let value = self.origin(value, true);
                self.or(value, other.as_ref(), guarded)
            }
            Kind::Filter(filter, input, args) => {
                let input = self.origin(input, guarded);
                self.filter(filter.name, input, args, &self.location(node.span))
            }
            Kind::Method(base, name, args) => {
                let base = self.origin(base, guarded);
                self.method(base, name, args, &self.location(node.span))
            }
            Kind::Slice(parts) => {
                let (base, bounds) = &**parts;
                self.record_all(bounds.iter().flatten(), false);
                let base = self.origin(base, guarded);
                elements(base, &self.location(node.span))
            }
            _ => {
                self.computed(node, guarded);
                Origin::default()
            }
        }
    }

    /// The origin of the value, or of its replacement.
    fn or(&mut self, value: Origin, other: Option<&Node>, guarded: bool) -> Origin {
        match other {
            Some(other) => {
                let other = self.origin(other, guarded);
                self.either(value, other)
            }
            None => value,
        }
    }

    /// Records the reads of an expression that computes a new value.
    fn computed(&mut self, node: &Node, guarded: bool) {
        match &node.kind {
            Kind::Not(operand) => self.record(operand, true),
            Kind::Neg(operand) => self.record(operand, guarded),
            Kind::Binary(_, sides) => self.record_all([&sides.0, &sides.1], guarded),
            Kind::Compare(first, rest) => {
                self.record(first, guarded);
                self.record_all(rest.iter().map(|(_, node)| node), guarded);
            }
            Kind::Test(test, input, args) => {
                self.record_all(args.iter().flatten(), false);
                let input = self.origin(input, guarded || test.flag);
                self.add(&input, test.flag);
            }
            Kind::Function(function, args, keywords) => {
                if function.generates() {
                    let location = self.location(node.span);
                    self.generates.push(location);
                }
                self.record_all(args.iter().flatten(), false);
                self.record_all(keywords.iter().map(|(_, node)| node), false);
            }
            Kind::Macro(_, args) => self.record_all(args.iter().flatten(), false),
            Kind::Partial(name, vars) => self.partial(name, vars, &self.location(node.span)),
            Kind::List(items) => self.record_all(items, guarded),
            Kind::Map(entries) => {
                self.record_all(entries.iter().flat_map(|(key, value)| [key, value]), guarded);
            }
            // `origin` handles all other kinds.
            _ => {}
        }
    }

    /// The value may come from either origin.
    fn either(&mut self, left: Origin, right: Origin) -> Origin {
        let recorded = left.shape == Shape::Recorded || right.shape == Shape::Recorded;
        if left.refs.is_empty() && !recorded {
            return right;
        }
        if right.refs.is_empty() && !recorded {
            return left;
        }
        let mut refs = left.refs.clone();
        for found in &right.refs {
            let same = |known: &Ref| {
                known.root == found.root && known.segments == found.segments && known.guarded == found.guarded
            };
            if !refs.iter().any(same) {
                refs.push(found.clone());
            }
        }
        if recorded || left.shape != right.shape || refs.len() > MAX_REFS {
            self.add(&left, false);
            self.add(&right, false);
            return Origin { refs: Vec::new(), shape: Shape::Recorded };
        }
        Origin { refs, shape: left.shape }
    }

    /// The origin after one more step.
    fn step(&mut self, base: Origin, segment: &Segment, location: &Location) -> Origin {
        match (base.shape, segment) {
            (Shape::Value, _) => Origin { refs: deeper(base.refs, segment, location), shape: Shape::Value },
            // An item of a list of values.
            (Shape::Elements, Segment::Index(_) | Segment::Any) => Origin { shape: Shape::Value, ..base },
            _ => {
                self.add(&base, false);
                Origin::default()
            }
        }
    }

    fn segment(&mut self, key: &Node) -> Segment {
        match &key.kind {
            Kind::Const(Val::Str(name)) => Segment::Key(name.to_string()),
            Kind::Const(Val::Int(index)) => i64::try_from(*index).map_or(Segment::Any, Segment::Index),
            _ => {
                self.record(key, false);
                Segment::Any
            }
        }
    }

    fn partial(&mut self, name: &Name, vars: &[(Name, Node)], location: &Location) {
        let path = partial_path(name);
        let Some(template) = self.engine.template(&path) else {
            if self.open.is_empty() {
                let meant = near(&path, self.engine.paths());
                let known: Vec<&str> = self.engine.paths().collect();
                let help = match meant {
                    Some(near) => format!("did you mean `{}`?", near.trim_start_matches("templates/")),
                    None if known.is_empty() => "the package has no templates".to_owned(),
                    None => format!("there are {}", known.join(", ")),
                };
                self.errors.push(
                    Diagnostic::error("template::partial", format!("there is no template `{path}`"))
                        .located(location.clone())
                        .help(help),
                );
            }
            self.record_all(vars.iter().map(|(_, node)| node), false);
            return;
        };
        let again = vars.is_empty() && !self.done.insert(path.clone());
        self.partials += 1;
        if again || self.open.contains(&path) || self.partials > MAX_PARTIALS {
            self.record_all(vars.iter().map(|(_, node)| node), false);
            return;
        }
        let mut given = Vec::new();
        for (name, node) in vars {
            let origin = self.origin(node, false);
            given.push((Arc::clone(name), origin));
        }
        let locals = std::mem::replace(&mut self.locals, given);
        let frames = std::mem::replace(&mut self.frames, vec![0]);
        let branches = std::mem::take(&mut self.branches);
        let source = std::mem::replace(&mut self.source, Arc::clone(&template.unit.source));
        self.open.push(path);
        self.unit(&template.unit);
        self.open.pop();
        self.source = source;
        self.branches = branches;
        self.frames = frames;
        self.locals = locals;
    }
}

fn deeper(mut refs: Vec<Ref>, segment: &Segment, location: &Location) -> Vec<Ref> {
    for found in &mut refs {
        if found.segments.len() < MAX_SEGMENTS {
            found.segments.push(segment.clone());
        }
        found.location = location.clone();
    }
    refs
}

/// A variable of the scope.
fn root(name: &Name, location: &Location, guarded: bool) -> Origin {
    let found = Ref { root: Arc::clone(name), segments: Vec::new(), location: location.clone(), guarded };
    Origin { refs: vec![found], shape: Shape::Value }
}

/// A list as the list of the origins of its items.
fn elements(origin: Origin, location: &Location) -> Origin {
    match origin.shape {
        Shape::Value => Origin { refs: deeper(origin.refs, &Segment::Any, location), shape: Shape::Elements },
        Shape::Elements | Shape::Pairs | Shape::Recorded => origin,
    }
}
