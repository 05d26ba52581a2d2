//! Columns and ages in the format of kubectl.

use console::{StyledObject, measure_text_width, style};
use k8s_openapi::jiff::Timestamp;

use crate::printable::{self, is_unsafe};

/// Spaces between two columns.
const GAP: usize = 3;

/// The severity of a text; a colour on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Severity {
    #[default]
    Plain,
    Good,
    Busy,
    Bad,
    Dim,
}

impl Severity {
    /// The text in the colour of the severity.
    pub(super) fn style(self, text: &str) -> StyledObject<&str> {
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
pub(super) struct Cell {
    pub text: String,
    pub severity: Severity,
}

impl Cell {
    /// Text from anywhere: unsafe characters are escaped.
    pub(super) fn new(text: impl Into<String>, severity: Severity) -> Self {
        let text = text.into();
        let text = if text.contains(is_unsafe) { printable::sentence(&text).into_owned() } else { text };
        Self { text, severity }
    }

    /// An empty text becomes `<none>`, so that a line has as many words as columns.
    pub(super) fn plain(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::new(if text.is_empty() { "<none>".into() } else { text }, Severity::Plain)
    }
}

/// The symbols before a name in a tree.
pub(super) struct Branches {
    pub tee: &'static str,
    pub elbow: &'static str,
    pub through: &'static str,
}

impl Branches {
    /// Box-drawing characters, or ASCII.
    pub(super) fn of(unicode: bool) -> &'static Self {
        const UNICODE: Branches = Branches { tee: "├─ ", elbow: "└─ ", through: "│  " };
        const ASCII: Branches = Branches { tee: "|- ", elbow: "`- ", through: "|  " };
        if unicode { &UNICODE } else { &ASCII }
    }
}

/// The widths of columns. Later lines do not change them.
pub(super) struct Columns {
    widths: Vec<usize>,
    colours: bool,
}

impl Columns {
    /// Columns that fit these lines.
    pub(super) fn fit<'a>(lines: impl IntoIterator<Item = &'a [Cell]>, colours: bool) -> Self {
        let mut widths = Vec::new();
        for line in lines {
            widths.resize(widths.len().max(line.len()), 0);
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(measure_text_width(&cell.text));
            }
        }
        Self { widths, colours }
    }

    /// The position where a column starts.
    pub(super) fn start(&self, column: usize) -> usize {
        self.widths.iter().take(column).map(|width| width + GAP).sum()
    }

    /// One line, without the line break.
    pub(super) fn line(&self, cells: &[Cell]) -> String {
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

/// A text in lines of at most that width, broken between words. A longer word has a line of its own.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
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

/// The time since an RFC 3339 time, in kubectl's notation: `45s`, `3m20s`, `5h12m`, `4d`.
pub(super) fn age(now: Timestamp, since: Option<&str>) -> String {
    let Some(since) = since.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    let seconds = now.as_second() - since.as_second();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: char, small: i64, rest: char| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{rest}"),
    };
    match seconds {
        // The clocks of two machines may differ by a second.
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let lines = [
            [Cell::plain("NAME"), Cell::plain("READY"), Cell::plain("AGE")],
            [Cell::plain("a-long-name"), Cell::new("True", Severity::Good), Cell::plain("")],
        ];
        let columns = Columns::fit(lines.iter().map(|line| &line[..]), false);
        assert_eq!([0, 1, 2].map(|column| columns.start(column)), [0, 14, 22]);
        let shown = lines.each_ref().map(|line| columns.line(line));
        assert_eq!(shown, ["NAME          READY   AGE", "a-long-name   True    <none>"]);
        assert_eq!(Cell::plain("a\u{1b}[2J\u{202e}b").text, "a\\u{1b}[2J\\u{202e}b");
        // A later, longer cell moves the next cell and keeps one space.
        let late = [Cell::plain("a-much-longer-name"), Cell::plain("x")];
        assert_eq!(columns.line(&late), "a-much-longer-name x");
        let coloured = Columns { colours: true, ..columns };
        let line = coloured.line(&lines[1]);
        assert!(line.contains("\u{1b}[32mTrue\u{1b}[0m    <none>"), "{line:?}");
    }

    #[test]
    fn ages_are_formatted_as_in_kubectl() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let before = |seconds: i64| {
            let then = Timestamp::from_second(now.as_second() - seconds).unwrap();
            age(now, Some(&then.to_string()))
        };
        let (hour, day) = (3600, 86_400);
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (600, "10m"),
            (3 * hour - 1, "179m"),
            (3 * hour, "3h"),
            (5 * hour + 720, "5h12m"),
            (8 * hour, "8h"),
            (47 * hour, "47h"),
            (2 * day, "2d"),
            (3 * day + 5 * hour, "3d5h"),
            (8 * day, "8d"),
            (729 * day, "729d"),
            (730 * day, "2y"),
            (735 * day, "2y5d"),
            (9 * 365 * day, "9y"),
        ] {
            assert_eq!(before(seconds), expected, "{seconds}");
        }
        assert_eq!(age(now, None), "<unknown>");
        assert_eq!(age(now, Some("yesterday")), "<unknown>");
    }
}
