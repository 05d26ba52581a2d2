//! Tests by topic, as tables.

mod bombs;
mod budgets;
mod errors;
mod expressions;
mod filters;
mod generated;
mod injection;
mod lets;
mod placeholders;
mod reads;
mod unknown;
mod written;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::diag::Span;

/// The location of an expression that is a whole source.
pub(super) fn at(text: &str) -> Location {
    let source = Source::new("operator.yaml", text);
    let span = Span::new(0, text.len());
    Location { source, span }
}

pub(super) fn engine(files: &[(&str, &str)]) -> Engine {
    let (engine, errors) = compile(files);
    assert!(errors.is_empty(), "{}", crate::diag::render(&errors, false));
    engine
}

pub(super) fn compile(files: &[(&str, &str)]) -> (Engine, Vec<Diagnostic>) {
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| {
            let path = format!("templates/{path}");
            (path.clone(), Source::new(path, *text))
        })
        .collect();
    Engine::compile(&files, Limits::default())
}

/// Creates a scope with the entries of a JSON map as variables.
pub(super) fn scope(vars: &Value) -> Scope {
    let mut scope = Scope::new();
    for (name, value) in vars.as_object().unwrap() {
        scope.set(name, Var::Json(value.clone()));
    }
    scope
}

pub(super) fn live(value: Value, ready: bool, current: bool) -> Live {
    Live { value: Arc::new(value), ready, current, kept: false }
}

/// The scope that most tests use.
pub(super) fn usual() -> Scope {
    scope(&json!({
        "name": "db",
        "namespace": "prod",
        "spec": {
            "size": 3,
            "ratio": 3.0,
            "half": 0.5,
            "on": true,
            "off": false,
            "nothing": null,
            "text": "hello",
            "digits": "10",
            "big": 18_446_744_073_709_551_615_u64,
            "small": -9_223_372_036_854_775_808_i64,
            "list": [1, 2, 3],
            "words": ["b", "a", "C"],
            "empty": "",
            "none": [],
            "map": {"b": 1, "a": {"c": [10, 20]}},
            "items": [{"name": "x", "n": 2}, {"name": "y", "n": 1}, {"name": "z"}],
            "version": "3.5.1",
            "storage": "10Gi",
        },
    }))
}

pub(super) fn render_in(text: &str, scope: &Scope) -> Result<Value, EvalError> {
    let (engine, errors) = compile(&[("t.yaml", text)]);
    if let Some(error) = errors.into_iter().next() {
        return Err(EvalError::Failed(Box::new(error)));
    }
    engine.render(engine.template("templates/t.yaml").unwrap(), scope)
}

pub(super) fn render(text: &str) -> Result<Value, EvalError> {
    render_in(text, &usual())
}

pub(super) fn eval_in(text: &str, scope: &Scope) -> Result<Value, EvalError> {
    let engine = Engine::empty();
    let expr = engine.expression(text, &at(text)).map_err(|error| EvalError::Failed(Box::new(error)))?;
    engine.eval(&expr, scope)
}

pub(super) fn eval(text: &str) -> Result<Value, EvalError> {
    eval_in(text, &usual())
}

/// The kind of an error, and its text.
pub(super) fn problem<T: std::fmt::Debug>(result: Result<T, EvalError>) -> (&'static str, String) {
    let error = match result {
        Err(error) => error,
        Ok(value) => panic!("no error: {}", format!("{value:?}").chars().take(200).collect::<String>()),
    };
    let kind = match &error {
        EvalError::Unknown { .. } => "unknown",
        EvalError::Undefined(_) => "undefined",
        EvalError::NotYet(_) => "not yet",
        EvalError::Limit(_) => "limit",
        EvalError::Failed(_) => "failed",
    };
    (kind, error.to_string())
}

/// Checks the value of each expression.
pub(super) fn check_values(table: &[(&str, Value)]) {
    for (text, expected) in table {
        match eval(text) {
            Ok(value) => assert_eq!(&value, expected, "{text}"),
            Err(error) => panic!("{text}: {error}"),
        }
    }
}

/// Checks the kind of the error of each expression, and a part of its text.
pub(super) fn check_problems(table: &[(&str, &str, &str)]) {
    for (text, kind, part) in table {
        let (found, message) = problem(eval(text));
        assert_eq!(found, *kind, "{text}: {message}");
        assert!(message.contains(part), "{text}: {message}");
    }
}
