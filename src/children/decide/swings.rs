//! What should be may depend on what is: a template that reads a ref, a live child or the status. If it
//! feeds back, the target would change for ever, as fast as the server answers. More than ten changes of
//! one child in five minutes, while nobody changes the instance or its package, are held back.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::{Action, Context, Deciding, Item};
use crate::children::observed::ObjectRef;

/// So many changes are let through,
const MOST: usize = 10;
/// within this time.
const WINDOW: Duration = Duration::from_secs(300);

/// A change of the target that no change of the instance explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swing {
    /// The object that is changed or deleted by it.
    pub object: ObjectRef,
    /// What swings: an item, or the set of a child's members.
    what: String,
    /// What the instance and the package say.
    input: u64,
}

/// When targets have changed while their input stayed the same.
#[derive(Debug, Default)]
pub struct Swings {
    input: u64,
    times: HashMap<String, Vec<Duration>>,
}

impl Swings {
    /// Remembers changes that were carried out.
    pub fn note<'s>(&mut self, swings: impl IntoIterator<Item = &'s Swing>, now: Duration) {
        for swing in swings {
            if swing.input != self.input {
                self.times.clear();
                self.input = swing.input;
            }
            let times = self.times.entry(swing.what.clone()).or_default();
            times.retain(|time| *time + WINDOW > now);
            // Members that go together are one change.
            if times.last() != Some(&now) {
                times.push(now);
            }
        }
    }

    /// Forgets what is long past.
    pub fn sweep(&mut self, now: Duration) {
        self.times.retain(|_, times| times.last().is_some_and(|time| *time + WINDOW > now));
    }

    /// Whether forgetting it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// How long no further change of it is let through.
    fn held(&self, what: &str, input: u64, now: Duration) -> Option<Duration> {
        let times = self.times.get(what).filter(|_| self.input == input)?;
        let recent = times.iter().filter(|time| **time + WINDOW > now);
        let first = times.iter().rev().nth(MOST - 1)?;
        (recent.count() >= MOST).then(|| (*first + WINDOW).saturating_sub(now))
    }
}

/// What the instance and the package say, as opposed to what was observed.
fn input(ctx: &Context<'_>) -> u64 {
    let meta = &ctx.instance["metadata"];
    let mut hasher = DefaultHasher::new();
    for field in ["uid", "generation", "labels", "annotations"] {
        meta[field].to_string().hash(&mut hasher);
    }
    ctx.package.digest.hash(&mut hasher);
    hasher.finish()
}

impl Deciding<'_> {
    /// Whether an item that is due for a new intent has had too many of them. Notes the change, or that.
    pub(super) fn oscillates(&mut self, item: &Item) -> bool {
        let Some(object) = item.observed.as_ref().map(|observed| observed.object.clone()) else {
            return false;
        };
        if !self.ctx.resource.children[item.child].feeds_back {
            return false;
        }
        self.swing(object, item.name.clone(), &item.name)
    }

    /// Takes out deletions of members that come and go.
    pub(super) fn hold_swinging(&mut self, actions: &mut Vec<Action>) {
        actions.retain(|action| {
            let (Action::Delete(observed) | Action::Retain(observed)) = action else { return true };
            let feeds_back = self.ctx.resource.child(&observed.child).is_some_and(|child| child.feeds_back);
            let what = format!("{} less", observed.child);
            !(feeds_back && self.swing(observed.object.clone(), what, &observed.child))
        });
    }

    fn swing(&mut self, object: ObjectRef, what: String, name: &str) -> bool {
        let input = input(self.ctx);
        if let Some(wait) = self.memory.swings.held(&what, input, self.now) {
            let message = format!(
                "{name}: what it should be has changed {MOST} times in five minutes while the instance stayed \
                 as it is; does it read what follows from itself?"
            );
            self.notes.stalled.push(("Oscillating".into(), message));
            self.wake(wait);
            return true;
        }
        self.swings.push(Swing { object, what, input });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_changes_pass_and_the_next_waits() {
        let mut swings = Swings::default();
        let object =
            ObjectRef { api_version: "v1".into(), kind: "Pod".into(), namespace: None, name: "a".into() };
        let swing = |input| Swing { object: object.clone(), what: "a".into(), input };
        for second in 0..10 {
            let now = Duration::from_secs(second);
            assert_eq!(swings.held("a", 1, now), None, "{second}");
            swings.note([&swing(1), &swing(1)], now);
        }
        assert_eq!(swings.held("a", 1, Duration::from_secs(10)), Some(Duration::from_secs(290)));
        assert_eq!(swings.held("b", 1, Duration::from_secs(10)), None);
        assert_eq!(swings.held("a", 2, Duration::from_secs(10)), None, "somebody has changed the instance");
        assert_eq!(swings.held("a", 1, Duration::from_secs(300)), None, "it may go on, slowly");
        swings.sweep(Duration::from_secs(400));
        assert!(swings.is_empty());
    }
}
