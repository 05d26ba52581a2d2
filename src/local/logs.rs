//! Reads the ends of logs, for messages.

use std::path::Path;

/// The number of bytes at the end of a log that are read.
const LOG_BYTES: usize = 64 << 10;
const LOG_LINES: usize = 8;
const LOG_COLUMNS: usize = 400;

/// The end of a log, as text.
pub(super) fn read_end(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_BYTES)..]).into_owned()
}

/// The last lines of a text, each of limited length.
pub(super) fn last_lines(text: &str) -> String {
    let mut lines: Vec<String> = text
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(LOG_LINES)
        .map(|line| line.chars().take(LOG_COLUMNS).collect())
        .collect();
    lines.reverse();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_logs_are_cut() {
        let text: String = (0..20).map(|i| format!("line {i}")).collect::<Vec<_>>().join("\n\n");
        assert_eq!(last_lines(&text).lines().count(), LOG_LINES);
        assert!(last_lines(&text).ends_with("line 19"));
        assert_eq!(last_lines(&"x".repeat(1000)).len(), LOG_COLUMNS);
        assert_eq!(last_lines(""), "");
    }
}
