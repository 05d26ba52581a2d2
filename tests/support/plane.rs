//! The control plane of a test: real components, the embedded API on loopback, or the embedded API in the thread of the test, whose
//! time is virtual.
//!
//! A test that only needs an API takes an embedded one. What the API server, its controllers or etcd do is shown by real ones.

use std::cell::Cell;
use std::fs::File;
use std::io::Write as _;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use operetta::apiserver::{Answered, Listener, Server};
use operetta::clock;
use operetta::cluster::{Cluster, Outside};
use operetta::local::{self, AuditLog, Environment, Options, Tool};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{self, Handle};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::faults::{Call, Verb};
use super::hold::Hold;
use super::latency::{Latency, late};
use super::manager::{Log, Operetta};
use super::plans::{ADMIN, Programs};
use super::{Shared, is_all_real, options, seed};

/// A control plane; it ends when it is dropped. What a real one alone has, such as its components, is reached by `Deref`,
/// which panics for an embedded one.
#[derive(Debug)]
pub struct ControlPlane(Kind);

#[derive(Debug)]
enum Kind {
    Real(Box<local::ControlPlane>),
    Embedded(Embedded),
}

#[derive(Debug)]
struct Embedded {
    server: Server,
    folder: TempDir,
    hold: Arc<Hold>,
    reach: Reach,
    /// Managers that end with this control plane.
    managers: Mutex<Vec<(&'static Shared, Operetta)>>,
}

/// From where an embedded API can be reached.
#[derive(Debug)]
enum Reach {
    /// From processes: a thread of its own serves it, because each test has its own runtime.
    Loopback {
        kubeconfig: PathBuf,
        /// Ends the thread when it is dropped.
        _end: oneshot::Sender<()>,
    },
    /// From the thread of the test alone.
    Thread { log: Log, _controllers: JoinSet<()> },
}

impl ControlPlane {
    /// Starts a real one. Two start at once: that takes all processors for seconds, while other tests wait for deadlines.
    pub async fn start(options: Options) -> Result<Self, local::Error> {
        static STARTS: Semaphore = Semaphore::const_new(2);
        let _permit = STARTS.acquire().await;
        Ok(Self(Kind::Real(Box::new(local::ControlPlane::start(options).await?))))
    }

    /// Starts an embedded one that processes can reach; with `OPERETTA_TEST_API=real` a real one.
    pub async fn embedded() -> Self {
        if is_all_real() {
            return Self::start(options()).await.unwrap_or_else(|error| panic!("{error}"));
        }
        let (server, folder, hold) = Embedded::server();
        let kubeconfig = folder.path().join("kubeconfig");
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let (served, path) = (server.clone(), kubeconfig.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener =
                    Listener::bind(0, clock::now()).await.unwrap_or_else(|error| panic!("{error}"));
                listener.write_kubeconfig(&path).expect("a kubeconfig");
                let _ = ready.send(());
                tokio::select! {
                    () = listener.serve(served.clone()) => {}
                    () = served.run() => {}
                    _ = ended => {}
                }
            });
        });
        is_ready.await.expect("it listens");
        let reach = Reach::Loopback { kubeconfig, _end: end };
        Self(Kind::Embedded(Embedded { server, folder, hold, reach, managers: Mutex::default() }))
    }

    /// Starts an embedded one in this thread, and makes the time of this thread virtual: it advances while all tasks wait.
    pub fn in_thread() -> Self {
        make_time_virtual();
        let (server, folder, hold) = Embedded::server();
        server.with(|api, _| api.set_lateness(seed()));
        let mut controllers = JoinSet::new();
        let controlled = server.clone();
        controllers.spawn(async move { controlled.run().await });
        let reach = Reach::Thread { log: Log::of_this_thread(), _controllers: controllers };
        Self(Kind::Embedded(Embedded { server, folder, hold, reach, managers: Mutex::default() }))
    }

    /// Whether it is in the thread of the test, where no process can reach it, and time is virtual.
    pub fn is_in_thread(&self) -> bool {
        matches!(&self.0, Kind::Embedded(Embedded { reach: Reach::Thread { .. }, .. }))
    }

    /// The server and the log of one in the thread of the test.
    pub(super) fn thread(&self) -> Option<(&Server, &Log)> {
        match &self.0 {
            Kind::Embedded(Embedded { server, reach: Reach::Thread { log, .. }, .. }) => Some((server, log)),
            _ => None,
        }
    }

    /// Keeps a manager running as long as this embedded control plane.
    pub(super) fn keep(&self, shared: &'static Shared, manager: Operetta) {
        let Kind::Embedded(Embedded { managers, .. }) = &self.0 else { panic!("it is not embedded") };
        managers.lock().unwrap_or_else(PoisonError::into_inner).push((shared, manager));
    }

    /// What is read of a manager that was kept, the last if none is named; `None` if there is none.
    pub(super) fn with_manager<T>(
        &self,
        named: Option<&'static Shared>,
        read: impl Fn(&Operetta) -> T,
    ) -> Option<T> {
        let Kind::Embedded(Embedded { managers, .. }) = &self.0 else { return None };
        let managers = managers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |shared: &Shared| named.is_none_or(|named| std::ptr::eq(named, shared));
        managers.iter().rfind(|(shared, _)| is_it(shared)).map(|(_, manager)| read(manager))
    }

    /// The folder with all files.
    pub fn folder(&self) -> &Path {
        match &self.0 {
            Kind::Real(plane) => plane.folder(),
            Kind::Embedded(plane) => plane.folder.path(),
        }
    }

    /// The kubeconfig of the user `admin`, who has all permissions.
    pub fn kubeconfig_path(&self) -> &Path {
        match &self.0 {
            Kind::Real(plane) => plane.kubeconfig_path(),
            Kind::Embedded(plane) => plane.kubeconfig(),
        }
    }

    /// The path of kubectl, which Go builds once.
    pub async fn kubectl(&self) -> PathBuf {
        match &self.0 {
            Kind::Real(plane) => plane.kubectl().to_owned(),
            Kind::Embedded(_) => {
                let built = Tool::Kubectl.built(&Environment::of_process(), &options().progress).await;
                built.unwrap_or_else(|error| panic!("{error}"))
            }
        }
    }

    /// A client with the user `admin` and the user agent `operetta-local/...`.
    pub fn client(&self) -> Result<kube::Client, local::Error> {
        match &self.0 {
            Kind::Real(plane) => plane.client(),
            Kind::Embedded(plane) => Ok(client_of(plane.server.client(), "operetta-local/test")),
        }
    }

    /// A client as a manager has it.
    pub async fn managers_client(&self) -> kube::Client {
        match &self.0 {
            Kind::Real(plane) => {
                Cluster::of_kubeconfig(plane.kubeconfig_path()).await.expect("a kubeconfig").client()
            }
            Kind::Embedded(plane) => client_of(plane.server.client(), "operetta/test"),
        }
    }

    /// What lets `operetta` wait for answers; `None` for a real one.
    pub fn hold(&self) -> Option<&Hold> {
        match &self.0 {
            Kind::Real(_) => None,
            Kind::Embedded(plane) => Some(&plane.hold),
        }
    }

    /// The log of the requests.
    pub fn audit(&self) -> AuditLog {
        match &self.0 {
            Kind::Real(plane) => plane.audit(),
            Kind::Embedded(plane) => AuditLog::new(plane.folder.path().join(AUDIT)),
        }
    }

    /// Stops all components and removes the folder; returns when this is done.
    pub async fn stop(self) {
        if let Kind::Real(plane) = self.0 {
            plane.stop().await;
        }
    }
}

impl Deref for ControlPlane {
    type Target = local::ControlPlane;

    fn deref(&self) -> &local::ControlPlane {
        match &self.0 {
            Kind::Real(plane) => plane,
            Kind::Embedded(_) => panic!("the embedded API has no components"),
        }
    }
}

impl Embedded {
    /// An API whose requests are logged in the folder.
    fn server() -> (Server, TempDir, Arc<Hold>) {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Server::of_admin(ADMIN, clock::now);
        server.with(|api, now| api.set_programs(Box::new(Programs), now));
        let log = Mutex::new(File::create(folder.path().join(AUDIT)).expect("a log"));
        let hold = Arc::<Hold>::default();
        let holds = Arc::clone(&hold);
        server.log_requests(move |answered| {
            let line = entry(answered).to_string() + "\n";
            log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()).expect("a log");
            holds.carried_out(answered);
        });
        (server, folder, hold)
    }

    fn kubeconfig(&self) -> &Path {
        match &self.reach {
            Reach::Loopback { kubeconfig, .. } => kubeconfig,
            Reach::Thread { .. } => {
                panic!("no process can reach the API of this thread, whose time is virtual")
            }
        }
    }
}

/// A client with this user agent.
fn client_of(inner: kube::Client, agent: &'static str) -> kube::Client {
    let service = tower::service_fn(move |mut request: Request<Body>| {
        request.headers_mut().insert("user-agent", HeaderValue::from_static(agent));
        let inner = inner.clone();
        async move { inner.send(request).await }
    });
    kube::Client::new(service, "default")
}

/// A manager's client in the thread of a test, whose requests arrive as long as `lives`, and never afterwards. It is asked before
/// and after each request, with whether that was a write that the server has carried out.
pub(super) fn mortal_client(
    inner: kube::Client,
    lives: impl Fn(bool) -> bool + Clone + Send + Sync + 'static,
) -> kube::Client {
    let inner = client_of(inner, "operetta/test");
    let latency = Arc::new(Mutex::new(Latency::new()));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, lives) = (inner.clone(), lives.clone());
        let mut latency = latency.lock().unwrap_or_else(PoisonError::into_inner);
        let (travels, lag) = (latency.of_request(), latency.of_answer(&request));
        drop(latency);
        async move {
            sleep(travels).await;
            if !lives(false) {
                return std::future::pending().await;
            }
            let is_dry = request.uri().query().is_some_and(|query| query.contains("dryRun=All"));
            let is_write = request.method() != Method::GET && !is_dry;
            let answer = inner.send(request).await;
            if !lives(is_write) {
                return std::future::pending().await;
            }
            answer.map(|answer| late(answer, lag))
        }
    });
    kube::Client::new(service, "default")
}

/// What answers the HTTP requests of packages as long as `lives`, and never afterwards.
pub(super) fn outside_of(
    server: &Server,
    lives: impl Fn() -> bool + Send + Sync + 'static,
) -> Arc<dyn Outside> {
    Arc::new(Mortal { inner: server.outside(), lives })
}

struct Mortal<F> {
    inner: Arc<dyn Outside>,
    lives: F,
}

impl<F: Fn() -> bool + Send + Sync> Outside for Mortal<F> {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        Box::pin(async move {
            if !(self.lives)() {
                return std::future::pending().await;
            }
            let answer = self.inner.call(request).await;
            if (self.lives)() { answer } else { std::future::pending().await }
        })
    }
}

/// The time at which tests in virtual time begin: 2026-01-01.
const BEGINNING: i64 = 1_767_225_600;

/// Makes the time of this thread virtual, unless it is.
fn make_time_virtual() {
    thread_local! {
        /// The runtime whose time is virtual.
        static VIRTUAL: Cell<Option<runtime::Id>> = const { Cell::new(None) };
    }
    let runtime = Handle::current().id();
    if VIRTUAL.replace(Some(runtime)) != Some(runtime) {
        tokio::time::pause();
        clock::set_virtual(Timestamp::from_second(BEGINNING).expect("a time"));
    }
}

/// The name of the log of an embedded API.
const AUDIT: &str = "audit.log";

/// A request as kube-apiserver logs it.
fn entry(answered: &Answered) -> Value {
    let method: Method = answered.method.parse().expect("a method");
    let call = Call::parse(&method, &answered.uri, "");
    let body = || serde_json::from_slice::<Value>(&answered.body).unwrap_or_default();
    let (verb, stage) = match call.verb {
        Verb::Watch | Verb::Stream => ("watch", "ResponseStarted"),
        Verb::List => ("list", "ResponseComplete"),
        _ => match method {
            Method::GET if matches!(call.subresource.as_str(), "exec" | "log") => ("get", "ResponseStarted"),
            Method::POST => ("create", "ResponseComplete"),
            Method::PUT => ("update", "ResponseComplete"),
            Method::PATCH => ("patch", "ResponseComplete"),
            Method::DELETE if call.name.is_empty() => ("deletecollection", "ResponseComplete"),
            Method::DELETE => ("delete", "ResponseComplete"),
            _ => ("get", "ResponseComplete"),
        },
    };
    let created = (verb == "create" && call.name.is_empty()).then(|| body()["metadata"]["name"].take());
    json!({
        "auditID": "",
        "stage": stage,
        "requestURI": answered.uri,
        "verb": verb,
        "user": {"username": answered.user},
        "impersonatedUser": {"username": answered.acting_as},
        "userAgent": answered.user_agent,
        "objectRef": {
            "apiGroup": call.group,
            "resource": call.plural,
            "subresource": call.subresource,
            "namespace": call.namespace,
            "name": created.as_ref().and_then(Value::as_str).unwrap_or(&call.name),
        },
        "responseStatus": {"code": answered.code},
        "requestReceivedTimestamp": format!("{:.6}", answered.received),
        "stageTimestamp": format!("{:.6}", clock::now()),
    })
}
