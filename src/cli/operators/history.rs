//! `operetta operators NAME --history`.

use serde_json::Value;

use crate::age::age;
use crate::cli::show::{Cell, Severity, Table};

/// The revisions that an `Operator` has named, the newest first, as a table.
pub(super) fn table(operator: &Value, no_headers: bool) -> String {
    let now = crate::clock::now();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let table = Table::new()
        .column("AGE", |entry: &Value| Cell::plain(age(now, entry["startedAt"].as_str())))
        .column("REVISION", |entry| Cell::plain(text(entry, "revision")))
        .column("VERSION", |entry| Cell::plain(text(entry, "version")))
        .column("FROM", |entry| Cell::plain(text(entry, "fromVersion")))
        .column("BY", |entry| {
            Cell::plain(match (text(entry, "manager"), text(entry, "user")) {
                (manager, user) if user.is_empty() => manager,
                (manager, user) => format!("{user} ({manager})"),
            })
        })
        .column("RESULT", |entry| {
            let severity = match entry["result"].as_str() {
                Some("Completed") => Severity::Good,
                Some("Stalled") => Severity::Bad,
                Some("InProgress") => Severity::Busy,
                _ => Severity::Dim,
            };
            Cell::new(text(entry, "result"), severity)
        })
        .column("MESSAGE", |entry| Cell::plain(text(entry, "message")));
    table.text(operator["status"]["history"].as_array().into_iter().flatten(), !no_headers)
}
