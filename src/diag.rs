//! What Operetta says about a mistake in a file: one [`Diagnostic`] a mistake, with file, line,
//! column, excerpt and what to do.
//!
//! Pure code returns `(value, Vec<Diagnostic>)` or `Result<_, Diagnostic>`; only the command line and
//! the log decide how to show them.

use std::fmt;
use std::sync::Arc;

/// A text with the name a person knows it by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// The path as shown to people, for instance `operators/etcd/operator.yaml`.
    pub name: String,
    /// The whole text.
    pub text: String,
}

impl Source {
    /// A shared source of that name and text.
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

/// A place in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub source: Arc<Source>,
    /// Where in it.
    pub span: Span,
}

impl Location {
    /// That range of that source.
    pub fn new(source: &Arc<Source>, span: Span) -> Self {
        Self { source: Arc::clone(source), span }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column) = self.source.line_col(self.span.start);
        write!(f, "{}:{line}:{column}", self.source.name)
    }
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; the package still works.
    Warning,
    /// The package, or this instance of it, cannot work.
    Error,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// A stable name of the kind of mistake, `area::what`, for instance `package::unknown-key`.
    pub code: &'static str,
    /// One sentence without a full stop.
    pub message: String,
    /// Where it is, if it is in a file.
    pub location: Option<Location>,
    /// Words beside the marked place.
    pub label: Option<String>,
    /// The path of the value, for instance `spec.resources[0].children[1].when`.
    pub path: Option<String>,
    /// What to do.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code,
            message: message.into(),
            location: None,
            label: None,
            path: None,
            help: None,
        }
    }

    /// A warning.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, message) }
    }

    /// Puts it at a place.
    #[must_use]
    pub fn at(mut self, source: &Arc<Source>, span: Span) -> Self {
        self.location = Some(Location::new(source, span));
        self
    }

    /// Puts it at a place.
    #[must_use]
    pub fn located(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Words beside the marked place.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The path of the value at fault.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// One line: `file:line:column: message (path); help`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(path) = &self.path {
            write!(f, " ({path})")?;
        }
        if let Some(help) = &self.help {
            write!(f, "; {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

impl miette::Diagnostic for Diagnostic {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.code))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.severity {
            Severity::Warning => miette::Severity::Warning,
            Severity::Error => miette::Severity::Error,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.location.as_ref().map(|location| &*location.source as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let location = self.location.as_ref()?;
        let Span { start, end } = location.span;
        let label = self.label.clone().or_else(|| self.path.clone());
        Some(Box::new(std::iter::once(miette::LabeledSpan::new(label, start, end.saturating_sub(start)))))
    }
}

impl miette::SourceCode for Source {
    fn read_span<'a>(
        &'a self,
        span: &miette::SourceSpan,
        context_lines_before: usize,
        context_lines_after: usize,
    ) -> Result<Box<dyn miette::SpanContents<'a> + 'a>, miette::MietteError> {
        let inner = self.text.read_span(span, context_lines_before, context_lines_after)?;
        Ok(Box::new(miette::MietteSpanContents::new_named(
            self.name.clone(),
            inner.data(),
            *inner.span(),
            inner.line(),
            inner.column(),
            inner.line_count(),
        )))
    }
}

/// A diagnostic whose headline is its message alone: place, path and help stand below it.
#[derive(Debug)]
struct Headed<'a>(&'a Diagnostic);

impl fmt::Display for Headed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        // Without an excerpt nothing else would show them.
        match (&self.0.location, &self.0.path) {
            (None, Some(path)) => write!(f, " ({path})"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Headed<'_> {}

impl miette::Diagnostic for Headed<'_> {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.code()
    }

    fn severity(&self) -> Option<miette::Severity> {
        miette::Diagnostic::severity(self.0)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        miette::Diagnostic::help(self.0)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.0.source_code()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        self.0.labels()
    }
}

/// All of them as a person reads them in a terminal, with excerpts.
pub fn render(diagnostics: &[Diagnostic], color: bool) -> String {
    let theme =
        if color { miette::GraphicalTheme::unicode() } else { miette::GraphicalTheme::unicode_nocolor() };
    let handler = miette::GraphicalReportHandler::new_themed(theme).with_links(false);
    let mut out = String::new();
    for diagnostic in diagnostics {
        if handler.render_report(&mut out, &Headed(diagnostic)).is_err() {
            out.push_str(&diagnostic.to_string());
        }
        out.push('\n');
    }
    out
}

/// `, did you mean `x`?` for the candidate nearest to `word`, if one is near enough.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The distance costs the product of the lengths; nobody mistypes more than this.
    if word.len() > 100 {
        return None;
    }
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= 200)
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= 1.max(candidate.chars().count().min(word.chars().count()) / 3)
        })
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_names_file_line_and_column() {
        let source = Source::new("a.yaml", "x: 1\nyß: 2\n");
        let at = source.text.find('2').unwrap();
        let diagnostic =
            Diagnostic::error("t::t", "wrong").at(&source, Span::new(at, at + 1)).help("mend it");
        assert_eq!(diagnostic.to_string(), "a.yaml:2:5: wrong; mend it");
        let shown = render(&[diagnostic], false);
        assert!(shown.contains("a.yaml:2:5") || shown.contains("a.yaml:2:6"), "{shown}");
    }

    #[test]
    fn suggestions_are_near_or_absent() {
        assert_eq!(did_you_mean("chidren", ["children", "status"]), Some("children"));
        assert_eq!(did_you_mean("xyz", ["children", "status"]), None);
    }
}
