//! What a decision needs to know beyond its snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::observed::Observed;
use super::poll::Poll;
use super::refs::ResourceSelector;
use super::snapshot::Snapshot;

/// What a decision needs to know beyond its snapshot: the only way in which it asks for more. Whoever carries out decisions
/// takes this apart without `..`, so that no need is overlooked.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// Objects that refs name. They are watched as long as decisions need them.
    pub watches: Vec<ResourceSelector>,
    /// Observations, made again and again as long as decisions need them.
    pub polls: Vec<Arc<Poll>>,
    /// Whether a step of a run waits, so that observations are made more often than the package says.
    pub fresh_polls: bool,
    /// Earlier revisions of the package that origins and runs name. They stay loaded as long as decisions need them.
    pub revisions: BTreeSet<String>,
    /// The `Ask` children whose deletion waits for approval: the runs that delete them are watched.
    pub approvals: Vec<Arc<Observed>>,
    /// Namespaces whose users are to be found. Nothing is awaited: with the answers the instance is decided again.
    pub namespace_users: Vec<String>,
    /// Whether [`Snapshot::accepted_key`] is to be read.
    pub accepted_key: bool,
    /// Whether the small budget of the snapshot is not enough. The decision does not count.
    pub full_budget: bool,
}

impl Needs {
    /// Adds other needs.
    pub(in crate::children) fn add(&mut self, other: Self) {
        let Self {
            watches,
            polls,
            fresh_polls,
            revisions,
            approvals,
            namespace_users,
            accepted_key,
            full_budget,
        } = other;
        if !watches.is_empty() {
            self.watches.extend(watches);
            self.watches.sort();
            self.watches.dedup();
        }
        self.polls.extend(polls);
        self.fresh_polls |= fresh_polls;
        self.revisions.extend(revisions);
        self.approvals.extend(approvals);
        self.namespace_users.extend(namespace_users);
        self.accepted_key |= accepted_key;
        self.full_budget |= full_budget;
    }

    /// The reads that a snapshot does not have the results of: watches, polls, revisions and users of namespaces.
    #[must_use]
    pub fn unread(&self, snapshot: &Snapshot) -> Self {
        let plans = snapshot.plans.as_ref();
        let is_loaded = |revision: &str| plans.is_some_and(|plans| plans.revisions.contains_key(revision));
        let is_known = |namespace: &String| snapshot.namespace_users.contains_key(namespace);
        Self {
            watches: self
                .watches
                .iter()
                .filter(|watch| !snapshot.refs.contains_key(*watch))
                .cloned()
                .collect(),
            polls: self.polls.iter().filter(|poll| !snapshot.polls.contains_key(*poll)).cloned().collect(),
            revisions: self.revisions.iter().filter(|revision| !is_loaded(revision)).cloned().collect(),
            namespace_users: self.namespace_users.iter().filter(|name| !is_known(name)).cloned().collect(),
            ..Self::default()
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        let Self {
            watches,
            polls,
            fresh_polls,
            revisions,
            approvals,
            namespace_users,
            accepted_key,
            full_budget,
        } = self;
        let are_lists_empty = watches.is_empty() && polls.is_empty() && revisions.is_empty();
        are_lists_empty
            && approvals.is_empty()
            && namespace_users.is_empty()
            && !(*fresh_polls || *accepted_key || *full_budget)
    }
}
