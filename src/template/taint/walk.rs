//! The abstract evaluation of expressions and statements.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::filters;
use super::{Inserted, Level, Locals, MAX_DEPTH, Position, Shape, Taint, TaintScope, TaintTree, lone};
use crate::diag::{Location, Span};
use crate::template::code::{Binary, CAPTURED, Comparison, For, Kind, Node, Stmt, Target, Unit};
use crate::template::text::TextUnit;
use crate::template::value::{Name, Val};
use crate::template::{Engine, partial_path};

/// How many nodes one analysis goes into. Past that, all that it has left counts as tainted.
const MAX_STEPS: usize = 50_000;

/// How many macros, partials and lets may be open at once.
const MAX_OPEN: usize = 20;

/// How often a loop is walked until what it sets in namespaces no longer changes.
const MAX_ROUNDS: usize = 8;

/// The name of a value that is made once.
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
    /// What is taken for the value of what is not walked.
    secret: Taint,
    /// Variables given to the partials that are open.
    given: Locals,
    locals: Locals,
    frames: Vec<usize>,
    /// What the fields of all namespaces hold, by their names.
    namespaces: BTreeMap<Name, TaintTree>,
    /// What decides whether the current statement is executed.
    control: Option<Taint>,
    out: Vec<Placed>,
    /// What stands in keys of text that is inserted elsewhere.
    keys: Vec<Inserted>,
    /// Whether the text is YAML and not one value.
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

    /// The result, unless the analysis was cut off.
    pub(super) fn finished(&self, tree: TaintTree) -> TaintTree {
        if self.is_exhausted() { self.anything() } else { tree }
    }

    fn is_exhausted(&self) -> bool {
        self.steps > MAX_STEPS
    }

    /// A value of which nothing is known.
    fn anything(&self) -> TaintTree {
        TaintTree::tainted(self.secret.at_least(Level::Bits))
    }

    /// The value of a text.
    pub(super) fn text(&mut self, unit: &'e Unit) -> TaintTree {
        if let Some(node) = lone(unit) {
            return self.eval(node);
        }
        let yaml = std::mem::replace(&mut self.yaml, false);
        let out = self.collect(false, |walk| walk.unit_body(unit));
        self.yaml = yaml;
        folded(&out)
    }

    /// What a template inserts.
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

    /// All statements, until what they set in namespaces no longer changes.
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

    /// What is inserted meanwhile.
    fn collect(&mut self, placed: bool, work: impl FnOnce(&mut Self)) -> Vec<Placed> {
        let out = std::mem::take(&mut self.out);
        let was_placed = std::mem::replace(&mut self.placed, placed);
        work(self);
        self.placed = was_placed;
        std::mem::replace(&mut self.out, out)
    }

    /// Text that statements give, as one value.
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

    /// Text of the author that a condition may have chosen.
    fn put_written(&mut self, span: Span) {
        let ends = [Span::new(span.start, span.start + 1), Span::new(span.end - 1, span.end)];
        let positions = ends.into_iter().flat_map(|end| (self.scope.positions)(&self.unit.source, end));
        // A key that is written out is known.
        let mut positions: Vec<_> = positions.map(|position| Position { key: false, ..position }).collect();
        if positions.is_empty() {
            positions.push(Position { path: Vec::new(), key: false });
        }
        self.place(TaintTree::of(self.control.clone()), ends[0], positions);
    }

    /// A value.
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
            // Where this goes is known by who inserts it. Only a key is one wherever it goes.
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

    fn stmts(&mut self, stmts: &'e [Stmt]) {
        for stmt in stmts {
            if self.is_exhausted() {
                return;
            }
            self.steps += 1;
            match stmt {
                Stmt::Raw(text, offset) => {
                    let blank = text.len() - text.trim_start().len();
                    if self.control.is_some() && blank < text.len() {
                        let (start, end) = (offset + blank, offset + text.trim_end().len());
                        self.put_written(Span::new(start, end));
                    }
                }
                Stmt::Emit(node) => {
                    let tree = self.eval(node);
                    self.put(tree, node.span);
                }
                Stmt::Do(node) => {
                    self.eval(node);
                }
                Stmt::Set { target, value } => {
                    let tree = self.eval(value);
                    self.assign(target, tree);
                }
                Stmt::SetBlock { target, filter, body } => {
                    let captured = self.captured(body);
                    let tree = match filter {
                        Some(filter) => self.filtered(filter, captured),
                        None => captured,
                    };
                    self.assign(target, tree);
                }
                Stmt::Filter { filter, body } => {
                    let captured = self.captured(body);
                    let tree = self.filtered(filter, captured);
                    self.put(tree, first_span(body).unwrap_or(filter.span));
                }
                Stmt::If { test, then, otherwise } => {
                    let told = self.truth(test);
                    self.branches(told, then, otherwise);
                }
                Stmt::With { assignments, body } => {
                    self.frames.push(self.locals.len());
                    for (target, value) in assignments {
                        let tree = self.eval(value);
                        self.assign(target, tree);
                    }
                    self.stmts(body);
                    self.close();
                }
                Stmt::For(def) => self.for_loop(def),
            }
        }
    }

    fn filtered(&mut self, filter: &'e Node, captured: TaintTree) -> TaintTree {
        self.frames.push(self.locals.len());
        self.locals.push((CAPTURED.into(), captured));
        let tree = self.eval(filter);
        self.close();
        tree
    }

    /// Both branches; after them a variable may be what either has left.
    fn branches(&mut self, told: Option<Taint>, then: &'e [Stmt], otherwise: &'e [Stmt]) {
        let outer = self.control.clone();
        self.control = Taint::higher(outer.clone(), told);
        let before = self.locals.clone();
        self.stmts(then);
        let first = std::mem::replace(&mut self.locals, before);
        self.stmts(otherwise);
        for (name, tree) in first {
            if let Some(index) = self.locals.iter().rposition(|(known, _)| *known == name) {
                let known = std::mem::take(&mut self.locals[index].1);
                self.locals[index].1 = known.join(tree);
            } else {
                // Where it is not set, it is what the name stands for outside.
                let outside = self.outside(&name).with(self.control.clone());
                self.locals.push((name, tree.join(outside)));
            }
        }
        self.control = outer;
    }

    fn for_loop(&mut self, def: &'e For) {
        let iterated = self.eval(&def.iter);
        // How often it is gone through, and whether at all.
        let told = iterated.own.as_ref().map(|own| own.at_least(Level::Bits));
        let element = iterated.elements();
        let start = self.out.len();
        let outer = self.control.clone();
        self.stable(|walk| {
            walk.out.truncate(start);
            walk.control = Taint::higher(outer.clone(), told.clone());
            walk.frames.push(walk.locals.len());
            walk.assign(&def.target, element.clone());
            if let Some(filter) = &def.filter {
                let told = walk.truth(filter);
                walk.control = Taint::higher(walk.control.clone(), told);
            }
            let state = [("previtem".to_owned(), element.clone()), ("nextitem".to_owned(), element.clone())];
            let state = TaintTree::map(state).with(walk.control.clone());
            walk.locals.push(("loop".into(), state));
            walk.stmts(&def.body);
            walk.close();
        });
        self.control = Taint::higher(outer.clone(), told);
        self.stmts(&def.otherwise);
        self.control = outer;
    }

    fn assign(&mut self, target: &'e Target, tree: TaintTree) {
        let tree = tree.with(self.control.clone()).limited(MAX_DEPTH);
        match target {
            Target::Name(name) => {
                let start = self.frames.last().copied().unwrap_or(0);
                match self.locals[start..].iter_mut().find(|(known, _)| known == name) {
                    Some(entry) => entry.1 = tree,
                    None => self.locals.push((Arc::clone(name), tree)),
                }
            }
            Target::Field(_, field, _) => {
                let known = self.namespaces.remove(field).unwrap_or_default();
                self.namespaces.insert(Arc::clone(field), known.join(tree).limited(MAX_DEPTH));
            }
            Target::List(targets, _) => {
                for (index, target) in targets.iter().enumerate() {
                    let item = tree.get(Some(&index.to_string()));
                    self.assign(target, item);
                }
            }
        }
    }

    /// What a name stands for where no statement has set it.
    fn outside(&mut self, name: &Name) -> TaintTree {
        if let Some((_, tree)) = self.given.iter().rev().find(|(known, _)| known == name) {
            return tree.clone();
        }
        if &**name == "let" {
            let scope = self.scope;
            let all: Vec<_> = scope.lets.iter().map(|(name, _)| name.to_owned()).collect();
            return TaintTree::map(all.into_iter().map(|name| (name.clone(), self.let_value(&name))));
        }
        self.scope.roots.get(&**name).cloned().unwrap_or_default()
    }

    fn variable(&mut self, name: &Name) -> TaintTree {
        match self.locals.iter().rev().find(|(known, _)| known == name) {
            Some((_, tree)) => tree.clone(),
            None => self.outside(name),
        }
    }

    fn is_let(&self, node: &Node) -> bool {
        let Kind::Var(name) = &node.kind else { return false };
        &**name == "let" && !self.locals.iter().chain(&self.given).any(|(known, _)| known == name)
    }

    /// `let.name`, in the scope that partials give.
    fn let_value(&mut self, name: &str) -> TaintTree {
        let Some(text) = self.scope.lets.get(name) else { return TaintTree::default() };
        let TextUnit::Template(unit) = &*text.0 else { return TaintTree::default() };
        if self.open >= MAX_OPEN || self.lets.iter().any(|open| open == name) {
            return self.anything();
        }
        self.lets.push(name.to_owned());
        let tree = self.inside(unit, Locals::new(), |walk| walk.text(unit));
        self.lets.pop();
        tree
    }

    /// Goes on in another text, which has variables of its own.
    fn inside<T>(&mut self, unit: &'e Unit, given: Locals, work: impl FnOnce(&mut Self) -> T) -> T {
        self.open += 1;
        let known = self.given.len();
        self.given.extend(given);
        let unit = std::mem::replace(&mut self.unit, unit);
        let locals = std::mem::take(&mut self.locals);
        let frames = std::mem::take(&mut self.frames);
        let control = self.control.take();
        let result = work(self);
        self.control = control;
        self.frames = frames;
        self.locals = locals;
        self.unit = unit;
        self.given.truncate(known);
        self.open -= 1;
        result
    }

    fn partial(&mut self, name: &Name, vars: &'e [(Name, Node)]) -> TaintTree {
        let given: Locals = vars.iter().map(|(name, node)| (Arc::clone(name), self.eval(node))).collect();
        let Some(template) = self.engine.template(&partial_path(name)) else { return TaintTree::default() };
        if self.open >= MAX_OPEN {
            return self.anything();
        }
        let unit = &template.unit;
        let yaml = std::mem::replace(&mut self.yaml, true);
        let out = self.inside(unit, given, |walk| walk.collect(true, |walk| walk.unit_body(unit)));
        self.yaml = yaml;
        let mut found = TaintTree { shape: Shape::Any, ..TaintTree::default() };
        for Placed { positions, tree, location } in out {
            for Position { path, key } in positions {
                if key
                    && let Some(taint) = tree.any()
                    && !self.keys.iter().any(|known| known.location == location)
                {
                    self.keys.push(Inserted { path: Vec::new(), key, taint, location: location.clone() });
                }
                let level = if key { Level::Bits } else { Level::Held };
                let tree = if key { tree.computed(level) } else { tree.clone() };
                // A key says something of the map that it stands in.
                let path: &[String] = if key { &[] } else { &path };
                let tree = path.iter().rev().fold(tree, |tree, name| match name.as_str() {
                    "*" => TaintTree::list_of(tree),
                    name => TaintTree::map([(name.to_owned(), tree)]),
                });
                found = found.join(tree);
            }
        }
        found.limited(MAX_DEPTH)
    }

    fn macro_call(&mut self, index: usize, args: &'e [Option<Node>]) -> TaintTree {
        let args: Vec<Option<TaintTree>> =
            args.iter().map(|arg| arg.as_ref().map(|arg| self.eval(arg))).collect();
        let unit = self.unit;
        let Some(def) = unit.macros.get(index) else { return TaintTree::default() };
        if self.open >= MAX_OPEN {
            return self.anything();
        }
        self.open += 1;
        // It sees what the top level has set, not what blocks around the call have.
        let top = self.frames.first().copied().unwrap_or(self.locals.len());
        let hidden = self.locals.split_off(top);
        let frames = std::mem::replace(&mut self.frames, vec![top]);
        let control = self.control.take();
        let out = self.collect(false, |walk| {
            let mut args = args.into_iter();
            for (name, default) in &def.params {
                let tree = match (args.next().flatten(), default) {
                    (Some(tree), _) => tree,
                    (None, Some(default)) => walk.eval(default),
                    (None, None) => TaintTree::default(),
                };
                walk.locals.push((Arc::clone(name), tree));
            }
            walk.stmts(&def.body);
        });
        self.control = control;
        self.locals.truncate(top);
        self.locals.extend(hidden);
        self.frames = frames;
        self.open -= 1;
        folded(&out)
    }

    /// What the truth of an expression tells.
    fn truth(&mut self, node: &'e Node) -> Option<Taint> {
        self.eval(node).truth()
    }

    pub(super) fn eval(&mut self, node: &'e Node) -> TaintTree {
        self.steps += 1;
        if self.is_exhausted() {
            return self.anything();
        }
        match &node.kind {
            Kind::Const(_) => TaintTree::default(),
            Kind::Var(name) => self.variable(name),
            Kind::Attr(base, name) if self.is_let(base) => self.let_value(name),
            Kind::Attr(base, name) => {
                let base = self.eval(base);
                self.field(&base, name)
            }
            Kind::Item(base, key) => match &key.kind {
                Kind::Const(Val::Str(name)) if self.is_let(base) => self.let_value(name),
                Kind::Const(Val::Str(name)) => {
                    let base = self.eval(base);
                    self.field(&base, name)
                }
                Kind::Const(Val::Int(index)) => self.eval(base).get(Some(&index.to_string())),
                _ => {
                    let told = self.eval(key).any().map(|taint| taint.at_least(Level::Derived));
                    let base = self.eval(base);
                    let set = self.namespaces.values().cloned().reduce(TaintTree::join);
                    let set = set.filter(|_| base.shape == Shape::Namespace).unwrap_or_default();
                    base.get(None).join(set).with(told)
                }
            },
            Kind::Slice(parts) => {
                let (base, bounds) = &**parts;
                let told = self.all(bounds.iter().flatten());
                let base = self.eval(base);
                let own = base.own.as_ref().map(|own| own.at_least(Level::Derived));
                TaintTree::list_of(base.get(None))
                    .with(own)
                    .with(told.map(|told| told.at_least(Level::Derived)))
            }
            Kind::Not(operand) => TaintTree::of(self.truth(operand)),
            Kind::Neg(operand) => self.eval(operand).computed(Level::Derived),
            Kind::And(sides) => {
                let told = self.truth(&sides.0);
                self.eval(&sides.1).with(told)
            }
            Kind::Or(sides) => {
                let left = self.eval(&sides.0);
                let told = left.truth();
                let right = self.eval(&sides.1);
                left.join(right).with(told)
            }
            Kind::If(parts) => {
                let (test, then, otherwise) = &**parts;
                let told = self.truth(test);
                let then = self.eval(then);
                let otherwise = otherwise.as_ref().map(|node| self.eval(node)).unwrap_or_default();
                then.join(otherwise).with(told)
            }
            Kind::Default(parts) => {
                let (value, other, boolean) = &**parts;
                let told = boolean.as_ref().and_then(|boolean| self.eval(boolean).any());
                let value = self.eval(value);
                let told = Taint::higher(told, value.truth());
                let other = other.as_ref().map(|node| self.eval(node)).unwrap_or_default();
                value.join(other).with(told)
            }
            Kind::Binary(op, sides) => {
                let (left, right) = (self.eval(&sides.0), self.eval(&sides.1));
                if *op == Binary::Add && left.shape == Shape::List && right.shape == Shape::List {
                    let own = Taint::higher(left.own.clone(), right.own.clone());
                    return TaintTree::list_of(left.get(None).join(right.get(None))).with(own);
                }
                left.join(right).computed(Level::Derived)
            }
            Kind::Compare(first, rest) => self.compare(first, rest),
            Kind::Filter(filter, input, args) => {
                let input = self.eval(input);
                self.filter(filter.name, input, args)
            }
            Kind::Test(test, input, args) => {
                let input = self.eval(input);
                let told = self.all(args.iter().flatten());
                let constant = args.iter().flatten().all(is_constant);
                TaintTree::of(Taint::higher(
                    filters::of_test(test.name, &input, constant),
                    told.map(|told| told.at_least(Level::Bits)),
                ))
            }
            Kind::Function(function, args, keywords) => {
                if function.generates() {
                    return TaintTree::tainted(Taint::held(GENERATED));
                }
                let base = args.first().and_then(Option::as_ref).map(|node| self.eval(node));
                let fields: Vec<_> =
                    keywords.iter().map(|(name, node)| (Arc::clone(name), self.eval(node))).collect();
                match function.name {
                    "namespace" => {
                        for (name, tree) in fields {
                            let known = self.namespaces.remove(&name).unwrap_or_default();
                            let tree = tree.with(self.control.clone());
                            self.namespaces.insert(name, known.join(tree).limited(MAX_DEPTH));
                        }
                        TaintTree { shape: Shape::Namespace, ..TaintTree::default() }
                    }
                    "dict" => {
                        let base = base.unwrap_or_default();
                        filters::merged(
                            base,
                            TaintTree::map(fields.into_iter().map(|(n, t)| (n.to_string(), t))),
                        )
                    }
                    _ => {
                        let told = self.all(args.iter().flatten());
                        let told =
                            fields.iter().fold(told, |told, (_, tree)| Taint::higher(told, tree.any()));
                        TaintTree::of(told.map(|told| told.at_least(Level::Bits)))
                    }
                }
            }
            Kind::Macro(index, args) => self.macro_call(*index, args),
            Kind::Partial(name, vars) => self.partial(name, vars),
            Kind::Method(base, name, args) => {
                let base = self.eval(base);
                self.method(&base, name, args)
            }
            Kind::List(items) => {
                let items = items.iter().map(|item| self.eval(item)).enumerate();
                let fields = items.map(|(index, tree)| (index.to_string().into(), tree)).collect();
                TaintTree { fields, shape: Shape::List, ..TaintTree::default() }.limited(MAX_DEPTH)
            }
            Kind::Map(entries) => {
                let mut map = TaintTree { shape: Shape::Map, ..TaintTree::default() };
                for (key, value) in entries {
                    let value = self.eval(value);
                    if let Kind::Const(Val::Str(name)) = &key.kind {
                        map.fields.insert(Arc::clone(name), value);
                        continue;
                    }
                    let told = self.eval(key).any().map(|taint| taint.at_least(Level::Bits));
                    let rest = map.rest.take().map(Arc::unwrap_or_clone);
                    map.rest = Some(Arc::new(rest.unwrap_or_default().join(value)));
                    map = map.with(told);
                }
                map.limited(MAX_DEPTH)
            }
        }
    }

    /// A field, also of a namespace.
    pub(super) fn field(&self, base: &TaintTree, name: &Name) -> TaintTree {
        let found = base.get(Some(name));
        match self.namespaces.get(name) {
            Some(set) if base.shape == Shape::Namespace => found.join(set.clone()),
            _ => found,
        }
    }

    /// The strongest taint of several values.
    pub(super) fn all(&mut self, nodes: impl IntoIterator<Item = &'e Node>) -> Option<Taint> {
        let mut found = None;
        for node in nodes {
            found = Taint::higher(found, self.eval(node).any());
        }
        found
    }

    fn compare(&mut self, first: &'e Node, rest: &'e [(Comparison, Node)]) -> TaintTree {
        let mut told = None;
        let mut left_node = first;
        let mut left = self.eval(first);
        for (op, right_node) in rest {
            let right = self.eval(right_node);
            let found = match op {
                Comparison::Eq | Comparison::Ne => equality((&left, left_node), (&right, right_node)),
                Comparison::In | Comparison::NotIn => {
                    let among_keys = right.shape == Shape::Map && right.own.is_none();
                    let right = if among_keys { TaintTree::default() } else { right.clone() };
                    equality((&left, left_node), (&right, right_node))
                }
                _ => Taint::higher(left.any(), right.any()),
            };
            told = Taint::higher(told, found);
            left_node = right_node;
            left = right;
        }
        TaintTree::of(told.map(|told| told.at_least(Level::Bits)))
    }
}

/// What the equality of two values tells: nothing where one of them is written out in the package and the other is the
/// secret itself, for what is equal to that is no secret, and that it differs tells no more than whether it is empty.
fn equality(left: (&TaintTree, &Node), right: (&TaintTree, &Node)) -> Option<Taint> {
    let told = Taint::higher(left.0.any(), right.0.any())?;
    let written = is_constant(left.1) || is_constant(right.1);
    (!written || told.level > Level::Held).then_some(told)
}

/// Whether it is written out.
fn is_constant(node: &Node) -> bool {
    match &node.kind {
        Kind::Const(_) => true,
        Kind::List(items) => items.iter().all(is_constant),
        _ => false,
    }
}

/// Where the first text or value of a block stands.
fn first_span(body: &[Stmt]) -> Option<Span> {
    body.iter().find_map(|stmt| match stmt {
        Stmt::Raw(text, offset) => {
            let start = offset + text.len() - text.trim_start().len();
            (!text.trim().is_empty()).then(|| Span::new(start, start + 1))
        }
        Stmt::Emit(node) => Some(node.span),
        Stmt::If { then, .. } => first_span(then),
        Stmt::For(def) => first_span(&def.body),
        Stmt::With { body, .. } | Stmt::Filter { body, .. } => first_span(body),
        Stmt::Set { .. } | Stmt::SetBlock { .. } | Stmt::Do(_) => None,
    })
}

/// Text that is made of what was inserted.
fn folded(out: &[Placed]) -> TaintTree {
    let told = out.iter().fold(None, |told, placed| Taint::higher(told, placed.tree.any()));
    TaintTree::of(told.map(|told| told.at_least(Level::Derived)))
}
