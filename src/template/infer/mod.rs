//! The types of expressions and of what templates give, found without evaluating anything.
//!
//! An expression is walked once, with a type for each variable. Where nothing is known for sure the type is
//! "any", of which nothing is ever said. A template is walked once for each of its variants: enough of them that
//! each branch is in one, not all combinations.

mod calls;
mod documents;
mod expressions;
mod facts;
mod operators;

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use super::code::{MacroDef, Node, Stmt, Unit};
use super::scope::Lets;
use super::text::{Expr, Text, TextUnit};
use super::value::Name;
use super::{Engine, Template};
use crate::diag::{Diagnostic, Location, Source, Span};
use crate::schema::{Basic, Schema, Type};

/// Nodes that one use looks at, `let`s and partials included; what is beyond is any.
const FUEL: usize = 100_000;
/// How deep expressions are in one another, those of lets counted.
const MAX_DEPTH: usize = 128;
/// How deep lets, macros and partials call each other.
const MAX_CALLS: usize = 24;

/// Infers the types of the expressions of one place: one child, one ref, the status.
pub(crate) struct Infer<'a> {
    engine: &'a Engine,
    lets: &'a Lets,
    vars: BTreeMap<String, Type<'a>>,
    /// What the CRD's rules speak of: whether a field is there may follow from them.
    rules: &'a str,
    source: Arc<Source>,
    macros: &'a [MacroDef],
    locals: Vec<(Name, Type<'a>)>,
    frames: Vec<usize>,
    /// Paths that are known to be there.
    facts: Vec<Rc<str>>,
    /// Which variant of a template is walked.
    variant: usize,
    calls: usize,
    depth: usize,
    fuel: usize,
    /// Whether what may be absent is reported where it must not be.
    pub(crate) reports_absent: bool,
    seen: HashSet<(String, usize, String)>,
    found: Vec<Diagnostic>,
}

impl<'a> Infer<'a> {
    pub(crate) fn new(engine: &'a Engine, lets: &'a Lets, rules: &'a str) -> Self {
        Self {
            engine,
            lets,
            vars: BTreeMap::new(),
            rules,
            source: Source::new("", ""),
            macros: &[],
            locals: Vec::new(),
            frames: Vec::new(),
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

    /// Gives a variable a type.
    pub(crate) fn set(&mut self, name: &str, ty: Type<'a>) {
        let origin = ty.origin.clone().unwrap_or_else(|| Rc::from(name));
        self.vars.insert(name.to_owned(), ty.read_from(Some(origin)));
    }

    pub(crate) fn unset(&mut self, name: &str) {
        self.vars.remove(name);
    }

    /// Takes what was found so far.
    pub(crate) fn take_found(&mut self) -> Vec<Diagnostic> {
        std::mem::take(&mut self.found)
    }

    /// The type of an expression.
    pub(crate) fn expression(&mut self, expr: &'a Expr) -> Type<'a> {
        self.within(&expr.0.unit, |infer| infer.infer(&expr.0.node))
    }

    /// The same, where it must not be absent.
    pub(crate) fn needed(&mut self, expr: &'a Expr) -> Type<'a> {
        self.within(&expr.0.unit, |infer| infer.need(&expr.0.node))
    }

    /// The item of a list that an expression gives.
    pub(crate) fn looped(&mut self, ty: Type<'a>, expr: &'a Expr) -> Type<'a> {
        let ty = self.within(&expr.0.unit, |infer| infer.iterable(ty, expr.0.node.span));
        Self::each_of(&ty)
    }

    /// The place of an expression.
    pub(crate) fn place(expr: &Expr) -> Location {
        Location::new(&expr.0.unit.source, expr.0.node.span)
    }

    /// The type of a string of `operator.yaml`, which must not be absent.
    pub(crate) fn text(&mut self, text: &'a Text) -> Type<'a> {
        self.text_type(text, true)
    }

    fn text_type(&mut self, text: &'a Text, is_needed: bool) -> Type<'a> {
        let unit = match &*text.0 {
            // It also stands for a text that could not be compiled.
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

    /// What a template gives, in each of its variants.
    pub(crate) fn template(&mut self, template: &'a Template) -> Vec<Type<'a>> {
        self.within(&template.unit, |infer| infer.documents(&template.unit))
    }

    /// From here on that expression holds.
    pub(crate) fn assume(&mut self, expr: &'a Expr) {
        let facts = self.within(&expr.0.unit, |infer| infer.facts(&expr.0.node, true));
        self.facts.extend(facts);
    }

    /// How many facts there are; [`Infer::forget`] goes back there.
    pub(crate) fn mark(&self) -> usize {
        self.facts.len()
    }

    pub(crate) fn forget(&mut self, mark: usize) {
        self.facts.truncate(mark);
    }

    /// Begins a new use: what it costs is its own.
    pub(crate) fn refuel(&mut self) {
        self.fuel = FUEL;
    }

    /// Walks something of another file, which sees none of the locals.
    fn within<T>(&mut self, unit: &'a Unit, walk: impl FnOnce(&mut Self) -> T) -> T {
        let source = std::mem::replace(&mut self.source, Arc::clone(&unit.source));
        let macros = std::mem::replace(&mut self.macros, &unit.macros);
        let locals = std::mem::take(&mut self.locals);
        let frames = std::mem::take(&mut self.frames);
        let variant = std::mem::take(&mut self.variant);
        let result = walk(self);
        self.variant = variant;
        self.frames = frames;
        self.locals = locals;
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

    /// The type of what must not be absent.
    fn defined(&mut self, ty: Type<'a>, span: Span) -> Type<'a> {
        if ty.basic.overlaps(Basic::ABSENT) && self.reports_absent {
            let path = ty.origin.as_deref().unwrap_or("the value");
            let message = format!("`{path}` may be absent, and then this fails");
            let help = "ask `is defined` before, use `| default(...)`, or make it required in the CRD";
            self.push(Diagnostic::warning("type::absent", message).help(help), span);
        }
        ty.without(Basic::ABSENT)
    }

    /// Whether the CRD requires a field of that schema, or fills it in.
    fn is_there(&self, schema: Schema<'a>, field: &str) -> bool {
        use crate::schema::Lookup;
        schema.required().any(|required| required == field)
            || matches!(schema.field(field), Lookup::Known(below) if below.has_default())
            || !schema.has_named_fields() // a key of a map is there or not, as the author knows
            || self.rules.contains(field)
    }
}

/// Whether that is a path into the instance's spec.
fn is_of_spec(origin: &str) -> bool {
    origin == "spec" || origin.starts_with("spec.") || origin.starts_with("spec[")
}
