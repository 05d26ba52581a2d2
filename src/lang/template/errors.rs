//! Errors of an evaluation. Messages never contain values of an instance or of a live object, which may be secret. They
//! contain paths, types and the author's text.

use std::fmt;
use std::sync::Arc;

use super::value::Unknown;
use crate::diag::{Diagnostic, Source, Span};

/// Why an evaluation has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvalError {
    /// The expression reads an unknown value: one that could not be read, which does not mean that it is empty. The
    /// caller keeps the current value.
    Unknown {
        /// The unknown path, for example `refs.tls`.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The result is undefined, or an undefined value is used.
    Undefined(Box<Diagnostic>),
    /// The expression orders (`<`, `sort`, `min`) undefined or null values, or values of different types. A condition
    /// that is awaited then counts as not yet true.
    NotYet(Box<Diagnostic>),
    /// The expression exceeds one of the [`Limits`](super::Limits).
    Limit(Box<Diagnostic>),
    /// Any other error.
    Failed(Box<Diagnostic>),
}

/// The code of an error about values of mixed types.
const MIXED: &str = "template::types";

/// What the help of an error says about a child whose object is undefined.
pub(super) const NOT_YET: &str = "does not exist, or not yet";

impl EvalError {
    /// Whether it reads an object of a child that does not exist.
    pub fn is_of_missing_child(&self) -> bool {
        let help = match self {
            Self::Undefined(diagnostic) => diagnostic.help.as_deref(),
            _ => None,
        };
        help.is_some_and(|help| help.contains(NOT_YET))
    }

    /// Whether it orders values of different types: not yet true in an awaited condition, otherwise an error.
    pub fn is_mixed(&self) -> bool {
        matches!(self, Self::NotYet(diagnostic) if diagnostic.code == MIXED)
    }

    /// The diagnostic, unless the error is about an unknown value.
    pub fn diagnostic(&self) -> Option<&Diagnostic> {
        match self {
            Self::Unknown { .. } => None,
            Self::Undefined(d) | Self::NotYet(d) | Self::Limit(d) | Self::Failed(d) => Some(d),
        }
    }

    /// The error as a diagnostic.
    pub fn to_diagnostic(&self) -> Diagnostic {
        match self {
            Self::Unknown { path, reason } => {
                Diagnostic::error("template::unknown", format!("`{path}` is unknown: {reason}"))
            }
            Self::Undefined(d) | Self::NotYet(d) | Self::Limit(d) | Self::Failed(d) => (**d).clone(),
        }
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { path, reason } => write!(f, "`{path}` is unknown: {reason}"),
            Self::Undefined(d) | Self::NotYet(d) | Self::Limit(d) | Self::Failed(d) => d.fmt(f),
        }
    }
}

impl std::error::Error for EvalError {}

/// The kinds of [`EvalError`] that carry a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    Undefined,
    NotYet,
    Limit,
    Failed,
}

/// An error that propagates; the innermost expression sets its position.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    Unknown(Arc<Unknown>),
    Problem(Box<Problem>),
}

#[derive(Debug, Clone)]
pub(super) struct Problem {
    pub(super) kind: FaultKind,
    pub(super) diagnostic: Diagnostic,
}

pub(super) type Res<T> = Result<T, Fault>;

impl Fault {
    fn new(kind: FaultKind, code: &'static str, message: impl Into<String>) -> Self {
        Self::Problem(Box::new(Problem { kind, diagnostic: Diagnostic::error(code, message) }))
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Failed, "template::failed", message)
    }

    pub(super) fn undefined(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Undefined, "template::undefined", message)
    }

    pub(super) fn not_yet(message: impl Into<String>) -> Self {
        Self::new(FaultKind::NotYet, "template::order", message)
    }

    /// Values of different types, which can never be compared.
    pub(super) fn mixed(message: impl Into<String>) -> Self {
        Self::new(FaultKind::NotYet, MIXED, message)
    }

    pub(super) fn limit(message: impl Into<String>, help: &str) -> Self {
        Self::new(FaultKind::Limit, "template::limit", message).help(help)
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        if let Self::Problem(problem) = &mut self
            && problem.diagnostic.help.is_none()
        {
            problem.diagnostic.help = Some(help.into());
        }
        self
    }

    /// Replaces the suggestion.
    pub(super) fn suggest(mut self, help: String) -> Self {
        if let Self::Problem(problem) = &mut self {
            problem.diagnostic.help = Some(help);
        }
        self
    }

    /// Replaces the message.
    pub(super) fn message(mut self, message: String) -> Self {
        if let Self::Problem(problem) = &mut self {
            problem.diagnostic.message = message;
        }
        self
    }

    /// Sets the position, if it has none.
    pub(super) fn at(mut self, source: &Arc<Source>, span: Span) -> Self {
        if let Self::Problem(problem) = &mut self
            && problem.diagnostic.location.is_none()
        {
            problem.diagnostic.location = Some(crate::diag::Location::new(source, span));
        }
        self
    }

    /// Sets the path of the rendered value, if it has none.
    pub(super) fn path(mut self, path: impl FnOnce() -> String) -> Self {
        if let Self::Problem(problem) = &mut self
            && problem.diagnostic.path.is_none()
        {
            let path = path();
            problem.diagnostic.path = (!path.is_empty()).then_some(path);
        }
        self
    }

    pub(super) fn is_limit(&self) -> bool {
        matches!(self, Self::Problem(problem) if problem.kind == FaultKind::Limit)
    }
}

impl From<Fault> for EvalError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unknown(unknown) => {
                Self::Unknown { path: unknown.path.clone(), reason: unknown.reason.clone() }
            }
            Fault::Problem(problem) => {
                let diagnostic = Box::new(problem.diagnostic);
                match problem.kind {
                    FaultKind::Undefined => Self::Undefined(diagnostic),
                    FaultKind::NotYet => Self::NotYet(diagnostic),
                    FaultKind::Limit => Self::Limit(diagnostic),
                    FaultKind::Failed => Self::Failed(diagnostic),
                }
            }
        }
    }
}

/// The most similar candidate, if one is similar. Long words are not typos, and are expensive to compare.
pub(super) fn near<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LONGEST: usize = 64;
    if word.len() > LONGEST {
        return None;
    }
    let candidates = candidates.into_iter().filter(|candidate| candidate.len() <= LONGEST).take(1_000);
    crate::diag::did_you_mean(word, candidates)
}
