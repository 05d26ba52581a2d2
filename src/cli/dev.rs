//! `operetta dev`: an API server, the packages and the manager in one process, for trying things.

mod reload;
mod worlds;

use std::fmt::Display;
use std::io::IsTerminal;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::ArgPredicate;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::Instant;

use operetta_embedded::World;
use reload::{Change, Packages};
use worlds::Worlds;

use super::instances::{self, Applied, Manifest};
use super::signals::Signals;
use super::view::View;
use super::wait::{Look, Wait};
use super::{command, out, webhook};
use crate::apiserver::{Listener, Server};
use crate::clock;
use crate::cluster::{AllowedTarget, Cluster};
use crate::local::{self, ControlPlane, Progress};
use crate::manager::{Config, Manager, Webhook, WebhookAddress};
use crate::package::Package;
use crate::package::image::{Image, read_images};
use crate::readiness::{self, Readiness};

/// The exit code of wrong usage.
const USAGE: u8 = 2;

/// How long an instance must be Stalled until `--until-ready` gives up.
const HOLDS: Duration = Duration::from_secs(10);

/// Try packages: starts an API server, installs them, runs the manager and shows the instances
///
/// Serves a Kubernetes API from its own process, registers the packages' kinds, reconciles their instances, and shows
/// instances and children live. kubectl and other clients can use the API; no containers run. When a file of a package
/// changes, the package is reloaded; while it has errors, its last good version stays active. A CRD or an instance that the
/// API server refuses is reported, and `dev` continues.
///
/// With --cluster local, the API server is a real Kubernetes control plane on this machine (etcd, kube-apiserver, controllers,
/// and fake nodes whose pods are ready at once). The first such start builds it with Go, which takes some minutes; later
/// starts take seconds. Ctrl-C stops everything and removes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta dev operators/etcd --apply examples/etcd/example-etcd-cluster.yaml
  operetta dev operators/* --cluster local             # a real kube-apiserver on this machine
  operetta dev operators/* --cluster current           # the kubeconfig's cluster instead
  operetta dev operators/etcd --node                   # a real node, on which pods run: as root
  operetta dev operators/etcd --apply my.yaml --until-ready    # for scripts: exit 0 once all is Ready
  operetta dev --no-controllers --plain                # an API server alone, as envtest starts it

Environment:
  KUBECONFIG         the kubeconfig of --cluster current
  OPERETTA_CACHE     where the control plane of --cluster local is kept (default: ~/.cache/operetta)
  KUBEBUILDER_ASSETS a folder with kube-apiserver, etcd and the rest, so that --cluster local builds nothing
  TMPDIR             where the folder with the printed kubeconfig is made

Exit codes: 0 ended by Ctrl-C, or all Ready with --until-ready; 1 something failed, or --until-ready was \
interrupted; 2 wrong usage.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(super) struct Args {
    /// Folders of packages
    #[arg(required_unless_present = "no_controllers", value_name = "PACKAGE")]
    packages: Vec<PathBuf>,

    /// Files of manifests to apply once the packages are installed
    #[arg(long, value_name = "FILE", num_args = 1..)]
    apply: Vec<PathBuf>,

    /// Which API server; --node means `local`
    #[arg(
        long, value_enum, default_value_t = Which::Embedded,
        default_value_if("node", ArgPredicate::Equals("true".into()), "local")
    )]
    cluster: Which,

    /// Only the API server, for test suites that expect envtest: no pods, no default accounts, no garbage collection, and
    /// deleted namespaces stay; without a package no manager runs (--cluster embedded)
    #[arg(long)]
    no_controllers: bool,

    /// Number of fake nodes (--cluster local)
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    nodes: usize,

    /// A real node instead of fake ones, on which pods run (--cluster local; Linux, as root)
    #[arg(long, conflicts_with = "nodes")]
    node: bool,

    /// An OCI layout whose images the real node has besides its own, see `operetta manager image`; repeatable
    #[arg(long = "image", value_name = "FOLDER", requires = "node")]
    images: Vec<PathBuf>,

    /// An address that HTTP calls of packages may reach though it is refused by default, such as 127.0.0.1; repeatable
    #[arg(long = "allow-call-to", value_name = "CIDR|HOST")]
    allow_calls: Vec<AllowedTarget>,

    /// Stop when all applied instances are Ready
    #[arg(long, requires = "apply")]
    until_ready: bool,

    /// Timeout of --until-ready, in seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,

    /// Print one line per change, also on a terminal
    #[arg(long)]
    plain: bool,
}

/// Which API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// A model of one in this process, which needs nothing else
    Embedded,
    /// A control plane on this machine, removed afterwards
    Local,
    /// The kubeconfig's current context
    Current,
}

impl Args {
    /// Whether to draw a table.
    pub(super) fn wants_live_view(&self) -> bool {
        !self.plain && !self.until_ready
    }
}

pub(super) async fn run(args: &Args, view: &Arc<View>) -> ExitCode {
    if args.node && args.cluster != Which::Local {
        out::note("error: --node needs --cluster local");
        return ExitCode::from(USAGE);
    }
    if args.no_controllers && args.cluster != Which::Embedded {
        out::note("error: --no-controllers needs --cluster embedded");
        return ExitCode::from(USAGE);
    }
    // Errors that need no cluster are reported before one is started.
    let packages = super::load::load(&args.packages);
    let manifests = instances::read(&args.packages, &args.apply);
    if let Err(errors) = &manifests {
        out::report(errors);
    }
    let worlds = Worlds::read(if args.cluster == Which::Embedded { &args.packages } else { &[] }).await;
    let world = worlds.compile();
    if let Err(errors) = &world {
        out::report(errors);
    }
    let mut described = Vec::new();
    let mut has_images = true;
    for package in args.packages.iter().filter(|_| args.node) {
        match read_images(package) {
            Ok(images) => described.extend(images),
            Err(errors) => {
                out::report(&errors);
                has_images = false;
            }
        }
    }
    let (Some(packages), Ok(manifests), Ok(world), true) = (packages, manifests, world, has_images) else {
        return ExitCode::FAILURE;
    };
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            out::note(format!("error: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let mut session = Session { described, ..Session::default() };
    let result = tokio::select! {
        result = session.go(args, view, (packages, manifests), (worlds, world)) => result,
        // The table is drawn after the first permanent line is known.
        () = view.draw(), if !args.until_ready => Ok(()),
        () = signals.next() => {
            view.finish();
            out::note("\nstopping");
            if args.until_ready { Err("interrupted before all was Ready".into()) } else { Ok(()) }
        }
    };
    view.finish();
    if let Err(Failure(Some(error))) = &result {
        out::note(format!("error: {error}"));
    }
    tokio::select! {
        () = session.end(view) => {}
        // A second signal ends the process at once. The control plane stops by itself.
        () = signals.next() => {}
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Why a session has ended; `None` if that is already reported.
struct Failure(Option<String>);

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(Some(error.to_string()))
    }
}

/// The running parts of a session, which must be stopped.
#[derive(Default)]
struct Session {
    /// The images that the packages describe, until the node is started.
    described: Vec<Image>,
    /// Serves the conversion webhook. Stops with the session.
    webhook: Option<JoinSet<()>>,
    plane: Option<ControlPlane>,
    embedded: Option<Embedded>,
    manager: Option<Manager>,
}

/// The embedded API. It ends when this is dropped.
struct Embedded {
    server: Server,
    /// Its controllers, and the connections to it.
    _tasks: JoinSet<()>,
    /// The folder with the kubeconfig.
    _folder: TempDir,
}

impl Session {
    /// Starts everything, and shows changes until the session ends.
    async fn go(
        &mut self,
        args: &Args,
        view: &Arc<View>,
        (packages, manifests): (Vec<Arc<Package>>, Vec<Manifest>),
        (mut worlds, world): (Worlds, World),
    ) -> Result<(), Failure> {
        let cluster = match args.cluster {
            Which::Embedded => self.embedded(args, world, view).await?,
            Which::Local => self.local(args, view).await?,
            Which::Current => {
                let server = super::connect::connect().await?;
                view.keep(format!("context {}, {}", server.context, server.address));
                server.cluster
            }
        };
        if packages.iter().any(|package| package.kubernetes.is_some()) {
            let version = cluster.version().await?;
            if let Some(message) = packages.iter().find_map(|package| package.refuses_kubernetes(&version)) {
                return Err(message.into());
            }
        }
        // `dev` has a Lease of its own, so a manager in the same cluster keeps its kinds.
        let lease = "operetta-system/operetta-dev".to_owned();
        let webhook = match args.cluster {
            // Only an API server on this machine can call a webhook on the loopback address.
            Which::Local => {
                let listen = (Ipv4Addr::LOCALHOST, 0).into();
                let namespace = Config::default().namespace;
                let (webhook, listener) = webhook::bind(listen, None, &namespace, "operetta-dev").await?;
                let mut task = JoinSet::new();
                task.spawn(Arc::clone(&webhook).serve(listener, cluster.clone()));
                self.webhook = Some(task);
                Some(webhook)
            }
            Which::Embedded => Some(Webhook::new(WebhookAddress::Process, "", "")),
            Which::Current => None,
        };
        let config = Config {
            webhook,
            observer: Some(view.observer()),
            lease,
            allow_calls: args.allow_calls.clone(),
            ..Config::default()
        };
        let mut packages = Packages::new(&args.packages, packages);
        if !args.packages.is_empty() {
            manage(&mut self.manager, &cluster, &packages, &config, view).await?;
        }
        let has_problems = self.manager.as_ref().is_some_and(|manager| !manager.problems.is_empty());
        let (applied, refused) = apply(&cluster, manifests, view).await;
        if args.until_ready {
            if has_problems || !refused.is_empty() {
                return Err(Failure(None));
            }
            let ready = until_ready(&cluster, &applied, Duration::from_secs(args.timeout)).await;
            return ready.map_err(|failure| Failure(Some(failure.message)));
        }
        let Self { plane, embedded, manager, .. } = self;
        tokio::select! {
            error = failure(plane.as_ref()) => Err(error.into()),
            () = replay(&mut worlds, embedded.as_ref(), view) => Ok(()),
            result = reload(manager, &cluster, &mut packages, refused, &config, view) => result,
        }
    }

    /// Serves the embedded API and prints how to connect to it.
    async fn embedded(&mut self, args: &Args, world: World, view: &View) -> Result<Cluster, Failure> {
        let server = if args.no_controllers {
            Server::without_controllers(clock::now)
        } else {
            Server::new(clock::now)
        };
        play(&server, world);
        let listener = Listener::bind(0, clock::now()).await?;
        let failed = |error: std::io::Error| format!("the kubeconfig cannot be written: {error}");
        let own = std::fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("operetta-dev-").permissions(own).tempdir();
        let folder = folder.map_err(failed)?;
        let kubeconfig = folder.path().join("kubeconfig");
        listener.write_kubeconfig(&kubeconfig).map_err(failed)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(listener.serve(server.clone()));
        let controllers = server.clone();
        tasks.spawn(async move { controllers.run().await });
        self.embedded = Some(Embedded { server: server.clone(), _tasks: tasks, _folder: folder });
        tell(&kubeconfig, view);
        if !is_in_path("kubectl") {
            view.keep(
                "kubectl is not in PATH; `operetta get` and `operetta tree` need the KUBECONFIG only"
                    .to_owned(),
            );
        }
        Ok(Cluster::over(server.client(), server.outside()))
    }

    /// Starts a control plane and prints how to connect to it.
    async fn local(&mut self, args: &Args, view: &Arc<View>) -> Result<Cluster, Failure> {
        let options = local::Options {
            nodes: args.nodes,
            real_node: args.node,
            images: args.images.clone(),
            described: std::mem::take(&mut self.described),
            progress: progress(),
            ..local::Options::default()
        };
        let plane = self.plane.insert(ControlPlane::start(options).await?);
        let cluster = Cluster::of_kubeconfig(plane.kubeconfig_path()).await?;
        tell(plane.kubeconfig_path(), view);
        // kubectl is built along with the control plane, with the matching version.
        if let (false, Some(folder)) = (is_in_path("kubectl"), plane.kubectl().parent()) {
            view.keep(format!("export PATH=\"$PATH:{}\"", folder.display()));
        }
        Ok(cluster)
    }

    /// Stops everything that was started, and waits for it.
    async fn end(self, view: &View) {
        if let Some(manager) = self.manager {
            if self.plane.is_some() || self.embedded.is_some() {
                // Running reconciles need not finish in a cluster that is being removed.
                drop(tokio::time::timeout(Duration::from_secs(1), manager.stop()).await);
            } else {
                manager.stop().await;
            }
        }
        // Remaining clients would log errors.
        if self.plane.is_some() || self.embedded.is_some() {
            view.silence();
        }
        if let Some(plane) = self.plane {
            plane.stop().await;
        }
    }
}

/// Lets a world say what programs do.
fn play(server: &Server, world: World) {
    server.with(|api, now| api.set_programs(Box::new(world), now));
}

/// Plays the worlds again when their files change, until the session ends.
async fn replay(worlds: &mut Worlds, embedded: Option<&Embedded>, view: &View) {
    let Some(Embedded { server, .. }) = embedded else { return std::future::pending().await };
    loop {
        worlds.changed().await;
        match worlds.compile() {
            Ok(world) => {
                play(server, world);
                view.say("reloaded the worlds; states that begin as before are kept");
            }
            Err(errors) => {
                view.report(&errors);
                view.say("the worlds cannot be reloaded; they stay as they were");
            }
        }
    }
}

/// Prints how to use a cluster.
fn tell(kubeconfig: &Path, view: &View) {
    view.keep("to use kubectl, run this in another terminal:".to_owned());
    view.keep(format!("export KUBECONFIG={}", kubeconfig.display()));
}

/// Starts the manager with the packages, and replaces the running one.
async fn manage(
    running: &mut Option<Manager>,
    cluster: &Cluster,
    packages: &Packages,
    config: &Config,
    view: &View,
) -> Result<(), Failure> {
    if let Some(manager) = running.take() {
        manager.stop().await;
    }
    let manager = Manager::start(cluster.clone(), packages.all(), config.clone()).await?;
    view.report(&manager.problems);
    *running = Some(manager);
    Ok(())
}

/// Reloads packages when their files change, until the session ends. `refused` are manifests that could not be applied,
/// possibly because of an error in a package.
async fn reload(
    running: &mut Option<Manager>,
    cluster: &Cluster,
    packages: &mut Packages,
    mut refused: Vec<Manifest>,
    config: &Config,
    view: &View,
) -> Result<(), Failure> {
    loop {
        let mut is_new = false;
        for change in packages.changed().await {
            match change {
                Change::Loaded(package, warnings) => {
                    view.report(&warnings);
                    view.say(&format!("reloaded {}: revision {}", package.name, package.revision()));
                    is_new = true;
                }
                Change::Broken(package, errors) => {
                    view.report(&errors);
                    let (name, revision) = (&package.name, package.revision());
                    view.say(&format!(
                        "{name} cannot be reloaded; its last good revision {revision} stays active"
                    ));
                }
            }
        }
        if is_new {
            manage(running, cluster, packages, config, view).await?;
            refused = apply(cluster, refused, view).await.1;
        }
    }
}

/// Applies manifests; reports and returns those that are refused.
async fn apply(cluster: &Cluster, manifests: Vec<Manifest>, view: &View) -> (Vec<Applied>, Vec<Manifest>) {
    let (applied, refused) = instances::apply(cluster, manifests).await;
    let (refused, errors): (Vec<_>, Vec<_>) = refused.into_iter().unzip();
    view.report(&errors);
    (applied, refused)
}

/// Shows the progress of the start: on a terminal in one line that is updated each second, otherwise in a few lines.
pub(super) fn progress() -> local::OnProgress {
    let in_place = std::io::stderr().is_terminal() && !out::is_dumb();
    let announced = AtomicBool::new(false);
    Arc::new(move |step| match step {
        Progress::Building { part, elapsed, .. } => {
            if !announced.swap(true, Ordering::Relaxed) {
                out::note("building Kubernetes; this happens only once and takes some minutes");
            }
            if in_place {
                out::message(&format!("\r{step}\x1b[K"));
            } else if elapsed.as_secs() % 30 == 0 && (*part == 1 || elapsed.as_secs() > 0) {
                out::note(step);
            }
        }
        Progress::Built { .. } if in_place => out::message(&format!("\r{step}\x1b[K\n")),
        _ => out::note(step),
    })
}

/// Whether a program is in PATH.
fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns when a part of the control plane ends.
async fn failure(plane: Option<&ControlPlane>) -> local::Error {
    match plane {
        Some(plane) => plane.failure().await,
        None => std::future::pending().await,
    }
}

/// Waits until the newest generation of all objects is Ready.
async fn until_ready(
    cluster: &Cluster,
    applied: &[Applied],
    timeout: Duration,
) -> Result<(), command::Failure> {
    let deadline = Instant::now() + timeout;
    for Applied { kind, namespace, name } in applied {
        let what = format!("{} {name}", kind.kind);
        let over = |why: &str| format!("{what} is not ready after {} s: {why}", timeout.as_secs());
        let look = async || {
            Ok(match cluster.get(kind, namespace.as_deref(), name).await {
                Ok(Some(object)) => match readiness::of_custom(&object, true) {
                    Readiness::Ready => Look::Done(()),
                    Readiness::NotReady { message, .. } => Look::Waits(message),
                    Readiness::Failed { message, .. } => {
                        Look::Blocked(format!("{what} is not ready: {message}").into(), HOLDS)
                    }
                    Readiness::Terminating => Look::Waits("it is being deleted".to_owned()),
                },
                Ok(None) => return Err(format!("{what} is gone").into()),
                Err(error) => Look::Waits(error.to_string()),
            })
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = Wait { is_quiet: true, ..Wait::new(Duration::from_millis(100), left) };
        wait.until(over, look).await?;
        out::line(format!("{what} is Ready"));
    }
    Ok(())
}
