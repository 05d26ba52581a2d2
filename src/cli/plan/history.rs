//! `operetta plan history`: the runs, one line each.

use std::process::ExitCode;

use k8s_openapi::jiff::Timestamp;

use super::draw::{sentence, severity, took};
use super::status::name;
use super::target::{Run, Session, Target, text};
use super::{Failure, Listing, Output};
use crate::cli::columns::{Cell, Columns, Severity, age};
use crate::cli::command;
use crate::cli::out::{self, printable};

/// Show runs, the newest first
///
/// Shows the runs of an instance, or of all instances of a namespace: those that have ended, the active one and those
/// that wait.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan history keystore/orders
  operetta plan history -A -o wide
  operetta plan history keystore/orders -o json | jq -r '.items[] | select(.status.phase == \"Failed\") | .metadata.name'

Old runs are pruned: the PlanRuns that Operetta or this command has created are kept for 30 days, and at most 30 of an \
instance.

Exit codes: 0 success, also if there are none; 1 not found or no API server; 2 wrong usage.")]
pub(super) struct Args {
    #[command(flatten)]
    listing: Listing,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let listing = &args.listing;
    let target = listing.instance.as_deref().map(Target::instance).transpose()?;
    let session = Session::open(&listing.common).await?;
    let mut runs = match target {
        Some((kind, name)) => {
            let instance = session.instance(kind, name).await?;
            session.runs(&instance).await?
        }
        None => session.all_runs((!listing.all_namespaces).then(|| session.namespace())).await?,
    };
    runs.reverse();
    let shape = Shape {
        namespaces: listing.all_namespaces,
        instances: target.is_none(),
        wide: listing.output == Some(Output::Wide),
    };
    let text = match listing.output {
        Some(Output::Name) => runs.iter().map(|run| name(&run.run.name)).collect(),
        Some(output @ (Output::Json | Output::Yaml)) => {
            let list = command::list(runs.iter().map(|run| &run.object));
            Output::document(Some(output), &list).unwrap_or_default()
        }
        None | Some(Output::Wide) if runs.is_empty() => {
            out::note("No runs found");
            String::new()
        }
        None | Some(Output::Wide) => {
            let now = crate::clock::now();
            let mut lines: Vec<Vec<Cell>> = if listing.no_headers { Vec::new() } else { vec![header(shape)] };
            lines.extend(runs.iter().map(|run| cells(run, shape, now)));
            let columns = Columns::fit(lines.iter().map(Vec::as_slice), console::colors_enabled());
            lines.iter().map(|line| columns.line(line) + "\n").collect()
        }
    };
    Ok(out::all(&text, ExitCode::SUCCESS))
}

/// The columns of the table.
#[derive(Debug, Clone, Copy)]
struct Shape {
    namespaces: bool,
    instances: bool,
    wide: bool,
}

fn header(shape: Shape) -> Vec<Cell> {
    let mut names = Vec::new();
    names.extend(shape.namespaces.then_some("NAMESPACE"));
    names.extend(shape.instances.then_some("INSTANCE"));
    names.extend(["RUN", "PLAN", "STATUS", "CAUSE", "REASON", "TOOK", "AGE"]);
    if shape.wide {
        names.extend(["REQUESTED-BY", "RETRY-OF", "MESSAGE"]);
    }
    names.into_iter().map(Cell::plain).collect()
}

fn cells(run: &Run, shape: Shape, now: Timestamp) -> Vec<Cell> {
    let run = &run.run;
    let status = run.status.clone().unwrap_or_default();
    let mut cells = Vec::new();
    if shape.namespaces {
        cells.push(Cell::plain(run.namespace.as_deref().unwrap_or_default()));
    }
    if shape.instances {
        cells.push(Cell::plain(text(&run.spec.of)));
    }
    cells.extend([
        Cell::plain(printable(&run.name)),
        Cell::plain(printable(&run.plans().join(","))),
        Cell::new(format!("{:?}", run.phase()), severity(run.phase())),
        Cell::plain(run.cause().as_str()),
        Cell::plain(printable(&status.reason)),
        Cell::plain(took(run, now)),
        Cell::plain(age(now, Some(&run.created))),
    ]);
    if shape.wide {
        cells.extend([
            Cell::plain(printable(run.spec.requested_by.as_deref().unwrap_or_default())),
            Cell::plain(printable(run.spec.retry_of.as_deref().unwrap_or_default())),
            Cell::new(sentence(run), Severity::Plain),
        ]);
    }
    cells
}
