//! What is known of one instance at one moment: an owned value, gathered before the decision. A decision takes no lock and
//! sends no request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::deletion_runs::DeletionRuns;
use super::kind_owner::KindOwner;
use super::observed::Observed;
use super::origins::Origin;
use super::plans::{PlanSnapshot, Revision};
use super::poll::{Poll, PollResult};
use super::refs::{LookupResult, ResourceSelector};
use super::sibling::Sibling;
use crate::api::{Apis, Gvk, ObjectRef};
use crate::children::accepted_key::AcceptedKey;
use crate::children::names;
use crate::package::{Child, DeletionPolicy, Package, Resource};
use crate::plan::{Known, PlanRun, RunStatus};
use crate::template::Totals;

/// What is known of one instance at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// The instance, CRD defaults filled in.
    pub instance: Value,
    /// The instance before the edit that is not accepted yet.
    pub previous: Option<Value>,
    /// The package that renders it, or why no package is active.
    pub package: Result<ActivePackage, Arc<str>>,
    /// The package that its kind belongs to, which may have another name than an earlier revision that renders it.
    pub owner: KindOwner,
    /// Values that take the place of the package's defaults.
    pub defaults: Arc<Map<String, Value>>,
    /// The manager's own namespace.
    pub operator_namespace: String,
    /// The namespaces into which its package writes nothing for instances elsewhere.
    pub closed: Arc<BTreeSet<String>>,
    /// The live objects that carry the instance's uid.
    pub observed: Vec<Arc<Observed>>,
    /// Children of deleted instances of the same kind, namespace and name, as their labels say.
    pub previous_children: Vec<Arc<Observed>>,
    /// The kinds that children and refs have, or that earlier revisions of the package had.
    pub kinds: Vec<KindInfo>,
    /// What is known of the objects that refs name, as far as they are watched.
    pub refs: BTreeMap<ResourceSelector, LookupResult>,
    /// The other instances of the package that refs name. `None`: nothing is run in their children.
    pub siblings: Option<Vec<Sibling>>,
    /// What is known of the observations of refs, as far as they are made.
    pub polls: HashMap<Arc<Poll>, PollResult>,
    /// Who still uses a namespace: an instance (this one aside), or a child. Only of namespaces that a decision has
    /// asked for, see [`super::needs::Needs::namespace_users`].
    pub namespace_users: BTreeMap<String, Option<String>>,
    /// What is known of its runs, if its kind has plans.
    pub plans: Option<Box<PlanSnapshot>>,
    /// What is known of the runs that delete its `Ask` children; `None` if they are not watched yet.
    pub deletions: Option<Box<DeletionRuns>>,
    /// The key of the record of the last accepted target.
    pub accepted_key: AcceptedKey,
    /// What the API server serves, or why that is not known; `None` until it has answered.
    pub apis: Option<Result<Arc<Apis>, String>>,
    /// What all evaluations of one decision may use together.
    pub limits: Totals,
}

/// A package and the resource whose instance is decided about.
#[derive(Debug, Clone)]
pub struct ActivePackage {
    package: Arc<Package>,
    index: usize,
}

impl ActivePackage {
    /// The resource at an index of a package; `None` if the package has none there.
    pub fn new(package: &Arc<Package>, index: usize) -> Option<Self> {
        (index < package.resources.len()).then(|| Self { package: Arc::clone(package), index })
    }

    /// The package.
    pub fn package(&self) -> &Package {
        &self.package
    }

    /// The resource.
    pub fn resource(&self) -> &Resource {
        &self.package.resources[self.index]
    }
}

/// What is known of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindInfo {
    /// The kind, in the version that the package or the record of child kinds names.
    pub gvk: Gvk,
    /// Whether its objects lie in namespaces; `None` if the server does not serve it.
    pub namespaced: Option<bool>,
    /// Whether its objects are instances of a package, this one or another.
    pub is_instance_kind: bool,
    /// Whether its objects are known.
    pub listing: Listing,
}

/// Whether the objects of a kind are known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listing {
    /// The objects are listed and watched.
    Listed,
    /// The objects are listed in another version than the package names. Says which.
    OtherVersion(String),
    /// The server does not serve the kind: what exists is unknown, but nothing of it can be deleted. Says what to do.
    NotServed(String),
    /// The objects cannot be listed, for this reason: what exists is unknown.
    Unreadable(String),
}

impl KindInfo {
    /// A kind whose objects are listed.
    pub fn listed(gvk: Gvk, namespaced: bool) -> Self {
        Self { gvk, namespaced: Some(namespaced), is_instance_kind: false, listing: Listing::Listed }
    }

    /// Why its objects in this version are unknown; `None` if they are known.
    pub fn unknown(&self) -> Option<&str> {
        match &self.listing {
            Listing::Listed => None,
            Listing::OtherVersion(why) | Listing::NotServed(why) | Listing::Unreadable(why) => Some(why),
        }
    }

    /// The highest order in the graph that its objects may have; `None` if the package does not say.
    pub fn highest_order(&self, resource: Option<&Resource>) -> Option<u32> {
        let children = resource?.children.iter();
        children.filter(|child| child.has_kind(&self.gvk)).map(|child| child.depth).max()
    }
}

impl Snapshot {
    /// An instance without any live object, in a cluster that serves all kinds that its package names. Nothing of its
    /// decisions is written to a cluster.
    /// `is_namespaced` says of each whether its objects lie in namespaces.
    pub fn new(package: ActivePackage, instance: Value, is_namespaced: impl Fn(&Gvk) -> bool) -> Self {
        let kinds = package.resource().kinds().into_iter();
        let kinds = kinds.map(|gvk| KindInfo::listed(gvk.clone(), is_namespaced(gvk))).collect();
        let owner = KindOwner::first(&package.package().name);
        Self {
            owner,
            instance,
            previous: None,
            package: Ok(package),
            defaults: Arc::default(),
            operator_namespace: names::MANAGER_NAMESPACE.into(),
            closed: Arc::default(),
            observed: Vec::new(),
            previous_children: Vec::new(),
            kinds,
            refs: BTreeMap::new(),
            siblings: None,
            polls: HashMap::new(),
            namespace_users: BTreeMap::new(),
            plans: None,
            deletions: None,
            accepted_key: AcceptedKey::Unneeded,
            apis: None,
            limits: Totals::FULL,
        }
    }

    /// The active package and the instance as it is now; or why no package is active.
    ///
    /// # Errors
    /// No package is active.
    pub fn origin(&self) -> Result<Origin<'_>, &str> {
        let active = self.package.as_ref().map_err(|why| &**why)?;
        Ok(Origin { package: active.package(), resource: active.resource(), instance: &self.instance })
    }

    /// The resource of the active package.
    pub fn resource(&self) -> Option<&Resource> {
        self.package.as_ref().ok().map(ActivePackage::resource)
    }

    /// Whether the instance is being deleted.
    pub fn is_deleting(&self) -> bool {
        !self.instance["metadata"]["deletionTimestamp"].is_null()
    }

    /// What is known of a kind; `None` for one that neither the package nor the record names.
    pub fn kind(&self, gvk: &Gvk) -> Option<&KindInfo> {
        self.kinds.iter().find(|info| info.gvk == *gvk)
    }

    /// Whether the objects of a kind lie in namespaces; `None` if it is not served.
    pub fn namespaced(&self, gvk: &Gvk) -> Option<bool> {
        self.kind(gvk)?.namespaced
    }

    /// Why the objects of a kind are unknown in that version; `None` if they are known.
    pub fn unknown(&self, gvk: &Gvk) -> Option<&str> {
        self.kind(gvk)?.unknown()
    }

    /// Why the objects of a child of these kinds are unknown; `None` if they are known. A child without items has no objects of a kind
    /// that is not served, such as one behind a `when`.
    pub fn unknown_objects<'s>(&'s self, kinds: &'s [Gvk], has_items: bool) -> Option<&'s str> {
        let kinds = kinds.iter().filter_map(|gvk| self.kind(gvk));
        let mut counting = kinds.filter(|kind| has_items || !matches!(kind.listing, Listing::NotServed(_)));
        counting.find_map(KindInfo::unknown)
    }

    /// Whether the objects of a kind are known, in that version or another.
    pub fn is_listed(&self, object: &ObjectRef) -> bool {
        let kind = self.kind(&object.gvk);
        kind.is_none_or(|kind| matches!(kind.listing, Listing::Listed | Listing::OtherVersion(_)))
    }

    /// The kinds that cannot be listed though the server serves them, with the reason.
    pub fn unreadable(&self) -> impl Iterator<Item = (&KindInfo, &str)> {
        self.kinds.iter().filter_map(|kind| match &kind.listing {
            Listing::Unreadable(reason) => Some((kind, reason.as_str())),
            _ => None,
        })
    }

    /// Whether the objects of a kind are instances of a package.
    pub fn is_instance_kind(&self, gvk: &Gvk) -> bool {
        self.kind(gvk).is_some_and(|kind| kind.is_instance_kind)
    }

    /// The child of the package that an object belongs to, if the package has it.
    pub fn child_of(&self, observed: &Observed) -> Option<&Child> {
        let has_id = |child: &&Child| {
            *child.id == *observed.child || child.renamed_from.iter().any(|id| **id == *observed.child)
        };
        self.resource()?.children.iter().find(has_id)
    }

    /// The deletion policy of an object of a child. A child that is itself an instance of a package may hold
    /// data, so it is retained unless the package sets another policy explicitly.
    pub fn deletion_policy(&self, child: &Child, gvk: &Gvk) -> DeletionPolicy {
        match child.deletion_policy {
            DeletionPolicy::Delete if !child.explicit_policy && self.is_instance_kind(gvk) => {
                DeletionPolicy::Retain
            }
            chosen => chosen,
        }
    }

    /// Whether an object that nothing desires is retained. A revision may say `Retain` and stop rendering the child at once, so
    /// that the object never gets the new mark: the safer of both policies counts.
    pub fn is_retained(&self, observed: &Observed) -> bool {
        let says_so =
            |child: &Child| self.deletion_policy(child, &observed.object.gvk) == DeletionPolicy::Retain;
        observed.retained.is_some() || self.child_of(observed).is_some_and(says_so)
    }

    /// The objects that deleted instances of that name have left, and that this instance adopts when its target contains
    /// them. Those with an ownerReference are left to the garbage collector.
    pub fn retained(&self) -> impl Iterator<Item = &Arc<Observed>> {
        self.previous_children.iter().filter(|object| !object.owner_reference)
    }

    /// The runs of the instance with requests and answers that may count now: none while the policy of runs is not in force.
    pub fn countable_runs(&self) -> impl Iterator<Item = &PlanRun> {
        let plans = self.plans.iter().filter(|plans| plans.protection.problem(plans.now).is_none());
        let deletions = self.deletions.iter().filter(|runs| runs.protection.problem(runs.now).is_none());
        let plans = plans.flat_map(|plans| plans.runs.iter().chain(&plans.strangers));
        plans.chain(deletions.flat_map(|deletions| &deletions.runs))
    }

    /// The runs of the instance that have not ended and have answers which their status does not note yet, and what notes them.
    pub(in crate::children) fn noted(&self) -> impl Iterator<Item = (&PlanRun, RunStatus)> {
        let plans = self.plans.iter().filter(|plans| plans.unknown.is_none() && !plans.state.is_newer);
        let plans = plans.flat_map(|plans| {
            let runs = plans.runs.iter().chain(&plans.strangers);
            runs.map(|run| (run, &plans.protection, plans.now))
        });
        let deletions = self.deletions.iter().filter(|deletions| deletions.unknown.is_none());
        let deletions = deletions.flat_map(|deletions| {
            deletions.runs.iter().map(|run| (run, &deletions.protection, deletions.now))
        });
        let is_open =
            |run: &PlanRun| run.has_object() && !run.is_final() && !run.deleting && run.known != Known::Wiped;
        let runs = plans.chain(deletions).filter(move |(run, ..)| is_open(run));
        runs.filter_map(|(run, protection, now)| Some((run, run.noted(protection, now)?)))
    }

    /// What is known of the objects that a ref names.
    pub fn lookup(&self, selector: &ResourceSelector) -> LookupResult {
        self.refs.get(selector).cloned().unwrap_or(LookupResult::Pending)
    }

    /// Adds what `find` says of selectors that were not looked up yet. `true` if there were any.
    pub fn look_up(
        &mut self,
        selectors: &[ResourceSelector],
        find: impl Fn(&ResourceSelector) -> LookupResult,
    ) -> bool {
        let before = self.refs.len();
        for selector in selectors {
            if !self.refs.contains_key(selector) {
                self.refs.insert(selector.clone(), find(selector));
            }
        }
        self.refs.len() > before
    }

    /// A hash of all that a decision evaluates: the package, the instance, and what is read of children and refs; and of the runs with
    /// answers that are to be noted.
    pub fn evaluated(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        if let Ok(active) = &self.package {
            active.package.digest.hash(&mut hasher);
            if active.resource().reads_cluster {
                self.apis.hash(&mut hasher);
            }
        }
        for (revision, known) in self.plans.iter().flat_map(|plans| &plans.revisions) {
            (revision, matches!(known, Revision::Loaded(_))).hash(&mut hasher);
        }
        if !self.defaults.is_empty() {
            Value::Object((*self.defaults).clone()).to_string().hash(&mut hasher);
        }
        let mut instance = self.instance.clone();
        if let Some(metadata) = instance["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        instance.to_string().hash(&mut hasher);
        for kind in &self.kinds {
            (&kind.gvk, kind.namespaced, &kind.listing).hash(&mut hasher);
        }
        for child in &self.observed {
            (&child.object, &child.uid, &child.child, &child.key, &child.live).hash(&mut hasher);
            (child.terminating, format!("{:?}", child.readiness)).hash(&mut hasher);
        }
        for (run, _) in self.noted() {
            run.uid.hash(&mut hasher);
        }
        for object in self.retained() {
            (&object.object, &object.uid, &object.child, &object.key, &object.live).hash(&mut hasher);
        }
        for (selector, found) in &self.refs {
            selector.hash(&mut hasher);
            match found {
                LookupResult::Known(objects) => {
                    for object in objects {
                        (&object.namespace, &object.name, object.ready).hash(&mut hasher);
                        object.value.to_string().hash(&mut hasher);
                    }
                }
                LookupResult::Pending => 0.hash(&mut hasher),
                LookupResult::Unknown(why) => format!("{why:?}").hash(&mut hasher),
            }
        }
        for sibling in self.siblings.iter().flatten() {
            (&sibling.uid, sibling.places.is_some()).hash(&mut hasher);
            for (item, object) in sibling.places.iter().flatten() {
                (item, &object.uid, object.terminating, format!("{:?}", object.readiness)).hash(&mut hasher);
            }
        }
        // The map has no order: each entry is hashed alone.
        let polls = self.polls.iter().map(|(poll, result)| {
            let mut hasher = DefaultHasher::new();
            poll.hash(&mut hasher);
            match result {
                PollResult::Known(answer) => answer.to_string().hash(&mut hasher),
                PollResult::Pending => 0.hash(&mut hasher),
                PollResult::Delayed => 2.hash(&mut hasher),
                PollResult::Failed(why) => (1, why).hash(&mut hasher),
            }
            hasher.finish()
        });
        polls.fold(0, u64::wrapping_add).hash(&mut hasher);
        hasher.finish()
    }
}
