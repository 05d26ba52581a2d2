//! The order of the writes of an instance with plans: what no rollout has reached waits for the run that comes to it.

use std::collections::HashSet;

use crate::children::model::{Block, Finding, Item, NEWEST, Origins, Target};
use crate::children::write_order::{Graph, WriteOrder};

/// The graph of dependencies, within what runs have reached.
pub(super) struct RunOrder<'t> {
    graph: Graph<'t>,
    origins: &'t Origins<'t>,
    /// What the items wait for that no rollout has reached; `None` if the newest origin is rolled out.
    unreached: Option<String>,
    /// The items that keep what they have until a run comes to them.
    kept: Kept,
    /// What pruning waits for.
    pruning: Option<String>,
    /// What the runs wait for.
    findings: Vec<Finding>,
}

/// Items that keep what they have until a run comes to them.
#[derive(Default)]
pub(super) struct Kept {
    /// The names of items that read an object which has changed since their origin was rolled out.
    pub(super) items: HashSet<String>,
    /// The names of items that a step of an active run may apply: they wait for no run, reached by a rollout
    /// or not.
    pub(super) permitted: HashSet<String>,
    /// The names of items that a step of an active run names by their key.
    pub(super) named: HashSet<String>,
    /// The run that the kept items wait for.
    pub(super) awaited: String,
}

impl<'t> RunOrder<'t> {
    pub(super) fn new(
        origins: &'t Origins<'t>,
        target: &'t Target,
        unreached: Option<String>,
        kept: Kept,
        pruning: Option<String>,
        findings: Vec<Finding>,
    ) -> Self {
        Self { graph: Graph::of(origins, target), origins, unreached, kept, pruning, findings }
    }

    /// Whether a run has to come to an item before it is created or changed.
    fn is_unreached(&self, item: &Item) -> bool {
        item.origin == NEWEST && self.origins.memory(&item.name).origin.is_none()
    }
}

impl WriteOrder for RunOrder<'_> {
    fn awaited(&self, item: &Item) -> Option<Block> {
        if self.kept.permitted.contains(&item.name) {
            return self.graph.awaited(item);
        }
        if self.kept.items.contains(&item.name) {
            return Some(Block::Run(self.kept.awaited.clone()));
        }
        match &self.unreached {
            Some(run) if self.is_unreached(item) => Some(Block::Run(run.clone())),
            // An item that a rollout has reached is maintained at any time; only its creation and changes
            // follow the order.
            _ => self.graph.awaited(item),
        }
    }

    fn awaited_by_child(&self, number: usize) -> Option<Block> {
        self.graph.awaited_by_child(number)
    }

    fn awaited_by_pruning(&self) -> Option<Block> {
        self.pruning.clone().map(Block::Run)
    }

    fn is_named(&self, item: &Item) -> bool {
        self.kept.named.contains(&item.name)
    }

    fn findings(&self) -> Vec<Finding> {
        self.findings.clone()
    }
}
