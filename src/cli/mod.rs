//! The command line: one file per command.

mod catalog;
mod command;
mod completion;
mod connect;
mod crd;
mod dev;
mod get;
mod housekeeping;
mod instances;
mod lint;
mod listen;
mod load;
mod logging;
mod man;
mod manager;
mod model;
mod operators;
mod out;
mod owned;
mod plan;
mod preview;
mod rbac;
mod registry;
mod render;
mod rights_review;
mod run;
mod schema;
mod serve;
mod session;
mod show;
mod signals;
mod spdx;
mod test;
mod tree;
mod view;
mod wait;
mod webhook;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use logging::Logging;

/// Kubernetes operators described in YAML
///
/// A package is a folder: operator.yaml, CRDs, templates. Operetta registers the CRDs and reconciles the children of
/// every instance with the templates. No code is written or compiled for it.
#[derive(Debug, Parser)]
#[command(
    name = "operetta",
    version,
    arg_required_else_help = true,
    after_help = "Try it; this needs no cluster:
  operetta dev operators/etcd --apply examples/etcd/example-etcd-cluster.yaml

Environment:
  KUBECONFIG           the cluster of all commands but dev (default: ~/.kube/config)
  OPERETTA_CATALOG     as --catalog of search and show
  OPERETTA_LOG         as --log
  OPERETTA_LOG_FORMAT  as --log-format
  NO_COLOR             no colours

Exit codes: 0 success, 1 something is wrong with what was given or found, 2 wrong usage; lint and render \
also end with 2 where a file cannot be read. plan and preview have more codes: see their --help."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    logging: Logging,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Dev(dev::Args),
    Install(operators::InstallArgs),
    Upgrade(operators::UpgradeArgs),
    Versions(operators::VersionsArgs),
    Outdated(operators::OutdatedArgs),
    Rollback(operators::RollbackArgs),
    Uninstall(operators::UninstallArgs),
    Operators(operators::ListArgs),
    Package(registry::PackageArgs),
    Push(registry::PushArgs),
    Pull(registry::PullArgs),
    Copy(registry::CopyArgs),
    Inspect(registry::InspectArgs),
    Sign(registry::SignArgs),
    Verify(registry::VerifyArgs),
    Trust(registry::TrustArgs),
    Deprecate(registry::DeprecateArgs),
    Catalog(registry::CatalogArgs),
    Search(registry::SearchArgs),
    Show(registry::ShowArgs),
    Login(registry::LoginArgs),
    Logout(registry::LogoutArgs),
    Get(get::Args),
    Tree(tree::Args),
    Plan(plan::Args),
    Preview(preview::Args),
    Lint(lint::Args),
    Test(test::Args),
    Crd(crd::Args),
    Rbac(rbac::Args),
    Manager(manager::Args),
    Render(render::Args),
    Schema(schema::Args),
    Completion(completion::Args),
    #[command(hide = true)]
    Man(man::Args),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = parse();
    match &cli.command {
        Command::Run(args) => {
            cli.logging.start("info", std::io::stderr);
            if cli.logging.is_json() {
                out::log_as_json();
            }
            block_on(run::run(args))
        }
        Command::Dev(args) => {
            let live = args.wants_live_view() && show::Terminal::is_live();
            let view = view::View::new(live);
            cli.logging.start("warn", view.writer());
            block_on(dev::run(args, &view))
        }
        Command::Install(args) => block_on(operators::install(args)),
        Command::Upgrade(args) => block_on(operators::upgrade(args)),
        Command::Versions(args) => block_on(operators::versions(args)),
        Command::Outdated(args) => block_on(operators::outdated(args)),
        Command::Rollback(args) => block_on(operators::rollback(args)),
        Command::Uninstall(args) => block_on(operators::uninstall(args)),
        Command::Operators(args) => block_on(operators::list(args)),
        Command::Package(args) => block_on(registry::package(args)),
        Command::Push(args) => block_on(registry::push(args)),
        Command::Pull(args) => block_on(registry::pull(args)),
        Command::Copy(args) => block_on(registry::copy(args)),
        Command::Inspect(args) => block_on(registry::inspect(args)),
        Command::Sign(args) => block_on(registry::sign(args)),
        Command::Verify(args) => block_on(registry::verify(args)),
        Command::Trust(args) => block_on(registry::trust(args)),
        Command::Deprecate(args) => block_on(registry::deprecate(args)),
        Command::Catalog(args) => block_on(registry::catalog(args)),
        Command::Search(args) => block_on(registry::search(args)),
        Command::Show(args) => block_on(registry::show(args)),
        Command::Login(args) => block_on(registry::login(args)),
        Command::Logout(args) => block_on(registry::logout(args)),
        Command::Get(args) => block_on(get::run(args)),
        Command::Tree(args) => block_on(tree::run(args)),
        Command::Plan(args) => block_on(plan::run(args)),
        Command::Preview(args) => block_on(preview::run(args)),
        Command::Lint(args) if args.cluster => block_on(lint::run_in_cluster(args)),
        Command::Lint(args) => lint::run(args),
        Command::Test(args) => {
            cli.logging.start("off", std::io::stderr);
            test::run(args)
        }
        Command::Crd(args) => crd::run(args),
        Command::Rbac(args) if args.cluster => block_on(rbac::run_in_cluster(args)),
        Command::Rbac(args) => rbac::run(args),
        Command::Render(args) => render::run(args),
        Command::Manager(args) => block_on(manager::run(args)),
        Command::Schema(args) => schema::run(args),
        Command::Completion(args) => completion::run(args, Cli::command()),
        Command::Man(args) => man::run(args, Cli::command()),
    }
}

/// The command line, with the name of the binary: kubectl runs `kubectl-operetta`.
fn parse() -> Cli {
    let mut command = Cli::command();
    let called = std::env::args_os().next().unwrap_or_default();
    if Path::new(&called).file_stem().is_some_and(|name| name == "kubectl-operetta") {
        command = command.bin_name("kubectl operetta");
    }
    let matches = command.get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn block_on(task: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(task);
            // A blocked thread of a library must not delay the end.
            runtime.shutdown_timeout(std::time::Duration::from_secs(2));
            code
        }
        Err(error) => {
            out::note(format!("error: no threads can be started: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    /// Lines of the source that are too long for a terminal would be broken twice.
    #[test]
    fn paragraphs_of_help_are_one_line() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for (line, next) in help.lines().zip(help.lines().skip(1)) {
                let goes_on =
                    !next.is_empty() && !next.starts_with([' ', '-']) && !next.starts_with("Exit codes");
                assert!(
                    line.starts_with(' ') || line.len() <= 75 || !goes_on,
                    "{}: {line}",
                    command.get_name()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&super::Cli::command());
    }
}
