//! `operetta uninstall`.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::shared::{End, connect, find, refused};
use super::{Failure, apply, dependencies, duration, handed_over, revisions, rights};
use crate::api::{ApiKind, CallError, Class, group_of};
use crate::children::{names, package_of_crd_value};
use crate::cli::command::BLOCKED;
use crate::cli::connect::{ClusterOptions, Server};
use crate::cli::model::{Node, NodePosition, Object, State, name_of};
use crate::cli::out::{self, printable};
use crate::cli::show::{named, plural};
use crate::cli::wait::{Look, Wait};
use crate::cluster::{Cluster, Kinds, Query};
use crate::crd;
use crate::manager::raw::Raw;
use crate::package::store::objects;

/// How often instances are listed while they are being deleted.
const PERIOD: Duration = Duration::from_millis(500);
/// How long the number of instances must stay the same before statuses are read: there may be thousands.
const QUIET: Duration = Duration::from_secs(2);
/// How long all remaining instances must wait for a person before the command gives up: the effect of a
/// person's action shows a moment later.
const HOLDS: Duration = Duration::from_secs(3);
/// How many instances a message names.
const NAMED: usize = 5;

/// Remove a package from a cluster
///
/// Refuses if other packages require kinds of it. Deletes the Operator, the CRDs of the package, its stored revisions, and its
/// account. CRDs that were handed over to another package stay, with all that belongs to them. As long as there are instances
/// it refuses, and --instances says what becomes of them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta uninstall etcd
  operetta uninstall etcd --instances orphan
  operetta uninstall etcd --instances delete --timeout 15m

Exit codes: 0 it is removed; 1 there are instances, other packages require it, it is not installed, or the API server refuses; \
2 wrong usage; 4 --timeout is over, and instances are still being deleted; 5 each instance that is left waits for a person, such as after \
a failed cleanup. After 4 and 5 the command can be given again.")]
pub(in crate::cli) struct Args {
    /// The package
    #[arg(value_name = "NAME")]
    name: String,

    /// What becomes of instances
    #[arg(long, value_enum, value_name = "WHAT")]
    instances: Option<Instances>,

    /// Remove it though other packages require kinds of it
    #[arg(long)]
    force: bool,

    /// How long to wait for the deletion of instances
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    place: ClusterOptions,
}

/// What becomes of instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Instances {
    /// They are deleted first, with their children, while the package is still active
    Delete,
    /// They stay, and so do their children, the CRDs and the stored revisions. Nothing repairs them until the package is
    /// installed again
    Orphan,
}

/// An instance. Its status is known if it was listed with it.
struct Instance {
    kind: ApiKind,
    node: Node,
}

impl Instance {
    /// Whether its deletion waits for a person.
    fn is_blocked(&self) -> bool {
        let is_pending = |one: &Value| one["type"] == "DeletionPending" && one["status"] == "True";
        let is_stalled = self.node.object.status.state == State::Stalled;
        self.node.deleted.is_some() && (is_stalled || self.node.conditions.iter().any(is_pending))
    }

    fn text(&self) -> String {
        let Object { namespace, name, .. } = &self.node.object;
        let place = namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{} {place}{name}", self.kind.kind)
    }

    /// What its deletion waits for.
    fn waits(&self) -> String {
        let sentence = self.node.object.status.sentence();
        if sentence.is_empty() {
            format!("{}: finalizers: {}", self.text(), self.node.finalizers.join(", "))
        } else {
            format!("{}: {sentence}", self.text())
        }
    }
}

/// A package that is removed.
struct Installed {
    operator: Value,
    crds: Vec<Value>,
}

impl Installed {
    async fn read(server: &Server, name: &str) -> Result<Self, Failure> {
        let operator = find(server, name).await?;
        Ok(Self { operator, crds: crds(&server.cluster, name).await? })
    }
}

pub(super) async fn run(args: &Args) -> End {
    let server = connect(&args.place).await?;
    let installed = Installed::read(&server, &args.name).await?;
    if !args.force {
        check_dependents(&server, &installed).await?;
    }
    remove(&server, &installed, args.instances, args.timeout).await
}

/// Refuses to remove a package of which others require kinds.
async fn check_dependents(server: &Server, installed: &Installed) -> Result<(), Failure> {
    let name = name_of(&installed.operator);
    let found = dependencies::dependents(server, name, &installed.crds).await?;
    if found.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = found.iter().map(|(other, kind)| format!("{other} (the kind {kind})")).collect();
    let message = format!(
        "other packages require {name}: {}\n  help: uninstall them first; --force removes {name} all the same",
        named(&all, NAMED)
    );
    Err(message.into())
}

/// Removes a package with its instances and their children.
pub(in crate::cli) async fn with_instances(server: &Server, name: &str, timeout: Duration) -> End {
    remove(server, &Installed::read(server, name).await?, Some(Instances::Delete), timeout).await
}

/// The instances of these CRDs, in words; `None` without any.
pub(in crate::cli) async fn instances_of(
    cluster: &Cluster,
    crds: &[Value],
) -> Result<Option<String>, Failure> {
    let found = instances(cluster, crds, false).await?;
    Ok((!found.is_empty()).then(|| counted(&found)))
}

async fn remove(
    server: &Server,
    Installed { operator, crds }: &Installed,
    wanted: Option<Instances>,
    timeout: Duration,
) -> End {
    let (cluster, name) = (&server.cluster, name_of(operator));
    let found = instances(cluster, crds, false).await?;
    let deadline = Instant::now() + timeout;
    match wanted {
        None if !found.is_empty() => {
            let message = format!(
                "the package {name} has {}\n  help: --instances delete deletes them with their children, --instances \
                 orphan leaves both as they are",
                counted(&found)
            );
            return Err(message.into());
        }
        Some(Instances::Orphan) if !found.is_empty() => {
            apply::delete(cluster, &crate::operators::kind(), operator).await?;
            out::line(format!(
                "Operator {name} is deleted; nothing manages its {} any more, and the CRDs and revisions stay",
                counted(&found)
            ));
            return Ok(ExitCode::SUCCESS);
        }
        Some(Instances::Delete) if !found.is_empty() => {
            delete_all(cluster, crds, name, timeout).await?;
        }
        _ => {}
    }
    // Without its CRD the garbage collector does not know the kind of an owner, and leaves its objects.
    collected(cluster, crds, deadline.saturating_duration_since(Instant::now())).await?;
    apply::delete(cluster, &crate::operators::kind(), operator).await?;
    // From here on no manager creates these CRDs again, and new instances get no children.
    // One that was handed over meanwhile is another package's.
    let crds = self::crds(cluster, name).await?;
    let since = instances(cluster, &crds, false).await?;
    if !since.is_empty() {
        let message = format!(
            "the Operator {name} is deleted, and its CRDs stay: since then there are {}\n  help: install it again, or \
             delete them and then the CRDs",
            counted(&since)
        );
        return Err(message.into());
    }
    for crd in &crds {
        apply::delete(cluster, &ApiKind::crd(), crd).await?;
        out::line(format!("CRD {} is deleted", name_of(crd)));
    }
    let used = handed_over::used_revisions(cluster, name).await?;
    for revision in revisions::objects_of(cluster, name).await? {
        if used.contains(name_of(&revision)) {
            let revision = name_of(&revision);
            out::line(format!(
                "OperatorRevision {revision} stays: what was handed over to another package uses it"
            ));
        } else {
            delete_revision(cluster, &revision).await?;
        }
    }
    rights::revoke(cluster, name).await?;
    out::line(format!("the package {name} is removed"));
    Ok(ExitCode::SUCCESS)
}

/// The CRDs of a package.
async fn crds(cluster: &Cluster, package: &str) -> Result<Vec<Value>, Failure> {
    let listed = cluster.list(&ApiKind::crd(), None, &format!("{}={package}", names::OPERATOR)).await;
    let mut crds = listed.map_err(|error| refused("the CRDs cannot be listed", &error))?;
    crds.retain(|crd| package_of_crd_value(crd).as_deref() == Some(package));
    Ok(crds)
}

/// The instances of these CRDs, with or without their status.
async fn instances(cluster: &Cluster, crds: &[Value], with_status: bool) -> Result<Vec<Instance>, Failure> {
    let mut found = Vec::new();
    for kind in crds.iter().filter_map(crd::kind) {
        let query = Query { metadata_only: !with_status, ..Query::default() };
        let instance =
            |raw: Raw| Instance { kind: kind.clone(), node: Node::instance(NodePosition::Root, &raw) };
        match cluster.list_all(&kind, &query, instance).await {
            Ok(listed) => found.extend(listed),
            // Its CRD is being deleted.
            Err(error) if error.class == Class::NotFound => {}
            Err(error) => {
                return Err(refused(&format!("the instances of {} cannot be listed", kind.kind), &error));
            }
        }
    }
    Ok(found)
}

/// `3 instances: EtcdCluster a/b, ...`.
fn counted(found: &[Instance]) -> String {
    let texts: Vec<String> = found.iter().map(Instance::text).collect();
    format!("{}: {}", plural(found.len(), "instance"), named(&texts, NAMED))
}

/// Waits until the garbage collector has deleted the children of these CRDs' instances, all of which are gone.
async fn collected(cluster: &Cluster, crds: &[Value], timeout: Duration) -> Result<(), Failure> {
    let kinds = Kinds::default();
    let over = |left: &str| {
        format!(
            "the instances are deleted, and the time is over: {left}\n  help: the Operator and the CRDs stay; give the command \
             again"
        )
    };
    let look = async || {
        let mut left = Vec::new();
        for crd in crds {
            let Some(of) = crd::kind(crd) else { continue };
            let recorded = crd["metadata"]["annotations"][names::CHILD_KINDS].as_str().unwrap_or_default();
            let labels = format!("{}={}", names::KIND, names::kind_label(&of.kind, &of.group));
            for gvk in names::read_kinds(recorded) {
                let failed = |error: &CallError| {
                    refused(&format!("the children of kind {} cannot be listed", gvk.kind), error)
                };
                let kind = kinds.find(cluster, &gvk).await.map_err(|error| failed(&error))?;
                let Some(kind) = kind else { continue };
                let query = Query { labels: &labels, metadata_only: true, ..Query::default() };
                let owned = |raw: Raw| {
                    let owners = raw.metadata.owner_references.unwrap_or_default();
                    let is_owned = owners
                        .iter()
                        .any(|owner| owner.kind == of.kind && group_of(&owner.api_version) == of.group);
                    let held = raw.metadata.finalizers.unwrap_or_default().join(", ");
                    let held = if held.is_empty() { held } else { format!(" (finalizers: {held})") };
                    let name = raw.metadata.name.unwrap_or_default();
                    is_owned.then(|| format!("{} {name}{held}", kind.kind))
                };
                let listed = cluster.list_all(&kind, &query, owned).await;
                left.extend(listed.map_err(|error| failed(&error))?.into_iter().flatten());
            }
        }
        Ok(match left.first() {
            None => Look::Done(()),
            Some(first) => Look::Waits(format!(
                "waiting for the garbage collector to delete {} children, such as {}",
                left.len(),
                printable(first)
            )),
        })
    };
    Wait::new(PERIOD, timeout).until(over, look).await
}

/// Deletes all instances, and waits until they are gone.
async fn delete_all(
    cluster: &Cluster,
    crds: &[Value],
    package: &str,
    timeout: Duration,
) -> Result<(), Failure> {
    let over = |left: &str| {
        format!(
            "after {} s: {left}\n  help: a manager must run that follows the Operator {package}. `operetta tree KIND/NAME` shows an \
             instance with its children. The command can be given again",
            timeout.as_secs()
        )
    };
    let mut before = (0, Instant::now());
    let look = async || {
        let mut found = instances(cluster, crds, false).await?;
        if found.is_empty() {
            return Ok(Look::Done(()));
        }
        if before.0 != found.len() {
            before = (found.len(), Instant::now());
        }
        for instance in found.iter().filter(|instance| instance.node.deleted.is_none()) {
            delete(cluster, instance).await?;
        }
        if before.1.elapsed() < QUIET {
            return Ok(Look::Waits(format!("deleting {}", counted(&found))));
        }
        found = instances(cluster, crds, true).await?;
        Ok(waits(package, &found))
    };
    Wait::new(PERIOD, timeout).until(over, look).await
}

/// What the deletion of these instances waits for.
fn waits(package: &str, found: &[Instance]) -> Look<()> {
    let counted = counted(found);
    // Instances that wait for a person come first.
    let (blocked, others): (Vec<_>, Vec<_>) = found.iter().partition(|instance| instance.is_blocked());
    let shown = blocked.iter().chain(&others).take(NAMED);
    let lines = shown.map(|instance| instance.waits()).fold(String::new(), |all, line| all + "\n  " + &line);
    if !others.is_empty() || found.is_empty() {
        return Look::Waits(format!("deleting {counted}{lines}"));
    }
    let message = format!(
        "the package {package} stays: the deletion of {counted} waits for you{lines}\n  help: `operetta tree KIND/NAME` shows an \
         instance with its children and runs. Then give the command again"
    );
    Look::Blocked(Failure::with_code(BLOCKED, message), HOLDS)
}

async fn delete(cluster: &Cluster, instance: &Instance) -> Result<(), Failure> {
    let Object { namespace, name, uid, .. } = &instance.node.object;
    let kind = &instance.kind;
    let live = cluster.get(kind, namespace.as_deref(), name).await;
    let live = live.map_err(|error| refused(&format!("{} cannot be deleted", instance.text()), &error))?;
    match live.filter(|live| live["metadata"]["uid"] == uid.as_str()) {
        Some(live) => apply::begin_deletion(cluster, kind, &live).await,
        None => Ok(()),
    }
}

/// Deletes a stored revision, and its parts: only a manager that has loaded it lets the garbage collector do that.
async fn delete_revision(cluster: &Cluster, revision: &Value) -> Result<(), Failure> {
    let kind = ApiKind::built_in("v1", "ConfigMap");
    let parts = revision["spec"]["parts"].as_array().into_iter().flatten();
    let parts: Vec<&str> = parts.filter_map(|part| part["name"].as_str()).collect();
    apply::delete(cluster, &objects::kind(), revision).await?;
    let namespace = revision["metadata"]["labels"][objects::PARTS_NAMESPACE].as_str();
    let Some(namespace) = namespace else { return Ok(()) };
    for part in parts {
        let live = cluster.get(&kind, Some(namespace), part).await;
        let live = live.map_err(|error| refused(&format!("ConfigMap {namespace}/{part}"), &error))?;
        let is_part = |live: &Value| live["metadata"]["labels"][objects::REVISION] == *name_of(revision);
        if let Some(live) = live.filter(is_part) {
            apply::delete(cluster, &kind, &live).await?;
        }
    }
    Ok(())
}
