//! Expressions.

use std::sync::Arc;

use super::{Tracer, Value};
use crate::diag::Span;
use crate::template::code::{Binary, Comparison, Kind, Node};
use crate::template::reads::Segment;
use crate::template::taint::{GENERATED, Level, MAX_DEPTH, Shape, Taint, TaintTree, filters};
use crate::template::value::{Name, Val};

impl<'e> Tracer<'e> {
    /// The taint of an expression whose value is read as a whole. `guarded` says that the value may be missing.
    pub(super) fn read(&mut self, node: &'e Node, guarded: bool) -> TaintTree {
        let value = self.eval(node, guarded);
        self.add(&value.paths, false);
        value.taint
    }

    /// The strongest taint of several expressions that are read.
    pub(super) fn read_all(
        &mut self,
        nodes: impl IntoIterator<Item = &'e Node>,
        guarded: bool,
    ) -> Option<Taint> {
        nodes.into_iter().fold(None, |told, node| Taint::higher(told, self.read(node, guarded).any()))
    }

    /// The value of an expression. Values that it reads, but does not yield, are recorded.
    ///
    /// Expressions may be deep, so this function only delegates: its frame is small.
    pub(super) fn eval(&mut self, node: &'e Node, guarded: bool) -> Value {
        self.visit();
        if self.is_exhausted() {
            return self.anything().into();
        }
        match &node.kind {
            Kind::Const(_) => Value::default(),
            Kind::Var(name) => self.variable(name, node.span, guarded),
            Kind::Attr(base, name) => self.attribute(base, name, node.span, guarded),
            Kind::Item(base, key) => self.lookup(base, key, node.span, guarded),
            Kind::Slice(parts) => self.slice(&parts.0, &parts.1, node.span, guarded),
            Kind::Filter(filter, input, args) => self.filtered(filter.name, input, args, node.span, guarded),
            Kind::Method(base, name, args) => self.called(base, name, args, node.span, guarded),
            Kind::And(_) | Kind::Or(_) | Kind::If(_) | Kind::Default(_) => self.choice(&node.kind, guarded),
            kind => self.computed(kind, node.span, guarded).into(),
        }
    }

    fn attribute(&mut self, base: &'e Node, name: &'e Name, span: Span, guarded: bool) -> Value {
        if self.is_let(base) {
            return self.let_value(name).into();
        }
        let base = self.eval(base, guarded);
        self.field(base, name, span)
    }

    fn lookup(&mut self, base: &'e Node, key: &'e Node, span: Span, guarded: bool) -> Value {
        if let Kind::Const(Val::Str(name)) = &key.kind {
            return self.attribute(base, name, span, guarded);
        }
        let base = self.eval(base, guarded);
        self.item(base, key, span)
    }

    fn slice(&mut self, base: &'e Node, bounds: &'e [Option<Node>], span: Span, guarded: bool) -> Value {
        let told = self.read_all(bounds.iter().flatten(), false);
        let base = self.eval(base, guarded);
        let own = Taint::higher(base.taint.structure().cloned(), told);
        let taint = TaintTree::list_of(base.taint.get(None));
        let taint = taint.with(own.map(|own| own.at_least(Level::Derived)));
        Value { paths: base.paths.elements(&self.location(span)), taint }
    }

    /// A value that is one of several.
    fn choice(&mut self, kind: &'e Kind, guarded: bool) -> Value {
        let (told, value, other) = match kind {
            Kind::And(sides) => {
                let told = self.read(&sides.0, true).truth();
                return self.eval(&sides.1, guarded).with(told);
            }
            Kind::Or(sides) => {
                let left = self.eval(&sides.0, true);
                (left.taint.truth(), left, Some(&sides.1))
            }
            Kind::If(parts) => {
                let told = self.read(&parts.0, true).truth();
                (told, self.eval(&parts.1, guarded), parts.2.as_ref())
            }
            Kind::Default(parts) => {
                let told = self.read_all(&parts.2, false);
                let value = self.eval(&parts.0, true);
                (Taint::higher(told, value.taint.truth()), value, parts.1.as_ref())
            }
            _ => return Value::default(),
        };
        let other = other.map(|other| self.eval(other, guarded)).unwrap_or_default();
        self.join(value, other).with(told)
    }

    /// The taint of a new value. Its inputs are read.
    fn computed(&mut self, kind: &'e Kind, span: Span, guarded: bool) -> TaintTree {
        match kind {
            Kind::Not(operand) => TaintTree::of(self.read(operand, true).truth()),
            Kind::Neg(operand) => self.read(operand, guarded).computed(Level::Derived),
            Kind::Binary(op, sides) => {
                let (left, right) = (self.read(&sides.0, guarded), self.read(&sides.1, guarded));
                filters::binary(*op == Binary::Add, left, right)
            }
            Kind::Compare(first, rest) => self.compare(first, rest, guarded),
            Kind::Test(test, input, args) => {
                let told = self.read_all(args.iter().flatten(), false);
                let input = self.eval(input, guarded || test.flag);
                self.add(&input.paths, test.flag);
                let found = filters::of_test(test.name, &input.taint, args.iter().flatten().all(is_constant));
                TaintTree::of(Taint::higher(found, told).map(|told| told.at_least(Level::Bits)))
            }
            Kind::Function(function, args, keywords) => {
                let args: Vec<_> = args.iter().flatten().map(|node| self.read(node, false)).collect();
                let fields: Vec<_> =
                    keywords.iter().map(|(name, node)| (name, self.read(node, false))).collect();
                if !function.generates() {
                    return self.function(function.name, args, fields);
                }
                self.reads.generates.push(self.location(span));
                TaintTree::of(self.scope().map(|_| Taint::held(GENERATED)))
            }
            Kind::Macro(index, args) => self.macro_call(*index, args),
            Kind::Partial(name, vars) => self.partial(name, vars, span),
            Kind::List(items) => {
                let items = items.iter().map(|item| self.read(item, guarded)).enumerate();
                let fields = items.map(|(index, tree)| (index.to_string().into(), tree)).collect();
                TaintTree { fields, shape: Shape::List, ..TaintTree::default() }.limited(MAX_DEPTH)
            }
            Kind::Map(entries) => self.map(entries, guarded),
            // `eval` handles all other kinds.
            _ => TaintTree::default(),
        }
    }

    fn map(&mut self, entries: &'e [(Node, Node)], guarded: bool) -> TaintTree {
        let mut map = TaintTree { shape: Shape::Map, ..TaintTree::default() };
        for (key, value) in entries {
            let told = self.read(key, guarded).any().map(|taint| taint.at_least(Level::Bits));
            let value = self.read(value, guarded);
            if let Kind::Const(Val::Str(name)) = &key.kind {
                map.fields.insert(Arc::clone(name), value);
                continue;
            }
            let rest = map.rest.take().map(Arc::unwrap_or_clone);
            map.rest = Some(Arc::new(rest.unwrap_or_default().join(value)));
            map = map.with(told);
        }
        map.limited(MAX_DEPTH)
    }

    /// A value that is one of the two.
    pub(super) fn join(&mut self, left: Value, right: Value) -> Value {
        Value { taint: left.taint.join(right.taint), paths: self.either(left.paths, right.paths) }
    }

    /// The value of a field, also of a namespace.
    pub(super) fn field(&mut self, base: Value, name: &Name, span: Span) -> Value {
        let location = self.location(span);
        let found = base.taint.get(Some(name));
        let set = self.namespaces.get(name).filter(|_| base.taint.shape == Shape::Namespace).cloned();
        let taint = match set {
            Some(set) => found.join(set),
            None => found,
        };
        Value { paths: self.below(base.paths, &Segment::Key(name.to_string()), &location), taint }
    }

    /// The value of an item of a list, or of a field of a map.
    pub(super) fn item(&mut self, base: Value, key: &'e Node, span: Span) -> Value {
        let (segment, taint) = match &key.kind {
            Kind::Const(Val::Str(name)) => return self.field(base, name, span),
            Kind::Const(Val::Int(index)) => {
                let segment = i64::try_from(*index).map_or(Segment::Any, Segment::Index);
                (segment, base.taint.get(Some(&index.to_string())))
            }
            _ => {
                let told = self.read(key, false).any().map(|taint| taint.at_least(Level::Derived));
                let set = self.namespaces.values().cloned().reduce(TaintTree::join);
                let set = set.filter(|_| base.taint.shape == Shape::Namespace).unwrap_or_default();
                (Segment::Any, base.taint.get(None).join(set).with(told))
            }
        };
        let location = self.location(span);
        Value { paths: self.below(base.paths, &segment, &location), taint }
    }

    fn function(&mut self, name: &str, args: Vec<TaintTree>, fields: Vec<(&Name, TaintTree)>) -> TaintTree {
        match name {
            "namespace" => {
                for (name, tree) in fields {
                    self.set_field(name, tree.with(self.control.clone()).limited(MAX_DEPTH));
                }
                TaintTree { shape: Shape::Namespace, ..TaintTree::default() }
            }
            "dict" => {
                let fields = fields.into_iter().map(|(name, tree)| (name.to_string(), tree));
                filters::merged(args.into_iter().next().unwrap_or_default(), TaintTree::map(fields))
            }
            _ => {
                let all = args.iter().chain(fields.iter().map(|(_, tree)| tree));
                let told = all.fold(None, |told, tree| Taint::higher(told, tree.any()));
                TaintTree::of(told.map(|told| told.at_least(Level::Bits)))
            }
        }
    }

    /// Adds a value that the field of a namespace may have.
    pub(super) fn set_field(&mut self, name: &Name, tree: TaintTree) {
        let known = self.namespaces.remove(name).unwrap_or_default();
        self.namespaces.insert(Arc::clone(name), known.join(tree).limited(MAX_DEPTH));
    }

    fn compare(&mut self, first: &'e Node, rest: &'e [(Comparison, Node)], guarded: bool) -> TaintTree {
        let mut told = None;
        let mut left = (self.read(first, guarded), first);
        for (op, node) in rest {
            let right = (self.read(node, guarded), node);
            let found = match op {
                Comparison::Lt | Comparison::Le | Comparison::Gt | Comparison::Ge => {
                    Taint::higher(left.0.any(), right.0.any())
                }
                Comparison::In | Comparison::NotIn if right.0.is_open_map() => {
                    equality(&left, &(TaintTree::default(), node))
                }
                _ => equality(&left, &right),
            };
            told = Taint::higher(told, found);
            left = right;
        }
        TaintTree::of(told.map(|told| told.at_least(Level::Bits)))
    }
}

/// The taint of the equality of two values. There is none if one is a literal and the other the secret
/// itself: a value that equals a literal of the package is not secret, and inequality reveals no more than
/// that the value is not empty.
fn equality(left: &(TaintTree, &Node), right: &(TaintTree, &Node)) -> Option<Taint> {
    let told = Taint::higher(left.0.any(), right.0.any())?;
    let written = is_constant(left.1) || is_constant(right.1);
    (!written || told.level > Level::Held).then_some(told)
}

/// Whether the node is a literal.
fn is_constant(node: &Node) -> bool {
    match &node.kind {
        Kind::Const(_) => true,
        Kind::List(items) => items.iter().all(is_constant),
        _ => false,
    }
}
