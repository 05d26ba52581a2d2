//! `operetta man`: man pages, for releases and for packagers.

use std::path::PathBuf;
use std::process::ExitCode;

use super::command::{self, Failure};

/// Write the man pages of all commands
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 success, 1 a page cannot be written, 2 wrong usage.")]
pub(super) struct Args {
    /// The folder of the pages
    folder: PathBuf,
}

/// `whole`: the whole command line.
pub(super) fn run(args: &Args, whole: clap::Command) -> ExitCode {
    let written =
        std::fs::create_dir_all(&args.folder).and_then(|()| clap_mangen::generate_to(whole, &args.folder));
    let failed = |error| Failure::from(format!("{}: {error}", args.folder.display()));
    command::end(written.map(|()| ExitCode::SUCCESS).map_err(failed))
}
