//! Drives the simulations: makes snapshots, sends dry runs, and reads what decisions ask for.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{Mutex, OnceCell};

use super::fleet::{Fleet, text};
use super::refs::Refs;
use super::stored::stored;
use crate::api::{ApiKind, Apis, CallError, Class, Gvk};
use crate::backoff::{Backoff, Retry};
use crate::children::adoption::{self, Adoption, AdoptionContext, Claimant};
use crate::children::crds::ChildScope;
use crate::children::plans::{self, Calls, PlanSnapshot, Revision, Stored};
use crate::children::{
    ActivePackage, DeletionRuns, DryRun, Expect, ItemId, KindOwner, NamespaceScope, Needs, Observed, Paths,
    Snapshot, former_packages, names,
};
use crate::clock;
use crate::cluster::Cluster;
use crate::manager::{load_revision, send_dry_run};
use crate::package::Package;
use crate::plan::{Of, Protection, Recalled};
use crate::preview::{InstanceReport, LiveChild, Request, Response, Simulation, SimulationState, adjusted};
use crate::template::Totals;

/// How often a request is sent again while the server is not available.
const ATTEMPTS: u32 = 5;
const AGAIN: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// What all simulations share: the results of the first reads.
pub(super) struct Shared {
    pub(super) cluster: Cluster,
    pub(super) apis: Arc<Apis>,
    pub(super) package: Arc<Package>,
    pub(super) fleet: Fleet,
    pub(super) reads: Arc<HashMap<String, Paths>>,
    /// The namespace of the manager.
    pub(super) namespace: String,
    /// The namespaces into which the package writes nothing for instances elsewhere.
    pub(super) closed: Arc<BTreeSet<String>>,
    /// The values with which the `Operator` of the package overrides its defaults.
    pub(super) defaults: Arc<Map<String, Value>>,
    /// The CRDs as they would be, by the index of the resource.
    pub(super) crds: Vec<Value>,
    /// These, and the CRDs of children's kinds that other packages have.
    pub(super) known: Arc<[Value]>,
    /// The CRDs as they are.
    pub(super) live: Vec<Option<Value>>,
    /// The indices of resources whose CRD is created or changed: dry runs of their objects would meet the old one.
    pub(super) changed: HashSet<usize>,
    /// Whether only one instance is previewed.
    pub(super) is_single: bool,
}

/// Drives simulations: makes their requests, each once where several need it.
pub(super) struct Driver {
    pub(super) shared: Shared,
    pub(super) refs: Refs,
    /// The result of the first dry run of each shape of an update.
    shapes: Mutex<HashMap<u64, Arc<OnceCell<DryRun>>>>,
    revisions: Mutex<HashMap<String, Revision>>,
    /// What this user may not read or try, each with the first reason.
    notes: std::sync::Mutex<BTreeMap<String, String>>,
}

impl Driver {
    pub(super) fn new(shared: Shared) -> Self {
        let refs = Refs::new(shared.is_single);
        let (shapes, revisions, notes) = Default::default();
        Self { shared, refs, shapes, revisions, notes }
    }

    /// What this user may not read or try.
    pub(super) fn notes(&self) -> Vec<String> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.iter().map(|(what, why)| format!("{what}: {why}")).collect()
    }

    fn note(&self, what: String, why: &impl ToString) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.entry(what).or_insert_with(|| why.to_string());
    }

    /// Previews one instance, by its position in the fleet.
    ///
    /// # Errors
    /// A request fails, for people.
    pub(super) async fn preview(&self, position: usize) -> Result<InstanceReport, String> {
        let (index, instance) = &self.shared.fleet.instances[position];
        let uid = text(&instance["metadata"]["uid"]);
        let Some((snapshot, children)) = self.snapshot(*index, instance) else {
            return Ok(InstanceReport::default());
        };
        let manager = names::field_manager(&self.shared.package.name);
        let known = Arc::clone(&self.shared.known);
        let mut simulation = Simulation::new(snapshot, children, &self.shared.reads, manager)
            .storing(Box::new(move |object: &Value| stored(object, &known)));
        loop {
            match simulation.advance() {
                SimulationState::Done(report) => return Ok(*report),
                SimulationState::Read(needs) => self.read(&mut simulation, needs, &uid).await,
                SimulationState::DryRun(requests) => {
                    for request in requests {
                        let answer = self.dry_run(&request, &uid).await;
                        let answer =
                            answer.map_err(|error| format!("{}: {error}", request.check.desired.object))?;
                        simulation.answer(&request.check, answer);
                    }
                }
            }
        }
    }

    fn snapshot(&self, index: usize, instance: &Value) -> Option<(Snapshot, Vec<LiveChild>)> {
        let resource = &self.shared.package.resources[index];
        let kind = &resource.kind;
        let adjusted = adjusted(
            instance,
            &self.shared.crds[index],
            resource.conversion.as_ref(),
            (&kind.group, &kind.version),
        );
        let active = ActivePackage::new(&self.shared.package, index)?;
        let mut snapshot = Snapshot::new(active, adjusted, |_| true);
        snapshot.defaults = Arc::clone(&self.shared.defaults);
        let former = former_packages(&self.shared.crds[index]).into_iter().map(Into::into);
        snapshot.owner = KindOwner { former: former.collect(), ..snapshot.owner };
        let meta = &instance["metadata"];
        let (uid, name, home) = (text(&meta["uid"]), text(&meta["name"]), meta["namespace"].as_str());
        let claim = names::claim(
            &names::kind_label(&kind.kind, &kind.group),
            &names::label_value(&name),
            home.unwrap_or_default(),
        );
        let (own, previous) = self.shared.fleet.children(&uid, &claim);
        let record = self.shared.live[index].as_ref().map(ChildScope::of);
        let record =
            record.into_iter().fold(ChildScope::needed(resource, &self.shared.namespace), ChildScope::and);
        let scope: &NamespaceScope = &record.namespaces;
        // An object that no version of the package could have rendered in this place is not a child.
        let can_be = |child: &LiveChild| scope.holds(home, &record.kinds, &child.observed.object);
        let own: Vec<LiveChild> = own.into_iter().filter(can_be).collect();
        let previous: Vec<LiveChild> = previous.into_iter().filter(can_be).collect();
        let observed = |children: &[LiveChild]| -> Vec<Arc<Observed>> {
            children.iter().map(|child| Arc::clone(&child.observed)).collect()
        };
        snapshot.observed = observed(&own);
        snapshot.previous_children = observed(&previous);
        snapshot.kinds.clone_from(&self.shared.fleet.kinds[index]);
        self.shared.namespace.clone_into(&mut snapshot.operator_namespace);
        snapshot.closed = Arc::clone(&self.shared.closed);
        snapshot.limits = Totals::FULL;
        snapshot.apis = resource.reads_cluster.then(|| Ok(Arc::clone(&self.shared.apis)));
        let place = home.unwrap_or(&self.shared.namespace);
        let (runs, deletions) = self.shared.fleet.runs(resource, place, &name);
        let now = clock::now();
        if !resource.plans.is_empty() {
            let origins = self.shared.fleet.origins(&uid);
            let of = Of {
                api_version: text(&snapshot.instance["apiVersion"]),
                kind: kind.kind.clone(),
                resource: kind.plural.clone(),
                name: name.clone(),
            };
            let object = self.shared.fleet.state(place, &plans::state_name(&of));
            let stored = Stored { instance: &snapshot.instance, of: &of, object, now };
            let (state, Recalled { runs, strangers }) = plans::recall(stored, runs);
            snapshot.plans = Some(Box::new(PlanSnapshot {
                state,
                runs,
                strangers,
                misnamed: Vec::new(),
                unreadable: Vec::new(),
                others: Vec::new(),
                occupied: BTreeSet::new(),
                origins,
                jobs: Vec::new(),
                calls: Calls::default(),
                namespace: place.to_owned(),
                revisions: BTreeMap::new(),
                unknown: self.shared.fleet.runs_unknown.clone(),
                is_listing: false,
                // Only the manager has the key: digests of refs do not compare, so no ref counts as changed.
                digest_key: Vec::new(),
                key_problem: None,
                protection: Protection::default(),
                elapsed: HashMap::new(),
                now,
            }));
        }
        let plural = kind.plural.clone();
        snapshot.deletions = Some(Box::new(DeletionRuns {
            runs: deletions,
            unknown: self.shared.fleet.runs_unknown.clone(),
            is_listing: false,
            resource: plural,
            protection: Protection::default(),
            now,
        }));
        let children = own.into_iter().chain(previous).collect();
        Some((snapshot, children))
    }

    async fn read(&self, simulation: &mut Simulation, needs: Needs, uid: &str) {
        for want in needs.watches {
            let found = self.refs.find(&self.shared.cluster, &self.shared.apis, &want).await;
            simulation.learn_refs(want, found);
        }
        for revision in needs.revisions {
            let found = self.revision(&revision).await;
            simulation.learn_revision(&revision, found);
        }
        for namespace in needs.namespace_users {
            let user = self.shared.fleet.namespace_user(&namespace, uid);
            simulation.learn_namespace(namespace, user);
        }
    }

    async fn revision(&self, revision: &str) -> Revision {
        let mut known = self.revisions.lock().await;
        if let Some(found) = known.get(revision) {
            return found.clone();
        }
        let former = self.shared.crds.iter().flat_map(former_packages);
        let packages: Vec<Arc<str>> =
            std::iter::once(self.shared.package.name.clone()).chain(former).map(Into::into).collect();
        let loaded = load_revision(&self.shared.cluster, &self.shared.namespace, &packages, revision).await;
        let found = match loaded {
            Ok(package) => Revision::Loaded(Arc::new(package)),
            Err((why, is_unreadable)) => {
                self.note(format!("what the revision {revision} renders is not shown"), &why);
                if is_unreadable { Revision::Unreadable(why.into()) } else { Revision::Missing(why.into()) }
            }
        };
        known.insert(revision.to_owned(), found.clone());
        found
    }

    /// Sends the dry run of a change. A refusal because of this user's rights counts as unknown: the account
    /// of the package may have them.
    async fn dry_run(&self, request: &Request, uid: &str) -> Result<Response, CallError> {
        let answer = self.shared_dry_run(request, uid).await?;
        match &answer {
            Response::DryRun(DryRun::Refused(error))
                if error.is_unauthorized() && request.check.depends_on.is_empty() =>
            {
                let gvk = &request.check.desired.object.gvk;
                self.note(format!("whether the API server accepts changes of {gvk} is not shown"), error);
                Ok(Response::DryRun(DryRun::Unknown))
            }
            _ => Ok(answer),
        }
    }

    /// Sends the dry run of a change, unless one of the same shape has passed.
    async fn shared_dry_run(&self, request: &Request, uid: &str) -> Result<Response, CallError> {
        let gvk = &request.check.desired.object.gvk;
        let Some(kind) = self.kind(gvk) else { return Ok(Response::DryRun(DryRun::Unknown)) };
        if !request.is_shared {
            let result = self.send(&kind, request).await?;
            if matches!(result, DryRun::Unknown) {
                return self.occupied(&kind, request, uid).await;
            }
            return Ok(Response::DryRun(result));
        }
        let cell = Arc::clone(self.shapes.lock().await.entry(request.check.shape).or_default());
        let mut is_mine = false;
        let first = cell
            .get_or_try_init(|| {
                is_mine = true;
                self.send(&kind, request)
            })
            .await?;
        match first {
            DryRun::Passed => Ok(Response::DryRun(DryRun::Passed)),
            result if is_mine => Ok(Response::DryRun(result.clone())),
            // The first dry run of this shape was refused, perhaps because of the values of that object.
            _ => Ok(Response::DryRun(self.send(&kind, request).await?)),
        }
    }

    /// The kind as the server serves it; `None` of kinds whose CRD the package creates or changes.
    fn kind(&self, gvk: &Gvk) -> Option<ApiKind> {
        let is_own = |index: &usize| {
            let resource = &self.shared.package.resources[*index];
            resource.kind.group == gvk.group() && *resource.kind.kind == *gvk.kind
        };
        if self.shared.changed.iter().any(is_own) {
            return None;
        }
        self.shared.apis.find(gvk).ok().flatten().map(|served| (*served.kind).clone())
    }

    async fn send(&self, kind: &ApiKind, request: &Request) -> Result<DryRun, CallError> {
        let manager = names::field_manager(&self.shared.package.name);
        let mut retry = Retry::new(AGAIN);
        for _ in 1..ATTEMPTS {
            match send_dry_run(&self.shared.cluster, kind, &request.check, &request.body, &manager).await {
                Err(error) if error.class == Class::Retry && error.code != 0 => {
                    let wait = retry.failed();
                    tokio::time::sleep(error.retry_after.unwrap_or(wait)).await;
                }
                result => return result,
            }
        }
        send_dry_run(&self.shared.cluster, kind, &request.check, &request.body, &manager).await
    }

    /// Finds out whether an existing object with the name of a new child would become the child.
    async fn occupied(&self, kind: &ApiKind, request: &Request, uid: &str) -> Result<Response, CallError> {
        let check = &request.check;
        let object = &check.desired.object;
        if check.expect != Expect::Absent {
            return Ok(Response::DryRun(DryRun::Unknown));
        }
        let live = match self.shared.cluster.get(kind, object.namespace.as_deref(), &object.name).await {
            Err(error) if error.is_unauthorized() => {
                self.note(format!("whether {object} exists is not shown"), &error);
                None
            }
            live => live?,
        };
        let Some(live) = live else { return Ok(Response::DryRun(DryRun::Unknown)) };
        let refused = |why: &str| {
            let message = format!("{object} {why}");
            Ok(Response::Occupied(CallError::new(Class::Conflict, 409, "AlreadyExists", message)))
        };
        let claimant = Claimant::of(&live);
        let owner = claimant.filter(|claimant| claimant.uid != uid);
        let owner = owner.and_then(|claimant| self.shared.fleet.owner(claimant.uid)).map(str::to_owned);
        let context = AdoptionContext { owner, was_child: false };
        let id = ItemId::named(&check.item);
        let mut children = self.shared.package.resources.iter().flat_map(|resource| &resource.children);
        let adopts = children.any(|child| child.id == id.child() && child.adopt);
        let body = &request.body;
        match adoption::adoption(kind, object, &live, body, adopts, &context) {
            Adoption::Refused(why) => refused(&why),
            Adoption::HandedOver => match adoption::controlled(&live) {
                Some(why) => refused(&why),
                None => Ok(Response::Adopt(Arc::new(live))),
            },
            Adoption::Ours | Adoption::Inherited => Ok(Response::Adopt(Arc::new(live))),
        }
    }
}
