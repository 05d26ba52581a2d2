//! `operetta operators`.

use std::process::ExitCode;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{End, all, connect, find, name_of};
use crate::cli::columns::{Cell, Columns, Severity, age};
use crate::cli::command::{self, Output};
use crate::cli::connect::ClusterOptions;
use crate::cli::out::{self, printable};
use crate::operators::{Standing, standing};

/// List the packages that are installed in a cluster
///
/// READY says whether the revision that the Operator names is active, and REASON why not. `-o wide` adds the revisions and
/// the whole message.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta operators
  operetta operators etcd -o wide
  operetta operators -o json | jq '.items[].status.activeRevision'

Exit codes: 0 success, 1 not found, refused or no API server, 2 wrong usage.")]
pub(in crate::cli) struct Args {
    /// Only this package
    #[arg(value_name = "NAME")]
    name: Option<String>,

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
        header.extend(["ACTIVE", "TARGET", "MESSAGE"]);
    }
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
    let (ready, reason, severity, message) = match found.standing {
        Standing::Active => ("True", "Active".to_owned(), Severity::Good, String::new()),
        Standing::Unseen => {
            let message = "no manager has seen the newest spec".to_owned();
            ("Unknown", "NotObserved".to_owned(), Severity::Busy, message)
        }
        Standing::Progressing(message) => ("False", "Progressing".to_owned(), Severity::Busy, message),
        Standing::Paused => ("False", "Paused".to_owned(), Severity::Dim, "spec.paused is true".to_owned()),
        Standing::Stalled(reason, message) => ("False", reason, Severity::Bad, message),
    };
    let mut cells = vec![
        Cell::plain(printable(name_of(operator))),
        Cell::plain(found.active.as_ref().map(|_| text(&status["version"])).unwrap_or_default()),
        Cell::new(ready, severity),
        Cell::new(printable(&reason), severity),
        Cell::plain(status["instances"].as_u64().map(|count| count.to_string()).unwrap_or_default()),
        Cell::plain(age(now, operator["metadata"]["creationTimestamp"].as_str())),
    ];
    if wide {
        cells.push(Cell::plain(found.active.as_deref().map(printable).unwrap_or_default()));
        cells.push(Cell::plain(text(&operator["spec"]["revision"])));
        cells.push(Cell::new(printable(&message), Severity::Plain));
    }
    cells
}
