//! `operetta rbac`: prints the RBAC objects that packages need.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::Value;

use super::command::{Failure, Format, end};
use super::{connect, out};
use crate::api::{ApiKind, Apis, CallError, Gvk};
use crate::children::crds::ChildScope;
use crate::children::names::MANAGER_NAMESPACE;
use crate::children::{names, package_of_crd_value};
use crate::cluster::Cluster;
use crate::naming;
use crate::package::Package;
use crate::rights::{self, Placement, Right, Rights};

/// Print the RBAC objects that packages need
///
/// Derives from all branches of the templates, refs and plans what the manager does for the package, and adds
/// `permissions` of operator.yaml. For each package it prints the service account `operetta-PACKAGE` in the manager's
/// namespace, with the rights to the children and refs of the instances; what the manager itself needs for the package, which
/// is access to the instances and to impersonate this account; and roles for the users of its kinds, which are aggregated to
/// the roles `view`, `edit` and `admin`.
///
/// The command needs no cluster. With --cluster it also grants what the manager needs to delete children of kinds that the
/// package has no more. Use it for an upgrade; apply the output without those rules when they are deleted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta rbac operators/etcd
  operetta rbac operators/* | kubectl apply --server-side -f -
  operetta rbac operators/etcd --namespace team-a --namespace team-b   # Roles there, no ClusterRole
  operetta rbac operators/etcd --cluster | kubectl apply --server-side -f -      # before an upgrade
  operetta rbac operators/etcd -o json | jq '.items[] | select(.kind == \"ClusterRole\").rules'

Exit codes: 0 success, 1 a package cannot be loaded, or no API server (--cluster), 2 wrong usage.")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// Grant the rights in this namespace only, by a role; repeatable [default: in all, by a cluster role]
    #[arg(short, long = "namespace", value_name = "NAMESPACE", value_parser = namespace)]
    namespaces: Vec<String>,

    /// The manager's namespace, where the accounts are
    #[arg(long, value_name = "NAMESPACE", default_value = MANAGER_NAMESPACE, value_parser = namespace)]
    manager_namespace: String,

    /// Also for kinds of which the kubeconfig's cluster may have children of an earlier revision
    #[arg(long)]
    pub(super) cluster: bool,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Yaml, value_name = "FORMAT")]
    output: Format,
}

pub(super) fn namespace(text: &str) -> Result<String, String> {
    naming::check_namespace(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// Prints the objects. Returns the documented exit codes.
pub(super) fn run(args: &Args) -> ExitCode {
    print(args, &Live::default())
}

/// Prints the objects with the kinds and records that the cluster knows. Returns the documented exit codes.
pub(super) async fn run_in_cluster(args: &Args) -> ExitCode {
    let live = async || -> Result<Live, Failure> {
        let server = connect::connect().await?;
        Ok(Live::read(&server.cluster).await.map_err(|error| error.to_string())?)
    };
    end(live().await.map(|live| print(args, &live)))
}

/// What a cluster knows of packages; nothing without a cluster.
#[derive(Default)]
pub(super) struct Live {
    apis: Option<Apis>,
    /// The record of each kind of instances, with its package.
    records: Vec<(String, ChildScope)>,
}

impl Live {
    pub(super) async fn read(cluster: &Cluster) -> Result<Self, CallError> {
        let crds = cluster.list(&ApiKind::crd(), None, names::OPERATOR).await?;
        let records = crds.iter().filter_map(|crd| Some((package_of_crd_value(crd)?, ChildScope::of(crd))));
        Ok(Self { apis: Some(cluster.discover().await?), records: records.collect() })
    }

    fn served(&self, gvk: &Gvk) -> Option<ApiKind> {
        let found = self.apis.as_ref()?.find_in_any_version(gvk).ok().flatten();
        found.map(|served| ApiKind::clone(&served.kind))
    }

    /// The rights to children that earlier revisions have left.
    fn former(&self, package: &Package) -> Rights {
        let of_package = self.records.iter().filter(|(name, _)| *name == package.name);
        let served = |gvk: &Gvk| self.served(gvk);
        of_package.flat_map(|(_, record)| former(package, record, &served)).collect()
    }
}

/// The rights to children of kinds that a package has no more.
fn former(package: &Package, record: &ChildScope, served: &dyn Fn(&Gvk) -> Option<ApiKind>) -> Vec<Right> {
    let kinds = record.kinds.iter().filter(|gvk| !package.has_child_kind(gvk)).cloned().collect();
    rights::former(&kinds, &record.namespaces, served).iter().cloned().collect()
}

fn print(args: &Args, live: &Live) -> ExitCode {
    let Some(packages) = super::load::load(&args.packages) else { return ExitCode::FAILURE };
    let namespaces: BTreeSet<String> = args.namespaces.iter().cloned().collect();
    let at = Placement {
        namespaces: (!namespaces.is_empty()).then_some(namespaces),
        ..Placement::everywhere(&args.manager_namespace)
    };
    let objects: Vec<Value> =
        packages.iter().flat_map(|package| objects_beside(package, &packages, live, &at)).collect();
    out::all(&args.output.objects(&objects), ExitCode::SUCCESS)
}

/// The objects of one revision of a package.
pub(super) fn objects_of_revision(package: &Package, live: &Live, at: &Placement) -> Vec<Value> {
    let rights = derived(package, &|gvk| live.served(gvk));
    rights::objects_of_revision(package, &rights, at)
}

/// The objects of a package that is given together with other packages, whose kinds are then known.
fn objects_beside(package: &Package, all: &[Arc<Package>], live: &Live, at: &Placement) -> Vec<Value> {
    let kinds = || all.iter().flat_map(|package| &package.resources).map(|resource| &resource.kind);
    let served = |gvk: &Gvk| rights::find_kind(kinds(), gvk).cloned().or_else(|| live.served(gvk));
    let mut rights = derived(package, &served);
    rights.extend(live.former(package).iter().cloned());
    rights::objects(package, &rights, at)
}

/// The rights of a package. Warns about plurals that are guessed.
fn derived(package: &Package, served: &dyn Fn(&Gvk) -> Option<ApiKind>) -> Rights {
    let derived = rights::derive(&[package], served);
    for gvk in &derived.guessed {
        out::note(format!(
            "warning: package {}: the plural of {gvk} is guessed ({}), and that it is namespaced\n  help: compare \
             with kubectl api-resources",
            package.name,
            ApiKind::built_in(&gvk.api_version, &gvk.kind).plural
        ));
    }
    derived.rights
}
