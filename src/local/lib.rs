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
mod start;
mod supervisor;
mod tools;
mod volumes;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use operetta_package::image::Image;

pub use audit::{AuditEvent, AuditLog, Mark};
pub use components::Component;
pub use error::Error;
pub use tools::{Environment, Module, OnProgress, Program, Progress, Tool};

use binaries::Binaries;
use components::{AUDIT_LOG, ETCD, ETCD_SOCKET};
use logs::{last_lines, read_end};
use node::config::CONTAINERD_SOCKET;
use node::network::Place;
use objects::get;
use protocol::Signal;
use supervisor::{State, Supervisor, UnwantedEnd};

/// The behaviour of fake nodes, unless [`Options::stages`] replaces it: all pods succeed immediately.
pub const DEFAULT_STAGES: &str = include_str!("stages.yaml");

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

/// The polling interval.
const POLL: Duration = Duration::from_millis(10);

impl ControlPlane {
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
