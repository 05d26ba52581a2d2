//! `operetta manager uninstall`: removes the manager from a cluster, and nothing that it has managed unless it is asked to.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::objects::{self, Part};
use super::status::leader;
use super::values::Settings;
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::children::{crds, names, package_of_crd_value};
use crate::cli::command::{BLOCKED, Failure, duration, end};
use crate::cli::connect::{self, ClusterOptions, Server};
use crate::cli::model::name_of;
use crate::cli::out::{self, printable};
use crate::cli::wait::{Look, Wait};
use crate::cli::{operators, rbac};
use crate::cluster::Cluster;
use crate::rights::manager::WEBHOOK;
use crate::rights::{MANAGER, Owner};

/// How often the pods and the Lease of the manager are read.
const EVERY: Duration = Duration::from_millis(500);
/// The help of errors about a manager that goes on.
const HELP: &str = "a manager that was started by hand must be stopped; then give the command again";
/// The annotation with which Helm names the release of an object.
const RELEASE: &str = "meta.helm.sh/release-name";

/// Remove the manager from a cluster
///
/// Deletes the Deployment and waits until no manager runs, then deletes the services, the disruption budget, the optional objects,
/// the account of the manager with its roles, the policy that confines it, the Lease, and the certificates of the webhook.
///
/// The namespace stays, and so do Operetta's own CRDs with their admission policies and the key of generated values:
/// `operetta manager install` goes on where this manager has ended. --all deletes these, too.
///
/// While packages are installed it refuses, and --packages says what becomes of them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta manager uninstall
  operetta manager uninstall --packages keep       # to install another version afterwards, for example
  operetta manager uninstall --packages delete --all

Exit codes: 0 it is removed; 1 packages are installed, it was installed by Helm, or the API server refuses; 2 wrong usage; 4 \
--timeout is over; 5 instances wait for a person, or a manager that was started by hand goes on. After 4 and 5 the command \
can be given again.")]
pub(super) struct Args {
    /// The manager's namespace
    #[arg(short, long, value_name = "NAMESPACE", default_value = names::MANAGER_NAMESPACE, value_parser = rbac::namespace)]
    namespace: String,

    /// What becomes of installed packages
    #[arg(long, value_enum, value_name = "WHAT")]
    packages: Option<Packages>,

    /// Delete Operetta's own CRDs, their admission policies, the key of generated values and the namespace, too
    #[arg(long)]
    all: bool,

    /// How long to wait for the deletion of instances, and for the end of the manager
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    cluster: ClusterOptions,
}

/// What becomes of installed packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Packages {
    /// Operators, CRDs, instances and their children stay as they are. Nothing repairs them, and instances that are deleted
    /// wait until a manager runs again
    Keep,
    /// Each is uninstalled first, with its instances and their children, while the manager still runs
    Delete,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    if args.all && args.packages == Some(Packages::Keep) {
        out::note(
            "error: --all deletes the CRD of Operators, and with it the packages that --packages keep would leave",
        );
        return ExitCode::from(2);
    }
    end(uninstall(args).await.map(|()| ExitCode::SUCCESS))
}

async fn uninstall(args: &Args) -> Result<(), Failure> {
    let server = connect::connect_in(&args.cluster).await?;
    let deadline = Instant::now() + args.timeout;
    let removal = Removal { cluster: &server.cluster, settings: Settings::defaults(&args.namespace) };
    let deployment =
        removal.get(&ApiKind::built_in("apps/v1", "Deployment"), Some(&args.namespace), MANAGER).await?;
    if let Some(release) =
        deployment.as_ref().and_then(|live| live["metadata"]["annotations"][RELEASE].as_str())
    {
        let release = printable(release);
        return Err(format!(
            "Helm has installed the manager, as the release {release}\n  help: `helm uninstall {release} -n {}`; before it, \
             `operetta uninstall` removes packages",
            args.namespace
        )
        .into());
    }
    let (crds, others) = removal.package_crds().await?;
    if let Some(other) = others.first().filter(|_| args.all) {
        return Err(format!(
            "--all deletes what the other manager of {} needs, {}\n  help: leave out --all; if that manager is gone, delete this CRD \
             first",
            printable(name_of(other)),
            printable(crds::lease(other).unwrap_or_default())
        )
        .into());
    }
    removal.packages(&server, args, &crds, deadline).await?;
    if let Some(live) = deployment {
        removal.delete(&ApiKind::built_in("apps/v1", "Deployment"), &live).await?;
    }
    removal.ended(deadline.saturating_duration_since(Instant::now())).await?;
    removal.own_objects().await?;
    if args.all {
        return removal.all_else().await;
    }
    if args.packages == Some(Packages::Keep) {
        let converted: Vec<&str> = crds.iter().filter(|crd| removal.converts(crd)).map(name_of).collect();
        if !converted.is_empty() {
            out::note(format!(
                "warning: no manager converts instances of {} any more: until one runs again they cannot be read in other \
                 versions than the stored one",
                printable(&converted.join(", "))
            ));
        }
    }
    out::line(format!(
        "the manager is removed; the namespace {} and Operetta's own CRDs stay, and --all deletes them, too",
        args.namespace
    ));
    Ok(())
}

/// Whether an object is an admission policy or a binding of one.
fn is_policy(object: &Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmissionPolicy"))
}

struct Removal<'a> {
    cluster: &'a Cluster,
    settings: Settings,
}

impl Removal<'_> {
    fn namespace(&self) -> &str {
        &self.settings.namespace
    }

    async fn get(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, Failure> {
        match self.cluster.get(kind, namespace, name).await {
            // The cluster has no such kind.
            Err(error) if error.class == Class::NotFound => Ok(None),
            live => live.map_err(|error| refused(&format!("{} {name} cannot be read", kind.kind), &error)),
        }
    }

    async fn delete(&self, kind: &ApiKind, live: &Value) -> Result<(), Failure> {
        operators::delete(self.cluster, kind, live).await?;
        let name = name_of(live);
        out::line(format!("{} {} is deleted", kind.kind, printable(name)));
        Ok(())
    }

    /// The CRDs of packages that the manager of this namespace manages, and those that other managers do.
    async fn package_crds(&self) -> Result<(Vec<Value>, Vec<Value>), Failure> {
        let listed = self.cluster.list(&ApiKind::crd(), None, names::OPERATOR).await;
        let all = listed.map_err(|error| refused("the CRDs cannot be listed", &error))?;
        let ours = format!("{}/{MANAGER}", self.namespace());
        let of_packages = all.into_iter().filter(|crd| package_of_crd_value(crd).is_some());
        Ok(of_packages.partition(|crd| crds::lease(crd).is_none_or(|lease| lease == ours)))
    }

    /// The names of all `Operator`s.
    async fn operators(&self) -> Result<Vec<String>, Failure> {
        match self.cluster.list(&crate::operators::kind(), None, "").await {
            Err(error) if error.class == Class::NotFound => Ok(Vec::new()),
            all => {
                let all = all.map_err(|error| refused("the Operators cannot be listed", &error))?;
                Ok(all.iter().map(name_of).map(str::to_owned).collect())
            }
        }
    }

    /// Keeps or deletes the installed packages, as `--packages` says.
    async fn packages(
        &self,
        server: &Server,
        args: &Args,
        crds: &[Value],
        deadline: Instant,
    ) -> Result<(), Failure> {
        let names = self.operators().await?;
        match args.packages {
            Some(Packages::Keep) => return Ok(()),
            Some(Packages::Delete) => {
                for name in &names {
                    let left = deadline.saturating_duration_since(Instant::now());
                    operators::with_instances(server, name, left).await?;
                }
            }
            None if !names.is_empty() => {
                let (word, names) = (if names.len() == 1 { "package is" } else { "packages are" }, names);
                return Err(format!(
                    "{} {word} installed: {}\n  help: --packages delete uninstalls them with all instances and children, \
                     --packages keep leaves all of it as it is, without a manager",
                    names.len(),
                    printable(&names.join(", "))
                )
                .into());
            }
            None => {}
        }
        self.no_instances(crds).await
    }

    /// Fails if CRDs of packages without an `Operator` still have instances.
    async fn no_instances(&self, crds: &[Value]) -> Result<(), Failure> {
        let Some(left) = operators::instances_of(self.cluster, crds).await? else { return Ok(()) };
        Err(format!(
            "packages that are not installed have {left}\n  help: their deletion waits for a manager: delete them first, or \
             --packages keep leaves them as they are"
        )
        .into())
    }

    /// Waits until no pod of the Deployment is left, and nobody leads.
    async fn ended(&self, timeout: Duration) -> Result<(), Failure> {
        let (pods, leases) =
            (ApiKind::built_in("v1", "Pod"), ApiKind::built_in("coordination.k8s.io/v1", "Lease"));
        let labels = objects::selector_text();
        // When the Lease was renewed last at the time when no pod was left: only a manager without a pod
        // renews it later.
        let mut last = None;
        let look = async || {
            let left = self.cluster.list(&pods, Some(self.namespace()), &labels).await;
            let left = left.map_err(|error| refused("the pods of the manager cannot be listed", &error))?;
            let lease = self.get(&leases, Some(self.namespace()), MANAGER).await?.unwrap_or_default();
            Ok(match (left.len(), leader(&lease, crate::clock::now())) {
                (0, None) => Look::Done(()),
                (0, Some(holder)) => {
                    let held = format!("{} still holds the Lease of the manager", printable(holder));
                    let renewed = &lease["spec"]["renewTime"];
                    if last.get_or_insert_with(|| renewed.clone()) == renewed {
                        Look::Waits(held)
                    } else {
                        let failure = format!("{held}, and renews it\n  help: {HELP}");
                        Look::Blocked(Failure::with_code(BLOCKED, failure), Duration::ZERO)
                    }
                }
                (1, _) => Look::Waits("a pod of the manager is ending".to_owned()),
                (count, _) => Look::Waits(format!("{count} pods of the manager are ending")),
            })
        };
        Wait::new(EVERY, timeout).until(|waiting| format!("{waiting}\n  help: {HELP}"), look).await
    }

    /// Deletes the objects that the manager needs to run. Objects of these names that others have made stay,
    /// and so do the roles of a manager in another namespace.
    async fn own_objects(&self) -> Result<(), Failure> {
        let mut kept = HashSet::new();
        for Part { object, .. } in objects::all(&self.settings).iter().rev().filter(|part| !part.is_shared) {
            let Some(gvk) = Gvk::of(object) else { continue };
            let (kind, name) = (objects::kind_of(&gvk), name_of(object));
            let namespace = object["metadata"]["namespace"].as_str();
            let Some(live) = self.get(&kind, namespace, name).await? else { continue };
            let is_ours = is_policy(object) || Owner::of(&live) == Owner::Manager;
            // A binding comes before its role.
            let role = (kind.kind.trim_end_matches("Binding").to_owned(), namespace, name);
            if !is_ours || live["subjects"] != object["subjects"] || kept.contains(&role) {
                out::line(format!("{} {name} stays: something else has made or uses it", kind.kind));
                kept.insert(role);
                continue;
            }
            self.delete(&kind, &live).await?;
        }
        for (kind, name) in [
            (ApiKind::built_in("coordination.k8s.io/v1", "Lease"), MANAGER),
            (ApiKind::built_in("v1", "Secret"), WEBHOOK),
        ] {
            if let Some(live) = self.get(&kind, Some(self.namespace()), name).await? {
                self.delete(&kind, &live).await?;
            }
        }
        Ok(())
    }

    /// Deletes what only packages and instances need, once none of them is left.
    async fn all_else(&self) -> Result<(), Failure> {
        if let Some(first) = self.operators().await?.first() {
            return Err(format!(
                "the manager is removed, and the rest stays: meanwhile the package {} was installed",
                printable(first)
            )
            .into());
        }
        self.no_instances(&self.package_crds().await?.0).await?;
        let all = objects::all(&self.settings);
        let shared = all.iter().filter(|part| part.is_shared).map(|part| &part.object);
        let bound = shared.clone().rev().filter(|object| is_policy(object));
        let defined = shared.filter(|object| object["kind"] == "CustomResourceDefinition");
        for object in bound.chain(defined) {
            let Some(gvk) = Gvk::of(object) else { continue };
            let (kind, name) = (objects::kind_of(&gvk), name_of(object));
            if let Some(live) = self.get(&kind, None, name).await? {
                self.delete(&kind, &live).await?;
            }
        }
        let secret = ApiKind::built_in("v1", "Secret");
        if let Some(live) = self.get(&secret, Some(self.namespace()), names::KEY_SECRET).await? {
            self.delete(&secret, &live).await?;
        }
        let namespace = ApiKind::built_in("v1", "Namespace");
        match self.get(&namespace, None, self.namespace()).await? {
            Some(live) if Owner::of(&live) == Owner::Manager => {
                self.delete_namespace(&namespace, &live).await?;
            }
            Some(_) => {
                let namespace = self.namespace();
                out::line(format!("Namespace {namespace} stays: `operetta manager install` has not made it"));
            }
            None => {}
        }
        out::line("the manager and all that was its own are removed");
        Ok(())
    }

    /// Deletes the namespace. The end of its deletion is not awaited: it takes as long as that of all objects
    /// in it.
    async fn delete_namespace(&self, kind: &ApiKind, live: &Value) -> Result<(), Failure> {
        operators::begin_deletion(self.cluster, kind, live).await?;
        out::line(format!("Namespace {} is being deleted", self.namespace()));
        Ok(())
    }

    /// Whether instances of the CRD are converted by the manager of this namespace.
    fn converts(&self, crd: &Value) -> bool {
        let service = crd.pointer("/spec/conversion/webhook/clientConfig/service");
        service.is_some_and(|service| service["name"] == WEBHOOK && service["namespace"] == *self.namespace())
    }
}

fn refused(what: &str, error: &CallError) -> Failure {
    let help = if error.is_unauthorized() {
        "\n  help: the manager is removed by an administrator, as it was installed"
    } else {
        ""
    };
    format!("{what}: {}{help}", printable(&error.to_string())).into()
}
