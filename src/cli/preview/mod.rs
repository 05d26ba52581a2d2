//! `operetta preview`: what a package would change in a cluster.

mod brief;
mod crds;
mod draw;
mod drive;
mod fleet;
mod refs;
mod stored;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Map, Value};

use super::catalog::{Catalog, check_names, hint_of, in_namespace, is_meant, kind_and_name};
use super::command::{Failure, Format, end};
use super::connect::{self, ClusterOptions};
use super::show::{Terminal, plural};
use super::{out, rights_review};
use crate::api::{ApiKind, Served};
use crate::children::crds::lease;
use crate::children::names::MANAGER_NAMESPACE;
use crate::children::package_of_crd_value;
use crate::cluster::Cluster;
use crate::diag::did_you_mean;
use crate::facts::texts;
use crate::operators::{self, OperatorSpec};
use crate::package::{self, Package, Resource};
use crate::preview::{CrdWrite, InstanceReport, Report, Write};
use crate::rights::Placement;
pub(super) use brief::lines as brief;
use drive::{Driver, Shared};
use fleet::{Fleet, Reader, text};

/// The exit code if something would be refused.
const REFUSED: u8 = 3;
/// The exit code if something would happen that `--fail-on` names.
const FAILED_ON: u8 = 6;
/// How many instances are previewed at once.
const AT_ONCE: usize = 16;
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(2);

/// Show what a package would change in the cluster, without writing
///
/// Compares PACKAGE with the live instances and their children: which children would be created, changed, pruned,
/// retained, recreated or refused, whether pods restart, which plan would run, and which stored instances the new CRD
/// would reject. The decisions are those of `operetta run`; refusals are found by server-side dry runs. Like changes of
/// many instances are shown together; of one instance (KIND/NAME) every field is shown.
///
/// A preview assumes that each child it changes becomes ready, and that each run that starts succeeds. What a step of a
/// plan does beyond applying children, and values that a controller writes later, cannot be foreseen. Observations (refs
/// with `http` or `exec`) are not made. Values of Secrets are never shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta preview operators/webapp
  operetta preview operators/webapp -n shop
  operetta preview operators/etcd -n prod etcdcluster/main
  operetta preview operators/webapp --fail-on recreated,pruned,rights
  operetta preview operators/webapp -o json | jq '.instances[] | select(.refused) | .name'

-o json and yaml print {apiVersion, kind: Preview, package {name, revision, active}, summary, groups, crds, instances, \
problems, notes, rights {gained, lost, remarkable, needsConsent}}. Each of instances has kind, namespace, name, revision, changes, plans, refused, waits, notes; each of changes has \
item, object, write (Created, Adopted, Updated, Recreated, Repaired, Pruned, Retained, AwaitsApproval, Orphaned, \
Unmarked), restartsPods and fields [{path, before, after}].

It reads with lists, one of each kind, and sends dry runs of changed objects only: it needs the rights get and list on \
what the package reads, and create, patch and delete on its children as the manager has them. With -n or KIND/NAME, the \
rights of `edit` in the namespace are enough: a note names what this user may not read or try.

Exit codes: 0 nothing would be refused, whether or not something would change; 1 the package is wrong, the API server \
cannot be used, or something could not be read and is missing; 2 wrong usage, or the output cannot be written; 3 a CRD \
or a change would be refused, or an instance rejected; 6 something else that --fail-on names would happen.")]
pub(super) struct Args {
    /// Folder of the package
    package: PathBuf,

    /// KIND/NAME, or KIND NAME: only this instance, with every field
    #[arg(num_args = 0..=2, value_names = ["KIND/NAME", "NAME"])]
    instance: Vec<String>,

    /// Only instances in this namespace [default: all; of KIND/NAME that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,

    /// Exit with code 6 if one of these would happen, with commas; a refusal has code 3 in any case
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    fail_on: Vec<FailOn>,

    /// The manager's own namespace, `operator.namespace` in templates [default: that of the manager that the CRD names]
    #[arg(long, value_name = "NAMESPACE")]
    manager_namespace: Option<String>,

    /// Assume that CRDs are taken over from these installed packages, as `operetta install --take-over-from` does; with commas
    #[arg(long, value_name = "PACKAGES", value_delimiter = ',')]
    take_over_from: Vec<String>,

    #[command(flatten)]
    place: ClusterOptions,
}

/// Which instances are previewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// All of them.
    All,
    /// Those in a namespace.
    Namespace(String),
    /// One.
    Instance {
        /// The index of its resource in the package.
        resource: usize,
        /// Its namespace; `None` if its kind is cluster-scoped.
        namespace: Option<String>,
        /// Its name.
        name: String,
    },
}

impl Scope {
    /// The namespace of the instances, if it is one.
    fn namespace(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::Namespace(namespace) => Some(namespace),
            Self::Instance { namespace, .. } => namespace.as_deref(),
        }
    }
}

/// The input of a preview.
pub(super) struct Input<'a> {
    pub(super) cluster: &'a Cluster,
    /// `1.36`.
    pub(super) server_version: &'a str,
    pub(super) package: &'a Arc<Package>,
    pub(super) scope: &'a Scope,
    /// The namespace of the manager; without it that of the manager which the CRDs name.
    pub(super) manager_namespace: Option<&'a str>,
    /// The packages from which CRDs are taken over.
    pub(super) take_over_from: &'a [String],
}

pub(super) async fn run(args: &Args) -> ExitCode {
    let package = match package::load(&args.package) {
        Ok((package, _)) => Arc::new(package),
        Err(errors) => {
            out::report(&errors);
            return ExitCode::FAILURE;
        }
    };
    let shown = preview_args(args, &package).await.map_err(|error| {
        let hint = hint_of(std::slice::from_ref(&error)).map(|hint| format!("\n  {hint}"));
        Failure::from(format!("{error}{}", hint.unwrap_or_default()))
    });
    end(shown.map(|(report, is_single)| print(args.output, &args.fail_on, (&[], &report), is_single)))
}

/// Prints a report, after those of packages that would come first; the exit code says whether something would be refused.
pub(super) fn print(
    output: Option<Format>,
    fail_on: &[FailOn],
    (first, report): (&[Report], &Report),
    is_single: bool,
) -> ExitCode {
    let all: Vec<&Report> = first.iter().chain([report]).collect();
    let text = if let Some(format) = output {
        format.document(&document(first, report))
    } else {
        let text = |report: &&Report| draw::text(report, is_single, Terminal::stdout());
        all.iter().map(text).collect::<Vec<_>>().join("\n")
    };
    let code = out::all(&text, exit_code(&all, fail_on));
    for report in all {
        // With several packages, each message begins with the name of its package.
        let of = if first.is_empty() { String::new() } else { format!("{}: ", report.package) };
        for note in &report.notes {
            out::note(format!("note: {of}{}", out::printable(note)));
        }
        for problem in &report.problems {
            out::note(format!("error: {of}{problem}"));
        }
        for what in fail_on.iter().filter_map(|what| what.found(report)) {
            out::note(format!("error: --fail-on: {of}{what}"));
        }
    }
    code
}

fn exit_code(reports: &[&Report], fail_on: &[FailOn]) -> ExitCode {
    let fails = |report: &Report| fail_on.iter().any(|what| what.found(report).is_some());
    if reports.iter().any(|report| !report.problems.is_empty()) {
        ExitCode::FAILURE
    } else if reports.iter().any(|report| report.is_refused()) {
        ExitCode::from(REFUSED)
    } else if reports.iter().any(|report| fails(report)) {
        ExitCode::from(FAILED_ON)
    } else {
        ExitCode::SUCCESS
    }
}

/// What a preview may fail on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum FailOn {
    /// A CRD or a change would be refused, or an instance rejected; always on
    Refused,
    /// An object would be deleted and created again
    Recreated,
    /// An object would be deleted because the package no longer has it
    Pruned,
    /// The package would get rights that a person has to agree to
    Rights,
}

impl FailOn {
    /// A message if this would happen, for people.
    fn found(self, report: &Report) -> Option<String> {
        let count = |write: Write| Some(report.count(write)).filter(|count| *count > 0);
        let objects = |count: usize| plural(count, "object");
        match self {
            Self::Refused => report.is_refused().then(|| "something would be refused".to_owned()),
            Self::Recreated => {
                count(Write::Recreated).map(|count| format!("{} would be recreated", objects(count)))
            }
            Self::Pruned => count(Write::Pruned).map(|count| format!("{} would be pruned", objects(count))),
            Self::Rights => {
                let needs = report.rights.needs_consent;
                needs.then(|| "the package would get rights that a person has to agree to".to_owned())
            }
        }
    }
}

/// A report for programs, with those of the packages that would come first.
fn document(first: &[Report], report: &Report) -> Value {
    let mut document = report.to_json();
    if !first.is_empty() {
        document["required"] = first.iter().map(Report::to_json).collect();
    }
    document
}

async fn preview_args(args: &Args, package: &Arc<Package>) -> Result<(Report, bool), String> {
    let asked = if args.instance.is_empty() { None } else { Some(kind_and_name(&args.instance)?) };
    check_names(args.namespace.as_deref(), asked.map(|(_, name)| name))?;
    check_names(args.manager_namespace.as_deref(), None)?;
    let resource = asked.map(|(kind, _)| resource(package, kind)).transpose()?;
    let server = connect::connect_in(&args.place).await?;
    let scope = match (asked, resource) {
        (Some((_, name)), Some(resource)) => {
            let namespace = args.namespace.as_deref().unwrap_or(server.current_namespace());
            let is_namespaced = package.resources[resource].kind.namespaced;
            let namespace = is_namespaced.then(|| namespace.to_owned());
            Scope::Instance { resource, namespace, name: name.to_owned() }
        }
        _ => args.namespace.clone().map_or(Scope::All, Scope::Namespace),
    };
    let input = Input {
        cluster: &server.cluster,
        server_version: &server.version,
        package,
        scope: &scope,
        manager_namespace: args.manager_namespace.as_deref(),
        take_over_from: &args.take_over_from,
    };
    let report = preview(input).await?;
    Ok((report, resource.is_some()))
}

/// The index of the resource of the package that a word means.
fn resource(package: &Package, word: &str) -> Result<usize, String> {
    let served = |resource: &Resource| {
        let names = &resource.crd["spec"]["names"];
        Served {
            kind: Arc::new(resource.kind.clone()),
            singular: text(&names["singular"]),
            short_names: texts(&names["shortNames"]),
            categories: Vec::new(),
            has_status: true,
            is_listable: true,
        }
    };
    let found = package.resources.iter().position(|resource| is_meant(&served(resource), word));
    found.ok_or_else(|| {
        let kinds = || package.resources.iter().map(|resource| resource.kind.plural.as_str());
        let near = did_you_mean(&word.to_lowercase(), kinds());
        let hint = near.map_or_else(
            || format!("it has {}", kinds().collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean {near}?"),
        );
        format!("the package {} has no kind {}; {hint}", package.name, out::printable(word))
    })
}

/// Previews a package. Nothing is written; progress goes to standard error.
///
/// # Errors
/// No preview is possible, for people. What is missing of an incomplete one is in [`Report::problems`].
pub(super) async fn preview(input: Input<'_>) -> Result<Report, String> {
    let Input { cluster, server_version, package, scope, manager_namespace, take_over_from } = input;
    // A package that does not support this version of Kubernetes would change nothing.
    package.refuses_kubernetes(server_version).map_or(Ok(()), Err)?;
    let (catalog, apis) = Catalog::read_any(cluster).await?;
    let apis = Arc::new(apis.with_version(server_version.to_owned()));
    let mut report =
        Report { package: package.name.clone(), revision: package.revision(), ..Report::default() };
    let (mut live, mut hidden) = (Vec::new(), HashSet::new());
    for (index, resource) in package.resources.iter().enumerate() {
        let name = resource.crd_name();
        live.push(match cluster.get(&ApiKind::crd(), None, name).await {
            Ok(found) => found,
            Err(error) if error.code == 403 => {
                hidden.insert(index);
                report.notes.push(format!(
                    "this user may not get the CRD {name}: it is taken to be that of the package, and what becomes of it \
                     is not shown"
                ));
                None
            }
            Err(error) => return Err(format!("the CRD {name} cannot be read: {error}")),
        });
    }
    let named = live.iter().flatten().find_map(|crd| lease(crd)?.split_once('/'));
    let namespace = manager_namespace.or(named.map(|(namespace, _)| namespace));
    let namespace = namespace.unwrap_or(MANAGER_NAMESPACE).to_owned();
    let reads = Arc::new(fleet::reads(package));
    let reader = Reader {
        cluster,
        apis: &apis,
        catalog: &catalog,
        package,
        scope,
        namespace: &namespace,
        reads: &reads,
    };
    let operator = operator(cluster, package, &mut report.notes).await;
    let names = operator.as_ref().and_then(rights_review::namespaces_of);
    let at = Placement { namespaces: names, ..Placement::everywhere(&namespace) };
    report.rights = rights_review::read(cluster, &apis, package, operator.as_ref(), &at).await;
    let (mut instances, mut crds, mut changed) = (Vec::new(), Vec::new(), HashSet::new());
    for (index, resource) in package.resources.iter().enumerate() {
        let is_asked = !matches!(scope, Scope::Instance { resource, .. } if *resource != index);
        let of_kind = match &live[index] {
            Some(live) if is_asked => reader.instances(resource, live).await,
            None if is_asked && hidden.contains(&index) => reader.discovered_instances(resource).await,
            _ => Ok(Vec::new()),
        }?;
        if hidden.contains(&index) {
            crds.push(resource.augmented_crd());
        } else {
            let live = live[index].as_ref();
            let owner = live.and_then(package_of_crd_value).filter(|owner| take_over_from.contains(owner));
            let of = (live, owner.as_deref());
            let decided = crds::decide(cluster, package, resource, of, (&of_kind, &namespace)).await?;
            if matches!(decided.report.write, CrdWrite::Created | CrdWrite::Updated) {
                changed.insert(index);
            }
            report.crds.push(decided.report);
            crds.push(decided.crd);
        }
        instances.extend(of_kind.into_iter().map(|mut instance| {
            // Only the comparison with the schema needs managedFields.
            if let Some(meta) = instance["metadata"].as_object_mut() {
                meta.remove("managedFields");
            }
            (index, instance)
        }));
    }
    match crds::dropped(cluster, &catalog, package, operator.is_some()).await {
        Ok(dropped) => report.crds.extend(dropped),
        Err(why) => {
            report.notes.push(format!("whether the package leaves instances behind is not shown: {why}"));
        }
    }
    if let Scope::Instance { resource, name, .. } = scope
        && instances.is_empty()
    {
        let kind = &package.resources[*resource].kind.kind;
        let place = in_namespace(scope.namespace());
        return Err(format!("there is no {kind} {}{place}", out::printable(name)));
    }
    report.active = active(&instances, operator.as_ref());
    if report.has_refused_crd() {
        // Nothing of the package is written if a CRD is refused.
        report.instances = instances.iter().map(|(_, instance)| untouched(instance)).collect();
        sort(&mut report.instances);
        return Ok(report);
    }
    let count = instances.len();
    if count > 1 {
        out::note(format!("{count} instances; reading their children"));
    }
    let mut fleet: Fleet = reader.fleet(instances, &live).await;
    report.problems = std::mem::take(&mut fleet.problems).into_iter().collect();
    report.notes.extend(std::mem::take(&mut fleet.notes));
    let is_single = matches!(scope, Scope::Instance { .. });
    // Without an Operator, the package is given to a manager as a folder.
    let spec = operator.as_ref().and_then(|operator| OperatorSpec::parse(operator).ok());
    let known = crds.iter().cloned().chain(stored::crds_of_others(cluster, &apis, package).await).collect();
    let driver = Arc::new(Driver::new(Shared {
        cluster: cluster.clone(),
        apis: Arc::clone(&apis),
        package: Arc::clone(package),
        fleet,
        reads: Arc::clone(&reads),
        closed: Arc::new(spec.map(|spec| spec.closed(&namespace)).unwrap_or_default()),
        namespace,
        defaults: defaults(operator.as_ref(), package)?,
        crds,
        known,
        live,
        changed,
        is_single,
    }));
    simulate(&driver, count, &mut report).await;
    report.notes.extend(driver.notes());
    sort(&mut report.instances);
    Ok(report)
}

/// The `Operator` of a package, if there is one.
async fn operator(cluster: &Cluster, package: &Package, notes: &mut Vec<String>) -> Option<Value> {
    match cluster.get(&operators::kind(), None, &package.name).await {
        Ok(operator) => operator,
        Err(error) => {
            notes.push(format!(
                "the Operator {} cannot be read, so the package's defaults count, and its rights are shown as new: {error}",
                package.name
            ));
            None
        }
    }
}

/// The values with which the `Operator` overrides the package's defaults.
fn defaults(operator: Option<&Value>, package: &Package) -> Result<Arc<Map<String, Value>>, String> {
    let Some(operator) = operator else { return Ok(Arc::default()) };
    let spec = OperatorSpec::parse(operator);
    let spec = spec.map_err(|error| format!("the Operator {}: {error}", package.name))?;
    let wrong = package.wrong_defaults(&spec.defaults);
    if wrong.is_empty() {
        return Ok(Arc::new(spec.defaults));
    }
    Err(format!("the Operator {}: spec.defaults.{}", package.name, wrong.join("; spec.defaults.")))
}

/// Simulates all instances side by side.
async fn simulate(driver: &Arc<Driver>, count: usize, report: &mut Report) {
    let running = stream::iter(0..count).map(|position| {
        let driver = Arc::clone(driver);
        async move {
            let task = tokio::spawn(async move { driver.preview(position).await });
            (position, task.await)
        }
    });
    let mut running = std::pin::pin!(running.buffer_unordered(AT_ONCE));
    let mut ticks = tokio::time::interval(PROGRESS);
    ticks.tick().await;
    let mut done = 0;
    loop {
        tokio::select! {
            next = running.next() => {
                let Some((position, result)) = next else { return };
                done += 1;
                let name = || fleet::full_name(&driver.shared.fleet.instances[position].1["metadata"]);
                match result {
                    Ok(Ok(instance)) => report.instances.push(instance),
                    Ok(Err(error)) => report.problems.push(format!("{} cannot be previewed: {error}", name())),
                    Err(error) => report.problems.push(format!("the preview of {} has failed: {error}", name())),
                }
            }
            _ = ticks.tick() => out::note(format!("previewed {done} of {count} instances")),
        }
    }
}

fn sort(instances: &mut [InstanceReport]) {
    instances.sort_by(|a, b| (&a.kind, &a.namespace, &a.name).cmp(&(&b.kind, &b.namespace, &b.name)));
}

/// The active revision of the `Operator`, and those that instances report, with how many instances do.
fn active(instances: &[(usize, Value)], operator: Option<&Value>) -> BTreeMap<String, usize> {
    let named = operator.and_then(rights_review::active_revision);
    let mut active: BTreeMap<String, usize> = named.into_iter().map(|revision| (revision, 0)).collect();
    for (_, instance) in instances {
        if let Some(revision) = instance["status"]["revision"].as_str() {
            *active.entry(revision.to_owned()).or_default() += 1;
        }
    }
    active
}

fn untouched(instance: &Value) -> InstanceReport {
    let meta = &instance["metadata"];
    InstanceReport {
        kind: text(&instance["kind"]),
        namespace: meta["namespace"].as_str().map(str::to_owned),
        name: text(&meta["name"]),
        revision: instance["status"]["revision"].as_str().map(str::to_owned),
        ..InstanceReport::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_says_what_would_happen() {
        let code = |report: &Report, fail_on: &[FailOn]| format!("{:?}", exit_code(&[report], fail_on));
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        let mut report = Report { instances: vec![draw::tests::instance("a", "x")], ..Report::default() };
        let all = [FailOn::Refused, FailOn::Recreated, FailOn::Pruned, FailOn::Rights];
        assert_eq!(code(&report, &all), expected(0));
        for (write, what) in [(Write::Pruned, FailOn::Pruned), (Write::Recreated, FailOn::Recreated)] {
            report.instances[0].changes[0].write = write;
            assert_eq!((code(&report, &all), code(&report, &[what])), (expected(6), expected(6)));
            assert_eq!((code(&report, &[]), code(&report, &[FailOn::Rights])), (expected(0), expected(0)));
        }
        report.rights.needs_consent = true;
        assert_eq!(code(&report, &[FailOn::Rights]), expected(6));
        report.instances[0].refused.push(crate::preview::Refused {
            item: None,
            object: None,
            reason: "Invalid".into(),
            message: "no".into(),
        });
        assert_eq!(code(&report, &all), expected(3));
        // With several packages, the gravest exit code is returned.
        let good = Report::default();
        let both = |report: &Report| format!("{:?}", exit_code(&[report, &good], &[]));
        assert_eq!(both(&report), expected(3));
        report.problems.push("incomplete".into());
        assert_eq!(code(&report, &all), expected(1));
        assert_eq!(both(&report), expected(1));
    }

    #[test]
    fn the_active_revision_is_known_without_instances() {
        let operator =
            serde_json::json!({"status": {"activeRevision": "web-3f1c22ab90", "version": "0.1.0"}});
        assert_eq!(active(&[], Some(&operator)), BTreeMap::from([("0.1.0-3f1c22ab90".to_owned(), 0)]));
        let instance = serde_json::json!({"status": {"revision": "0.1.0-3f1c22ab90"}});
        assert_eq!(active(&[(0, instance)], Some(&operator)).into_values().collect::<Vec<_>>(), [1]);
    }
}
