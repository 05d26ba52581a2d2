//! `operetta schema`: the JSON Schemas of package files, for editors.

use std::process::ExitCode;

use clap::ValueEnum;

use super::out;
use crate::package::schema::SchemaOf;

/// Print the JSON Schema of a file of packages
///
/// Editors complete and check the file with it. With the YAML language server, put this line
/// at the top of the file:
///
///   # yaml-language-server: $schema=../../schemas/operator.schema.json
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta schema > schemas/operator.schema.json
  operetta schema test > schemas/test.schema.json

Exit codes: 0 success, 2 wrong usage, or the output cannot be written.")]
pub(super) struct Args {
    /// Which file
    #[arg(value_enum, default_value_t = File::Operator)]
    file: File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum File {
    /// operator.yaml
    Operator,
    /// tests/world.yaml
    World,
    /// The other files of tests/
    Test,
    /// tests/images/*.yaml
    Image,
}

/// Prints the schema.
pub(super) fn run(args: &Args) -> ExitCode {
    let file = match args.file {
        File::Operator => SchemaOf::Operator,
        File::World => SchemaOf::World,
        File::Test => SchemaOf::Test,
        File::Image => SchemaOf::Image,
    };
    out::all(&file.text(), ExitCode::SUCCESS)
}
