//! The known state: the objects that watches have delivered, the active packages, and the kinds that the server
//! serves. Watches and replies to writes update it. It sends no request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde_json::Value;

use super::index::{Index, InstanceKey, Provenance, ReadChange};
use super::operators::AllSettings;
use super::owned::{OwnedObjects, OwnerField};
use super::raw::Raw;
use super::registry::Registry;
use crate::api::{Gvk, ObjectRef};
use crate::children::Observed;
use crate::children::names::Claim;
use crate::cluster::Kinds;

/// The known state.
#[derive(Default)]
pub(super) struct Store {
    /// The kinds that discovery has found.
    pub(super) kinds: Kinds,
    index: Mutex<Index>,
    owned: Mutex<OwnedObjects>,
    registry: RwLock<Arc<Registry>>,
    /// CRDs whose instances must not be written now, with the reason. Without the status subresource a write of a
    /// label loses the status.
    held: RwLock<HashMap<Arc<str>, Arc<str>>>,
    schemas: AtomicU64,
    /// The settings that `Operator`s have for the instances of their packages.
    pub(super) settings: AllSettings,
}

impl Store {
    /// A store in which nothing is known yet. `manager`: the manager's namespace.
    pub(super) fn new(manager: &str) -> Self {
        Self { settings: AllSettings::new(manager), ..Self::default() }
    }

    /// The known instances and children.
    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects that belong to instances and are kept whole.
    pub(super) fn owned(&self) -> MutexGuard<'_, OwnedObjects> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects of a kind that belong to an instance, sorted by namespace and name.
    pub(super) fn owned_by(&self, key: &InstanceKey, gvk: &Gvk) -> Vec<Value> {
        let claim = self.index().claim(key);
        self.owned().of(gvk, &claim)
    }

    /// The objects of a kind that belong to an instance, parsed one after the other.
    pub(super) fn each_owned_by(&self, key: &InstanceKey, gvk: &Gvk) -> impl Iterator<Item = Value> + use<> {
        let claim = self.index().claim(key);
        let texts = self.owned().texts_of(gvk, &claim);
        texts.into_iter().filter_map(|text| serde_json::from_slice(&text).ok())
    }

    /// The kinds whose instances this manager reconciles.
    pub(super) fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the registry.
    pub(super) fn set_registry(&self, registry: Registry) {
        *self.registry.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(registry);
    }

    /// Forbids all writes to instances of a CRD, or allows them again.
    pub(super) fn hold(&self, crd: &str, why: Option<Arc<str>>) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => {
                held.insert(crd.into(), why);
            }
            None => {
                held.remove(crd);
            }
        }
    }

    /// Why instances of a CRD must not be written now, if so.
    pub(super) fn held(&self, crd: &str) -> Option<Arc<str>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).get(crd).cloned()
    }

    /// Notes that the schema of a CRD has changed: the server may accept now what it refused or pruned before.
    pub(super) fn schema_changed(&self) {
        self.schemas.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that grows with every change of a CRD's schema.
    pub(super) fn schemas(&self) -> u64 {
        self.schemas.load(Ordering::Relaxed)
    }

    /// The instances of a CRD.
    pub(super) fn instances_of(&self, crd: &str) -> Vec<InstanceKey> {
        self.index().instances_of(crd).cloned().collect()
    }

    /// All instances.
    pub(super) fn all_instances(&self) -> Vec<InstanceKey> {
        self.index().instances().cloned().collect()
    }

    /// Takes the reply to a write of an instance into the index. The writer decides again, or queues the instance.
    pub(super) fn learn_instance(&self, key: &InstanceKey, object: &Value) {
        self.index().put_instance(key.clone(), &kept_of_instance(object));
    }

    /// Takes the answer to a live read of an instance into the index: see [`Index::put_read`].
    pub(super) fn learn_read(
        &self,
        key: &InstanceKey,
        asked: Option<&str>,
        live: Option<&Value>,
    ) -> ReadChange {
        self.index().put_read(key, asked, live.map(kept_of_instance).as_ref())
    }

    /// Takes an object that is kept whole, from a watch or the reply to a write of it. Returns the instances that it
    /// concerns.
    pub(super) fn learn_owned(&self, gvk: &Gvk, owner: OwnerField, mut object: Value) -> Vec<InstanceKey> {
        // Items of lists carry neither apiVersion nor kind.
        object["apiVersion"] = (*gvk.api_version).into();
        object["kind"] = (*gvk.kind).into();
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        let registry = self.registry();
        let is_cluster_scoped = |kind: &str| registry.by_kind_label(kind).is_some_and(|r| !r.kind.namespaced);
        let claim = owner.claim(&object, is_cluster_scoped);
        let caller = super::owned::caller(&object);
        let mut concerned = match owner {
            OwnerField::SpecOf => self.owned().put_run(gvk, &mut object, claim),
            OwnerField::Labels => self.owned().put(gvk, &object, claim),
        };
        let is_news = !concerned.is_empty();
        if is_news {
            concerned.extend(caller);
        }
        let mut keys = self.claimed(concerned);
        // A run may name an instance that does not exist.
        let named = || registry.instance_of_run(&object).filter(|key| !keys.contains(key));
        if is_news
            && owner == OwnerField::SpecOf
            && let Some(key) = named()
        {
            keys.push(key);
        }
        keys
    }

    /// The known instances with these claims.
    pub(super) fn claimed(&self, claims: impl IntoIterator<Item = Claim>) -> Vec<InstanceKey> {
        let index = self.index();
        claims.into_iter().filter_map(|claim| index.by_claim(&claim).cloned()).collect()
    }

    /// Takes a live child, or the reply to a write of it, into the index. Returns it with the other instances that it concerns:
    /// they are to be queued, for no watch brings it again. The instance that it belongs to decides again anyway.
    pub(super) fn learn_child(
        &self,
        object: &ObjectRef,
        reply: Value,
        provenance: Provenance,
    ) -> Option<(Observed, Vec<InstanceKey>)> {
        let raw = Raw::from_value(reply).ok()?;
        let registry = self.registry();
        let reports = self.kinds.reports_status(&object.gvk);
        let reads = |operator: &str, child: &str| registry.reads(operator, child);
        let mut observed = raw.observe(&object.gvk, reports, reads)?;
        if provenance == Provenance::OwnWrite {
            observed.baseline = observed.mark.clone();
        }
        let mut index = self.index();
        let mut concerned = index.put_child(observed.clone(), provenance);
        let owner = index.by_uid(&observed.instance_uid);
        concerned.retain(|key| Some(key) != owner);
        Some((observed, concerned))
    }
}

/// What is kept of an instance.
fn kept_of_instance(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("managedFields");
    }
    object
}
