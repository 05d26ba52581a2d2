//! Publication: updates the registry, the watches and the index from the state of the CRDs. It computes the wanted
//! kinds each time and compares them with the published ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::{info, warn};

use super::published::{Change, Published};
use super::state::{CrdReconciler, First, GATHER, INACTIVE, Labelled, State};
use crate::api::Gvk;
use crate::children::crds::{ChildScope, CrdHistory};
use crate::manager::owned_kinds::run_kinds;
use crate::manager::registry::{Registered, Registry};
use crate::manager::watches::IfOpen;
use crate::package::Package;

impl CrdReconciler {
    /// Publishes what is ready, and reports the result of the first reconcile of each package.
    pub(super) fn publish(&self, state: &mut State) {
        let now = self.scheduler.clock.elapsed();
        let is_decided = state.is_decided();
        if is_decided || now >= GATHER {
            let mut activated = Vec::new();
            let State { packages, followed, .. } = &mut *state;
            for (index, package) in packages.iter_mut().enumerate() {
                if package.is_active || !package.is_complete() {
                    continue;
                }
                package.is_active = true;
                activated.push(index);
                if let Some(followed) = followed.get_mut(&index)
                    && let Some(former) = followed.former.take()
                {
                    self.watches.revisions.keep_former(&former.package);
                }
                let revision = package.package.revision();
                info!(package = %package.package.name, %revision, "package active");
            }
            for index in activated {
                state.hand_over_shared(index);
            }
            let revisions = &self.watches.revisions;
            let former = state.packages.iter().map(|package| {
                let infos = package.crds().iter().filter_map(CrdHistory::info);
                (package.package.name.clone(), infos.flat_map(|info| info.former.clone()).collect())
            });
            revisions.set_former_packages(former.collect());
            let names = state.packages.iter().map(|package| &*package.package.name);
            let earlier: BTreeMap<String, Vec<Arc<Package>>> =
                names.map(|name| (name.to_owned(), revisions.of(name))).collect();
            self.publish_kinds(state, &earlier);
            let earlier: Vec<_> = earlier.into_values().flatten().collect();
            self.scheduler.add_all(revisions.published(&earlier));
        }
        // The status of an Operator says why its package is not active: a package of a user does not keep the manager from
        // being ready.
        let given =
            state.packages.iter().enumerate().filter(|(index, _)| !state.followed.contains_key(index));
        let inactive = given.map(|(_, package)| package).filter(|package| !package.is_active);
        let inactive = inactive.map(|p| format!("package {}: {}", p.package.name, p.obstacle())).collect();
        self.effects.health.hindrances().inactive = inactive;
        if is_decided && let Some(first) = state.first.take() {
            let acceptances = || state.packages.iter().filter_map(|package| package.acceptance());
            let problems = acceptances().flat_map(|acceptance| &acceptance.problems).cloned().collect();
            let is_retrying = acceptances().any(|acceptance| acceptance.is_temporary);
            // The receiver may be gone.
            let _ = first.send(First { problems, is_retrying });
        }
    }

    /// Updates the registry and the watches. `earlier`: the earlier revisions that instances of each package
    /// still use.
    fn publish_kinds(&self, state: &mut State, earlier: &BTreeMap<String, Vec<Arc<Package>>>) {
        let (wanted, others) = self.wanted_kinds(state, earlier);
        for (crd, other) in others.iter().filter(|(crd, _)| !state.others.contains_key(*crd)) {
            let lease = state.labelled.get(crd).and_then(|labelled| labelled.lease.as_deref());
            info!(%crd, lease, kind = %other.kind, "another manager reconciles the instances of this CRD");
        }
        let is_first = state.published.is_empty();
        let mut changes: Vec<(Arc<Registered>, Change)> = Vec::new();
        let mut upgraded = BTreeSet::new();
        for (crd, published) in &wanted {
            let before = state.published.get(crd);
            if published.is_upgraded(before) {
                upgraded.insert(Arc::clone(crd));
            }
            let change = published.change(before);
            changes.extend(change.map(|change| (Arc::clone(&published.registered), change)));
        }
        for (_, gone) in state.published.iter().filter(|(crd, _)| !wanted.contains_key(*crd)) {
            changes.push((Arc::clone(&gone.registered), Change::Gone));
        }
        if changes.is_empty() && others.keys().eq(state.others.keys()) {
            return;
        }
        let registered: Vec<_> = wanted.values().map(|published| Arc::clone(&published.registered)).collect();
        let before = self.store.registry();
        self.store.set_registry(Registry::new(registered, others.values().cloned().collect()));
        let registry = self.store.registry();
        self.watches.keep_children(&registry.child_kinds());
        (state.published, state.others) = (wanted, others);
        // Instances are watched last: their children are known by then or are being listed.
        let mut kinds: BTreeMap<Gvk, IfOpen> = BTreeMap::new();
        for (registered, change) in changes.iter().filter(|(_, change)| *change != Change::Gone) {
            for kind in &registered.child_kinds {
                // The fields that this package reads of children that are watched already were not kept.
                let is_read = *change == Change::Added && !is_first && registered.reads_content(kind);
                let if_open = kinds.entry(kind.clone()).or_insert(IfOpen::Keep);
                if is_read {
                    *if_open = IfOpen::Relist;
                }
            }
        }
        let registered = || state.published.values().map(|published| &*published.registered);
        self.watches.watch_owned(&run_kinds(registered));
        for (kind, if_open) in kinds {
            self.watches.open_children(&kind, if_open);
        }
        let more_read = changes.iter().flat_map(|(registered, _)| {
            registry.more_read(&before, registered, upgraded.contains(&registered.crd))
        });
        for kind in more_read.collect::<BTreeSet<_>>() {
            self.watches.relist_children(&kind);
        }
        for (registered, change) in changes {
            self.publish_change(state, &registered, change, is_first);
            // No event queues the instances when only the templates of their package change.
            if upgraded.contains(&registered.crd) {
                self.scheduler.add_all(self.store.instances_of(&registered.crd));
            }
        }
    }

    fn publish_change(
        &self,
        state: &mut State,
        registered: &Arc<Registered>,
        change: Change,
        is_first: bool,
    ) {
        let crd = &registered.crd;
        match change {
            Change::Gone => {
                self.watches.close_instances(crd);
                let gone = self.store.index().drop_instances(crd);
                for key in gone {
                    self.watches.forget(&key);
                }
                return;
            }
            Change::Details => {
                self.scheduler.add_all(self.store.instances_of(crd));
                return;
            }
            Change::Added if registered.package.is_none() => {
                warn!(%crd, "package not active: its instances are not reconciled, and their deletion is completed");
            }
            // The package may ask for another version of the instances.
            Change::Upgraded => {
                self.watches.open_instances(registered, IfOpen::Keep);
                return;
            }
            Change::Added => {}
            Change::Spec => self.store.schema_changed(),
        }
        let histories = state.packages.iter_mut().filter_map(|package| {
            let position = package.position(crd).filter(|_| package.is_active)?;
            let has_status = package.crds()[position].info().is_some_and(|info| info.has_status);
            Some((package.crd_mut(position).take_spec_written(), has_status))
        });
        let (spec_written, has_status) = histories.last().unwrap_or_default();
        if let Some(conflict) = &registered.crd_conflict {
            self.store.hold(crd, (!has_status).then(|| Arc::clone(conflict)));
        } else if spec_written {
            // Instances that are listed before all API servers serve the new schema may show no status.
            self.store.hold(crd, Some("its CRD has just been changed".into()));
        }
        let if_open = if is_first { IfOpen::Keep } else { IfOpen::Relist };
        self.watches.open_instances(registered, if_open);
        if change == Change::Spec || spec_written || self.store.held(crd).is_some() {
            self.relist_later(state, crd, None);
        }
    }

    /// The kinds whose instances are to be reconciled, and those of other managers.
    fn wanted_kinds(
        &self,
        state: &State,
        earlier: &BTreeMap<String, Vec<Arc<Package>>>,
    ) -> (BTreeMap<Arc<str>, Published>, BTreeMap<String, Arc<Registered>>) {
        let (mut wanted, mut others) = (BTreeMap::new(), BTreeMap::new());
        for package in state.shown() {
            for (index, (crd, resource)) in package.crds().iter().zip(&package.package.resources).enumerate()
            {
                if state.is_gone_from(package, resource.crd_name()) {
                    continue;
                }
                let of_package = earlier.get(&*package.package.name).into_iter().flatten();
                let earlier: Vec<_> = of_package
                    .filter_map(|earlier| Some((Arc::clone(earlier), earlier.position(resource.crd_name())?)))
                    .collect();
                let records = earlier.iter().map(|(package, index)| &package.resources[*index]);
                let records = records.map(|resource| ChildScope::needed(resource, &self.namespace));
                let records = records.chain(crd.info().map(|info| info.record.clone()));
                let record = records.fold(ChildScope::needed(resource, &self.namespace), ChildScope::and);
                let registered = Registered {
                    crd: resource.crd_name().into(),
                    kind: self.store.kinds.insert(resource.kind.clone()),
                    package_name: package.package.name.as_str().into(),
                    former: crd.info().map(|info| info.former.as_slice().into()).unwrap_or_default(),
                    package: Some((Arc::clone(&package.package), index)),
                    is_staged: self.follows,
                    earlier,
                    child_kinds: record.kinds,
                    namespace_scope: record.namespaces,
                    has_runs: record.has_runs,
                    crd_conflict: package.conflict_message(index).map(Into::into),
                    inactive: None,
                };
                let spec = crd.info().map(|info| (info.uid.clone(), info.generation));
                wanted.insert(
                    Arc::clone(&registered.crd),
                    Published { registered: Arc::new(registered), spec },
                );
            }
        }
        let may_wait = self.scheduler.clock.elapsed() < INACTIVE;
        for (name, labelled) in &state.labelled {
            let is_awaited =
                state.packages.iter().any(|p| p.acceptance().is_none() && p.position(name).is_some())
                    || state.awaited.contains(&labelled.package);
            if wanted.contains_key(&**name) || (may_wait && is_awaited) {
                continue;
            }
            let registered = Arc::new(Registered {
                crd: name.as_str().into(),
                kind: self.store.kinds.insert(labelled.kind.clone()),
                package_name: labelled.package.as_str().into(),
                former: labelled.former.clone(),
                package: None,
                is_staged: false,
                earlier: Vec::new(),
                child_kinds: labelled.record.kinds.clone(),
                namespace_scope: labelled.record.namespaces.clone(),
                has_runs: labelled.record.has_runs,
                crd_conflict: None,
                inactive: Some(self.why_inactive(state, name, labelled).into()),
            });
            if labelled.lease.as_ref().is_some_and(|lease| *lease != self.lease) {
                others.insert(name.clone(), registered);
            } else {
                let spec = Some((labelled.version.uid.clone(), labelled.generation));
                wanted.insert(Arc::clone(&registered.crd), Published { registered, spec });
            }
        }
        (wanted, others)
    }

    /// Why the package of a CRD is not active.
    fn why_inactive(&self, state: &State, crd: &str, labelled: &Labelled) -> String {
        let (package, lease) = (&labelled.package, &self.lease);
        let given = state.packages.iter().find(|package| package.position(crd).is_some());
        let why = match (given, &*self.effects.health.hindrances().broken) {
            (Some(given), _) => given.obstacle().to_owned(),
            (None, _) if self.follows => {
                format!(
                    "no Operator of the cluster brings it; `operetta install` or an Operator {package} does"
                )
            }
            (None, []) => format!("the manager {lease} was not given it"),
            (None, broken) => format!("the manager {lease} could not load {}", broken.join(", ")),
        };
        format!(
            "the package {package} is not active, so children stay as they are and nothing repairs them: {why}"
        )
    }
}
