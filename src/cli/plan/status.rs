//! `operetta plan status` and `wait`.

use std::process::ExitCode;
use std::time::Duration;

use super::draw;
use super::follow::{self, StopAt, follow};
use super::target::{Run, Target, Which};
use crate::cli::command::{Failure, Output, duration};
use crate::cli::out;
use crate::cli::session::{Common, Session};
use crate::cli::show::Terminal;
use crate::plan::Phase;

/// Show a run: its steps with times, attempts and reasons
///
/// The tree has the steps that the run has reached. Without a plan's name, KIND/NAME stands for the active run of the
/// instance, or for the last one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan status etcdcluster/prod
  operetta plan status prod-3 -n db --watch
  operetta plan status prod-3 -o json | jq -r '.status.steps[] | select(.phase == \"Failed\") | .path'

STATUS of a step is Pending, Running, Asking (it waits for `operetta plan approve`), Succeeded, Skipped or Failed.
-o json and yaml print the PlanRun.

Exit codes: 0 success, whatever the run's phase; 1 not found or no API server; 2 wrong usage.")]
pub(super) struct Args {
    /// The name of a run, or KIND/NAME of an instance
    #[arg(value_name = "RUN|KIND/NAME")]
    run: String,

    /// Show the progress until the run ends
    #[arg(short, long, conflicts_with = "output")]
    watch: bool,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,

    #[command(flatten)]
    common: Common,
}

pub(super) async fn status(args: &Args) -> Result<ExitCode, Failure> {
    let target = Target::parse(&args.run)?;
    let session = Session::open(&args.common).await?;
    let run = session.find(target, Which::Current).await?;
    if args.watch {
        let (namespace, name) = (run.run.namespace.clone().unwrap_or_default(), run.run.name.clone());
        follow(&session, (&namespace, &name), StopAt::default(), false).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(text) = document(&run, args.output) {
        return Ok(out::all(&text, ExitCode::SUCCESS));
    }
    let instance = follow::instance(&session, &run).await;
    let now = crate::clock::now();
    let text = format!(
        "{}\n\n{}{}",
        draw::title(&run.run),
        draw::tree(&run, instance.as_ref(), Terminal::stdout(), now),
        draw::remarks(&run.run),
    );
    Ok(out::all(&text, ExitCode::SUCCESS))
}

/// A run in an output format other than text.
pub(super) fn document(run: &Run, output: Option<Output>) -> Option<String> {
    if output == Some(Output::Name) {
        return Some(name(&run.run.name) + "\n");
    }
    let mut object = run.object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Output::document(output, &object)
}

/// The name of a run for kubectl.
pub(super) fn name(run: &str) -> String {
    format!("planrun.operetta.dev/{}", out::printable(run))
}

/// Wait for the end of a run, or for a phase
///
/// Shows the progress: on a terminal the tree of steps, else one line per change.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan wait etcdcluster/prod --timeout 10m
  operetta plan wait prod-3 --for Running

Exit codes: 0 the run has succeeded, or has the phase of --for; 1 it has failed, or ends in another phase than --for, or \
is not found; 2 wrong usage; 3 it was cancelled or superseded; 4 --timeout is over; 5 it does not go on before a person acts.")]
pub(super) struct WaitArgs {
    /// The name of a run, or KIND/NAME of an instance: its active run, else its last one
    #[arg(value_name = "RUN|KIND/NAME")]
    run: String,

    /// The phase to wait for: Pending, Running, Interrupted, Succeeded, Failed, Cancelled, Superseded [default: any end]
    #[arg(long = "for", value_name = "PHASE", value_parser = phase)]
    phase: Option<Phase>,

    /// How long to wait, such as 10m [default: without limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// Show no progress
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    common: Common,
}

pub(super) async fn wait(args: &WaitArgs) -> Result<ExitCode, Failure> {
    let target = Target::parse(&args.run)?;
    let session = Session::open(&args.common).await?;
    let run = session.find(target, Which::Current).await?.run;
    let namespace = run.namespace.unwrap_or_default();
    let until = StopAt { phase: args.phase, timeout: args.timeout };
    Ok(follow(&session, (&namespace, &run.name), until, args.quiet).await?.1)
}

fn phase(text: &str) -> Result<Phase, String> {
    use Phase::{Cancelled, Failed, Interrupted, Pending, Running, Succeeded, Superseded};
    let all = [Pending, Running, Interrupted, Succeeded, Failed, Cancelled, Superseded];
    let found = all.into_iter().find(|phase| format!("{phase:?}").eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("{} is not a phase of a run", out::printable(text)))
}
