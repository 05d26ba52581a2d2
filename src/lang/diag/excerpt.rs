//! The lines of a file that a report shows around a mark.
//!
//! The library that draws reports accepts widths of at most 65,535 and prints every character unchanged.
//! Therefore it never gets the file, but this excerpt, whose lines are short and whose characters are safe.

use super::source::{Location, Source};
use crate::printable;

/// Number of lines shown before and after the mark.
const CONTEXT: usize = 1;
/// A mark that spans more lines than this is drawn on its first line only.
const MARKED_LINES: usize = 4;
/// The maximum number of characters shown of a line.
const WIDTH: usize = 160;
/// The number of characters shown before the mark in a longer line.
const BEFORE: usize = 60;
/// Replaces the part of a line that is not shown.
const CUT: char = '…';
/// Replaces a character that is not safe to show.
const REPLACED: char = '\u{fffd}';

/// An excerpt and the position of the mark in it.
#[derive(Debug)]
pub(super) struct Excerpt {
    name: String,
    text: String,
    /// The mark, in bytes of `text`.
    mark: (usize, usize),
    /// The number of the first line, from 0.
    first_line: usize,
    /// The column of the mark in the file, from 0.
    column: usize,
}

impl Excerpt {
    pub(super) fn of(location: &Location) -> Self {
        let source: &Source = &location.source;
        let text = source.text.as_str();
        let (line, column) = source.line_col(location.span.start);
        let start = floor(text, location.span.start);
        let mut end = floor(text, location.span.end).max(start);
        if text[start..end].matches('\n').count() >= MARKED_LINES {
            end = text[start..].find('\n').map_or(text.len(), |length| start + length);
        }
        let first = line_start(text, start);
        let from = (0..CONTEXT).fold(first, |from, _| line_start(text, from.saturating_sub(1)));
        let last = line_end(text, end);
        let to = (0..CONTEXT).fold(last, |to, _| line_end(text, (to + 1).min(text.len())));

        let mut excerpt = Self {
            name: printable::line(&source.name).into_owned(),
            text: String::new(),
            mark: (0, 0),
            first_line: line - 1 - text[from..first].matches('\n').count(),
            column: column - 1,
        };
        let mut offset = from;
        for line in text[from..to].split('\n') {
            excerpt.push(line, offset, (start, end));
            offset += line.len() + 1;
        }
        excerpt.text.pop();
        excerpt.mark.1 = excerpt.mark.1.clamp(excerpt.mark.0, excerpt.text.len());
        excerpt
    }

    pub(super) fn mark(&self) -> (usize, usize) {
        self.mark
    }

    /// Appends a line that begins at `offset` of the file. Sets start and end of the mark if the line
    /// contains them.
    fn push(&mut self, line: &str, offset: usize, (start, end): (usize, usize)) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let holds = |at: usize| (offset..=offset + line.len()).contains(&at);
        let is_long = line.chars().nth(WIDTH).is_some();
        let anchor = match () {
            () if holds(start) => start - offset,
            () if holds(end) => end - offset,
            () => 0,
        };
        let skipped = if is_long { line[..anchor].chars().count().saturating_sub(BEFORE) } else { 0 };
        if skipped > 0 {
            self.text.push(CUT);
        }
        for (index, c) in line.char_indices().skip(skipped).take(WIDTH) {
            self.note(offset + index, (start, end));
            self.text.push(if printable::is_unsafe(c) && c != '\t' { REPLACED } else { c });
        }
        let is_cut = is_long && line.chars().nth(skipped + WIDTH).is_some();
        if !is_cut {
            self.note(offset + line.len(), (start, end));
        } else if holds(end) && self.mark.1 <= self.mark.0 {
            self.mark.1 = self.text.len();
        }
        if is_cut {
            self.text.push(CUT);
        }
        self.text.push('\n');
    }

    /// Sets start or end of the mark if the next character of the excerpt is at that offset (`at`) of the
    /// file.
    fn note(&mut self, at: usize, (start, end): (usize, usize)) {
        if at == start {
            self.mark = (self.text.len(), self.text.len());
        }
        if at == end {
            self.mark.1 = self.text.len();
        }
    }
}

impl miette::SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        span: &miette::SourceSpan,
        lines_before: usize,
        lines_after: usize,
    ) -> Result<Box<dyn miette::SpanContents<'a> + 'a>, miette::MietteError> {
        let inner = self.text.read_span(span, lines_before, lines_after)?;
        // The head of a report names the position of the mark in the file.
        let is_mark = lines_before == 0 && span.offset() == self.mark.0;
        Ok(Box::new(miette::MietteSpanContents::new_named(
            self.name.clone(),
            inner.data(),
            *inner.span(),
            self.first_line + inner.line(),
            if is_mark { self.column } else { inner.column() },
            inner.line_count(),
        )))
    }
}

/// The nearest boundary of a character at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// Where the line of an offset begins.
fn line_start(text: &str, offset: usize) -> usize {
    text[..offset].rfind('\n').map_or(0, |newline| newline + 1)
}

/// Where the line of an offset ends, without its line feed.
fn line_end(text: &str, offset: usize) -> usize {
    text[offset..].find('\n').map_or(text.len(), |length| offset + length)
}
