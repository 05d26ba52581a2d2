//! Finds the positions in the document where a template inserts a value, as far as the text shows them.

use super::Outline;
use crate::diag::{Source, Span};
use crate::template::Position;
use crate::yaml::{Node, NodeValue};

impl Outline {
    /// The positions of the value at `span`: several if an anchor repeats it, none in a comment.
    pub(crate) fn positions(&self, span: Span) -> Vec<Position> {
        let mut search =
            Search { outline: self, at: span.start, path: Vec::new(), found: Vec::new(), copies: Vec::new() };
        search.node(&self.node);
        if search.found.is_empty() {
            // Unless keys are duplicate, the outline contains everything but comments.
            return if self.repeats { vec![guess(&self.source.text, span)] } else { Vec::new() };
        }
        let Search { mut found, copies, .. } = search;
        found.extend(copies);
        found
    }
}

struct Search<'a> {
    outline: &'a Outline,
    at: usize,
    path: Vec<String>,
    found: Vec<Position>,
    /// The positions of aliases of single values. Each of them may repeat the value.
    copies: Vec<Position>,
}

impl Search<'_> {
    fn node(&mut self, node: &Node) {
        match &node.value {
            NodeValue::Map(entries) => {
                for (key, value) in entries {
                    let name = key.as_str().unwrap_or_default();
                    if holds(key.span, self.at) {
                        let path = self.path.iter().cloned().chain([name.to_owned()]).collect();
                        self.found.push(Position { path, key: true });
                    }
                    // Merged entries become part of the map itself.
                    let merged = name == "<<";
                    if !merged {
                        self.path.push(name.to_owned());
                    }
                    self.node(value);
                    if !merged {
                        self.path.pop();
                    }
                }
            }
            NodeValue::Seq(items) => {
                self.path.push("*".to_owned());
                for item in items {
                    self.node(item);
                }
                self.path.pop();
            }
            _ if holds(node.span, self.at) => {
                self.found.push(Position { path: self.path.clone(), key: false });
            }
            _ if self.outline.text(node).starts_with('*') => {
                self.copies.push(Position { path: self.path.clone(), key: false });
            }
            _ => {}
        }
    }
}

fn holds(span: Span, at: usize) -> bool {
    (span.start..span.end).contains(&at)
}

/// The position in a file without an outline: below the last unindented key. It is a key if a colon follows.
pub(crate) fn positions_without_outline(source: &Source, span: Span) -> Vec<Position> {
    vec![guess(&source.text, span)]
}

fn guess(text: &str, span: Span) -> Position {
    // The text before the value, including the rest of the value's line.
    let end =
        text.get(span.start..).and_then(|rest| rest.find('\n')).map_or(text.len(), |at| span.start + at);
    let before = text.get(..end).unwrap_or_default();
    let key_of = |line: &str| {
        let (key, _) = line.split_once(':')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        (!key.is_empty() && key.chars().all(plain)).then(|| key.to_owned())
    };
    let path = before.lines().rev().find_map(key_of).into_iter().collect();
    let after = text.get(span.end..).unwrap_or_default();
    let line = after.split('\n').next().unwrap_or_default();
    let value = line.find([',', ']', '}']).filter(|_| !line.starts_with(" }}") && !line.starts_with("}}"));
    let line = value.map_or(line, |end| &line[..end]);
    let line = line.trim_end();
    let key = line.ends_with(':') || line.contains(": ");
    Position { path, key }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, what: &str) -> Vec<(String, bool)> {
        let source = Source::new("t.yaml", text);
        let start = text.find(what).unwrap();
        let span = Span::new(start, start + what.len());
        let found = match Outline::of(&source) {
            Some(outline) => outline.positions(span),
            None => positions_without_outline(&source, span),
        };
        found.into_iter().map(|position| (position.path.join("."), position.key)).collect()
    }

    #[test]
    fn positions_of_values_and_keys_are_found() {
        for (text, wanted) in [
            ("data:\n  a: {{ X }}\n", &[("data.a", false)][..]),
            ("data: {{ X }}\n", &[("data", false)]),
            ("data:\n  a-{{ X }}: b\n", &[("data.a-xxxxxxx", true)]),
            ("data: {\"{{ X }}\": 1}\n", &[("data.xxxxxxx", true)]),
            ("a:\n  - b: \"x {{ X }}\"\n", &[("a.*.b", false)]),
            ("a: |\n  key: {{ X }}\n", &[("a", false)]),
            ("a: b # {{ X }}\n", &[]),
            ("a: &c\n  d: {{ X }}\ne: *c\n", &[("a.d", false), ("e.d", false)]),
            ("a: &c {{ X }}\ne: *c\n", &[("a", false), ("e", false)]),
            ("metadata:\n  <<: {{ X }}\n", &[("metadata", false)]),
            // Two variants of a key in branches.
            ("{% if a %}\ndata: {{ X }}\n{% else %}\ndata: {{ b }}\n{% endif %}\n", &[("data", false)]),
            ("{% if a %}\ndata: {b: 1}\n{% else %}\n - {{ X }}: 1\n{% endif %}\n", &[("data", true)]),
        ] {
            let wanted: Vec<_> = wanted.iter().map(|(path, key)| ((*path).to_owned(), *key)).collect();
            assert_eq!(at(text, "X"), wanted, "{text}");
        }
    }
}
