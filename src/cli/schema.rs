//! `operetta schema`: the JSON Schema of package files, for editors.

use std::process::ExitCode;

use super::out;
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

/// Prints the schema.
pub(super) fn run(_: &Args) -> ExitCode {
    out::all(&package::schema::operator_text(), ExitCode::SUCCESS)
}
