//! Tables in the format of kubectl. No I/O.

use console::{StyledObject, measure_text_width, style};

use super::Terminal;
use super::tree::below;
use crate::printable::{self, is_unsafe};

/// Spaces between two columns.
const GAP: usize = 3;

/// The severity of a text; a colour on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::cli) enum Severity {
    #[default]
    Plain,
    Good,
    Busy,
    Bad,
    Dim,
}

impl Severity {
    /// The text in the colour of the severity.
    pub(in crate::cli) fn style(self, text: &str) -> StyledObject<&str> {
        match self {
            Self::Plain => style(text),
            Self::Good => style(text).green(),
            Self::Busy => style(text).yellow(),
            Self::Bad => style(text).red(),
            Self::Dim => style(text).dim(),
        }
    }
}

/// One field of a line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::cli) struct Cell {
    pub text: String,
    pub severity: Severity,
}

impl Cell {
    /// Text from anywhere: unsafe characters are escaped.
    pub(in crate::cli) fn new(text: impl Into<String>, severity: Severity) -> Self {
        let text = text.into();
        let text = if text.contains(is_unsafe) { printable::sentence(&text).into_owned() } else { text };
        Self { text, severity }
    }

    /// Text that may be empty, such as a message in the last column.
    pub(in crate::cli) fn text(text: impl Into<String>) -> Self {
        Self::new(text, Severity::Plain)
    }

    /// An empty text becomes `<none>`, so that a line has as many words as columns.
    pub(in crate::cli) fn plain(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::text(if text.is_empty() { "<none>".into() } else { text })
    }
}

/// The fields of one line.
pub(in crate::cli) type Line = Vec<Cell>;

/// A column: its name, and its cell in the line of a row.
type Column<'a, R> = (&'static str, Box<dyn Fn(&R) -> Cell + 'a>);

/// The columns of a table with one line for each row.
pub(in crate::cli) struct Table<'a, R>(Vec<Column<'a, R>>);

impl<'a, R> Table<'a, R> {
    pub(in crate::cli) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a column.
    pub(in crate::cli) fn column(self, name: &'static str, cell: impl Fn(&R) -> Cell + 'a) -> Self {
        self.column_if(true, name, cell)
    }

    /// Adds a column if it is wanted.
    pub(in crate::cli) fn column_if(
        mut self,
        is_wanted: bool,
        name: &'static str,
        cell: impl Fn(&R) -> Cell + 'a,
    ) -> Self {
        if is_wanted {
            self.0.push((name, Box::new(cell)));
        }
        self
    }

    /// The names of the columns.
    pub(in crate::cli) fn header(&self) -> Line {
        self.0.iter().map(|(name, _)| Cell::plain(*name)).collect()
    }

    pub(in crate::cli) fn line(&self, row: &R) -> Line {
        self.0.iter().map(|(_, cell)| cell(row)).collect()
    }

    /// The lines, below the header if there is one.
    pub(in crate::cli) fn lines<'r>(
        &self,
        rows: impl IntoIterator<Item = &'r R>,
        has_header: bool,
    ) -> Vec<Line>
    where
        R: 'r,
    {
        has_header
            .then(|| self.header())
            .into_iter()
            .chain(rows.into_iter().map(|row| self.line(row)))
            .collect()
    }

    /// The text for standard output.
    pub(in crate::cli) fn text<'r>(&self, rows: impl IntoIterator<Item = &'r R>, has_header: bool) -> String
    where
        R: 'r,
    {
        let lines = self.lines(rows, has_header);
        let columns = Columns::fit(&lines, console::colors_enabled());
        lines.iter().map(|line| columns.line(line) + "\n").collect()
    }
}

/// The widths of columns. Later lines do not change them.
pub(in crate::cli) struct Columns {
    widths: Vec<usize>,
    colours: bool,
}

impl Columns {
    /// Columns that fit these lines.
    pub(in crate::cli) fn fit<'l>(lines: impl IntoIterator<Item = &'l Line>, colours: bool) -> Self {
        let mut widths = Vec::new();
        for line in lines {
            widths.resize(widths.len().max(line.len()), 0);
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(measure_text_width(&cell.text));
            }
        }
        Self { widths, colours }
    }

    /// One line, without the line break.
    pub(in crate::cli) fn line(&self, cells: &[Cell]) -> String {
        let mut line = String::new();
        for (index, cell) in cells.iter().enumerate() {
            line.push_str(&cell.severity.style(&cell.text).force_styling(self.colours).to_string());
            if index + 1 < cells.len() {
                let width = self.widths.get(index).copied().unwrap_or_default();
                let pad = (width + GAP).saturating_sub(measure_text_width(&cell.text)).max(1);
                line.extend(std::iter::repeat_n(' ', pad));
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// The text of lines with messages in their last column, `message`. They are wrapped between words to the width of the
/// terminal. If it is too narrow for the other columns, the terminal wraps whole lines: nothing is cut off.
pub(in crate::cli) fn with_messages(lines: &[Line], message: usize, terminal: Terminal) -> String {
    let columns = Columns::fit(lines, terminal.colours);
    let start: usize = columns.widths.iter().take(message).map(|width| width + GAP).sum();
    let room = terminal.width.filter(|width| start < *width).map_or(usize::MAX, |width| width - start);
    let mut shown = String::new();
    let mut show = |line: &Line| shown.push_str(&(columns.line(line) + "\n"));
    for line in lines {
        let mut line = line.clone();
        let text = line.get_mut(message).map(|cell| std::mem::take(&mut cell.text)).unwrap_or_default();
        let mut parts = wrapped(&text, room).into_iter();
        if let (Some(cell), Some(part)) = (line.get_mut(message), parts.next()) {
            cell.text = part;
        }
        show(&line);
        for part in parts {
            let mut more = vec![Cell::default(); message];
            more[0].text = below(&line[0].text);
            more.push(Cell::text(part));
            show(&more);
        }
    }
    shown
}

/// A text in lines of at most that width, broken between words. A longer word has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if measure_text_width(line) + 1 + measure_text_width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let table = Table::new()
            .column("NAME", |row: &[&str; 2]| Cell::plain(row[0]))
            .column("READY", |row| Cell::new(row[1], Severity::Good))
            .column_if(false, "REASON", |_| Cell::plain("x"))
            .column("AGE", |_| Cell::plain(""));
        let lines = table.lines(&[["a-long-name", "True"]], true);
        let columns = Columns::fit(&lines, false);
        let shown: Vec<String> = lines.iter().map(|line| columns.line(line)).collect();
        assert_eq!(shown, ["NAME          READY   AGE", "a-long-name   True    <none>"]);
        assert_eq!(Cell::plain("a\u{1b}[2J\u{202e}b").text, "a\\u{1b}[2J\\u{202e}b");
        // A later, longer cell moves the next cell and keeps one space.
        let late = [Cell::plain("a-much-longer-name"), Cell::plain("x")];
        assert_eq!(columns.line(&late), "a-much-longer-name x");
        let coloured = Columns { colours: true, ..columns };
        let line = coloured.line(&lines[1]);
        assert!(line.contains("\u{1b}[32mTrue\u{1b}[0m    <none>"), "{line:?}");
    }
}
