//! A strict OCI registry in memory on loopback, for tests of the commands. It may demand credentials, lie and break off.

mod content;
mod http;

use std::collections::BTreeSet;
use std::io::{BufReader, Read as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use data_encoding::BASE64;
use operetta_registry::Digest;
use serde_json::json;

pub(crate) use content::Content;
use content::{Fate, State};
pub(crate) use http::{Reply, Request, error, reply};

/// Whom a registry with credentials knows.
pub(crate) const USER: &str = "user";
pub(crate) const PASSWORD: &str = "pass:word of the user";

/// When a test ends that waits for a request that does not come.
const PATIENCE: Duration = Duration::from_secs(120);

/// What requests must bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Open,
    Basic,
    Bearer,
}

/// When a registry breaks off, or lets a client wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// After that many requests, none is carried out or answered.
    DiesAfter(usize),
    /// After that many requests, one is carried out and not answered.
    LosesAnswer(usize),
    /// After that many requests, one is not carried out, and the client waits for the answer until it ends.
    HoldsRequest(usize),
    /// The same with a request that is carried out.
    HoldsAnswer(usize),
}

type Lie = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

/// A registry. Its port is closed when it is dropped.
pub(crate) struct Registry {
    pub(crate) address: String,
    shared: Arc<Shared>,
    listens: Option<JoinHandle<()>>,
}

struct Shared {
    address: String,
    access: Access,
    has_referrers: bool,
    lie: Mutex<Option<Arc<Lie>>>,
    state: Mutex<State>,
    held: Condvar,
    sent: AtomicU64,
    is_stopped: AtomicBool,
}

impl Registry {
    /// An empty registry, with or without the API for referrers.
    pub(crate) fn new(access: Access, has_referrers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let shared = Arc::new(Shared {
            address: address.clone(),
            access,
            has_referrers,
            lie: Mutex::default(),
            state: Mutex::default(),
            held: Condvar::new(),
            sent: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let listens = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if accepting.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.serve(&stream));
            }
        });
        Self { address, shared, listens: Some(listens) }
    }

    /// An open registry with the API for referrers.
    pub(crate) fn start() -> Self {
        Self::new(Access::Open, true)
    }

    /// The same with content.
    pub(crate) fn with(content: &Content) -> Self {
        let registry = Self::start();
        registry.state(|state| state.content = content.clone());
        registry
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.shared.state.lock().expect("no panic in the registry"))
    }

    /// The reference of a repository.
    pub(crate) fn place(&self, repository: &str) -> String {
        format!("oci://{}/{repository}", self.address)
    }

    /// Other answers to some requests.
    pub(crate) fn lie(&self, lie: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) {
        let lie: Arc<Lie> = Arc::new(lie);
        *self.shared.lie.lock().expect("no panic in the registry") = Some(lie);
    }

    /// Breaks off, counted from now.
    pub(crate) fn fault(&self, fault: Fault) {
        self.state(|state| state.fault = Some(fault));
    }

    /// Waits until a request is held.
    pub(crate) fn until_held(&self) {
        let state = self.shared.state.lock().expect("no panic in the registry");
        let waited = self.shared.held.wait_timeout_while(state, PATIENCE, |state| !state.is_held);
        assert!(waited.expect("no panic in the registry").0.is_held, "no request is held");
    }

    /// Ends the fault.
    pub(crate) fn repair(&self) {
        self.state(|state| state.fault = None);
    }

    pub(crate) fn content(&self) -> Content {
        self.state(|state| state.content.clone())
    }

    /// The requests that came, without their bodies.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.state(|state| state.seen.clone())
    }

    /// How many requests with this method have this in their path.
    pub(crate) fn count(&self, method: &str, part: &str) -> usize {
        self.seen().iter().filter(|request| request.is(method, part)).count()
    }

    /// How many bytes of bodies were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts connections.
        drop(TcpStream::connect(&self.address));
        if let Some(listens) = self.listens.take() {
            let _ = listens.join();
        }
    }
}

impl Shared {
    fn serve(&self, stream: &TcpStream) {
        let _ = stream.set_nodelay(true);
        let Ok(reader) = stream.try_clone() else { return };
        let mut lines = BufReader::new(reader);
        while let Some(request) = Request::read(&mut lines) {
            if self.is_stopped.load(Ordering::SeqCst) {
                break;
            }
            let fate = {
                let mut state = self.state.lock().unwrap();
                state.seen.push(request.without_body());
                state.next()
            };
            if let Fate::Unanswered { is_carried_out, is_held } = fate {
                if is_carried_out {
                    self.answer(&request);
                }
                if is_held {
                    self.state.lock().unwrap().is_held = true;
                    self.held.notify_all();
                    // Nothing comes until the client ends.
                    let _ = lines.read(&mut [0]);
                }
                break;
            }
            let reply = self.answer(&request);
            if !reply.send(stream, request.method == "HEAD", &self.sent).is_ok_and(|goes_on| goes_on) {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn answer(&self, request: &Request) -> Reply {
        let lie = self.lie.lock().unwrap().clone();
        lie.and_then(|lie| lie(request)).unwrap_or_else(|| self.honest(request))
    }

    fn honest(&self, request: &Request) -> Reply {
        if request.path == "/token" && self.access == Access::Bearer {
            return self.token(request);
        }
        if let Some(refusal) = self.refusal(request) {
            return refusal;
        }
        let mut state = self.state.lock().unwrap();
        if request.path == "/v2/" {
            return reply(200, &[], "{}");
        }
        if request.path == "/v2/_catalog" {
            let names: BTreeSet<&String> = state.content.manifests.keys().map(|(name, _)| name).collect();
            return reply(200, &[], json!({"repositories": names}).to_string());
        }
        let Some((repository, part, rest)) = request.split() else { return error(404, "NAME_INVALID") };
        match (part, &*request.method) {
            ("/blobs/uploads/", _) => state.upload(repository, rest, request),
            ("/blobs/", "GET" | "HEAD") => state.blob(repository, rest, request),
            ("/manifests/", "GET" | "HEAD") => match state.content.manifest(repository, rest) {
                Some((kind, bytes)) if request.header("accept").is_some_and(|all| all.contains(kind)) => {
                    let digest = Digest::of(bytes).to_string();
                    let headers = [("content-type", &**kind), ("docker-content-digest", &*digest)];
                    reply(200, &headers, bytes.clone())
                }
                _ => error(404, "MANIFEST_UNKNOWN"),
            },
            ("/manifests/", "PUT") => state.put_manifest(repository, rest, request, self.has_referrers),
            ("/referrers/", "GET") if self.has_referrers => state.referrers(repository, rest),
            ("/tags/list", "GET") => state.tags(repository),
            _ => error(404, "UNSUPPORTED"),
        }
    }

    /// The answer to a request without the access that it needs.
    fn refusal(&self, request: &Request) -> Option<Reply> {
        let given = request.header("authorization").unwrap_or_default();
        let (is_permitted, challenge) = match self.access {
            Access::Open => return None,
            Access::Basic => (given == basic(), "Basic realm=\"test\"".to_owned()),
            Access::Bearer => {
                let scope = request.scope();
                let state = self.state.lock().unwrap();
                let granted = given.strip_prefix("Bearer ").and_then(|token| state.tokens.get(token));
                let is_permitted = granted.is_some_and(|granted| {
                    let covered = |scope: &String| granted.iter().any(|one| covers(one, scope));
                    scope.as_ref().is_none_or(covered)
                });
                let scope = scope.map(|scope| format!(",scope=\"{scope}\"")).unwrap_or_default();
                let realm = format!("http://{}/token", self.address);
                (is_permitted, format!("Bearer realm=\"{realm}\",service=\"test\"{scope}"))
            }
        };
        (!is_permitted).then(|| error(401, "UNAUTHORIZED").with("www-authenticate", &challenge))
    }

    fn token(&self, request: &Request) -> Reply {
        if request.header("authorization") != Some(&*basic()) || request.parameters("service") != ["test"] {
            return error(401, "UNAUTHORIZED");
        }
        let mut state = self.state.lock().unwrap();
        let token = format!("token{}", state.tokens.len());
        state.tokens.insert(token.clone(), request.parameters("scope"));
        reply(200, &[], json!({"token": token}).to_string())
    }
}

/// The header of a user who knows the password.
fn basic() -> String {
    format!("Basic {}", BASE64.encode(format!("{USER}:{PASSWORD}").as_bytes()))
}

/// Whether one access includes another: `repository:NAME:pull,push` and `repository:NAME:pull`.
fn covers(granted: &str, wanted: &str) -> bool {
    let split = |text: &str| text.rsplit_once(':').map(|(of, all)| (of.to_owned(), all.to_owned()));
    let (Some((of, granted)), Some((wanted_of, wanted))) = (split(granted), split(wanted)) else {
        return false;
    };
    of == wanted_of && wanted.split(',').all(|one| granted.split(',').any(|other| other == one))
}
