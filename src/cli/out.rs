//! Writes to the terminal, a pipe or a file. A reader may close a pipe early (`| head`); this is not a failure, and no
//! panic as with `println!`.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tracing::{error, info, warn};

use crate::diag::{self, Diagnostic};
use crate::printable;

/// Whether standard error is a JSON log: then nothing else is written to it.
static JSON: AtomicBool = AtomicBool::new(false);

/// The exit code if a file cannot be read, or standard output cannot be written.
pub(super) const UNUSABLE: u8 = 2;

/// Writes further messages to the JSON log on standard error.
pub(super) fn log_as_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Prints a line on standard error.
pub(super) fn note(text: impl Display) {
    let text = text.to_string();
    let text = printable::lines(&text);
    if !JSON.load(Ordering::Relaxed) {
        return message(&format!("{text}\n"));
    }
    match text.split_once(": ") {
        Some(("error", text)) => error!("{text}"),
        Some(("warning", text)) => warn!("{text}"),
        _ => info!("{text}"),
    }
}

/// Prints diagnostics of packages on standard error.
pub(super) fn report(diagnostics: &[Diagnostic]) {
    if !JSON.load(Ordering::Relaxed) {
        return message(&diag::render(diagnostics, colors()));
    }
    for diagnostic in diagnostics {
        let Diagnostic { code, message, location, help, .. } = diagnostic;
        let (at, help) = (location.as_ref().map(tracing::field::display), help.as_deref());
        if diagnostic.is_error() {
            error!(code, at, help, "{message}");
        } else {
            warn!(code, at, help, "{message}");
        }
    }
}

/// Prints text on standard error. Errors are ignored, because they could not be reported.
pub(super) fn message(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(printable::inert(text).as_bytes());
    let _ = stderr.flush();
}

/// Prints a line on standard output. Returns false if the reader has closed it.
pub(super) fn line(text: impl Display) -> bool {
    self::text(&format!("{text}\n"))
}

/// Prints lines on standard output. Returns false if the reader has closed it.
pub(super) fn text(text: &str) -> bool {
    written(&printable::inert(text)).is_ok()
}

/// Prints the whole output of a command and returns its exit code, or another one if it cannot be written.
pub(super) fn all(text: &str, code: ExitCode) -> ExitCode {
    commands(&printable::inert(text), code)
}

/// Does the same with text that consists of commands to a runner of CI.
pub(super) fn commands(text: &str, code: ExitCode) -> ExitCode {
    match written(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            note(format!("error: standard output cannot be written: {}", reason(&error)));
            ExitCode::from(UNUSABLE)
        }
        _ => code,
    }
}

fn written(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// The text in one line, without terminal control sequences: a message may come from anywhere.
pub(super) fn printable(text: &str) -> String {
    printable::sentence(text).into_owned()
}

/// A path in one line.
pub(super) fn path(path: &Path) -> String {
    printable::line(&path.display().to_string()).into_owned()
}

/// A value as a document. Unsafe characters of its strings are escaped.
pub(super) fn json(value: &Value) -> String {
    format!("{}\n", printable::json(&format!("{value:#}")))
}

/// The error of a file, without the operating system's error number.
pub(super) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Whether standard error has colours: on a terminal, unless `NO_COLOR` or `TERM` disable them.
pub(super) fn colors() -> bool {
    console::colors_enabled_stderr()
}

/// Whether the terminal can only print consecutive lines.
pub(super) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_sequences_are_escaped() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb c");
    }
}
