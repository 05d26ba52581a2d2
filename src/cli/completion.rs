//! `operetta completion`: a completion script for the shell.

use std::process::ExitCode;

use super::out;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  source <(operetta completion bash)
  operetta completion zsh > \"${fpath[1]}/_operetta\"
  operetta completion fish > ~/.config/fish/completions/operetta.fish

Exit codes: 0 success, 2 wrong usage, or the output cannot be written.")]
pub(super) struct Args {
    /// Which shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// `command`: the whole command line.
pub(super) fn run(args: &Args, mut command: clap::Command) -> ExitCode {
    // The generator panics if its output cannot be written, so it writes to memory first.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "operetta", &mut script);
    out::all(&String::from_utf8_lossy(&script), ExitCode::SUCCESS)
}
