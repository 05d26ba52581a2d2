//! Runs a real Kubernetes control plane on this machine: etcd, kube-apiserver, kube-controller-manager; with
//! fake nodes also kube-scheduler and kwok; with a real node kube-scheduler, containerd, kubelet, kube-proxy
//! and `CoreDNS`. `operetta dev --cluster local` and the integration tests share this crate.
//!
//! [`ControlPlane::start`] finds or builds the binaries (see [`Environment`]), starts the [`guard`] and
//! through it the [`Component`]s in a temporary folder, and returns when pods can be scheduled. Everything is
//! removed when the [`ControlPlane`] is stopped or dropped, or when this process ends for any reason.

// Only tests may panic; product code returns an error instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit;
mod binaries;
mod build;
mod components;
mod error;
pub mod guard;
pub mod kubeconfig;
mod logs;
mod node;
mod objects;
mod protocol;
mod supervisor;
mod tools;
mod volumes;

use std::collections::BTreeSet;
use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::header::{HeaderValue, USER_AGENT};
use operetta_package::image::Image;
use tokio::net::TcpStream;

pub use audit::{AuditEvent, AuditLog, Mark};
pub use components::Component;
pub use error::Error;
pub use tools::{Environment, OnProgress, Progress, Tool};

use binaries::Binaries;
use components::{AUDIT_LOG, AUDIT_POLICY, CERTIFICATE, ETCD, ETCD_SOCKET, KUBECONFIG, STAGES, TOKENS};
use logs::{last_lines, read_end};
use node::config::{API_PORT, CONTAINERD_SOCKET};
use node::network::Place;
use objects::{all_schedulable, create, get, node, storage_class};
use protocol::Signal;
use supervisor::{State, Supervisor, UnwantedEnd};

/// The behaviour of fake nodes, unless [`Options::stages`] replaces it: all pods succeed immediately.
pub const DEFAULT_STAGES: &str = include_str!("stages.yaml");

/// A kwok configuration that runs commands in pods on this machine.
const LOCAL_EXEC: &str = "
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterExec
metadata: {name: local}
spec: {execs: [{local: {}}]}
";

/// The options of a control plane.
#[derive(Clone)]
pub struct Options {
    /// The number of fake nodes. Without nodes there is neither a scheduler nor kwok.
    pub nodes: usize,
    /// Whether there is a real node, which runs pods, instead of fake ones. Linux only, as root.
    pub real_node: bool,
    /// OCI layouts with images that the real node has in addition to its own.
    pub images: Vec<PathBuf>,
    /// Descriptions of images that are built for the real node.
    pub described: Vec<Image>,
    /// The port of kube-apiserver on 127.0.0.1; `None` is a free one. With a real node it is ignored, because
    /// kube-apiserver then has its own address.
    pub port: Option<u16>,
    /// Additional flags for kube-apiserver, such as `--feature-gates=...`. They come last.
    pub apiserver_flags: Vec<String>,
    /// kwok `Stage` objects that replace [`DEFAULT_STAGES`], as YAML documents.
    pub stages: Option<String>,
    /// Whether `exec` works: kwok runs the commands on this machine, as this user. For tests.
    pub exec: bool,
    /// The executable that has [`guard::COMMAND`]; `None` is this one.
    pub guard: Option<PathBuf>,
    /// The environment that locates binaries.
    pub environment: Environment,
    /// The parent of the temporary folder; `None` is the system's default.
    pub parent_folder: Option<PathBuf>,
    /// The timeout of the start, without building.
    pub timeout: Duration,
    /// Receives the progress.
    pub progress: OnProgress,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 1,
            real_node: false,
            images: Vec::new(),
            described: Vec::new(),
            port: None,
            apiserver_flags: Vec::new(),
            stages: None,
            exec: false,
            guard: None,
            environment: Environment::of_process(),
            parent_folder: None,
            timeout: Duration::from_secs(120),
            progress: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("nodes", &self.nodes)
            .field("real_node", &self.real_node)
            .field("port", &self.port)
            .field("apiserver_flags", &self.apiserver_flags)
            .field("guard", &self.guard)
            .field("environment", &self.environment)
            .finish_non_exhaustive()
    }
}

/// A running control plane. Dropping it cleans it up in the background.
pub struct ControlPlane {
    supervisor: Supervisor,
    binaries: Binaries,
    folder: PathBuf,
    kubeconfig: PathBuf,
    apiserver_flags: Vec<String>,
    port: u16,
    /// The network and cgroup of a real node.
    node: Option<Place>,
    /// The port on which kwok acts as the kubelet, if [`Options::exec`] is set.
    kubelet_port: Option<u16>,
    config: Option<kube::Config>,
    /// The awaited state and the component whose log explains a timeout, for its message.
    awaited: Mutex<(String, Component)>,
    timeout: Duration,
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane")
            .field("folder", &self.folder)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// The maximum number of attempts with a free port.
const PORT_ATTEMPTS: usize = 5;

/// The polling interval.
const POLL: Duration = Duration::from_millis(10);

/// The timeout for a connection. It is short because the server is on the same machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl ControlPlane {
    /// Starts a control plane. Returns when it is ready: the API server is ready, the default
    /// `ServiceAccount` exists, and pods can be scheduled to the nodes.
    ///
    /// # Errors
    /// Go is missing, a build fails, a port is in use, or a component has ended. The error contains a
    /// solution, and nothing is left behind.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let (binaries, programs) = Self::programs(&options).await?;
        (options.progress)(&Progress::Starting);
        let started = Instant::now();
        let parent_folder = options.parent_folder.clone().unwrap_or_else(std::env::temp_dir);
        let (supervisor, folder, node) =
            Supervisor::start(options.guard.as_deref(), &parent_folder, options.real_node).await?;
        let mut plane = Self {
            supervisor,
            binaries,
            kubeconfig: folder.join(KUBECONFIG),
            folder,
            apiserver_flags: options.apiserver_flags.clone(),
            port: 0,
            node,
            kubelet_port: None,
            config: None,
            awaited: Mutex::new((String::new(), Component::Etcd)),
            timeout: options.timeout,
        };
        let result = match tokio::time::timeout(options.timeout, plane.bring_up(&options, programs)).await {
            Ok(result) => result,
            Err(_) => Err(plane.timed_out()),
        };
        match result {
            Ok(()) => {
                (options.progress)(&Progress::Ready { elapsed: started.elapsed() });
                Ok(plane)
            }
            Err(error) => {
                plane.supervisor.stop().await;
                Err(error)
            }
        }
    }

    /// Locates or builds all programs and images. For a real node, returns the path of runc and the folders of
    /// images, too.
    async fn programs(options: &Options) -> Result<(Binaries, Option<(PathBuf, Vec<PathBuf>)>), Error> {
        let Options { environment, progress, .. } = options;
        let mut tools: Vec<Tool> =
            Component::of(options.real_node, options.nodes).filter_map(Component::tool).collect();
        tools.extend([Tool::Kubectl, Tool::Etcdctl]);
        if !options.real_node {
            return Ok((binaries::locate(&tools, environment, progress).await?, None));
        }
        let runc = node::requirements::check(environment)?;
        tools.extend(Tool::NODE);
        tools.sort_unstable();
        tools.dedup();
        // The kubelet must have the version of kube-apiserver, so all binaries are built.
        let binaries = Binaries::built(&tools, environment, progress).await?;
        let images = node::images::ensure(&options.described, &binaries, environment, progress).await?;
        Ok((binaries, Some((runc, images))))
    }

    /// Starts all components and waits until they are ready. `programs` are runc and the images of a real
    /// node.
    async fn bring_up(
        &mut self,
        options: &Options,
        programs: Option<(PathBuf, Vec<PathBuf>)>,
    ) -> Result<(), Error> {
        if let (Some(place), Some((runc, images))) = (&self.node, programs) {
            node::prepare(&self.folder, place, &self.binaries, &runc, &images, &options.images)?;
            self.run(Component::Registry).await?;
            self.run(Component::Containerd).await?;
        }
        let users = self.users()?;
        kubeconfig::write(&self.folder.join(TOKENS), &users.iter().map(User::line).collect::<String>())?;
        kubeconfig::write(&self.folder.join(AUDIT_POLICY), audit::POLICY)?;
        let mut stages = options.stages.as_deref().unwrap_or(DEFAULT_STAGES).to_owned();
        if options.exec {
            stages.push_str(LOCAL_EXEC);
            self.kubelet_port = Some(free_port()?);
        }
        kubeconfig::write(&self.folder.join(STAGES), &stages)?;

        self.run(Component::Etcd).await?;
        let client = self.run_apiserver(options, &users).await?;
        // The other components start only when kube-apiserver is ready, because they would repeat a failed
        // request only after a second.
        self.until_ready().await?;
        let running = |component: &Component| self.supervisor.state(*component).is_some();
        let rest: Vec<_> =
            Component::of(options.real_node, options.nodes).filter(|component| !running(component)).collect();
        for component in rest {
            self.run(component).await?;
        }
        self.set_up(&client, options).await
    }

    /// The user of this control plane, and the users of its components.
    fn users(&self) -> Result<Vec<User>, Error> {
        let admin = ("admin", self.kubeconfig.clone());
        let components = Component::ALL[2..].iter().map(|c| (c.user(), self.folder.join(c.kubeconfig())));
        std::iter::once(admin)
            .chain(components)
            .map(|(name, kubeconfig)| {
                let token = kubeconfig::token().map_err(Error::io("read", Path::new("/dev/urandom")))?;
                Ok(User { name, kubeconfig, token })
            })
            .collect()
    }

    /// Starts kube-apiserver and waits until it answers, even if it is not ready. If another process has
    /// taken the free port, another port is tried.
    async fn run_apiserver(&mut self, options: &Options, users: &[User]) -> Result<kube::Client, Error> {
        let mut tried = Vec::new();
        loop {
            self.port = match (&self.node, options.port) {
                (Some(_), _) => API_PORT,
                (None, Some(port)) => port,
                (None, None) => free_port()?,
            };
            // The log of an earlier attempt must not be read as that of this one.
            let _ = std::fs::remove_file(self.log(Component::ApiServer));
            self.run(Component::ApiServer).await?;
            let log = match (self.connect(users).await, options.port) {
                (Err(Error::Ended { log, .. }), None) if components::address_in_use(&log) => log,
                (Err(Error::Ended { log, .. }), Some(port)) if components::address_in_use(&log) => {
                    return Err(Error::PortInUse { port });
                }
                (other, _) => return other,
            };
            tried.push(self.port);
            if tried.len() == PORT_ATTEMPTS {
                return Err(Error::NoFreePort { tried, log });
            }
        }
    }

    /// Waits until kube-apiserver answers, and writes the kubeconfigs. They contain its certificate, so that
    /// another process on its port is detected.
    async fn connect(&mut self, users: &[User]) -> Result<kube::Client, Error> {
        let certificate = self.folder.join(CERTIFICATE);
        self.until("kube-apiserver's certificate", Component::ApiServer, || async {
            std::fs::read_to_string(&certificate)
                .is_ok_and(|text| text.matches("-----END CERTIFICATE-----").count() >= 2)
        })
        .await?;
        let ca = std::fs::read_to_string(&certificate).map_err(Error::io("read", &certificate))?;
        for user in users {
            kubeconfig::write(
                &user.kubeconfig,
                &kubeconfig::text("operetta-local", &self.server(), &ca, user.name, &user.token),
            )?;
        }
        self.config = Some(self.client_config().await?);
        let client = self.client()?;
        self.until("kube-apiserver to listen", Component::ApiServer, || async {
            get(&client, "/livez").await.is_ok()
        })
        .await?;
        Ok(client)
    }

    /// Creates the `StorageClass` and fake nodes, and waits for all nodes.
    async fn set_up(&self, client: &kube::Client, options: &Options) -> Result<(), Error> {
        create(client, "/apis/storage.k8s.io/v1/storageclasses", &storage_class()).await?;
        let fake_nodes = if options.real_node { 0 } else { options.nodes };
        for number in 1..=fake_nodes {
            create(client, "/api/v1/nodes", &node(number)).await?;
        }
        self.until("the ServiceAccount `default`", Component::ControllerManager, || async {
            let path = "/api/v1/namespaces/default/serviceaccounts/default";
            get(client, path).await.is_ok_and(|(code, _)| code == 200)
        })
        .await?;
        let (nodes, component) =
            if options.real_node { (1, Component::Kubelet) } else { (options.nodes, Component::Kwok) };
        self.until("the nodes to be ready", component, || async {
            get(client, "/api/v1/nodes").await.is_ok_and(|(_, body)| all_schedulable(&body, nodes))
        })
        .await?;
        if let Some(place) = &self.node {
            let dns = (place.network.node(), 53);
            self.until("DNS", Component::CoreDns, || async { TcpStream::connect(dns).await.is_ok() }).await?;
        }
        Ok(())
    }

    /// Starts a component. Returns when others can use it, as far as this can be seen.
    async fn run(&self, component: Component) -> Result<(), Error> {
        let network = self.node.as_ref().map(|place| place.network);
        let flags = component.flags(self.port, self.kubelet_port, network, &self.apiserver_flags);
        let path = component.tool().map_or(Path::new("/proc/self/exe"), |tool| self.binaries.path(tool));
        self.supervisor.run(component, path, flags, self.log(component)).await?;
        let socket = match component {
            Component::Etcd => ETCD_SOCKET,
            Component::Containerd => CONTAINERD_SOCKET,
            _ => return Ok(()),
        };
        let socket = self.folder.join(socket);
        self.until(&format!("{component} to listen"), component, || async {
            tokio::net::UnixStream::connect(&socket).await.is_ok()
        })
        .await
    }

    /// Waits until kube-apiserver reports that it is ready.
    async fn until_ready(&self) -> Result<(), Error> {
        let client = self.client()?;
        self.until("kube-apiserver to be ready", Component::ApiServer, || async {
            get(&client, "/readyz").await.is_ok_and(|(code, _)| code == 200)
        })
        .await
    }

    /// Waits until a condition is true. If a component ends before, returns its error.
    async fn until<F: Future<Output = bool>>(
        &self,
        what: &str,
        component: Component,
        mut holds: impl FnMut() -> F,
    ) -> Result<(), Error> {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) = (what.into(), component);
        let poll = async {
            while !holds().await {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::select! {
            // An ended component is checked first, because another process on the port could make the other
            // condition true.
            biased;
            error = self.failure() => Err(error),
            () = poll => Ok(()),
        }
    }

    fn timed_out(&self) -> Error {
        let (awaited, component) = self.awaited.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Error::Timeout { awaited, waited: self.timeout, log: last_lines(&read_end(&self.log(component))) }
    }

    async fn client_config(&self) -> Result<kube::Config, Error> {
        let unusable = |reason: String| Error::Kubeconfig { path: self.kubeconfig.clone(), reason };
        let file =
            kube::config::Kubeconfig::read_from(&self.kubeconfig).map_err(|e| unusable(e.to_string()))?;
        let mut config =
            kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
                .await
                .map_err(|e| unusable(e.to_string()))?;
        // A proxy in the environment is ignored, because this server is on this machine.
        config.proxy_url = None;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.headers.push((
            USER_AGENT,
            HeaderValue::from_static(concat!("operetta-local/", env!("CARGO_PKG_VERSION"))),
        ));
        Ok(config)
    }

    /// The folder with all files. Only its owner can read it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The kubeconfig of the user `admin`, who has all permissions.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// The URL of the API server.
    pub fn server(&self) -> String {
        match &self.node {
            Some(place) => format!("https://{}:{}", place.network.node(), self.port),
            None => format!("https://127.0.0.1:{}", self.port),
        }
    }

    /// The path of a kubectl with a suitable version.
    pub fn kubectl(&self) -> &Path {
        self.binaries.path(Tool::Kubectl)
    }

    /// A command that runs etcdctl with a connection to this etcd, to inspect what the API server stores.
    pub fn etcdctl(&self) -> std::process::Command {
        let mut command = std::process::Command::new(self.binaries.path(Tool::Etcdctl));
        command.current_dir(&self.folder).arg(format!("--endpoints={ETCD}"));
        command
    }

    /// A client with the user `admin` and the user agent `operetta-local/...`. It is bound to the tokio
    /// runtime in which this is called.
    ///
    /// # Errors
    /// The system's cryptography cannot be set up.
    pub fn client(&self) -> Result<kube::Client, Error> {
        let unusable = |reason: String| Error::Kubeconfig { path: self.kubeconfig.clone(), reason };
        let config = self.config.clone().ok_or_else(|| unusable("it is not written yet".into()))?;
        kube::Client::try_from(config).map_err(|e| unusable(e.to_string()))
    }

    /// The log of the requests to the API server.
    pub fn audit(&self) -> AuditLog {
        AuditLog::new(self.folder.join(AUDIT_LOG))
    }

    /// The path of the log of a component.
    pub fn log(&self, component: Component) -> PathBuf {
        self.folder.join(component.log())
    }

    /// The process id of a running component. With a real node, it belongs to the process namespace of the
    /// node.
    pub fn pid(&self, component: Component) -> Option<u32> {
        match self.supervisor.state(component) {
            Some(State::Running(pid)) => Some(pid),
            _ => None,
        }
    }

    /// Waits until a component ends unexpectedly, and returns the error.
    pub async fn failure(&self) -> Error {
        match self.supervisor.unwanted_end().await {
            UnwantedEnd::Guard(reason) => Error::Guard { reason },
            UnwantedEnd::Component(component, status) => {
                let log = read_end(&self.log(component));
                Error::Ended {
                    component,
                    status,
                    hint: components::hint(component, &log),
                    log: last_lines(&log),
                }
            }
        }
    }

    /// Pauses a component until [`Self::resume`], to simulate a process that hangs.
    ///
    /// # Errors
    ///
    /// This control plane does not have the component.
    pub fn pause(&self, component: Component) -> Result<(), Error> {
        self.supervisor.signal(component, Signal::Pause)
    }

    /// Resumes a paused component.
    ///
    /// # Errors
    /// This control plane does not have the component.
    pub fn resume(&self, component: Component) -> Result<(), Error> {
        self.supervisor.signal(component, Signal::Resume)
    }

    /// Kills a component, and returns when it has ended. [`Self::failure`] does not report this end.
    ///
    /// # Errors
    /// This control plane does not have the component.
    pub async fn kill(&self, component: Component) -> Result<(), Error> {
        self.supervisor.kill(component).await
    }

    /// Restarts a component with the same data and port. If it is running, it is killed first. Returns when
    /// etcd listens or kube-apiserver is ready.
    ///
    /// # Errors
    /// The same as for [`Self::start`].
    pub async fn restart(&self, component: Component) -> Result<(), Error> {
        self.supervisor.kill(component).await?;
        let again = async {
            self.run(component).await?;
            if component == Component::ApiServer { self.until_ready().await } else { Ok(()) }
        };
        match tokio::time::timeout(self.timeout, again).await {
            Ok(result) => result,
            Err(_) => Err(self.timed_out()),
        }
    }

    /// Stops all components and removes the folder; returns when this is done.
    pub async fn stop(self) {
        self.supervisor.stop().await;
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // The guard cleans up when its input ends, and the input ends when the supervisor is dropped. Only if
        // the guard was killed is the folder left behind.
        if self.supervisor.guard_is_gone() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// A user of the API server.
struct User {
    name: &'static str,
    kubeconfig: PathBuf,
    token: String,
}

impl User {
    /// The line of the user in the token file. All users have all permissions.
    fn line(&self) -> String {
        format!("{},{},{},\"system:masters\"\n", self.token, self.name, self.name)
    }
}

/// Ports that operating systems do not use for outgoing connections, because such a connection could take the
/// port while kube-apiserver restarts.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Finds a port that is free now.
fn free_port() -> Result<u16, Error> {
    let mut last = Ok(());
    for _ in 0..100 {
        let port = fastrand::u16(PORTS);
        if !given(port) {
            continue;
        }
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = Err(error),
        }
    }
    last.map(|()| 0).map_err(Error::io("find a free port of", Path::new("127.0.0.1")))
}

/// Notes that a port is chosen. Returns false if it was chosen before in this process: what listens there may not have started yet.
fn given(port: u16) -> bool {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    if given.len() > PORTS.len() / 2 {
        given.clear();
    }
    given.insert(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers spawn these futures, so they must be `Send`. This is checked at compile time.
    #[test]
    fn futures_are_send() {
        fn check<F: Future + Send>(_: impl FnOnce() -> F) {}
        check(|| async {
            let plane = ControlPlane::start(Options::default()).await?;
            plane.restart(Component::Etcd).await?;
            let error = plane.failure().await;
            plane.stop().await;
            Err::<(), _>(error)
        });
    }
}
