//! Writing to the terminal, a pipe or a file. Whoever closes a pipe early (`| head`) does not want the rest:
//! that is no failure, and no panic as it is with `println!`.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{error, info, warn};

use crate::diag::{self, Diagnostic};
use crate::printable;

/// Whether standard error is a log in JSON: then nothing else goes there.
static JSON: AtomicBool = AtomicBool::new(false);

/// Exit code where a file cannot be read, or standard output not be written.
pub(super) const UNUSABLE: u8 = 2;

/// From now on what is told on standard error goes into the log, which is JSON.
pub(super) fn log_as_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// A line for people on standard error, where messages belong.
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

/// What is wrong with packages, for people on standard error.
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

/// Text for people on standard error as it is. There is nobody left to tell that it cannot be written.
pub(super) fn message(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

/// A line on standard output; whether somebody still reads it.
pub(super) fn line(text: impl Display) -> bool {
    self::text(&format!("{text}\n"))
}

/// Lines on standard output; whether somebody still reads them.
pub(super) fn text(text: &str) -> bool {
    written(text).is_ok()
}

/// The whole output of a command, and then its exit code; another one if it cannot be written.
pub(super) fn all(text: &str, code: ExitCode) -> ExitCode {
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

/// The text in one line, without what a terminal would take for a command: a message may come from anywhere.
pub(super) fn printable(text: &str) -> String {
    printable::sentence(text).into_owned()
}

/// Why a file cannot be read, without the system's number of the error.
pub(super) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Whether messages on standard error have colours: on a terminal, unless `NO_COLOR` or `TERM` speak against.
pub(super) fn colors() -> bool {
    console::colors_enabled_stderr()
}

/// Whether a terminal can do more than print line after line.
pub(super) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_a_command_to_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb c");
    }
}
