//! Upgrades in stages: decides which instances are moved next. An instance is reconciled with the revision that its status
//! records until it is moved: the move is one write of its status, and everything here is decided from such statuses. So a
//! manager that ends at any point goes on where it was.

mod inputs;

pub use inputs::{CHANGING, MaxUnavailable, Member, Policy, VERDICTS, is_changed, moved};

use inputs::{Changing, Health};

/// What is known of one instance for a stage.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
#[derive(Debug, Clone)]
pub struct Candidate<K> {
    /// Identifies the instance.
    pub key: K,
    /// What its status says.
    pub member: Member,
    /// Whether the `Operator` keeps it at its revision by a label.
    pub is_pinned: bool,
    /// Whether the `Operator` serves its namespace.
    pub is_served: bool,
    /// Whether it keeps its revision while it is paused.
    pub is_kept_by_pause: bool,
    /// Whether it is changing for longer than [`Policy::deadline`].
    pub is_overdue: bool,
    /// What became of the last attempt to move it.
    pub attempt: Attempt,
}

/// What became of the last attempt to move an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Attempt {
    /// There was no attempt, or the last one has succeeded.
    #[default]
    None,
    /// The attempt has failed, and may succeed now: others go first.
    Failed,
    /// The attempt is refused.
    Refused {
        /// Whether it is tried again now.
        is_due: bool,
    },
}

/// How many instances keep an earlier revision, by cause. Each is counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Instances in namespaces that the `Operator` does not serve.
    pub unserved: usize,
    /// The `Operator` pins them by a label.
    pub pinned: usize,
    /// Paused instances.
    pub paused: usize,
    /// A run of a plan is active.
    pub busy: usize,
}

impl Kept {
    /// The number of all of them.
    pub fn count(self) -> usize {
        self.unserved + self.pinned + self.paused + self.busy
    }

    /// A sentence for people; `None` if there are none.
    pub fn message(self) -> Option<String> {
        let causes = [
            (self.pinned, "pinned by spec.upgrade.pin"),
            (self.paused, "paused"),
            (self.busy, "in a run of a plan"),
            (self.unserved, "in namespaces that are not served"),
        ];
        let causes: Vec<String> =
            causes.iter().filter(|(n, _)| *n > 0).map(|(n, cause)| format!("{n} {cause}")).collect();
        let verb =
            if self.count() == 1 { "1 instance keeps" } else { &*format!("{} instances keep", self.count()) };
        (!causes.is_empty()).then(|| format!("{verb} an earlier revision: {}", causes.join(", ")))
    }
}

/// A stage of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage<K> {
    /// The instances to move now.
    pub moves: Vec<K>,
    /// How many instances have the target, or change to it.
    pub moved: usize,
    /// How many are still to be moved, those of this stage included.
    pub waiting: usize,
    /// The instances that keep their revision.
    pub kept: Kept,
    /// The instances that were moved and have not been ready since.
    pub changing: Vec<K>,
    /// The changing instances that fail.
    pub failing: Vec<K>,
    /// The instances that cannot be moved, because the API server refuses it.
    pub refused: Vec<K>,
    /// Whether no other instance is moved because of those that fail.
    pub is_paused: bool,
}

/// The next stage of an upgrade to the revision `target`, as statuses record it. Instances that are not ready come first:
/// they have nothing to lose, and the revision may be what they need. Until a first instance is ready with the revision, a
/// stage is one instance, and once one is not, those that are ready come first: broken instances, however many, prove nothing.
/// A stage begins when no instance of the previous one is changing, because until then it may still fail.
pub fn stage<K: Clone + Ord>(candidates: &[Candidate<K>], target: &str, policy: &Policy) -> Stage<K> {
    let (mut waiting, mut changing, mut failing) = (Vec::new(), Vec::new(), Vec::new());
    let (mut refused, mut again) = (Vec::new(), Vec::new());
    let (mut moved, mut kept, mut is_proven, mut has_unready) = (0, Kept::default(), false, false);
    let mut in_flight = 0_usize;
    for Candidate { key, member, is_pinned, is_served, is_kept_by_pause, is_overdue, attempt } in candidates {
        // A new instance has the target.
        let has_target = member.revision.as_deref().is_none_or(|revision| revision == target);
        if member.is_deleting {
            continue;
        }
        if !has_target {
            if !is_served {
                kept.unserved += 1;
            } else if *is_pinned {
                kept.pinned += 1;
            } else if member.is_busy {
                kept.busy += 1;
            } else if *is_kept_by_pause && member.health == Health::Paused {
                kept.paused += 1;
            } else if let Attempt::Refused { is_due } = attempt {
                refused.push(key.clone());
                again.extend(is_due.then(|| key.clone()));
            } else {
                waiting.push((*attempt == Attempt::Failed, member.health, key));
            }
            continue;
        }
        moved += 1;
        let is_settled = member.revision.is_some() && !member.is_changing();
        is_proven |= is_settled && member.health == Health::Ready;
        has_unready |= is_settled && matches!(member.health, Health::Unready | Health::Stalled);
        let Some(before) = member.changing.filter(|_| member.health != Health::Paused) else { continue };
        // A run reports itself what it waits for, and has timeouts of its own.
        let is_late = *is_overdue && !member.is_busy && member.health != Health::Ready;
        let fails = before == Changing::Ready && (member.health == Health::Stalled || is_late);
        if is_late && before == Changing::Unready {
            continue;
        }
        if fails {
            failing.push(key.clone());
        }
        if !fails || policy.pause_on_failure {
            in_flight += 1;
            changing.push(key.clone());
        }
    }
    let ready_first = has_unready && !is_proven;
    waiting.sort_unstable_by_key(|(has_failed, health, key)| {
        (*has_failed, (*health == Health::Ready) != ready_first, *key)
    });
    changing.sort_unstable();
    failing.sort_unstable();
    refused.sort_unstable();
    let is_paused = policy.pause_on_failure && !failing.is_empty();
    let limit = if is_proven { policy.max_unavailable.of(candidates.len()) } else { 1 };
    let free = if is_paused || in_flight > 0 { 0 } else { limit };
    let moves = waiting.iter().map(|(.., key)| (*key).clone()).chain(again).take(free).collect();
    Stage { moves, moved, waiting: waiting.len(), kept, changing, failing, refused, is_paused }
}

impl<K> Stage<K> {
    /// Whether all instances that are to have the revision have it, and none of them has yet to show that it works.
    pub fn is_complete(&self) -> bool {
        self.waiting == 0 && self.changing.is_empty() && self.refused.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(revision: &str, conditions: &[(&str, &str, &str)]) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, status, reason)| json!({"type": kind, "status": status, "reason": reason}))
            .collect();
        json!({"metadata": {"generation": 1}, "status": {"revision": revision, "conditions": conditions}})
    }

    fn ready(revision: &str) -> Value {
        instance(revision, &[("Ready", "True", "Ready")])
    }

    fn unready(revision: &str) -> Value {
        instance(revision, &[("Ready", "False", "Waiting")])
    }

    fn candidates(instances: &[Value]) -> Vec<Candidate<usize>> {
        let of = |(key, instance)| Candidate {
            key,
            member: Member::of(instance),
            is_pinned: false,
            is_served: true,
            is_kept_by_pause: true,
            is_overdue: false,
            attempt: Attempt::None,
        };
        instances.iter().enumerate().map(of).collect()
    }

    fn policy(count: usize, pause_on_failure: bool) -> Policy {
        Policy { max_unavailable: MaxUnavailable::Count(count), pause_on_failure, ..Policy::default() }
    }

    /// Writes the moves of a stage, as the manager does.
    fn carry_out(instances: &mut [Value], stage: &Stage<usize>) {
        for key in &stage.moves {
            let instance = &mut instances[*key];
            let patch = moved(&instance["status"], 1, "b", "now");
            for (field, value) in patch.as_object().unwrap() {
                instance["status"][field] = value.clone();
            }
        }
    }

    /// Sets the status that the reconcile of a moved instance writes.
    fn settle(instance: &mut Value, ready: &str) {
        let status = &mut instance["status"];
        let conditions = status["conditions"].as_array().unwrap().clone();
        let mut new =
            vec![json!({"type": "Ready", "status": if ready == "True" { "True" } else { "False" }})];
        if ready == "Stalled" {
            new.push(json!({"type": "Stalled", "status": "True"}));
        }
        let changing = conditions.iter().find(|c| c["type"] == CHANGING);
        new.extend(changing.filter(|c| !is_changed(c, ready == "True", true)).cloned());
        status["conditions"] = new.into();
    }

    #[test]
    fn one_instance_is_moved_until_one_is_ready_with_the_revision() {
        let mut instances = vec![ready("a"); 5];
        let first = stage(&candidates(&instances), "b", &policy(3, true));
        assert_eq!((first.moves.as_slice(), first.waiting, first.moved), ([0].as_slice(), 5, 0));
        // Whether the manager ends before or after the write, the next one decides the same.
        assert_eq!(stage(&candidates(&instances), "b", &policy(3, true)), first);
        carry_out(&mut instances, &first);
        let second = stage(&candidates(&instances), "b", &policy(3, true));
        assert_eq!((second.moves.len(), second.changing.as_slice()), (0, [0].as_slice()));
        settle(&mut instances[0], "False");
        assert_eq!(stage(&candidates(&instances), "b", &policy(3, true)).moves, [0; 0]);
        settle(&mut instances[0], "True");
        let third = stage(&candidates(&instances), "b", &policy(3, true));
        assert_eq!(third.moves, [1, 2, 3]);
        carry_out(&mut instances, &third);
        settle(&mut instances[2], "True");
        assert_eq!(stage(&candidates(&instances), "b", &policy(3, true)).moves, [0; 0]);
        for instance in &mut instances {
            settle(instance, "True");
        }
        assert!(!stage(&candidates(&instances), "b", &policy(3, true)).is_complete());
        let last = stage(&candidates(&instances), "b", &policy(3, true));
        carry_out(&mut instances, &last);
        settle(&mut instances[4], "True");
        assert!(stage(&candidates(&instances), "b", &policy(3, true)).is_complete());
    }

    #[test]
    fn failure_pauses_the_upgrade_unless_it_was_there_before() {
        let mut instances = vec![ready("a"), unready("a"), ready("a"), ready("b")];
        // An instance that is not ready has nothing to lose.
        let first = stage(&candidates(&instances), "b", &policy(1, true));
        assert_eq!(first.moves, [1]);
        carry_out(&mut instances, &first);
        settle(&mut instances[1], "Stalled");
        let second = stage(&candidates(&instances), "b", &policy(1, true));
        assert_eq!((second.moves.as_slice(), second.failing.len()), ([0].as_slice(), 0));
        carry_out(&mut instances, &second);
        settle(&mut instances[0], "Stalled");
        let paused = stage(&candidates(&instances), "b", &policy(1, true));
        assert_eq!(
            (paused.moves.len(), paused.failing.as_slice(), paused.is_paused),
            (0, [0].as_slice(), true)
        );
        assert_eq!(stage(&candidates(&instances), "b", &policy(1, false)).moves, [2]);
        // It recovers, and the upgrade goes on by itself.
        settle(&mut instances[0], "True");
        assert_eq!(stage(&candidates(&instances), "b", &policy(1, true)).moves, [2]);
        // A rollback returns what was moved, and nothing else.
        settle(&mut instances[0], "Stalled");
        let back = stage(&candidates(&instances), "a", &policy(9, true));
        assert_eq!((back.moves.as_slice(), back.waiting), ([0, 1, 3].as_slice(), 3));
    }

    #[test]
    fn instance_with_an_active_run_is_moved_after_it() {
        let mut instances = vec![unready("a"), ready("a"), ready("b")];
        instances[0]["status"]["plan"] = json!({"phase": "Running"});
        let first = stage(&candidates(&instances), "b", &policy(1, true));
        assert_eq!((first.moves.as_slice(), first.waiting, first.kept.count()), ([1].as_slice(), 1, 1));
        instances[0]["status"]["plan"]["phase"] = "Failed".into();
        assert_eq!(stage(&candidates(&instances), "b", &policy(1, true)).moves, [0]);
    }

    #[test]
    fn pinned_paused_and_deleted_instances_block_nothing() {
        let mut all = candidates(&[ready("a"), instance("a", &[("Ready", "False", "Paused")]), ready("a")]);
        all[0].is_pinned = true;
        all[2].member.is_deleting = true;
        let stage = stage(&all, "b", &Policy::default());
        assert_eq!((stage.moves.len(), stage.kept.count(), stage.is_complete()), (0, 2, true));
        assert_eq!(
            stage.kept.message().unwrap(),
            "2 instances keep an earlier revision: 1 pinned by spec.upgrade.pin, 1 paused"
        );
    }

    #[test]
    fn paused_instance_is_moved_after_the_hold_and_blocks_nothing() {
        let paused = instance("a", &[("Ready", "False", "Paused")]);
        let mut instances = vec![paused.clone(), paused, ready("a")];
        let all = |instances: &[Value]| {
            let mut all = candidates(instances);
            for candidate in &mut all {
                candidate.is_kept_by_pause = false;
            }
            all
        };
        let mut moved: Vec<usize> = Vec::new();
        for _ in 0..3 {
            let stage = stage(&all(&instances), "b", &Policy::default());
            moved.extend(&stage.moves);
            carry_out(&mut instances, &stage);
            settle(&mut instances[2], "True");
        }
        moved.sort_unstable();
        assert_eq!(moved, [0, 1, 2]);
        assert!(stage(&all(&instances), "b", &Policy::default()).is_complete());
    }

    #[test]
    fn broken_instances_do_not_keep_the_others_waiting() {
        let mut instances = vec![unready("a"), unready("a"), unready("a"), ready("a"), ready("a")];
        let first = stage(&candidates(&instances), "b", &policy(2, true));
        assert_eq!(first.moves, [0], "it has nothing to lose");
        carry_out(&mut instances, &first);
        settle(&mut instances[0], "False");
        // It proves nothing, and neither would the next broken one: a ready instance follows.
        let second = stage(&candidates(&instances), "b", &policy(2, true));
        assert_eq!(second.moves, [3]);
        carry_out(&mut instances, &second);
        settle(&mut instances[3], "True");
        assert_eq!(stage(&candidates(&instances), "b", &policy(2, true)).moves, [1, 2]);
    }

    #[test]
    fn an_instance_that_is_never_ready_fails_after_the_deadline() {
        let mut instances = vec![ready("a"), unready("a"), ready("a"), ready("a"), ready("b")];
        for index in [0, 1] {
            let moves = Stage { moves: vec![index], ..stage(&candidates(&instances), "b", &policy(1, true)) };
            carry_out(&mut instances, &moves);
        }
        let late = |instances: &[Value], pause: bool| {
            let mut all = candidates(instances);
            let before = stage(&all, "b", &policy(1, pause));
            assert_eq!((before.moves.len(), before.failing.len()), (0, 0), "it may become ready yet");
            for candidate in &mut all {
                candidate.is_overdue = candidate.member.is_changing();
            }
            stage(&all, "b", &policy(1, pause))
        };
        // Moved, and not reconciled since.
        let status = &mut instances[0]["status"]["conditions"];
        status[0]["status"] = "False".into();
        let paused = late(&instances, true);
        assert_eq!(
            (paused.moves.len(), paused.failing.as_slice(), paused.is_paused),
            (0, [0].as_slice(), true)
        );
        assert_eq!(late(&instances, false).moves, [2]);
        // A run of a plan reports itself what it waits for.
        instances[0]["status"]["plan"] = json!({"phase": "Running"});
        let busy = late(&instances, false);
        assert_eq!((busy.moves.len(), busy.failing.len()), (0, 0));
    }

    #[test]
    fn instance_that_cannot_be_moved_blocks_no_other() {
        let instances = vec![ready("a"), ready("a"), ready("a"), ready("b")];
        let mut all = candidates(&instances);
        all[0].attempt = Attempt::Refused { is_due: false };
        all[1].attempt = Attempt::Failed;
        let first = stage(&all, "b", &policy(1, true));
        assert_eq!((first.moves.as_slice(), first.waiting), ([2].as_slice(), 2));
        assert_eq!((first.refused.as_slice(), first.is_paused), ([0].as_slice(), false));
        // It is tried again when the others have been moved, and no upgrade is complete without it.
        let mut instances = vec![ready("a"), ready("b")];
        let mut all = candidates(&instances);
        all[0].attempt = Attempt::Refused { is_due: false };
        let waits = stage(&all, "b", &policy(1, true));
        assert_eq!((waits.moves.len(), waits.waiting, waits.is_complete()), (0, 0, false));
        all[0].attempt = Attempt::Refused { is_due: true };
        let again = stage(&all, "b", &policy(1, true));
        assert_eq!((again.moves.as_slice(), again.refused.as_slice()), ([0].as_slice(), [0].as_slice()));
        instances[0] = ready("b");
        assert!(stage(&candidates(&instances), "b", &policy(1, true)).is_complete());
    }
}
