//! What an expression or a template reads, found without evaluating it.

use crate::diag::Location;

/// All that is read.
#[derive(Debug, Clone, Default)]
pub struct Reads {
    /// The paths, in the order of the text, those of partials after them. The lets they read appear as
    /// `let.<name>`.
    pub paths: Vec<ReadPath>,
    /// Where it calls for a value that is made once and kept: `password(...)`, `tls_self_signed(...)`.
    pub generates: Vec<Location>,
}

/// One path that is read: the value there, with all that is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPath {
    /// The variable.
    pub root: String,
    /// The steps from it.
    pub segments: Vec<Segment>,
    /// Where.
    pub location: Location,
    /// Whether a missing path is fine there: within `default`, a test such as `is defined`, or a
    /// condition.
    pub guarded: bool,
    /// Whether only its state is asked: `is ready`, `is current`, `is known`, `is defined`.
    pub flag: bool,
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Segment {
    /// A field.
    Key(String),
    /// An item of a list, or of a map with whole numbers as keys.
    Index(i64),
    /// Some or all: computed, or looped over.
    Any,
}

impl std::fmt::Display for ReadPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.root)?;
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Key(key) => write!(f, ".{key}"),
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Any => f.write_str("[*]"),
        })
    }
}
