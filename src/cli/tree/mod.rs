//! `operetta tree`: an instance with all its objects.

mod draw;
mod gather;

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use super::catalog::{check_names, kind_and_name};
use super::command::{Failure, Format, end};
use super::out;
use super::session::{Common, Session};
use super::show::{Screen, Terminal};
use gather::{Found, Gather};

/// The interval of `--watch`.
const PERIOD: Duration = Duration::from_secs(2);

/// Show an instance with all its objects
///
/// Shows children by their ids in the package and members of a forEach below their id, each with its readiness and what
/// is missing. Pods are below their workload. Children of child instances are below these. Then it shows the conditions
/// of the instance.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta tree etcdcluster/example
  operetta tree etcdcluster example -n prod --watch
  operetta tree webapp/hello -o json | jq -r '.instance.children[] | select(.ready | not) | .message'

Readiness is by the rules of each kind; a readyWhen of the package counts in the conditions only. -o json and yaml \
print {apiVersion, kind: Tree, instance, problems}; instance and everything in its children (of an instance) and \
dependents (of a workload) have the keys id, key, object {apiVersion, kind, namespace, name, uid}, ready, status \
(Ready, NotReady, Failed, Terminating; of an instance as in `operetta get`), reason, message, creationTimestamp, \
deletionTimestamp, finalizers (while it is being deleted), marks (Retained, DeletionPending, NotApplied, \
ExposesSecretData), \
conditions, children, dependents.

Exit codes: 0 success; 1 not found, an unknown kind, no API server, or something could not be read and is missing; \
2 wrong usage, or the output cannot be written.")]
pub(super) struct Args {
    /// KIND/NAME, or KIND NAME
    #[arg(required = true, num_args = 1..=2, value_names = ["KIND/NAME", "NAME"])]
    instance: Vec<String>,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", conflicts_with = "watch")]
    output: Option<Format>,

    /// Read again every two seconds, and print the tree when it has changed
    #[arg(short, long)]
    watch: bool,

    /// Omit the header
    #[arg(long)]
    no_headers: bool,

    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    end(tree(args).await)
}

async fn tree(args: &Args) -> Result<ExitCode, Failure> {
    let (kind, name) = kind_and_name(&args.instance)?;
    check_names(None, Some(name))?;
    let session = Session::open(&args.common).await?;
    let catalog = session.catalog().await?;
    let kind = catalog.find(kind)?;
    let gather = Gather { session: &session, catalog: &catalog };
    let mut shown: Option<serde_json::Value> = None;
    let mut screen = Terminal::is_live().then(Screen::default);
    loop {
        let found = gather.tree(kind, name).await?;
        if !args.watch {
            let code = if found.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            let code = out::all(&text(args, &found), code);
            out::message(&remarks(&found));
            return Ok(code);
        }
        // Ages are not compared: they change all the time.
        let looks = json!([found.root.to_json(), found.warnings, found.problems]);
        if shown.as_ref() != Some(&looks) {
            let text = text(args, &found) + &remarks(&found);
            let is_written = match (&mut screen, shown.replace(looks)) {
                (Some(screen), _) => screen.draw_end(&text).is_ok(),
                (None, None) => out::text(&text),
                (None, Some(_)) => out::text(&format!("\n{text}")),
            };
            if !is_written {
                return Ok(ExitCode::SUCCESS);
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// The warnings and errors about what the tree may lack.
fn remarks(found: &Found) -> String {
    let warnings = found.warnings.iter().map(|warning| format!("warning: {warning}\n"));
    warnings.chain(found.problems.iter().map(|problem| format!("error: {problem}\n"))).collect()
}

fn text(args: &Args, found: &Found) -> String {
    match args.output {
        Some(format) => format.document(&json!({
            "apiVersion": "operetta.dev/v1alpha1", "kind": "Tree",
            "instance": found.root.to_json(), "problems": found.problems,
        })),
        None => draw::text(&found.root, !args.no_headers, Terminal::stdout(), crate::clock::now()),
    }
}
