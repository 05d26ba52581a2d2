//! Typed, injection-proof templates and expressions.
//!
//! MiniJinja parses: its lexer, grammar and syntax tree define the language. The evaluator and its values are our own
//! (see `docs/design/0002-evaluating-expressions.md`). They guarantee:
//!
//! - A value never passes through text. `{{ expr }}` becomes a placeholder, the text is parsed as YAML, then values
//!   replace the placeholders, with their types.
//! - Ordering undefined, null or mixed values is an error with its position.
//! - Unknown is not empty: an expression that reads a value that could not be read is unknown, and other expressions
//!   are not affected.
//! - Every operation is charged in steps, bytes and depth before it runs. No package and no instance can crash the
//!   process.
//! - The reads of an expression are known without evaluating it.
//!
//! The stages of a template: `parse` (text to MiniJinja's tree, with checks) -> `lower` (to `code`) ->
//! `dataflow` (which paths it reads) -> `exec` and `eval` (to pieces) -> `substitute` (to JSON).

// `Diagnostic` exceeds clippy's size limit. Errors end a whole compilation, so boxing them has no benefit.
#![allow(clippy::result_large_err)]

mod absent;
mod budget;
mod builtins;
mod code;
mod contradictions;
mod dataflow;
mod errors;
mod eval;
mod exec;
pub mod foreign_syntax;
mod infer;
mod json;
mod jsonpath;
mod kinds;
mod limits;
mod lower;
mod mistakes;
mod names;
mod nodes;
mod operands;
mod ops;
mod parse;
mod pattern;
mod reads;
mod scope;
mod sought;
mod substitute;
mod suggest;
mod taint;
mod text;
mod url;
mod value;
mod written;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::api::Gvk;
use crate::diag::{Diagnostic, Location, Source};
use crate::yaml;

use code::{Piece, Slot, Stmt, Unit};
use errors::{Fault, Res};
use eval::Cx;
use json::{JsonPath, Meter};
use limits::Run;
use parse::TextSource;
use substitute::Substitute;
use text::{ExprUnit, TextUnit};
use value::Val;

pub use budget::{Budget, Exceeded, Totals};
pub use builtins::secrets::{Certificate, GeneratedPart, Signer};
pub use builtins::secrets::{generated_parts, holds_mark, take_certificate};
pub use errors::EvalError;
pub use infer::Infer;
pub use json::{JSON_VALUE_BYTES, json_bytes, json_entry_bytes};
pub use jsonpath::Search;
pub use limits::Limits;
pub use mistakes::{Fact, Facts, GeneratedName, Mistake, MistakeKind, Purpose};
pub use pattern::{Known, Pattern, PatternPart};
pub use reads::{ReadPath, Reads, Segment, access};
pub use scope::{Function, Lets, Live, Scope, Var};
pub use sought::Sought;
pub use taint::{Inserted, Position, Taint, TaintScope, TaintTree};
pub use text::{Expr, Text};
pub use url::{UrlPart, UrlValue};
pub use written::Written;

/// The compiled templates of a package, and the compiler of its expressions. Shared by `Arc`.
#[derive(Debug, Default)]
pub struct Engine {
    templates: BTreeMap<String, Template>,
    limits: Limits,
}

/// One compiled file of `templates/`.
#[derive(Debug)]
pub struct Template {
    path: String,
    unit: Unit,
    kinds: Result<Vec<Gvk>, Box<Diagnostic>>,
    /// The last rendered text and its tree, because the renders of one template usually differ only in
    /// values.
    parsed: Mutex<Option<Arc<(String, yaml::Node)>>>,
}

/// The maximum bytes of a text whose tree is kept for the next render.
const KEPT_TEXT: usize = 64 << 10;

/// The path of a partial in the package.
fn partial_path(name: &str) -> String {
    if name.starts_with("templates/") { name.to_owned() } else { format!("templates/{name}") }
}

impl Engine {
    /// An engine without templates, for single expressions.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Compiles the files of `templates/`, by their path in the package. Invalid files are skipped, and all errors are
    /// returned.
    pub fn compile(files: &[(String, Arc<Source>)], limits: Limits) -> (Self, Vec<Diagnostic>) {
        let mut errors = Vec::new();
        let mut templates = BTreeMap::new();
        for (path, source) in files {
            let place = TextSource::file(source);
            let lowered = parse::template(&source.text, &place, limits.source)
                .map_err(|error| vec![*error])
                .and_then(|root| lower::template(&root, &place));
            match lowered {
                Err(found) => errors.extend(found),
                Ok(lowered) => {
                    let unit = Unit {
                        source: Arc::clone(source),
                        body: lowered.body,
                        macros: lowered.macros,
                        reads: Reads::default(),
                    };
                    let kinds = kinds::kinds(&unit).map_err(Box::new);
                    let template = Template { path: path.clone(), unit, kinds, parsed: Mutex::default() };
                    templates.insert(path.clone(), template);
                }
            }
        }
        let mut engine = Self { templates, limits };
        let all = engine.templates.values();
        let reads: Vec<_> = all.map(|template| engine.reads_of_unit(&template.unit)).collect();
        for (template, (reads, found)) in engine.templates.values_mut().zip(reads) {
            template.unit.reads = reads;
            errors.extend(found);
        }
        for template in engine.templates.values() {
            errors.extend(template.check(&engine));
        }
        (engine, errors)
    }

    /// The template with that path in the package.
    pub fn template(&self, path: &str) -> Option<&Template> {
        self.templates.get(path)
    }

    /// The paths of all templates, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }

    /// Compiles an expression (without braces) located at `at`.
    pub fn expression(&self, text: &str, at: &Location) -> Result<Expr, Diagnostic> {
        let place = TextSource::within(&at.source, at.span, text);
        let node = parse::expression(text, &place, self.limits.expression)
            .map_err(|error| *error)
            .and_then(|expr| lower::expression(&expr, &place).map_err(first))?;
        let mut unit = Unit {
            source: Arc::clone(&at.source),
            body: Vec::new(),
            macros: Vec::new(),
            reads: Reads::default(),
        };
        let (reads, errors) = self.reads_of_node(&node, &unit);
        if !errors.is_empty() {
            return Err(first(errors));
        }
        unit.reads = reads;
        Ok(Expr(Arc::new(ExprUnit { node, unit })))
    }

    /// Compiles a string of `operator.yaml` located at `at`.
    pub fn text(&self, text: &str, at: &Location) -> Result<Text, Diagnostic> {
        if !text.contains("{{") && !text.contains("{%") && !text.contains("{#") {
            return Ok(Text::literal(Value::String(text.to_owned())));
        }
        let place = TextSource::within(&at.source, at.span, text);
        let lowered = parse::template(text, &place, self.limits.expression)
            .map_err(|error| *error)
            .and_then(|root| lower::template(&root, &place).map_err(first))?;
        let mut unit = Unit {
            source: Arc::clone(&at.source),
            body: lowered.body,
            macros: lowered.macros,
            reads: Reads::default(),
        };
        let (reads, errors) = self.reads_of_unit(&unit);
        if !errors.is_empty() {
            return Err(first(errors));
        }
        unit.reads = reads;
        Ok(Text(Arc::new(TextUnit::Template(unit))))
    }

    /// The reads of the values in a text, except those of values whose last filter is `filter`.
    pub fn unfiltered(&self, text: &Text, filter: &str) -> Vec<Reads> {
        let TextUnit::Template(unit) = &*text.0 else { return Vec::new() };
        let values = text.without_filter(filter).into_iter();
        values.map(|node| self.reads_of_node(node, unit).0).collect()
    }

    /// The document of a template; null if it is empty. The caller limits how many it keeps.
    pub fn render(&self, template: &Template, scope: &Scope) -> Result<Value, EvalError> {
        self.run(scope, |run| template.render(run, scope, true))
    }

    /// The document of a template, and the literal parts of its metadata.
    pub fn render_object(&self, template: &Template, scope: &Scope) -> Result<(Value, Written), EvalError> {
        self.run(scope, |run| template.render_object(run, scope, true))
    }

    /// The value of an expression.
    pub fn eval(&self, expr: &Expr, scope: &Scope) -> Result<Value, EvalError> {
        self.run(scope, |run| self.value(run, expr, scope))
    }

    /// The value of an expression that decides which objects exist, such as the key of a `forEach`. As in
    /// [`Engine::truthy`] and [`Engine::items`], a field that is absent from the status of a live object is unknown.
    pub fn eval_deciding(&self, expr: &Expr, scope: &Scope) -> Result<Value, EvalError> {
        self.decide(scope, |run| self.value(run, expr, scope))
    }

    fn value(&self, run: &Run<'_>, expr: &Expr, scope: &Scope) -> Res<Value> {
        let value = expr.defined(run, scope)?;
        self.json(run, &value).map_err(|fault| expr.at(fault))
    }

    /// The value of an expression; `None` if it is `omit`.
    pub fn eval_optional(&self, expr: &Expr, scope: &Scope) -> Result<Option<Value>, EvalError> {
        self.run(scope, |run| match expr.defined(run, scope)? {
            Val::Omit => Ok(None),
            value => self.json(run, &value).map(Some).map_err(|fault| expr.at(fault)),
        })
    }

    /// Whether an expression that decides something is true, as in `{% if %}`: undefined is false. A field
    /// that is absent from the status of a live object is unknown, because controllers omit zeros.
    pub fn truthy(&self, expr: &Expr, scope: &Scope) -> Result<bool, EvalError> {
        self.decide(scope, |run| expr.value(run, scope)?.truthy().map_err(|fault| expr.at(fault)))
    }

    /// Whether an expression is true; undefined is false. A field that is absent from a status is undefined: what is known is
    /// complete.
    pub fn holds(&self, expr: &Expr, scope: &Scope) -> Result<bool, EvalError> {
        self.run(scope, |run| expr.value(run, scope)?.truthy().map_err(|fault| expr.at(fault)))
    }

    /// The items of the list that an expression yields; of a map, its keys.
    pub fn items(&self, expr: &Expr, scope: &Scope) -> Result<Vec<Value>, EvalError> {
        self.decide(scope, |run| {
            let value = expr.defined(run, scope)?;
            let mut meter = Meter::new(self.limits.memory);
            let items = value.iterate(run).and_then(|items| {
                let mut json = Vec::with_capacity(items.len());
                for item in items {
                    json.push(item.to_json(run, &mut meter, &mut JsonPath::default())?);
                }
                run.keep(json.iter().map(json_bytes).sum())?;
                Ok(json)
            });
            items.map_err(|fault: Fault| expr.at(fault))
        })
    }

    /// The value of a string of `operator.yaml`; `None` if it is `omit`.
    pub fn eval_text(&self, text: &Text, scope: &Scope) -> Result<Option<Value>, EvalError> {
        if let Some(value) = text.as_literal() {
            return Ok(Some(value.clone()));
        }
        self.run(scope, |run| match text.defined(run, scope)? {
            Val::Omit => Ok(None),
            value => self.json(run, &value).map(Some).map_err(|fault| text.at(fault)),
        })
    }

    /// One evaluation, within the budget of its scope.
    fn run<T>(&self, scope: &Scope, evaluate: impl FnOnce(&Run<'_>) -> Res<T>) -> Result<T, EvalError> {
        let run = Run::within(self, scope)?;
        let result = evaluate(&run);
        run.finish(result)
    }

    /// One evaluation for a decision.
    fn decide<T>(&self, scope: &Scope, evaluate: impl FnOnce(&Run<'_>) -> Res<T>) -> Result<T, EvalError> {
        let run = Run::within(self, scope)?.deciding();
        let result = evaluate(&run);
        run.finish(result)
    }

    fn json(&self, run: &Run<'_>, value: &Val) -> Res<Value> {
        let mut meter = Meter::new(self.limits.output);
        let value = value.to_json(run, &mut meter, &mut JsonPath::default())?;
        run.output(&meter)?;
        run.keep(json_bytes(&value))?;
        Ok(value)
    }
}

fn first(errors: Vec<Diagnostic>) -> Diagnostic {
    errors
        .into_iter()
        .next()
        .unwrap_or_else(|| Diagnostic::error("template::syntax", "it cannot be compiled"))
}

impl Template {
    /// Its path in the package.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its text.
    pub fn source(&self) -> &Arc<Source> {
        &self.unit.source
    }

    /// The paths that it reads, including its partials.
    pub fn reads(&self) -> &Reads {
        &self.unit.reads
    }

    /// The kinds that `apiVersion` and `kind` at the top level of its text name: one kind, or several in
    /// branches. An error if one of them is absent or computed.
    pub fn kinds(&self) -> Result<&[Gvk], Diagnostic> {
        match &self.kinds {
            Ok(kinds) => Ok(kinds),
            Err(error) => Err((**error).clone()),
        }
    }

    /// The document. `is_result` is false for a partial, whose document is not itself a result.
    fn render(&self, run: &Run<'_>, scope: &Scope, is_result: bool) -> Res<Value> {
        self.render_object(run, scope, is_result).map(|(value, _)| value)
    }

    fn render_object(&self, run: &Run<'_>, scope: &Scope, is_result: bool) -> Res<(Value, Written)> {
        let mut pieces = Vec::new();
        Cx::new(run, scope, &self.unit).exec(&self.unit.body, &mut pieces)?;
        let text = substitute::assemble(run, &pieces)?;
        run.fuel(text.len() / 8)?;
        let tree = self.tree(text, &pieces)?;
        let mut substitute = Substitute::new(run, &self.unit.source, &pieces);
        let value = substitute.document(&tree.1)?;
        if is_result {
            substitute.output()?;
        }
        Ok((value, Written::of(&tree.1, &self.unit.source, &pieces)))
    }

    /// The tree of an assembled text.
    fn tree(&self, text: String, pieces: &[Piece]) -> Res<Arc<(String, yaml::Node)>> {
        let lock = || self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*lock()
            && known.0 == text
        {
            return Ok(Arc::clone(known));
        }
        let node = substitute::parse(text.clone(), &self.unit.source, pieces).map_err(|diagnostic| {
            substitute::first_fault(pieces, &self.unit.source)
                .unwrap_or_else(|| substitute::failed(*diagnostic))
        })?;
        let tree = Arc::new((text, node));
        // The text of a large instance is not worth its memory.
        if tree.0.len() <= KEPT_TEXT {
            *lock() = Some(Arc::clone(&tree));
        }
        Ok(tree)
    }

    /// Parses a template without branches and loops now, so that its errors are reported now: its tree is
    /// always the same.
    fn check(&self, engine: &Engine) -> Option<Diagnostic> {
        if !self.unit.macros.is_empty() {
            return None;
        }
        let mut pieces = Vec::new();
        for stmt in &self.unit.body {
            pieces.push(match stmt {
                Stmt::Raw(text, offset) => Piece::Raw(Arc::clone(text), *offset),
                Stmt::Emit(node) => Piece::Slot(Slot { val: Ok(Val::Null), span: node.span }),
                Stmt::Set { .. } | Stmt::Do(_) => continue,
                _ => return None,
            });
        }
        let run = Run::new(engine);
        let tree = substitute::assemble(&run, &pieces).and_then(|text| self.tree(text, &pieces));
        match tree.map_err(EvalError::from) {
            Ok(_) => None,
            Err(error) => error.diagnostic().cloned(),
        }
    }
}
