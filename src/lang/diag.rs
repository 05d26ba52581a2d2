//! Mistakes in files as they are reported: one [`Diagnostic`] for each mistake, with file, line, column,
//! excerpt and a hint about what to do.
//!
//! Pure code returns `(value, Vec<Diagnostic>)` or `Result<_, Diagnostic>`; only the command line and the log
//! decide how to show them.

mod excerpt;
mod source;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use excerpt::Excerpt;
pub use source::{Location, Source, Span};

use crate::printable;

/// The severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A fact about a valid package.
    Note,
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
    /// The position, if the mistake is in a file.
    pub location: Option<Location>,
    /// The text beside the marked range.
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

    /// A note.
    pub fn note(code: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Note, ..Self::error(code, message) }
    }

    /// Sets the position.
    #[must_use]
    pub fn at(mut self, source: &Arc<Source>, span: Span) -> Self {
        self.location = Some(Location::new(source, span));
        self
    }

    /// Sets the position.
    #[must_use]
    pub fn located(mut self, location: Location) -> Self {
        self.location = Some(location);
        self
    }

    /// Sets the text beside the marked range.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the path of the value at fault.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Sets the hint about what to do.
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

/// Writes one line: `file:line:column: message (path); help`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        f.write_str(&printable::line(&self.message))?;
        if let Some(path) = &self.path {
            write!(f, " ({})", printable::line(path))?;
        }
        if let Some(help) = &self.help {
            write!(f, "; {}", printable::line(help))?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// A diagnostic as a report shows it: the headline is the message alone; position, path and help are below
/// it.
#[derive(Debug)]
struct Report<'a> {
    diagnostic: &'a Diagnostic,
    excerpt: Option<Excerpt>,
}

impl<'a> Report<'a> {
    fn of(diagnostic: &'a Diagnostic) -> Self {
        Self { diagnostic, excerpt: diagnostic.location.as_ref().map(Excerpt::of) }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable::lines(&self.diagnostic.message))?;
        // Without an excerpt, the path is shown nowhere else.
        match (&self.excerpt, &self.diagnostic.path) {
            (None, Some(path)) => write!(f, " ({})", printable::line(path)),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Report<'_> {}

impl miette::Diagnostic for Report<'_> {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.diagnostic.code))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.diagnostic.severity {
            Severity::Note => miette::Severity::Advice,
            Severity::Warning => miette::Severity::Warning,
            Severity::Error => miette::Severity::Error,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = self.diagnostic.help.as_deref()?;
        Some(Box::new(printable::lines(help)))
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.excerpt.as_ref().map(|excerpt| excerpt as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let (start, end) = self.excerpt.as_ref()?.mark();
        let label = self.diagnostic.label.as_ref().or(self.diagnostic.path.as_ref());
        let label = label.map(|label| printable::line(label).into_owned());
        Some(Box::new(std::iter::once(miette::LabeledSpan::new(label, start, end - start))))
    }
}

/// Renders diagnostics with excerpts, as a person reads them in a terminal.
pub fn render(diagnostics: &[Diagnostic], color: bool) -> String {
    let theme =
        if color { miette::GraphicalTheme::unicode() } else { miette::GraphicalTheme::unicode_nocolor() };
    let handler = miette::GraphicalReportHandler::new_themed(theme).with_links(false);
    let mut out = String::new();
    for diagnostic in diagnostics {
        // If a report cannot be drawn, or the library panics, the mistake and the other reports must still be
        // shown.
        let drawn = catch_unwind(AssertUnwindSafe(|| {
            let mut drawn = String::new();
            handler.render_report(&mut drawn, &Report::of(diagnostic)).is_ok().then_some(drawn)
        }));
        match drawn {
            Ok(Some(drawn)) => out.push_str(&drawn),
            _ => out.push_str(&diagnostic.to_string()),
        }
        out.push('\n');
    }
    out
}

/// The candidate nearest to `word`, if one is near enough to be suggested.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The cost is the product of the lengths, and words longer than this are not typing mistakes.
    if word.len() > 100 {
        return None;
    }
    let length = word.chars().count();
    let near = candidates.into_iter().filter(|candidate| candidate.len() <= 200).filter_map(|candidate| {
        let other = candidate.chars().count();
        let most = 1.max(length.min(other) / 3);
        // The distance is at least the difference of the lengths, and costs more.
        let is_possible = length.abs_diff(other) <= most;
        let distance = is_possible.then(|| strsim::damerau_levenshtein(word, candidate))?;
        (distance <= most).then_some((distance, candidate))
    });
    near.min().map(|(_, candidate)| candidate)
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

    /// A report without its frame: the lines of the excerpt and of the mark below them.
    fn shown(text: &str, start: usize, end: usize) -> String {
        let source = Source::new("a.yaml", text);
        render(&[Diagnostic::error("t::t", "wrong").at(&source, Span::new(start, end)).label("here")], false)
    }

    #[test]
    fn long_line_is_cut_around_the_mark() {
        let text = format!("first\n{}MARK{}\nlast", "x".repeat(70_000), "y".repeat(70_000));
        let at = text.find("MARK").unwrap();
        let shown = shown(&text, at, at + 4);
        assert!(shown.contains("a.yaml:2:70001"), "{shown}");
        let line = shown.lines().find(|line| line.contains("MARK")).unwrap();
        assert!(line.contains("…x") && line.ends_with("y…") && line.chars().count() < 200, "{shown}");
        assert!(shown.contains("first") && shown.contains("last") && shown.contains("here"), "{shown}");
    }

    #[test]
    fn long_mark_is_cut_at_the_end_of_the_excerpt() {
        let text = format!("{}{}", "x".repeat(300), "y".repeat(100_000));
        let shown = shown(&text, 300, text.len());
        assert!(shown.contains("a.yaml:1:301") && shown.contains("here"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() < 200), "{shown}");
    }

    #[test]
    fn mark_over_many_lines_is_drawn_on_the_first() {
        let text = format!("a:\n{}", "  b: 1\n".repeat(5_000));
        let shown = shown(&text, 0, text.len());
        assert!(shown.lines().count() < 12 && shown.contains("a.yaml:1:1"), "{shown}");
    }

    #[test]
    fn mark_is_drawn_at_any_position_of_any_text() {
        let long = "ß".repeat(400);
        for text in [
            "",
            "\n",
            "\r\n\r\n",
            "a",
            "a\n",
            "\ta\u{1b}[31m\u{202e}b\n\nc",
            &long,
            &format!("{long}\n{long}\n"),
        ] {
            for start in (0..=text.len() + 1).step_by(7.min(text.len() + 1)) {
                for end in [start, start + 1, start + 350, text.len(), usize::MAX] {
                    let shown = shown(text, start, end);
                    assert!(shown.contains("a.yaml:"), "{text:?} {start} {end}: {shown}");
                    assert!(!shown.contains(['\u{1b}', '\u{202e}', '\r']), "{shown:?}");
                }
            }
        }
    }

    #[test]
    fn control_characters_are_never_printed() {
        let source = Source::new("a\u{1b}[2J.yaml", "x: 1\n");
        let diagnostic = Diagnostic::error("t::t", "wrong \u{202e}name\u{7}")
            .at(&source, Span::new(3, 4))
            .path("spec.\u{1b}x")
            .help("use \u{9b}0m");
        for text in [diagnostic.to_string(), render(std::slice::from_ref(&diagnostic), false)] {
            assert!(!text.chars().any(|c| printable::is_unsafe(c) && c != '\n'), "{text:?}");
            assert!(text.contains("wrong \\u{202e}name\\u{7}"), "{text:?}");
        }
    }

    #[test]
    fn only_similar_words_are_suggested() {
        assert_eq!(did_you_mean("chidren", ["children", "status"]), Some("children"));
        assert_eq!(did_you_mean("xyz", ["children", "status"]), None);
    }
}
