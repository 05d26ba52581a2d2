//! Converts the parser's errors to plain messages, with a solution where there is one.

use std::sync::Arc;

use granit_parser::{ErrorKind, ScanError};

use crate::diag::{Diagnostic, Source, Span};

/// The error about nesting deeper than `depth`.
pub(super) fn too_deep(source: &Arc<Source>, depth: usize, span: Span) -> Diagnostic {
    Diagnostic::error("yaml::limit", format!("lists and maps are nested more than {depth} deep"))
        .at(source, span)
}

/// Finds the first character that YAML does not allow in a text, or that kubectl treats as a line break and
/// other readers do not.
pub(super) fn forbidden_character(source: &Arc<Source>) -> Option<Diagnostic> {
    let (start, found) = source.text.char_indices().find(|(_, c)| match c {
        '\t' | '\n' | '\r' | ' '..='~' => false,
        '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}' => true,
        c => c.is_control(),
    })?;
    let what = match found {
        '\u{85}' | '\u{2028}' | '\u{2029}' => {
            "an unusual line break, which readers of YAML understand differently"
        }
        _ => "a control character, which YAML does not allow",
    };
    let code = u32::from(found);
    Some(
        Diagnostic::error("yaml::syntax", format!("U+{code:04X} is {what}"))
            .at(source, Span::new(start, start + found.len_utf8()))
            .help(format!("delete it, or write it in double quotes as `\\u{code:04x}`")),
    )
}

/// The diagnostic for a parser error.
pub(super) fn diagnostic(source: &Arc<Source>, error: &ScanError, depth: usize) -> Diagnostic {
    let text = &source.text;
    let start = error.marker().byte_offset().unwrap_or(text.len()).min(text.len());
    let rest = text.get(start..).unwrap_or_default();
    let span = Span::new(start, start + rest.chars().next().map_or(0, char::len_utf8));
    if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
        return too_deep(source, depth, span);
    }
    if matches!(error.kind(), ErrorKind::UnknownAnchor) {
        let name: String = rest.chars().take_while(|c| !c.is_whitespace() && !",[]{}".contains(*c)).collect();
        return Diagnostic::error("yaml::alias", format!("there is no anchor `{name}` before it"))
            .at(source, Span::new(start, start + name.len()))
            .help("if the asterisk belongs to the value, quote the value");
    }
    // The parser sometimes reports the position after the tab.
    let is_tab = matches!(
        error.kind(),
        ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation | ErrorKind::TabInIndentation
    );
    let span = if is_tab && !rest.starts_with('\t') && text[..start].ends_with('\t') {
        Span::new(start - 1, start)
    } else {
        span
    };
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line = text[line_start..].lines().next().unwrap_or_default();
    let (message, help) = explain(error.kind());
    let diagnostic = Diagnostic::error("yaml::syntax", message).at(source, span);
    match braces_help(line).or(help) {
        Some(help) => diagnostic.help(help),
        None => diagnostic,
    }
}

/// A hint if the line contains an unquoted expression, the most likely cause of the error.
fn braces_help(line: &str) -> Option<&'static str> {
    let before = line.split_once("{{")?.0;
    let quoted = before.matches('"').count() % 2 == 1 || before.matches('\'').count() % 2 == 1;
    (!quoted && !before.contains(" #") && !before.starts_with('#'))
        .then_some("quote the expression: \"{{ ... }}\"")
}

fn explain(kind: &ErrorKind) -> (String, Option<&'static str>) {
    let (message, help) = match kind {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => ("a tab is used for indentation", Some("indent with spaces")),
        ErrorKind::UnclosedQuotedScalar => {
            ("the quote is never closed", Some("close it on the line where the value ends"))
        }
        ErrorKind::InvalidQuotedScalarIndent | ErrorKind::DocumentIndicatorInQuotedScalar => (
            "a quoted value continues here with too little indentation",
            Some("close the quote before this line, or indent the line"),
        ),
        ErrorKind::InvalidTrailingDoubleQuotedScalar | ErrorKind::InvalidTrailingSingleQuotedScalar => (
            "text follows a closed quote",
            Some(
                "quote the whole value; a quote within is written `\\\"` in double quotes, `''` in single quotes",
            ),
        ),
        ErrorKind::UnknownQuotedScalarEscape => (
            "this value contains an unknown escape",
            Some("write a backslash twice, or use single quotes, in which it is an ordinary character"),
        ),
        ErrorKind::MappingValueNotAllowed => (
            "a second `:` on the line, or a key deeper than its neighbours",
            Some("quote a value that contains `: `, and indent the keys of a map equally"),
        ),
        ErrorKind::SimpleKeyExpected | ErrorKind::ExpectedBlockMappingKey => (
            "a key with a `:` is expected here",
            Some("put a space after the `:`, and indent the keys of a map equally"),
        ),
        ErrorKind::ExpectedBlockSequenceEntry => (
            "an item of the list is expected here, starting with `- `",
            Some("indent the items of a list equally, and what follows the list less"),
        ),
        ErrorKind::BlockSequenceEntryNotAllowed | ErrorKind::BlockEntryInFlowCollection => (
            "an item of a list cannot start here",
            Some("start the list on the line after its key; quote a value that starts with `- `"),
        ),
        ErrorKind::UnexpectedEofFlowSequence
        | ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofImplicitFlowMapping
        | ErrorKind::UnclosedFlowCollection { .. } => {
            ("a bracket or brace is never closed", Some("close it, or quote the value if a string is meant"))
        }
        ErrorKind::ExpectedFlowSequenceSeparator | ErrorKind::InvalidColonPlacement => (
            "a `,` or the closing `]` is expected here",
            Some("close the list, or quote a value with `:`, brackets or braces"),
        ),
        ErrorKind::ExpectedFlowMappingSeparator => (
            "a `,` or the closing `}` is expected here",
            Some("close the map, or quote a value with commas, brackets or braces"),
        ),
        ErrorKind::MismatchedFlowCollectionEnd { open, close } => {
            return (
                format!("this `{open}` is closed by `{close}`"),
                Some("use the same kind of bracket, or quote the value if a string is meant"),
            );
        }
        ErrorKind::MisplacedFlowCollectionEnd => {
            ("this closes a bracket that is not open", Some("quote the value if a string is meant"))
        }
        ErrorKind::UnexpectedCharacter { character } => {
            return (
                format!("a plain value cannot start with `{}`", character.escape_default()),
                Some("quote the value"),
            );
        }
        ErrorKind::UndeclaredTagHandle => ("this YAML tag is unknown", Some("quote the value")),
        ErrorKind::InvalidIndentation | ErrorKind::InvalidBlockScalarIndent => (
            "the indentation does not fit the lines before",
            Some("indent entries of one map or list equally"),
        ),
        ErrorKind::ExpectedDocumentStart => (
            "the document has ended before this line",
            Some("indent the line like the others of its map or list, or start a document with `---`"),
        ),
        ErrorKind::MissingAnchorOrAliasName => {
            ("`*` or `&` has no name", Some("quote the value if a string is meant"))
        }
        other => return (other.to_string(), None),
    };
    (message.to_owned(), help)
}
