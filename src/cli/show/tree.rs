//! Trees, as lines of a table: the first cell of each line begins with its branches. No I/O.

use super::Terminal;
use super::table::Line;

/// A line of a tree, with what is below it.
pub(in crate::cli) struct Branch {
    pub line: Line,
    pub below: Vec<Branch>,
}

impl Branch {
    /// The lines of a root, and of all that is below it.
    pub(in crate::cli) fn lines(self, terminal: Terminal) -> Vec<Line> {
        let mut lines = vec![self.line];
        add(self.below, "", terminal, &mut lines);
        lines
    }
}

fn add(branches: Vec<Branch>, indent: &str, terminal: Terminal, lines: &mut Vec<Line>) {
    let [tee, elbow, through] =
        if terminal.unicode { ["├─ ", "└─ ", "│  "] } else { ["|- ", "`- ", "|  "] };
    let last = branches.len().saturating_sub(1);
    for (index, Branch { mut line, below }) in branches.into_iter().enumerate() {
        let (symbol, space) = if index == last { (elbow, "   ") } else { (tee, through) };
        if let Some(name) = line.first_mut() {
            name.text.insert_str(0, &format!("{indent}{symbol}"));
        }
        lines.push(line);
        add(below, &format!("{indent}{space}"), terminal, lines);
    }
}

/// The branches that go on below the line of a name.
pub(super) fn below(name: &str) -> String {
    let below = |c: char| match c {
        '│' | '├' => '│',
        '|' => '|',
        _ => ' ',
    };
    name.chars().map(below).collect()
}
