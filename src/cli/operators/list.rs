//! `operetta operators`.

use std::process::ExitCode;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{End, all, connect, find, history, name_of};
use crate::cli::columns::{Cell, Columns, Severity, age};
use crate::cli::command::{self, Output};
use crate::cli::connect::ClusterOptions;
use crate::cli::out::{self, printable};
use crate::operators::{Standing, standing};

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

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,

    /// Omit the header
    #[arg(long)]
    no_headers: bool,

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
        return Ok(out::all(&history::table(one, args.no_headers), ExitCode::SUCCESS));
    }
    let list = || match (&args.name, operators.as_slice()) {
        (Some(_), [one]) => one.clone(),
        _ => command::list(&operators),
    };
    let text = match args.output {
        Some(output @ (Output::Json | Output::Yaml)) => {
            Output::document(Some(output), &list()).unwrap_or_default()
        }
        Some(Output::Name) => {
            operators.iter().flat_map(|one| ["operator.operetta.dev/", name_of(one), "\n"]).collect()
        }
        None | Some(Output::Wide) if operators.is_empty() => {
            out::note("No packages are installed");
            String::new()
        }
        None | Some(Output::Wide) => table(&operators, args.output.is_some(), args.no_headers),
    };
    Ok(out::all(&text, ExitCode::SUCCESS))
}

fn table(operators: &[Value], wide: bool, no_headers: bool) -> String {
    let mut header = vec!["NAME", "VERSION", "READY", "REASON", "INSTANCES", "AGE"];
    if wide {
        header.extend(["ACTIVE", "TARGET"]);
    }
    header.push("MESSAGE");
    let mut lines: Vec<Vec<Cell>> = Vec::new();
    if !no_headers {
        lines.push(header.into_iter().map(Cell::plain).collect());
    }
    let now = crate::clock::now();
    lines.extend(operators.iter().map(|operator| cells(operator, wide, now)));
    let columns = Columns::fit(lines.iter().map(Vec::as_slice), console::colors_enabled());
    lines.iter().map(|line| columns.line(line) + "\n").collect()
}

fn cells(operator: &Value, wide: bool, now: Timestamp) -> Vec<Cell> {
    let status = &operator["status"];
    let text = |value: &Value| printable(value.as_str().unwrap_or_default());
    let found = standing(operator);
    let (ready, severity, message) = match &found.standing {
        Standing::Active(note) if note.is_empty() => ("True", Severity::Good, ""),
        Standing::Active(note) => ("True", Severity::Busy, note.as_str()),
        Standing::Unseen => ("Unknown", Severity::Busy, "no manager has seen the newest spec"),
        Standing::Progressing(message) => ("False", Severity::Busy, message.as_str()),
        Standing::Paused(message) => ("False", Severity::Dim, message.as_str()),
        Standing::Stalled(_, message) => ("False", Severity::Bad, message.as_str()),
    };
    let is_seen = found.standing != Standing::Unseen;
    let reason = if is_seen { found.reason.as_str() } else { "NotObserved" };
    let mut cells = vec![
        Cell::plain(printable(name_of(operator))),
        Cell::plain(found.active.as_ref().map(|_| text(&status["version"])).unwrap_or_default()),
        Cell::new(ready, severity),
        Cell::new(printable(reason), severity),
        Cell::plain(status["instances"].as_u64().map(|count| count.to_string()).unwrap_or_default()),
        Cell::plain(age(now, operator["metadata"]["creationTimestamp"].as_str())),
    ];
    if wide {
        cells.push(Cell::plain(found.active.as_deref().map(printable).unwrap_or_default()));
        cells.push(Cell::plain(text(&operator["spec"]["revision"])));
    }
    cells.push(Cell::new(printable(message), Severity::Plain));
    cells
}
