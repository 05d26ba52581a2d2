//! Whether a child may be written now, or what blocks it.
//!
//! A [`WriteOrder`] says in which order children are created and changed: the graph of dependencies, or the current step of a
//! run. [`Gates`] adds the limits that apply to every order. Repairing drift is never subject to an order.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::Value;

use super::apply::failure;
use super::model::{
    Block, ChildError, Context, Difference, Drift, Finding, Item, NEWEST, Origins, ReconcileState, Target,
    TargetChange,
};
use crate::package::MaxUnavailable;

/// Whether a child may be written now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Permit {
    /// The child may be written.
    Now,
    /// The child may not be written, for this reason.
    Blocked(Block),
}

/// In which order children are created and changed.
pub(crate) trait WriteOrder {
    /// What must come before the item is created or gets a new desired object; `None` if nothing. It is also asked about
    /// items that have no value.
    fn awaited(&self, item: &Item) -> Option<Block>;

    /// What must come before a child of which not even the number of members is known; `None` if nothing.
    fn awaited_by_child(&self, number: usize) -> Option<Block>;

    /// What must come before objects that are not in the target are pruned; `None` if nothing. They are pruned only once
    /// all of the target is applied in any case.
    fn awaited_by_pruning(&self) -> Option<Block> {
        None
    }

    /// Whether `maxUnavailable` does not block the item, because a step names this very member.
    fn is_named(&self, _: &Item) -> bool {
        false
    }

    /// The findings of the order itself.
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
}

/// The order of the dependency graph: a child waits until those that it depends on are ready.
pub(crate) struct Graph<'t> {
    origins: &'t Origins<'t>,
    target: &'t Target,
    /// Members by child and key.
    by_key: HashMap<(usize, &'t Value), &'t Item>,
    /// The first member of a child that is not applied and ready.
    unready: HashMap<usize, &'t Item>,
}

impl<'t> Graph<'t> {
    /// The graph of a target.
    pub(super) fn of(origins: &'t Origins<'t>, target: &'t Target) -> Self {
        let mut graph = Self { origins, target, by_key: HashMap::new(), unready: HashMap::new() };
        if !origins.has_dependencies() {
            return graph;
        }
        for item in &target.items {
            if let Some(key) = &item.key {
                graph.by_key.insert((item.child, key), item);
            }
            if !item.is_settled() {
                graph.unready.entry(item.child).or_insert(item);
            }
        }
        graph
    }

    /// What an item of a child waits for. The item's origin says what the child depends on.
    fn awaited_by(
        &self,
        (origin, number): (usize, usize),
        key: Option<&Value>,
        in_group: bool,
    ) -> Option<String> {
        let child = self.origins.child_at(origin, number)?;
        let group = child.group.filter(|_| in_group);
        child.depends_on.iter().find_map(|index| {
            let other = &self.origins.at(origin).resource.children[*index];
            let is_in_group = group.is_some() && other.group == group;
            self.awaited_of(self.origins.number_at(origin, *index), key, is_in_group)
        })
    }

    fn awaited_of(&self, dependency: usize, key: Option<&Value>, is_in_group: bool) -> Option<String> {
        if self.target.open.contains_key(&dependency) {
            return Some(self.origins.child_id(dependency).to_owned());
        }
        // Between forEach children with the same keys, an edge is key by key.
        let same = key.and_then(|key| self.by_key.get(&(dependency, key)).copied());
        let blocking = match same {
            Some(one) => (!one.is_settled()).then_some(one),
            // Within a group, a child does not depend on members with other keys.
            None if is_in_group && key.is_some() => None,
            None => self.unready.get(&dependency).copied(),
        };
        blocking.map(|other| format!("{} ({})", other.name, other.unready()))
    }
}

impl WriteOrder for Graph<'_> {
    fn awaited(&self, item: &Item) -> Option<Block> {
        self.awaited_by((item.origin, item.child), item.key.as_ref(), true).map(Block::Dependency)
    }

    fn awaited_by_child(&self, number: usize) -> Option<Block> {
        self.awaited_by((NEWEST, number), None, false).map(Block::Dependency)
    }
}

/// Everything that may block a write: a [`WriteOrder`], and limits that apply to every order.
pub(super) struct Gates<'a> {
    ctx: &'a Context<'a>,
    order: &'a dyn WriteOrder,
    state: &'a ReconcileState,
    now: Duration,
    /// Whether a dry run of one of the changes was refused, so that none of them is made.
    is_dry_run_refused: bool,
    /// Whether nothing is written, because the instance is paused.
    pub(super) is_paused: bool,
    /// The turns of each limited child.
    turns: BTreeMap<usize, Turns>,
}

impl<'a> Gates<'a> {
    /// `changes`: all items that are to be created or changed; `limits`: see [`max_unavailable`].
    pub(super) fn new(
        ctx: &'a Context<'a>,
        order: &'a dyn WriteOrder,
        target: &Target,
        changes: &[&Item],
        limits: &BTreeMap<usize, usize>,
        (state, now): (&'a ReconcileState, Duration),
    ) -> Self {
        let is_dry_run_refused = changes.iter().any(|item| {
            let failure = failure(ctx, target, item, state);
            failure.is_some_and(|failure| failure.is_dry_run && failure.rest(now).is_some())
        });
        let turns = limits.iter().map(|(child, limit)| (*child, Turns::of(target, *child, *limit))).collect();
        Self { ctx, order, state, now, is_dry_run_refused, is_paused: false, turns }
    }

    /// Whether an item that differs may be written now. A create or update that is permitted uses up one of the members
    /// that may be unavailable.
    pub(super) fn permit(&mut self, target: &Target, item: &Item, difference: Difference) -> Permit {
        let blocked = match difference {
            _ if self.is_paused => return Permit::Blocked(Block::Paused),
            _ if item.lost.is_some() => item.lost.clone().map(Block::Lost),
            _ if item.is_later => Some(Block::Size),
            Difference::Drifted(drift) => repair_block(item, drift, self.state, self.now),
            _ if self.is_dry_run_refused => Some(Block::DryRun),
            _ => self.order.awaited(item),
        };
        let backoff = || failure(self.ctx, target, item, self.state)?.rest(self.now).map(Block::Backoff);
        let blocked = blocked.or_else(backoff).or_else(|| self.limit(item, difference));
        blocked.map_or(Permit::Now, Permit::Blocked)
    }

    /// A created member is as unavailable as an updated one, but is never blocked. An update that makes nothing unavailable
    /// takes no turn.
    fn limit(&mut self, item: &Item, difference: Difference) -> Option<Block> {
        let is_update = difference == Difference::Outdated;
        if !difference.is_change() {
            return None;
        }
        let mut turns = self.turns.get_mut(&item.child).filter(|_| !is_update || !item.stays_available());
        if is_update
            && let Some(turns) = turns.as_ref().filter(|turns| turns.left == 0)
            && !self.order.is_named(item)
        {
            return Some(Block::MaxUnavailable(turns.holder.clone()));
        }
        if is_update
            && let Some(change) = TargetChange::of_item(self.ctx, item)
            && let Some(rest) = self.state.oscillation().held(&change, self.now)
        {
            return Some(Block::Oscillation(rest));
        }
        if let Some(turns) = &mut turns {
            turns.left = turns.left.saturating_sub(1);
            turns.holder.get_or_insert_with(|| format!("{}, which is being changed", item.name));
        }
        None
    }
}

/// What blocks the repair of an item: recent or frequent repairs of it.
pub(super) fn repair_block(
    item: &Item,
    drift: Drift,
    state: &ReconcileState,
    now: Duration,
) -> Option<Block> {
    let object = &item.observed.as_ref()?.object;
    match drift {
        Drift::FieldsLost => state.corrections(object)?.rest(now).map(Block::Conflict),
        Drift::ForeignFields | Drift::Unexplained => state.recheck_rest(object, now).map(Block::Recheck),
        Drift::FormerPackage => None,
    }
}

/// How many members of each child may be unavailable, where that is limited. A limit that has no value lets no member be
/// changed, and is reported.
pub(super) fn max_unavailable(
    ctx: &Context<'_>,
    target: &Target,
    findings: &mut Vec<Finding>,
) -> BTreeMap<usize, usize> {
    let mut limits = BTreeMap::new();
    for (index, child) in ctx.origin.resource.children.iter().enumerate() {
        let Some(max) = &child.max_unavailable else { continue };
        let members = target.items.iter().filter(|item| item.child == index).count();
        let name = || format!("maxUnavailable of {}", child.id);
        let limit = match max {
            MaxUnavailable::Text(text) => {
                ctx.budget.about(&name());
                match ctx.origin.package.engine.eval_text(text, &target.scope) {
                    Ok(Some(value)) => MaxUnavailable::from_value(&value).and_then(|max| max.of(members)),
                    // A value that is left out sets no limit.
                    Ok(None) => continue,
                    Err(error) => {
                        findings.push(Finding::no_value(&name(), &ChildError::Eval(error), target));
                        limits.insert(index, 0);
                        continue;
                    }
                }
            }
            max => max.of(members),
        };
        if limit.is_none() {
            findings.push(Finding::InvalidMaxUnavailable { child: child.id.clone() });
        }
        limits.insert(index, limit.unwrap_or(0));
    }
    limits
}

/// The turns of the members of a child with `maxUnavailable`.
struct Turns {
    /// How many more may become unavailable now.
    left: usize,
    /// The first unavailable member, and why it is unavailable.
    holder: Option<String>,
}

impl Turns {
    fn of(target: &Target, child: usize, limit: usize) -> Self {
        let members = target.items.iter().filter(|item| item.child == child);
        let is_terminating = |item: &Item| item.observed.as_ref().is_some_and(|o| o.terminating);
        let is_unavailable =
            |item: &&Item| item.ready.is_err() && (item.is_current() || is_terminating(item));
        let unavailable: Vec<&Item> = members.filter(is_unavailable).collect();
        let holder = unavailable
            .first()
            .map(|item| format!("{}, which is not available ({})", item.name, item.unready()));
        Self { left: limit.saturating_sub(unavailable.len()), holder }
    }
}

/// Which unavailable member an outdated one waits for, if `maxUnavailable` members are unavailable.
pub(super) fn turn_holder(ctx: &Context<'_>, target: &Target, item: &Item) -> Option<String> {
    if item.observed.is_none() || item.is_current() || item.stays_available() {
        return None;
    }
    let limit = *max_unavailable(ctx, target, &mut Vec::new()).get(&item.child)?;
    let turns = Turns::of(target, item.child, limit);
    turns.holder.filter(|_| turns.left == 0)
}
