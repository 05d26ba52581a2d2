//! Conditions that cannot hold together.

use super::code::{Comparison, Kind, Node};
use super::nodes::{constant, equal, flat, path, turned, within, words};
use super::reads::Segment;
use super::value::Name;
use super::{Engine, Expr};

use serde_json::Value;

impl Engine {
    /// Whether conditions of a plan that are evaluated one after another can never all have the results that
    /// they are paired with.
    pub fn contradict(&self, conditions: &[(&Expr, bool)]) -> bool {
        let mut sides: Vec<Side<'_>> = Vec::new();
        for (expr, wanted) in conditions {
            let nodes = if *wanted { flat(&expr.0.node, true) } else { vec![&expr.0.node] };
            let text = expr.0.unit.source.text.as_str();
            sides.extend(nodes.into_iter().filter(|node| is_fixed(node)).map(|node| (node, text, *wanted)));
        }
        let positive: Vec<&Node> = sides.iter().filter(|side| side.2).map(|side| side.0).collect();
        contradict(&sides) || excludes(&positive, Comparison::Eq)
    }
}

/// A condition, the text that contains it, and the result that it must have.
pub(super) type Side<'a> = (&'a Node, &'a str, bool);

/// Whether conditions cannot all hold: one is the opposite of another, or no number is in all ranges.
pub(super) fn contradict(sides: &[Side<'_>]) -> bool {
    let mut known: Vec<(String, bool)> = Vec::new();
    let mut ranges: Vec<(_, Range)> = Vec::new();
    for (node, text, wanted) in sides {
        let (what, truth) = plain(node, text, *wanted);
        if what
            .as_ref()
            .is_some_and(|what| known.iter().any(|(other, holds)| other == what && *holds != truth))
        {
            return true;
        }
        known.extend(what.map(|what| (what, truth)));
        let Some((path, range)) = range_of(node).filter(|_| *wanted) else { continue };
        let whole = ranges.iter_mut().find(|(other, _)| *other == path);
        match whole {
            Some((_, whole)) => {
                *whole = whole.and(range);
                if whole.is_empty() {
                    return true;
                }
            }
            None => ranges.push((path, range)),
        }
    }
    false
}

/// The text of a condition without its negations, and the result that this text must have.
fn plain(node: &Node, text: &str, wanted: bool) -> (Option<String>, bool) {
    let written = |node: &Node| text.get(node.span.start..node.span.end).map(words);
    match &node.kind {
        Kind::Not(inner) => plain(inner, text, !wanted),
        Kind::Test(test, input, _) if matches!(test.name, "defined" | "undefined") => {
            let what = written(input).map(|path| format!("{path} is defined"));
            (what, wanted == (test.name == "defined"))
        }
        _ => (written(node), wanted),
    }
}

/// The numbers that fulfil a comparison.
#[derive(Clone, Copy)]
struct Range {
    least: f64,
    most: f64,
    /// Whether the lower and the upper limit are excluded.
    is_open: (bool, bool),
}

impl Range {
    fn and(self, other: Self) -> Self {
        let (least, low) = if other.least >= self.least {
            (other.least, other.is_open.0 || other.least <= self.least && self.is_open.0)
        } else {
            (self.least, self.is_open.0)
        };
        let (most, high) = if other.most <= self.most {
            (other.most, other.is_open.1 || other.most >= self.most && self.is_open.1)
        } else {
            (self.most, self.is_open.1)
        };
        Self { least, most, is_open: (low, high) }
    }

    fn is_empty(self) -> bool {
        self.least > self.most || self.least >= self.most && (self.is_open.0 || self.is_open.1)
    }
}

/// The path and the range of a comparison with a number.
fn range_of(node: &Node) -> Option<((Name, Vec<Segment>), Range)> {
    let Kind::Compare(first, rest) = &node.kind else { return None };
    let [(op, second)] = rest.as_slice() else { return None };
    let (path, op, value) = match (path(first), constant(second), constant(first), path(second)) {
        (Some(path), Some(value), ..) => (path, *op, value),
        (_, _, Some(value), Some(path)) => (path, turned(*op), value),
        _ => return None,
    };
    let value = value.as_f64()?;
    let (least, most) = match op {
        Comparison::Lt | Comparison::Le => (f64::NEG_INFINITY, value),
        Comparison::Gt | Comparison::Ge => (value, f64::INFINITY),
        Comparison::Eq => (value, value),
        _ => return None,
    };
    Some((path, Range { least, most, is_open: (op == Comparison::Gt, op == Comparison::Lt) }))
}

/// The variables that do not change while a plan runs.
const FIXED: [&str; 6] = ["spec", "name", "namespace", "defaults", "operator", "run"];

/// Whether a condition reads only what does not change while a plan runs.
fn is_fixed(node: &Node) -> bool {
    let mut fixed = true;
    within(node, &mut |node| match &node.kind {
        Kind::Var(name) => fixed &= FIXED.contains(&&**name),
        Kind::Function(..) | Kind::Partial(..) | Kind::Macro(..) => fixed = false,
        _ => {}
    });
    fixed
}

/// Whether the sides exclude each other (`x == 'a' and x == 'b'`) or, for `!=`, cover everything (`x != 'a'
/// or x != 'b'`).
pub(super) fn excludes(sides: &[&Node], wanted: Comparison) -> bool {
    let mut known: Vec<((Name, Vec<Segment>), Value)> = Vec::new();
    for side in sides {
        let Kind::Compare(first, rest) = &side.kind else { continue };
        let [(op, second)] = rest.as_slice() else { continue };
        let (Some(path), Some(value)) = (path(first), constant(second)) else { continue };
        if *op != wanted {
            continue;
        }
        if known.iter().any(|(other, with)| *other == path && !equal(with, &value)) {
            return true;
        }
        known.push((path, value));
    }
    false
}
