//! `operetta get`: all instances of all packages, one line each.

mod changes;
mod children;
mod list;
mod row;
mod targets;
mod watch;

use std::process::ExitCode;

use super::catalog::{Catalog, PackageKind, check_names, hint_of, unreadable};
use super::command::{Failure, Format, Output, Shown, end};
use super::out::{self, printable};
use super::session::{Common, Session};
use crate::api::CallError;
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

    /// Instances in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Only instances with these labels: a=b,c!=d,e in (f,g)
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Watch, and print a line for each change
    #[arg(short, long)]
    watch: bool,

    #[command(flatten)]
    shown: Shown,

    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    end(get(args).await)
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

async fn get(args: &Args) -> Result<ExitCode, Failure> {
    let asked = asked(&args.what)?;
    let named = asked.iter().any(|target| target.name.is_some());
    if named && args.all_namespaces {
        return Err("-A cannot be used with a name: use -n NAMESPACE".into());
    }
    if named && args.selector.is_some() {
        return Err("use names or a selector, not both".into());
    }
    asked.iter().try_for_each(|target| check_names(None, target.name))?;
    let session = Session::open(&args.common).await?;
    let catalog = session.catalog().await?;
    let namespace = (!args.all_namespaces).then(|| session.namespace().to_owned());
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
    if args.shown.is_wide() {
        for task in tasks.iter().filter(|task| !task.kind.is_described()) {
            let text = task.kind.undescribed("its package and the number of children are not shown");
            out::note(format!("note: {text}"));
        }
    }
    if args.watch {
        return Ok(Watching { args, server: &session.server, tasks: &tasks }.run(problems).await);
    }
    let command = Get { args, session: &session, catalog: &catalog, tasks: &tasks };
    Ok(match args.shown.output {
        None | Some(Output::Wide) => command.table(problems).await,
        Some(Output::Name) => command.names(problems).await,
        Some(Output::Json) => command.objects(Format::Json, problems).await,
        Some(Output::Yaml) => command.objects(Format::Yaml, problems).await,
    })
}

/// Prints the problems and returns the exit code.
fn report(problems: &[String], code: ExitCode) -> ExitCode {
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
    session: &'a Session,
    catalog: &'a Catalog,
    tasks: &'a [Task<'a>],
}

/// The message of kubectl for an empty result.
fn nothing(tasks: &[Task<'_>]) -> String {
    match tasks.iter().find_map(|task| task.namespace.as_deref()) {
        Some(namespace) => format!("No resources found in {} namespace.", printable(namespace)),
        None => "No resources found".to_owned(),
    }
}
