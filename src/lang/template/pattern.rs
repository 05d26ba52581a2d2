//! Patterns: what is known of a text before it is rendered. A pattern consists of literal parts, the name of
//! the instance and values of the instance. Everything that a template computes may be any text.

use std::fmt;

use serde_json::{Map, Value};

use super::Engine;
use super::code::{Binary, Kind, Node, Stmt};
use super::nodes::{constant, path};
use super::reads::{Segment, access};
use super::scope::{Lets, Scope, Var};
use super::text::{Text, TextUnit};

/// The maximum depth of `let`s and concatenations.
const MAX_DEPTH: usize = 16;
/// The maximum number of characters that are compared.
const MAX_TOKENS: usize = 512;

/// One part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternPart {
    /// Characters.
    Text(String),
    /// The name of the instance.
    Instance,
    /// The value at a path: its variable and its steps.
    Path(String, Vec<Segment>),
    /// Any text.
    Unknown,
}

/// A text as a list of parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(pub Vec<PatternPart>);

/// The data of a resource that a pattern needs.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// Its `let`s.
    pub lets: &'a Lets,
    /// The package's constants.
    pub defaults: &'a Map<String, Value>,
}

/// A character, the name of the instance, or any characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Char(char),
    Instance,
    Any,
}

impl Engine {
    /// The pattern of a text.
    pub fn pattern(&self, text: &Text, known: Known<'_>) -> Pattern {
        let mut parts = Vec::new();
        self.parts(text, known, 0, &mut parts);
        Pattern(parts)
    }

    fn parts(&self, text: &Text, known: Known<'_>, depth: usize, out: &mut Vec<PatternPart>) {
        let unit = match &*text.0 {
            TextUnit::Literal(value, _) => return out.push(literal(value)),
            TextUnit::Template(unit) => unit,
        };
        let paths = &text.reads().paths;
        if !paths.is_empty() && paths.iter().all(|path| path.root == "defaults") {
            let mut scope = Scope::new();
            scope.set("defaults", Var::Json(Value::Object(known.defaults.clone())));
            let value = self.eval_text(text, &scope).ok().flatten();
            return out.push(value.as_ref().map_or(PatternPart::Unknown, literal));
        }
        for stmt in &unit.body {
            match stmt {
                Stmt::Raw(text, _) => out.push(PatternPart::Text(text.to_string())),
                Stmt::Emit(node) => self.part(node, known, depth, out),
                _ => out.push(PatternPart::Unknown),
            }
        }
    }

    fn part(&self, node: &Node, known: Known<'_>, depth: usize, out: &mut Vec<PatternPart>) {
        if let Some(value) = constant(node) {
            return out.push(literal(&value));
        }
        if let Kind::Binary(Binary::Concat, sides) = &node.kind
            && depth < MAX_DEPTH
        {
            self.part(&sides.0, known, depth + 1, out);
            return self.part(&sides.1, known, depth + 1, out);
        }
        let Some((root, steps)) = path(node) else { return out.push(PatternPart::Unknown) };
        let key = |index: usize| match steps.get(index) {
            Some(Segment::Key(key)) => Some(key.as_str()),
            _ => None,
        };
        match (&*root, steps.len()) {
            ("name", 0) => out.push(PatternPart::Instance),
            ("instance", 2) if key(0) == Some("metadata") && key(1) == Some("name") => {
                out.push(PatternPart::Instance);
            }
            ("let", 1) if depth < MAX_DEPTH => match key(0).and_then(|name| known.lets.get(name)) {
                Some(text) => self.parts(text, known, depth + 1, out),
                None => out.push(PatternPart::Unknown),
            },
            ("defaults", 1) => {
                let value = key(0).and_then(|name| known.defaults.get(name));
                out.push(value.map_or(PatternPart::Unknown, literal));
            }
            ("let" | "defaults", _) => out.push(PatternPart::Unknown),
            _ => out.push(PatternPart::Path(root.to_string(), steps)),
        }
    }
}

/// The part for a constant.
fn literal(value: &Value) -> PatternPart {
    match value {
        Value::String(text) => PatternPart::Text(text.clone()),
        Value::Number(_) | Value::Bool(_) => PatternPart::Text(value.to_string()),
        _ => PatternPart::Unknown,
    }
}

impl Pattern {
    /// A literal text.
    pub fn literal(text: &str) -> Self {
        Self(vec![PatternPart::Text(text.to_owned())])
    }

    /// Any text.
    pub fn unknown() -> Self {
        Self(vec![PatternPart::Unknown])
    }

    /// Its text, if it consists of literal parts only.
    pub fn as_literal(&self) -> Option<String> {
        self.0.iter().try_fold(String::new(), |text, part| match part {
            PatternPart::Text(more) => Some(text + more),
            _ => None,
        })
    }

    /// Whether it contains the name of the instance.
    pub fn has_instance(&self) -> bool {
        self.0.contains(&PatternPart::Instance)
    }

    /// Whether two texts differ for every instance. The name of an instance counts as different from every literal.
    pub fn differs(&self, other: &Self) -> bool {
        let (left, right) = (self.tokens(), other.tokens());
        left.len() <= MAX_TOKENS && right.len() <= MAX_TOKENS && !may_be_equal(&left, &right)
    }

    /// Whether two texts are equal for every instance.
    pub fn equals(&self, other: &Self) -> bool {
        let (left, right) = (self.tokens(), other.tokens());
        left == right && !left.contains(&Token::Any)
    }

    fn tokens(&self) -> Vec<Token> {
        let mut tokens = Vec::new();
        for part in &self.0 {
            match part {
                PatternPart::Text(text) => tokens.extend(text.chars().map(Token::Char)),
                PatternPart::Instance => tokens.push(Token::Instance),
                PatternPart::Path(..) | PatternPart::Unknown => tokens.push(Token::Any),
            }
        }
        tokens
    }
}

/// Whether two texts with wildcards can be equal.
fn may_be_equal(left: &[Token], right: &[Token]) -> bool {
    // `row[j]`: whether the rest of `left` from token `i` and the rest of `right` from token `j` may be
    // equal.
    let mut row = vec![false; right.len() + 1];
    for i in (0..=left.len()).rev() {
        let below = std::mem::replace(&mut row, vec![false; right.len() + 1]);
        for j in (0..=right.len()).rev() {
            let (l, r) = (left.get(i), right.get(j));
            row[j] = match (l, r) {
                (None, None) => true,
                (Some(Token::Any), _) if below[j] => true,
                (_, Some(Token::Any)) if row[j + 1] => true,
                (Some(Token::Any), Some(_)) => row[j + 1],
                (Some(_), Some(Token::Any)) => below[j],
                (Some(l), Some(r)) => l == r && below[j + 1],
                _ => false,
            };
        }
    }
    row[0]
}

/// Writes the pattern as an author would write it.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                PatternPart::Text(text) => f.write_str(text)?,
                PatternPart::Instance => f.write_str("{{ name }}")?,
                PatternPart::Path(root, steps) => {
                    write!(f, "{{{{ {root}")?;
                    for step in steps {
                        match step {
                            Segment::Key(key) => f.write_str(&access(key))?,
                            Segment::Index(index) => write!(f, "[{index}]")?,
                            Segment::Any => f.write_str("[*]")?,
                        }
                    }
                    f.write_str(" }}")?;
                }
                PatternPart::Unknown => f.write_str("{{ ... }}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::{Location, Source, Span};

    #[test]
    fn patterns_differ_only_if_no_value_makes_them_equal() {
        let engine = Engine::empty();
        let source = Source::new("operator.yaml", "");
        let at = Location::new(&source, Span::new(0, 0));
        let text = |text: &str| engine.text(text, &at).unwrap();
        let lets = Lets::new([("full".to_owned(), text("{{ name }}-db"))]);
        let defaults = serde_json::json!({"port": 80});
        let known = Known { lets: &lets, defaults: defaults.as_object().unwrap() };
        let pattern = |written: &str| engine.pattern(&text(written), known);
        for (left, right, wanted) in [
            ("a", "a", Some(true)),
            ("a", "b", Some(false)),
            ("{{ name }}", "{{ instance.metadata.name }}", Some(true)),
            ("{{ let.full }}", "{{ name ~ '-db' }}", Some(true)),
            ("{{ let.full }}", "{{ name }}", Some(false)),
            ("{{ name }}", "web", Some(false)),
            ("{{ defaults.port + 1 }}", "81", Some(true)),
            ("{{ defaults.port }}", "81", Some(false)),
            ("{{ spec.x }}", "{{ name }}", None),
            ("{{ spec.x }}", "{{ spec.x }}", None),
            ("{{ name }}-{{ i }}", "{{ name }}-x-{{ i }}", None),
            ("{{ name }}-{{ i }}-a", "{{ name }}-{{ i }}-b", Some(false)),
            ("{{ name | lower }}", "x", None),
            ("a{{ spec.x }}", "b{{ spec.y }}", Some(false)),
        ] {
            let (a, b) = (pattern(left), pattern(right));
            let found = match (a.equals(&b), a.differs(&b)) {
                (true, false) => Some(true),
                (false, true) => Some(false),
                _ => None,
            };
            assert_eq!(found, wanted, "{left} and {right}");
        }
        assert_eq!(pattern("a-{{ let.full }}-{{ spec.x.y }}").to_string(), "a-{{ name }}-db-{{ spec.x.y }}");
    }
}
