//! Reads the instances of a package and their children: one list for each kind.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt, stream};
use serde_json::Value;

use super::Scope;
use crate::api::{ApiKind, Apis, CallError, Gvk, ObjectRef};
use crate::children::crds::ChildScope;
use crate::children::names::{self, Claim};
use crate::children::{KindInfo, Listing, NamespaceScope, Paths};
use crate::cli::catalog::{Catalog, unreadable};
use crate::cli::model::complete;
use crate::cluster::{Cluster, Query};
use crate::crd;
use crate::manager::raw::Raw;
use crate::package::{Package, Resource};
use crate::plan::crds::INSTANCE_STATE;
use crate::plan::{DELETE_CHILD, PlanRun, plan_run_kind};
use crate::preview::LiveChild;

/// How many lists run at once.
const AT_ONCE: usize = 4;

/// The instances of a package and the live objects that belong to them, read once.
#[derive(Default)]
pub(super) struct Fleet {
    /// The instances, by the index of the resource.
    pub(super) instances: Vec<(usize, Value)>,
    /// The kinds of children and refs, by the index of the resource.
    pub(super) kinds: Vec<Vec<KindInfo>>,
    /// The children by the uid of their instance.
    children: HashMap<Arc<str>, Vec<LiveChild>>,
    /// The children of earlier instances of the same kind, namespace and name.
    previous: HashMap<Claim, Vec<LiveChild>>,
    /// The references of all children that Operetta has made, to find out who uses a namespace.
    places: Vec<ObjectRef>,
    /// The uids of all instances that are known to exist, with their names.
    owners: HashMap<String, String>,
    /// The PlanRuns by namespace, kind, group and name of the instance.
    runs: HashMap<[String; 4], Vec<Value>>,
    /// The ControllerRevisions of origins by the uid of the instance.
    origins: HashMap<String, Vec<Value>>,
    /// The InstanceStates by namespace and name.
    states: HashMap<(String, String), Value>,
    /// Why runs, origins or states are unknown.
    pub(super) runs_unknown: Option<String>,
    /// What could not be read.
    pub(super) problems: BTreeSet<String>,
    /// What this user may not read.
    pub(super) notes: BTreeSet<String>,
}

/// Reads a fleet.
pub(super) struct Reader<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) apis: &'a Apis,
    pub(super) catalog: &'a Catalog,
    pub(super) package: &'a Package,
    pub(super) scope: &'a Scope,
    /// The namespace of the manager.
    pub(super) namespace: &'a str,
    /// What expressions read of each child.
    pub(super) reads: &'a HashMap<String, Paths>,
}

/// What expressions of a package read of live children, by the id of the child.
pub(super) fn reads(package: &Package) -> HashMap<String, Paths> {
    let mut all: HashMap<String, Vec<Vec<String>>> = HashMap::new();
    for child in package.resources.iter().flat_map(|resource| &resource.children) {
        for id in child.renamed_from.iter().chain([&child.id]) {
            let paths = all.entry(id.clone()).or_default();
            paths.extend(child.kept_paths());
            paths.sort();
            paths.dedup();
        }
    }
    all.into_iter().map(|(id, paths)| (id, paths.into())).collect()
}

impl Reader<'_> {
    /// The instances of one resource, managedFields included, in the version that the package uses if it is served and the
    /// live CRD converts to it as the package does; otherwise in the version in which they are stored. `live`: the CRD.
    ///
    /// # Errors
    /// They cannot be listed, for people.
    pub(super) async fn instances(&self, resource: &Resource, live: &Value) -> Result<Vec<Value>, String> {
        let Some(mut kind) = crd::kind(live) else { return Ok(Vec::new()) };
        let versions = live["spec"]["versions"].as_array().into_iter().flatten();
        let serves =
            |name: &str| versions.clone().any(|version| version["name"] == name && version["served"] == true);
        let converts = live["spec"]["conversion"]["strategy"] == "Webhook";
        if serves(&resource.kind.version) && (converts || resource.conversion.is_none()) {
            kind.version.clone_from(&resource.kind.version);
        }
        self.instances_of(kind).await
    }

    /// The instances of a resource whose CRD this user may not read.
    ///
    /// # Errors
    /// They cannot be listed, for people.
    pub(super) async fn discovered_instances(&self, resource: &Resource) -> Result<Vec<Value>, String> {
        let gvk = resource.kind.gvk();
        let served = match self.apis.find(&gvk) {
            Ok(None) => self.apis.find_in_any_version(&gvk),
            found => found,
        };
        match served.map_err(|error| format!("{gvk}: {error}"))? {
            Some(served) => self.instances_of((*served.kind).clone()).await,
            None => Ok(Vec::new()),
        }
    }

    async fn instances_of(&self, kind: ApiKind) -> Result<Vec<Value>, String> {
        let named = |mut object: Value| {
            complete(&kind, &mut object);
            object
        };
        let failed = |namespace: Option<&str>, error: &CallError| unreadable(&kind, namespace, error);
        match self.scope {
            Scope::Instance { name, namespace, .. } => {
                let namespace = namespace.as_deref().filter(|_| kind.namespaced);
                let found = self.cluster.get(&kind, namespace, name).await;
                let found = found.map_err(|error| failed(namespace, &error))?;
                Ok(found.into_iter().map(named).collect())
            }
            scope => {
                let namespace = scope.namespace().filter(|_| kind.namespaced);
                let query = Query { namespace, ..Query::default() };
                let found = self.cluster.list_all(&kind, &query, named).await;
                found.map_err(|error| failed(namespace, &error))
            }
        }
    }

    /// The children of these instances, and what belongs to their runs. `live`: the CRD of each resource.
    pub(super) async fn fleet(&self, instances: Vec<(usize, Value)>, live: &[Option<Value>]) -> Fleet {
        let mut fleet = Fleet::default();
        let mut uids = HashSet::new();
        let mut claims = HashSet::new();
        for (index, instance) in &instances {
            let uid = text(&instance["metadata"]["uid"]);
            let name = format!("{} {}", text(&instance["kind"]), full_name(&instance["metadata"]));
            fleet.owners.insert(uid.clone(), name);
            uids.insert(uid);
            claims.insert(self.claim(*index, instance));
        }
        let records: Vec<ChildScope> = self
            .package
            .resources
            .iter()
            .zip(live)
            .map(|(resource, live)| {
                let needed = ChildScope::needed(resource, self.namespace);
                live.as_ref().map(ChildScope::of).into_iter().fold(needed, ChildScope::and)
            })
            .collect();
        let wanted: BTreeSet<&Gvk> = records.iter().flat_map(|record| &record.kinds).collect();
        let wide = records.iter().any(|record| record.namespaces != NamespaceScope::HOME);
        let home = self.scope.namespace().filter(|_| !wide);
        let listings = if instances.is_empty() {
            BTreeMap::new()
        } else {
            self.children(&mut fleet, &wanted, home, (&uids, &claims)).await
        };
        for (resource, record) in self.package.resources.iter().zip(&records) {
            let kinds: BTreeSet<&Gvk> = record.kinds.iter().chain(resource.kinds()).collect();
            fleet.kinds.push(kinds.into_iter().map(|gvk| self.info(gvk, listings.get(gvk))).collect());
        }
        if !instances.is_empty() && self.package.resources.iter().any(Resource::has_runs) {
            self.runs(&mut fleet).await;
        }
        fleet.instances = instances;
        fleet
    }

    pub(super) fn claim(&self, index: usize, instance: &Value) -> Claim {
        let kind = &self.package.resources[index].kind;
        let meta = &instance["metadata"];
        names::claim(
            &names::kind_label(&kind.kind, &kind.group),
            &names::label_value(meta["name"].as_str().unwrap_or_default()),
            meta["namespace"].as_str().unwrap_or_default(),
        )
    }

    fn info(&self, gvk: &Gvk, listing: Option<&Listing>) -> KindInfo {
        let own = |resource: &&Resource| resource.served_kinds().any(|served| served == *gvk);
        let own = self.package.resources.iter().find(own);
        let namespaced = match (self.apis.find(gvk), own) {
            (Ok(Some(served)), _) => Some(served.kind.namespaced),
            // A kind of this package that is not registered yet.
            (_, Some(resource)) => Some(resource.kind.namespaced),
            _ => None,
        };
        let is_instance_kind = own.is_some() || self.catalog.package_kind(gvk.group(), &gvk.kind).is_some();
        let listing = listing.cloned().unwrap_or(Listing::Listed);
        KindInfo { gvk: gvk.clone(), namespaced, is_instance_kind, listing }
    }

    /// Lists the children of all kinds, and returns for each kind whether it was listed. A kind in two
    /// versions is listed once.
    async fn children(
        &self,
        fleet: &mut Fleet,
        wanted: &BTreeSet<&Gvk>,
        home: Option<&str>,
        (uids, claims): (&HashSet<String>, &HashSet<Claim>),
    ) -> BTreeMap<Gvk, Listing> {
        let is_used = |gvk: &Gvk| {
            self.package.resources.iter().flat_map(|r| &r.children).any(|child| child.has_kind(gvk))
        };
        let mut lists: Vec<(&Gvk, ApiKind)> = Vec::new();
        let mut listings = BTreeMap::new();
        let mut ordered: Vec<&Gvk> = wanted.iter().copied().collect();
        // The version that the package uses comes first.
        ordered.sort_by_key(|gvk| !is_used(gvk));
        for gvk in ordered {
            match self.apis.find(gvk) {
                Ok(Some(served)) => {
                    if !lists.iter().any(|(other, _)| other.is_version_of(gvk)) {
                        lists.push((gvk, (*served.kind).clone()));
                    }
                    listings.insert(gvk.clone(), Listing::Listed);
                }
                Ok(None) => {
                    let is_own = self.package.resource(gvk).is_some();
                    let reason = format!("the API server does not serve {gvk}; {}", self.apis.hint(gvk));
                    let listing = if is_own { Listing::Listed } else { Listing::NotServed(reason) };
                    listings.insert(gvk.clone(), listing);
                }
                Err(error) => {
                    listings.insert(gvk.clone(), Listing::Unreadable(error.to_string()));
                }
            }
        }
        let lists = stream::iter(lists).map(|(gvk, kind)| async move {
            let found = self.list(gvk, &kind, home, (uids, claims)).await;
            (gvk, kind, found)
        });
        let mut lists = std::pin::pin!(lists.buffer_unordered(AT_ONCE));
        while let Some((gvk, kind, found)) = lists.next().await {
            match found {
                Ok(found) => {
                    for (child, place) in found {
                        fleet.places.extend(place);
                        let Some(child) = child else { continue };
                        let uid = Arc::clone(&child.observed.instance_uid);
                        if uids.contains(&*uid) {
                            fleet.children.entry(uid).or_default().push(child);
                        } else {
                            fleet.previous.entry(child.observed.claim).or_default().push(child);
                        }
                    }
                }
                Err(error) => {
                    let reason = unreadable(&kind, home, &error);
                    fleet.miss(&error, &reason);
                    for (other, listing) in &mut listings {
                        if other.is_version_of(gvk) {
                            *listing = Listing::Unreadable(reason.clone());
                        }
                    }
                }
            }
        }
        listings
    }

    /// Lists the children of a kind. Children of other instances are returned as references only.
    async fn list(
        &self,
        gvk: &Gvk,
        kind: &ApiKind,
        home: Option<&str>,
        (uids, claims): (&HashSet<String>, &HashSet<Claim>),
    ) -> Result<Vec<(Option<LiveChild>, Option<ObjectRef>)>, CallError> {
        let reports = match self.apis.find(gvk) {
            Ok(Some(served)) => self.cluster.reports(served).await,
            _ => true,
        };
        let namespace = home.filter(|_| kind.namespaced);
        let query = Query { namespace, labels: names::INSTANCE_UID, ..Query::default() };
        let keep = |mut raw: Raw| {
            raw.body["apiVersion"] = (*gvk.api_version).into();
            raw.body["kind"] = (*gvk.kind).into();
            let reads = |operator: &str, child: &str| {
                let own = self.reads.get(child).filter(|_| operator == self.package.name);
                own.cloned().unwrap_or_else(|| Arc::from([]))
            };
            let Some(observed) = raw.observe(gvk, reports, reads) else { return (None, None) };
            let place = observed.is_made_by_us().then(|| observed.object.clone());
            let is_wanted = uids.contains(&*observed.instance_uid) || claims.contains(&observed.claim);
            let child = is_wanted.then(|| {
                let managed = serde_json::to_value(&raw.metadata.managed_fields).unwrap_or_default();
                raw.body["metadata"]["managedFields"] = managed;
                LiveChild { observed: Arc::new(observed), text: raw.body.to_string().into() }
            });
            (child, place)
        };
        self.cluster.list_all(kind, &query, keep).await
    }

    /// Lists what belongs to runs.
    async fn runs(&self, fleet: &mut Fleet) {
        let kind = plan_run_kind();
        if !matches!(self.apis.find(&kind.gvk()), Ok(Some(_))) {
            // The cluster has no kind PlanRun, so no run was ever stored.
            return;
        }
        let plain = |mut object: Value| {
            if let Some(meta) = object["metadata"].as_object_mut() {
                meta.remove("managedFields");
            }
            object
        };
        // Runs of cluster-scoped instances are in the manager's namespace.
        let is_namespaced = self.package.resources.iter().all(|resource| resource.kind.namespaced);
        let namespace = self.scope.namespace().filter(|_| is_namespaced);
        let query = Query { namespace, ..Query::default() };
        for run in fleet.known(&kind, &query, self.cluster.list_all(&kind, &query, plain).await) {
            fleet.runs.entry(instance_of(&run)).or_default().push(run);
        }
        if self.package.resources.iter().all(|resource| resource.plans.is_empty()) {
            return;
        }
        let kind = INSTANCE_STATE.api_kind();
        if matches!(self.apis.find(&kind.gvk()), Ok(Some(_))) {
            let listed = self.cluster.list_all(&kind, &query, plain).await;
            let name =
                |state: &Value| (text(&state["metadata"]["namespace"]), text(&state["metadata"]["name"]));
            let states = fleet.known(&kind, &query, listed).into_iter().map(|state| (name(&state), state));
            fleet.states = states.collect();
        }
        let kind = ApiKind::built_in("apps/v1", "ControllerRevision");
        let query = Query { labels: names::RUN_OF, ..query };
        for origin in fleet.known(&kind, &query, self.cluster.list_all(&kind, &query, plain).await) {
            let uid = text(&origin["metadata"]["labels"][names::RUN_OF]);
            fleet.origins.entry(uid).or_default().push(origin);
        }
    }
}

impl Fleet {
    /// Notes what could not be read: a problem, unless this user may not read it.
    fn miss(&mut self, error: &CallError, reason: &str) {
        let all = if error.code == 403 { &mut self.notes } else { &mut self.problems };
        all.insert(reason.to_owned());
    }

    /// The objects of a list about runs; none if it failed, and then runs are unknown.
    fn known(
        &mut self,
        kind: &ApiKind,
        query: &Query<'_>,
        listed: Result<Vec<Value>, CallError>,
    ) -> Vec<Value> {
        listed.unwrap_or_else(|error| {
            let reason = unreadable(kind, query.namespace, &error);
            self.miss(&error, &reason);
            self.runs_unknown = Some(reason);
            Vec::new()
        })
    }

    /// The children of an instance, and those of earlier instances of the same name.
    pub(super) fn children(&self, uid: &str, claim: &Claim) -> (Vec<LiveChild>, Vec<LiveChild>) {
        let own = self.children.get(uid).cloned().unwrap_or_default();
        let previous = self.previous.get(claim).cloned().unwrap_or_default();
        (sorted(own), sorted(previous))
    }

    /// The instance with that uid, if it exists.
    pub(super) fn owner(&self, uid: &str) -> Option<&str> {
        self.owners.get(uid).map(String::as_str)
    }

    /// Who uses a namespace beside the instance with that uid.
    pub(super) fn namespace_user(&self, namespace: &str, uid: &str) -> Option<String> {
        let is_there = |instance: &Value| {
            instance["metadata"]["namespace"] == namespace && instance["metadata"]["uid"] != uid
        };
        let instance = self.instances.iter().find(|(_, instance)| is_there(instance));
        let child = || self.places.iter().find(|object| object.namespace.as_deref() == Some(namespace));
        let name = |(_, instance): &(usize, Value)| {
            format!("{} {}", text(&instance["kind"]), full_name(&instance["metadata"]))
        };
        instance.map(name).or_else(|| child().map(ToString::to_string))
    }

    /// The runs of an instance: of its plans, and those that delete children. `home`: the namespace of its runs.
    pub(super) fn runs(&self, resource: &Resource, home: &str, name: &str) -> (Vec<PlanRun>, Vec<PlanRun>) {
        let kind = &resource.kind;
        let key = [home, &kind.kind, &kind.group, name].map(str::to_owned);
        let runs = self.runs.get(&key).into_iter().flatten();
        let runs = runs.filter_map(|run| PlanRun::parse(run).ok());
        let runs = runs.filter(|run| run.spec.of.resource == kind.plural);
        runs.partition(|run| run.spec.plan != DELETE_CHILD)
    }

    /// The `InstanceState` of that name.
    pub(super) fn state(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.states.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The origins of an instance.
    pub(super) fn origins(&self, uid: &str) -> Vec<Value> {
        self.origins.get(uid).cloned().unwrap_or_default()
    }
}

fn sorted(mut children: Vec<LiveChild>) -> Vec<LiveChild> {
    children.sort_by(|a, b| a.observed.object.cmp(&b.observed.object));
    children
}

/// Namespace, kind, group and name of the instance that a PlanRun names.
fn instance_of(run: &Value) -> [String; 4] {
    let of = &run["spec"]["of"];
    let group = of["apiVersion"].as_str().and_then(|version| version.split_once('/'));
    [
        text(&run["metadata"]["namespace"]),
        text(&of["kind"]),
        group.map_or_else(String::new, |(group, _)| group.to_owned()),
        text(&of["name"]),
    ]
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// `namespace/name`, or `name`.
pub(super) fn full_name(meta: &Value) -> String {
    match meta["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{}", text(&meta["name"])),
        None => text(&meta["name"]),
    }
}
