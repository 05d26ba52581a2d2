//! Matches `pattern` of a schema, which has Go's RE2 syntax, with the regex crate.
//!
//! The two dialects are nearly equal. The differences that occur in schemas are rewritten: `\\d`, `\\w`,
//! `\\s` mean ASCII in Go, and a `[` or `&&` inside a class is literal there.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};

/// The maximum size of a compiled program, in bytes; a larger pattern is not checked.
const SIZE: usize = 1 << 20;

/// How many compiled patterns are kept.
const KEPT: usize = 512;

/// Patterns that were compiled.
#[derive(Debug, Default)]
struct Known {
    regexes: HashMap<String, Option<Arc<Regex>>>,
    /// Which of them has made room for another one last.
    position: usize,
}

impl Known {
    /// Keeps a compiled pattern. If there are too many, one makes room, in the order of the map and not of age: patterns that are
    /// asked for in turn would always find that the oldest has just gone.
    fn keep(&mut self, pattern: &str, regex: Option<Arc<Regex>>) {
        if self.regexes.len() >= KEPT {
            self.position = (self.position + 1) % KEPT;
            let evicted = self.regexes.keys().nth(self.position).cloned();
            if let Some(evicted) = evicted {
                self.regexes.remove(&evicted);
            }
        }
        self.regexes.insert(pattern.to_owned(), regex);
    }
}

/// Whether a text matches a pattern. One that the regex crate cannot express matches everything: only a server can check it.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    compiled(pattern).is_none_or(|regex| regex.is_match(text))
}

/// A pattern, compiled, which takes thousands of times as long as matching a short text. It is shared, because a clone would
/// have no scratch space yet.
fn compiled(pattern: &str) -> Option<Arc<Regex>> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known().regexes.get(pattern).cloned();
    if let Some(regex) = found {
        return regex;
    }
    // Not under the lock: others match meanwhile.
    let compile = |pattern: String| RegexBuilder::new(&pattern).size_limit(SIZE).build().ok();
    let regex = translate(pattern).and_then(compile).map(Arc::new);
    known().keep(pattern, regex.clone());
    regex
}

/// The error of a pattern, if the server certainly refuses it as well.
pub fn fault(pattern: &str) -> Option<&'static str> {
    let text = match Regex::new(&translate(pattern)?) {
        Err(error @ regex::Error::Syntax(_)) => error.to_string(),
        _ => return None,
    };
    // Errors about syntax that only one of the two dialects has are ignored.
    let faults = [
        "unclosed group",
        "unopened group",
        "unclosed character class",
        "repetition operator missing expression",
        "look-around, including look-ahead and look-behind, is not supported",
        "backreferences are not supported",
        "invalid character class range",
    ];
    faults.into_iter().find(|fault| text.contains(fault))
}

fn translate(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    // `Some` inside a class. True until its first character, because a `]` is literal there, as in `[]a]` and
    // `[^]a]`.
    let mut class: Option<bool> = None;
    while let Some(c) = chars.next() {
        if c == '\\' {
            let escaped = chars.next()?;
            class = class.map(|_| false);
            match (escaped, class) {
                ('d', None) => out.push_str("[0-9]"),
                ('w', None) => out.push_str("[0-9A-Za-z_]"),
                ('s', None) => out.push_str(r"[\t\n\f\r ]"),
                ('d', Some(_)) => out.push_str("0-9"),
                ('w', Some(_)) => out.push_str("0-9A-Za-z_"),
                ('s', Some(_)) => out.push_str(r"\t\n\f\r "),
                ('D', _) => out.push_str("[^0-9]"),
                ('W', _) => out.push_str("[^0-9A-Za-z_]"),
                ('S', _) => out.push_str(r"[^\t\n\f\r ]"),
                ('b', None) => out.push_str(r"(?-u:\b)"),
                // Quoting and single bytes are rare and not supported.
                ('Q' | 'C', _) => return None,
                (other, _) => out.extend(['\\', other]),
            }
            continue;
        }
        let Some(first) = class else {
            out.push(c);
            if c == '[' {
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                class = Some(true);
            }
            continue;
        };
        class = Some(false);
        match c {
            ']' if first => out.push_str(r"\]"),
            ']' => {
                class = None;
                out.push(']');
            }
            '[' if chars.peek() == Some(&':') => {
                // A named class, `[:alpha:]`, up to its end.
                out.push('[');
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_go_syntax() {
        let cases = [
            (r"^[\d.]+$", "1.2", Some(true)),
            (r"^[\w-]+$", "a_b-c", Some(true)),
            (r"^\w+$", "é", Some(false)),
            (r"^\S+$", "a b", Some(false)),
            (r"^[^\s]+$", "a\tb", Some(false)),
            (r"^[[]$", "[", Some(true)),
            (r"^[]a]+$", "]a", Some(true)),
            (r"^[^]]+$", "]", Some(false)),
            (r"^[a&&b]+$", "&", Some(true)),
            (r"^[[:alpha:]_]+$", "a_", Some(true)),
            (r"^.{2}$", "éé", Some(true)),
            (r"\bfoo\b", "a foo b", Some(true)),
            (r"^\pL+$", "é", Some(true)),
            (r"(?i)^ABC$", "abc", Some(true)),
            (r"(?=x)", "x", None),
            (r"\Qx\E", "x", None),
            (r"x{1000}{1000}{1000}", "x", None),
            ("\\", "x", None),
        ];
        for (text, value, expected) in cases {
            assert_eq!(compiled(text).map(|regex| regex.is_match(value)), expected, "{text}");
        }
    }

    #[test]
    fn patterns_are_compiled_once() {
        let [first, second] = ["^once$", "^once$"].map(|pattern| compiled(pattern).unwrap());
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn one_pattern_makes_room_for_another() {
        let mut known = Known::default();
        for at in 0..=KEPT {
            known.keep(&at.to_string(), None);
        }
        assert_eq!(known.regexes.len(), KEPT);
        assert!(known.regexes.contains_key(&KEPT.to_string()));
    }

    #[test]
    fn patterns_that_are_no_longer_used_make_room_for_those_that_are() {
        let mut known = Known::default();
        for at in 0..4 * KEPT {
            known.keep(&at.to_string(), None);
        }
        let mut absent = 0;
        for _ in 0..20 {
            absent = 0;
            for at in 0..64 {
                let pattern = format!("used {at}");
                if !known.regexes.contains_key(&pattern) {
                    absent += 1;
                    known.keep(&pattern, None);
                }
            }
        }
        assert_eq!(absent, 0);
    }
}
