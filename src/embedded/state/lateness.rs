//! How late changes are known. On a real server the authorizer, the admission plugin of policies and the handler of custom resources
//! follow watches of their own, and the garbage collector and the controller of namespaces have queues. Each delay follows from a
//! seed and what it is about, so that other requests change none. Nothing waits in an API in which nothing has changed lately.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::created::{mixed, place};
use super::policies::{BINDINGS, POLICIES};
use super::rights::RESOURCES;
use super::store::{Event, Store};
use crate::crd::CRDS;

/// The most milliseconds by which a watch is late.
const WATCH: u64 = 300;

/// The most milliseconds until policies count: the server looks for new ones each second.
const POLICY: u64 = 1000;

/// The most milliseconds until a controller acts.
const CONTROLLER: u64 = 3000;

/// The delays of a seed, and the changes that are not known yet.
#[derive(Debug, Clone)]
pub(crate) struct Lateness {
    seed: u64,
    /// The roles, bindings and policies that are known. Other objects are as they were in the beginning.
    pub(crate) known: Store,
    /// The version of the last change whose time was noted.
    noted: u64,
    /// What has changed, by the time at which it is known.
    coming: BTreeMap<(Timestamp, u64), Event>,
}

impl Lateness {
    /// All that is in the store is known.
    pub(crate) fn new(seed: u64, store: &Store) -> Self {
        Self { seed, known: store.clone(), noted: store.version(), coming: BTreeMap::new() }
    }

    /// Notes when the changes since the last call are known, and learns those that are by now. Returns the keys of the CRDs among
    /// these.
    pub(super) fn follow(&mut self, store: &Store, now: Timestamp) -> Vec<Arc<str>> {
        let Some(events) = store.since(self.noted) else {
            // Too much happened: all is known.
            *self = Self::new(self.seed, store);
            return store.range(CRDS, "", None).map(|(key, _)| key.clone()).collect();
        };
        self.noted = store.version();
        let is_followed =
            |resource: &str| RESOURCES.contains(&resource) || [POLICIES, BINDINGS, CRDS].contains(&resource);
        for event in events.filter(|event| is_followed(&event.resource)) {
            self.coming.insert((self.of_watch(&event.resource, now), event.version), event.clone());
        }
        let later = self.coming.split_off(&(now, u64::MAX));
        let arrived = std::mem::replace(&mut self.coming, later);
        let (crds, others): (Vec<Event>, Vec<Event>) =
            arrived.into_values().partition(|event| &*event.resource == CRDS);
        for event in &others {
            self.known.follow(event);
        }
        crds.into_iter().map(|event| event.key).collect()
    }

    /// When the next change is known.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.coming.first_key_value().map(|((time, _), _)| *time)
    }

    /// When a watch of a resource tells of a change of now. It is always as late, so changes keep their order.
    pub(crate) fn of_watch(&self, resource: &str, now: Timestamp) -> Timestamp {
        let is_policy = [POLICIES, BINDINGS].contains(&resource);
        self.after(if is_policy { POLICY } else { WATCH }, "watch", resource, now)
    }

    /// When a controller looks at an object that changes now.
    pub(crate) fn of_controller(&self, resource: &str, key: &str, now: Timestamp) -> Timestamp {
        self.after(CONTROLLER, resource, key, now)
    }

    fn after(&self, most: u64, what: &str, key: &str, now: Timestamp) -> Timestamp {
        let millis = 1 + mixed(self.seed, place(what, key)) % most;
        let delay = SignedDuration::from_millis(i64::try_from(millis).unwrap_or_default());
        now.checked_add(delay).unwrap_or(now)
    }
}
