//! The control plane of a test: real components, or the embedded API on loopback, which starts in milliseconds.
//!
//! A test that only needs an API takes an embedded one. What the API server, its controllers or etcd do is shown by real ones.

use std::fs::File;
use std::io::Write as _;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, Method, Request};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use operetta::apiserver::{Answered, Listener, Server};
use operetta::cluster::Cluster;
use operetta::local::{self, AuditLog, Environment, Options, Tool};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Semaphore, oneshot};

use super::faults::{Call, Verb};
use super::hold::Hold;
use super::plans::{ADMIN, Programs};
use super::{is_all_real, options};

/// A control plane; it ends when it is dropped. What a real one alone has, such as its components, is reached by `Deref`,
/// which panics for an embedded one.
#[derive(Debug)]
pub struct ControlPlane(Kind);

#[derive(Debug)]
enum Kind {
    Real(Box<local::ControlPlane>),
    Embedded(Embedded),
}

/// The embedded API, served by a thread of its own, because each test has its own runtime.
#[derive(Debug)]
struct Embedded {
    server: Server,
    folder: TempDir,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    hold: Arc<Hold>,
    /// Ends the thread when it is dropped.
    _end: oneshot::Sender<()>,
}

impl ControlPlane {
    /// Starts a real one. Two start at once: that takes all processors for seconds, while other tests wait for deadlines.
    pub async fn start(options: Options) -> Result<Self, local::Error> {
        static STARTS: Semaphore = Semaphore::const_new(2);
        let _permit = STARTS.acquire().await;
        Ok(Self(Kind::Real(Box::new(local::ControlPlane::start(options).await?))))
    }

    /// Starts an embedded one; with `OPERETTA_TEST_REAL` a real one.
    pub async fn embedded() -> Self {
        if is_all_real() {
            return Self::start(options()).await.unwrap_or_else(|error| panic!("{error}"));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let kubectl = Tool::Kubectl.built(&Environment::of_process(), &options().progress).await;
        let server = Server::of_admin(ADMIN, now);
        server.with(|api, now| api.set_programs(Box::new(Programs), now));
        let log = Mutex::new(File::create(folder.path().join(AUDIT)).expect("a log"));
        let hold = Arc::<Hold>::default();
        let holds = Arc::clone(&hold);
        server.log_requests(move |answered| {
            let line = entry(answered).to_string() + "\n";
            log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()).expect("a log");
            holds.carried_out(answered);
        });
        let kubeconfig = folder.path().join("kubeconfig");
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let (served, path) = (server.clone(), kubeconfig.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = Listener::bind(0, now()).await.unwrap_or_else(|error| panic!("{error}"));
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
        Self(Kind::Embedded(Embedded {
            server,
            folder,
            kubeconfig,
            kubectl: kubectl.unwrap_or_else(|error| panic!("{error}")),
            hold,
            _end: end,
        }))
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
            Kind::Embedded(plane) => &plane.kubeconfig,
        }
    }

    /// The path of kubectl.
    pub fn kubectl(&self) -> &Path {
        match &self.0 {
            Kind::Real(plane) => plane.kubectl(),
            Kind::Embedded(plane) => &plane.kubectl,
        }
    }

    /// A client with the user `admin` and the user agent `operetta-local/...`.
    pub fn client(&self) -> Result<kube::Client, local::Error> {
        match &self.0 {
            Kind::Real(plane) => plane.client(),
            Kind::Embedded(plane) => Ok(plane.client("operetta-local/test")),
        }
    }

    /// A client as a manager has it.
    pub async fn managers_client(&self) -> kube::Client {
        match &self.0 {
            Kind::Real(plane) => {
                Cluster::of_kubeconfig(plane.kubeconfig_path()).await.expect("a kubeconfig").client()
            }
            Kind::Embedded(plane) => plane.client("operetta/test"),
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
    /// A client whose requests are answered in the process.
    fn client(&self, agent: &'static str) -> kube::Client {
        let inner = self.server.client();
        let service = tower::service_fn(move |mut request: Request<Body>| {
            request.headers_mut().insert("user-agent", HeaderValue::from_static(agent));
            let inner = inner.clone();
            async move { inner.send(request).await }
        });
        kube::Client::new(service, "default")
    }
}

#[expect(clippy::disallowed_methods, reason = "the time of the embedded API")]
fn now() -> Timestamp {
    Timestamp::now()
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
        "requestReceivedTimestamp": answered.received.to_string(),
        "stageTimestamp": now().to_string(),
    })
}
