//! Takes the events of a watch: each changes the store, or what refs read, and queues the instances that it concerns.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;
use serde_json::json;
use tracing::{info, warn};

use super::super::key::{Projection, WatchKey};
use super::super::read_objects::{Name, Object};
use super::super::watch::WatchState;
use super::Task;
use crate::api::ObjectRef;
use crate::children::{FieldProjection, Observed, RawObject, Referred, Select, kept};
use crate::manager::index::{InstanceKey, Provenance};
use crate::manager::owned::OwnerField;
use crate::manager::raw::Raw;
use crate::manager::scheduler::Key;
use crate::readiness;

impl Task {
    pub(super) fn on_event(&self, event: Event<Raw>, whole: bool, state: &WatchState) {
        match &self.key.projection {
            Projection::Instance(crd) => self.on_instance(crd, event),
            Projection::Child => self.on_child(event, whole, state),
            Projection::Owned(owner) => self.on_owned(*owner, event),
            Projection::Ref(fields) => {
                self.change(|objects| match event {
                    Event::Init => {
                        objects.begin();
                        HashSet::new()
                    }
                    Event::InitApply(raw) | Event::Apply(raw) => objects.put(self.object(&raw, fields)),
                    Event::Delete(Raw { metadata, .. }) => {
                        let name: Name =
                            (metadata.namespace.map(Into::into), metadata.name.unwrap_or_default().into());
                        objects.delete(&name, metadata.resource_version.as_deref().unwrap_or_default())
                    }
                    Event::InitDone => objects.end(),
                });
            }
            Projection::ApiService => {
                if matches!(event, Event::InitDone) {
                    self.watch.listed(WatchState::Watching);
                }
                self.watches.apis.note_change();
            }
            Projection::Crd => {
                if matches!(event, Event::InitDone) {
                    self.watch.listed(WatchState::Watching);
                }
                if let Some(subscriber) = self.watches.crds.get() {
                    subscriber(event);
                }
            }
            Projection::Policy => {
                if matches!(event, Event::InitDone) {
                    self.watch.listed(WatchState::Watching);
                }
                let Some(Select::Name(name)) = &self.key.select else { return };
                if self.watches.effects.plan_api.on_event(&self.key.gvk.kind, name, &event) {
                    self.watches.scheduler.queue.add(Key::PlanApi);
                    self.watches.scheduler.add_all(self.watches.store.all_instances());
                }
            }
            Projection::Operator => {
                if matches!(event, Event::InitDone) {
                    self.watch.listed(WatchState::Watching);
                }
                if let Some(subscriber) = self.watches.operators.get() {
                    subscriber(&self.key.gvk, event);
                }
            }
        }
    }

    fn on_instance(&self, crd: &Arc<str>, event: Event<Raw>) {
        let (watches, store) = (&self.watches, &self.watches.store);
        match event {
            Event::Init => store.index().begin_instances(crd),
            Event::InitApply(raw) | Event::Apply(raw) => {
                let key = instance_key(crd, &raw.metadata);
                if let Some(cut) = raw.cut
                    && raw.metadata.deletion_timestamp.is_none()
                {
                    // An instance of which only a part was read must not be rendered. For its deletion a part
                    // is enough.
                    let reason = cut.reason().0;
                    warn!(instance = %key, reason, "the instance is not read, and its children stay as they are");
                    store.index().list_instance(&key);
                    if let Some(registered) = store.registry().get(crd) {
                        let effects = Arc::clone(&watches.effects);
                        tokio::spawn(async move {
                            effects.report_unreadable(&key, &registered, &raw.body, cut).await;
                        });
                    }
                } else if store.index().put_instance(key.clone(), &raw.body) {
                    watches.scheduler.queue.add(key);
                }
            }
            Event::Delete(raw) => {
                let key = instance_key(crd, &raw.metadata);
                let (uid, version) = (raw.metadata.uid.as_deref(), raw.metadata.resource_version.as_deref());
                let mut index = store.index();
                index.remove_instance(&key, uid.unwrap_or_default(), version);
                let has_orphans = index.deleted_instance(&key).is_some();
                // If a new instance of the name is known already, its next reconcile forgets the previous one.
                let is_replaced = index.has_instance(&key);
                drop(index);
                if !is_replaced {
                    watches.forget(&key);
                }
                if has_orphans {
                    watches.scheduler.queue.add(key);
                }
            }
            Event::InitDone => {
                let mut index = store.index();
                let gone = index.end_instances(crd);
                // Children may have been listed before their instances, so all instances are queued.
                let mut all: Vec<InstanceKey> = index.instances_of(crd).cloned().collect();
                drop(index);
                let instances = all.len();
                all.extend(store.stray_runs(crd));
                self.watch.listed(WatchState::Watching);
                info!(%crd, instances, "watching instances");
                for key in gone {
                    watches.forget(&key);
                }
                watches.scheduler.add_all(all);
            }
        }
    }

    fn on_child(&self, event: Event<Raw>, whole: bool, state: &WatchState) {
        let WatchKey { gvk, .. } = &self.key;
        let store = &self.watches.store;
        let concerned = match event {
            Event::Init => {
                store.index().begin_kind(gvk, self.key.child_part());
                Vec::new()
            }
            Event::InitApply(raw) | Event::Apply(raw) => match self.observe(&raw, whole) {
                Some(observed) => store.index().put_child(observed, Provenance::Watch),
                // Without our labels it is no longer recognized as a child.
                None => {
                    store.index().remove_child(&self.reference(&raw), uid(&raw), None).into_iter().collect()
                }
            },
            Event::Delete(raw) => {
                let version = raw.metadata.resource_version.as_deref();
                store.index().remove_child(&self.reference(&raw), uid(&raw), version).into_iter().collect()
            }
            Event::InitDone => {
                let gone = store.index().end_kind(gvk, &self.key.child_part());
                // The objects are in the index before the state changes.
                if self.watch.listed(state.clone()) { self.concerned() } else { gone }
            }
        };
        self.watches.scheduler.add_all(concerned);
    }

    fn on_owned(&self, owner: OwnerField, event: Event<Raw>) {
        let WatchKey { gvk, .. } = &self.key;
        let store = &self.watches.store;
        let concerned = match event {
            Event::Init => {
                store.owned().begin(gvk);
                Vec::new()
            }
            Event::InitApply(raw) | Event::Apply(raw) => {
                if let Some(cut) = raw.cut {
                    // The part of the object that was read must not be taken for the whole.
                    warn!(object = %self.reference(&raw), reason = cut.reason().0, "the object is ignored");
                    let former = store.owned().put(gvk, &raw.body, None);
                    store.claimed(former)
                } else {
                    store.learn_owned(gvk, owner, raw.body)
                }
            }
            Event::Delete(raw) => {
                let gone = store.owned().remove(gvk, &raw.body);
                store.claimed(gone)
            }
            Event::InitDone => {
                let gone = store.owned().end(gvk);
                let is_news = self.watch.listed(WatchState::Watching);
                if is_news { store.all_instances() } else { store.claimed(gone) }
            }
        };
        self.watches.scheduler.add_all(concerned);
    }

    /// The object as a child of ours, if it is one.
    fn observe(&self, raw: &Raw, whole: bool) -> Option<Observed> {
        let WatchKey { gvk, .. } = &self.key;
        let store = &self.watches.store;
        let seen = RawObject {
            gvk,
            metadata: &raw.metadata,
            body: whole.then_some(&raw.body),
            reports: whole && store.kinds.reports_status(gvk),
        };
        seen.observe(|operator, child| store.registry().reads(operator, child))
    }

    fn reference(&self, raw: &Raw) -> ObjectRef {
        ObjectRef {
            gvk: self.key.gvk.clone(),
            namespace: raw.metadata.namespace.as_deref().map(Into::into),
            name: raw.metadata.name.as_deref().unwrap_or_default().into(),
        }
    }

    /// What refs read of an object.
    pub(super) fn object(&self, raw: &Raw, fields: &FieldProjection) -> Object {
        let WatchKey { gvk, .. } = &self.key;
        let metadata = &raw.metadata;
        let bare;
        let (body, ready) = if fields.content {
            let reports = self.watches.store.kinds.reports_status(gvk);
            (&raw.body, readiness::of_kind(&raw.body, reports).is_ready())
        } else {
            bare = json!({"metadata": ObjectMeta { managed_fields: None, ..metadata.clone() }});
            (&bare, metadata.deletion_timestamp.is_none())
        };
        Object {
            referred: Referred {
                namespace: metadata.namespace.as_deref().map(Into::into),
                name: metadata.name.as_deref().unwrap_or_default().into(),
                value: Arc::new(kept(gvk, metadata, Some(body), &fields.paths)),
                ready,
            },
            resource_version: metadata.resource_version.as_deref().unwrap_or_default().into(),
            // If the server selects, nothing is matched here.
            labels: metadata.labels.clone().filter(|_| self.key.select.is_none()),
        }
    }
}

fn instance_key(crd: &Arc<str>, metadata: &ObjectMeta) -> InstanceKey {
    InstanceKey {
        crd: Arc::clone(crd),
        namespace: metadata.namespace.as_deref().map(Into::into),
        name: metadata.name.as_deref().unwrap_or_default().into(),
    }
}

fn uid(raw: &Raw) -> &str {
    raw.metadata.uid.as_deref().unwrap_or_default()
}
