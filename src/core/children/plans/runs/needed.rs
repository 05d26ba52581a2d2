//! Which rollout an instance needs.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Runs;
use crate::children::model::{Context, Item, NEWEST, Target};
use crate::children::names;
use crate::children::plans::history::StoredOrigin;
use crate::children::plans::past::Ordered;
use crate::plan::{self, Change, Selected};
use crate::template::Expr;

impl Runs<'_> {
    /// The rollout that the instance needs.
    pub(super) fn needed(&self, ordered: &Ordered<'_>) -> Option<Selected> {
        let (origin, current) = (self.past.origin, &self.past.current);
        // After a handover of the kind, the revision of the former package is no upgrade by itself: targets
        // that differ are.
        let is_other_package = |rolled_out: &StoredOrigin| {
            let named = |stored: &&Value| stored["metadata"]["name"] == rolled_out.name;
            let stored = self.plans.origins.iter().find(named);
            let package = stored.and_then(|stored| stored["metadata"]["labels"][names::OPERATOR].as_str());
            let has_had = |package: &&str| self.ctx.snapshot.owner.has_had(package);
            package.filter(has_had).is_some_and(|package| *package != *origin.package.name)
        };
        let in_use: Vec<_> = self
            .past
            .used()
            .map(|origin| {
                let compared = origin.compared();
                let revision = if is_other_package(origin) { &current.revision } else { compared.revision };
                plan::ComparedOrigin { revision, ..compared }
            })
            .collect();
        let engine = &origin.package.engine;
        let scope = &self.target.scope;
        let holds = |when: &Expr| engine.truthy(when, scope).unwrap_or(false);
        let rollouts = self.past.history.rollouts();
        let unfinished = rollouts.first().filter(|run| !run.has_rolled_out());
        plan::select(&Change {
            unfinished: unfinished.and_then(|run| Some(run.status.as_ref()?.plans.as_slice())),
            plans: &origin.resource.plans,
            newest: current.compared(),
            in_use: &in_use,
            initial: !ordered.has_previous,
            changed_children: &changed_children(self.ctx, self.target, self.ctx.origins.rolled_out()),
            holds: &holds,
        })
    }

    /// Whether a child that the steps of rollouts name reads a ref.
    pub(super) fn is_read(&self, id: &str) -> bool {
        let resource = self.past.origin.resource;
        let by_steps = plan::rollout_children(&resource.plans);
        let mut children = resource.children.iter().filter(|child| by_steps.contains(&child.id));
        children.any(|child| child.reads_refs.iter().any(|read| read == id))
    }
}

/// The children whose target is another than that which was rolled out.
fn changed_children(ctx: &Context<'_>, target: &Target, previous: Option<usize>) -> BTreeSet<String> {
    if previous == Some(NEWEST) {
        return BTreeSet::new();
    }
    let id = |number: usize| ctx.origins.child_id(number).to_owned();
    let in_newest: BTreeSet<&str> = target.newest.iter().map(|member| member.name.as_str()).collect();
    // The absence of an object is no change of its target: a lost one has its plan, and any other is created
    // again.
    let is_same =
        |item: &Item| target.is_newest(item) || Some(item.origin) == previous && target.keeps_target(item);
    let mut changed = BTreeSet::new();
    for item in &target.items {
        if !is_same(item) || !in_newest.contains(item.name.as_str()) {
            changed.insert(id(item.child));
        }
    }
    changed
}
