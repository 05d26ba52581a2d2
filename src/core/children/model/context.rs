//! What an evaluation reads, and what it may cost.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::item::Item;
use super::observed::Observed;
use super::origins::{Origin, Origins};
use super::snapshot::Snapshot;
use crate::package::Child;
use crate::reach::Reach;
use crate::template::Budget;

/// What expressions read of the live objects of a snapshot, parsed once for all targets of a decision. By the address of
/// the object, which the snapshot keeps.
#[derive(Debug, Clone, Default)]
pub(in crate::children) struct LiveValues(Arc<OnceLock<HashMap<usize, Arc<Value>>>>);

impl LiveValues {
    /// The values of these objects; those of the first call count.
    pub(in crate::children) fn parse<'o>(
        &self,
        objects: impl Iterator<Item = &'o Arc<Observed>>,
        value_of: impl Fn(&Observed) -> Value,
    ) {
        self.0.get_or_init(|| {
            objects.map(|object| (Arc::as_ptr(object).addr(), Arc::new(value_of(object)))).collect()
        });
    }

    /// The value of an object, if it is one of the snapshot.
    pub(in crate::children) fn get(&self, object: &Observed) -> Option<Arc<Value>> {
        self.0.get()?.get(&std::ptr::from_ref(object).addr()).cloned()
    }
}

/// What an evaluation reads, and what it may cost.
#[derive(Debug, Clone)]
pub struct Context<'a> {
    /// What is known of the instance.
    pub snapshot: &'a Snapshot,
    /// What all items are rendered from.
    pub origins: &'a Origins<'a>,
    /// The origin that is evaluated: that of the item that is rendered, otherwise the newest.
    pub origin: Origin<'a>,
    /// What all evaluations of a decision may use together.
    pub budget: Arc<Budget>,
    /// The live objects, parsed.
    pub(in crate::children) live: LiveValues,
}

impl<'a> Context<'a> {
    /// A context that evaluates the newest of the origins.
    pub fn new(snapshot: &'a Snapshot, origins: &'a Origins<'a>, budget: Budget) -> Self {
        let (origin, live) = (origins.newest(), LiveValues::default());
        Self { snapshot, origins, origin, budget: Arc::new(budget), live }
    }

    /// How far the objects of the origin may reach.
    pub(in crate::children) fn reach(&self) -> Reach<'a> {
        self.reach_of(self.origin)
    }

    /// How far the objects of an origin may reach.
    pub(in crate::children) fn reach_of(&self, origin: Origin<'a>) -> Reach<'a> {
        let snapshot = self.snapshot;
        Reach {
            manager: &snapshot.operator_namespace,
            closed: &snapshot.closed,
            home: origin.namespace(),
            powers: &origin.package.powers,
        }
    }

    /// This context with live objects of the same snapshot that are parsed already.
    pub(in crate::children) fn with_live(self, live: &LiveValues) -> Self {
        Self { live: live.clone(), ..self }
    }

    /// This context for the origin at a position.
    pub(in crate::children) fn at(&self, position: usize) -> Self {
        Self { origin: self.origins.at(position), ..self.clone() }
    }

    /// The child of an item, as its origin has it.
    pub(in crate::children) fn child(&self, item: &Item) -> &'a Child {
        self.origins.child_of(item.origin, item.child)
    }
}
