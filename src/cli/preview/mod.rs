//! `operetta preview`: what a package would change in a cluster.

mod brief;
mod crds;
mod draw;
mod drive;
mod fleet;
mod refs;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use console::Term;
use futures::{StreamExt, stream};
use serde_json::{Map, Value};

use super::catalog::{Catalog, check_names, is_meant, kind_and_name};
use super::connect::{self, ClusterOptions};
use super::out;
use crate::api::{ApiKind, Served};
use crate::children::crds::lease;
use crate::children::names::MANAGER_NAMESPACE;
use crate::cluster::Cluster;
use crate::diag::did_you_mean;
use crate::operators::{self, OperatorSpec};
use crate::package::{self, Package, Resource};
use crate::preview::{CrdWrite, InstanceReport, Report};
use crate::yaml;
pub(super) use brief::lines as brief;
use drive::{Driver, Shared};
use fleet::{Fleet, Reader, text};

/// The exit code if something would be refused.
const REFUSED: u8 = 3;
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
  operetta preview operators/webapp -o json | jq '.instances[] | select(.refused) | .name'

-o json and yaml print {apiVersion, kind: Preview, package {name, revision, active}, summary, groups, crds, instances, \
problems}. Each of instances has kind, namespace, name, revision, changes, plans, refused, waits; each of changes has \
item, object, write (Created, Adopted, Updated, Recreated, Repaired, Pruned, Retained, AwaitsApproval, Orphaned, \
Unmarked), restartsPods and fields [{path, before, after}].

It reads with lists, one of each kind, and sends dry runs of changed objects only: it needs the rights get and list on \
what the package reads, and create, patch and delete on its children as the manager has them.

Exit codes: 0 nothing would be refused, whether or not something would change; 1 the package is wrong, the API server \
cannot be used, or something could not be read and is missing; 2 wrong usage, or the output cannot be written; 3 a CRD \
or a change would be refused, or an instance rejected.")]
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
    output: Option<Output>,

    /// The manager's own namespace, `operator.namespace` in templates [default: that of the manager that the CRD names]
    #[arg(long, value_name = "NAMESPACE")]
    manager_namespace: Option<String>,

    #[command(flatten)]
    place: ClusterOptions,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    /// The preview as JSON
    Json,
    /// The preview as YAML
    Yaml,
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

/// What a preview is made of.
pub(super) struct Input<'a> {
    pub(super) cluster: &'a Cluster,
    /// `1.36`.
    pub(super) server_version: &'a str,
    pub(super) package: &'a Arc<Package>,
    pub(super) scope: &'a Scope,
    /// The namespace of the manager; without it that of the manager which the CRDs name.
    pub(super) manager_namespace: Option<&'a str>,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    let package = match package::load(&args.package) {
        Ok((package, _)) => Arc::new(package),
        Err(errors) => {
            out::report(&errors);
            return ExitCode::FAILURE;
        }
    };
    match preview_args(args, &package).await {
        Ok((report, is_single)) => print(args.output, &report, is_single),
        Err(error) => {
            out::note(format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a report; the exit code says whether something would be refused.
pub(super) fn print(output: Option<Output>, report: &Report, is_single: bool) -> ExitCode {
    let code = out::all(&shown(output, report, is_single), exit_code(report));
    for problem in &report.problems {
        out::note(format!("error: {problem}"));
    }
    code
}

fn exit_code(report: &Report) -> ExitCode {
    if !report.problems.is_empty() {
        ExitCode::FAILURE
    } else if report.is_refused() {
        ExitCode::from(REFUSED)
    } else {
        ExitCode::SUCCESS
    }
}

/// The text of a report. `is_single`: of one instance, with every field.
fn shown(output: Option<Output>, report: &Report, is_single: bool) -> String {
    match output {
        Some(Output::Json) => format!("{:#}\n", report.to_json()),
        Some(Output::Yaml) => yaml::to_string(&report.to_json()),
        None => {
            let terminal = Term::stdout();
            let width = terminal.is_term().then(|| usize::from(terminal.size().1));
            draw::text(report, is_single, console::colors_enabled(), width)
        }
    }
}

async fn preview_args(args: &Args, package: &Arc<Package>) -> Result<(Report, bool), String> {
    let asked = if args.instance.is_empty() {
        None
    } else {
        let words = out::printable(&args.instance.join(" "));
        Some(kind_and_name(&args.instance).ok_or_else(|| {
            format!("{words} is not an instance: use KIND/NAME; `operetta get` lists the instances")
        })?)
    };
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
    };
    let report = preview(input).await?;
    Ok((report, resource.is_some()))
}

/// The index of the resource of the package that a word means.
fn resource(package: &Package, word: &str) -> Result<usize, String> {
    let served = |resource: &Resource| {
        let names = &resource.crd["spec"]["names"];
        let short = names["shortNames"].as_array().into_iter().flatten();
        Served {
            kind: Arc::new(resource.kind.clone()),
            singular: text(&names["singular"]),
            short_names: short.filter_map(Value::as_str).map(str::to_owned).collect(),
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
/// Nothing can be said, for people. What is missing of a preview is in [`Report::problems`].
pub(super) async fn preview(input: Input<'_>) -> Result<Report, String> {
    let Input { cluster, server_version, package, scope, manager_namespace } = input;
    let (catalog, apis) = Catalog::read_any(cluster).await?;
    let apis = Arc::new(apis.with_version(server_version.to_owned()));
    let mut live = Vec::new();
    for resource in &package.resources {
        let name = resource.crd_name();
        let found = cluster.get(&ApiKind::crd(), None, name).await;
        live.push(found.map_err(|error| format!("the CRD {name} cannot be read: {error}"))?);
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
    let mut report =
        Report { package: package.name.clone(), revision: package.revision(), ..Report::default() };
    let (mut instances, mut crds, mut changed) = (Vec::new(), Vec::new(), HashSet::new());
    for (index, resource) in package.resources.iter().enumerate() {
        let is_asked = !matches!(scope, Scope::Instance { resource, .. } if *resource != index);
        let of_kind = match &live[index] {
            Some(live) if is_asked => reader.instances(resource, live).await?,
            _ => Vec::new(),
        };
        let live = live[index].as_ref();
        let decided = crds::decide(cluster, package, resource, live, (&of_kind, &namespace)).await?;
        if matches!(decided.report.write, CrdWrite::Created | CrdWrite::Updated) {
            changed.insert(index);
        }
        report.crds.push(decided.report);
        crds.push(decided.crd);
        instances.extend(of_kind.into_iter().map(|mut instance| {
            // Only the comparison with the schema needs to know who has set what.
            if let Some(meta) = instance["metadata"].as_object_mut() {
                meta.remove("managedFields");
            }
            (index, instance)
        }));
    }
    if let Scope::Instance { resource, name, .. } = scope
        && instances.is_empty()
    {
        let kind = &package.resources[*resource].kind.kind;
        let place = scope.namespace().map(|place| format!(" in namespace {place}")).unwrap_or_default();
        return Err(format!("there is no {kind} {}{place}", out::printable(name)));
    }
    report.active = active(&instances);
    if report.has_refused_crd() {
        // Nothing of the package is written then.
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
    let is_single = matches!(scope, Scope::Instance { .. });
    let driver = Arc::new(Driver::new(Shared {
        cluster: cluster.clone(),
        apis: Arc::clone(&apis),
        package: Arc::clone(package),
        fleet,
        reads: Arc::clone(&reads),
        namespace,
        defaults: defaults(cluster, package).await?,
        crds,
        live,
        changed,
        is_single,
    }));
    simulate(&driver, count, &mut report).await;
    sort(&mut report.instances);
    Ok(report)
}

/// What the `Operator` of a package, if there is one, puts in the place of the package's defaults.
async fn defaults(cluster: &Cluster, package: &Package) -> Result<Arc<Map<String, Value>>, String> {
    match cluster.get(&operators::kind(), None, &package.name).await {
        Ok(None) => Ok(Arc::default()),
        Ok(Some(operator)) => {
            let spec = OperatorSpec::parse(&operator);
            let spec = spec.map_err(|error| format!("the Operator {}: {error}", package.name))?;
            match package.wrong_default(&spec.defaults) {
                Some(wrong) => Err(format!("the Operator {}: spec.defaults.{wrong}", package.name)),
                None => Ok(Arc::new(spec.defaults)),
            }
        }
        Err(error) => {
            out::note(format!(
                "the Operator {} cannot be read, so the package's defaults count: {error}",
                package.name
            ));
            Ok(Arc::default())
        }
    }
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

/// The revisions that instances report, and how many of them.
fn active(instances: &[(usize, Value)]) -> BTreeMap<String, usize> {
    let mut active = BTreeMap::new();
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
