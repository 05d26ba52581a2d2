//! Evaluation of the expressions and texts of steps.

use std::time::Duration;

use serde_json::Value;

use super::run::short;
use crate::package::plan::parse_duration;
use crate::template::{Engine, EvalError, Expr, Scope, Text};

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoValue {
    /// The expression reads something unknown: the step waits.
    Unknown(String),
    /// The expression is wrong, for this instance: the step fails.
    Wrong(String),
}

pub(crate) type Eval<T> = Result<T, NoValue>;

impl From<EvalError> for NoValue {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::Unknown { .. } => Self::Unknown(error.to_string()),
            _ => Self::Wrong(short(&error.to_string())),
        }
    }
}

/// Whether an expression that decides something is true.
pub(super) fn truthy(engine: &Engine, expr: &Expr, scope: &Scope) -> Eval<bool> {
    engine.truthy(expr, scope).map_err(NoValue::from)
}

/// Whether an awaited expression is true: values that cannot be compared or are missing mean "not yet".
pub(super) fn holds(result: Result<bool, EvalError>) -> Eval<bool> {
    match result {
        Err(EvalError::NotYet(_) | EvalError::Undefined(_)) => Ok(false),
        other => other.map_err(NoValue::from),
    }
}

/// The value of a text that must have one.
pub(super) fn value(engine: &Engine, text: &Text, scope: &Scope, what: &str) -> Eval<Value> {
    optional(engine, text, scope)?.ok_or_else(|| NoValue::Wrong(format!("{what} is omitted")))
}

/// The value of a text; `None` if it is omitted.
pub(super) fn optional(engine: &Engine, text: &Text, scope: &Scope) -> Eval<Option<Value>> {
    engine.eval_text(text, scope).map_err(NoValue::from)
}

/// A text as a string.
pub(super) fn string(engine: &Engine, text: &Text, scope: &Scope, what: &str) -> Eval<String> {
    let value = value(engine, text, scope, what)?;
    as_string(&value).ok_or_else(|| NoValue::Wrong(format!("{what} is not a string")))
}

/// A scalar as a string.
pub(super) fn as_string(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// A text as a duration.
pub(super) fn duration(engine: &Engine, text: &Text, scope: &Scope, what: &str) -> Eval<Duration> {
    let text = string(engine, text, scope, what)?;
    parse_duration(&text).map_err(|error| NoValue::Wrong(format!("{what}: {error}")))
}
