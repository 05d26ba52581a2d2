//! Text from a file, an instance or the API server, made safe to show.
//!
//! A terminal executes control characters, and bidirectional ones reorder what people read. Neither may reach a
//! terminal, a condition or an Event as it is.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether showing a character would do something else than show it: control characters, those that change the
/// direction of text, those without width, and line separators.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text on one line, with each unsafe character as its escape: `\n`, `\u{1b}`.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// The text as a sentence for people, on one line: line feeds and tabs are spaces, other unsafe characters are escaped.
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

/// Text of several lines, with each unsafe character as its escape; line feeds and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
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
    fn text_that_is_safe_is_not_copied() {
        assert!(matches!(line("safe"), Cow::Borrowed(_)));
    }
}
