//! Facts that follow from a condition: the paths that are present while it is true.

use std::rc::Rc;

use super::{Infer, MAX_CALLS, MAX_DEPTH};
use crate::schema::{Basic, Shape, Type};
use crate::template::code::{Comparison, Kind, Node, Stmt};
use crate::template::text::TextUnit;
use crate::template::value::Val;

type Facts = Vec<Rc<str>>;

/// The facts if a path is present: then all its parents are present, too.
fn there(origin: Option<&Rc<str>>) -> Facts {
    let Some(origin) = origin else { return Vec::new() };
    let mut facts = vec![Rc::clone(origin)];
    let ends = origin.char_indices().filter(|(_, c)| matches!(c, '.' | '[')).map(|(end, _)| end);
    facts.extend(ends.filter(|&end| end > 0).map(|end| Rc::from(&origin[..end])));
    facts
}

fn common(left: Facts, right: &Facts) -> Facts {
    left.into_iter().filter(|fact| right.contains(fact)).collect()
}

impl<'a> Infer<'a> {
    /// The paths that are present if a test has the given result.
    pub(super) fn facts(&mut self, test: &'a Node, holds: bool) -> Facts {
        if self.fuel == 0 || self.calls > MAX_CALLS || self.depth > MAX_DEPTH {
            return Vec::new();
        }
        self.fuel -= 1;
        self.depth += 1;
        let facts = self.facts_of(test, holds);
        self.depth -= 1;
        facts
    }

    fn facts_of(&mut self, test: &'a Node, holds: bool) -> Facts {
        match &test.kind {
            Kind::Attr(base, name) if self.is_let(base) => {
                let Some(text) = self.lets.get(name) else { return Vec::new() };
                let TextUnit::Template(unit) = &*text.0 else { return Vec::new() };
                let [Stmt::Emit(node)] = unit.body.as_slice() else { return Vec::new() };
                self.calls += 1;
                let facts = self.within(unit, |infer| infer.facts(node, holds));
                self.calls -= 1;
                facts
            }
            Kind::Var(_) | Kind::Attr(..) | Kind::Item(..) if holds => {
                let ty = self.infer(test);
                there(ty.origin.as_ref())
            }
            Kind::Not(operand) => self.facts(operand, !holds),
            Kind::And(sides) if holds => self.both(&sides.0, &sides.1, true),
            Kind::Or(sides) if !holds => self.both(&sides.0, &sides.1, false),
            Kind::And(sides) | Kind::Or(sides) => {
                let left = self.facts(&sides.0, holds);
                let right = self.facts(&sides.1, holds);
                common(left, &right)
            }
            Kind::Test(found, input, _) => match found.name {
                "defined" | "string" | "number" | "int" | "integer" | "float" | "boolean" | "mapping"
                | "sequence" | "iterable" | "true" | "even" | "odd" | "in" | "eq" | "equalto" | "=="
                    if holds =>
                {
                    there(self.infer(input).origin.as_ref())
                }
                // `x is not empty` is an error if x is undefined.
                "undefined" | "empty" if !holds => there(self.infer(input).origin.as_ref()),
                _ => Vec::new(),
            },
            Kind::Compare(first, rest) => self.compared(first, rest, holds),
            Kind::Default(parts) if holds => {
                let (value, other, _) = &**parts;
                let is_false = other.as_ref().is_none_or(|other| match &self.infer(other) {
                    Type { shape: Shape::Literal(value), .. } => {
                        value.is_null()
                            || value.as_bool() == Some(false)
                            || value.as_f64() == Some(0.0)
                            || value.as_str() == Some("")
                    }
                    Type { shape: Shape::List(items), .. } => items.is_empty(),
                    Type { shape: Shape::Map(fields), .. } => fields.entries.is_empty() && !fields.is_open,
                    _ => false,
                });
                if is_false { self.facts(value, true) } else { Vec::new() }
            }
            // The input of a filter must be present.
            Kind::Filter(filter, input, _) if holds && !filter.lenient => {
                there(self.infer(input).origin.as_ref())
            }
            _ => Vec::new(),
        }
    }

    fn both(&mut self, left: &'a Node, right: &'a Node, holds: bool) -> Facts {
        let mut facts = self.facts(left, holds);
        let mark = self.mark();
        self.facts.extend(facts.iter().cloned());
        let more = self.facts(right, holds);
        self.forget(mark);
        facts.extend(more);
        facts
    }

    fn compared(&mut self, first: &'a Node, rest: &'a [(Comparison, Node)], holds: bool) -> Facts {
        let [(op, second)] = rest else { return Vec::new() };
        let is_absent = |node: &Node| matches!(node.kind, Kind::Const(Val::Null | Val::Undefined));
        match (op, holds) {
            (Comparison::Eq, true) | (Comparison::Ne, false) if !is_absent(first) && !is_absent(second) => {
                // If both sides may be absent, nothing follows.
                let (left, right) = (self.infer(first), self.infer(second));
                let mut facts = Vec::new();
                if !right.basic.overlaps(Basic::ABSENT) {
                    facts.extend(there(left.origin.as_ref()));
                }
                if !left.basic.overlaps(Basic::ABSENT) {
                    facts.extend(there(right.origin.as_ref()));
                }
                facts
            }
            (Comparison::Lt | Comparison::Le | Comparison::Gt | Comparison::Ge, true) => {
                // An absent side is an error, so both are present. `x | length > 0` also shows that x is present.
                let mut facts = Vec::new();
                for side in [first, second] {
                    match &side.kind {
                        Kind::Filter(filter, input, _) if !filter.lenient => {
                            facts.extend(there(self.infer(input).origin.as_ref()));
                        }
                        // The replacement shows nothing about the value.
                        Kind::Default(_) => {}
                        _ => facts.extend(there(self.infer(side).origin.as_ref())),
                    }
                }
                facts
            }
            (Comparison::In, true) | (Comparison::NotIn, false) => {
                let hay = self.infer(second);
                let key = match &first.kind {
                    Kind::Const(Val::Str(key)) => {
                        hay.origin.as_ref().map(|origin| Rc::from(format!("{origin}.{key}")))
                    }
                    _ => None,
                };
                let mut facts = there(key.as_ref());
                facts.extend(there(hay.origin.as_ref()));
                facts.extend(there(self.infer(first).origin.as_ref()));
                facts
            }
            _ => Vec::new(),
        }
    }
}
