//! The state of the API: objects, served kinds, tokens, and caches of roles and policies.

pub(crate) mod addresses;
pub(crate) mod crds;
mod created;
pub(crate) mod lateness;
mod objects;
pub(crate) mod policies;
pub(crate) mod rights;
pub(crate) mod store;
pub(crate) mod stored;
pub(crate) mod tokens;

use std::sync::Arc;

use crate::crd::Converter;
use crate::model::Kinds;
use created::Created;
use lateness::Lateness;
use policies::Policies;
use rights::Rights;
use tokens::Tokens;

pub(crate) use store::Store;
pub(crate) use stored::{Live, Stored};

/// Which controllers act.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Active {
    #[default]
    All,
    /// The controllers of namespaces, CRDs and garbage.
    Bare,
    /// The controllers that are a part of kube-apiserver: of CRDs.
    Server,
}

/// The state that requests read and change.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) kinds: Kinds,
    created: Created,
    /// The number of addresses that Services were given.
    pub(crate) addresses: u32,
    /// The roles and bindings as they were when they were last read.
    rights: Option<Arc<Rights>>,
    /// The policies as they were when they were last read.
    policies: Option<Arc<Policies>>,
    /// How late changes are known; `None` if they are at once.
    pub(crate) lateness: Option<Lateness>,
    /// Finds the conversion webhooks of CRDs.
    pub(crate) converter: Option<Arc<dyn Converter>>,
    /// The newest change of a cluster role when aggregated roles were last computed.
    pub(crate) aggregated: u64,
    pub(crate) tokens: Tokens,
    /// The certificates that pods trust, as PEM.
    pub(crate) root_ca: String,
    pub(crate) active: Active,
}

impl Default for State {
    fn default() -> Self {
        Self {
            store: Store::default(),
            kinds: Kinds::built_in(),
            created: Created::default(),
            addresses: 0,
            rights: None,
            policies: None,
            lateness: None,
            converter: None,
            aggregated: 0,
            tokens: Tokens::default(),
            root_ca: "# The embedded API is not served with TLS.\n".to_owned(),
            active: Active::default(),
        }
    }
}

impl State {
    /// The same state once more: what happens to one does not happen to the other.
    pub(crate) fn copy(&self) -> Self {
        self.store.share();
        self.clone()
    }

    /// The keys of the objects of a resource.
    pub(crate) fn keys(&self, resource: &str) -> Vec<Arc<str>> {
        self.store.range(resource, "", None).map(|(key, _)| key.clone()).collect()
    }

    /// The objects as the authorizer and admission know them.
    pub(crate) fn known(&self) -> &Store {
        self.lateness.as_ref().map_or(&self.store, |lateness| &lateness.known)
    }

    /// The roles and bindings that are known. They are read again only after one of them has changed.
    pub(crate) fn rights(&mut self) -> Arc<Rights> {
        let store = self.known();
        if let Some(rights) = self.rights.as_ref().filter(|rights| rights.version == Rights::latest(store)) {
            return rights.clone();
        }
        let rights = Arc::new(Rights::read(store));
        self.rights = Some(rights.clone());
        rights
    }

    /// The policies that are known.
    pub(crate) fn policies(&mut self) -> Arc<Policies> {
        let policies = self.policies.take().unwrap_or_default().refreshed(self.known());
        self.policies = Some(policies.clone());
        policies
    }

    /// How often an object was created at this place. `key`: its namespace and name.
    pub(crate) fn creations(&self, resource: &str, key: &str) -> u64 {
        self.created.count(resource, key)
    }

    /// Notes that an object was created, or a name or a token made.
    pub(crate) fn note_creation(&mut self, resource: &str, key: &str) {
        self.created.note(resource, key);
    }

    /// Notes that a dry run has created an object: the next one chooses another uid.
    pub(crate) fn note_dry_run(&mut self) {
        self.created.note_dry_run();
    }

    /// The uid of the next object that is created, or by the next dry run, at this place.
    pub(crate) fn uid(&self, resource: &str, key: &str, is_dry: bool) -> String {
        self.created.uid(resource, key, is_dry)
    }

    /// The suffix of the next name that is made for `what`, or by the next dry run, at this place.
    pub(crate) fn suffix(&self, what: &str, resource: &str, key: &str, is_dry: bool) -> String {
        self.created.suffix(what, resource, key, is_dry)
    }
}
