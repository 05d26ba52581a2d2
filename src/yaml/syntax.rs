//! The parser's complaints in plain words, with help where a person can do something.

use std::sync::Arc;

use granit_parser::{ErrorKind, ScanError};

use crate::diag::{Diagnostic, Source, Span};

/// The error of nesting deeper than `depth`.
pub(super) fn too_deep(source: &Arc<Source>, depth: usize, span: Span) -> Diagnostic {
    Diagnostic::error("yaml::limit", format!("lists and maps are nested more than {depth} deep"))
        .at(source, span)
}

/// What to tell a person about that error.
pub(super) fn diagnostic(source: &Arc<Source>, error: &ScanError, depth: usize) -> Diagnostic {
    let text = &source.text;
    let start = error.marker().byte_offset().unwrap_or(text.len()).min(text.len());
    let width = text.get(start..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
    let span = Span::new(start, start + width);
    if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
        return too_deep(source, depth, span);
    }
    let (message, help) = explain(error.kind());
    let diagnostic = Diagnostic::error("yaml::syntax", message).at(source, span);
    match help {
        Some(help) => diagnostic.help(help),
        None => diagnostic,
    }
}

fn explain(kind: &ErrorKind) -> (String, Option<&'static str>) {
    (kind.to_string(), None)
}
