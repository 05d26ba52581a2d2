//! Text from a file, an instance or the API server, made safe to show.
//!
//! A terminal executes control characters, and bidirectional ones reorder what people read. Neither may reach a
//! terminal, a condition or an Event as it is. A runner of CI executes lines that are printed: [`inert`].

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character has an effect other than being shown: control characters, characters that change the
/// direction of text, characters without width, and line separators.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the text on one line; unsafe characters are escaped: `\n`, `\u{1b}`.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Returns the text as a sentence for people, on one line: line feeds and tabs become spaces, other unsafe
/// characters are escaped.
pub fn sentence(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = lines(text).into_owned();
    while out.ends_with(['\n', '\t']) {
        out.pop();
    }
    Cow::Owned(out.replace(['\n', '\t'], " "))
}

/// Returns text of several lines; unsafe characters other than line feeds and tabs are escaped.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// Returns JSON of the same value in which unsafe characters are escaped. `json` must be valid JSON.
pub fn json(json: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_unsafe(c) && c != '\n';
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Returns a text in which no line is a command to a runner of CI. The character that makes one is escaped as in JSON, so JSON
/// keeps its value: `\u003a:error::`, `\u0023#vso[`.
pub fn inert(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut end = 0;
    for at in commands(text) {
        out.push_str(&text[end..at]);
        let _ = write!(out, "\\u{:04x}", text.as_bytes()[at]);
        end = at + 1;
    }
    if end == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[end..]);
    Cow::Owned(out)
}

/// Whether [`inert`] leaves a text as it is.
pub fn is_inert(text: &str) -> bool {
    commands(text).next().is_none()
}

/// Where the commands to runners of CI begin: `::name::` at the start of a line, perhaps after white space and with parameters after the
/// name (GitHub); `##[name]`, `##vso[name]` and their like anywhere in a line (GitHub, Azure Pipelines).
fn commands(text: &str) -> impl Iterator<Item = usize> {
    let mut is_start = true;
    text.char_indices().filter_map(move |(at, c)| {
        let rest = &text[at..];
        let is_command = match c {
            ':' => is_start && is_line_command(rest),
            '#' => rest.strip_prefix("##").is_some_and(|rest| {
                rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric()).starts_with('[')
            }),
            _ => false,
        };
        is_start = matches!(c, '\n' | '\r') || is_start && c.is_whitespace();
        is_command.then_some(at)
    })
}

/// Whether a line begins with `::name`, and has another `::`.
fn is_line_command(text: &str) -> bool {
    let name = text.strip_prefix("::").filter(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
    name.and_then(|rest| rest.lines().next()).is_some_and(|line| line.contains("::"))
}

/// Clips a text between words to at most that many characters, with `…` in place of the rest.
pub fn clip(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(words_before(text, end)),
        None => Cow::Borrowed(text),
    }
}

/// Clips a text between words to at most that many bytes, including the `…`.
pub fn clip_bytes(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let mut end = most.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(words_before(text, end))
}

/// The words of a text that end before `end`, and `…`. A word is cut if it would take more than half of the
/// text.
fn words_before(text: &str, end: usize) -> String {
    let (start, rest) = text.split_at(end);
    let is_whole = rest.starts_with(char::is_whitespace);
    let last = start.rfind(char::is_whitespace).filter(|at| !is_whole && at * 2 >= end);
    let words = last.map_or(start, |at| &start[..at]);
    format!("{}…", words.trim_end().trim_end_matches([',', ';', ':']))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |c: char| is_unsafe(c) && !stays(c);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            let _ = write!(out, "{}", c.escape_debug());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_are_shown_as_escapes() {
        assert_eq!(line("plain ß 中 é"), "plain ß 中 é");
        assert_eq!(line("a\x1b[2Jb\r\nc\td"), "a\\u{1b}[2Jb\\r\\nc\\td");
        assert_eq!(line("x\u{202e}y\u{2066}z\u{feff}"), "x\\u{202e}y\\u{2066}z\\u{feff}");
        assert_eq!(line("\u{2028}\u{9b}\u{e0041}"), "\\u{2028}\\u{9b}\\u{e0041}");
        assert_eq!(lines("a\n\tb\u{7}"), "a\n\tb\\u{7}");
        assert_eq!(sentence("a\nb\t\u{1b}c\n"), "a b \\u{1b}c");
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let value = serde_json::json!({"a\u{202e}": ["\u{1b}\n\u{9b}\u{7f}\u{e0041}", "ß 😀"]});
        let text = format!("{value:#}");
        let safe = json(&text);
        assert!(!safe.contains(|c| is_unsafe(c) && c != '\n') && safe.contains("\\udb40\\udc41"), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
        assert!(matches!(json("{\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn lines_are_no_commands_to_runners_of_ci() {
        for (text, expected) in [
            ("a\n::error::b", "a\n\\u003a:error::b"),
            ("::error file=a::b\r \t\u{3000}::c::d", "\\u003a:error file=a::b\r \t\u{3000}\\u003a:c::d"),
            ("a ##vso[task.setvariable]b", "a \\u0023#vso[task.setvariable]b"),
            ("##[error]a ####[group]", "\\u0023#[error]a ##\\u0023#[group]"),
            ("##teamcity[buildStop]", "\\u0023#teamcity[buildStop]"),
        ] {
            assert_eq!(inert(text), expected);
            assert!(!is_inert(text) && is_inert(expected), "{text}");
        }
        for text in ["", "a: ::b::", "::1 localhost\n::/0", "::a\n::", "## [a](b)", "##", "#[a]", "ß::a::"] {
            assert!(matches!(inert(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        let value = serde_json::json!({"a": "\\##[error]", "##vso[b]": ["::c::d"]});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&inert(&format!("{value:#}"))).unwrap(), value);
    }

    #[test]
    fn text_is_clipped_between_words() {
        assert_eq!(clip("one two three", 13), "one two three");
        for most in 8..13 {
            assert_eq!(clip("one two; three", most), "one two…", "{most}");
        }
        assert_eq!(clip("one two three", 7), "one two…");
        assert_eq!(clip("éééééééééé", 4), "éééé…", "a long word");
        assert_eq!(clip("a éééééééééé", 6), "a éééé…");
        assert_eq!(clip_bytes("one two", 7), "one two");
        assert_eq!(clip_bytes("one two three", 12), "one two…");
        let long = clip_bytes("éééééééééé", 10).into_owned();
        assert!(long.len() <= 10 && long.ends_with('…'), "{long}");
    }

    #[test]
    fn text_that_is_safe_is_not_copied() {
        assert!(matches!(line("safe"), Cow::Borrowed(_)));
    }
}
