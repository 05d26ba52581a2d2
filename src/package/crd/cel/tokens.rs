//! The tokens of CEL.

/// The reason why a rule does not compile, and what to do.
pub type CelProblem = (String, String);

/// A token of a CEL rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Word(String),
    Number,
    Text,
    Symbol(&'static str),
    End,
}

/// The problem of a rule that is not valid CEL.
pub(super) fn syntax(what: String) -> CelProblem {
    (
        what,
        "correct the rule; the syntax is described at https://kubernetes.io/docs/reference/using-api/cel"
            .to_owned(),
    )
}

/// The tokens of a rule with their offsets.
pub(super) fn tokens(rule: &str) -> Result<Vec<(Token, usize)>, CelProblem> {
    const SYMBOLS: [&str; 27] = [
        "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", ".", ",", "(",
        ")", "[", "]", "{", "}", "=", "&", "|",
    ];
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = rule[at..].chars().next() {
        let rest = &rule[at..];
        let length;
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        } else if let Some(end) = string(rest)? {
            length = end;
            found.push((Token::Text, at));
        } else if c.is_ascii_digit() || c == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()) {
            length = number(rest);
            found.push((Token::Number, at));
        } else if c.is_ascii_alphabetic() || c == '_' {
            length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.push((Token::Word(rest[..length].to_owned()), at));
        } else if c == '`' {
            let end = rest[1..].find('`').ok_or_else(|| syntax("a quoted name has no end".to_owned()))?;
            length = end + 2;
            found.push((Token::Word(rest[1..=end].to_owned()), at));
        } else if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            if matches!(*symbol, "=" | "&" | "|") {
                let help = match *symbol {
                    "=" if rest.starts_with("=>") => "write `>=`",
                    "=" => "write `==`",
                    "&" => "write `&&`",
                    _ => "write `||`",
                };
                return Err((format!("`{symbol}` is no operator: {}", near(rest)), help.to_owned()));
            }
            length = symbol.len();
            found.push((Token::Symbol(symbol), at));
        } else {
            return Err(syntax(format!("unexpected character: {}", near(rest))));
        }
        at += length;
    }
    found.push((Token::End, rule.len()));
    Ok(found)
}

/// The length of a string at the beginning of a text, if there is one.
fn string(text: &str) -> Result<Option<usize>, CelProblem> {
    let no_end = || syntax(format!("a string has no end: {}", near(text)));
    let prefix = text.find(['"', '\'']).filter(|at| *at <= 2);
    let Some(prefix) = prefix.filter(|at| text[..*at].chars().all(|c| "rRbB".contains(c))) else {
        return Ok(None);
    };
    let is_raw = text[..prefix].contains(['r', 'R']);
    let quote = &text[prefix..=prefix];
    let triple = quote.repeat(3);
    let open = if text[prefix..].starts_with(&triple) { triple.as_str() } else { quote };
    let mut at = prefix + open.len();
    while let Some(c) = text[at..].chars().next() {
        if text[at..].starts_with(open) {
            return Ok(Some(at + open.len()));
        }
        if c == '\n' && open.len() == 1 {
            break;
        }
        at += c.len_utf8();
        if c == '\\' && !is_raw {
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    Err(no_end())
}

fn number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 1;
    while let Some(byte) = bytes.get(end) {
        let is_sign =
            matches!(byte, b'+' | b'-') && matches!(bytes[end - 1], b'e' | b'E') && !text.starts_with("0x");
        // A dot is always part of the number, because a method can follow a number only in brackets.
        if !(byte.is_ascii_alphanumeric() || *byte == b'.' || is_sign) {
            break;
        }
        end += 1;
    }
    end
}

/// The beginning of a text, to show the position of an error.
pub(super) fn near(text: &str) -> String {
    let shown: String = text.chars().take(20).collect();
    let more = if text.chars().count() > 20 { "..." } else { "" };
    format!("`{}{more}`", shown.trim_end())
}
