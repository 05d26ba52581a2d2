//! Watches for refs: each for as long as somebody reads what it brings.
//!
//! One object that is read by name is watched by name, so that neither the objects beside it nor their
//! traffic concern us. A connection each for thousands of names would be worse: past some number of them,
//! names of one namespace, and then of the cluster, share a watch of the kind. It keeps what is asked for.

mod source;
mod stream;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Shared;
use super::index::InstanceKey;
use super::watch::Watch;
use crate::children::{Found, Want};
use source::{Source, SourceKey};

/// All watches for refs, and who reads them.
#[derive(Default)]
pub(super) struct Refs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sources: HashMap<SourceKey, Source>,
    /// Which source brings what is wanted.
    routes: HashMap<Want, SourceKey>,
    wants: HashMap<InstanceKey, Vec<Want>>,
}

impl Refs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of what an instance wants. Pending until [`Refs::follow`] was told that it does.
    pub(super) fn find(&self, key: &InstanceKey, want: &Want) -> Found {
        let state = self.state();
        if !state.wants.get(key).is_some_and(|wants| wants.contains(want)) {
            return Found::Pending;
        }
        let source = state.routes.get(want).and_then(|route| state.sources.get(route));
        source.map_or(Found::Pending, |source| source.find(want))
    }

    /// From now on changes of these objects, and no others, run the instance. `true` if some of them were
    /// not followed before: then they are to be looked at again.
    pub(super) fn follow(&self, shared: &Arc<Shared>, key: &InstanceKey, wants: &[Want]) -> bool {
        let mut state = self.state();
        let before = state.wants.get(key).map(Vec::as_slice).unwrap_or_default();
        if before == wants {
            return false;
        }
        let new: Vec<Want> = wants.iter().filter(|want| !before.contains(want)).cloned().collect();
        let old: Vec<Want> = before.iter().filter(|want| !wants.contains(want)).cloned().collect();
        for want in &new {
            state.begin(shared, key, want);
        }
        for want in &old {
            state.end(key, want);
        }
        if wants.is_empty() {
            state.wants.remove(key);
        } else {
            state.wants.insert(key.clone(), wants.to_vec());
        }
        !new.is_empty()
    }

    /// All watches.
    pub(super) fn view(&self) -> Vec<Arc<Watch>> {
        let mut all: Vec<_> = self.state().sources.values().map(|source| Arc::clone(&source.watch)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Ends all watches.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.routes.clear();
        state.wants.clear();
        state.sources.clear();
    }

    /// Changes a source, unless it is gone meanwhile; runs who is concerned.
    fn change(
        &self,
        shared: &Shared,
        (key, generation): (&SourceKey, u64),
        change: impl FnOnce(&mut Source) -> HashSet<InstanceKey>,
    ) -> bool {
        let mut state = self.state();
        let Some(source) = state.sources.get_mut(key).filter(|source| source.generation == generation) else {
            return false;
        };
        let concerned = change(source);
        drop(state);
        for key in concerned {
            shared.queue.add(key);
        }
        true
    }
}

impl State {
    fn begin(&mut self, shared: &Arc<Shared>, key: &InstanceKey, want: &Want) {
        let route = match self.routes.get(want) {
            Some(route) => route.clone(),
            None => source::route(want, |like| self.sources.keys().filter(|key| like(key)).count()),
        };
        let source = self.sources.entry(route.clone()).or_insert_with(|| {
            Source::start(route.select.is_none(), |generation| stream::spawn(shared, &route, generation))
        });
        if source.add(want, key) {
            // The list of a watch that is shared has passed by what nobody asked for then.
            stream::fill(shared, &route, source.generation, want);
        }
        self.routes.insert(want.clone(), route);
    }

    fn end(&mut self, key: &InstanceKey, want: &Want) {
        let Some(route) = self.routes.get(want) else { return };
        let Some(source) = self.sources.get_mut(route) else { return };
        if source.remove(want, key) {
            if source.is_idle() {
                self.sources.remove(route);
            }
            self.routes.remove(want);
        }
    }
}
