//! `operetta get`: all instances of all packages, one line each.

mod changes;
mod children;
mod list;
mod row;
mod targets;
mod watch;

use std::process::ExitCode;

use serde_json::Value;

use super::catalog::unreadable;
use super::catalog::{Catalog, PackageKind, check_names, hint_of};
use super::connect::{self, ClusterOptions, Server};
use super::out::{self, printable};
use crate::api::{ApiKind, CallError};
use changes::Watching;
use targets::asked;

/// How many kinds are listed at once.
const AT_ONCE: usize = 8;

/// Show instances of all packages
///
/// One line per instance of every kind of a package: the condition Ready, the state (Ready, Reconciling, Stalled,
/// Paused, Deleting; `NotObserved` if no manager has observed the newest spec) and the reason. Like kubectl, it shows
/// the namespace of the kubeconfig's context (or `default`) and cluster-scoped instances.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "KIND is a kind, plural, singular or short name, or plural.group; several with commas.

Examples:
  operetta get -A
  operetta get etcdclusters,webapps -o wide
  operetta get etcdcluster/example webapp/hello
  operetta get etcdcluster example -o yaml
  operetta get -A --watch

-o wide adds CHILDREN (ready and all children, by the rules of their kinds, without retained ones), PACKAGE, REVISION and MESSAGE. -o json and yaml print the objects, a List unless one was named.

Exit codes: 0 success, also if there are none; 1 not found, an unknown kind, no rights, no package, no API server; \
2 wrong usage, or the output cannot be written."
)]
pub(super) struct Args {
    /// Kinds; KIND/NAME, or KIND NAME..., for single instances [default: all kinds]
    #[arg(value_name = "KIND|KIND/NAME")]
    what: Vec<String>,

    /// The namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "all_namespaces")]
    namespace: Option<String>,

    /// Instances in all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Only instances with these labels: a=b,c!=d,e in (f,g)
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,

    /// Watch, and print a line for each change
    #[arg(short, long)]
    watch: bool,

    /// Omit the header
    #[arg(long)]
    no_headers: bool,

    #[command(flatten)]
    place: ClusterOptions,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// More columns
    Wide,
    /// The objects as JSON
    Json,
    /// The objects as YAML
    Yaml,
    /// `KIND.GROUP/NAME`, for kubectl
    Name,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    match get(args).await {
        Ok(code) => code,
        Err(error) => {
            out::note(format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// A kind to read.
struct Task<'a> {
    kind: &'a PackageKind,
    /// The text of the column KIND.
    shown: String,
    name: Option<&'a str>,
    namespace: Option<String>,
    /// Whether instances that this user may not list are left out with a note: cluster-scoped ones that are shown beside
    /// those of a namespace.
    is_optional: bool,
}

impl Task<'_> {
    /// The problem of a refused list, for people; `None` if a note was printed instead.
    fn refused(&self, error: &CallError) -> Option<String> {
        let problem = unreadable(&self.kind.served.kind, self.namespace.as_deref(), error);
        if self.is_optional && error.code == 403 {
            out::note(format!("note: {problem}"));
            return None;
        }
        Some(problem)
    }
}

async fn get(args: &Args) -> Result<ExitCode, String> {
    let asked = asked(&args.what)?;
    let named = asked.iter().any(|target| target.name.is_some());
    if named && args.all_namespaces {
        return Err("-A cannot be used with a name: use -n NAMESPACE".to_owned());
    }
    if named && args.selector.is_some() {
        return Err("use names or a selector, not both".to_owned());
    }
    check_names(args.namespace.as_deref(), None)?;
    asked.iter().try_for_each(|target| check_names(None, target.name))?;
    let server = connect::connect_in(&args.place).await?;
    let catalog = Catalog::read(&server.cluster).await?;
    let namespace = match (&args.namespace, args.all_namespaces) {
        (_, true) => None,
        (Some(namespace), _) => Some(namespace.clone()),
        (None, false) => Some(server.current_namespace().to_owned()),
    };
    let task = |kind, name| Task {
        kind,
        shown: row::kind_text(kind, &catalog.kinds),
        name,
        namespace: namespace.clone().filter(|_| kind.served.kind.namespaced),
        is_optional: asked.is_empty() && !args.all_namespaces && !kind.served.kind.namespaced,
    };
    let mut problems = Vec::new();
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for target in &asked {
        match catalog.find(target.kind) {
            Ok(kind) => tasks.push(task(kind, target.name)),
            Err(problem) => problems.push(problem),
        }
    }
    if asked.is_empty() {
        tasks.extend(catalog.kinds.iter().map(|kind| task(kind, None)));
        problems.extend(
            catalog.unserved.iter().map(|name| format!("the API server does not serve {name} (yet)")),
        );
    }
    if args.output == Some(Output::Wide) {
        for task in tasks.iter().filter(|task| !task.kind.is_described()) {
            let text = task.kind.undescribed("its package and the number of children are not shown");
            out::note(format!("note: {text}"));
        }
    }
    if args.watch {
        return Ok(Watching { args, server: &server, tasks: &tasks }.run(problems).await);
    }
    let command = Get { args, server: &server, catalog: &catalog, tasks: &tasks };
    Ok(match args.output {
        None | Some(Output::Wide) => command.table(problems).await,
        Some(output) => command.objects(output, problems).await,
    })
}

/// Prints the problems and returns the exit code.
fn end(problems: &[String], code: ExitCode) -> ExitCode {
    for problem in problems {
        out::note(format!("error: {problem}"));
    }
    if let Some(hint) = hint_of(problems) {
        out::note(format!("  {hint}"));
    }
    if problems.is_empty() || code != ExitCode::SUCCESS { code } else { ExitCode::FAILURE }
}

struct Get<'a> {
    args: &'a Args,
    server: &'a Server,
    catalog: &'a Catalog,
    tasks: &'a [Task<'a>],
}

/// Sets the kind, which objects in lists may lack.
pub(super) fn complete(kind: &ApiKind, object: &mut Value) {
    object["kind"] = kind.kind.as_str().into();
    object["apiVersion"] = kind.api_version().into();
}

fn place(task: &Task<'_>) -> String {
    task.namespace
        .as_ref()
        .map(|namespace| format!(" in namespace {}", printable(namespace)))
        .unwrap_or_default()
}

fn not_found(task: &Task<'_>, name: &str) -> String {
    format!("there is no {} {}{}", task.shown, printable(name), place(task))
}

fn cannot_read(task: &Task<'_>, name: &str, error: &CallError) -> String {
    let (kind, name, words) = (task.kind.full_name(), printable(name), printable(&error.to_string()));
    match error.code {
        403 => format!("this user may not get {kind} {name}{}: {words}", place(task)),
        _ => format!("{kind} {name} cannot be read: {words}"),
    }
}

/// The message of kubectl for an empty result.
fn nothing(tasks: &[Task<'_>]) -> String {
    match tasks.iter().find_map(|task| task.namespace.as_deref()) {
        Some(namespace) => format!("No resources found in {} namespace.", printable(namespace)),
        None => "No resources found".to_owned(),
    }
}
