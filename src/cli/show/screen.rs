//! Lines on a terminal that are drawn over the previous ones.

use std::io::{self, Write as _};

use console::{Term, measure_text_width};

/// The lines that are drawn.
#[derive(Default)]
pub(in crate::cli) struct Screen {
    widths: Vec<usize>,
}

impl Screen {
    /// The lines and columns that can be drawn: the cursor is below the last line, and a line that fills the last column might
    /// wrap.
    pub(in crate::cli) fn size() -> (usize, usize) {
        let (height, width) = Term::stdout().size();
        (usize::from(height).max(5) - 1, usize::from(width).max(20) - 1)
    }

    /// Draws lines in place of the previous ones. Each is written over an earlier one, and all at once, so that nothing
    /// flickers.
    pub(in crate::cli) fn draw(&mut self, lines: &[impl AsRef<str>]) -> io::Result<()> {
        let mut frame = format!("\x1b[?2026h{}", self.up());
        for line in lines {
            frame.push_str(line.as_ref());
            frame.push_str("\x1b[K\r\n");
        }
        frame.push_str("\x1b[J\x1b[?2026l");
        self.widths = lines.iter().map(|line| measure_text_width(line.as_ref())).collect();
        write(&frame)
    }

    /// Draws the last lines of a text, as many as fit: nothing can be drawn over a line that has left the terminal.
    pub(in crate::cli) fn draw_end(&mut self, text: &str) -> io::Result<()> {
        let (height, width) = Self::size();
        let lines: Vec<&str> = text.lines().collect();
        let mut taken = 0;
        let fits = |line: &&&str| {
            taken += rows(measure_text_width(line), width + 1);
            taken <= height
        };
        let shown = lines.iter().rev().take_while(fits).count();
        self.draw(&lines[lines.len() - shown..])
    }

    /// Removes the lines.
    pub(in crate::cli) fn clear(&mut self) {
        if !self.widths.is_empty() {
            let _ = write(&format!("{}\x1b[J", self.up()));
            self.widths.clear();
        }
    }

    /// Leaves the lines as they are: later output is below them.
    pub(in crate::cli) fn leave(&mut self) {
        self.widths.clear();
    }

    /// Moves the cursor up to the first line.
    fn up(&self) -> String {
        up(&self.widths, usize::from(Term::stdout().size().1))
    }
}

/// If the terminal has become narrower, it has wrapped the longer lines.
fn up(widths: &[usize], columns: usize) -> String {
    let height: usize = widths.iter().map(|width| rows(*width, columns)).sum();
    if height == 0 { "\r".to_owned() } else { format!("\r\x1b[{height}A") }
}

/// How many rows of the terminal a line takes.
fn rows(width: usize, columns: usize) -> usize {
    width.div_ceil(columns.max(1)).max(1)
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_are_counted() {
        for (widths, columns, expected) in [
            (&[][..], 80, "\r"),
            (&[10, 0, 80], 80, "\r\x1b[3A"),
            (&[10, 0, 81], 80, "\r\x1b[4A"),
            (&[79, 79], 40, "\r\x1b[4A"),
        ] {
            assert_eq!(up(widths, columns), expected, "{widths:?} {columns}");
        }
    }
}
