//! `operetta rbac`: prints the RBAC objects that packages need.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::out;
use crate::api::{ApiKind, Gvk};
use crate::naming;
use crate::package::Package;
use crate::rights::{self, Placement};
use crate::yaml;

/// Print the RBAC objects that packages need
///
/// Derives from all branches of the templates, refs and plans what the manager does for the package, and adds
/// `permissions` of operator.yaml. For each package it prints
///
/// - the ServiceAccount operetta-PACKAGE in the manager's namespace, and what it may do: the manager reads and writes
///   the children and refs of instances as this account (operetta run --impersonate);
/// - what the manager itself needs for the package: its instances, and to impersonate this account;
/// - roles that are aggregated to the ClusterRoles view, edit and admin, for the users of its kinds.
///
/// The command needs no cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta rbac operators/etcd
  operetta rbac operators/* | kubectl apply --server-side -f -
  operetta rbac operators/etcd --namespace team-a --namespace team-b   # Roles there, no ClusterRole
  operetta rbac operators/etcd -o json | jq '.items[] | select(.kind == \"ClusterRole\").rules'

Exit codes: 0 success, 1 a package cannot be loaded, 2 wrong usage.")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// Grant the rights in this namespace only, by a Role; repeatable [default: in all, by a ClusterRole]
    #[arg(short, long = "namespace", value_name = "NAMESPACE", value_parser = namespace)]
    namespaces: Vec<String>,

    /// The manager's namespace, where the accounts are
    #[arg(long, value_name = "NAMESPACE", default_value = super::run::NAMESPACE, value_parser = namespace)]
    manager_namespace: String,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Yaml, value_name = "FORMAT")]
    output: Output,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// One document per object
    Yaml,
    /// A List
    Json,
}

pub(super) fn namespace(text: &str) -> Result<String, String> {
    naming::check_namespace(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// Prints the objects. Returns the documented exit codes.
pub(super) fn run(args: &Args) -> ExitCode {
    let (packages, broken) = super::load(&args.packages);
    if broken > 0 {
        return ExitCode::FAILURE;
    }
    let namespaces: BTreeSet<String> = args.namespaces.iter().cloned().collect();
    let at = Placement {
        namespaces: (!namespaces.is_empty()).then_some(namespaces),
        ..Placement::everywhere(&args.manager_namespace)
    };
    let objects: Vec<Value> = packages.iter().flat_map(|package| objects(package, &packages, &at)).collect();
    let text = match args.output {
        Output::Yaml => objects.iter().fold(String::new(), |mut text, object| {
            let _ = write!(text, "---\n{}", yaml::to_string(object));
            text
        }),
        Output::Json => format!("{:#}\n", json!({"apiVersion": "v1", "kind": "List", "items": objects})),
    };
    out::all(&text, ExitCode::SUCCESS)
}

fn objects(package: &Package, all: &[Arc<Package>], at: &Placement) -> Vec<Value> {
    let served = |gvk: &Gvk| -> Option<ApiKind> {
        let resources = all.iter().flat_map(|package| &package.resources);
        let mut kinds = resources.map(|resource| &resource.kind);
        kinds.find(|kind| kind.group == gvk.group() && kind.kind == *gvk.kind).cloned()
    };
    let derived = rights::derive(&[package], &served);
    for gvk in &derived.guessed {
        out::note(format!(
            "warning: package {}: the plural of {gvk} is guessed ({}), and that it is namespaced\n  help: compare \
             with kubectl api-resources",
            package.name,
            ApiKind::built_in(&gvk.api_version, &gvk.kind).plural
        ));
    }
    rights::objects(package, &derived.rights, at)
}
