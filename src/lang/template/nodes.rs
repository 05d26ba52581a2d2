//! What is asked of parsed expressions: the operands of `and` and `or`, constants, paths, and all expressions within one.

use std::sync::Arc;

use serde_json::Value;

use super::Engine;
use super::code::{Comparison, Kind, Node};
use super::json::{JsonPath, Meter};
use super::limits::Run;
use super::reads::Segment;
use super::value::{Name, Val};

/// The operands of a chain of `and`, or of `or`.
pub(super) fn flat(node: &Node, and: bool) -> Vec<&Node> {
    let (mut sides, mut open) = (Vec::new(), vec![node]);
    while let Some(node) = open.pop() {
        match &node.kind {
            Kind::And(pair) if and => open.extend([&pair.1, &pair.0]),
            Kind::Or(pair) if !and => open.extend([&pair.1, &pair.0]),
            _ => sides.push(node),
        }
    }
    sides
}

pub(super) fn turned(op: Comparison) -> Comparison {
    match op {
        Comparison::Lt => Comparison::Gt,
        Comparison::Le => Comparison::Ge,
        Comparison::Gt => Comparison::Lt,
        Comparison::Ge => Comparison::Le,
        other => other,
    }
}

pub(super) fn equal(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        #[allow(clippy::float_cmp)] // expressions compare numbers in the same way
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

/// The value of a literal.
pub(super) fn constant(node: &Node) -> Option<Value> {
    let Kind::Const(value) = &node.kind else { return None };
    if matches!(value, Val::Undefined | Val::Omit) {
        return None;
    }
    let engine = Engine::empty();
    value.to_json(&Run::new(&engine), &mut Meter::new(1 << 16), &mut JsonPath::default()).ok()
}

/// The variable and the steps of a path with literal steps.
pub(super) fn path(node: &Node) -> Option<(Name, Vec<Segment>)> {
    let mut segments = Vec::new();
    let mut at = node;
    loop {
        match &at.kind {
            Kind::Var(name) => {
                segments.reverse();
                return Some((Arc::clone(name), segments));
            }
            Kind::Attr(base, name) => {
                segments.push(Segment::Key(name.to_string()));
                at = base;
            }
            Kind::Item(base, key) => {
                segments.push(match &key.kind {
                    Kind::Const(Val::Str(name)) => Segment::Key(name.to_string()),
                    Kind::Const(Val::Int(index)) => Segment::Index(i64::try_from(*index).ok()?),
                    _ => return None,
                });
                at = base;
            }
            _ => return None,
        }
    }
}

pub(super) fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Calls `f` with an expression and all nested ones. Not recursive: an expression may be deep.
pub(super) fn within<'u>(node: &'u Node, f: &mut dyn FnMut(&'u Node)) {
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        f(node);
        match &node.kind {
            Kind::Const(_) | Kind::Var(_) => {}
            Kind::Attr(base, _) | Kind::Not(base) | Kind::Neg(base) => open.push(base),
            Kind::Item(base, key) => open.extend([&**base, &**key]),
            Kind::Slice(parts) => {
                open.push(&parts.0);
                open.extend(parts.1.iter().flatten());
            }
            Kind::And(sides) | Kind::Or(sides) | Kind::Binary(_, sides) => open.extend([&sides.0, &sides.1]),
            Kind::Compare(first, rest) => {
                open.push(first);
                open.extend(rest.iter().map(|(_, node)| node));
            }
            Kind::If(parts) => {
                open.extend([&parts.0, &parts.1]);
                open.extend(&parts.2);
            }
            Kind::Default(parts) => {
                open.push(&parts.0);
                open.extend(parts.1.iter().chain(&parts.2));
            }
            Kind::Filter(_, input, args) | Kind::Test(_, input, args) => {
                open.push(input);
                open.extend(args.iter().flatten());
            }
            Kind::Function(_, args, keywords) => {
                open.extend(args.iter().flatten());
                open.extend(keywords.iter().map(|(_, node)| node));
            }
            Kind::Macro(_, args) => open.extend(args.iter().flatten()),
            Kind::Partial(_, vars) => open.extend(vars.iter().map(|(_, node)| node)),
            Kind::Method(base, _, args) => {
                open.push(base);
                open.extend(args);
            }
            Kind::List(items) => open.extend(items),
            Kind::Map(entries) => open.extend(entries.iter().flat_map(|(key, value)| [key, value])),
        }
    }
}
