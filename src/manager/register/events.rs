//! What the watch on CRDs tells, and what follows from it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;
use tokio::time::Instant;
use tracing::info;

use super::entry::{Crd, is_news};
use super::publish::Later;
use super::watch::{CrdEvent, Meta};
use super::{CRD, Look, Registrar};
use crate::manager::hub::Again;

impl Registrar {
    pub(super) fn on_event(&mut self, event: CrdEvent) {
        match event {
            CrdEvent::Seen(name, meta, is_first) => {
                let before = self.known.crds.insert(name.clone(), meta.clone());
                if before.as_ref() == Some(&meta) {
                    return;
                }
                self.shared.served.crds_changed();
                self.look_again(&name, Some(&meta));
                // What comes with the first list has not changed since it was found.
                let is_news = !is_first || self.is_again;
                let changed =
                    before.map_or(is_news, |b| (&b.uid, b.generation) != (&meta.uid, meta.generation));
                self.on_child_kind(&name, changed);
                let is_anothers = meta.lease.as_ref().is_some_and(|lease| *lease != self.shared.lease);
                if is_anothers && let Some(orphan) = self.orphans.remove(&name) {
                    info!(crd = %name, lease = meta.lease, "another manager cares for it now");
                    self.others.insert(name.clone(), orphan);
                    self.drop_kind(&name);
                }
                if meta.is_labelled
                    && !self.is_ours(&name)
                    && !self.orphans.contains_key(&name)
                    && !self.is_gathering
                {
                    self.look_at_orphan(name);
                }
            }
            CrdEvent::Listed => self.known.is_whole = true,
            CrdEvent::Gone(name, uid) => {
                self.known.crds.remove(&name);
                self.shared.served.crds_changed();
                self.on_gone(&name, &uid);
                self.look_again(&name, None);
                self.on_child_kind(&name, true);
            }
        }
    }

    /// Looks at the packages that want a CRD, unless their last look saw as much of it.
    fn look_again(&mut self, name: &str, meta: Option<&Meta>) {
        for entry in &mut self.packages {
            let Some(position) = entry.position(name) else { continue };
            let seen = entry.crds[position].facts.as_ref();
            if entry.is_looking {
                entry.is_overtaken = true;
            } else if is_news(meta, seen) {
                entry.next = Some(Instant::now());
                entry.failures = 0;
            }
        }
    }

    fn is_ours(&self, crd: &str) -> bool {
        self.packages.iter().any(|p| p.position(crd).is_some())
    }

    fn look_at_orphan(&mut self, name: String) {
        let shared = Arc::clone(&self.shared);
        self.looks.spawn(async move {
            match shared.clients.own().get(&CRD, None, &name).await {
                Ok(Some(crd)) => Look::Orphan(crd),
                // Gone again; or its next event tells.
                Ok(None) | Err(_) => Look::Orphan(Value::Null),
            }
        });
    }

    /// A CRD is gone, and all its instances with it.
    pub(super) fn on_gone(&mut self, name: &str, uid: &str) {
        let mut was_known = self.orphans.remove(name).is_some() | self.former.remove(name).is_some();
        for entry in &mut self.packages {
            let Some(position) = entry.position(name) else { continue };
            let crd = &mut entry.crds[position];
            // Or it has been made anew already.
            if crd.facts.as_ref().is_some_and(|facts| facts.uid == uid) {
                *crd = Crd::default();
                was_known |= entry.is_published;
            }
        }
        if self.others.remove(name).is_some() {
            self.rebuild();
        }
        if !was_known {
            return;
        }
        info!(crd = %name, "gone");
        self.drop_kind(name);
    }

    /// The instances of a CRD are no concern of ours any more.
    fn drop_kind(&mut self, name: &str) {
        self.shared.hub.forget_instances(name);
        let gone = self.shared.index().drop_instances(&name.into());
        for key in gone {
            self.shared.forget(&key);
        }
        self.rebuild();
    }

    /// A CRD may be that of children.
    fn on_child_kind(&mut self, name: &str, has_changed: bool) {
        let Some((plural, group)) = name.split_once('.') else { return };
        let kinds = self.shared.registry().child_kinds();
        let of_group =
            kinds.into_iter().filter(|(api_version, _)| crate::crd::group_of(api_version) == group);
        let mut is_concerned = false;
        for (api_version, kind) in of_group {
            let served = self.shared.kinds.known(&api_version, &kind);
            if served.is_none_or(|served| served.plural != plural) {
                is_concerned = true;
                continue;
            }
            if has_changed {
                info!(crd = %name, %kind, "the CRD of children has changed");
                self.shared.kinds.forget(&api_version, &kind);
                self.shared.schemas.fetch_add(1, Ordering::Relaxed);
                self.shared.index().unsettle_kind(&api_version, &kind);
                self.shared.hub.watch_children(&self.shared, &api_version, &kind, Again::Relist);
                self.list_later(Later::Children(api_version, kind));
            }
        }
        if is_concerned {
            self.shared.hub.rediscover();
        }
    }
}
