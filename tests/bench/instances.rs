//! The benchmark: how fast N instances of five light children become Ready, compared with a bare client that
//! applies the same 5N objects with as many concurrent requests to the same API server.
//!
//! `cargo bench --bench instances -- --help` lists the options, and `docs/performance.md` says what is
//! measured. The benchmark fails if the work is not done, and not if it is slow.

#[path = "../support/mod.rs"]
mod support;

mod accounts;
mod bare;
mod count;
mod measure;
mod plans;
mod poison;
mod report;
mod rounds;
mod scale;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::support::ControlPlane;
use clap::Parser;
use operetta::local::Options;
use operetta::manager::Config;

/// Errors end the benchmark with a message.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// N instances of five light children to Ready, beside a bare client that applies the same objects
#[derive(Debug, Parser)]
#[command(name = "instances")]
struct Args {
    /// How many instances
    #[arg(long, default_value_t = 1000, value_name = "N")]
    instances: usize,

    /// How often each is measured, in turn; medians are reported
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,

    /// Instances of the round that counts requests; 0 leaves it out
    #[arg(long, default_value_t = 100, value_name = "N")]
    counted: usize,

    /// Instead: one manager with N / 100, N / 10 and N instances, at rest, restarted and meddled with
    #[arg(long, value_name = "N")]
    scale: Option<usize>,

    /// Instead: the instances beside N that cannot be rendered and N that are refused, and without them, in turn
    #[arg(long, value_name = "N")]
    poisoned: Option<usize>,

    /// Instead: N runs of a plan of five steps side by side, and single runs, beside a bare client that sends the same writes
    #[arg(long, value_name = "N")]
    plans: Option<usize>,

    /// Instead: the manager as it is and with accounts of packages (`operetta run --impersonate`), in turn
    #[arg(long)]
    impersonate: bool,

    /// Requests in flight of the bare client [default: as many as the manager's]
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,

    /// Writes everything that was measured to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// The package whose instances are created.
fn package_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/packages/light"))
}

/// A package whose instances never become Ready.
fn poison_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/packages/poison"))
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !args.bench {
        // `cargo test --all-targets` runs this as well, and should not take minutes.
        println!("this is a benchmark: cargo bench --bench instances -- --help");
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no threads can be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<()> {
    let (package, _) =
        operetta::package::load(package_folder()).map_err(|e| operetta::diag::render(&e, false))?;
    let package = Arc::new(package);
    let concurrency = args.concurrency.unwrap_or(Config::default().calls);

    if let Some(most) = args.scale {
        let plane = start(Vec::new()).await?;
        let scale = scale::run(&plane, &package, most, concurrency).await;
        plane.stop().await;
        let scale = scale?;
        println!("\n{scale}");
        return write(args.json.as_deref(), &(serde_json::to_string_pretty(&scale)? + "\n"));
    }

    if let Some(count) = args.plans {
        let plans = plans::run(count, args.rounds, concurrency).await?;
        println!("\n{plans}");
        return write(args.json.as_deref(), &(serde_json::to_string_pretty(&plans)? + "\n"));
    }

    if let Some(each) = args.poisoned {
        let plane = start(vec!["--audit-log-path=".into()]).await?;
        let poisoned = poison::run(&plane, &package, (args.instances, each), args.rounds, concurrency).await;
        plane.stop().await;
        let poisoned = poisoned?;
        println!("\n{poisoned}");
        return write(args.json.as_deref(), &(serde_json::to_string_pretty(&poisoned)? + "\n"));
    }

    if args.impersonate {
        let plane = start(vec!["--audit-log-path=".into()]).await?;
        let accounts = accounts::run(&plane, &package, args.instances, args.rounds, concurrency).await;
        plane.stop().await;
        let accounts = accounts?;
        println!("\n{accounts}");
        return write(args.json.as_deref(), &(serde_json::to_string_pretty(&accounts)? + "\n"));
    }

    let counted = if args.counted == 0 {
        None
    } else {
        let plane = start(Vec::new()).await?;
        let counted = count::count(&plane, &package, args.counted, concurrency).await;
        plane.stop().await;
        Some(counted?)
    };

    // The audit log costs the server a few percent of its time, so the timed rounds have none.
    let plane = start(vec!["--audit-log-path=".into()]).await?;
    let rounds = rounds::run(&plane, &package, args.instances, args.rounds, concurrency).await;
    plane.stop().await;

    let report = report::Report::new(args.instances, concurrency, rounds?, counted);
    println!("\n{report}");
    write(args.json.as_deref(), &report.to_json()?)
}

fn write(path: Option<&Path>, text: &str) -> Result<()> {
    if let Some(path) = path {
        std::fs::write(path, text).map_err(|e| format!("{} cannot be written: {e}", path.display()))?;
        eprintln!("written to {}", path.display());
    }
    Ok(())
}

/// Starts a control plane without nodes, which light children do not need.
async fn start(apiserver_flags: Vec<String>) -> Result<ControlPlane> {
    let options = Options { nodes: 0, apiserver_flags, ..support::options() };
    Ok(ControlPlane::start(options).await?)
}
