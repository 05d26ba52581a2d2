//! `operetta run`: the manager, against the kubeconfig's cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use tracing::{info, warn};

use super::{connect, out};
use crate::manager::{Config, Manager};

/// Run the manager against the kubeconfig's cluster
///
/// Registers the CRDs of the packages, then reconciles every instance of their kinds until it is told to
/// stop (SIGINT or SIGTERM). A package that cannot be loaded or registered stops no other. Instances of a
/// package that is not given any more are left as they are, and helped to go when they are deleted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta run operators/etcd operators/webapp
  KUBECONFIG=staging.yaml operetta run operators/* --log-format json

Exit codes: 0 stopped by a signal, 1 nothing to run or no API server, 2 wrong usage.")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// The manager's own namespace, `operator.namespace` in templates
    #[arg(long, default_value = "operetta-system", value_name = "NAMESPACE")]
    namespace: String,
}

pub(super) async fn run(args: &Args) -> ExitCode {
    let (packages, broken) = super::load(&args.packages);
    let server = match connect::connect().await {
        Ok(server) => server,
        Err(error) => {
            out::note(format!("error: {error}"));
            return ExitCode::FAILURE;
        }
    };
    info!(
        server = %server.address,
        context = %server.context,
        kubernetes = %server.version,
        packages = packages.len(),
        broken,
        "starting"
    );
    let config = Config { namespace: args.namespace.clone(), ..Config::default() };
    let manager = match Manager::start(server.cluster, packages, config).await {
        Ok(manager) => manager,
        Err(error) => {
            out::note(format!("error: {error}"));
            return ExitCode::FAILURE;
        }
    };
    super::report(&manager.problems);
    let (loaded, orphans) = manager.kinds();
    if loaded + orphans == 0 {
        out::note(
            "error: no package could be loaded, and the cluster has no kind of Operetta: nothing to run",
        );
        return ExitCode::FAILURE;
    }
    if loaded == 0 {
        warn!(
            kinds = orphans,
            "no package could be loaded; instances that are being deleted are still helped to go"
        );
    }
    super::shutdown().await;
    info!("stopping");
    manager.stop().await;
    ExitCode::SUCCESS
}
