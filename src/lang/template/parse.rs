//! Parses text to MiniJinja's syntax tree. The tokens are counted first, because MiniJinja's parser recurses
//! over some chains without limit.

use std::sync::Arc;

use minijinja::machinery::{Token, ast, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::errors::near;
use super::substitute::{CLOSE, OPEN};
use crate::diag::{Diagnostic, Source, Span};

/// The maximum nesting of operators, filters and field accesses, including brackets.
const MAX_CHAIN: usize = 200;
/// The maximum nesting of brackets.
const MAX_BRACKETS: usize = 32;
/// The maximum nesting of blocks; each `elif` counts as one.
const MAX_BLOCKS: usize = 40;

/// Maps offsets in the parsed text to offsets in the source.
#[derive(Debug, Clone)]
pub(super) struct TextSource {
    pub(super) source: Arc<Source>,
    /// The span of the whole text.
    span: Span,
    /// The start of the text, if the source contains it unchanged.
    base: Option<usize>,
}

impl TextSource {
    /// The source of a text that is a whole file.
    pub(super) fn file(source: &Arc<Source>) -> Self {
        Self { source: Arc::clone(source), span: Span::new(0, source.text.len()), base: Some(0) }
    }

    /// The source of a text at `span`, where it may be quoted or folded.
    pub(super) fn within(source: &Arc<Source>, span: Span, text: &str) -> Self {
        let start = span.start.min(source.text.len());
        let shown = source.text.get(start..span.end.clamp(start, source.text.len())).unwrap_or_default();
        let base = if text.is_empty() { None } else { shown.find(text).map(|offset| start + offset) };
        Self { source: Arc::clone(source), span, base }
    }

    /// The span of a range of the text.
    pub(super) fn span(&self, start: usize, end: usize) -> Span {
        match self.base {
            Some(base) => Span::new(base + start, base + end.max(start)),
            None => self.span,
        }
    }

    pub(super) fn offset(&self, offset: usize) -> usize {
        self.base.map_or(self.span.start, |base| base + offset)
    }

    pub(super) fn error(&self, message: impl Into<String>, start: usize, end: usize) -> Diagnostic {
        Diagnostic::error("template::syntax", message).at(&self.source, self.span(start, end))
    }

    fn shown(&self, span: Span) -> &str {
        self.source.text.get(span.start..span.end).unwrap_or_default()
    }

    /// The span of a line of the text, counted from 1, without its indentation.
    fn line(&self, text: &str, number: usize) -> Span {
        let mut start = 0;
        for (index, line) in text.split_inclusive('\n').enumerate() {
            if index + 1 == number {
                let indent = line.len() - line.trim_start().len();
                let end = start + line.trim_end().len();
                return self.span((start + indent).min(end), end);
            }
            start += line.len();
        }
        self.span(text.len(), text.len())
    }
}

fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().keep_trailing_newline(true).build().unwrap_or_default()
}

/// The statements of a template.
pub(super) fn template<'a>(
    text: &'a str,
    place: &TextSource,
    limit: usize,
) -> Result<ast::Stmt<'a>, Box<Diagnostic>> {
    check_length(text, place, limit)?;
    check_characters(text, place)?;
    check_tokens(text, place, false)?;
    minijinja::machinery::parse(text, "", syntax())
        .map_err(|error| Box::new(syntax_error(&error, text, place)))
}

/// An expression.
pub(super) fn expression<'a>(
    text: &'a str,
    place: &TextSource,
    limit: usize,
) -> Result<ast::Expr<'a>, Box<Diagnostic>> {
    check_length(text, place, limit)?;
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(Box::new(place.error("the expression is empty", 0, text.len())));
    }
    if trimmed.starts_with("{{") && trimmed.ends_with("}}") {
        let diagnostic = place.error("expressions are written without braces here", 0, text.len());
        return Err(Box::new(diagnostic.help("remove the `{{` and `}}`")));
    }
    check_tokens(text, place, true)?;
    minijinja::machinery::parse_expr(text).map_err(|error| Box::new(syntax_error(&error, text, place)))
}

fn check_length(text: &str, place: &TextSource, limit: usize) -> Result<(), Box<Diagnostic>> {
    if text.len() <= limit {
        return Ok(());
    }
    let message = format!("the text has {} bytes, the limit is {limit}", text.len());
    Err(Box::new(Diagnostic::error("template::limit", message).at(&place.source, place.span(0, 0))))
}

/// Refuses the characters that are reserved for placeholders.
fn check_characters(text: &str, place: &TextSource) -> Result<(), Box<Diagnostic>> {
    let escaped = |escape: &str| {
        let at = text.to_ascii_lowercase().find(escape)?;
        Some((at, escape.len()))
    };
    let found = text
        .find([OPEN, CLOSE])
        .map(|at| (at, OPEN.len_utf8()))
        .or_else(|| escaped(r"\u0010f7a1"))
        .or_else(|| escaped(r"\u0010f7a2"));
    match found {
        None => Ok(()),
        Some((at, length)) => {
            let message = "the private-use characters U+10F7A1 and U+10F7A2 are not allowed in a template";
            Err(Box::new(place.error(message, at, at + length).help("remove them; values may contain them")))
        }
    }
}

fn syntax_error(error: &minijinja::Error, text: &str, place: &TextSource) -> Diagnostic {
    let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let span = place.line(text, error.line().unwrap_or(1));
    let diagnostic = Diagnostic::error("template::syntax", message.clone()).at(&place.source, span);
    let statement = message.strip_prefix("unknown statement ");
    match statement {
        Some("include" | "import" | "from" | "extends" | "block") => diagnostic.help(
            "templates are reused by value: `{{ partial(\"x.yaml\") }}` inserts the result of another template of the package",
        ),
        Some("break" | "continue") => {
            diagnostic.help("select the items first: `{% for x in xs if ... %}`, or `| select(...)`")
        }
        Some(word) => {
            let known = ["for", "if", "elif", "else", "endif", "endfor", "set", "endset", "with", "endwith", "macro",
                "endmacro", "filter", "endfilter", "do", "raw", "endraw"];
            match near(word, known) {
                Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
                None => diagnostic,
            }
        }
        None if super::foreign_syntax::of_line(place.shown(span)).is_some() => {
            diagnostic.help(super::foreign_syntax::of_line(place.shown(span)).unwrap_or_default())
        }
        None if test_before_if(place.shown(span)) => {
            diagnostic.help("put the test in parentheses: `(x is defined) if y else z`")
        }
        None => diagnostic,
    }
}

/// Whether a test is directly before an `if`, which MiniJinja reads as an argument of the test.
fn test_before_if(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(3).any(|words| words[2] == "if" && matches!(words[0], "is" | "not"))
}

fn too_deep(place: &TextSource, what: &str, limit: usize, at: (usize, usize)) -> Box<Diagnostic> {
    let message = format!("more than {limit} nested {what}");
    Box::new(
        Diagnostic::error("template::limit", message)
            .at(&place.source, place.span(at.0, at.1))
            .help("split it, for example with `{% set %}` or a `let`"),
    )
}

/// Refuses nesting that is too deep for the parser and for recursion over its tree.
fn check_tokens(text: &str, place: &TextSource, in_expression: bool) -> Result<(), Box<Diagnostic>> {
    // The length of the chain in each open bracket. The sum of the lengths bounds the depth of the tree.
    let mut chains: Vec<usize> = vec![0];
    // The levels of each open block.
    let mut blocks: Vec<usize> = Vec::new();
    let mut first_of_block = false;
    let mut set_without_value = false;
    for token in tokenize(text, in_expression, syntax()) {
        // The parser reports an invalid token.
        let Ok((token, span)) = token else { return Ok(()) };
        let at = (span.start_offset as usize, span.end_offset as usize);
        let step = match &token {
            Token::VariableStart | Token::BlockStart => {
                chains = vec![0];
                first_of_block = matches!(token, Token::BlockStart);
                set_without_value = false;
                continue;
            }
            Token::BlockEnd => {
                if set_without_value {
                    blocks.push(1);
                }
                set_without_value = false;
                0
            }
            Token::Ident(word) if first_of_block => {
                match *word {
                    "for" | "if" | "with" | "macro" | "filter" | "autoescape" | "call" => blocks.push(1),
                    "set" => set_without_value = true,
                    "elif" => {
                        if let Some(levels) = blocks.last_mut() {
                            *levels += 1;
                        }
                    }
                    word if word.starts_with("end") => {
                        blocks.pop();
                    }
                    _ => {}
                }
                if blocks.iter().sum::<usize>() >= MAX_BLOCKS {
                    return Err(too_deep(place, "blocks", MAX_BLOCKS, at));
                }
                0
            }
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                chains.push(0);
                if chains.len() > MAX_BRACKETS {
                    return Err(too_deep(place, "brackets", MAX_BRACKETS, at));
                }
                1
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                if chains.len() > 1 {
                    chains.pop();
                }
                // The next token continues the outer chain.
                1
            }
            Token::Comma | Token::Colon => {
                if let Some(chain) = chains.last_mut() {
                    *chain = 0;
                }
                0
            }
            Token::Assign => {
                set_without_value = false;
                0
            }
            Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Dot
            | Token::Tilde
            | Token::Pipe
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte
            | Token::Ident("and" | "or" | "not" | "is" | "in" | "if" | "else") => 1,
            _ => 0,
        };
        first_of_block = false;
        if let Some(chain) = chains.last_mut() {
            *chain += step;
        }
        if step > 0 && chains.iter().sum::<usize>() > MAX_CHAIN {
            return Err(too_deep(place, "operators, fields or filters", MAX_CHAIN, at));
        }
    }
    Ok(())
}
