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
mod man;
mod manager;
mod model;
mod operators;
mod out;
mod owned;
mod plan;
mod preview;
mod rbac;
mod render;
mod rights_review;
mod run;
mod schema;
mod serve;
mod session;
mod show;
mod tree;
mod view;
mod wait;
mod webhook;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::package::Package;

/// Kubernetes operators described in YAML
///
/// A package is a folder: operator.yaml, CRDs, templates. Operetta registers the CRDs and reconciles the children of
/// every instance with the templates. No code is written or compiled for it.
#[derive(Debug, Parser)]
#[command(
    name = "operetta",
    version,
    arg_required_else_help = true,
    after_help = "Try it; this needs no cluster, and Go the first time:
  operetta dev operators/etcd --apply examples/etcd/example-etcd-cluster.yaml

Environment:
  KUBECONFIG           the cluster of all commands but dev --cluster local (default: ~/.kube/config)
  OPERETTA_LOG         as --log
  OPERETTA_LOG_FORMAT  as --log-format
  NO_COLOR             no colours

Exit codes: 0 success, 1 something is wrong with what was given or found, 2 wrong usage; lint and render \
also end with 2 where a file cannot be read. plan and preview have more codes: see their --help."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Format of log lines
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t = LogFormat::Text,
        env = "OPERETTA_LOG_FORMAT",
        hide_env = true,
        help_heading = "Logging (run and dev)"
    )]
    log_format: LogFormat,

    /// Log level: error, warn, info, debug, or a filter such as operetta=debug [default: info; dev: warn]
    #[arg(
        long,
        global = true,
        env = "OPERETTA_LOG",
        hide_env = true,
        value_name = "FILTER",
        help_heading = "Logging (run and dev)"
    )]
    log: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Dev(dev::Args),
    Install(operators::InstallArgs),
    Upgrade(operators::UpgradeArgs),
    Rollback(operators::RollbackArgs),
    Uninstall(operators::UninstallArgs),
    Operators(operators::ListArgs),
    Get(get::Args),
    Tree(tree::Args),
    Plan(plan::Args),
    Preview(preview::Args),
    Lint(lint::Args),
    Crd(crd::Args),
    Rbac(rbac::Args),
    Manager(manager::Args),
    Render(render::Args),
    Schema(schema::Args),
    Completion(completion::Args),
    #[command(hide = true)]
    Man(man::Args),
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = parse();
    match &cli.command {
        Command::Run(args) => {
            log(&cli, "info", std::io::stderr);
            if cli.log_format == LogFormat::Json {
                out::log_as_json();
            }
            block_on(run::run(args))
        }
        Command::Dev(args) => {
            let live = args.wants_live_view() && show::Terminal::is_live();
            let view = view::View::new(live);
            log(&cli, "warn", view.writer());
            block_on(dev::run(args, &view))
        }
        Command::Install(args) => block_on(operators::install(args)),
        Command::Upgrade(args) => block_on(operators::upgrade(args)),
        Command::Rollback(args) => block_on(operators::rollback(args)),
        Command::Uninstall(args) => block_on(operators::uninstall(args)),
        Command::Operators(args) => block_on(operators::list(args)),
        Command::Get(args) => block_on(get::run(args)),
        Command::Tree(args) => block_on(tree::run(args)),
        Command::Plan(args) => block_on(plan::run(args)),
        Command::Preview(args) => block_on(preview::run(args)),
        Command::Lint(args) if args.cluster => block_on(lint::run_in_cluster(args)),
        Command::Lint(args) => lint::run(args),
        Command::Crd(args) => crd::run(args),
        Command::Rbac(args) if args.cluster => block_on(rbac::run_in_cluster(args)),
        Command::Rbac(args) => rbac::run(args),
        Command::Render(args) => render::run(args),
        Command::Manager(args) => block_on(manager::run(args)),
        Command::Schema(args) => schema::run(args),
        Command::Completion(args) => completion::run(args),
        Command::Man(args) => man::run(args),
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

fn log<W>(cli: &Cli, default: &str, writer: W)
where
    W: for<'a> tracing_subscriber::fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    use tracing_subscriber::EnvFilter;
    let filter = cli.log.as_deref().unwrap_or(default);
    // A bare level applies to Operetta; libraries log warnings. Failed calls are logged with their meaning, so the
    // client's own log of them is off.
    let filter = if filter.contains(['=', ',']) {
        filter.to_owned()
    } else {
        format!("warn,kube_client=off,kube_runtime=error,operetta={filter}")
    };
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        out::note(format!("warning: --log {filter}: {error}; logging at info"));
        EnvFilter::new("warn,kube_client=off,operetta=info")
    });
    // A closed log is no reason to panic.
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
    match cli.log_format {
        LogFormat::Text => builder.with_target(false).with_ansi(out::colors()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// Loads packages; prints the errors of invalid ones and the warnings of the others. Returns the valid packages, and
/// the folders of the invalid ones.
fn load_all(paths: &[PathBuf]) -> (Vec<Arc<Package>>, Vec<String>) {
    let mut packages: Vec<(Arc<Package>, &Path)> = Vec::new();
    let mut broken = Vec::new();
    for path in paths {
        match crate::package::load(path) {
            Ok((package, warnings)) => {
                out::report(&warnings);
                match packages.iter().find(|(other, _)| other.name == package.name) {
                    Some((_, first)) => {
                        out::note(format!(
                            "error: {} and {} are both named {}; the second is ignored\n  help: give each \
                             package once, or change metadata.name in one of them",
                            first.display(),
                            path.display(),
                            package.name,
                        ));
                        broken.push(path.display().to_string());
                    }
                    None => packages.push((Arc::new(package), path)),
                }
            }
            Err(errors) => {
                out::report(&errors);
                out::note(format!("error: the package {} cannot be loaded", path.display()));
                broken.push(path.display().to_string());
            }
        }
    }
    (packages.into_iter().map(|(package, _)| package).collect(), broken)
}

/// Like [`load_all`]; nothing if a package is invalid.
fn load(paths: &[PathBuf]) -> Option<Vec<Arc<Package>>> {
    let (packages, broken) = load_all(paths);
    broken.is_empty().then_some(packages)
}

/// A stream of SIGINT and SIGTERM. While it exists, neither ends the process.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Returns with the next signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Returns with the next SIGINT or SIGTERM.
async fn shutdown() {
    match Signals::new() {
        Ok(mut signals) => signals.next().await,
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
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
