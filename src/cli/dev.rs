//! `operetta dev`: an API server, the packages and the manager in one, for trying things.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use tokio::time::Instant;

use super::instances::{self, Applied};
use super::view::View;
use crate::cluster::Cluster;
use crate::local::{self, ControlPlane};
use crate::manager::{Config, Manager};

/// Try packages: brings an API server, installs them, runs the manager and shows what happens
///
/// Starts a Kubernetes control plane on this machine (etcd, kube-apiserver, controllers, and fake nodes whose
/// pods are ready at once), registers the packages' kinds, reconciles their instances, and shows instances
/// and children live. The first start builds the control plane with Go, which takes some minutes; later
/// ones take seconds. Ctrl-C ends it all and leaves nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta dev operators/etcd --apply examples/etcd/example-etcd-cluster.yaml
  operetta dev operators/* --cluster current           # the kubeconfig's cluster instead
  operetta dev operators/etcd --apply my.yaml --until-ready    # for scripts: exit 0 once all is Ready

Exit codes: 0 ended by Ctrl-C, or all Ready with --until-ready; 1 something failed; 2 wrong usage.")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(required = true, value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// Files of manifests to apply once the packages are installed
    #[arg(long, value_name = "FILE", num_args = 1..)]
    apply: Vec<PathBuf>,

    /// Which API server
    #[arg(long, value_enum, default_value_t = Which::Local)]
    cluster: Which,

    /// How many fake nodes (--cluster local)
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    nodes: usize,

    /// End as soon as all that was applied is Ready
    #[arg(long, requires = "apply")]
    until_ready: bool,

    /// How long --until-ready waits, in seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,

    /// Print a line a change even on a terminal
    #[arg(long)]
    plain: bool,
}

/// Which API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// A control plane on this machine, gone afterwards
    Local,
    /// The kubeconfig's current context
    Current,
}

impl Args {
    /// Whether a table that is drawn anew is wanted.
    pub(super) fn wants_live_view(&self) -> bool {
        !self.plain && !self.until_ready
    }
}

pub(super) async fn run(args: &Args, view: &Arc<View>) -> ExitCode {
    // Everything that can be wrong without a cluster is told before one is started.
    let (packages, broken) = super::load(&args.packages);
    let manifests = match instances::read(&args.apply) {
        Ok(manifests) => manifests,
        Err(errors) => {
            super::report(&errors);
            return ExitCode::FAILURE;
        }
    };
    if broken > 0 {
        return ExitCode::FAILURE;
    }
    tokio::select! {
        code = session(args, view, packages, manifests) => code,
        () = super::shutdown() => {
            eprintln!("\nstopping");
            ExitCode::SUCCESS
        }
    }
}

async fn session(
    args: &Args,
    view: &Arc<View>,
    packages: Vec<Arc<crate::package::Package>>,
    manifests: Vec<instances::Manifest>,
) -> ExitCode {
    let fail = |error: &dyn std::fmt::Display| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    };
    let (plane, cluster) = match args.cluster {
        Which::Local => {
            let progress = Arc::new(|step: &local::Progress| eprintln!("{step}"));
            let options = local::Options { nodes: args.nodes, progress, ..local::Options::default() };
            let plane = match ControlPlane::start(options).await {
                Ok(plane) => plane,
                Err(error) => return fail(&error),
            };
            let cluster = match Cluster::of_kubeconfig(plane.kubeconfig_path()).await {
                Ok(cluster) => cluster,
                Err(error) => return fail(&error),
            };
            println!("export KUBECONFIG={}", plane.kubeconfig_path().display());
            (Some(plane), cluster)
        }
        Which::Current => match Cluster::connect().await {
            Ok(cluster) => (None, cluster),
            Err(error) => return fail(&error),
        },
    };
    let config = Config { observer: Some(view.observer()), ..Config::default() };
    let manager = match Manager::start(cluster.clone(), packages, config).await {
        Ok(manager) => manager,
        Err(error) => return fail(&error),
    };
    super::report(&manager.problems);
    if !manager.problems.is_empty() {
        return ExitCode::FAILURE;
    }
    let applied = match instances::apply(&cluster, manifests).await {
        Ok(applied) => applied,
        Err(errors) => {
            super::report(&errors);
            return ExitCode::FAILURE;
        }
    };
    let code = if args.until_ready {
        until_ready(&cluster, &applied, Duration::from_secs(args.timeout)).await
    } else {
        tokio::select! {
            () = view.draw() => ExitCode::SUCCESS,
            error = failure(plane.as_ref()) => fail(&error),
        }
    };
    manager.stop().await;
    if let Some(plane) = plane {
        plane.stop().await;
    }
    code
}

/// Ends when a part of the control plane does.
async fn failure(plane: Option<&ControlPlane>) -> local::Error {
    match plane {
        Some(plane) => plane.failure().await,
        None => std::future::pending().await,
    }
}

/// Waits until all objects are Ready at their newest generation.
async fn until_ready(cluster: &Cluster, applied: &[Applied], timeout: Duration) -> ExitCode {
    let deadline = Instant::now() + timeout;
    for Applied { kind, namespace, name } in applied {
        loop {
            let live = cluster.get(kind, namespace.as_deref(), name).await;
            let waits = match &live {
                Ok(Some(object)) => match crate::readiness::of_custom(object, true) {
                    crate::readiness::Readiness::Ready => break,
                    crate::readiness::Readiness::NotReady { message, .. }
                    | crate::readiness::Readiness::Failed { message, .. } => message,
                    crate::readiness::Readiness::Terminating => "is being deleted".to_owned(),
                },
                Ok(None) => "is gone".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                eprintln!("error: {} {name} is not ready after {} s: {waits}", kind.kind, timeout.as_secs());
                return ExitCode::FAILURE;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("{} {name} is Ready", kind.kind);
    }
    ExitCode::SUCCESS
}
