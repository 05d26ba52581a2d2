//! Paths of values, while objects are walked.

use std::fmt;

use serde_json::Value;

/// A field and those around it. A walk makes one with each step, and few of them are ever shown.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

/// How paths are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notation {
    /// As the API server reports unknown fields and violations of schemas: `data.a.b/c`.
    Dotted,
    /// As the API server reports other faults: keys of maps are in brackets, `data[a.b/c]`.
    Keyed,
    /// As packages show it: a name that is no plain word is in quotes, `data["a.b/c"]`.
    Quoted,
}

impl Path<'static> {
    /// The path of the walked value itself.
    pub const ROOT: Self = Self { parent: None, step: Step::Root };
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show(Notation::Dotted))
    }
}

impl<'a> Path<'a> {
    /// The path of a field.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Field(name) }
    }

    /// The path of an item of a list.
    #[must_use]
    pub fn index(&'a self, at: usize) -> Self {
        Self { parent: Some(self), step: Step::Index(at) }
    }

    /// The path of a value of a map whose keys are free.
    #[must_use]
    pub fn key(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Key(name) }
    }

    /// The path as a text.
    pub fn show(&self, notation: Notation) -> String {
        let before = self.parent.map(|parent| parent.show(notation)).unwrap_or_default();
        match (self.step, notation) {
            (Step::Root, _) => before,
            (Step::Index(at), _) => format!("{before}[{at}]"),
            (Step::Key(name), Notation::Keyed) => format!("{before}[{name}]"),
            (Step::Field(name) | Step::Key(name), Notation::Quoted) => join(&before, name),
            (Step::Field(name) | Step::Key(name), _) => dotted(&before, name),
        }
    }

    /// As errors of Go's decoder name it: fields only.
    pub fn fields(&self) -> String {
        let before = self.parent.map(Path::fields).unwrap_or_default();
        match self.step {
            Step::Field(name) => dotted(&before, name),
            _ => before,
        }
    }
}

fn dotted(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// A path with a field, as [`Notation::Quoted`] shows it.
pub fn join(path: &str, field: &str) -> String {
    let is_plain =
        !field.is_empty() && field.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if is_plain { dotted(path, field) } else { format!("{path}[{}]", Value::from(field)) }
}

/// A path that continues another one.
pub fn below(path: &str, rest: &str) -> String {
    let is_joined = path.is_empty() || rest.is_empty() || rest.starts_with('[');
    format!("{path}{}{rest}", if is_joined { "" } else { "." })
}
