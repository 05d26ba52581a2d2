//! The start of a control plane: finds the programs, starts the components one after another, and waits until pods can be
//! scheduled.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::header::{HeaderValue, USER_AGENT};
use tokio::net::TcpStream;

use super::binaries::{self, Binaries};
use super::components::{self, AUDIT_POLICY, CERTIFICATE, Component, KUBECONFIG, STAGES, TOKENS};
use super::error::Error;
use super::node::{self, config::API_PORT};
use super::objects::{all_schedulable, create, get, node, storage_class};
use super::supervisor::Supervisor;
use super::tools::{Progress, Tool};
use super::{ControlPlane, DEFAULT_STAGES, Options, audit, kubeconfig};

/// A kwok configuration that runs commands in pods on this machine.
const LOCAL_EXEC: &str = "
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterExec
metadata: {name: local}
spec: {execs: [{local: {}}]}
";

/// The maximum number of attempts with a free port.
const PORT_ATTEMPTS: usize = 5;

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
