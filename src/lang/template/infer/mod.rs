//! Infers the types of expressions and of rendered documents without evaluating anything.
//!
//! An expression is walked once, with a type for each variable. An uncertain type is "any", and nothing is reported
//! about it. A template is walked once for each of its variants, which cover each branch, but not all combinations.

mod calls;
mod documents;
mod expressions;
mod facts;
mod operators;

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use super::code::{MacroDef, Node, Stmt, Unit};
use super::names::Names;
use super::scope::Lets;
use super::text::{Expr, Text, TextUnit};
use super::{Engine, Template};
use crate::diag::{Diagnostic, Location, Source, Span};
use crate::schema::{Basic, Schema, Type};

/// The maximum number of visited nodes per use, including `let`s and partials; beyond it the type is any.
const FUEL: usize = 100_000;
/// The maximum depth of expressions, including those of lets.
const MAX_DEPTH: usize = 128;
/// The maximum depth of calls of lets, macros and partials.
const MAX_CALLS: usize = 24;

/// Infers the types of the expressions of one place: one child, one ref, the status.
pub struct Infer<'a> {
    engine: &'a Engine,
    lets: &'a Lets,
    vars: BTreeMap<String, Type<'a>>,
    /// The types of the keys of maps, by path.
    keys: BTreeMap<String, Basic>,
    /// The CEL rules of the CRD: the fields that they mention may depend on each other.
    rules: &'a str,
    source: Arc<Source>,
    macros: &'a [MacroDef],
    names: Names<Type<'a>>,
    /// Paths that are known to be present.
    facts: Vec<Rc<str>>,
    /// The current variant of the template.
    variant: usize,
    calls: usize,
    depth: usize,
    fuel: usize,
    /// Whether to report required values that may be absent.
    pub reports_absent: bool,
    seen: HashSet<(String, usize, String)>,
    found: Vec<Diagnostic>,
}

impl<'a> Infer<'a> {
    /// Creates an instance without variables. `rules` are the CEL rules of the CRD: the fields that they
    /// mention may depend on each other.
    pub fn new(engine: &'a Engine, lets: &'a Lets, rules: &'a str) -> Self {
        Self {
            engine,
            lets,
            vars: BTreeMap::new(),
            keys: BTreeMap::new(),
            rules,
            source: Source::new("", ""),
            macros: &[],
            names: Names::default(),
            facts: Vec::new(),
            variant: 0,
            calls: 0,
            depth: 0,
            fuel: FUEL,
            reports_absent: true,
            seen: HashSet::new(),
            found: Vec::new(),
        }
    }

    /// Sets the type of a variable.
    pub fn set(&mut self, name: &str, ty: Type<'a>) {
        let origin = ty.origin.clone().unwrap_or_else(|| Rc::from(name));
        self.vars.insert(name.to_owned(), ty.read_from(Some(origin)));
    }

    /// Sets the type of the keys of the map at a path.
    pub fn set_keys(&mut self, path: String, keys: Basic) {
        self.keys.insert(path, keys);
    }

    /// Reports a key that the map at a path cannot have.
    pub fn key(&mut self, path: &str, key: &Type<'a>, at: &Location) {
        let Some(keys) = self.keys.get(path).filter(|keys| key.basic.value().misses(**keys)) else { return };
        let (what, help) = match *keys {
            Basic::STRING => ("strings", "quote it, or use `| string`"),
            _ => ("integers", "remove the quotes, or use `| int`"),
        };
        let message = format!("the keys of `{path}` are {what}, not {}", key.basic.value().shown());
        let error = Diagnostic::error("type::key", message).help(help);
        if self.seen.insert((at.source.name.clone(), at.span.start, error.message.clone())) {
            self.found.push(error.located(at.clone()));
        }
    }

    /// Removes a variable.
    pub fn unset(&mut self, name: &str) {
        self.vars.remove(name);
    }

    /// Takes the diagnostics found so far.
    pub fn take_found(&mut self) -> Vec<Diagnostic> {
        std::mem::take(&mut self.found)
    }

    /// The type of an expression.
    pub fn expression(&mut self, expr: &'a Expr) -> Type<'a> {
        self.within(&expr.0.unit, |infer| infer.infer(&expr.0.node))
    }

    /// The types of the values that an expression can have, one for each branch, with the location of the
    /// branch.
    pub fn alternatives(&mut self, expr: &'a Expr) -> Vec<(Type<'a>, Location)> {
        self.within(&expr.0.unit, |infer| {
            let mut found = Vec::new();
            infer.branches(&expr.0.node, &mut found);
            found
        })
    }

    /// The type of an expression that must not be absent.
    pub fn needed(&mut self, expr: &'a Expr) -> Type<'a> {
        self.within(&expr.0.unit, |infer| infer.need(&expr.0.node))
    }

    /// The item type of the list that an expression yields.
    pub fn looped(&mut self, ty: Type<'a>, expr: &'a Expr) -> Type<'a> {
        let ty = self.within(&expr.0.unit, |infer| infer.iterable(ty, expr.0.node.span));
        Self::each_of(&ty)
    }

    /// The location of an expression.
    pub fn place(expr: &Expr) -> Location {
        Location::new(&expr.0.unit.source, expr.0.node.span)
    }

    /// The type of a string of `operator.yaml`, which must not be absent.
    pub fn text(&mut self, text: &'a Text) -> Type<'a> {
        self.text_type(text, true)
    }

    fn text_type(&mut self, text: &'a Text, is_needed: bool) -> Type<'a> {
        let unit = match &*text.0 {
            // Null also stands for a text that could not be compiled.
            TextUnit::Literal(serde_json::Value::Null, _) => return Type::any(),
            TextUnit::Literal(value, _) => return Type::literal(value),
            TextUnit::Template(unit) => unit,
        };
        self.within(unit, |infer| match unit.body.as_slice() {
            [Stmt::Emit(node)] if is_needed => infer.need(node),
            [Stmt::Emit(node)] => infer.infer(node),
            body => infer.string(body),
        })
    }

    /// The documents of a template, one for each variant.
    pub fn template(&mut self, template: &'a Template) -> Vec<Type<'a>> {
        self.within(&template.unit, |infer| infer.documents(&template.unit))
    }

    /// Assumes that an expression is true.
    pub fn assume(&mut self, expr: &'a Expr) {
        let facts = self.within(&expr.0.unit, |infer| infer.facts(&expr.0.node, true));
        self.facts.extend(facts);
    }

    /// The number of facts, for [`Infer::forget`].
    pub fn mark(&self) -> usize {
        self.facts.len()
    }

    /// Drops the facts that were assumed since `mark`, a result of [`Infer::mark`].
    pub fn forget(&mut self, mark: usize) {
        self.facts.truncate(mark);
    }

    /// Resets the fuel for a new use.
    pub fn refuel(&mut self) {
        self.fuel = FUEL;
    }

    /// Walks a part of another file, which sees no local variables.
    fn within<T>(&mut self, unit: &'a Unit, walk: impl FnOnce(&mut Self) -> T) -> T {
        let source = std::mem::replace(&mut self.source, Arc::clone(&unit.source));
        let macros = std::mem::replace(&mut self.macros, &unit.macros);
        let names = std::mem::take(&mut self.names);
        let variant = std::mem::take(&mut self.variant);
        let result = walk(self);
        self.variant = variant;
        self.names = names;
        self.macros = macros;
        self.source = source;
        result
    }

    fn location(&self, span: Span) -> Location {
        Location::new(&self.source, span)
    }

    fn error(&mut self, code: &'static str, span: Span, message: String, help: Option<String>) {
        self.push(Diagnostic { help, ..Diagnostic::error(code, message) }, span);
    }

    fn push(&mut self, diagnostic: Diagnostic, span: Span) {
        let key = (self.source.name.clone(), span.start, diagnostic.message.clone());
        if self.seen.insert(key) {
            self.found.push(diagnostic.at(&self.source, span));
        }
    }

    /// The type of an expression that must not be absent.
    fn need(&mut self, node: &'a Node) -> Type<'a> {
        let ty = self.infer(node);
        self.defined(ty, node.span)
    }

    /// The type of a value that must not be absent.
    fn defined(&mut self, ty: Type<'a>, span: Span) -> Type<'a> {
        if ty.basic.overlaps(Basic::ABSENT) && self.reports_absent {
            let path = ty.origin.as_deref().unwrap_or("the value");
            let message = format!("`{path}` may be absent, and then this fails");
            let help = "check `is defined` first, use `| default(...)`, or make it required in the CRD";
            self.push(Diagnostic::warning("type::absent", message).help(help), span);
        }
        ty.without(Basic::ABSENT)
    }

    /// Whether the CRD requires a field of that schema, or sets a default.
    fn is_there(&self, schema: Schema<'a>, field: &str) -> bool {
        use crate::schema::Lookup;
        schema.required().any(|required| required == field)
            || matches!(schema.field(field), Lookup::Known(below) if below.has_default())
            || !schema.has_named_fields() // whether a map has a key is up to the author
            || self.rules.contains(field)
    }
}

/// Whether it is a path into the instance's spec.
fn is_of_spec(origin: &str) -> bool {
    origin == "spec" || origin.starts_with("spec.") || origin.starts_with("spec[")
}
