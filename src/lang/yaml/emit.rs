//! Writes values as YAML for people, in the style of kubectl: two spaces, lists not indented under their key.
//!
//! Strings are quoted according to the reader's own resolution of scalars, so what is written reads back the
//! same. A serializer of another crate would have its own rules.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use super::scalar::{Scalar, is_ambiguous};
use crate::printable::{inert, is_inert, is_unsafe};

/// The maximum length of a simple key.
const SIMPLE_KEY: usize = 1000;

/// Writes a value as YAML, with a line break at the end. Reading it gives the same value, except that floats
/// without a fraction (1.0) become integers, as always in this dialect.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => entries(&mut out, map, 0),
        Value::Array(list) if !list.is_empty() => items(&mut out, list, 0),
        other => {
            scalar(&mut out, other, 0);
            out.push('\n');
        }
    }
    out
}

/// Writes the entries of a map. The indentation of the first line is already written.
fn entries(out: &mut String, map: &Map<String, Value>, indent: usize) {
    for (index, (key, value)) in map.iter().enumerate() {
        if index > 0 {
            pad(out, indent);
        }
        let key = line(key);
        if key.chars().count() > SIMPLE_KEY {
            out.push_str("? ");
            out.push_str(&key);
            out.push('\n');
            pad(out, indent);
            out.push_str(": ");
            inline(out, value, indent + 2);
            continue;
        }
        out.push_str(&key);
        out.push(':');
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                pad(out, indent + 2);
                entries(out, map, indent + 2);
            }
            Value::Array(list) if !list.is_empty() => {
                out.push('\n');
                pad(out, indent);
                items(out, list, indent);
            }
            other => {
                out.push(' ');
                scalar(out, other, indent);
                out.push('\n');
            }
        }
    }
}

/// Writes the items of a list. The indentation of the first line is already written.
fn items(out: &mut String, list: &[Value], indent: usize) {
    for (index, item) in list.iter().enumerate() {
        if index > 0 {
            pad(out, indent);
        }
        out.push_str("- ");
        inline(out, item, indent + 2);
    }
}

/// Writes a value that starts on the line of its indicator.
fn inline(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => entries(out, map, indent),
        Value::Array(list) if !list.is_empty() => items(out, list, indent),
        other => {
            scalar(out, other, indent - 2);
            out.push('\n');
        }
    }
}

/// Writes a value on one line, or a block scalar without its last line break, indented more than `indent`.
fn scalar(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(bool) => out.push_str(if *bool { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&number_text(number)),
        Value::String(text) if fits_block(text) => block(out, text, indent + 2),
        Value::String(text) => out.push_str(&line(text)),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
    }
}

fn number_text(number: &Number) -> String {
    let whole = number.as_f64().filter(|_| number.is_f64()).and_then(Scalar::float_number);
    whole.as_ref().unwrap_or(number).to_string()
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Whether a text of several lines fits a `|` block without an indentation indicator.
fn fits_block(text: &str) -> bool {
    let body = text.trim_end_matches('\n');
    body.contains('\n') | (text.len() > body.len())
        && !body.is_empty()
        && !body.starts_with([' ', '\t', '\n'])
        && body.chars().all(|c| matches!(c, '\n' | '\t') || is_printable(c))
        && is_inert(body)
        && body.lines().all(|line| line.is_empty() || !line.trim().is_empty())
}

fn block(out: &mut String, text: &str, indent: usize) {
    let body = text.trim_end_matches('\n');
    let breaks = text.len() - body.len();
    out.push_str(match breaks {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            pad(out, indent);
            out.push_str(line);
        }
    }
    out.extend(std::iter::repeat_n('\n', breaks.saturating_sub(1)));
}

/// Writes a string on one line: plain if every reader reads it as that string, otherwise in quotes.
fn line(text: &str) -> String {
    // It is not at the start of its line.
    let is_inert = is_inert(text.trim_start_matches(':'));
    if is_ambiguous(text) || !text.chars().all(is_printable) || !is_inert {
        return double_quoted(text);
    }
    if is_plain(text) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "''"))
}

/// Whether the grammar allows a text as a plain scalar in a block collection.
fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let second = text[first.len_utf8()..].chars().next();
    let begins_well = match first {
        '-' => second.is_some_and(|c| c == '-' || c.is_alphanumeric()) && !text.starts_with("---"),
        '.' => !text.starts_with("..."),
        ' ' | '?' | ':' | ',' | '[' | ']' | '{' | '}' | '#' | '&' | '*' | '!' | '|' | '>' | '\'' | '"'
        | '%' | '@' | '`' => false,
        _ => true,
    };
    begins_well && !text.ends_with([' ', ':']) && !text.contains(": ") && !text.contains(" #")
}

/// Whether a line of any style may contain the character unescaped.
fn is_printable(c: char) -> bool {
    !is_unsafe(c) && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

fn double_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ =
                    if code < 0x1_0000 { write!(out, "\\u{code:04x}") } else { write!(out, "\\U{code:08x}") };
            }
        }
    }
    out.push('"');
    inert(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::from_str;
    use super::*;

    #[test]
    fn output_has_the_style_of_kubectl() {
        let value = json!({
            "apiVersion": "v1",
            "args": ["--flag=x", "-v", "- x", "*", "a: b", "{{ x }}"],
            "data": {"script": "set -e\n\techo\n", "keep": "a\n\n", "strip": "a\nb", "none": ""},
            "empty": {"list": [], "map": {}, "null": null},
            "nested": [[1, 2.5], {"a": 1, "b": [true]}],
            "yes": ["yes", "0644", "1_000", "1e3", "012", "null", "~", "2001-01-01", "1:20", "10.0.0.1", "=", "0o8"],
        });
        let expected = r#"apiVersion: v1
args:
- --flag=x
- -v
- '- x'
- '*'
- 'a: b'
- '{{ x }}'
data:
  keep: |+
    a

  none: ""
  script: |
    set -e
    	echo
  strip: |-
    a
    b
empty:
  list: []
  map: {}
  "null": null
nested:
- - 1
  - 2.5
- a: 1
  b:
  - true
"yes":
- "yes"
- "0644"
- "1_000"
- "1e3"
- "012"
- "null"
- "~"
- "2001-01-01"
- "1:20"
- 10.0.0.1
- "="
- "0o8"
"#;
        assert_eq!(to_string(&value), expected);
        assert_eq!(from_str(expected).unwrap(), value);
    }

    #[test]
    fn scalar_documents_are_written() {
        for (value, expected) in [
            (json!(null), "null\n"),
            (json!([]), "[]\n"),
            (json!("a\nb\n"), "|\n  a\n  b\n"),
            (json!(1.0), "1\n"),
            (json!("\u{feff}\u{1}"), "\"\\ufeff\\u0001\"\n"),
            (json!("a\n\u{202e}b\u{e0041}"), "\"a\\n\\u202eb\\U000e0041\"\n"),
            (json!("a\n::b::c\n"), "\"a\\n::b::c\\n\"\n"),
            (json!("a\n##[b]\n"), "\"a\\n\\u0023#[b]\\n\"\n"),
            (json!({"a": "::b::", "c": "\\##vso[d]"}), "a: '::b::'\nc: \"\\\\\\u0023#vso[d]\"\n"),
        ] {
            assert_eq!(to_string(&value), expected);
        }
    }

    /// A small generator (xorshift) of values that are hard to write.
    struct Generator(u64);

    impl Generator {
        const PARTS: [&str; 66] = [
            "##vso[x]",
            "::x::",
            "yes",
            "no",
            "y",
            "on",
            "0644",
            "1_000",
            "1e3",
            "012",
            "null",
            "~",
            "2001-01-01",
            "-",
            "--",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            ": ",
            " #",
            "#",
            ":",
            "a",
            "x y",
            "{",
            "}",
            "[",
            "]",
            ",",
            "&",
            "*",
            "!",
            "|",
            ">",
            "'",
            "\"",
            "%",
            "@",
            "`",
            "\\",
            "<<",
            "=",
            "?",
            "0x",
            "0b1",
            ".",
            "...",
            "---",
            "\r",
            "\0",
            "\u{7f}",
            "\u{85}",
            "\u{2028}",
            "\u{202e}",
            "\u{e0041}",
            "\u{feff}",
            "é",
            "😀",
            "\u{e000}0\u{e001}",
            "{{ x }}",
            "1:20",
            "+",
            "_",
            ".inf",
        ];

        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 % bound as u64).unwrap()
        }

        fn string(&mut self) -> String {
            if self.below(40) == 0 {
                return "k".repeat(900 + self.below(400)) + Self::PARTS[self.below(Self::PARTS.len())];
            }
            (0..self.below(6)).map(|_| Self::PARTS[self.below(Self::PARTS.len())]).collect()
        }

        fn value(&mut self, depth: usize) -> Value {
            let numbers = [
                json!(0),
                json!(-1),
                json!(i64::MIN),
                json!(u64::MAX),
                json!(0.1),
                json!(-2.5e-10),
                json!(1e21),
                json!(1e300),
                json!(5e-324),
                json!(f64::MAX),
            ];
            match self.below(if depth == 0 { 6 } else { 10 }) {
                0 => Value::Null,
                1 => Value::Bool(self.below(2) == 0),
                2 => numbers[self.below(numbers.len())].clone(),
                3..6 => Value::String(self.string()),
                6 | 7 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
                _ => (0..self.below(4)).map(|_| (self.string(), self.value(depth - 1))).collect(),
            }
        }
    }

    #[test]
    fn written_values_read_back_unchanged() {
        let mut generator = Generator(0x9e37_79b9_7f4a_7c15);
        for _ in 0..5_000 {
            let value = generator.value(5);
            let text = to_string(&value);
            assert_eq!(from_str(&text), Ok(value), "{text}");
        }
        // Each part is used alone as value, key and item.
        for part in Generator::PARTS {
            let value = json!({part: [part, {part: part}]});
            assert_eq!(from_str(&to_string(&value)), Ok(value), "{part:?}");
        }
    }
}
