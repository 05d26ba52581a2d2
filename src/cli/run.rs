//! `operetta run`: the manager, against the kubeconfig's cluster.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ArgAction;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::housekeeping::Housekeeping;
use super::listen::{Listen, address};
use super::webhook::WebhookArgs;
use super::{command, connect, out, serve};
use crate::api::Class;
use crate::children::names::MANAGER_NAMESPACE;
use crate::cluster::{
    AllowedTarget, Cluster, ConnectOptions, Election, Fence, Leadership, LeaseSettings, Requests,
};
use crate::manager::{Config, Manager, Monitor, Phase, Webhook};
use crate::operators;
use crate::package::Package;

/// Run the manager against the kubeconfig's cluster
///
/// Registers the CRDs of the packages, then reconciles every instance of their kinds until SIGINT or SIGTERM. A package
/// that cannot be loaded or registered does not affect others. Instances of a package that is no longer given are not
/// reconciled; their deletion is still completed.
///
/// Without packages it follows the Operators of the cluster, which `operetta install` creates: a package comes, changes
/// its revision and goes while the manager runs.
///
/// Of several managers one is the leader: the holder of a Lease. The others stand by and write nothing. A leader that
/// cannot renew its Lease stops writing at once and exits.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta run                                         # the packages that are installed in the cluster
  operetta run operators/etcd operators/webapp
  KUBECONFIG=staging.yaml operetta run operators/* --log-format json
  operetta run operators/* --listen 0.0.0.0:8080       # in a pod: probes and metrics
  operetta run operators/* --leader-elect=false        # there is no other manager
  operetta run --webhook-listen 0.0.0.0:9443 --webhook-service operetta-system/operetta-webhook

Signals: SIGINT and SIGTERM let turns that are under way end (at most 10 s) and give the Lease back; a second one \
ends at once.

Environment:
  KUBECONFIG  which cluster (default: ~/.kube/config, else that of the pod it runs in)

Exit codes: 0 stopped by a signal, 1 nothing to run, no API server, the Lease lost, or stopped by a second \
signal, 2 wrong usage.")]
pub(super) struct Args {
    /// Folders of packages; without any, the packages of the cluster's Operators
    #[arg(value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// The manager's own namespace, `operator.namespace` in templates [default: the pod's, or operetta-system]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Address of /metrics, /healthz, /readyz and /debug/state; 0 disables them
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = address)]
    listen: Listen,

    /// An address that HTTP calls of packages may reach though it is refused by default, such as 127.0.0.1; repeatable
    #[arg(long = "allow-call-to", value_name = "CIDR|HOST")]
    allow_calls: Vec<AllowedTarget>,

    /// Read and write children and refs as the account of their package, see `operetta rbac`
    ///
    /// The manager then needs no rights to them, and a package can do what its account may. The account of a package is
    /// `operetta-PACKAGE` in the manager's namespace.
    #[arg(long)]
    impersonate: bool,

    #[command(flatten)]
    webhook: WebhookArgs,

    #[command(flatten)]
    election: ElectionArgs,
}

/// The flags of other Kubernetes components.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
struct ElectionArgs {
    /// Write only while holding a Lease, so that one of several managers writes
    #[arg(
        long = "leader-elect",
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    elect: bool,

    /// Identity of this process, which must be unique [default: the host name and a random suffix]
    #[arg(long = "leader-elect-identity", value_name = "NAME")]
    identity: Option<String>,

    /// How long others wait after the leader's last renewal
    #[arg(long = "leader-elect-lease-duration", value_name = "DURATION", default_value = "15s", value_parser = duration)]
    lease_duration: Duration,

    /// How long after its last renewal the leader writes
    #[arg(long = "leader-elect-renew-deadline", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    renew_deadline: Duration,

    /// Interval between attempts to acquire or renew the Lease
    #[arg(long = "leader-elect-retry-period", value_name = "DURATION", default_value = "2s", value_parser = duration)]
    retry_period: Duration,

    /// The name of the Lease
    #[arg(long = "leader-elect-resource-name", value_name = "NAME", default_value = "operetta")]
    lease_name: String,

    /// The namespace of the Lease [default: --namespace]
    #[arg(long = "leader-elect-resource-namespace", value_name = "NAMESPACE")]
    lease_namespace: Option<String>,
}

/// A duration that is not zero.
fn duration(text: &str) -> Result<Duration, String> {
    let found = command::duration(text)?;
    if found.is_zero() { Err("longer than 0s".to_owned()) } else { Ok(found) }
}

impl Args {
    /// Whether folders of packages are given.
    pub(super) fn names_packages(&self) -> bool {
        !self.packages.is_empty()
    }
}

impl ElectionArgs {
    /// Checks the flags for contradictions.
    fn check(&self) -> Result<(), String> {
        let retry = self.retry_period;
        if self.lease_duration <= self.renew_deadline {
            return Err("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline: \
                        who has lost the Lease must have stopped before another begins"
                .into());
        }
        if self.renew_deadline < retry * 2 {
            return Err("--leader-elect-renew-deadline must be at least twice --leader-elect-retry-period: \
                        else one late answer loses the Lease"
                .into());
        }
        if self.lease_duration < Duration::from_secs(1) {
            return Err("--leader-elect-lease-duration must be at least 1s".into());
        }
        Ok(())
    }

    fn identity(&self) -> String {
        self.identity.clone().unwrap_or_else(|| {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("{host}_{:08x}", fastrand::u32(..))
        })
    }
}

pub(super) async fn run(args: &Args) -> ExitCode {
    let mut signals = match super::signals::Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            out::note(format!("error: {error}"));
            return ExitCode::FAILURE;
        }
    };
    if args.election.elect
        && let Err(error) = args.election.check()
    {
        out::note(format!("error: {error}"));
        return ExitCode::from(2);
    }
    if let Err(error) = args.webhook.check() {
        out::note(format!("error: {error}"));
        return ExitCode::from(2);
    }
    let (packages, broken) = super::load::load_all(&args.packages);
    let mut session = Session::default();
    let result = tokio::select! {
        result = session.go(args, packages, broken) => result,
        () = signals.next() => Ok(()),
    };
    match result {
        Ok(()) => {
            info!("stopping");
            tokio::select! {
                () = session.end() => ExitCode::SUCCESS,
                () = signals.next() => {
                    out::note("second signal: exiting at once");
                    ExitCode::FAILURE
                }
            }
        }
        // Running work is not awaited: if another manager is the leader now, this one must end at once.
        Err(error) => {
            out::note(format!("error: {error}"));
            drop(session.manager);
            if let Some(leadership) = session.leadership {
                leadership.release().await;
            }
            ExitCode::FAILURE
        }
    }
}

/// The running parts of a session, which must be stopped.
#[derive(Default)]
struct Session {
    monitor: Arc<Monitor>,
    leadership: Option<Leadership>,
    manager: Option<Manager>,
    /// Serves the endpoints. Stops with the session.
    server: Option<JoinSet<()>>,
    /// The conversion webhook, and its task, which stops with the session.
    webhook: Option<(Arc<Webhook>, JoinSet<()>)>,
    housekeeping: Option<Housekeeping>,
}

impl Session {
    /// Runs until something fails.
    async fn go(
        &mut self,
        args: &Args,
        mut packages: Vec<Arc<Package>>,
        mut broken: Vec<String>,
    ) -> Result<(), String> {
        let housekeeping =
            Housekeeping::start().map_err(|error| format!("no threads can be started: {error}"))?;
        let housekeeping = &*self.housekeeping.insert(housekeeping);
        let requests = Requests::default();
        self.monitor = Arc::new(Monitor::new(&requests));
        self.monitor.cannot_load(broken.clone());
        if let Listen(Some(address)) = args.listen {
            let listener = housekeeping
                .run(TcpListener::bind(address))
                .await?
                .map_err(|error| format!("--listen {address}: {error}"))?;
            let address = listener.local_addr().unwrap_or(address);
            info!(%address, "serving /metrics, /healthz, /readyz and /debug/state");
            self.server = Some(housekeeping.spawn(serve::serve(listener, Arc::clone(&self.monitor))));
        }
        let identity = args.election.identity();
        let fence = if args.election.elect { Fence::shut() } else { Fence::open() };
        let options = ConnectOptions { fence: fence.clone(), requests, identity: identity.clone() };
        let server = connect::connect_with(&options).await?;
        packages.retain(|package| {
            let refused = package.refuses_kubernetes(&server.version);
            if let Some(message) = &refused {
                out::note(format!("error: {message}"));
                broken.push(package.name.clone());
            }
            refused.is_none()
        });
        self.monitor.cannot_load(broken.clone());
        info!(
            server = %server.address,
            context = %server.context,
            kubernetes = %server.version,
            packages = packages.len(),
            broken = broken.len(),
            follows = if args.packages.is_empty() { "the Operators of the cluster" } else { "" },
            "starting"
        );
        let namespace = args.namespace.clone().unwrap_or_else(|| server.namespace(MANAGER_NAMESPACE));
        let lease_namespace = args.election.lease_namespace.clone().unwrap_or_else(|| namespace.clone());
        let webhook = args.webhook.bind(&namespace, &args.election.lease_name).await?;
        let webhook = webhook.map(|(webhook, listener)| {
            let mut task = JoinSet::new();
            // Managers that stand by serve the webhook, too.
            task.spawn(Arc::clone(&webhook).serve(listener, server.cluster.clone()));
            self.webhook = Some((Arc::clone(&webhook), task));
            webhook
        });
        let config = Config {
            webhook,
            lease: format!("{lease_namespace}/{}", args.election.lease_name),
            namespace,
            allow_calls: args.allow_calls.clone(),
            follows_operators: args.packages.is_empty(),
            impersonate: args.impersonate,
            monitor: Arc::clone(&self.monitor),
            ..Config::default()
        };
        if args.election.elect {
            // The Lease has its own connection, which the fence does not close.
            let options = ConnectOptions { fence: Fence::open(), ..options };
            let settings = LeaseSettings {
                namespace: lease_namespace,
                name: args.election.lease_name.clone(),
                identity,
                duration: args.election.lease_duration,
                renew: args.election.renew_deadline,
                retry: args.election.retry_period,
            };
            let monitor = Arc::clone(&self.monitor);
            let standing_by = move |leader: &str| monitor.enter(Phase::StandingBy(leader.to_owned()));
            let looking = tokio::spawn(look_ahead(
                server.cluster.clone(),
                packages.clone(),
                config.follows_operators,
                Arc::clone(&self.monitor),
            ));
            let kubeconfig = server.config.clone();
            // The connection must also be created in that runtime, because its threads serve it.
            let lead = async move {
                let cluster = Cluster::of_config(&kubeconfig, &options).map_err(|e| e.to_string())?;
                Ok::<_, String>(Election::new(cluster, settings, fence).lead(standing_by).await)
            };
            self.leadership = Some(housekeeping.run(lead).await??);
            looking.abort();
        }
        self.monitor.enter(Phase::Leading);
        match &mut self.leadership {
            Some(leadership) => tokio::select! {
                reason = leadership.lost() => {
                    Err(format!("the Lease is lost: {reason}; nothing more is written"))
                }
                result = lead(&mut self.manager, server.cluster, packages, config) => result,
            },
            None => lead(&mut self.manager, server.cluster, packages, config).await,
        }
    }

    /// Stops everything: reconciles first, then the Lease, so that the next leader does not start too early.
    async fn end(self) {
        self.monitor.enter(Phase::Stopping);
        if let Some((webhook, _)) = &self.webhook {
            webhook.retire();
        }
        if let Some(manager) = self.manager {
            manager.stop().await;
        }
        if let Some(leadership) = self.leadership {
            leadership.release().await;
        }
        if let Some((webhook, _)) = &self.webhook {
            webhook.closed().await;
        }
    }
}

/// How often a standby manager checks whether it could take over.
const LOOK_AHEAD: Duration = Duration::from_secs(60);

/// Checks in standby what this process would find as the leader. If it could not work it is not ready, so a rolling
/// update does not replace a working manager by it.
async fn look_ahead(
    cluster: Cluster,
    packages: Vec<Arc<Package>>,
    follows_operators: bool,
    monitor: Arc<Monitor>,
) {
    loop {
        let mut problems = Vec::new();
        if follows_operators {
            // An Operator that is not active is no reason not to lead, and its status says why. Nor is a
            // missing kind: the leader installs it.
            let listed = cluster.list(&operators::kind(), None, "").await;
            let failed = listed.err().filter(|error| error.class != Class::NotFound);
            problems.extend(failed.map(|error| format!("the Operators cannot be listed: {error}")));
        }
        for package in &packages {
            let found = Manager::inspect(&cluster, package).await;
            problems
                .extend(found.iter().map(|problem| format!("package {}: {}", package.name, problem.message)));
        }
        monitor.ahead(problems);
        tokio::time::sleep(LOOK_AHEAD).await;
    }
}

/// Runs the manager until something fails.
async fn lead(
    running: &mut Option<Manager>,
    cluster: Cluster,
    packages: Vec<Arc<Package>>,
    config: Config,
) -> Result<(), String> {
    let follows_operators = config.follows_operators;
    let manager = Manager::start(cluster, packages, config).await.map_err(|error| error.to_string())?;
    let manager = running.insert(manager);
    out::report(&manager.problems);
    if follows_operators {
        return std::future::pending().await;
    }
    let (loaded, orphans) = manager.kinds();
    if loaded + orphans == 0 && !manager.is_retrying {
        return Err(
            "no package could be loaded, and no CRD in the cluster names this manager: nothing to run".into(),
        );
    }
    if loaded == 0 && orphans > 0 {
        warn!(kinds = orphans, "no package could be loaded; deletions of instances are still completed");
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_with_units_are_parsed() {
        for (text, millis) in [("15s", 15_000), ("1m30s", 90_000), ("500ms", 500), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "15", "s", "-1s", "1 s", "0s", "99999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
