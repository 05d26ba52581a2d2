//! Expressions.

use std::sync::Arc;

use super::{GENERATED, Walk};
use crate::template::code::{Binary, Comparison, Kind, Node};
use crate::template::taint::{Level, MAX_DEPTH, Shape, Taint, TaintTree, filters};
use crate::template::value::{Name, Val};

impl<'e> Walk<'e> {
    /// The taint of the truthiness of an expression.
    pub(super) fn truth(&mut self, node: &'e Node) -> Option<Taint> {
        self.eval(node).truth()
    }

    pub(in crate::template::taint) fn eval(&mut self, node: &'e Node) -> TaintTree {
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

    /// The taint of a field, also of a namespace.
    pub(in crate::template::taint) fn field(&self, base: &TaintTree, name: &Name) -> TaintTree {
        let found = base.get(Some(name));
        match self.namespaces.get(name) {
            Some(set) if base.shape == Shape::Namespace => found.join(set.clone()),
            _ => found,
        }
    }

    /// The strongest taint of several values.
    pub(in crate::template::taint) fn all(
        &mut self,
        nodes: impl IntoIterator<Item = &'e Node>,
    ) -> Option<Taint> {
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

/// The taint of the equality of two values. There is none if one is a literal and the other the secret
/// itself: a value that equals a literal of the package is not secret, and inequality reveals no more than
/// that the value is not empty.
fn equality(left: (&TaintTree, &Node), right: (&TaintTree, &Node)) -> Option<Taint> {
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
