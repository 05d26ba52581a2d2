//! `operetta manager install`: applies the objects of the manager, and waits until it is ready.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::objects::{self, Settings};
use super::status;
use crate::api::{ApiKind, Class, Gvk};
use crate::children::names::MANAGER_NAMESPACE;
use crate::cli::command::{Manifests, TIMED_OUT, duration};
use crate::cli::connect::{self, ClusterOptions};
use crate::cli::{out, rbac};
use crate::cluster::Cluster;
use crate::rights::MANAGER;

/// The field manager of the objects.
const FIELD_MANAGER: &str = "operetta-install";
/// How often the Deployment is read.
const EVERY: Duration = Duration::from_secs(1);

/// Apply the objects of the manager, and wait until it is ready
///
/// Applies by server-side apply: the namespace, the CRDs of Operetta with their policy, the account of the manager with its
/// roles, a deployment, its disruption budget, and a service for metrics. With --dry-run -o yaml it prints them for Git, and
/// needs no cluster: `kubectl apply --server-side` of that does the same. It can be repeated, and it upgrades.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta manager install --image registry.example.org/operetta:0.1.0
  operetta manager install --dry-run -o yaml | kubectl apply --server-side -f -

Exit codes: 0 the manager is ready (without --wait: applied); 1 refused, or no API server; 2 wrong usage; 4 --timeout is \
over, and the installation continues.")]
pub(super) struct Args {
    /// The manager's namespace
    #[arg(short, long, value_name = "NAMESPACE", default_value = MANAGER_NAMESPACE, value_parser = rbac::namespace)]
    namespace: String,

    /// The manager's image, which the nodes must be able to pull
    #[arg(long, value_name = "IMAGE", default_value = objects::IMAGE)]
    image: String,

    /// How many managers run: one leads, the others stand by
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,

    /// Print the objects instead of applying them
    #[arg(long)]
    dry_run: bool,

    /// Output format with --dry-run
    #[arg(short, long, value_enum, value_name = "FORMAT", requires = "dry_run")]
    output: Option<Manifests>,

    /// Wait until the manager is ready
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    wait: bool,

    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    cluster: ClusterOptions,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    let settings =
        Settings { namespace: args.namespace.clone(), image: args.image.clone(), replicas: args.replicas };
    let objects = objects::all(&settings);
    if args.dry_run {
        return out::all(&args.output.unwrap_or(Manifests::Yaml).text(&objects), ExitCode::SUCCESS);
    }
    let server = match connect::connect_in(&args.cluster).await {
        Ok(server) => server,
        Err(error) => {
            out::note(format!("error: {error}"));
            return ExitCode::FAILURE;
        }
    };
    for object in &objects {
        match apply(&server.cluster, object).await {
            Ok(what) => out::note(format!("{what} applied")),
            Err(error) => {
                out::note(format!("error: {error}"));
                return ExitCode::FAILURE;
            }
        }
    }
    if args.wait { ready(&server.cluster, args).await } else { ExitCode::SUCCESS }
}

/// Applies an object; returns its kind and name.
async fn apply(cluster: &Cluster, object: &Value) -> Result<String, String> {
    let Some(gvk) = Gvk::of(object) else { return Err("an object has no kind".to_owned()) };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let what = format!("{} {name}", gvk.kind);
    let kind = ApiKind::built_in(&gvk.api_version, &gvk.kind);
    match cluster.apply(&kind, object, FIELD_MANAGER, true).await {
        Ok(_) => Ok(what),
        Err(error) if error.code == 403 && error.is_unauthorized() => Err(format!(
            "{what}: {error}\n  help: installing needs the rights of an administrator: who grants rights must have them"
        )),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// Waits until all replicas of the newest revision are ready and one of them leads.
async fn ready(cluster: &Cluster, args: &Args) -> ExitCode {
    let until = Instant::now() + args.timeout;
    let kind = ApiKind::built_in("apps/v1", "Deployment");
    let mut told = String::new();
    loop {
        let state = match cluster.get(&kind, Some(&args.namespace), MANAGER).await {
            Ok(Some(deployment)) => status::progress(&deployment),
            Ok(None) => Err("the Deployment is gone".to_owned()),
            Err(error) if error.class == Class::Retry => Err(error.to_string()),
            Err(error) => {
                out::note(format!("error: {error}"));
                return ExitCode::FAILURE;
            }
        };
        match state {
            Ok(done) => {
                out::note(done);
                return ExitCode::SUCCESS;
            }
            Err(waiting) if Instant::now() >= until => {
                out::note(format!(
                    "error: not ready within {} s: {waiting}\n  help: kubectl -n {} describe pods -l \
                     app.kubernetes.io/name={MANAGER}",
                    args.timeout.as_secs(),
                    args.namespace
                ));
                return ExitCode::from(TIMED_OUT);
            }
            Err(waiting) if waiting != told => {
                out::note(&waiting);
                told = waiting;
            }
            Err(_) => {}
        }
        tokio::time::sleep(EVERY).await;
    }
}
