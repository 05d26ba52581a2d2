//! Findings as workflow commands of GitHub Actions, which are shown beside their lines.

use std::fmt::Write as _;

use crate::diag::{Diagnostic, Severity};
use crate::printable::{inert, is_unsafe};

/// One command per finding: `::error file=...,line=...::message`.
pub(super) fn commands<'a>(findings: impl IntoIterator<Item = (&'a str, &'a Diagnostic)>) -> String {
    let mut out = String::new();
    for (package, diagnostic) in findings {
        let level = match diagnostic.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "notice",
        };
        let mut properties = String::new();
        if let Some(location) = &diagnostic.location {
            let (line, column) = location.source.line_col(location.span.start);
            let (end_line, end_column) = location.source.line_col(location.span.end);
            let file = property(&location.source.name);
            let _ = write!(properties, "file={file},line={line},endLine={end_line},col={column}");
            // GitHub shows no columns for a range of several lines, and its end column is inclusive.
            if line == end_line {
                let _ = write!(properties, ",endColumn={}", end_column.saturating_sub(1).max(column));
            }
            properties.push(',');
        }
        let _ = write!(properties, "title={}", property(diagnostic.code));
        let mut message = match &diagnostic.location {
            Some(_) => diagnostic.message.clone(),
            None => format!("{package}: {}", diagnostic.message),
        };
        if let Some(path) = &diagnostic.path {
            let _ = write!(message, " ({path})");
        }
        if let Some(help) = &diagnostic.help {
            let _ = write!(message, "\n{help}");
        }
        let _ = writeln!(out, "::{level} {properties}::{}", data(&message));
    }
    out
}

/// The escaped text of a command, without line breaks, control characters and commands.
fn data(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '%' => out.push_str("%25"),
            '\r' => out.push_str("%0D"),
            '\n' => out.push_str("%0A"),
            c if is_unsafe(c) => out.extend(c.escape_debug()),
            c => out.push(c),
        }
    }
    inert(&out).into_owned()
}

/// The escaped value of a property, also without commas and colons.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::{Source, Span};

    #[test]
    fn texts_cannot_end_a_workflow_command() {
        let source = Source::new("a,b:c%/operator.yaml", "a: b\nc: d\n");
        let found = [
            Diagnostic::error("t::t", "50% of\n::error::x\u{1b}[2J")
                .at(&source, Span::new(5, 6))
                .help("do: it"),
            Diagnostic::warning("t::u", "odd ##vso[x]"),
        ];
        assert_eq!(
            commands(found.iter().map(|diagnostic| ("p", diagnostic))),
            "::error file=a%2Cb%3Ac%25/operator.yaml,line=2,endLine=2,col=1,endColumn=1,title=t%3A%3At::50%25 of%0A::error::x\\u{1b}[2J%0Ado: it\n\
             ::warning title=t%3A%3Au::p: odd \\u0023#vso[x]\n"
        );
    }
}
