//! `operetta manager`: the manager in a cluster.

mod elf;
mod image;
mod install;
mod manifests;
mod objects;
mod oci;
mod sbom;
mod status;
mod uninstall;
mod values;

use std::process::ExitCode;

use clap::Subcommand;

/// Install the manager in a cluster, show its state, and remove it
///
/// In a cluster the manager runs as a Deployment of two replicas in a namespace of its own. It has rights to its own objects
/// only; packages act with the rights of their accounts (`operetta rbac`).
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  operetta manager install --image registry.example.org/operetta:0.1.0
  operetta manager install --dry-run -o yaml > operetta.yaml
  operetta manager status
  operetta manager uninstall
  operetta manager image --output image

Exit codes: 0 success; 1 refused, no API server, or (status) no manager leads; 2 wrong usage; 4 --timeout is over."
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Install(install::Args),
    Uninstall(uninstall::Args),
    Status(status::Args),
    Image(image::Args),
    Manifests(manifests::Args),
}

pub(super) async fn run(args: &Args) -> ExitCode {
    match &args.command {
        Command::Install(args) => install::run(args).await,
        Command::Uninstall(args) => uninstall::run(args).await,
        Command::Status(args) => status::run(args).await,
        Command::Image(args) => image::run(args),
        Command::Manifests(args) => manifests::run(args),
    }
}
