//! How something is done: the clients that send requests, the publisher of Events, and what was learned by
//! earlier requests.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

use super::act::ProofKey;
use super::bindings::{Bindings, Means};
use super::calls::Calls;
use super::dry_runs::DryRunCache;
use super::events::Events;
use super::health::Health;
use super::index::InstanceKey;
use super::plan_api::PlanApi;
use super::registry::Registered;
use super::rights::RightsReviews;
use crate::api::{CallError, Class};
use crate::children::plans::KeyProblem;
use crate::children::{AcceptedKey, Decision};
use crate::clock::Clock;
use crate::cluster::{Clients, Cluster, HttpClient};
use crate::plan::request::{CallFailure, HttpReply, HttpRequest};
use crate::random::Randomness;

/// Is called with every decision, and with `None` when an instance is gone, for the live view of `operetta dev`. Must be
/// quick.
pub type Observer = Arc<dyn Fn(&InstanceKey, Option<&Decision>) + Send + Sync>;

/// The clients that send requests, the publisher of Events, and what earlier requests have shown.
pub(super) struct Effects {
    pub(super) clients: Clients,
    /// Sends the HTTP requests of steps and observations.
    pub(super) http: HttpClient,
    /// The requests of steps that this process knows.
    pub(super) calls: Calls,
    pub(super) events: Events,
    pub(super) dry_runs: DryRunCache<InstanceKey>,
    pub(super) health: Arc<Health>,
    pub(super) clock: Clock,
    /// Where generated values are from.
    pub(super) randomness: Randomness,
    observer: Option<Observer>,
    /// The uids of objects whose generated values this process has written or verified.
    proven: Mutex<HashSet<Box<str>>>,
    pub(super) plan_api: PlanApi,
    /// Whether the accounts of packages have the rights that they need.
    pub(super) rights: RightsReviews,
    /// Which roles are bound to the accounts of packages.
    pub(super) bindings: Bindings,
    /// The statuses that the API server does not allow the manager to write, by CRD, or of an Operator.
    refused_statuses: Mutex<BTreeMap<Box<str>, String>>,
    /// The key of proofs, which is read when it is needed first.
    proof_key: OnceCell<ProofKey>,
    /// Why the key could not be read the last time.
    key_problem: Mutex<Option<KeyProblem>>,
}

impl Effects {
    pub(super) fn new(
        clients: Clients,
        http: HttpClient,
        events: Events,
        health: Arc<Health>,
        observer: Option<Observer>,
        clock: Clock,
        randomness: Randomness,
    ) -> Self {
        Self {
            clients,
            http,
            calls: Calls::default(),
            events,
            dry_runs: DryRunCache::default(),
            health,
            clock,
            randomness,
            observer,
            proven: Mutex::default(),
            plan_api: PlanApi::default(),
            rights: RightsReviews::default(),
            bindings: Bindings::default(),
            refused_statuses: Mutex::default(),
            proof_key: OnceCell::new(),
            key_problem: Mutex::default(),
        }
    }

    /// With what rights are granted to packages. `manager`: the manager's namespace.
    pub(super) fn means<'a>(&'a self, manager: &'a str) -> Means<'a> {
        Means { clients: &self.clients, reviews: &self.rights, clock: &self.clock, manager }
    }

    /// Sends an HTTP request of a package.
    ///
    /// # Errors
    /// There is no answer, or none that can be used.
    pub(super) async fn send(&self, operator: &str, request: &HttpRequest) -> Result<HttpReply, CallFailure> {
        self.http.send_for(&self.clients.for_operator(operator), request).await
    }

    /// Records that a status was written, or that its write was refused. `of`: the CRD, or the Operator.
    pub(super) fn note_status(&self, of: &str, error: Option<&CallError>) {
        let mut refused = self.refused_statuses.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) if error.is_unauthorized() => {
                refused.insert(of.into(), format!("the status of {of}: {error}"));
            }
            Some(_) => {}
            None => drop(refused.remove(of)),
        }
    }

    /// Why the manager may not write the statuses of the instances of a CRD.
    pub(super) fn refused_status(&self, crd: &str) -> Option<String> {
        self.refused_statuses.lock().unwrap_or_else(PoisonError::into_inner).get(crd).cloned()
    }

    /// The reasons of all statuses that the manager may not write.
    pub(super) fn refused_statuses(&self) -> Vec<String> {
        self.refused_statuses.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Shows a decision to the observer; `None` if the instance is gone.
    pub(super) fn notify(&self, key: &InstanceKey, decision: Option<&Decision>) {
        if let Some(observer) = &self.observer {
            observer(key, decision);
        }
    }

    /// The client for the instances of a kind.
    pub(super) fn for_instances(&self, registered: &Registered) -> Cluster {
        self.clients.for_instances(registered.operator())
    }

    /// The client that reads and writes the children of a kind's instances.
    pub(super) fn for_children(&self, registered: &Registered) -> Cluster {
        self.clients.for_operator(&registered.package_name)
    }

    /// The key that proves the origin of generated values, from the manager's namespace. It is read once in a
    /// process.
    pub(super) async fn proof_key(&self, namespace: &str) -> Result<&ProofKey, CallError> {
        let key = self
            .proof_key
            .get_or_try_init(|| ProofKey::load(self.clients.own(), namespace, &self.randomness))
            .await;
        let problem = key.as_ref().err().map(|error| KeyProblem {
            message: error.to_string().into(),
            is_permanent: error.class != Class::Retry,
        });
        *self.key_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
        key
    }

    /// Why the key could not be read the last time; `None` if it is read.
    pub(super) fn key_problem(&self) -> Option<KeyProblem> {
        let problem = || self.key_problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.proof_key.initialized() { None } else { problem() }
    }

    /// The key of digests of what may hold secret data, once [`Self::proof_key`] has been read.
    pub(super) fn digest_key(&self) -> Vec<u8> {
        self.proof_key.get().map(|key| key.for_digests().to_vec()).unwrap_or_default()
    }

    /// The key of the record of the last accepted target.
    pub(super) fn accepted_key(&self) -> AcceptedKey {
        match (self.proof_key.get(), self.key_problem()) {
            (Some(key), _) => AcceptedKey::new(key.for_records()),
            (None, Some(problem)) => AcceptedKey::Unreadable(problem.message),
            (None, None) => AcceptedKey::Unread,
        }
    }

    /// The uids of objects whose generated values this process has written or verified.
    pub(super) fn proven(&self) -> MutexGuard<'_, HashSet<Box<str>>> {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
