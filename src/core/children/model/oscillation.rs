//! A target may depend on live objects: a template reads a ref, a live child or the status. If the result changes what it
//! reads, the target changes for ever, as fast as the server replies. So more than ten changes of a child in five minutes
//! are blocked, while the instance, its package and the facts of its runs do not change.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::context::Context;
use super::item::Item;
use super::observed::Observed;
use crate::api::ObjectRef;

/// The number of changes of a child that are permitted within [`WINDOW`].
pub(in crate::children) const MOST_CHANGES: usize = 10;
/// The time within which changes are counted.
const WINDOW: Duration = Duration::from_secs(300);

/// A change of the target that no change of the instance explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetChange {
    /// The object that is changed or deleted by it.
    pub object: ObjectRef,
    /// What changes: an item, or the set of a child's members.
    what: String,
    /// A hash of the instance, the package and the facts.
    input: u64,
}

/// When targets have changed while their input stayed the same.
#[derive(Clone, Debug, Default)]
pub struct OscillationGuard {
    input: u64,
    times: HashMap<String, Vec<Duration>>,
}

impl OscillationGuard {
    /// Remembers the changes of one decision that were carried out. Members that are removed together are one change.
    pub fn note<'s>(&mut self, changes: impl IntoIterator<Item = &'s TargetChange>, now: Duration) {
        let mut noted = HashSet::new();
        for change in changes {
            if change.input != self.input {
                self.times.clear();
                self.input = change.input;
            }
            let times = self.times.entry(change.what.clone()).or_default();
            times.retain(|time| *time + WINDOW > now);
            if noted.insert(&change.what) {
                times.push(now);
            }
        }
    }

    /// Forgets changes outside the window.
    pub fn sweep(&mut self, now: Duration) {
        self.times.retain(|_, times| times.last().is_some_and(|time| *time + WINDOW > now));
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// How long until the change is permitted; `None`: now.
    pub(in crate::children) fn held(&self, change: &TargetChange, now: Duration) -> Option<Duration> {
        let times = self.times.get(&change.what).filter(|_| self.input == change.input)?;
        let recent = times.iter().filter(|time| **time + WINDOW > now);
        let first = times.iter().rev().nth(MOST_CHANGES - 1)?;
        (recent.count() >= MOST_CHANGES).then(|| (*first + WINDOW).saturating_sub(now))
    }
}

/// A hash of the instance, the package and the facts that runs have recorded, as opposed to observations.
fn input(ctx: &Context<'_>) -> u64 {
    let meta = &ctx.origin.instance["metadata"];
    let mut hasher = DefaultHasher::new();
    for field in ["uid", "generation", "labels", "annotations"] {
        meta[field].to_string().hash(&mut hasher);
    }
    ctx.origin.package.digest.hash(&mut hasher);
    if let Some(facts) = ctx.origins.facts() {
        facts.to_string().hash(&mut hasher);
    }
    hasher.finish()
}

impl TargetChange {
    /// The update of an item; `None` if its child does not read anything that may follow from the child
    /// itself.
    pub(in crate::children) fn of_item(ctx: &Context<'_>, item: &Item) -> Option<Self> {
        let object = item.observed.as_ref()?.object.clone();
        let reads_own_output = ctx.child(item).reads_own_output;
        reads_own_output.then(|| Self { object, what: item.name.clone(), input: input(ctx) })
    }

    /// The deletion of a member that has left the target.
    pub(in crate::children) fn of_removal(ctx: &Context<'_>, observed: &Observed) -> Option<Self> {
        let child = ctx.origin.resource.child(&observed.child)?;
        let what = format!("{} less", observed.child);
        child.reads_own_output.then(|| Self { object: observed.object.clone(), what, input: input(ctx) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Gvk;

    #[test]
    fn eleventh_change_within_the_window_waits() {
        let mut changes = OscillationGuard::default();
        let object = ObjectRef { gvk: Gvk::new("v1", "Pod"), namespace: None, name: "a".into() };
        let change = |input| TargetChange { object: object.clone(), what: "a".into(), input };
        // Decisions may follow one another without a pause.
        for (number, second) in [0, 1, 1, 1, 5, 6, 7, 8, 9, 9].into_iter().enumerate() {
            let now = Duration::from_secs(second);
            assert_eq!(changes.held(&change(1), now), None, "{number}");
            changes.note([&change(1), &change(1)], now);
        }
        assert_eq!(changes.held(&change(1), Duration::from_secs(10)), Some(Duration::from_secs(290)));
        assert_eq!(
            changes.held(&TargetChange { what: "b".into(), ..change(1) }, Duration::from_secs(10)),
            None
        );
        assert_eq!(
            changes.held(&change(2), Duration::from_secs(10)),
            None,
            "a user has changed the instance"
        );
        assert_eq!(changes.held(&change(1), Duration::from_secs(300)), None, "it may go on, slowly");
        changes.sweep(Duration::from_secs(400));
        assert!(changes.is_empty());
    }
}
