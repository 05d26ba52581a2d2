//! The events of the watch on CRDs. It brings their metadata only, because a CRD may be a megabyte; a changed CRD is read
//! where more of it is needed.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;
use tracing::info;

use super::state::{CrdMeta, CrdReconciler, SPREAD, State};
use crate::api::Gvk;
use crate::children::crds::CrdVersion;
use crate::children::package_of_crd;
use crate::manager::raw::Raw;
use crate::manager::scheduler::Key;
use crate::manager::watches::IfOpen;

impl CrdReconciler {
    /// Takes an event into the state, and queues what it concerns.
    pub(super) fn on_event(&self, event: Event<Raw>) {
        let mut state = self.lock();
        match event {
            Event::Init => state.live.listing = Some(HashSet::new()),
            Event::InitApply(crd) | Event::Apply(crd) => {
                let name = crd.metadata.name.clone().unwrap_or_default();
                if let Some(listing) = &mut state.live.listing {
                    listing.insert(name.clone());
                }
                self.on_crd_seen(&mut state, name, meta_of(&crd.metadata));
            }
            Event::Delete(crd) => {
                self.on_crd_gone(&mut state, crd.metadata.name.as_deref().unwrap_or_default());
            }
            Event::InitDone => {
                let listed = state.live.listing.take().unwrap_or_default();
                let gone: Vec<String> =
                    state.live.crds.keys().filter(|name| !listed.contains(*name)).cloned().collect();
                for name in gone {
                    self.on_crd_gone(&mut state, &name);
                }
                state.live.is_complete = true;
            }
        }
    }

    fn on_crd_seen(&self, state: &mut State, name: String, meta: CrdMeta) {
        let before = state.live.crds.insert(name.clone(), meta.clone());
        if before.as_ref() == Some(&meta) {
            return;
        }
        self.watches.crds_changed();
        for (index, package) in state.packages.iter().enumerate() {
            if let Some(position) = package.position(&name)
                && package.crds()[position].is_news(Some(&meta.version))
            {
                self.scheduler.queue.add(state.key(index));
            }
        }
        self.crd_of_candidate(state, &name);
        // The first list shows what has not changed since discovery was asked.
        let has_changed = before.map_or(state.live.is_complete, |before| {
            (before.version.uid, before.generation) != (meta.version.uid, meta.generation)
        });
        self.on_child_crd(state, &name, has_changed);
        if state.is_unread(&name) {
            self.scheduler.queue.add(Key::Crd(name.into()));
        } else if !meta.is_labelled && state.labelled.remove(&name).is_some() {
            self.publish(state);
        }
    }

    fn on_crd_gone(&self, state: &mut State, name: &str) {
        let Some(meta) = state.live.crds.remove(name) else { return };
        self.watches.crds_changed();
        if self.effects.plan_api.is_own(name) {
            let effects = Arc::clone(&self.effects);
            tokio::spawn(async move { effects.plan_api.reinstall(effects.clients.own()).await });
        }
        self.tell_gone_operator(state.labelled.remove(name).as_ref());
        for index in 0..state.packages.len() {
            if state.packages[index].record_gone(name, &meta.version.uid) {
                info!(crd = %name, "gone");
            }
            if state.packages[index].position(name).is_some() {
                self.scheduler.queue.add(state.key(index));
            }
        }
        self.crd_of_candidate(state, name);
        self.publish(state);
        self.on_child_crd(state, name, true);
    }

    /// Handles a change of a CRD that may define a kind of children.
    fn on_child_crd(&self, state: &mut State, name: &str, has_changed: bool) {
        let Some((plural, group)) = name.split_once('.') else { return };
        let kinds = self.store.registry().child_kinds();
        for child in kinds.iter().filter(|kind| kind.group() == group) {
            let served = self.store.kinds.known(child);
            if served.is_none_or(|served| served.plural != plural) {
                self.watches.rediscover();
            } else if has_changed {
                info!(crd = %name, kind = %child.kind, "the CRD of children has changed");
                self.store.kinds.forget(child);
                self.store.schema_changed();
                self.watches.reopen_children(child);
                self.relist_later(state, name, Some(child));
            }
        }
    }

    /// Lists the instances of a CRD, and children of a kind that it defines, once more when all API servers serve it as it
    /// is now.
    pub(super) fn relist_later(&self, state: &mut State, name: &str, child: Option<&Gvk>) {
        let relist = state.relists.entry(name.to_owned()).or_default();
        relist.at = self.scheduler.clock.elapsed() + SPREAD;
        relist.children.extend(child.cloned());
        self.scheduler.queue.add_after(Key::Crd(name.into()), SPREAD);
    }

    /// Lists the objects of a CRD once more if that is due.
    pub(super) fn relist(&self, state: &mut State, name: &str) {
        let Some(relist) = state.relists.get(name) else { return };
        let rest = relist.at.saturating_sub(self.scheduler.clock.elapsed());
        if !rest.is_zero() {
            self.scheduler.queue.add_after(Key::Crd(name.into()), rest);
            return;
        }
        let children = state.relists.remove(name).unwrap_or_default().children;
        let registry = self.store.registry();
        if let Some(registered) = registry.get(name) {
            if registered.crd_conflict.is_none() {
                self.store.hold(name, None);
            }
            self.watches.open_instances(&registered, IfOpen::Relist);
        }
        for kind in &children {
            if registry.has_child_kind(kind) {
                self.watches.open_children(kind, IfOpen::Relist);
            }
        }
    }
}

fn meta_of(meta: &ObjectMeta) -> CrdMeta {
    CrdMeta {
        version: CrdVersion {
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        },
        generation: meta.generation.unwrap_or_default(),
        is_labelled: package_of_crd(meta).is_some(),
    }
}
