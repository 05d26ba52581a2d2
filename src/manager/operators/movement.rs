//! What is remembered of the instances of an `Operator` that are being moved.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::manager::index::InstanceKey;
use crate::operators::upgrade::{Attempt, Member};

/// What is remembered of the instances of an `Operator` that are being moved. It is about this process: a new one gives each
/// instance its time once more.
#[derive(Default)]
pub(super) struct Movement {
    /// Since when each instance has been changing.
    pub(super) changing: BTreeMap<InstanceKey, Duration>,
    pub(super) failed: BTreeMap<InstanceKey, FailedMove>,
}

/// A move that has failed.
pub(super) struct FailedMove {
    /// When it is tried again.
    pub(super) at: Duration,
    /// Why, if the API server refuses it.
    pub(super) refusal: Option<String>,
}

impl Movement {
    /// Updates which instances are changing, and since when. What has ended is forgotten.
    pub(super) fn update(&mut self, members: &[(InstanceKey, Member)], target: &str, now: Duration) {
        let before = std::mem::take(&mut self.changing);
        let changing = members.iter().filter(|(_, member)| member.is_changing() && !member.is_busy());
        self.changing =
            changing.map(|(key, _)| (key.clone(), before.get(key).copied().unwrap_or(now))).collect();
        if !self.failed.is_empty() {
            let has_another = |member: &Member| member.revision.as_deref().is_some_and(|of| of != target);
            let left: BTreeSet<&InstanceKey> =
                members.iter().filter(|(_, member)| has_another(member)).map(|(key, _)| key).collect();
            self.failed.retain(|key, _| left.contains(key));
        }
    }

    pub(super) fn attempt(&self, key: &InstanceKey, now: Duration) -> Attempt {
        match self.failed.get(key) {
            Some(FailedMove { at, refusal: Some(_) }) => Attempt::Refused { is_due: *at <= now },
            Some(_) => Attempt::Failed,
            None => Attempt::None,
        }
    }

    pub(super) fn is_overdue(&self, key: &InstanceKey, now: Duration, deadline: Duration) -> bool {
        self.changing.get(key).is_some_and(|since| now.saturating_sub(*since) > deadline)
    }
}
