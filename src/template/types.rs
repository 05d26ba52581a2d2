//! What values an expression can have, as far as that stands in its text. For lint: nothing is evaluated.

use serde_json::Value;

use super::code::{Binary, Kind, Node};
use super::json::{JsonPath, Meter};
use super::limits::Run;
use super::text::Expr;
use super::value::Val;
use super::{Engine, Segment};
use crate::diag::Location;

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    /// True or false.
    Bool,
    /// A whole number.
    Int,
    /// A text.
    Text,
    /// A list.
    List,
    /// A map.
    Map,
}

/// One value that an expression can have.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// It is written out.
    Literal(Value),
    /// Only its type is known.
    Of(Type),
}

/// What is known of a path that is read: its type.
pub(super) type TypeOf<'a> = &'a dyn Fn(&str, &[Segment]) -> Option<Type>;

impl Expr {
    /// What its value can be, each with the place in the text. What cannot be told is missing, as are null, `omit` and
    /// what is undefined.
    pub fn outcomes(&self, engine: &Engine, type_of: TypeOf<'_>) -> Vec<(Outcome, Location)> {
        let mut types = Types { engine, type_of, found: Vec::new() };
        types.walk(&self.0.node);
        let source = &self.0.unit.source;
        types.found.into_iter().map(|(outcome, node)| (outcome, Location::new(source, node.span))).collect()
    }
}

struct Types<'a, 'n> {
    engine: &'a Engine,
    type_of: TypeOf<'a>,
    found: Vec<(Outcome, &'n Node)>,
}

impl<'n> Types<'_, 'n> {
    fn walk(&mut self, node: &'n Node) {
        match &node.kind {
            Kind::If(parts) => {
                self.walk(&parts.1);
                if let Some(otherwise) = &parts.2 {
                    self.walk(otherwise);
                }
            }
            Kind::Default(parts) => {
                self.walk(&parts.0);
                if let Some(instead) = &parts.1 {
                    self.walk(instead);
                }
            }
            Kind::Const(value) => {
                if let Some(outcome) = self.literal(value) {
                    self.found.push((outcome, node));
                }
            }
            _ => {
                if let Some(kind) = self.of(node) {
                    self.found.push((Outcome::Of(kind), node));
                }
            }
        }
    }

    fn literal(&self, value: &Val) -> Option<Outcome> {
        if matches!(value, Val::Omit | Val::Null | Val::Undefined) {
            return None;
        }
        let run = Run::new(self.engine);
        let json = value.to_json(&run, &mut Meter::new(1 << 16), &mut JsonPath::default()).ok()?;
        Some(Outcome::Literal(json))
    }

    /// The one type that a value of it has.
    fn of(&self, node: &Node) -> Option<Type> {
        match &node.kind {
            Kind::Const(value) => match value {
                Val::Bool(_) => Some(Type::Bool),
                Val::Int(_) => Some(Type::Int),
                Val::Str(_) => Some(Type::Text),
                _ => None,
            },
            Kind::Not(_) | Kind::Compare(..) | Kind::Test(..) => Some(Type::Bool),
            Kind::Binary(Binary::Concat, _) => Some(Type::Text),
            Kind::Binary(Binary::Add | Binary::Sub | Binary::Mul, sides) => {
                let both = (self.of(&sides.0)?, self.of(&sides.1)?);
                (both == (Type::Int, Type::Int)).then_some(Type::Int)
            }
            Kind::If(parts) => {
                let (then, otherwise) = (self.of(&parts.1)?, self.of(parts.2.as_ref()?)?);
                (then == otherwise).then_some(then)
            }
            Kind::Default(parts) => {
                let (value, instead) = (self.of(&parts.0)?, self.of(parts.1.as_ref()?)?);
                (value == instead).then_some(value)
            }
            Kind::Filter(filter, _, _) => match filter.name {
                "length" | "count" | "int" => Some(Type::Int),
                "bool" | "known" => Some(Type::Bool),
                "b64encode" | "capitalize" | "dns_label" | "format" | "indent" | "join" | "lower"
                | "pprint" | "replace" | "sha256" | "shell_quote" | "sql_literal" | "string" | "title"
                | "to_json" | "tojson" | "to_yaml" | "trim" | "upper" | "urlencode" => Some(Type::Text),
                "batch" | "chain" | "items" | "keys" | "lines" | "list" | "map" | "reject" | "rejectattr"
                | "select" | "selectattr" | "sort" | "split" | "unique" | "values" | "zip" => {
                    Some(Type::List)
                }
                _ => None,
            },
            Kind::Function(function, _, _) => match function.name {
                "range" => Some(Type::List),
                "dict" => Some(Type::Map),
                _ => None,
            },
            Kind::List(_) => Some(Type::List),
            Kind::Map(_) => Some(Type::Map),
            Kind::Attr(..) | Kind::Var(_) => {
                let (root, path) = path_of(node)?;
                (self.type_of)(&root, &path)
            }
            _ => None,
        }
    }
}

/// `a.b.c` as the variable and its path.
fn path_of(node: &Node) -> Option<(String, Vec<Segment>)> {
    match &node.kind {
        Kind::Var(name) => Some((name.to_string(), Vec::new())),
        Kind::Attr(base, name) => {
            let (root, mut path) = path_of(base)?;
            path.push(Segment::Key(name.to_string()));
            Some((root, path))
        }
        _ => None,
    }
}
