//! The tokens of CEL, as its grammar has them. What is more than parsers bear is refused before one reads it: they recurse, and so does
//! what walks their trees.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::names::escaped;

/// The reason why an expression is no CEL, and what to do.
pub(super) type Wrong = (String, String);

/// The deepest tree of an expression, as [`depth`] counts.
const MAX_DEPTH: usize = 250;
/// The longest expression that the API server parses, in characters.
const MAX_LENGTH: usize = 100_000;
/// How many levels a parser descends for what is in brackets.
const BRACKET: usize = 4;

/// A token of a CEL rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Word(String),
    Number,
    Text,
    Symbol(&'static str),
    End,
}

impl Token {
    /// Whether a value ends here, so that an operator for two values or a call may follow.
    fn ends_value(&self) -> bool {
        match self {
            Self::Word(word) => word != "in",
            Self::Number | Self::Text => true,
            Self::Symbol(symbol) => matches!(*symbol, ")" | "]" | "}"),
            Self::End => false,
        }
    }
}

/// The expression as a parser may read it: without pairs of `!` or `-` before a value, which have no effect and for which some parsers take
/// exponential time. It is as long as before.
pub(super) fn readable<'a>(expression: &'a str, tokens: &[(Token, usize)]) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(expression);
    let mut before = &Token::End;
    let mut at = 0;
    while let Some((token, offset)) = tokens.get(at) {
        let next = tokens.get(at + 1).filter(|(next, _)| next == token);
        let is_sign = matches!(token, Token::Symbol("!" | "-")) && !before.ends_value();
        if let Some((_, second)) = next.filter(|_| is_sign) {
            for offset in [*offset, *second] {
                text.to_mut().replace_range(offset..=offset, " ");
            }
            at += 2;
            continue;
        }
        before = token;
        at += 1;
    }
    text
}

/// A mistake against the grammar.
pub(super) fn wrong(what: String) -> Wrong {
    (
        what,
        "correct the rule; the syntax is described at https://kubernetes.io/docs/reference/using-api/cel"
            .to_owned(),
    )
}

const SYMBOLS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", ".", ",", "(", ")",
    "[", "]", "{", "}",
];

/// The tokens of the grammar, the first that fits.
static TOKEN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let escape = r#"\\(?:[abfnrtv"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"#;
    let raw = r#"[rR](?:"{3}(?s:.*?)"{3}|'{3}(?s:.*?)'{3}|"[^"\n\r]*"|'[^'\n\r]*')"#;
    let long = format!(r#""{{3}}(?:{escape}|[^\\])*?"{{3}}|'{{3}}(?:{escape}|[^\\])*?'{{3}}"#);
    let short = format!(r#""(?:{escape}|[^\\"\n\r])*"|'(?:{escape}|[^\\'\n\r])*'"#);
    let float = r"[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?";
    let symbols = SYMBOLS.map(regex::escape).join("|");
    let parts = [
        r"(?<space>[\t\n\x0C\r ]+|//[^\n]*)",
        &format!("(?<text>[bB]?(?:{raw}|{long}|{short}))"),
        &format!("(?<number>{float}|0x[0-9a-fA-F]+[uU]?|[0-9]+[uU]?)"),
        "(?<word>[A-Za-z_][A-Za-z0-9_]*)",
        &format!("(?<symbol>{symbols})"),
    ];
    Regex::new(&format!("^(?:{})", parts.join("|"))).ok()
});

/// The tokens of a rule with their offsets. A rule that exceeds the limits has none.
pub(super) fn tokens(rule: &str) -> Result<Vec<(Token, usize)>, Wrong> {
    if rule.chars().nth(MAX_LENGTH).is_some() {
        let help = "write several rules; each is read for itself";
        return Err((format!("the expression has more than {MAX_LENGTH} characters"), help.to_owned()));
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < rule.len() {
        let rest = &rule[at..];
        let Some(token) = TOKEN.as_ref().and_then(|token| token.captures(rest)) else {
            return Err(no_token(rule, at));
        };
        let length = token.get(0).map_or(0, |whole| whole.len());
        if let Some(word) = token.name("word") {
            found.push((Token::Word(word.as_str().to_owned()), at));
        } else if token.name("text").is_some() {
            found.push((Token::Text, at));
        } else if token.name("number").is_some() {
            found.push((Token::Number, at));
        } else if let Some(symbol) = token.name("symbol") {
            let symbol = SYMBOLS.into_iter().find(|known| *known == symbol.as_str());
            found.extend(symbol.map(|symbol| (Token::Symbol(symbol), at)));
        }
        at += length;
    }
    found.push((Token::End, rule.len()));
    if depth(&found) > MAX_DEPTH {
        let message = format!(
            "the expression is nested more than {MAX_DEPTH} deep; operators, fields and calls in a row count"
        );
        return Err((message, "write several rules, or use a list with `all` or `exists`".to_owned()));
    }
    Ok(found)
}

/// Why no token begins at an offset.
fn no_token(rule: &str, at: usize) -> Wrong {
    let (before, rest) = rule.split_at(at);
    let shown = near(rest);
    let help = match rest.as_bytes() {
        [b'"' | b'\'', ..] | [b'r' | b'R' | b'b' | b'B', b'"' | b'\'', ..] => {
            return wrong(format!("a string has no end, or an escape that CEL does not have: {shown}"));
        }
        [b'`', ..] => {
            let Some((name, _)) = rest[1..].split_once('`') else {
                return wrong(format!("a quoted name has no end: {shown}"));
            };
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
            let of = &before[before.trim_end_matches(is_part).len()..];
            let help = format!("write `{of}{}`", escaped(name));
            return (format!("names in backticks are not supported: {shown}"), help);
        }
        [b'=', b'>', ..] => "write `>=`",
        [b'=', ..] => "write `==`",
        [b'&', ..] => "write `&&`",
        [b'|', ..] => "write `||`",
        _ => return wrong(format!("unexpected character: {shown}")),
    };
    let symbol = rest.get(..1).unwrap_or_default();
    (format!("`{symbol}` is no operator: {shown}"), help.to_owned())
}

/// What is known of the tree of an expression within one pair of brackets.
#[derive(Default)]
struct Level {
    /// The height of the values before the last comma.
    finished: usize,
    /// The conditions since then. What follows one is below it.
    conditions: usize,
    /// The height of the operands of `&&`, `||` and conditions since then: they are side by side.
    highest: usize,
    /// The height of the operand that is being read.
    height: usize,
}

impl Level {
    fn total(&self) -> usize {
        self.finished.max(self.conditions + self.highest.max(self.height))
    }

    fn end_operand(&mut self) {
        self.highest = self.highest.max(self.height);
        self.height = 0;
    }
}

/// The depth that the tree of an expression has at most, and that a parser descends. Operators, fields and calls in a row nest; the operands
/// of `&&` and `||` do not.
fn depth(tokens: &[(Token, usize)]) -> usize {
    let (mut outer, mut level) = (Vec::new(), Level::default());
    // How far the parser has descended, and the most that it does.
    let (mut descent, mut deepest) = (0, 0);
    let mut before = &Token::End;
    for (token, _) in tokens {
        match token {
            Token::Symbol("(" | "[" | "{") => {
                // A call or an index.
                level.height += usize::from(before.ends_value());
                descent += BRACKET + level.conditions;
                outer.push(std::mem::take(&mut level));
            }
            Token::Symbol(")" | "]" | "}") => {
                if let Some(around) = outer.pop() {
                    let inner = std::mem::replace(&mut level, around).total();
                    descent -= BRACKET + level.conditions;
                    level.height = level.height.max(inner + BRACKET);
                }
            }
            Token::Symbol(",") => level = Level { finished: level.total(), ..Level::default() },
            // The mark of an optional field, index or value.
            Token::Symbol("?") if matches!(before, Token::Symbol("." | "[" | "{" | ",")) => {}
            Token::Symbol("?") => {
                level.end_operand();
                level.conditions += 1;
            }
            Token::Symbol("&&" | "||" | ":") => level.end_operand(),
            Token::Symbol(_) => level.height += 1,
            Token::Word(word) if word == "in" => level.height += 1,
            Token::Word(_) | Token::Number | Token::Text | Token::End => level.height = level.height.max(1),
        }
        deepest = deepest.max(descent + level.total());
        before = token;
    }
    deepest
}

/// The beginning of a text, to show the position of an error.
pub(super) fn near(text: &str) -> String {
    let shown: String = text.chars().take(20).collect();
    let more = if text.chars().nth(20).is_some() { "..." } else { "" };
    format!("`{}{more}`", shown.trim_end())
}
