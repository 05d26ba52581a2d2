//! The timed rounds: the bare client and the manager alternate, each in a namespace of its own, with an idle
//! control plane before each.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{ControlPlane, Operetta};
use operetta::package::Package;
use serde::Serialize;

use crate::bare::{Bare, resource};
use crate::measure::{Cpu, Memory, cpu_seconds, until_quiet};
use crate::watch::Readiness;
use crate::{Result, package_folder};

/// The number of instances in rounds that warm up the server.
const WARM_UP: usize = 100;

/// The timeout for the deletion of a namespace.
const DELETION: Duration = Duration::from_secs(600);

/// One round of each kind.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Round {
    /// The bare client applies the children.
    pub(crate) bare: BareRound,
    /// The bare client also writes the status of each instance.
    pub(crate) whole: BareRound,
    /// The bare client writes the statuses while it watches all that the manager watches.
    pub(crate) watching: BareRound,
    /// The manager starts when the instances exist.
    pub(crate) backlog: ManagerRound,
    /// The instances are created while the manager runs.
    pub(crate) arriving: ManagerRound,
}

/// The results of a bare client.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct BareRound {
    /// Seconds to create the instances.
    pub(crate) creating: f64,
    /// Seconds to send all writes for them; if it writes statuses, until a watch shows that all are Ready.
    pub(crate) applying: f64,
    /// CPU seconds while the bare client applies.
    pub(crate) cpu: Cpu,
}

/// The results of the manager.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ManagerRound {
    /// Seconds until the first instance is Ready.
    pub(crate) first: f64,
    /// Seconds until all instances are Ready.
    pub(crate) all: f64,
    /// CPU seconds until all are Ready.
    pub(crate) cpu: Cpu,
    /// Memory of the manager when all are Ready.
    pub(crate) memory: Memory,
    /// Seconds after that in which the manager is still busy: Events are sent last.
    pub(crate) trailing: f64,
    /// CPU seconds in that time.
    pub(crate) trailing_cpu: Cpu,
}

/// What the bare client does.
#[derive(Clone, Copy, PartialEq)]
enum Client {
    /// The client applies the children.
    Applies,
    /// The client also writes statuses. A watch measures when they are Ready, as for the manager.
    WritesStatuses,
    /// The client writes statuses and watches.
    Watches,
}

/// Runs all rounds.
pub(crate) async fn run(
    plane: &ControlPlane,
    package: &Arc<Package>,
    instances: usize,
    rounds: usize,
    concurrency: usize,
) -> Result<Vec<Round>> {
    let bench = Bench::new(plane, package, concurrency)?;
    // The manager registers the CRD, which the instances need.
    drop(bench.manager().await?);
    eprintln!("warming up with {WARM_UP} instances");
    bench.bare("warm-bare", WARM_UP, Client::Applies).await?;
    bench.backlog("warm-backlog", WARM_UP).await?;
    let mut all = Vec::new();
    for number in 1..=rounds {
        let name = |what: &str| format!("{what}-{number}");
        let tell = |what: &str, seconds: f64| {
            let rate = per_second(instances, seconds);
            eprintln!("round {number} of {rounds}: {what:<13} {rate:7.1} instances/s");
        };
        let clients = async || -> Result<_> {
            let bare = bench.bare(&name("bare"), instances, Client::Applies).await?;
            tell("bare client", bare.applying);
            let whole = bench.bare(&name("whole"), instances, Client::WritesStatuses).await?;
            tell("with status", whole.applying);
            let watching = bench.bare(&name("watching"), instances, Client::Watches).await?;
            tell("and watches", watching.applying);
            Ok((bare, whole, watching))
        };
        let managers = async || -> Result<_> {
            let backlog = bench.backlog(&name("backlog"), instances).await?;
            tell("backlog", backlog.all);
            let namespace = name("arriving");
            bench.bare.create_namespace(&namespace).await?;
            let arriving = bench.arriving(&namespace, instances, &arguments()).await?;
            tell("arriving", arriving.all);
            Ok((backlog, arriving))
        };
        // Alternate the order, because each measurement affects the next one.
        let ((bare, whole, watching), (backlog, arriving)) = if number % 2 == 1 {
            let clients = clients().await?;
            (clients, managers().await?)
        } else {
            let managers = managers().await?;
            (clients().await?, managers)
        };
        all.push(Round { bare, whole, watching, backlog, arriving });
    }
    Ok(all)
}

/// The number of items a second.
pub(crate) fn per_second(count: usize, seconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let count = count as f64;
    count / seconds
}

/// What all rounds use.
pub(crate) struct Bench<'a> {
    pub(crate) plane: &'a ControlPlane,
    pub(crate) package: &'a Arc<Package>,
    pub(crate) bare: Bare,
    /// The kubeconfig of the user that managers run as.
    pub(crate) kubeconfig: PathBuf,
}

impl<'a> Bench<'a> {
    /// A bench whose managers run as an administrator.
    pub(crate) fn new(
        plane: &'a ControlPlane,
        package: &'a Arc<Package>,
        concurrency: usize,
    ) -> Result<Self> {
        let bare = Bare::new(plane.client()?, concurrency);
        Ok(Self { plane, package, bare, kubeconfig: plane.kubeconfig_path().to_owned() })
    }

    fn start(&self, arguments: &[&str]) -> Operetta {
        let arguments = [arguments, &["--leader-elect=false"]].concat();
        Operetta::run_as_user(self.plane, &self.kubeconfig, &arguments)
    }

    async fn bare(&self, namespace: &str, count: usize, client: Client) -> Result<BareRound> {
        let resource = resource(self.package)?;
        self.bare.create_namespace(namespace).await?;
        let mut watches = match client {
            Client::Watches => Some(self.bare.watch_all(self.package).await?),
            _ => None,
        };
        let readiness = (client != Client::Applies)
            .then(|| self.plane.client().map(|client| Readiness::watch(client, resource, namespace)))
            .transpose()?;
        until_quiet(self.plane).await?;
        let started = Instant::now();
        let instances = self.bare.create_instances(resource, namespace, count).await?;
        let creating = started.elapsed().as_secs_f64();
        let mut applies = self.bare.render(self.package, &instances).await?;
        let children = applies.len();
        if client != Client::Applies {
            applies = Bare::with_statuses(applies, resource, &instances)?;
        }
        until_quiet(self.plane).await?;

        let before = Cpu::now(self.plane, None)?;
        let started = Instant::now();
        self.bare.apply(&applies).await?;
        let end = match readiness {
            Some(readiness) => readiness.all(count, || Ok(())).await?.last,
            None => Instant::now(),
        };
        let cpu = Cpu::now(self.plane, None)?.since(before);
        let applying = end.saturating_duration_since(started).as_secs_f64();
        if watches.as_mut().is_some_and(|watches| watches.try_join_next().is_some()) {
            return Err("a watch has ended".into());
        }
        drop(watches);

        self.check(namespace, children).await?;
        self.clear(namespace).await?;
        Ok(BareRound { creating, applying, cpu })
    }

    async fn backlog(&self, namespace: &str, count: usize) -> Result<ManagerRound> {
        self.bare.create_namespace(namespace).await?;
        self.started_late(namespace, count, &arguments()).await
    }

    /// Creates the instances and then starts the manager. The namespace must exist.
    pub(crate) async fn started_late(
        &self,
        namespace: &str,
        count: usize,
        arguments: &[&str],
    ) -> Result<ManagerRound> {
        self.bare.create_instances(resource(self.package)?, namespace, count).await?;
        until_quiet(self.plane).await?;

        let readiness = Readiness::watch(self.plane.client()?, resource(self.package)?, namespace);
        let before = Cpu::now(self.plane, None)?;
        let started = Instant::now();
        let manager = self.start(arguments);
        self.to_ready(namespace, count, manager, readiness, started, before).await
    }

    /// Starts the manager and then creates the instances. The namespace must exist.
    pub(crate) async fn arriving(
        &self,
        namespace: &str,
        count: usize,
        arguments: &[&str],
    ) -> Result<ManagerRound> {
        let manager = self.manager_of(arguments).await?;
        until_quiet(self.plane).await?;

        let resource = resource(self.package)?;
        let readiness = Readiness::watch(self.plane.client()?, resource, namespace);
        let before = Cpu::now(self.plane, Some(manager.pid()))?;
        let started = Instant::now();
        self.bare.create_instances(resource, namespace, count).await?;
        self.to_ready(namespace, count, manager, readiness, started, before).await
    }

    async fn to_ready(
        &self,
        namespace: &str,
        count: usize,
        mut manager: Operetta,
        readiness: Readiness,
        started: Instant,
        before: Cpu,
    ) -> Result<ManagerRound> {
        let pid = manager.pid();
        let times = readiness.all(count, || running(&manager)).await?;
        let after = Cpu::now(self.plane, Some(pid))?;
        let memory = Memory::of(pid)?;

        let idle_since = until_idle(pid).await?;
        let trailing_cpu = Cpu::now(self.plane, Some(pid))?.since(after);
        manager.interrupt();
        manager.wait(Duration::from_secs(20)).await;
        self.check(namespace, count * resource(self.package)?.children.len()).await?;
        self.clear(namespace).await?;
        let seconds = |to: Instant| to.saturating_duration_since(started).as_secs_f64();
        Ok(ManagerRound {
            first: seconds(times.first),
            all: seconds(times.last),
            cpu: after.since(before),
            memory,
            trailing: idle_since.saturating_duration_since(times.last).as_secs_f64(),
            trailing_cpu,
        })
    }

    /// Starts a manager and waits until it watches instances.
    async fn manager(&self) -> Result<Operetta> {
        self.manager_of(&arguments()).await
    }

    pub(crate) async fn manager_of(&self, arguments: &[&str]) -> Result<Operetta> {
        let mut manager = self.start(arguments);
        manager.wait_for("watching instances", Duration::from_secs(30)).await;
        Ok(manager)
    }

    /// Checks that all children exist.
    async fn check(&self, namespace: &str, expected: usize) -> Result<()> {
        let found = self.bare.children(self.package, namespace).await?.len();
        let holds = found == expected;
        if holds { Ok(()) } else { Err(format!("{namespace}: {found} of {expected} children exist").into()) }
    }

    /// Deletes the namespace of a round, so that nothing affects the next one.
    async fn clear(&self, namespace: &str) -> Result<()> {
        self.bare.delete_namespace(namespace).await?;
        let started = Instant::now();
        while self.bare.has_namespace(namespace).await? {
            if started.elapsed() > DELETION {
                return Err(format!("the namespace {namespace} does not go").into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }
}

/// The arguments of `operetta run` with default settings.
pub(crate) fn arguments() -> [&'static str; 2] {
    ["run", package_folder().to_str().unwrap_or_default()]
}

/// An error with the manager's output if it has ended.
pub(crate) fn running(manager: &Operetta) -> Result<()> {
    if crate::support::alive(manager.pid()) {
        return Ok(());
    }
    Err(format!("the manager has ended:\n{}", manager.output()).into())
}

/// Waits until a process has used hardly any CPU time for a second. Returns since when.
pub(crate) async fn until_idle(pid: u32) -> Result<Instant> {
    let mut since = Instant::now();
    let mut used = cpu_seconds(pid)?;
    while since.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = cpu_seconds(pid)?;
        // Allow two ticks: a timer that fires does not count as work.
        if now > used + 0.02 {
            (since, used) = (Instant::now(), now);
        }
    }
    Ok(since)
}
