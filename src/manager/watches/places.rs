//! In which namespaces children are watched. Without accounts a watch is of all namespaces, and for all packages. The account
//! of a package whose `Operator` names its namespaces has rights there alone, so the watches are one for each namespace.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::key::{Projection, WatchKey};
use super::{IfOpen, WatchState, Watches};
use crate::api::Gvk;
use crate::children::ReadError;
use crate::manager::index::{ChildPart, InstanceKey};
use crate::manager::operators::Settings;
use crate::manager::registry::Registered;

impl Watches {
    /// The namespaces that a package serves, if its `Operator` names them and it has an account of its own.
    pub(super) fn served_by_name(&self, package: &str) -> Option<Arc<Settings>> {
        if !self.effects.clients.has_accounts() {
            return None;
        }
        self.store.settings.get(package).filter(|settings| settings.names().is_some())
    }

    /// The watches that bring the children of a kind, of all kinds of instances.
    pub(super) fn keys_of(&self, gvk: &Gvk) -> Vec<WatchKey> {
        if !self.effects.clients.has_accounts() {
            return vec![WatchKey::children(gvk)];
        }
        let registry = self.store.registry();
        let with_kind = registry.iter().filter(|registered| registered.child_kinds.contains(gvk));
        with_kind.flat_map(|registered| self.keys_for(gvk, registered)).collect()
    }

    /// The watches that bring the children of a kind that instances of that kind have.
    fn keys_for(&self, gvk: &Gvk, registered: &Registered) -> Vec<WatchKey> {
        if !self.effects.clients.has_accounts() {
            return vec![WatchKey::children(gvk)];
        }
        let settings = self.served_by_name(&registered.package_name);
        let names = settings.as_ref().and_then(|settings| settings.names());
        let beyond = || registered.namespaces_of(gvk, self.store.kinds.known(gvk).as_deref());
        let Some((names, beyond)) = names.and_then(|names| Some((names, beyond()?))) else {
            return vec![WatchKey::children_of(gvk, registered, None)];
        };
        let mut all: BTreeSet<Box<str>> =
            names.iter().chain(beyond).map(|name| name.as_str().into()).collect();
        all.extend(self.set().unserved.get(&registered.crd).into_iter().flatten().cloned());
        all.iter().map(|namespace| WatchKey::children_of(gvk, registered, Some(namespace))).collect()
    }

    /// Whether a watch of children is another than it should be: its kind has turned out to have, or not to have, namespaces.
    pub(super) fn is_misplaced(&self, key: &WatchKey) -> bool {
        key.projection == Projection::Child && key.part.is_some() && !self.keys_of(&key.gvk).contains(key)
    }

    /// Opens the watches of children that are needed now, and closes the others: an `Operator` may name other namespaces than
    /// before.
    pub(in crate::manager) fn place_children(self: &Arc<Self>) {
        let kinds = self.store.registry().child_kinds();
        for gvk in &kinds {
            self.open_children(gvk, IfOpen::Keep);
        }
        self.keep_children(&kinds);
    }

    /// Watches the children of an instance that is being deleted in a namespace that is not served, so that
    /// the deletion can be completed. Returns whether they were not watched before.
    pub(in crate::manager) fn watch_deletion(
        self: &Arc<Self>,
        registered: &Registered,
        key: &InstanceKey,
    ) -> bool {
        let Some(namespace) = key.namespace.as_deref() else { return false };
        let settings = self.served_by_name(&registered.package_name);
        if settings.and_then(|settings| Some(settings.names()?.contains(namespace))).unwrap_or(true) {
            return false;
        }
        let crd = Arc::clone(&registered.crd);
        let is_new = self.set().unserved.entry(crd).or_default().insert(namespace.into());
        if is_new {
            for gvk in &registered.child_kinds {
                self.open_children(gvk, IfOpen::Keep);
            }
        }
        is_new
    }

    /// Whether the children of a kind are known that instances of that kind in that namespace have.
    pub(in crate::manager) fn children_state(
        &self,
        gvk: &Gvk,
        registered: &Registered,
        home: Option<&str>,
    ) -> WatchState {
        let keys = self.keys_for(gvk, registered);
        let mut is_home = false;
        let concerns = |key: &WatchKey| match key.namespace.as_deref() {
            None => true,
            Some(namespace) => home == Some(namespace) || registered.namespace_scope.has(namespace),
        };
        let mut states = Vec::new();
        for key in keys.iter().filter(|key| concerns(key)) {
            is_home |= key.namespace.is_none() || key.namespace.as_deref() == home;
            states.push(self.state_of(key));
        }
        if !is_home && let Some(home) = home {
            let reason =
                format!("the Operator {} does not serve the namespace {home}", registered.package_name);
            return WatchState::Unavailable(ReadError::Failed(reason));
        }
        worst(states)
    }

    /// Whether the children of a kind are known of all instances of a CRD, which are in the namespaces
    /// `homes`. The caller may have locked the index.
    pub(in crate::manager) fn children_state_of_crd(
        &self,
        gvk: &Gvk,
        crd: &str,
        homes: &HashSet<Option<Arc<str>>>,
    ) -> WatchState {
        if !self.effects.clients.has_accounts() {
            return self.state_of(&WatchKey::children(gvk));
        }
        let Some(registered) = self.store.registry().get(crd) else { return WatchState::Pending };
        let keys = self.keys_for(gvk, &registered);
        let is_watched = |namespace: Option<&str>| {
            namespace.is_none()
                || keys.iter().any(|key| key.namespace.is_none() || key.namespace.as_deref() == namespace)
        };
        // Children of instances elsewhere are not known.
        if homes.iter().any(|home| !is_watched(home.as_deref())) {
            return WatchState::Pending;
        }
        worst(keys.iter().map(|key| self.state_of(key)))
    }

    /// The parts of the children of a kind that open watches bring.
    pub(super) fn watched_parts(&self, gvk: &Gvk) -> Vec<ChildPart> {
        let set = self.set();
        let open = set.entries.iter().filter(|(key, entry)| {
            key.projection == Projection::Child && key.gvk == *gvk && !entry.is_closing
        });
        open.map(|(key, _)| key.child_part()).collect()
    }
}

/// The state of several watches together: the one that knows least decides.
fn worst(states: impl IntoIterator<Item = WatchState>) -> WatchState {
    let rank = |state: &WatchState| match state {
        WatchState::Watching => 0,
        WatchState::OtherVersion(_) => 1,
        WatchState::Unavailable(ReadError::KindMissing) => 2,
        WatchState::Unavailable(_) => 3,
        WatchState::Pending => 4,
    };
    states.into_iter().max_by_key(rank).unwrap_or(WatchState::Watching)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watch_that_knows_least_decides_the_state() {
        let refused = || WatchState::Unavailable(ReadError::Forbidden("403".into()));
        assert_eq!(worst([]), WatchState::Watching);
        assert_eq!(worst([WatchState::Watching, refused(), WatchState::Watching]), refused());
        assert_eq!(worst([refused(), WatchState::Pending]), WatchState::Pending);
    }
}
