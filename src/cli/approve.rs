//! `operetta approve`: a person's yes to the deletion of children that ask (`deletionPolicy: Ask`).

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::catalog::{Catalog, PackageKind, check_names, kind_and_name};
use super::connect::{self, Place};
use super::out;
use crate::children::names;
use crate::cluster::{ApiKind, CallError, Class, Cluster, Query};
use crate::manager::raw::Raw;

/// Approve that children of an instance are deleted
///
/// A child with `deletionPolicy: Ask` is not deleted, whatever asks for it, before a person has approved: it
/// stays, and a condition of the instance, `DeletionPending`, names it. Without --child and --all, what awaits approval
/// is listed. Approving writes the annotation `operetta.dev/delete: <uid>` to the object, so it holds for this
/// object and for no later one of its name.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta approve etcdcluster/prod
  operetta approve etcdcluster prod -n db --child 'data[2]'
  operetta approve etcdcluster/prod --all --yes

Environment:
  KUBECONFIG  which cluster (default: ~/.kube/config, else that of the pod it runs in)

Exit codes: 0 success, 1 not found, not approved or no API server, 2 wrong usage.")]
pub(super) struct Args {
    /// The instance: KIND/NAME or KIND NAME; as KIND also plural, short name or plural.group
    #[arg(value_name = "INSTANCE", required = true, num_args = 1..=2)]
    instance: Vec<String>,

    /// The instance's namespace [default: that of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,

    // Not a doc comment: rustdoc would look for a link.
    #[arg(
        long,
        value_name = "CHILD",
        conflicts_with = "all",
        help = "Approve this child: its id, or id[key] of one of several"
    )]
    child: Vec<String>,

    /// Approve all that await it
    #[arg(long)]
    all: bool,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    #[command(flatten)]
    place: Place,
}

/// An object whose deletion asks.
struct Asking {
    kind: ApiKind,
    namespace: Option<String>,
    name: String,
    uid: String,
    /// `id` or `id[key]`.
    child: String,
    /// Nothing wants it any more, and nobody has approved.
    awaits: bool,
}

impl std::fmt::Display for Asking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{} ({})", self.kind.kind, self.name, self.child),
            None => write!(f, "{} {} ({})", self.kind.kind, self.name, self.child),
        }
    }
}

pub(super) async fn run(args: &Args) -> ExitCode {
    match approve(args).await {
        Ok(text) => out::all(&text, ExitCode::SUCCESS),
        Err((message, code)) => {
            out::note(format!("error: {message}"));
            ExitCode::from(code)
        }
    }
}

type Failure = (String, u8);

fn failed(message: impl Into<String>) -> Failure {
    (message.into(), 1)
}

async fn approve(args: &Args) -> Result<String, Failure> {
    let (kind, name) = named(&args.instance)?;
    check_names(args.namespace.as_deref(), Some(name)).map_err(|error| (error, 2))?;
    let server = connect::connect_in(&args.place).await.map_err(failed)?;
    let cluster = &server.cluster;
    let catalog = Catalog::read(cluster).await.map_err(failed)?;
    let found = catalog.find(kind).map_err(failed)?;
    let namespace = found
        .served
        .kind
        .namespaced
        .then(|| args.namespace.clone().unwrap_or_else(|| server.current_namespace().to_owned()));
    let asking = asking(cluster, &catalog, found, (namespace.as_deref(), name)).await?;
    let awaiting: Vec<&Asking> = asking.iter().filter(|object| object.awaits).collect();
    if args.child.is_empty() && !args.all {
        return Ok(listing(&awaiting, args));
    }
    let chosen = chosen(args, &asking, awaiting)?;
    if chosen.is_empty() {
        return Ok("nothing awaits approval\n".into());
    }
    if !args.yes && !confirmed(&chosen)? {
        return Err(failed("not approved"));
    }
    let mut text = String::new();
    for object in chosen {
        let patch = json!({"metadata": {"uid": object.uid, "annotations": {names::APPROVED: object.uid}}});
        let (namespace, name) = (object.namespace.as_deref(), &object.name);
        cluster
            .merge_patch(&object.kind, namespace, name, None, &patch, "operetta-approve")
            .await
            .map_err(|error| failed(format!("{text}{object} cannot be approved: {error}")))?;
        let _ = writeln!(text, "approved: {object}");
    }
    Ok(text)
}

/// KIND and NAME.
fn named(instance: &[String]) -> Result<(&str, &str), Failure> {
    kind_and_name(instance).ok_or_else(|| ("name the instance as KIND/NAME or KIND NAME".into(), 2))
}

/// The children of an instance, or of former ones of its name, that ask.
async fn asking(
    cluster: &Cluster,
    catalog: &Catalog,
    found: &PackageKind,
    (namespace, name): (Option<&str>, &str),
) -> Result<Vec<Asking>, Failure> {
    let of_kind = &found.served.kind;
    let of = |error: &CallError| {
        failed(format!("the children of {} {name} cannot be listed: {error}", of_kind.plural))
    };
    let instance = cluster.get(of_kind, namespace, name).await.map_err(|error| of(&error))?;
    let home = namespace.unwrap_or_default();
    let selector = format!(
        "{}={},{}={}",
        names::KIND,
        names::kind_label(&of_kind.kind, &of_kind.group),
        names::INSTANCE,
        names::label_value(name)
    );
    let mut all = Vec::new();
    for (api_version, kind) in &found.child_kinds {
        let Some(kind) = catalog.served(api_version, kind).map(|served| &served.kind) else { continue };
        let everywhere = Query { labels: &selector, metadata_only: true, ..Query::default() };
        let list = |query| async move { cluster.list_all(kind, &query, |object: Raw| object).await };
        let objects = match list(everywhere).await {
            // Whoever may see one namespace only sees what lies there.
            Err(error) if error.code == 403 && kind.namespaced && namespace.is_some() => {
                list(Query { namespace, ..everywhere }).await
            }
            objects => objects,
        };
        let objects = match objects {
            Err(error) if error.class == Class::NotFound => continue,
            objects => objects.map_err(|error| of(&error))?,
        };
        let can_be = |object: &&Raw| found.bounds.hold(namespace, kind, &object.metadata);
        all.extend(objects.iter().filter(can_be).filter_map(|object| asks(&object.body, kind, home)));
    }
    if instance.is_none() && all.is_empty() {
        let place = namespace.map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        return Err(failed(format!("there is no {} {name}{place}", of_kind.plural)));
    }
    Ok(all)
}

fn asks(object: &Value, kind: &ApiKind, home: &str) -> Option<Asking> {
    let meta = &object["metadata"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (labels, annotations) = (&meta["labels"], &meta["annotations"]);
    let lives_at = text(&labels[names::INSTANCE_NAMESPACE]).or_else(|| text(&meta["namespace"]));
    if lives_at.unwrap_or_default() != home {
        return None;
    }
    let pending = text(&annotations[names::PENDING])?;
    let uid = text(&meta["uid"])?;
    let key = text(&annotations[names::KEY]).or_else(|| text(&labels[names::KEY]));
    Some(Asking {
        kind: kind.clone(),
        namespace: text(&meta["namespace"]),
        name: text(&meta["name"])?,
        child: names::item_name(labels[names::CHILD].as_str().unwrap_or_default(), key.as_deref()),
        awaits: pending == "true" && annotations[names::APPROVED] != *uid,
        uid,
    })
}

fn chosen<'a>(
    args: &Args,
    asking: &'a [Asking],
    awaiting: Vec<&'a Asking>,
) -> Result<Vec<&'a Asking>, Failure> {
    if args.all {
        return Ok(awaiting);
    }
    let is_named =
        |object: &Asking, child: &str| object.child == child || object.child.split('[').next() == Some(child);
    for child in &args.child {
        if awaiting.iter().any(|object| is_named(object, child)) {
            continue;
        }
        let why = if asking.iter().any(|object| is_named(object, child)) {
            "is wanted, or was approved already"
        } else {
            "is no child that asks"
        };
        let names: Vec<&str> = awaiting.iter().map(|object| object.child.as_str()).collect();
        let help = if names.is_empty() { "nothing".into() } else { names.join(", ") };
        return Err(failed(format!("{child} {why}\n  help: awaiting approval: {help}")));
    }
    Ok(awaiting.into_iter().filter(|object| args.child.iter().any(|child| is_named(object, child))).collect())
}

fn listing(awaiting: &[&Asking], args: &Args) -> String {
    if awaiting.is_empty() {
        return "nothing awaits approval\n".into();
    }
    let mut text = String::from("awaiting approval before they are deleted:\n");
    for object in awaiting {
        let _ = writeln!(text, "  {object}");
    }
    let namespace = args.namespace.as_ref().map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    let of = args.instance.join(" ") + &namespace + &args.place.flags();
    let _ = writeln!(text, "approve with: operetta approve {of} --child CHILD (or --all)");
    text
}

/// Asks on the terminal.
fn confirmed(chosen: &[&Asking]) -> Result<bool, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(("there is no terminal to ask on: add --yes".into(), 2));
    }
    let mut text = String::from("These are deleted for good:\n");
    for object in chosen {
        let _ = writeln!(text, "  {object}");
    }
    out::message(&format!("{text}Approve? [y/N] "));
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(|error| failed(out::reason(&error)))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
