//! `operetta get`: all instances of all packages, one line each.

mod row;
mod watch;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use kube::runtime::watcher;
use serde_json::Value;

use super::catalog::{Bounds, Catalog, PackageKind, check_names, unreadable};
use super::columns::{Cell, Columns};
use super::connect::{self, ClusterOptions, Server};
use super::out::{self, printable};
use crate::api::{ApiKind, CallError, Gvk, Served};
use crate::children::names;
use crate::cluster::Query;
use crate::manager::raw::Raw;
use crate::readiness;
use row::{Counts, Format, Row, Shape};
use watch::{Change, Line, PrintedRows};

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

/// All instances of a kind, or one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target<'a> {
    kind: &'a str,
    name: Option<&'a str>,
}

/// Parses the arguments: `etcdclusters`, `etcdclusters,webapps`, `webapp/a webapp/b`, and like kubectl `webapp a b`: if
/// no word has a slash, the words after the first are names.
fn asked(words: &[String]) -> Result<Vec<Target<'_>>, String> {
    let mut targets: Vec<Target<'_>> = Vec::new();
    let slashes = words.iter().any(|word| word.contains('/'));
    let mut add = |kind, name| {
        let target = Target { kind, name };
        if !targets.contains(&target) {
            targets.push(target);
        }
    };
    for word in words {
        match word.split_once('/') {
            Some((kind, name)) if kind.is_empty() || name.is_empty() || name.contains('/') => {
                return Err(format!("{} is not KIND/NAME", printable(word)));
            }
            Some((kind, name)) => add(kind, Some(name)),
            None if word.split(',').any(str::is_empty) => {
                return Err(format!("`{}` has no kind before or after a comma", printable(word)));
            }
            None if slashes || words.len() == 1 => word.split(',').for_each(|kind| add(kind, None)),
            None => {}
        }
    }
    if let ([kinds, names @ ..], false) = (words, slashes) {
        for kind in kinds.split(',') {
            for name in names {
                add(kind, Some(name));
            }
        }
    }
    Ok(targets)
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
    if problems.is_empty() || code != ExitCode::SUCCESS { code } else { ExitCode::FAILURE }
}

struct Get<'a> {
    args: &'a Args,
    server: &'a Server,
    catalog: &'a Catalog,
    tasks: &'a [Task<'a>],
}

impl Get<'_> {
    /// Reads all instances of all tasks, in their order. `keep` extracts what is needed of each.
    async fn read<R>(
        &self,
        keep: impl Fn(&Task<'_>, &Value) -> R + Copy,
        problems: &mut Vec<String>,
    ) -> Vec<R> {
        let all = stream::iter(self.tasks).map(|task| self.read_one(task, keep)).buffered(AT_ONCE);
        let mut found = Vec::new();
        for answer in all.collect::<Vec<_>>().await {
            match answer {
                Ok(some) => found.extend(some),
                Err(problem) => problems.push(problem),
            }
        }
        found
    }

    async fn read_one<R>(
        &self,
        task: &Task<'_>,
        keep: impl Fn(&Task<'_>, &Value) -> R,
    ) -> Result<Vec<R>, String> {
        let (cluster, kind) = (&self.server.cluster, &*task.kind.served.kind);
        let namespace = task.namespace.as_deref();
        let Some(name) = task.name else {
            let labels = self.args.selector.as_deref().unwrap_or_default();
            let query = Query { namespace, labels, ..Query::default() };
            let listed = cluster.list_all(kind, &query, |mut raw: Raw| {
                complete(kind, &mut raw.body);
                keep(task, &raw.body)
            });
            return listed.await.map_err(|error| unreadable(kind, namespace, &error));
        };
        let found =
            cluster.get(kind, namespace, name).await.map_err(|error| cannot_read(task, name, &error))?;
        let object = found.ok_or_else(|| not_found(task, name))?;
        let raw = Raw::from_value(object).map_err(|error| format!("{name}: {error}"))?;
        Ok(vec![keep(task, &raw.body)])
    }

    async fn table(&self, mut problems: Vec<String>) -> ExitCode {
        let wide = self.args.output == Some(Output::Wide);
        let shape = Shape { namespaces: self.args.all_namespaces, wide, children: wide };
        let keep = |task: &Task<'_>, object: &Value| {
            (Row::of(&task.shown, &task.kind.package, object), Arc::clone(&task.kind.bounds))
        };
        let rows = self.read(keep, &mut problems).await;
        let counts =
            if wide && !rows.is_empty() { self.count(&rows, &mut problems).await } else { Counts::default() };
        if rows.is_empty() {
            if problems.is_empty() {
                out::note(nothing(self.tasks));
            }
            return end(&problems, ExitCode::SUCCESS);
        }
        let now = crate::clock::now();
        let mut lines: Vec<Vec<Cell>> = Vec::with_capacity(rows.len() + 1);
        if !self.args.no_headers {
            lines.push(row::header(shape));
        }
        lines.extend(rows.iter().map(|(row, _)| row.cells(shape, &counts, now)));
        let columns = Columns::fit(lines.iter().map(Vec::as_slice), console::colors_enabled());
        let mut text = String::new();
        for line in &lines {
            text.push_str(&columns.line(line));
            text.push('\n');
        }
        end(&problems, out::all(&text, ExitCode::SUCCESS))
    }

    async fn objects(&self, output: Output, mut problems: Vec<String>) -> ExitCode {
        let format = match output {
            Output::Yaml => Format::Yaml,
            _ => Format::Json,
        };
        let names = output == Output::Name;
        let keep = |task: &Task<'_>, object: &Value| {
            if names { row::name(task.kind, object) } else { format.object(object) }
        };
        let texts = self.read(keep, &mut problems).await;
        let single = matches!(self.tasks, [Task { name: Some(_), .. }]);
        let text = match &texts[..] {
            _ if names => texts.iter().flat_map(|name| [name.as_str(), "\n"]).collect(),
            [object] if single => format!("{}\n", object.trim_end()),
            [] if single => String::new(),
            objects => format.list(objects),
        };
        if names && texts.is_empty() && problems.is_empty() {
            out::note(nothing(self.tasks));
        }
        end(&problems, out::all(&text, ExitCode::SUCCESS))
    }

    /// Counts ready children by the uid of their instance, with one list per kind.
    async fn count(&self, rows: &[(Row, Arc<Bounds>)], problems: &mut Vec<String>) -> Counts {
        let of: HashMap<&str, (&Row, &Bounds)> =
            rows.iter().map(|(row, bounds)| (row.object.uid.as_str(), (row, &**bounds))).collect();
        let mut kinds: Vec<(&Gvk, Option<&str>)> = Vec::new();
        for task in self.tasks {
            let namespace = task.namespace.as_deref();
            kinds.extend(task.kind.child_kinds.iter().map(|gvk| (gvk, namespace)));
        }
        kinds.sort_unstable();
        // A list of all namespaces sorts first and contains those of each namespace.
        kinds.dedup_by(|b, a| a == b || (a.0, None) == (b.0, a.1));
        // The API server serves an object in every version of its kind: one served version is enough.
        let all = kinds.clone();
        kinds.retain(|of| !all.iter().any(|other| self.is_counted_by(*of, *other)));
        kinds.retain(|(gvk, _)| {
            let is_served = self.catalog.served(gvk).is_some();
            if !is_served {
                out::note(format!(
                    "warning: children of kind {gvk} are not counted: the API server does not serve it"
                ));
            }
            is_served
        });
        let lists = stream::iter(kinds).map(|(gvk, namespace)| self.count_kind(gvk, namespace, &of));
        let mut counts = Counts::new();
        for list in lists.buffered(AT_ONCE).collect::<Vec<_>>().await {
            match list {
                Ok(children) => {
                    for (uid, ready) in children.into_iter().flatten() {
                        let count = counts.entry(uid).or_default();
                        count.0 += usize::from(ready);
                        count.1 += 1;
                    }
                }
                Err(problem) => problems.push(problem),
            }
        }
        counts
    }

    /// Whether a list in another version of the kind contains the same objects.
    fn is_counted_by(
        &self,
        (gvk, namespace): (&Gvk, Option<&str>),
        (other, place): (&Gvk, Option<&str>),
    ) -> bool {
        let served = |gvk| self.catalog.served(gvk).is_some();
        other.is_version_of(gvk)
            && other != gvk
            && (place.is_none() || place == namespace)
            && served(other)
            && (!served(gvk) || other > gvk || (place.is_none() && namespace.is_some()))
    }

    async fn count_kind(
        &self,
        gvk: &Gvk,
        namespace: Option<&str>,
        of: &HashMap<&str, (&Row, &Bounds)>,
    ) -> Result<Vec<Option<(String, bool)>>, String> {
        let Some(served) = self.catalog.served(gvk) else { return Ok(Vec::new()) };
        let whole = readiness::needs_status(&served.kind.group, &gvk.kind);
        let query = Query { namespace, labels: names::INSTANCE_UID, metadata_only: !whole, page: None };
        let reports = whole && self.server.cluster.reports(served).await;
        let reports = whole.then_some(reports);
        let keep = |raw: Raw| {
            let uid = raw.metadata.labels.as_ref()?.get(names::INSTANCE_UID)?;
            let (row, bounds) = of.get(uid.as_str())?;
            bounds
                .hold(row.object.namespace.as_deref(), &served.kind, &raw.metadata)
                .then(|| counted(raw, served, reports))?
        };
        let list = self.server.cluster.list_all(&served.kind, &query, keep);
        list.await
            .map_err(|e| format!("children are not counted: {}", unreadable(&served.kind, namespace, &e)))
    }
}

/// The uid of a child's instance, and whether the child is ready. `None` for a copy of a child, and for an object that
/// is no longer desired and is retained or waits for approval. `reports`: see [`readiness::of_kind`]; `None` if only
/// metadata is known.
fn counted(mut raw: Raw, served: &Served, reports: Option<bool>) -> Option<(String, bool)> {
    let meta = &raw.metadata;
    let uid = meta.labels.as_ref()?.get(names::INSTANCE_UID)?.clone();
    let says = |key| meta.annotations.as_ref().is_some_and(|all| all.get(key).is_some_and(|v| v == "true"));
    if says(names::RETAINED) || says(names::PENDING) || !raw.is_applied() {
        return None;
    }
    let Some(reports) = reports else { return Some((uid, meta.deletion_timestamp.is_none())) };
    complete(&served.kind, &mut raw.body);
    Some((uid, readiness::of_kind(&raw.body, reports).is_ready()))
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

/// The message of kubectl.
fn nothing(tasks: &[Task<'_>]) -> String {
    match tasks.iter().find_map(|task| task.namespace.as_deref()) {
        Some(namespace) => format!("No resources found in {} namespace.", printable(namespace)),
        None => "No resources found".to_owned(),
    }
}

/// `--watch`.
struct Watching<'a> {
    args: &'a Args,
    server: &'a Server,
    tasks: &'a [Task<'a>],
}

impl Watching<'_> {
    async fn run(&self, mut problems: Vec<String>) -> ExitCode {
        let (sender, mut changes) = tokio::sync::mpsc::channel(256);
        for (index, task) in self.tasks.iter().enumerate() {
            let api = match self.server.cluster.api(&task.kind.served.kind, task.namespace.as_deref()) {
                Ok(api) => api,
                Err(error) => {
                    out::note(format!("error: {error}"));
                    return ExitCode::FAILURE;
                }
            };
            let mut config = watcher::Config::default();
            if let Some(labels) = &self.args.selector {
                config = config.labels(labels);
            }
            if let Some(name) = task.name {
                config = config.fields(&format!("metadata.name={name}"));
            }
            tokio::spawn(watch::follow(api, config, index, sender.clone()));
        }
        drop(sender);
        let mut screen = PrintedRows::default();
        // The lines of the first lists, until all of them are complete.
        let mut first: Option<Vec<Line>> = Some(Vec::new());
        let mut open: Vec<bool> = vec![true; self.tasks.len()];
        let mut troubled: HashMap<usize, String> = HashMap::new();
        let mut printer = Printer { args: self.args, tasks: self.tasks, columns: None };
        loop {
            if open.iter().all(|open| !open)
                && let Some(mut lines) = first.take()
            {
                let hopeless =
                    lines.is_empty() && !problems.is_empty() && self.tasks.iter().all(|t| t.name.is_some());
                end(&std::mem::take(&mut problems), ExitCode::FAILURE);
                if hopeless {
                    return ExitCode::FAILURE;
                }
                lines.sort_by_key(|line| line.target);
                if !printer.print(&lines) {
                    return ExitCode::SUCCESS;
                }
            }
            // All watches have ended: each was refused.
            let Some((target, change)) = changes.recv().await else { return ExitCode::FAILURE };
            let Some(task) = self.tasks.get(target) else { continue };
            let row = |object: &Value| self.row(task, object);
            let lines: Vec<Line> = match change {
                Change::Begin => {
                    screen.begin(target);
                    Vec::new()
                }
                Change::Complete => {
                    troubled.remove(&target);
                    let lines = screen.complete(target);
                    let is_first = std::mem::replace(&mut open[target], false);
                    if let (true, Some(name), Some(first)) = (is_first, task.name, &first)
                        && !first.iter().any(|line| line.target == target)
                    {
                        problems.push(not_found(task, name));
                    }
                    lines
                }
                Change::Is(mut object) => {
                    complete(&task.kind.served.kind, &mut object);
                    screen.is(target, row(&object), object).into_iter().collect()
                }
                Change::Gone(mut object) => {
                    complete(&task.kind.served.kind, &mut object);
                    screen.gone(target, row(&object), object).into_iter().collect()
                }
                Change::Trouble(error) => {
                    let text = error.to_string();
                    if troubled.get(&target) != Some(&text) {
                        let name = task.kind.full_name();
                        out::note(format!("warning: {name}: {}; trying again", printable(&text)));
                        troubled.insert(target, text);
                    }
                    Vec::new()
                }
                Change::Refused(error) => {
                    let problem = unreadable(&task.kind.served.kind, task.namespace.as_deref(), &error);
                    if std::mem::replace(&mut open[target], false) {
                        problems.push(problem);
                    } else {
                        out::note(format!("error: {problem}"));
                    }
                    Vec::new()
                }
            };
            match &mut first {
                Some(first) => first.extend(lines),
                None if !printer.print(&lines) => return ExitCode::SUCCESS,
                None => {}
            }
        }
    }
}

impl Watching<'_> {
    /// The row of an instance. It differs from another row exactly if the printed text differs.
    fn row(&self, task: &Task<'_>, object: &Value) -> Row {
        let mut row = Row::of(&task.shown, &task.kind.package, object);
        match self.args.output {
            Some(Output::Wide) => {}
            None | Some(Output::Name) => {
                row.object.status.message.clear();
                row.revision.clear();
            }
            Some(Output::Json | Output::Yaml) => {
                object["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap_or_default()
                    .clone_into(&mut row.version);
            }
        }
        row
    }
}

/// Prints lines of a watch; the first lines define the widths of columns.
struct Printer<'a> {
    args: &'a Args,
    tasks: &'a [Task<'a>],
    columns: Option<Columns>,
}

impl Printer<'_> {
    /// Returns false if the reader has closed the output.
    fn print(&mut self, lines: &[Line]) -> bool {
        if lines.is_empty() {
            return true;
        }
        let text = match self.args.output {
            None | Some(Output::Wide) => self.table(lines),
            Some(Output::Name) => lines
                .iter()
                .filter(|line| !line.object.is_null())
                .map(|line| row::name(self.tasks[line.target].kind, &line.object) + "\n")
                .collect(),
            Some(Output::Json) => documents(Format::Json, lines),
            Some(Output::Yaml) => documents(Format::Yaml, lines),
        };
        out::text(&text)
    }

    fn table(&mut self, lines: &[Line]) -> String {
        let wide = self.args.output == Some(Output::Wide);
        let shape = Shape { namespaces: self.args.all_namespaces, wide, children: false };
        let now = crate::clock::now();
        let mut cells: Vec<Vec<Cell>> =
            lines.iter().map(|line| line.row.cells(shape, &Counts::default(), now)).collect();
        if self.columns.is_none() && !self.args.no_headers {
            cells.insert(0, row::header(shape));
        }
        let columns = self.columns.get_or_insert_with(|| {
            let later = row::later(shape);
            let lines = cells.iter().chain([&later]).map(Vec::as_slice);
            Columns::fit(lines, console::colors_enabled())
        });
        cells.iter().map(|cells| columns.line(cells) + "\n").collect()
    }
}

fn documents(format: Format, lines: &[Line]) -> String {
    let objects = lines.iter().filter(|line| !line.object.is_null());
    objects.map(|line| format.document(&format.object(&line.object))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let targets = asked(&words)?;
        Ok(targets.iter().map(|t| format!("{}:{}", t.kind, t.name.unwrap_or("*"))).collect())
    }

    #[test]
    fn retained_children_are_not_counted() {
        let config_map = Served {
            kind: Arc::new(ApiKind {
                group: String::new(),
                version: "v1".into(),
                kind: "ConfigMap".into(),
                plural: "configmaps".into(),
                namespaced: true,
            }),
            singular: "configmap".into(),
            short_names: Vec::new(),
            has_status: false,
            is_listable: true,
        };
        for (annotation, is_counted) in [("x", true), (names::RETAINED, false), (names::PENDING, false)] {
            let object = serde_json::json!({"metadata": {
                "name": "c", "labels": {names::INSTANCE_UID: "u"}, "annotations": {annotation: "true"},
                "managedFields": [{"manager": "operetta/p", "operation": "Apply"}],
            }});
            let raw = Raw::from_value(object).unwrap();
            assert_eq!(counted(raw, &config_map, None).is_some(), is_counted, "{annotation}");
        }
    }

    #[test]
    fn arguments_are_parsed_as_in_kubectl() {
        for (words, expected) in [
            (&[][..], &[][..]),
            (&["a"], &["a:*"]),
            (&["a,b"], &["a:*", "b:*"]),
            (&["a", "x", "y"], &["a:x", "a:y"]),
            (&["a,b", "x"], &["a:x", "b:x"]),
            (&["a/x", "b/y", "a/x"], &["a:x", "b:y"]),
            (&["a/x", "b"], &["a:x", "b:*"]),
        ] {
            assert_eq!(of(words).unwrap(), expected, "{words:?}");
        }
        for words in [&["a/"][..], &["/x"], &["a/x/y"], &[","], &["a,"]] {
            assert!(of(words).is_err(), "{words:?}");
        }
    }
}
