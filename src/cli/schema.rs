//! `operetta schema`: the JSON Schema of package files, for editors.

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::package;

/// Print the JSON Schema of operator.yaml
///
/// Editors complete and check operator.yaml with it. With the YAML language server, put this line
/// at the top of the file:
///
///   # yaml-language-server: $schema=../../schemas/operator.schema.json
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  operetta schema > schemas/operator.schema.json")]
pub(super) struct Args {}

/// Prints the schema. Exit code 0, or 1 if standard output cannot be written.
pub(super) fn run(_: &Args) -> ExitCode {
    match io::stdout().write_all(package::schema::operator_text().as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
