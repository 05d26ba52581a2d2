//! What is remembered of an instance between decisions. Only [`ReconcileState::record`] changes it: decisions read
//! it, and what carries out an action reports an [`ActionOutcome`]. Losing it costs at most a request that changes nothing.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use super::action::{Action, Apply, Expect, Why, WritePolicy};
use super::check::Check;
use super::coverage::{is_covered, owns_extra_fields};
use super::desired::Desired;
use super::item::Item;
use super::observed::Observed;
use super::oscillation::{OscillationGuard, TargetChange};
use crate::api::{CallError, Class, ObjectRef};
use crate::backoff::{Backoff, jitter};
use crate::children::adoption::Adopted;
use crate::plan::{Conditions, Subject};

/// At most one apply per object in this time answers foreign changes that metadata cannot explain.
const RECHECK_EVERY: Duration = Duration::from_secs(30);

/// How many corrections of drift in a row happen at once. More of them show a conflicting controller.
const CORRECTIONS: u32 = 20;
/// The interval of corrections after that, until as many intervals have passed without drift.
pub(in crate::children) const CORRECT_EVERY: Duration = Duration::from_secs(30);

/// The backoff of a refused action.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));

/// After how many retryable refusals in a row a refusal counts as lasting.
const LASTING: u32 = 3;

/// The suffix of the name of an item that is applied as last accepted. Its failures are not those of the change.
pub(in crate::children) const AS_ACCEPTED: &str = " as last accepted";

/// The reason of a refusal because generated values are missing from an object. Operetta refuses it, not the
/// server: another resourceVersion of the object may be right.
pub const GENERATED_MISSING: &str = "GeneratedDataMissing";
/// The reason of a refusal because Operetta has not made the object that has the generated values. See
/// [`GENERATED_MISSING`].
pub const GENERATED_FOREIGN: &str = "GeneratedDataForeign";
/// The reason of a refusal because two keys that are to have one generated value have two. See [`GENERATED_MISSING`].
pub const GENERATED_DIFFERS: &str = "GeneratedDataDiffers";
/// The refusals for what generated values an object has.
pub const GENERATED_REFUSED: [&str; 3] = [GENERATED_MISSING, GENERATED_FOREIGN, GENERATED_DIFFERS];

/// The reason of a refusal because the account of a package lacks rights.
pub const RIGHTS_MISSING: &str = "RightsMissing";

/// What an action came to, or what else changes the state of an instance.
#[derive(Debug)]
pub enum ActionOutcome {
    /// A child was applied.
    Applied(Box<Applied>),
    /// An action that is no apply was carried out.
    Done(Action),
    /// The API server refused an action.
    Refused(Action, CallError),
    /// A dry run was refused: nothing of the change is written.
    DryRunRefused(Box<Check>, CallError),
    /// Another instance has the same dry run in flight. This one is queued when it is complete.
    DryRunPending,
    /// An object was not as expected, and was read again: the next decision sees it.
    Conflict,
    /// A child was deleted because a field of it is immutable. The next decision creates it again.
    Recreating(ObjectRef),
    /// All of the target is applied.
    TargetAccepted,
    /// Changes of the target that no change of the instance explains were carried out.
    TargetChanged(Vec<TargetChange>),
    /// CRDs have changed, by which the API server has refused or dropped something.
    SchemasChanged,
    /// The API server refused a write for a run, on which no other depends: its subject.
    RunRefused(Subject, CallError),
    /// The write that was refused last was held up by a webhook. Those behind it are not carried out in this turn.
    WebhookSlow,
    /// A write for a run was refused because the namespace is being deleted.
    NamespaceTerminating,
    /// The conditions of plans have been watched.
    ConditionsWatched(Conditions),
    /// Nothing is left to do. These objects exist, also those that previous instances have left.
    Settled(Vec<Arc<Observed>>),
}

/// A child that was applied.
#[derive(Debug)]
pub struct Applied {
    /// What was applied.
    pub apply: Apply,
    /// The object as the reply shows it.
    pub live: Arc<Observed>,
    /// How it became this instance's, if it was not before.
    pub adopted: Option<Adopted>,
    /// A lost field and the manager that owns it now, if they were looked up.
    pub conflict: Option<FieldConflict>,
}

/// A lost field, and the manager that owns it now.
pub type FieldConflict = (String, Option<String>);

/// What an action did to an object, for Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "they name themselves")]
pub enum Effect {
    Created,
    Inherited,
    Adopted,
    Updated,
    Repaired,
    Recreated,
    Deleted,
    Retained,
    DeletionPending,
    Orphaned,
}

impl Effect {
    /// The reason of the Event.
    pub fn reason(self) -> String {
        format!("{:?}", if self == Self::Inherited { Self::Adopted } else { self })
    }
}

impl ActionOutcome {
    /// What was done to which object; `None` if nothing has changed.
    pub fn effect(&self) -> Option<(Effect, &ObjectRef)> {
        let (effect, object) = match self {
            Self::Applied(applied) => {
                let apply = &applied.apply;
                let changed = apply.version.as_ref() != Some(&applied.live.resource_version);
                let effect = match apply.why {
                    _ if applied.adopted == Some(Adopted::Inherited) => Effect::Inherited,
                    _ if applied.adopted.is_some() => Effect::Adopted,
                    // Usually nothing had drifted, and a new resourceVersion is the work of others.
                    Why::Recheck => return None,
                    _ if !changed => return None,
                    Why::Create | Why::Restore => Effect::Created,
                    Why::Update => Effect::Updated,
                    Why::Repair => Effect::Repaired,
                };
                return Some((effect, &apply.desired.object));
            }
            Self::Recreating(object) => return Some((Effect::Recreated, object)),
            Self::Done(Action::Delete(o) | Action::ForceDelete(o)) => (Effect::Deleted, o),
            Self::Done(Action::Retain(o)) => (Effect::Retained, o),
            Self::Done(Action::Ask(o)) => (Effect::DeletionPending, o),
            Self::Done(Action::Orphan(o)) => (Effect::Orphaned, o),
            Self::Done(Action::Unmark(o)) => (Effect::Updated, o),
            _ => return None,
        };
        Some((effect, &object.object))
    }
}

/// An action that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The hash of the desired object, or the uid of the live one, that the refusal is about. The refusal does not
    /// apply to another.
    hash: String,
    /// What the server said.
    pub error: CallError,
    /// The action is not tried again before this time.
    retry_at: Duration,
    /// The number of failures in a row.
    count: u32,
    /// The uid of the live object that it is about.
    uid: Option<Box<str>>,
    /// The resourceVersion that the refusal is about, if a user may have corrected a later one.
    version: Option<Box<str>>,
    /// What the refused write was permitted to do; `None` for an action that is no apply.
    pub(in crate::children) policy: Option<WritePolicy>,
    /// Whether a dry run found it. Then the rest of the change waits.
    pub is_dry_run: bool,
}

impl Failure {
    /// The next failure of this hash under this policy.
    fn next(
        before: Option<&Self>,
        (hash, policy): (&str, Option<WritePolicy>),
        error: CallError,
        now: Duration,
    ) -> Self {
        let is_same = |before: &&Self| before.hash == hash && before.policy == policy;
        let count = before.filter(is_same).map_or(0, |f| f.count).saturating_add(1);
        // Jitter, so that instances that are refused together do not try again together; never before `Retry-After`.
        let share = share(&(hash, count, now));
        let rest = error
            .retry_after
            .map_or(jitter(REFUSED.exact(count), share), |wait| wait.mul_f64(1.0 + 0.2 * share));
        Self {
            hash: hash.to_owned(),
            error,
            retry_at: now + rest,
            count,
            uid: None,
            version: None,
            policy,
            is_dry_run: false,
        }
    }

    /// How long until it is tried again; `None`: now.
    pub fn rest(&self, now: Duration) -> Option<Duration> {
        self.retry_at.checked_sub(now).filter(|rest| !rest.is_zero())
    }

    /// Whether another failure would be the next one in a row: it is tried again later, or was a while ago.
    fn is_in_row(&self, now: Duration) -> bool {
        now < self.retry_at + REFUSED.exact(self.count)
    }

    /// Whether it does not pass by itself.
    pub fn is_lasting(&self) -> bool {
        self.error.class != Class::Retry || self.count >= LASTING
    }
}

/// A number from 0 to 1 that differs from seed to seed.
pub(in crate::children) fn share(seed: &impl Hash) -> f64 {
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    f64::from(u16::try_from(hasher.finish() % 1_000).unwrap_or_default()) / 1_000.0
}

/// How often drift of an object was corrected recently.
#[derive(Debug, Clone, Default)]
pub struct DriftCorrections {
    /// The number of corrections, less one for each [`CORRECT_EVERY`] that has passed since.
    level: u32,
    at: Duration,
    conflict: Option<FieldConflict>,
}

impl DriftCorrections {
    fn count(&mut self, now: Duration, conflict: Option<&FieldConflict>) {
        self.level = self.level_at(now).saturating_add(1);
        self.at = now;
        self.conflict = conflict.cloned().or(self.conflict.take());
    }

    fn level_at(&self, now: Duration) -> u32 {
        let passed = now.saturating_sub(self.at).as_secs() / CORRECT_EVERY.as_secs();
        self.level.saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX))
    }

    /// Whether the next correction should look up the conflicting manager.
    pub fn is_frequent(&self, now: Duration) -> bool {
        self.level_at(now) + 1 >= CORRECTIONS
    }

    /// How long until the next correction; `None`: now.
    pub fn rest(&self, now: Duration) -> Option<Duration> {
        (self.level_at(now) >= CORRECTIONS)
            .then(|| CORRECT_EVERY.saturating_sub(now.saturating_sub(self.at)).max(Duration::from_secs(1)))
    }

    /// The field that was lost and the manager that takes it, once they were looked up.
    pub fn conflict(&self) -> Option<(&str, Option<&str>)> {
        self.conflict.as_ref().map(|(field, manager)| (field.as_str(), manager.as_deref()))
    }
}

/// What is remembered of an instance between decisions.
#[derive(Debug, Clone, Default)]
pub struct ReconcileState {
    /// Applies that were refused, by item name.
    applies: HashMap<String, Failure>,
    /// Deletions, retentions and the like that were refused, by object and sort of the action.
    removals: HashMap<(ObjectRef, Discriminant<Action>), Failure>,
    /// The refusal to remove the finalizer.
    finalizer: Option<Failure>,
    /// Writes for runs that were refused, by their subject.
    runs: HashMap<Subject, Failure>,
    /// Objects whose managedFields do not match the desired object even right after our apply, as they were then.
    unmatched: HashMap<ObjectRef, Arc<Observed>>,
    /// When a foreign change was last answered.
    rechecked: HashMap<ObjectRef, Duration>,
    corrections: HashMap<ObjectRef, DriftCorrections>,
    /// A record of the last accepted target that the server has refused.
    unrecorded: Option<String>,
    oscillation: OscillationGuard,
    /// For how long the conditions of plans have held.
    conditions: Option<Box<Conditions>>,
    /// Objects that were deleted to be created again.
    recreating: HashSet<ObjectRef>,
    /// Whether a write was refused because the namespace is being deleted. That never ends.
    is_namespace_terminating: bool,
}

impl ReconcileState {
    /// For how long the conditions of plans have held.
    pub(in crate::children) fn conditions(&self) -> Conditions {
        self.conditions.as_deref().cloned().unwrap_or_default()
    }

    /// Whether a write was refused because the namespace is being deleted.
    pub(in crate::children) fn is_namespace_terminating(&self) -> bool {
        self.is_namespace_terminating
    }

    /// Whether an object was deleted to be created again, and is not yet.
    pub(in crate::children) fn is_recreating(&self, object: &ObjectRef) -> bool {
        self.recreating.contains(object)
    }

    /// The refusal of this desired object for this live object, whatever was permitted then.
    pub(in crate::children) fn failure_of(&self, item: &Item, desired: &Desired) -> Option<&Failure> {
        let live = item.observed.as_ref();
        self.applies.get(&item.name).filter(|f| {
            f.hash == desired.hash
                && f.uid.as_ref() == live.map(|o| &o.uid)
                && (f.version.is_none() || f.version.as_ref() == live.map(|o| &o.resource_version))
        })
    }

    /// Whether a dry run of this desired object was refused, for any live object.
    pub fn is_dry_run_refused(&self, item: &Item, desired: &Desired) -> bool {
        self.applies.get(&item.name).is_some_and(|f| f.is_dry_run && f.hash == desired.hash)
    }

    /// The refusal of the last action of this sort on this live object. A refused deletion says nothing about
    /// marking the object as retained.
    pub fn removal_failure(&self, action: &Action) -> Option<&Failure> {
        let observed = action.removed()?;
        let key = (observed.object.clone(), discriminant(action));
        self.removals.get(&key).filter(|failure| *failure.hash == *observed.uid)
    }

    /// The refusal to remove the finalizer.
    pub fn finalizer_failure(&self) -> Option<&Failure> {
        self.finalizer.as_ref()
    }

    /// What the server has said of a write for a run, and how long until that is tried again.
    pub fn refused_run(&self, subject: &Subject, now: Duration) -> Option<(&CallError, Duration)> {
        let failure = self.runs.get(subject)?;
        Some((&failure.error, failure.rest(now)?))
    }

    /// Whether an object whose managedFields do not match is as our last apply has left it.
    pub fn is_as_applied(&self, observed: &Observed) -> bool {
        self.unmatched.get(&observed.object).is_some_and(|was| {
            was.desired == observed.desired && was.owned == observed.owned && was.foreign == observed.foreign
        })
    }

    /// How long until a foreign change of an object is answered again; `None`: now.
    pub fn recheck_rest(&self, object: &ObjectRef, now: Duration) -> Option<Duration> {
        let next = *self.rechecked.get(object)? + RECHECK_EVERY;
        next.checked_sub(now).filter(|rest| !rest.is_zero())
    }

    /// How often drift of an object was corrected.
    pub fn corrections(&self, object: &ObjectRef) -> Option<&DriftCorrections> {
        self.corrections.get(object)
    }

    /// Whether the server has refused this record of the last accepted target.
    pub fn is_unrecorded(&self, record: &str) -> bool {
        self.unrecorded.as_deref() == Some(record)
    }

    /// Which targets change while the instance does not.
    pub fn oscillation(&self) -> &OscillationGuard {
        &self.oscillation
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        let Self { applies, removals, finalizer, unmatched, rechecked, corrections, .. } = self;
        let Self { unrecorded, oscillation, conditions, recreating, is_namespace_terminating, runs, .. } =
            self;
        applies.is_empty()
            && conditions.is_none()
            && recreating.is_empty()
            && runs.is_empty()
            && !is_namespace_terminating
            && removals.is_empty()
            && finalizer.is_none()
            && unmatched.is_empty()
            && rechecked.is_empty()
            && corrections.is_empty()
            && unrecorded.is_none()
            && oscillation.is_empty()
    }

    /// Records what the actions of one decision came to, and which of its changes of the target were carried out.
    pub fn record_all(&mut self, outcomes: &[ActionOutcome], mut changes: Vec<TargetChange>, now: Duration) {
        // What was due for long and is not refused again was carried out, or is not wanted any more.
        let is_refused = |subject: &Subject| {
            outcomes
                .iter()
                .any(|outcome| matches!(outcome, ActionOutcome::RunRefused(refused, _) if refused == subject))
        };
        self.runs.retain(|subject, failure| failure.is_in_row(now) || is_refused(subject));
        for outcome in outcomes {
            self.record(outcome, now);
        }
        let changed: HashSet<&ObjectRef> = outcomes
            .iter()
            .filter_map(ActionOutcome::effect)
            .filter(|(effect, _)| matches!(effect, Effect::Updated | Effect::Deleted | Effect::Retained))
            .map(|(_, object)| object)
            .collect();
        changes.retain(|change| changed.contains(&change.object));
        self.record(&ActionOutcome::TargetChanged(changes), now);
    }

    /// Records an outcome.
    pub fn record(&mut self, outcome: &ActionOutcome, now: Duration) {
        if let ActionOutcome::Refused(_, error)
        | ActionOutcome::DryRunRefused(_, error)
        | ActionOutcome::RunRefused(_, error) = outcome
        {
            self.is_namespace_terminating |= error.is_namespace_terminating();
        }
        match outcome {
            ActionOutcome::Applied(applied) => self.applied(applied, now),
            ActionOutcome::Refused(Action::Apply(apply), error) => {
                let about = (&*apply.desired.hash, Some(apply.policy));
                let mut failure = Failure::next(self.applies.get(&apply.item), about, error.clone(), now);
                failure.uid = uid_of(&apply.expect);
                // If a user corrects the object, the backoff must not delay the next attempt.
                let is_mendable = GENERATED_REFUSED.contains(&error.reason.as_str());
                failure.version = apply.version.clone().filter(|_| is_mendable);
                self.applies.insert(apply.item.clone(), failure);
            }
            ActionOutcome::DryRunRefused(check, error) => {
                let about = (&*check.desired.hash, Some(check.policy));
                let mut failure = Failure::next(self.applies.get(&check.item), about, error.clone(), now);
                failure.uid = uid_of(&check.expect);
                failure.is_dry_run = true;
                self.applies.insert(check.item.clone(), failure);
            }
            ActionOutcome::RunRefused(subject, error) => {
                let failure = Failure::next(self.runs.get(subject), ("", None), error.clone(), now);
                self.runs.insert(subject.clone(), failure);
            }
            ActionOutcome::NamespaceTerminating => self.is_namespace_terminating = true,
            ActionOutcome::ConditionsWatched(conditions) => {
                self.conditions = (!conditions.is_empty()).then(|| Box::new(conditions.clone()));
            }
            ActionOutcome::Done(Action::Record(_)) => self.unrecorded = None,
            ActionOutcome::Refused(Action::Record(record), _) => self.unrecorded.clone_from(record),
            ActionOutcome::Done(Action::RemoveFinalizer) => self.finalizer = None,
            ActionOutcome::Refused(Action::RemoveFinalizer, error) => {
                self.finalizer = Some(Failure::next(self.finalizer.as_ref(), ("", None), error.clone(), now));
            }
            ActionOutcome::Done(action) => {
                if let Some(observed) = action.removed() {
                    self.removals.remove(&(observed.object.clone(), discriminant(action)));
                }
            }
            ActionOutcome::Refused(action, error) => {
                if let Some(observed) = action.removed() {
                    let Observed { object, uid, .. } = &**observed;
                    let key = (object.clone(), discriminant(action));
                    let failure = Failure::next(self.removals.get(&key), (uid, None), error.clone(), now);
                    self.removals.insert(key, failure);
                }
            }
            ActionOutcome::TargetAccepted => {
                self.applies.retain(|item, _| !item.ends_with(AS_ACCEPTED));
                self.unrecorded = None;
            }
            ActionOutcome::TargetChanged(changes) => self.oscillation.note(changes, now),
            ActionOutcome::SchemasChanged => {
                self.applies.clear();
                self.unmatched.clear();
            }
            ActionOutcome::Settled(objects) => self.forget_gone(objects, now),
            ActionOutcome::Recreating(object) => {
                self.recreating.insert(object.clone());
            }
            ActionOutcome::Conflict | ActionOutcome::DryRunPending | ActionOutcome::WebhookSlow => {}
        }
    }

    fn applied(&mut self, applied: &Applied, now: Duration) {
        let Applied { apply, live, conflict, .. } = applied;
        let object = &apply.desired.object;
        self.applies.remove(&apply.item);
        self.recreating.remove(object);
        if matches!(apply.why, Why::Repair | Why::Recheck) {
            self.rechecked.insert(object.clone(), now);
        }
        if apply.why == Why::Repair {
            self.corrections.entry(object.clone()).or_default().count(now, conflict.as_ref());
        }
        if is_covered(&apply.desired, live) && !owns_extra_fields(&apply.desired, live, true) {
            self.unmatched.remove(object);
        } else {
            self.unmatched.insert(object.clone(), Arc::clone(live));
        }
    }

    /// Forgets objects that no longer exist.
    fn forget_gone(&mut self, objects: &[Arc<Observed>], now: Duration) {
        self.oscillation.sweep(now);
        let exists: HashSet<&ObjectRef> = objects.iter().map(|o| &o.object).collect();
        self.removals.retain(|(object, _), _| exists.contains(object));
        self.unmatched.retain(|object, _| exists.contains(object));
        self.rechecked.retain(|object, _| exists.contains(object));
        self.corrections.retain(|object, _| exists.contains(object));
        // What is due would have been among the actions.
        self.runs.retain(|_, failure| failure.rest(now).is_some());
    }
}

fn uid_of(expect: &Expect) -> Option<Box<str>> {
    match expect {
        Expect::Absent => None,
        Expect::Present(uid) => Some(uid.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_with_refusals_unless_the_server_says_how_long() {
        let refusal = || CallError::new(Class::Permanent, 422, "Invalid", "no".to_owned());
        let (mut before, mut now) = (None, Duration::ZERO);
        for (count, seconds) in [(1, 2.0), (2, 4.0), (3, 8.0), (4, 16.0)] {
            let failure = Failure::next(before.as_ref(), ("hash", None), refusal(), now);
            let rest = failure.rest(now).unwrap();
            assert!((0.8 * seconds..=1.2 * seconds).contains(&rest.as_secs_f64()), "{count}: {rest:?}");
            now += rest;
            assert_eq!((failure.rest(now), failure.count), (None, count));
            before = Some(failure);
        }
        let rest = |hash, error| Failure::next(before.as_ref(), (hash, None), error, now).rest(now).unwrap();
        assert!(rest("another", refusal()) < Duration::from_secs(3), "it counts anew");
        let asked = rest("hash", refusal().after(Duration::from_secs(60)));
        assert!((60.0..=72.0).contains(&asked.as_secs_f64()), "{asked:?}");
    }

    #[test]
    fn corrections_are_forgotten_as_time_passes() {
        let mut corrections = DriftCorrections::default();
        let conflict = (".data.text".to_owned(), Some("gitops".to_owned()));
        for second in 0..CORRECTIONS {
            let now = Duration::from_secs(second.into());
            assert_eq!(corrections.rest(now), None);
            corrections.count(now, Some(&conflict));
        }
        corrections.count(Duration::from_secs(20), None);
        assert_eq!(corrections.rest(Duration::from_secs(20)), Some(CORRECT_EVERY));
        assert_eq!(
            corrections.conflict(),
            Some((".data.text", Some("gitops"))),
            "the last one that was looked up"
        );
        assert_eq!(corrections.rest(Duration::from_secs(80)), None);
        assert!(!corrections.is_frequent(Duration::from_secs(3_600)));
    }
}
