//! `operetta operators NAME --history`.

use serde_json::Value;

use crate::cli::columns::{Cell, Columns, Severity, age};
use crate::cli::out::printable;

/// The revisions that an `Operator` has named, the newest first, as a table.
pub(super) fn table(operator: &Value, no_headers: bool) -> String {
    let mut lines: Vec<Vec<Cell>> = Vec::new();
    if !no_headers {
        let header = ["AGE", "REVISION", "VERSION", "FROM", "BY", "RESULT", "MESSAGE"];
        lines.push(header.into_iter().map(Cell::plain).collect());
    }
    let now = crate::clock::now();
    let entries = operator["status"]["history"].as_array().into_iter().flatten();
    lines.extend(entries.map(|entry| {
        let text = |field: &str| printable(entry[field].as_str().unwrap_or_default());
        let by = match (text("manager"), text("user")) {
            (manager, user) if user.is_empty() => manager,
            (manager, user) => format!("{user} ({manager})"),
        };
        let severity = match entry["result"].as_str() {
            Some("Completed") => Severity::Good,
            Some("Stalled") => Severity::Bad,
            Some("InProgress") => Severity::Busy,
            _ => Severity::Dim,
        };
        vec![
            Cell::plain(age(now, entry["startedAt"].as_str())),
            Cell::plain(text("revision")),
            Cell::plain(text("version")),
            Cell::plain(text("fromVersion")),
            Cell::plain(by),
            Cell::new(text("result"), severity),
            Cell::plain(text("message")),
        ]
    }));
    let columns = Columns::fit(lines.iter().map(Vec::as_slice), console::colors_enabled());
    lines.iter().map(|line| columns.line(line) + "\n").collect()
}
