//! `operetta plan`: the plans of instances, and their runs. One file per group of commands.

mod answer;
mod draw;
mod follow;
mod history;
mod list;
mod logs;
mod params;
mod request;
mod shared;
mod status;
mod target;

use std::process::ExitCode;

use clap::Subcommand;

use super::command::end;

/// Run plans, and watch, answer and cancel their runs
///
/// A plan is a named procedure of a package, such as a backup or an upgrade in a certain order. A run is one execution
/// of a plan for one instance. Every run is an object of the kind `PlanRun`.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  operetta plan list etcdcluster/prod
  operetta plan run etcdcluster/prod backup --param target=s3://backups --wait
  operetta plan status etcdcluster/prod
  operetta plan approve etcdcluster/prod
  operetta plan retry etcdcluster/prod --wait --timeout 10m

RUN is the name of a PlanRun, such as prod-3. KIND/NAME is an instance and stands for the run of it that is meant: the \
active one, or the last one.

Exit codes of run --wait, retry --wait and wait: 0 the run has succeeded; 1 it has failed, or is not found, or the API \
server refuses; 2 wrong usage; 3 it was cancelled or superseded; 4 --timeout is over, and the run continues; 5 the run does \
not go on before a person acts, because its instance is paused, for example.
Exit codes of the others: 0 success, 1 not found, refused or no API server, 2 wrong usage."
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(request::RunArgs),
    List(list::Args),
    Status(status::Args),
    History(history::Args),
    Cancel(answer::CancelArgs),
    Retry(request::RetryArgs),
    Approve(answer::ApproveArgs),
    Wait(status::WaitArgs),
    Logs(logs::Args),
}

pub(super) async fn run(args: &Args) -> ExitCode {
    end(match &args.command {
        Command::Run(args) => request::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Status(args) => status::status(args).await,
        Command::History(args) => history::run(args).await,
        Command::Cancel(args) => answer::cancel(args).await,
        Command::Retry(args) => request::retry(args).await,
        Command::Approve(args) => answer::approve(args).await,
        Command::Wait(args) => status::wait(args).await,
        Command::Logs(args) => logs::run(args).await,
    })
}
