//! The API: one value that answers requests, and whose controllers act.

use std::sync::Arc;

use jiff::Timestamp;
use operetta_kube_model::facts::key;
use operetta_lang::diag::Diagnostic;
use serde_json::Value;

use crate::crd::{CRDS, Converter};
use crate::model::{Request, User};
use crate::seed::seeded;
use crate::state::crds::serve_all;
use crate::state::lateness::Lateness;
use crate::state::store::Size;
use crate::state::{Active, State};
use crate::verbs::accounts;
use crate::verbs::response::Response;
use crate::verbs::watch::Watch;
use crate::work::Controllers;
use crate::world::programs::{DefaultPrograms, Objects, Programs, Stamp};
use crate::{access, dispatch};

/// A Kubernetes API with its objects. It never reads a clock: the time is given.
#[derive(Debug)]
pub struct Api {
    pub(crate) state: State,
    /// The memory of the controllers.
    pub(crate) controllers: Controllers,
    /// The programs in pods, and the servers that packages call.
    pub(crate) programs: Box<dyn Programs>,
}

impl Api {
    /// An API with what every cluster has: namespaces, roles, and the Service of the API server.
    pub fn new(now: Timestamp) -> Self {
        let programs = Box::new(DefaultPrograms);
        Self { state: seeded(now), controllers: Controllers::default(), programs }
    }

    /// An API whose only controllers are those of namespaces, CRDs and garbage: it has no node, and workloads get no pods.
    pub fn bare(now: Timestamp) -> Self {
        let mut api = Self::new(now);
        api.state.active = Active::Bare;
        api
    }

    /// An API as kube-apiserver is without kube-controller-manager: only CRDs are established and removed.
    pub fn alone(now: Timestamp) -> Self {
        let mut api = Self::new(now);
        api.state.active = Active::Server;
        // kube-controller-manager makes these.
        for resource in ["serviceaccounts", "configmaps"] {
            for key in api.state.keys(resource) {
                api.state.store.remove(resource, &key);
            }
        }
        api
    }

    /// The same API once more: what happens to one does not happen to the other. Its programs are those that `programs` makes of
    /// a copy of ours.
    #[must_use]
    pub fn copy(&self, programs: impl FnOnce(Box<dyn Programs>) -> Box<dyn Programs>) -> Self {
        Self {
            state: self.state.copy(),
            controllers: self.controllers.clone(),
            programs: programs(self.programs.copy()),
        }
    }

    /// Says what programs do. Pods that run already keep their course, and programs of the same kind what they remember.
    pub fn set_programs(&mut self, mut programs: Box<dyn Programs>, now: Timestamp) {
        let runs = self.controllers.kubelet.runs.values();
        let pods: Vec<Value> = runs.map(|run| run.pod.value()).collect();
        programs.resume(&self.programs.memory(), &pods, &self.state, now);
        self.programs = programs;
    }

    /// What went wrong in the description of the programs.
    pub fn faults(&self) -> Vec<Diagnostic> {
        self.programs.faults()
    }

    /// Sets the certificates that pods trust, as PEM: each namespace has them in a `ConfigMap`.
    pub fn set_root_ca(&mut self, pem: String, now: Timestamp) {
        self.state.root_ca = pem;
        let keys = self.state.keys("namespaces");
        accounts::give(&mut self.state, keys.iter().map(|key| key.trim_start_matches('/')), now);
    }

    /// Sets what knows the conversion webhooks of CRDs. Without it, versions differ in their schema only.
    pub fn set_converter(&mut self, converter: Arc<dyn Converter>) {
        self.state.converter = Some(converter);
        serve_all(&mut self.state);
    }

    /// Lets changes of roles, bindings and policies count late, new CRDs be served late, and the garbage collector and the controllers of
    /// namespaces and CRDs act late, as on a real server. Each delay depends on the seed and what it is about. Without it all is at once.
    pub fn set_lateness(&mut self, seed: u64) {
        self.state.lateness = Some(Lateness::new(seed, &self.state.store));
    }

    /// Sets the secret from which tokens of `ServiceAccount`s follow, before the API is served to other processes. Without it the same
    /// requests get the same tokens in every API, so anyone who sends them to another API knows the tokens of this one.
    pub fn set_token_key(&mut self, key: String) {
        self.state.tokens.key = key;
    }

    /// The user of a token that this API has given out, while it is valid.
    pub fn user_of_token(&self, token: &str, now: Timestamp) -> Option<User> {
        let token = self.state.tokens.live(token, &self.state.store, now)?;
        token.is_own().then(|| token.user())
    }

    /// The user in whose name a request is handled: that of its `Impersonate-*` headers, otherwise the sender. Names of headers
    /// are in lower case.
    ///
    /// # Errors
    ///
    /// The response to send if the sender may not act as this user.
    pub fn acting_user(
        &mut self,
        sender: &User,
        method: &str,
        uri: &str,
        headers: &[(String, String)],
        now: Timestamp,
    ) -> Result<User, Response> {
        self.state.inform(now);
        let user = access::acting_user(&mut self.state, sender, method, uri, headers);
        user.map_err(|failure| Response::refusal(&failure))
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
        self.state.inform(now);
        let response = dispatch::handle(&mut self.state, &mut *self.programs, request, given, now);
        self.state.inform(now);
        response
    }

    /// The events of a watch that were not returned yet, as JSON. `None` once it has ended.
    pub fn events(&self, watch: &mut Watch, now: Timestamp) -> Option<Vec<String>> {
        watch.events(&self.state.store, now)
    }

    /// The objects, as programs read them.
    pub fn objects(&self) -> &dyn Objects {
        &self.state
    }

    /// How much is stored.
    pub fn size(&self) -> Size {
        self.state.store.size()
    }

    /// The version of the last change of an object.
    pub fn version(&self) -> u64 {
        self.state.store.version()
    }

    /// When the objects of a kind have changed last.
    pub fn stamp(&self, api_version: &str, kind: &str) -> Stamp {
        let State { store, kinds, .. } = &self.state;
        let Some(kind) = kinds.named(api_version, kind) else { return Stamp::default() };
        let definition = kind.custom().map(|_| store.latest(CRDS));
        Stamp { objects: store.latest(kind.storage()), definition: definition.unwrap_or_default() }
    }

    /// How often an object of this kind was created under this name.
    pub fn creations(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> u64 {
        let kind = self.state.kinds.named(api_version, kind);
        kind.map_or(0, |kind| self.state.creations(kind.storage(), &key(namespace, name)))
    }

    /// The versions of the objects of a kind, by `NAMESPACE/NAME`.
    pub fn versions(&self, api_version: &str, kind: &str) -> impl Iterator<Item = (&str, u64)> {
        let State { store, kinds, .. } = &self.state;
        let kind = kinds.named(api_version, kind);
        let objects = kind.into_iter().flat_map(move |kind| store.range(kind.storage(), "", None));
        objects.map(|(key, object)| (&**key, object.version))
    }
}
