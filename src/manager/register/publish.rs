//! Putting into force what is right: the registry of kinds, and the watches that it asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use super::entry::{Entry, contested_text};
use super::record::Record;
use super::{ORPHANED, Registrar, SPREAD, wanted};
use crate::children::package_of_crd_value;
use crate::crd;
use crate::manager::hub::Again;
use crate::manager::registry::{Registered, Registry};

/// What is to be listed once more.
#[derive(PartialEq, Eq)]
pub(super) enum Later {
    /// Instances, which are written from then on.
    Instances(Arc<str>),
    Children(String, String),
}

impl Registrar {
    pub(super) fn list_later(&mut self, what: Later) {
        self.later.retain(|(_, other)| *other != what);
        self.later.push((Instant::now() + SPREAD, what));
    }

    pub(super) fn list_once_more(&self, what: &Later) {
        match what {
            Later::Instances(crd) => {
                if let Some(registered) = self.shared.registry().get(crd) {
                    if registered.contested.is_none() {
                        self.shared.hold(crd, None);
                    }
                    self.shared.hub.watch_instances(&self.shared, &registered, Again::Relist);
                }
            }
            // It may be on record no more.
            Later::Children(api_version, kind)
                if self.shared.registry().has_child_kind(api_version, kind) =>
            {
                self.shared.hub.watch_children(&self.shared, api_version, kind, Again::Relist);
            }
            Later::Children(..) => {}
        }
    }

    /// Puts into force what can be.
    pub(super) fn publish(&mut self) {
        let ready: Vec<usize> = (0..self.packages.len())
            .filter(|index| !self.packages[*index].is_published && self.packages[*index].is_complete())
            .collect();
        for index in &ready {
            let entry = &mut self.packages[*index];
            entry.is_published = true;
            info!(package = %entry.package.name, "in force");
        }
        let orphans = self.adopt_orphans();
        if ready.is_empty() && orphans.is_empty() {
            return;
        }
        self.rebuild();
        let registry = self.shared.registry();
        let is_first = !std::mem::replace(&mut self.is_running, true);
        let mut kinds: BTreeMap<(String, String), bool> = BTreeMap::new();
        let mut entries: Vec<Arc<Registered>> = Vec::new();
        for index in ready {
            let entry = &mut self.packages[index];
            for (crd, resource) in entry.crds.iter_mut().zip(&entry.package.resources) {
                let name = resource.crd_name();
                let Some(registered) = registry.get(name) else { continue };
                for (api_version, kind) in &registered.child_kinds {
                    let reads = registered.reads_content(api_version, kind);
                    *kinds.entry((api_version.clone(), kind.clone())).or_default() |= reads;
                }
                let was_held = self.shared.held(name).is_some();
                let was_changed = std::mem::take(&mut crd.was_changed);
                if was_changed {
                    // What is listed before the new text is served everywhere may show no status.
                    self.shared.hold(name, Some("it has just been augmented".into()));
                }
                if was_changed || was_held {
                    self.later.push((Instant::now() + SPREAD, Later::Instances(name.into())));
                }
                entries.push(registered);
            }
        }
        for name in orphans {
            let Some(registered) = registry.get(&name) else { continue };
            for kind in &registered.child_kinds {
                kinds.entry(kind.clone()).or_default();
            }
            entries.push(registered);
        }
        for ((api_version, kind), reads) in kinds {
            // Those that are watched already were looked at without what this package reads of them.
            let again = if reads && !is_first { Again::Relist } else { Again::Keep };
            self.shared.hub.watch_children(&self.shared, &api_version, &kind, again);
        }
        for registered in entries {
            let again = if is_first { Again::Keep } else { Again::Relist };
            self.shared.hub.watch_instances(&self.shared, &registered, again);
        }
    }

    /// Takes in the CRDs that no package in force has; gives the names of the new ones.
    fn adopt_orphans(&mut self) -> Vec<String> {
        let (mut found, mut waiting, mut has_others) = (Vec::new(), Vec::new(), false);
        let may_wait = self.started.elapsed() < ORPHANED;
        for crd in std::mem::take(&mut self.labelled) {
            let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if self.is_in_force(&name) || self.orphans.contains_key(&name) {
                continue;
            }
            let is_awaited = |p: &Entry| p.verdict.is_none() && p.position(&name).is_some();
            if may_wait && self.packages.iter().any(is_awaited) {
                waiting.push(crd);
                continue;
            }
            let Some(kind) = crd::kind(&crd) else { continue };
            let record = Record::of(&crd);
            let operator = package_of_crd_value(&crd).unwrap_or_default();
            let registered = Arc::new(Registered {
                crd: name.as_str().into(),
                kind: self.shared.kinds.insert((&kind).into()),
                package: None,
                child_kinds: record.kinds,
                reach: record.reach,
                contested: None,
                inactive: Some(self.why_inactive(&name, &operator).into()),
            });
            if let Some(lease) = wanted::lease(&crd).filter(|lease| *lease != self.shared.lease) {
                if self.others.insert(name.clone(), registered).is_none() {
                    info!(crd = %name, %lease, "another manager cares for its instances: they are left to it");
                }
                has_others = true;
                continue;
            }
            warn!(crd = %name, "its package is not in force: instances are left as they are, and helped to go when they are deleted");
            self.others.remove(&name);
            self.orphans.insert(name.clone(), registered);
            found.push(name);
        }
        self.labelled = waiting;
        if has_others && found.is_empty() {
            self.rebuild();
        }
        found
    }

    /// The packages that are not active, each with the reason.
    pub(super) fn inactive(&self) -> Vec<String> {
        let inactive = self.packages.iter().filter(|entry| !entry.is_published);
        inactive.map(|entry| format!("package {}: {}", entry.package.name, entry.hindrance())).collect()
    }

    /// Why the package of a CRD is not active. `operator`: its name, as the CRD says.
    fn why_inactive(&self, crd: &str, operator: &str) -> String {
        let entry = self.packages.iter().find(|entry| entry.position(crd).is_some());
        let why = match entry {
            Some(entry) => entry.hindrance().to_owned(),
            None => match self.shared.monitor.broken().as_slice() {
                [] => format!("the manager {} was not given it", self.shared.lease),
                broken => format!("the manager {} could not load {}", self.shared.lease, broken.join(", ")),
            },
        };
        format!(
            "the package {operator} is not active, so children stay as they are and nothing repairs them: {why}"
        )
    }

    /// Says anew why packages are not active, where the reason has changed.
    pub(super) fn explain_orphans(&mut self) {
        let mut changed = Vec::new();
        for (name, orphan) in &self.orphans {
            let Some(entry) = self.packages.iter().find(|entry| entry.position(name).is_some()) else {
                continue;
            };
            let why: Arc<str> = self.why_inactive(name, &entry.package.name).into();
            if orphan.inactive.as_ref() != Some(&why) {
                changed.push((name.clone(), orphan.because(why)));
            }
        }
        if changed.is_empty() {
            return;
        }
        let names: Vec<String> = changed.iter().map(|(name, _)| name.clone()).collect();
        self.orphans.extend(changed.into_iter().map(|(name, orphan)| (name, Arc::new(orphan))));
        self.rebuild();
        for name in names {
            let keys: Vec<_> = self.shared.index().instances_of(&name).cloned().collect();
            for key in keys {
                self.shared.queue.add(key);
            }
        }
    }

    /// Looks whether something on record has come to be of no use; that is then taken out.
    pub(super) fn find_spent(&mut self, now: Instant) {
        let known = &self.known;
        for entry in self.packages.iter_mut().filter(|entry| entry.is_published && !entry.is_looking) {
            for (crd, resource) in entry.crds.iter_mut().zip(&entry.package.resources) {
                let is_due = crd.spent_at.is_some_and(|at| at <= now) && !crd.is_contested;
                let Some(facts) = crd.facts.as_ref().filter(|_| is_due) else { continue };
                let needed = Record::needed(resource, &self.shared.namespace);
                let spent = facts.record.spent(&needed, resource.crd_name(), &self.shared.index(), |group| {
                    known.has_group(group)
                });
                if !spent.is_nothing() {
                    entry.next = Some(now);
                }
                crd.on_spent(spent, now);
            }
        }
    }

    /// Only the record of a CRD has changed.
    pub(super) fn on_record(&mut self, index: usize, position: usize) {
        let entry = &self.packages[index];
        if !entry.is_published {
            return;
        }
        let crd = entry.package.resources[position].crd_name().to_owned();
        self.rebuild();
        self.watch_children_of(&crd);
        let keys: Vec<_> = self.shared.index().instances_of(&crd).cloned().collect();
        for key in keys {
            self.shared.queue.add(key);
        }
    }

    /// Of a kind that somebody has put on record nothing is known before it is watched.
    pub(super) fn watch_children_of(&self, crd: &str) {
        let Some(registered) = self.shared.registry().get(crd) else { return };
        for (api_version, kind) in &registered.child_kinds {
            self.shared.hub.watch_children(&self.shared, api_version, kind, Again::Keep);
        }
    }

    fn is_in_force(&self, crd: &str) -> bool {
        let is_published = |p: &Entry| p.is_published && p.position(crd).is_some();
        self.former.contains_key(crd) || self.packages.iter().any(is_published)
    }

    pub(super) fn on_orphan(&mut self, crd: &Value) {
        if package_of_crd_value(crd).is_some() {
            self.labelled.push(crd.clone());
        }
    }

    /// Swaps in a registry of what is in force now.
    pub(super) fn rebuild(&mut self) {
        let mut all: Vec<Arc<Registered>> = Vec::new();
        for entry in self.packages.iter().filter(|p| p.is_published) {
            for (index, (crd, resource)) in entry.crds.iter().zip(&entry.package.resources).enumerate() {
                let name = resource.crd_name();
                self.orphans.remove(name);
                self.former.remove(name);
                self.others.remove(name);
                let recorded = crd.facts.as_ref().map(|f| f.record.clone());
                let needed = Record::needed(resource, &self.shared.namespace);
                let record = recorded.into_iter().fold(needed, Record::and);
                all.push(Arc::new(Registered {
                    crd: name.into(),
                    kind: self.shared.kinds.insert((&resource.kind).into()),
                    package: Some((Arc::clone(&entry.package), index)),
                    child_kinds: record.kinds,
                    reach: record.reach,
                    contested: contested_text(name, &entry.package, crd).map(Into::into),
                    inactive: None,
                }));
            }
        }
        all.extend(self.orphans.values().chain(self.former.values()).cloned());
        let others = self.others.values().cloned().collect();
        self.shared.set_registry(Registry::new(all, others));
        self.shared.hub.keep_children(&self.shared, &self.shared.registry().child_kinds());
    }
}
