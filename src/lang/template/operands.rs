//! The values that decide whether an expression is true, for a message.

use serde_json::Value;

use super::code::{Kind, Node};
use super::eval::Cx;
use super::limits::Run;
use super::nodes::{constant, words};
use super::scope::Scope;
use super::value::Val;
use super::{Engine, Expr};

impl Engine {
    /// The operands of the comparisons in an expression with their values, each as it is written. Constants are left out, and so is
    /// what is undefined or has no value.
    pub fn operands(&self, expr: &Expr, scope: &Scope) -> Vec<(String, Value)> {
        let unit = &expr.0.unit;
        let (mut found, mut open) = (Vec::new(), vec![&expr.0.node]);
        while let Some(node) = open.pop() {
            match &node.kind {
                Kind::And(sides) | Kind::Or(sides) => open.extend([&sides.1, &sides.0]),
                Kind::Not(inner) => open.push(inner),
                Kind::Compare(first, rest) => {
                    open.extend(rest.iter().rev().map(|(_, node)| node));
                    open.push(first);
                }
                Kind::Test(_, input, _) => open.push(input),
                _ if constant(node).is_some() => {}
                _ => {
                    let value = self.run(scope, |run| self.operand(run, Cx::new(run, scope, unit), node));
                    let text = unit.source.text.get(node.span.start..node.span.end).map(words);
                    if let (Ok(Some(value)), Some(text)) = (value, text) {
                        found.push((text, value));
                    }
                }
            }
        }
        found
    }

    fn operand(&self, run: &Run<'_>, mut cx: Cx<'_>, node: &Node) -> super::errors::Res<Option<Value>> {
        match cx.finished(node)? {
            Val::Undefined | Val::Omit => Ok(None),
            value => self.json(run, &value).map(Some),
        }
    }
}
