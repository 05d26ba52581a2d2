//! Expressions and strings of `operator.yaml`.

use std::sync::Arc;

use serde_json::Value;

use super::code::{Kind, Node, Stmt, Unit};
use super::errors::{Fault, Res};
use super::eval::Cx;
use super::limits::Run;
use super::reads::Reads;
use super::scope::Scope;
use super::value::Val;
use crate::diag::{Location, Span};

/// A compiled expression. Copies are cheap.
#[derive(Debug, Clone)]
pub struct Expr(pub(super) Arc<ExprUnit>);

#[derive(Debug)]
pub(super) struct ExprUnit {
    pub(super) node: Node,
    /// Holds the source and the reads; it has no body.
    pub(super) unit: Unit,
}

impl Expr {
    /// The paths that the expression reads.
    pub fn reads(&self) -> &Reads {
        &self.0.unit.reads
    }

    /// The location of the expression.
    pub fn location(&self) -> Location {
        Location::new(&self.0.unit.source, self.0.node.span)
    }

    /// The text of the expression, if it is in one piece in the source.
    pub fn text(&self) -> Option<&str> {
        let span = self.0.node.span;
        self.0.unit.source.text.get(span.start..span.end).map(str::trim)
    }

    pub(super) fn value(&self, run: &Run<'_>, scope: &Scope) -> Res<Val> {
        Cx::new(run, scope, &self.0.unit).finished(&self.0.node)
    }

    /// The value, which must be defined.
    pub(super) fn defined(&self, run: &Run<'_>, scope: &Scope) -> Res<Val> {
        let mut cx = Cx::new(run, scope, &self.0.unit);
        match cx.finished(&self.0.node)? {
            Val::Undefined => Err(cx.undefined(&self.0.node)),
            value => Ok(value),
        }
    }

    /// Sets the location of an error to the whole expression, unless it has a location.
    pub(super) fn at(&self, fault: Fault) -> Fault {
        fault.at(&self.0.unit.source, self.0.node.span)
    }
}

/// A compiled string of `operator.yaml`. A single expression yields its native value, other text a string.
/// Copies are cheap.
#[derive(Debug, Clone)]
pub struct Text(pub(super) Arc<TextUnit>);

#[derive(Debug)]
pub(super) enum TextUnit {
    /// A value that needs no evaluation.
    Literal(Value, Reads),
    Template(Unit),
}

impl Text {
    /// Creates a text from a value without expressions: a number, a boolean, null.
    pub fn literal(value: Value) -> Self {
        Self(Arc::new(TextUnit::Literal(value, Reads::default())))
    }

    /// The value, if it is a literal and needs no evaluation.
    pub fn as_literal(&self) -> Option<&Value> {
        match &*self.0 {
            TextUnit::Literal(value, _) => Some(value),
            TextUnit::Template(_) => None,
        }
    }

    /// The paths that the text reads.
    pub fn reads(&self) -> &Reads {
        match &*self.0 {
            TextUnit::Literal(_, reads) => reads,
            TextUnit::Template(unit) => &unit.reads,
        }
    }

    /// The location of the first expression; `None` without one.
    pub fn location(&self) -> Option<Location> {
        let TextUnit::Template(unit) = &*self.0 else { return None };
        let node = unit.body.iter().find_map(|stmt| match stmt {
            Stmt::Emit(node) | Stmt::Set { value: node, .. } | Stmt::If { test: node, .. } => Some(node),
            Stmt::For(def) => Some(&def.iter),
            _ => None,
        });
        Some(Location::new(&unit.source, node.map_or(Span::default(), |node| node.span)))
    }

    /// The values in it whose last filter is not `filter`.
    pub(super) fn without_filter(&self, filter: &str) -> Vec<&Node> {
        let TextUnit::Template(unit) = &*self.0 else { return Vec::new() };
        let has_passed = |node: &Node| matches!(&node.kind, Kind::Filter(last, ..) if last.name == filter);
        let values = unit.body.iter().filter_map(|stmt| match stmt {
            Stmt::Emit(node) => Some(node),
            _ => None,
        });
        values.filter(|node| !has_passed(node)).collect()
    }

    /// The value, which may be undefined, unknown or `omit`.
    pub(super) fn value(&self, run: &Run<'_>, scope: &Scope) -> Res<Val> {
        let unit = match &*self.0 {
            TextUnit::Literal(value, _) => return Ok(Val::from_json(value)),
            TextUnit::Template(unit) => unit,
        };
        let mut cx = Cx::new(run, scope, unit);
        if let [Stmt::Emit(node)] = unit.body.as_slice() {
            return cx.finished(node);
        }
        let mut pieces = Vec::new();
        cx.exec(&unit.body, &mut pieces)?;
        cx.text(pieces).map(Val::Str)
    }

    /// The value, which must be defined.
    pub(super) fn defined(&self, run: &Run<'_>, scope: &Scope) -> Res<Val> {
        let value = self.value(run, scope)?;
        match (&value, &*self.0) {
            (Val::Undefined, TextUnit::Template(unit)) => {
                let mut cx = Cx::new(run, scope, unit);
                Err(match unit.body.as_slice() {
                    [Stmt::Emit(node)] => cx.undefined(node),
                    _ => Fault::undefined("the value is undefined"),
                })
            }
            _ => Ok(value),
        }
    }

    /// Sets the location of an error to the whole text, unless it has a location.
    pub(super) fn at(&self, fault: Fault) -> Fault {
        match &*self.0 {
            TextUnit::Template(unit) => match unit.body.as_slice() {
                [Stmt::Emit(node)] => fault.at(&unit.source, node.span),
                _ => fault,
            },
            TextUnit::Literal(..) => fault,
        }
    }
}
