//! The reads of an expression or a template, found without evaluating it.

use crate::diag::Location;

/// All reads of an expression or a template.
#[derive(Debug, Clone, Default)]
pub struct Reads {
    /// The paths, in the order of the text, followed by those of partials. The lets that are read appear as
    /// `let.<name>`.
    pub paths: Vec<ReadPath>,
    /// The calls of functions that generate: `password(...)`, `tls_ca(...)` and their like.
    pub generates: Vec<Location>,
}

/// One path that is read. The value at the path is read with everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPath {
    /// The variable.
    pub root: String,
    /// The steps after it.
    pub segments: Vec<Segment>,
    /// The location of the read.
    pub location: Location,
    /// Whether the path may be missing: it is read within `default`, a test such as `is defined`, or a
    /// condition.
    pub guarded: bool,
    /// Whether only the state of the value is tested: `is ready`, `is current`, `is known`, `is defined`.
    pub flag: bool,
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Segment {
    /// A field.
    Key(String),
    /// An item of a list, or of a map with integer keys.
    Index(i64),
    /// Some or all items: the index is computed, or the list is iterated.
    Any,
}

impl Segment {
    /// The name of the field, if the step is a field.
    pub fn as_key(&self) -> Option<&str> {
        match self {
            Self::Key(key) => Some(key),
            Self::Index(_) | Self::Any => None,
        }
    }
}

impl std::fmt::Display for ReadPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.root)?;
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Key(key) => f.write_str(&access(key)),
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Any => f.write_str("[*]"),
        })
    }
}

/// How an expression reads the field of that name: `.name`, or `['a-name']`.
pub fn access(name: &str) -> String {
    let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_word && !name.starts_with(|c: char| c.is_ascii_digit()) {
        format!(".{name}")
    } else {
        format!("['{}']", name.replace('\\', "\\\\").replace('\'', "\\'"))
    }
}
