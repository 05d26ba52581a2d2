//! Texts, and positions in them.

use std::fmt;
use std::sync::Arc;

use crate::printable;

/// A text with the name under which people know it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// The path as shown to people, for instance `operators/etcd/operator.yaml`.
    pub name: String,
    /// The whole text.
    pub text: String,
}

impl Source {
    /// Creates a shared source.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), text: text.into() })
    }

    /// Line and column, both from 1, of a byte offset; columns count characters.
    pub fn line_col(&self, offset: usize) -> (usize, usize) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        (line, before[start..].chars().count() + 1)
    }
}

/// A range of bytes of a [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The range `start..end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }
}

/// A position in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub source: Arc<Source>,
    /// The range of bytes.
    pub span: Span,
}

impl Location {
    /// Creates a location from a source and a range of it.
    pub fn new(source: &Arc<Source>, span: Span) -> Self {
        Self { source: Arc::clone(source), span }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column) = self.source.line_col(self.span.start);
        write!(f, "{}:{line}:{column}", printable::line(&self.source.name))
    }
}
