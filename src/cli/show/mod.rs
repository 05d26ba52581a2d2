//! How commands show things: one table, one tree and one model of the terminal for all of them.

mod screen;
mod table;
mod terminal;
mod tree;

pub(super) use screen::Screen;
pub(super) use table::{Cell, Columns, Line, Severity, Table, with_messages};
pub(super) use terminal::Terminal;
pub(super) use tree::Branch;

/// Some names, and how many more: `a, b and 3 more`.
pub(super) fn named(names: &[impl AsRef<str>], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(most) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// `1 instance`, `2 instances`.
pub(super) fn plural(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}
