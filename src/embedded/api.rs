//! The API: one value that answers requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use operetta_lang::diag::Diagnostic;
use serde_json::Value;

use crate::access::{self, Rights, Token};
use crate::kinds::{Kind, Kinds};
use crate::policy::Policies;
use crate::programs::{Obedient, Objects, Programs, Stamp};
use crate::request::{Query, Request, Response, Route, segments};
use crate::status::{Failure, Outcome};
use crate::store::{Size, Store};
use crate::versions::Converter;
use crate::work::{Active, Controllers};
use crate::{
    admission, deletion, discovery, gc, openapi, read, services, stored, strategy, subresources, write,
};

/// A Kubernetes API with its objects. It never reads a clock: the time is given.
#[derive(Debug)]
pub struct Api {
    pub(crate) store: Store,
    pub(crate) kinds: Kinds,
    /// The number of values that were generated: uids and suffixes of names.
    generated: u64,
    /// The number of addresses that Services were given.
    pub(crate) addresses: u32,
    /// What the controllers remember.
    pub(crate) controllers: Controllers,
    /// What programs do.
    pub(crate) programs: Box<dyn Programs>,
    /// The roles and bindings as they were when they were last read.
    pub(crate) rights: Option<Arc<Rights>>,
    /// The policies as they were when they were last read.
    pub(crate) policies: Option<Arc<Policies>>,
    /// What knows conversion webhooks.
    pub(crate) converter: Option<Arc<dyn Converter>>,
    /// The newest change of a cluster role when aggregated roles were last computed.
    pub(crate) aggregated: u64,
    /// The tokens that were given out.
    pub(crate) tokens: HashMap<String, Token>,
    /// The secret from which tokens follow; empty if nobody else can send requests.
    pub(crate) token_key: String,
    /// The certificates that pods trust, as PEM.
    pub(crate) root_ca: String,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            store: Store::default(),
            kinds: Kinds::built_in(),
            generated: 0,
            addresses: 0,
            controllers: Controllers::default(),
            programs: Box::new(Obedient),
            rights: None,
            policies: None,
            converter: None,
            aggregated: 0,
            tokens: HashMap::new(),
            token_key: String::new(),
            root_ca: "# The embedded API is not served with TLS.\n".to_owned(),
        }
    }
}

/// A request about objects.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) kind: Arc<Kind>,
    pub(crate) route: Route,
    pub(crate) query: Query,
    pub(crate) request: &'a Request<'a>,
    pub(crate) now: String,
    /// The exact time.
    pub(crate) at: Timestamp,
    pub(crate) warnings: Vec<String>,
    /// The body, if a controller has sent it as a value.
    pub(crate) given: Option<Value>,
}

impl Context<'_> {
    pub(crate) fn namespace(&self) -> &str {
        self.route.namespace.as_deref().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.route.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn subresource(&self) -> &str {
        self.route.subresource.as_deref().unwrap_or_default()
    }

    /// The key of the object in the store.
    pub(crate) fn key(&self) -> String {
        key(self.namespace(), self.name())
    }
}

/// The key of an object in the store.
pub(crate) fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Whether objects of the kind are answered and not stored.
fn is_review(kind: &Kind) -> bool {
    matches!(&*kind.group, "authorization.k8s.io" | "authentication.k8s.io")
}

/// A time as objects have it.
pub(crate) fn time(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Api {
    /// An API with what every cluster has: namespaces, roles, and the Service of the API server.
    pub fn new(now: Timestamp) -> Self {
        // Many APIs begin at one time, and making the roles takes longer than most that is done with them.
        static LAST: Mutex<Option<(Timestamp, Store, u64)>> = Mutex::new(None);
        let last = || LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last().clone().filter(|(time, ..)| *time == now);
        let (_, store, generated) = known.unwrap_or_else(|| {
            let fresh = Self::fresh(now);
            let made = (now, fresh.store, fresh.generated);
            *last() = Some(made.clone());
            made
        });
        let aggregated = store.latest(access::CLUSTER_ROLES);
        Self { store, generated, aggregated, ..Self::default() }
    }

    /// A new API whose objects are made now.
    fn fresh(now: Timestamp) -> Self {
        let mut api = Self::default();
        let namespaces = ["default", "kube-node-lease", "kube-public", "kube-system"];
        for name in namespaces {
            let namespace = serde_json::json!({"metadata": {"name": name}});
            api.write_as("kube-apiserver", "POST", "/api/v1/namespaces", namespace, now);
        }
        access::seed(&mut api, now);
        services::seed(&mut api, now);
        for class in admission::system_classes() {
            let uri = "/apis/scheduling.k8s.io/v1/priorityclasses";
            api.write_as("kube-apiserver", "POST", uri, class, now);
        }
        gc::accounts(&mut api, namespaces, now);
        api
    }

    /// Creates or replaces an object on behalf of a part of the control plane.
    pub(crate) fn write_as(&mut self, agent: &str, method: &str, uri: &str, object: Value, now: Timestamp) {
        let request = Request {
            method,
            uri,
            content_type: "application/json",
            accept: "",
            user_agent: agent,
            user: &crate::User::default(),
            body: b"",
        };
        self.handle_given(&request, Some(object), now);
    }

    /// Sets the certificates that pods trust, as PEM: each namespace has them in a `ConfigMap`.
    pub fn set_root_ca(&mut self, pem: String, now: Timestamp) {
        self.root_ca = pem;
        let keys = self.keys("namespaces");
        gc::accounts(self, keys.iter().map(|key| key.trim_start_matches('/')), now);
    }

    /// An API whose only controllers are those of namespaces, CRDs and garbage: it has no node, and workloads get no pods.
    pub fn bare(now: Timestamp) -> Self {
        let mut api = Self::new(now);
        api.controllers.active = Active::Bare;
        api
    }

    /// An API as kube-apiserver is without kube-controller-manager: only CRDs are established and removed.
    pub fn alone(now: Timestamp) -> Self {
        let mut api = Self::new(now);
        api.controllers.active = Active::Server;
        // kube-controller-manager makes these.
        for resource in ["serviceaccounts", "configmaps"] {
            for key in api.keys(resource) {
                api.store.remove(resource, &key);
            }
        }
        api
    }

    fn keys(&self, resource: &str) -> Vec<Arc<str>> {
        self.store.range(resource, "", None).map(|(key, _)| key.clone()).collect()
    }

    /// The same API once more: what happens to one does not happen to the other. Its programs are those that `programs` makes of
    /// a copy of ours.
    #[must_use]
    pub fn copy(&self, programs: impl FnOnce(Box<dyn Programs>) -> Box<dyn Programs>) -> Self {
        Self {
            store: self.store.copy(),
            kinds: self.kinds.clone(),
            generated: self.generated,
            addresses: self.addresses,
            controllers: self.controllers.clone(),
            programs: programs(self.programs.copy()),
            rights: self.rights.clone(),
            policies: self.policies.clone(),
            converter: self.converter.clone(),
            aggregated: self.aggregated,
            tokens: self.tokens.clone(),
            token_key: self.token_key.clone(),
            root_ca: self.root_ca.clone(),
        }
    }

    /// Says what programs do. Pods that run already keep their course, and programs of the same kind what they remember.
    pub fn set_programs(&mut self, mut programs: Box<dyn Programs>, now: Timestamp) {
        let runs = self.controllers.kubelet.runs.values();
        let pods: Vec<Value> = runs.map(|run| run.pod.value()).collect();
        programs.resume(&self.programs.memory(), &pods, self, now);
        self.programs = programs;
    }

    /// What went wrong in the description of the programs.
    pub fn faults(&self) -> Vec<Diagnostic> {
        self.programs.faults()
    }

    /// The programs, while they are asked something.
    pub(crate) fn take_programs(&mut self) -> Box<dyn Programs> {
        std::mem::replace(&mut self.programs, Box::new(Obedient))
    }

    /// Sets what knows the conversion webhooks of CRDs. Without it, versions differ in their schema only.
    pub fn set_converter(&mut self, converter: Arc<dyn Converter>) {
        self.converter = Some(converter);
        crate::crd::serve_all(self);
    }

    /// Answers a request at a time.
    pub fn handle(&mut self, request: &Request<'_>, now: Timestamp) -> Response {
        self.handle_given(request, None, now)
    }

    /// Answers a request of a controller, with its body as a value.
    pub(crate) fn handle_given(
        &mut self,
        request: &Request<'_>,
        given: Option<Value>,
        now: Timestamp,
    ) -> Response {
        let (path, query) = request.uri.split_once('?').unwrap_or((request.uri, ""));
        let query = Query::parse(query);
        match self.answer(request, path, query, given, now) {
            Ok(response) => response,
            Err(failure) => Response::json(failure.code, &failure.to_json()),
        }
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        path: &str,
        query: Query,
        given: Option<Value>,
        now: Timestamp,
    ) -> Outcome<Response> {
        let parts = segments(path);
        access::admit(self, request, path, &parts, &query)?;
        let parts_ref: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match &parts_ref[..] {
            ["api", version, ..] if parts.len() > 2 => ("", *version, &parts[2..]),
            ["apis", group, version, ..] if parts.len() > 3 => (*group, *version, &parts[3..]),
            ["openapi", ..] => return Ok(openapi::answer(self, request.accept, &parts_ref)),
            _ => return discovery::answer(self, request, &parts_ref),
        };
        let route = Route::parse(group, version, rest).ok_or_else(Failure::no_path)?;
        let Some(kind) = self.kinds.find(group, version, &route.plural).cloned() else {
            if self.kinds.iter().any(|kind| kind.group == group && kind.version == version) {
                return Err(Failure::no_path());
            }
            return Ok(Response::plain(404, "404 page not found\n"));
        };
        if kind.namespaced && route.namespace.is_none() && route.name.is_some()
            || !kind.namespaced && route.namespace.is_some()
        {
            return Err(Failure::no_path());
        }
        let warnings = Vec::new();
        let mut context = Context { kind, route, query, request, now: time(now), at: now, warnings, given };
        context.warnings.extend(strategy::deprecation(&context.kind));
        let mut response = match self.dispatch(&mut context) {
            Ok(response) => response,
            Err(failure) => Response::json(failure.code, &failure.to_json()),
        };
        if (request.method != "GET" || context.subresource() == "scale")
            && let Err(failure) = read::transform(&context, &mut response)
        {
            response = Response::json(failure.code, &failure.to_json());
        }
        response.warnings.append(&mut context.warnings);
        Ok(response)
    }

    fn dispatch(&mut self, context: &mut Context<'_>) -> Outcome<Response> {
        let kind = context.kind.clone();
        let method = context.request.method;
        let sub = context.subresource().to_owned();
        if !sub.is_empty() && !kind.has_subresource(&sub) {
            return Err(Failure::no_path());
        }
        let verb = match (method, context.route.name.is_some()) {
            ("GET", true) => "get",
            ("GET", false) if context.query.flag("watch") => "watch",
            ("GET", false) => "list",
            ("POST", false) => "create",
            ("POST", true) if !sub.is_empty() => "create",
            ("PUT", true) => "update",
            ("PATCH", true) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => return Err(Failure::not_allowed(&kind, method)),
        };
        if sub.is_empty() && !kind.allows(verb) {
            return Err(Failure::not_allowed(&kind, verb));
        }
        match (verb, &*sub) {
            ("get", "" | "status" | "resize") => read::get(self, context),
            ("list", _) => read::list(self, context),
            ("watch", _) => read::watch(self, context),
            ("create", "") if is_review(&kind) => {
                let object = write::read_new(self, context)?;
                access::review(self, context, object)
            }
            ("create", "") => write::create(self, context),
            ("create", "token") => access::create_token(self, context),
            ("update", "" | "status" | "finalize" | "resize") => write::update(self, context),
            ("patch", "" | "status" | "finalize" | "resize") => write::patch(self, context),
            ("delete", "") => deletion::delete(self, context),
            ("deletecollection", "") => deletion::delete_collection(self, context),
            (_, "scale") => crate::scale::answer(self, context, verb),
            ("create", "binding") => subresources::bind(self, context),
            ("create", "eviction") => subresources::evict(self, context),
            ("get", "log") => subresources::log(self, context),
            _ => Err(Failure::not_allowed(&kind, verb)),
        }
    }

    /// The live object, or that there is none.
    pub(crate) fn live(&self, context: &Context<'_>) -> Outcome<Value> {
        Ok(stored::Live::of(self, context)?.value())
    }

    /// A value that no other object has: the same requests get the same ones.
    pub(crate) fn generate(&mut self) -> u64 {
        self.generated += 1;
        // One step of splitmix64, so that neighbours look different.
        let mut z = self.generated.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn uid(&mut self) -> String {
        let (a, b) = (self.generate(), self.generated);
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{b:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            (a >> 4) & 0xfff,
            a & 0xfff
        )
    }

    /// The suffix of a generated name.
    pub(crate) fn suffix(&mut self) -> String {
        const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut number = self.generate();
        (0..5)
            .map(|_| {
                let letter = LETTERS[usize::try_from(number % 27).unwrap_or(0)];
                number /= 27;
                char::from(letter)
            })
            .collect()
    }
}

impl Api {
    /// How much is stored.
    pub fn size(&self) -> Size {
        self.store.size()
    }

    /// The version of the last change of an object.
    pub fn version(&self) -> u64 {
        self.store.version()
    }

    /// When the objects of a kind have changed last.
    pub fn stamp(&self, api_version: &str, kind: &str) -> Stamp {
        let Some(kind) = self.kinds.named(api_version, kind) else { return Stamp::default() };
        let definition = kind.custom().map(|_| self.store.latest(crate::crd::CRDS));
        Stamp { objects: self.store.latest(kind.storage()), definition: definition.unwrap_or_default() }
    }

    /// The versions of the objects of a kind, by `NAMESPACE/NAME`.
    pub fn versions(&self, api_version: &str, kind: &str) -> impl Iterator<Item = (&str, u64)> {
        let kind = self.kinds.named(api_version, kind);
        let objects = kind.into_iter().flat_map(|kind| self.store.range(kind.storage(), "", None));
        objects.map(|(key, object)| (&**key, object.version))
    }
}

impl Objects for Api {
    fn version(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<u64> {
        // The schema of a custom resource says how it is read.
        let kind = self.kinds.named(api_version, kind).filter(|kind| kind.custom().is_none())?;
        Some(self.store.get(kind.storage(), &key(namespace, name))?.version)
    }

    fn object(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = self.kinds.named(api_version, kind)?;
        let object = self.store.get(kind.storage(), &key(namespace, name))?;
        Some(crate::versions::parsed(kind, object).ok()?.value.clone())
    }

    fn objects(&self, api_version: &str, kind: &str, namespace: &str) -> Vec<Value> {
        let Some(kind) = self.kinds.named(api_version, kind) else { return Vec::new() };
        let prefix = if namespace.is_empty() { String::new() } else { key(namespace, "") };
        let objects = self.store.range(kind.storage(), &prefix, None);
        objects
            .filter_map(|(_, object)| Some(crate::versions::parsed(kind, object).ok()?.value.clone()))
            .collect()
    }
}
