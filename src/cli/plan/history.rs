//! `operetta plan history`: the runs, one line each.

use std::process::ExitCode;

use super::draw::{phase, sentence, took};
use super::shared::Listing;
use super::status::name;
use super::target::{Run, Target, text as text_of};
use crate::age::age;
use crate::cli::command::Failure;
use crate::cli::command::list;
use crate::cli::out;
use crate::cli::session::Session;
use crate::cli::show::{Cell, Table};

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
    let now = crate::clock::now();
    let wide = listing.shown.is_wide();
    let text = |text: &Option<String>| Cell::plain(text.as_deref().unwrap_or_default());
    let table = Table::new()
        .column_if(listing.all_namespaces, "NAMESPACE", |Run { run, .. }: &Run| text(&run.namespace))
        .column_if(listing.instance.is_none(), "INSTANCE", |Run { run, .. }| {
            Cell::plain(text_of(&run.spec.of))
        })
        .column("RUN", |Run { run, .. }| Cell::plain(&run.name))
        .column("PLAN", |Run { run, .. }| Cell::plain(run.plans().join(",")))
        .column("STATUS", |Run { run, .. }| phase(run))
        .column("CAUSE", |Run { run, .. }| Cell::plain(run.cause().as_str()))
        .column("REASON", |Run { run, .. }| {
            Cell::plain(run.status.as_ref().map_or("", |status| &status.reason))
        })
        .column("TOOK", |Run { run, .. }| Cell::plain(took(run, now)))
        .column("AGE", |Run { run, .. }| Cell::plain(age(now, Some(&run.created))))
        .column_if(wide, "REQUESTED-BY", |Run { run, .. }| text(&run.spec.requested_by))
        .column_if(wide, "RETRY-OF", |Run { run, .. }| text(&run.spec.retry_of))
        .column_if(wide, "MESSAGE", |Run { run, .. }| Cell::text(sentence(run)));
    let value = || list(runs.iter().map(|run| &run.object));
    let text = listing.shown.text(&runs, "No runs found", &table, |run| name(&run.run.name), value);
    Ok(out::all(&text, ExitCode::SUCCESS))
}
