//! Comparisons that are true of what is absent: `refs.x.stdout != ''` while the ref `x` does not exist.

use super::Expr;
use super::code::{Comparison, Kind, Node};
use super::nodes::{constant, flat, path, words};
use super::reads::Segment;
use super::value::Name;

impl Expr {
    /// The texts of its operands of `and`; without one, its own text.
    pub fn conjuncts(&self) -> Vec<String> {
        flat(&self.0.node, true)
            .into_iter()
            .filter_map(|side| text(side, self.0.unit.source.text.as_str()))
            .collect()
    }
}

/// A variable and the first step below it, such as `refs` and `x`.
type Owner = (Name, Segment);

/// What the operands of `and` around an expression say.
#[derive(Clone, Default)]
struct Known {
    /// The owners that are there.
    there: Vec<Owner>,
    /// The texts of what is true.
    texts: Vec<String>,
}

/// The comparisons of a condition that are true if the owner of a path is absent, although no operand of `and` beside them says that it
/// is there. `whens` yields the conditions under which an owner is there; none if it always is.
pub(super) fn true_of_absent<'n>(
    condition: &'n Node,
    source: &str,
    whens: &dyn Fn(&str, &[Segment]) -> Vec<String>,
) -> Vec<&'n Node> {
    let mut found = Vec::new();
    let mut open = vec![(condition, Known::default())];
    while let Some((node, mut known)) = open.pop() {
        let operands = flat(node, true);
        known.there.extend(operands.iter().filter_map(|operand| needed(operand)));
        known.texts.extend(operands.iter().filter_map(|operand| text(operand, source)));
        for operand in operands {
            if let Kind::Or(_) = &operand.kind {
                open.extend(flat(operand, false).into_iter().map(|operand| (operand, known.clone())));
            }
            let Some(owner) = differs(operand) else { continue };
            let whens = whens(&owner.0, std::slice::from_ref(&owner.1));
            let is_told = known.there.contains(&owner) || whens.iter().all(|when| known.texts.contains(when));
            if !is_told {
                found.push(operand);
            }
        }
    }
    found
}

/// The owner of a path that is compared with `!=`, `not in` or `not ... ==` with constants.
fn differs(node: &Node) -> Option<Owner> {
    let (node, is_not) = match &node.kind {
        Kind::Not(inner) => (&**inner, true),
        _ => (node, false),
    };
    let Kind::Compare(first, rest) = &node.kind else { return None };
    let [(op, second)] = rest.as_slice() else { return None };
    match (op, &second.kind) {
        (Comparison::Eq | Comparison::Ne, _) if (*op == Comparison::Eq) == is_not => {
            match (constant(first), constant(second)) {
                (None, Some(_)) => owner(first),
                (Some(_), None) => owner(second),
                _ => None,
            }
        }
        (Comparison::In | Comparison::NotIn, Kind::List(items)) if (*op == Comparison::In) == is_not => {
            owner(first).filter(|_| items.iter().all(|item| constant(item).is_some()))
        }
        _ => None,
    }
}

/// The owner that must be there for a condition to be true.
fn needed(node: &Node) -> Option<Owner> {
    match &node.kind {
        Kind::Test(test, input, _) if test.name != "undefined" => whole(input),
        Kind::Compare(first, rest) => match rest.as_slice() {
            [(Comparison::Ne | Comparison::NotIn, _)] => None,
            [(_, second)] => whole(first).or_else(|| whole(second)),
            _ => None,
        },
        _ => whole(node),
    }
}

/// The owner of a field: `refs` and `x` of `refs.x.stdout`.
fn owner(node: &Node) -> Option<Owner> {
    let (root, segments) = path(node)?;
    let [first, _, ..] = segments.as_slice() else { return None };
    Some((root, first.clone()))
}

/// The owner of a field, or the one that a path leads to: `refs` and `x` of `refs.x`.
fn whole(node: &Node) -> Option<Owner> {
    let (root, segments) = path(node)?;
    Some((root, segments.first()?.clone()))
}

fn text(node: &Node, source: &str) -> Option<String> {
    source.get(node.span.start..node.span.end).map(words)
}
