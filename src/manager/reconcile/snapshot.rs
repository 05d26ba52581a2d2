//! Takes the snapshot of an instance for a decision, and finds the revision of the package that decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::InstanceReconciler;
use crate::api::Gvk;
use crate::children::plans::Revision;
use crate::children::{
    ActivePackage, KindInfo, Listing, LookupResult, Observed, ReadError, ResourceSelector, Select, Sibling,
    Snapshot,
};
use crate::manager::index::InstanceKey;
use crate::manager::operators::Serves;
use crate::manager::registry::Registered;
use crate::manager::watches::WatchState;
use crate::package::Resource;
use crate::template::Totals;

/// The package that an instance is reconciled with.
enum Kept {
    /// The active one.
    Active,
    /// Another revision, until the instance is moved.
    Earlier(ActivePackage),
    /// Another revision, which is being loaded.
    Pending,
    /// Another revision, which cannot be loaded, for that reason.
    Unknown(Arc<str>),
}

impl InstanceReconciler {
    /// What is known of the instance now; `None` if it is gone, its children are still being listed, or nothing is known
    /// of its package yet.
    pub(super) fn snapshot(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        limits: Totals,
    ) -> Option<Snapshot> {
        let registry = self.store.registry();
        let info = |gvk: Gvk, listing: Listing| KindInfo {
            namespaced: self.store.kinds.known(&gvk).map(|known| known.namespaced),
            is_instance_kind: registry.is_instance_kind(&gvk),
            gvk,
            listing,
        };
        // Before the children: a kind that is listed now has all of its children in the index. The end of its first
        // list and a failure of it queue all instances, so none is forgotten here.
        let mut kinds = Vec::with_capacity(registered.child_kinds.len());
        for gvk in &registered.child_kinds {
            kinds.push(info(gvk.clone(), self.listing(gvk, registered, key)?));
        }
        let (instance, previous, observed, previous_children) = {
            let mut index = self.store.index();
            let instance = index.instance(key).or_else(|| index.deleted_instance(key))?;
            let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
            let (observed, previous_children) = (index.children_of(uid), index.previous_children(key, uid));
            (instance, index.previous(key), observed, previous_children)
        };
        let mut children = observed.iter().chain(&previous_children);
        if children.any(|observed| observed.asking.is_some()) && self.are_runs_listed_now() {
            return None;
        }
        let package = match (&registered.package, &registered.inactive) {
            (Some((package, index)), _) => match self.kept_package(key, registered) {
                Kept::Active => Ok(ActivePackage::new(package, *index)?),
                Kept::Earlier(package) => Ok(package),
                Kept::Pending => return None,
                // A deletion renders nothing but the plan that cleans up.
                Kept::Unknown(_) if !instance["metadata"]["deletionTimestamp"].is_null() => {
                    Ok(ActivePackage::new(package, *index)?)
                }
                Kept::Unknown(reason) => Err(reason),
            },
            (None, Some(reason)) => Err(Arc::clone(reason)),
            (None, None) if instance["metadata"]["deletionTimestamp"].is_null() => return None,
            (None, None) => Err("it is not loaded".into()),
        };
        let settings = self.store.settings.get(registered.operator()).unwrap_or_default();
        let is_deleting = !instance["metadata"]["deletionTimestamp"].is_null();
        if is_deleting && self.watches.watch_deletion(registered, key) {
            return None;
        }
        let package = match self.store.settings.serves(&settings, key.namespace.as_deref()) {
            Serves::No if package.is_ok() && !is_deleting => {
                let namespace = key.namespace.as_deref().unwrap_or_default();
                let is_reserved = self.store.settings.is_reserved(namespace);
                let help = if is_reserved {
                    "; instances in kube-system and in the manager's namespace are served only if spec.namespaces says so"
                } else {
                    ""
                };
                Err(format!(
                    "the Operator {} does not serve the namespace {namespace}: its children stay as they are, and nothing \
                     repairs them{help}",
                    registered.operator(),
                )
                .into())
            }
            Serves::Unknown if !is_deleting => return None,
            _ => package,
        };
        let resource = package.as_ref().ok().map(ActivePackage::resource);
        let earlier = registered.earlier().map(|(_, resource)| resource);
        for gvk in resource.into_iter().chain(earlier).flat_map(Resource::kinds) {
            if !kinds.iter().any(|info| info.gvk == *gvk) {
                kinds.push(info(gvk.clone(), Listing::Listed));
            }
        }
        let mut resources = resource.into_iter().chain(registered.earlier().map(|(_, resource)| resource));
        let reads_cluster = resources.any(|resource| resource.reads_cluster);
        let mut runs = self.read_runs(key);
        let deletions = self.deletion_runs(key, &mut runs).map(Box::new);
        let has_runs = self.has_runs(key, registered, &runs);
        let plans = has_runs.then(|| Box::new(self.plan_snapshot(key, &instance, runs)));
        let refs = self.watches.known(key);
        let siblings = self.siblings(key, registered, &refs);
        // Every editor of an object can write its labels. An object in a namespace that the package does not use is no child.
        let can_be_child = |o: &Arc<Observed>| registered.reaches(key.namespace.as_deref(), &o.object);
        Some(Snapshot {
            instance,
            previous,
            package,
            owner: registered.owner(),
            defaults: Arc::clone(&settings.defaults),
            operator_namespace: self.namespace.clone(),
            closed: Arc::clone(&settings.closed),
            observed: observed.into_iter().filter(can_be_child).collect(),
            previous_children: previous_children.into_iter().filter(can_be_child).collect(),
            kinds,
            refs,
            siblings: Some(siblings),
            polls: self.watches.observations(key),
            namespace_users: BTreeMap::new(),
            plans,
            deletions,
            accepted_key: self.effects.accepted_key(),
            apis: if reads_cluster { self.watches.served_apis() } else { None },
            limits,
        })
    }

    /// The other instances of the package that refs name.
    fn siblings(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        refs: &BTreeMap<ResourceSelector, LookupResult>,
    ) -> Vec<Sibling> {
        let registry = self.store.registry();
        let is_own =
            |crd: &str| registry.get(crd).is_some_and(|other| other.operator() == registered.operator());
        let is_instance = |selector: &ResourceSelector| {
            matches!(selector.select, Select::Name(_)) && registry.is_instance_kind(&selector.gvk)
        };
        let named = refs.iter().filter(|(selector, _)| is_instance(selector));
        let objects = named.filter_map(|(_, found)| match found {
            LookupResult::Known(objects) => objects.first(),
            LookupResult::Pending | LookupResult::Unknown(_) => None,
        });
        let uids = objects.filter_map(|object| object.value["metadata"]["uid"].as_str());
        let mut index = self.store.index();
        let found = uids.filter_map(|uid| index.sibling(uid, key));
        found.filter(|(other, _)| is_own(&other.crd)).map(|(_, sibling)| sibling).collect()
    }

    /// The revision that the instance is reconciled with until it is moved to the active one; `None` if it has that.
    pub(in crate::manager) fn kept_revision(
        &self,
        key: &InstanceKey,
        registered: &Registered,
    ) -> Option<Box<str>> {
        let active = registered.revision().filter(|_| registered.is_staged)?;
        let recorded = self.store.index().member(key)?.revision.clone()?;
        (*recorded != *active).then_some(recorded)
    }

    /// Has the revision that the instance keeps loaded.
    pub(super) fn load_kept(&self, key: &InstanceKey, registered: &Registered) {
        if let Some(revision) = self.kept_revision(key, registered) {
            self.watches.revisions.also_load_for(key, registered.operator(), &revision);
        }
    }

    /// The resource of an instance in the revision that it is reconciled with; `None` if that is not loaded.
    pub(in crate::manager) fn resource_of<'r>(
        &self,
        key: &InstanceKey,
        registered: &'r Registered,
    ) -> Option<&'r Resource> {
        let (_, resource) = match self.kept_revision(key, registered) {
            None => registered.resource()?,
            Some(kept) => registered.earlier().find(|(package, _)| package.revision() == *kept)?,
        };
        Some(resource)
    }

    /// The package that the instance is reconciled with.
    fn kept_package(&self, key: &InstanceKey, registered: &Registered) -> Kept {
        let Some(revision) = self.kept_revision(key, registered) else { return Kept::Active };
        // A revision in the registry is published: the fields that its expressions read are kept.
        let mut earlier = registered.earlier.iter();
        if let Some((package, index)) = earlier.find(|(package, _)| package.revision() == *revision)
            && let Some(package) = ActivePackage::new(package, *index)
        {
            return Kept::Earlier(package);
        }
        match self.watches.revisions.known(key).get(&*revision) {
            Some(Revision::Missing(why) | Revision::Unreadable(why)) => {
                let why = format!("its revision {revision} of the package is not known: {why}");
                Kept::Unknown(why.into())
            }
            // The end of the load queues the instance.
            Some(Revision::Loaded(_)) | None => Kept::Pending,
        }
    }

    /// Whether the objects of a kind are known; `None` while they are listed for the first time.
    fn listing(&self, gvk: &Gvk, registered: &Registered, key: &InstanceKey) -> Option<Listing> {
        let state = self.watches.children_state(gvk, registered, key.namespace.as_deref());
        let reason = state.reason(gvk).unwrap_or_default();
        Some(match state {
            WatchState::Pending => return None,
            WatchState::Watching => Listing::Listed,
            WatchState::OtherVersion(_) => Listing::OtherVersion(reason),
            WatchState::Unavailable(ReadError::KindMissing) => {
                Listing::NotServed(format!("{reason}; {}", self.store.kinds.hint(gvk)))
            }
            WatchState::Unavailable(_) => Listing::Unreadable(reason),
        })
    }
}
