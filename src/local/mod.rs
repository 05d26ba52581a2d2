//! A real Kubernetes control plane on this machine: etcd, kube-apiserver, kube-controller-manager and,
//! with fake nodes, kube-scheduler and kwok. `operetta dev --cluster local` and the integration tests
//! share it.
//!
//! [`ControlPlane::start`] finds or builds the binaries ([`Environment`] says where), starts the [`guard`]
//! and through it the [`Component`]s in a temporary folder, and returns when pods can be scheduled. All
//! of it is gone when the [`ControlPlane`] is stopped or dropped, and when this process ends, however
//! it does.

mod audit;
mod binaries;
mod build;
mod components;
mod error;
pub mod guard;
mod kubeconfig;
mod protocol;
mod supervisor;
mod volumes;

use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use serde_json::{Value, json};

pub use audit::{AuditEvent, AuditLog, Mark};
pub use binaries::{Environment, OnProgress, Progress, Tool};
pub use components::Component;
pub use error::Error;

use binaries::Binaries;
use components::{AUDIT_LOG, AUDIT_POLICY, CERTIFICATE, ETCD, ETCD_SOCKET, KUBECONFIG, STAGES, TOKENS};
use protocol::Signal;
use supervisor::{State, Supervisor, UnwantedEnd};

/// What fake nodes do with pods, unless [`Options::stages`] says otherwise: all succeed at once.
pub const DEFAULT_STAGES: &str = include_str!("stages.yaml");

/// How a control plane is to be.
#[derive(Clone)]
pub struct Options {
    /// How many fake nodes; without any there is neither scheduler nor kwok.
    pub nodes: usize,
    /// The port of kube-apiserver on 127.0.0.1; a free one if `None`.
    pub port: Option<u16>,
    /// More flags for kube-apiserver, such as `--feature-gates=...`; they come last.
    pub apiserver_flags: Vec<String>,
    /// kwok `Stage` objects in place of [`DEFAULT_STAGES`], as YAML documents.
    pub stages: Option<String>,
    /// The executable that offers [`guard::COMMAND`]; this one if `None`.
    pub guard: Option<PathBuf>,
    /// Where binaries are looked for.
    pub environment: Environment,
    /// Where the temporary folder is made; the system's place for them if `None`.
    pub parent_folder: Option<PathBuf>,
    /// How long the start may take, building aside.
    pub timeout: Duration,
    /// Is told how it goes on.
    pub progress: OnProgress,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 1,
            port: None,
            apiserver_flags: Vec::new(),
            stages: None,
            guard: None,
            environment: Environment::of_process(),
            parent_folder: None,
            timeout: Duration::from_secs(60),
            progress: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("nodes", &self.nodes)
            .field("port", &self.port)
            .field("apiserver_flags", &self.apiserver_flags)
            .field("guard", &self.guard)
            .field("environment", &self.environment)
            .finish_non_exhaustive()
    }
}

/// A control plane that runs. Dropping it has it cleared up without waiting for that.
pub struct ControlPlane {
    supervisor: Supervisor,
    binaries: Binaries,
    folder: PathBuf,
    kubeconfig: PathBuf,
    apiserver_flags: Vec<String>,
    port: u16,
    config: Option<kube::Config>,
    /// What is being waited for, and whose log would tell more: for the message when it takes too long.
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

/// How often free ports are tried that turn out to be taken.
const PORT_ATTEMPTS: usize = 5;

/// How often is looked whether something has come true.
const POLL: Duration = Duration::from_millis(10);

/// How long the client waits for a connection: it is the same machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How many bytes from the end of a log are looked at, and how many lines of them are shown.
const LOG_BYTES: usize = 64 << 10;
const LOG_LINES: usize = 8;
const LOG_COLUMNS: usize = 400;

impl ControlPlane {
    /// Brings up a control plane; returns when it is ready: the API server says so, the default
    /// `ServiceAccount` exists, and pods can be scheduled to the nodes.
    ///
    /// # Errors
    ///
    /// Says what to do: about a missing Go, a build that failed, a port in use, a component that ended.
    /// Nothing is left behind.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let components = components(options.nodes);
        let mut tools: Vec<Tool> = Component::ALL[..components].iter().map(|c| c.tool()).collect();
        tools.extend([Tool::Kubectl, Tool::Etcdctl]);
        let binaries = binaries::locate(&tools, &options.environment, &options.progress).await?;

        (options.progress)(&Progress::Starting);
        let started = Instant::now();
        let parent_folder = options.parent_folder.clone().unwrap_or_else(std::env::temp_dir);
        let (supervisor, folder) = Supervisor::start(options.guard.as_deref(), &parent_folder).await?;
        let mut plane = Self {
            supervisor,
            binaries,
            kubeconfig: folder.join(KUBECONFIG),
            folder,
            apiserver_flags: options.apiserver_flags.clone(),
            port: 0,
            config: None,
            awaited: Mutex::new((String::new(), Component::Etcd)),
            timeout: options.timeout,
        };
        let result = match tokio::time::timeout(options.timeout, plane.bring_up(&options)).await {
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

    /// Starts everything and waits until it is ready.
    async fn bring_up(&mut self, options: &Options) -> Result<(), Error> {
        let users = self.users()?;
        write(&self.folder.join(TOKENS), &users.iter().map(User::line).collect::<String>())?;
        write(&self.folder.join(AUDIT_POLICY), audit::POLICY)?;
        write(&self.folder.join(STAGES), options.stages.as_deref().unwrap_or(DEFAULT_STAGES))?;

        self.run(Component::Etcd).await?;
        let client = self.run_apiserver(options, &users).await?;
        // Not before it is ready: they would ask too early, and again only after a second.
        self.until_ready().await?;
        for component in &Component::ALL[2..components(options.nodes)] {
            self.run(*component).await?;
        }
        self.set_up(&client, options.nodes).await
    }

    /// The user of this control plane, and those as which its components speak.
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

    /// Starts kube-apiserver and waits until it answers, be it that it is not ready. A port that
    /// somebody else took after it had been found free is exchanged for another one.
    async fn run_apiserver(&mut self, options: &Options, users: &[User]) -> Result<kube::Client, Error> {
        let mut tried = Vec::new();
        loop {
            self.port = match options.port {
                Some(port) => port,
                None => free_port()?,
            };
            // What an earlier attempt has said is not to be taken for the words of this one.
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

    /// Waits until kube-apiserver answers; writes the kubeconfigs that know it by its certificate, by which
    /// a stranger on its port is told from it.
    async fn connect(&mut self, users: &[User]) -> Result<kube::Client, Error> {
        let certificate = self.folder.join(CERTIFICATE);
        self.until("kube-apiserver's certificate", Component::ApiServer, || async {
            std::fs::read_to_string(&certificate)
                .is_ok_and(|text| text.matches("-----END CERTIFICATE-----").count() >= 2)
        })
        .await?;
        let ca = std::fs::read_to_string(&certificate).map_err(Error::io("read", &certificate))?;
        for user in users {
            write(&user.kubeconfig, &kubeconfig::text(&self.server(), &ca, user.name, &user.token))?;
        }
        self.config = Some(self.client_config().await?);
        let client = self.client()?;
        self.until("kube-apiserver to listen", Component::ApiServer, || async {
            get(&client, "/livez").await.is_ok()
        })
        .await?;
        Ok(client)
    }

    /// The `StorageClass` and the nodes, and what follows from them.
    async fn set_up(&self, client: &kube::Client, nodes: usize) -> Result<(), Error> {
        create(client, "/apis/storage.k8s.io/v1/storageclasses", &storage_class()).await?;
        for number in 1..=nodes {
            create(client, "/api/v1/nodes", &node(number)).await?;
        }
        self.until("the ServiceAccount `default`", Component::ControllerManager, || async {
            let path = "/api/v1/namespaces/default/serviceaccounts/default";
            get(client, path).await.is_ok_and(|(code, _)| code == 200)
        })
        .await?;
        self.until("the nodes to be ready", Component::Kwok, || async {
            get(client, "/api/v1/nodes").await.is_ok_and(|(_, body)| all_schedulable(&body, nodes))
        })
        .await
    }

    /// Starts a component; returns when others can use it, so far as that can be told from outside.
    async fn run(&self, component: Component) -> Result<(), Error> {
        let flags = component.flags(self.port, &self.apiserver_flags);
        let path = self.binaries.path(component.tool());
        self.supervisor.run(component, path, flags, self.log(component)).await?;
        if component == Component::Etcd {
            let socket = self.folder.join(ETCD_SOCKET);
            self.until("etcd to listen", component, || async {
                tokio::net::UnixStream::connect(&socket).await.is_ok()
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until kube-apiserver says it is ready.
    async fn until_ready(&self) -> Result<(), Error> {
        let client = self.client()?;
        self.until("kube-apiserver to be ready", Component::ApiServer, || async {
            get(&client, "/readyz").await.is_ok_and(|(code, _)| code == 200)
        })
        .await
    }

    /// Waits until something is true; ends with an error when a component ends.
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
            // First, for a stranger on our port makes the other one true.
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
        // Not even where the environment tells of a proxy: this server is on this machine.
        config.proxy_url = None;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.headers.push((
            USER_AGENT,
            HeaderValue::from_static(concat!("operetta-local/", env!("CARGO_PKG_VERSION"))),
        ));
        Ok(config)
    }

    /// The folder of everything; readable by its owner only.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The kubeconfig of the user `admin`, who may do everything.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// The URL of the API server.
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// A kubectl that fits.
    pub fn kubectl(&self) -> &Path {
        self.binaries.path(Tool::Kubectl)
    }

    /// An etcdctl that speaks with this etcd: for looking below the API server.
    pub fn etcdctl(&self) -> std::process::Command {
        let mut command = std::process::Command::new(self.binaries.path(Tool::Etcdctl));
        command.current_dir(&self.folder).arg(format!("--endpoints={ETCD}"));
        command
    }

    /// A client as the user `admin`, whose requests bear the user agent `operetta-local/...`. It is
    /// bound to the tokio runtime in which this is called.
    ///
    /// # Errors
    ///
    /// Only if the system's cryptography cannot be set up.
    pub fn client(&self) -> Result<kube::Client, Error> {
        let unusable = |reason: String| Error::Kubeconfig { path: self.kubeconfig.clone(), reason };
        let config = self.config.clone().ok_or_else(|| unusable("it is not written yet".into()))?;
        kube::Client::try_from(config).map_err(|e| unusable(e.to_string()))
    }

    /// What the API server has been asked.
    pub fn audit(&self) -> AuditLog {
        AuditLog::new(self.folder.join(AUDIT_LOG))
    }

    /// The output of a component.
    pub fn log(&self, component: Component) -> PathBuf {
        self.folder.join(component.log())
    }

    /// The process number of a component that runs.
    pub fn pid(&self, component: Component) -> Option<u32> {
        match self.supervisor.state(component) {
            Some(State::Running(pid)) => Some(pid),
            _ => None,
        }
    }

    /// Waits for a component to end that was not asked to, and says why it did.
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

    /// Has a component do nothing until [`Self::resume`]: a process that hangs.
    ///
    /// # Errors
    ///
    /// If this control plane has no such component.
    pub fn pause(&self, component: Component) -> Result<(), Error> {
        self.supervisor.signal(component, Signal::Pause)
    }

    /// Lets a paused component go on.
    ///
    /// # Errors
    ///
    /// If this control plane has no such component.
    pub fn resume(&self, component: Component) -> Result<(), Error> {
        self.supervisor.signal(component, Signal::Resume)
    }

    /// Kills a component; returns when it has ended. [`Self::failure`] does not count it.
    ///
    /// # Errors
    ///
    /// If this control plane has no such component.
    pub async fn kill(&self, component: Component) -> Result<(), Error> {
        self.supervisor.kill(component).await
    }

    /// Starts a component anew, with the same data and the same port, after having killed it if it
    /// still runs; returns when etcd listens, or kube-apiserver is ready.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
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

    /// Ends everything and removes the folder; returns when that is done.
    pub async fn stop(self) {
        self.supervisor.stop().await;
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // The guard clears up when its input ends, which it does with the supervisor. Only a guard
        // that was killed leaves the folder behind.
        if self.supervisor.guard_is_gone() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// How many of [`Component::ALL`] are needed.
const fn components(nodes: usize) -> usize {
    if nodes == 0 { 3 } else { Component::ALL.len() }
}

/// Somebody the API server knows.
struct User {
    name: &'static str,
    kubeconfig: PathBuf,
    token: String,
}

impl User {
    /// Its line in the file of tokens. All may do everything.
    fn line(&self) -> String {
        format!("{},{},{},\"system:masters\"\n", self.token, self.name, self.name)
    }
}

/// Ports that systems do not give to outgoing connections: one of those could have taken the port while
/// kube-apiserver is being restarted.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A port that is free at this moment.
fn free_port() -> Result<u16, Error> {
    let mut last = Ok(());
    for _ in 0..100 {
        let port = fastrand::u16(PORTS);
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = Err(error),
        }
    }
    last.map(|()| 0).map_err(Error::io("find a free port of", Path::new("127.0.0.1")))
}

fn write(path: &Path, content: &str) -> Result<(), Error> {
    kubeconfig::write_private(path, content).map_err(Error::io("write", path))
}

/// The end of a log, as text.
fn read_end(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_BYTES)..]).into_owned()
}

/// The last lines of a text, none too long.
fn last_lines(text: &str) -> String {
    let mut lines: Vec<String> = text
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(LOG_LINES)
        .map(|line| line.chars().take(LOG_COLUMNS).collect())
        .collect();
    lines.reverse();
    lines.join("\n")
}

/// Status and body of a GET; an error is that of a connection or of a body that is not text.
async fn get(client: &kube::Client, path: &str) -> Result<(u16, String), kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request_text(request).await {
        Ok(body) => Ok((200, body)),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message)),
        Err(error) => Err(error),
    }
}

/// Creates an object.
async fn create(client: &kube::Client, path: &str, object: &Value) -> Result<(), Error> {
    let action = || format!("create {}", object["metadata"]["name"]);
    let request = http::Request::post(path)
        .header(CONTENT_TYPE, "application/json")
        .body(object.to_string().into_bytes())
        .map_err(|e| Error::api(action())(kube::Error::HttpError(e)))?;
    client.request::<Value>(request).await.map(drop).map_err(Error::api(action()))
}

/// The default `StorageClass`: its volumes are bound at once, whether or not a pod uses them.
fn storage_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "local",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/host-path",
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    })
}

/// A fake node. Zones go round, so that spreading over them can be seen.
fn node(number: usize) -> Value {
    let name = format!("fake-{number}");
    let zone = ["zone-a", "zone-b", "zone-c"][(number - 1) % 3];
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/region": "local",
                "topology.kubernetes.io/zone": zone,
            },
        },
    })
}

/// Whether a `NodeList` has that many nodes, each Ready and without a taint that keeps pods away.
fn all_schedulable(list: &str, nodes: usize) -> bool {
    let list: Value = serde_json::from_str(list).unwrap_or_default();
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    let schedulable = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
            && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
    };
    items.len() == nodes && items.iter().all(schedulable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_count_when_pods_can_go_there() {
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let tainted = json!({"spec": {"taints": [{"key": "k"}]}, "status": ready["status"].clone()});
        let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let cases = [
            (vec![], 0, true),
            (vec![], 1, false),
            (vec![ready.clone()], 1, true),
            (vec![ready.clone(), tainted], 2, false),
            (vec![ready, not_ready], 2, false),
        ];
        for (items, nodes, expected) in cases {
            let list = json!({"items": items}).to_string();
            assert_eq!(all_schedulable(&list, nodes), expected, "{list}");
        }
        assert!(!all_schedulable("no JSON", 1));
    }

    /// Callers spawn these; nothing is run here.
    #[test]
    fn futures_can_go_to_other_threads() {
        fn check<F: Future + Send>(_: impl FnOnce() -> F) {}
        check(|| async {
            let plane = ControlPlane::start(Options::default()).await?;
            plane.restart(Component::Etcd).await?;
            let error = plane.failure().await;
            plane.stop().await;
            Err::<(), _>(error)
        });
    }

    #[test]
    fn logs_are_cut() {
        let text: String = (0..20).map(|i| format!("line {i}")).collect::<Vec<_>>().join("\n\n");
        assert_eq!(last_lines(&text).lines().count(), LOG_LINES);
        assert!(last_lines(&text).ends_with("line 19"));
        assert_eq!(last_lines(&"x".repeat(1000)).len(), LOG_COLUMNS);
        assert_eq!(last_lines(""), "");
    }
}
