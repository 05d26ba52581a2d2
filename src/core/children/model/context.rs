//! What an evaluation reads, and what it may cost.

use std::sync::Arc;

use super::item::Item;
use super::origins::{Origin, Origins};
use super::snapshot::Snapshot;
use crate::package::Child;
use crate::template::Budget;

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
}

impl<'a> Context<'a> {
    /// A context that evaluates the newest of the origins.
    pub fn new(snapshot: &'a Snapshot, origins: &'a Origins<'a>, budget: Budget) -> Self {
        Self { snapshot, origins, origin: origins.newest(), budget: Arc::new(budget) }
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
