//! `operetta operators`.

use std::process::ExitCode;

use serde_json::Value;

use super::history;
use super::shared::{End, all, connect, find};
use crate::age::age;
use crate::cli::command::{self, Shown};
use crate::cli::connect::ClusterOptions;
use crate::cli::model::name_of;
use crate::cli::out;
use crate::cli::show::{Cell, Severity, Table};
use crate::operators::{self, RevisionStatus, Standing, standing};

/// List the packages that are installed in a cluster
///
/// READY says whether the revision that the Operator names is active and all instances have it that are to have it. REASON and
/// MESSAGE say why not, or what else is wrong. `-o wide` adds the revisions. `--history` shows the last ten revisions that the
/// Operator has named, who has named them, and what became of each.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta operators
  operetta operators etcd -o wide
  operetta operators etcd --history
  operetta operators -o json | jq '.items[].status.activeRevision'

Exit codes: 0 success, 1 not found, refused or no API server, 2 wrong usage.")]
pub(in crate::cli) struct Args {
    /// Only this package
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Show which revisions the Operator has named
    #[arg(long, requires = "name", conflicts_with = "output")]
    history: bool,

    #[command(flatten)]
    shown: Shown,

    #[command(flatten)]
    place: ClusterOptions,
}

pub(super) async fn run(args: &Args) -> End {
    let server = connect(&args.place).await?;
    let mut operators = match &args.name {
        Some(name) => vec![find(&server, name).await?],
        None => all(&server).await?,
    };
    operators.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    if let (true, [one]) = (args.history, operators.as_slice()) {
        return Ok(out::all(&history::table(one, args.shown.no_headers), ExitCode::SUCCESS));
    }
    let value = || match (&args.name, operators.as_slice()) {
        (Some(_), [one]) => one.clone(),
        _ => command::list(&operators),
    };
    let rows: Vec<(&Value, RevisionStatus)> = operators.iter().map(|one| (one, standing(one))).collect();
    let name =
        |(operator, _): &(&Value, RevisionStatus)| format!("operator.operetta.dev/{}", name_of(operator));
    let table = table(args.shown.is_wide());
    let text = args.shown.text(&rows, "No packages are installed", &table, name, value);
    Ok(out::all(&text, ExitCode::SUCCESS))
}

fn table<'o>(wide: bool) -> Table<'static, (&'o Value, RevisionStatus)> {
    let now = crate::clock::now();
    let text = |value: &Value| Cell::plain(value.as_str().unwrap_or_default());
    Table::new()
        .column("NAME", |(operator, _): &(&'o Value, RevisionStatus)| Cell::plain(name_of(operator)))
        .column("VERSION", move |(operator, found)| match found.active {
            Some(_) => text(&operator["status"]["version"]),
            None => Cell::plain(""),
        })
        .column("READY", |(_, found)| {
            let (ready, severity, _) = ready(&found.standing);
            Cell::new(ready, severity)
        })
        .column("REASON", |(_, found)| {
            let is_seen = found.standing != Standing::Unseen;
            let reason = if is_seen { found.reason.as_str() } else { "NotObserved" };
            Cell::new(reason, ready(&found.standing).1)
        })
        .column("INSTANCES", |(operator, _)| {
            let count = operator["status"]["instances"].as_u64();
            Cell::plain(count.map(|count| count.to_string()).unwrap_or_default())
        })
        .column("AGE", move |(operator, _)| {
            Cell::plain(age(now, operator["metadata"]["creationTimestamp"].as_str()))
        })
        .column_if(wide, "ACTIVE", |(_, found)| Cell::plain(found.active.as_deref().unwrap_or_default()))
        .column_if(wide, "TARGET", move |(operator, _)| Cell::plain(operators::named(operator)))
        .column("MESSAGE", |(_, found)| Cell::text(ready(&found.standing).2))
}

/// The condition Ready, its colour and its message.
fn ready(standing: &Standing) -> (&'static str, Severity, &str) {
    match standing {
        Standing::Active(note) if note.is_empty() => ("True", Severity::Good, ""),
        Standing::Active(note) => ("True", Severity::Busy, note),
        Standing::Unseen => ("Unknown", Severity::Busy, "no manager has seen the newest spec"),
        Standing::Progressing(message) => ("False", Severity::Busy, message),
        Standing::Paused(message) => ("False", Severity::Dim, message),
        Standing::Stalled(_, message) => ("False", Severity::Bad, message),
    }
}
