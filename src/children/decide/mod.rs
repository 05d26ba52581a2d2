//! `decide(package, instance, observed, now) -> actions`: what to do next for one instance.
//!
//! One call looks at one moment. Whatever can be done now is in [`Decision::actions`]; whatever waits is in
//! the [`Verdict`], and an event or [`Decision::again`] brings the next call.

mod accepted;
mod applies;
mod leftovers;
mod swings;
mod verdict;

use applies::Edges;
pub(super) use leftovers::rest;
pub use swings::{Swing, Swings};
pub use verdict::{Health, NOT_LOADED, Summary};

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::accepted::Accepted;
use super::fields;
use super::intent::Intent;
use super::observed::{ObjectRef, Observed};
use super::refs::{self, Refs, Want};
use super::shape::Check;
use super::status::Status;
use super::target::{Item, Target, target};
use super::{ChildError, Context, jobs, names};
use crate::cluster::CallError;
use crate::template::{EvalError, Exceeded};

/// At most one re-apply per object in this time answers foreign changes that metadata cannot explain.
const REAPPLY_EVERY: Duration = Duration::from_secs(30);

/// How often in a row an object is repaired at once. Who comes back more often is another controller, and an
/// edit war helps nobody.
const REPAIRS: u32 = 20;
/// From then on, and until so many of these have passed without, one repair in this time.
const REPAIR_EVERY: Duration = Duration::from_secs(30);

/// One thing to do.
#[derive(Debug, Clone)]
pub enum Action {
    /// Put our finalizer on the instance, before anything that it must outlive.
    AddFinalizer,
    /// Take our finalizer off the instance: nothing is left that it guards.
    RemoveFinalizer,
    /// Server-side apply a child.
    Apply(Box<Apply>),
    /// Delete exactly this object.
    Delete(Arc<Observed>),
    /// Leave this object alone for good, and say so on it.
    Retain(Arc<Observed>),
    /// Leave this object alone until a person has approved, and say so on it.
    Ask(Arc<Observed>),
    /// Take all marks of ours off this object: it is nobody's any more.
    Orphan(Arc<Observed>),
    /// Take what was noted on this object while nothing wanted it off again: something wants it.
    Unmark(Arc<Observed>),
    /// Say on the instance that its children are to be orphaned, before the first of them is.
    MarkOrphaned,
    /// Write the record of the last accepted target on the instance, or take it off.
    Record(Option<String>),
    /// Say on the instance which of its Jobs have completed: the annotation's text.
    RecordJobs(String),
    /// Take our finalizer off the instance without a look at what it guarded: a person said so.
    LetGo,
}

/// A server-side apply of one child.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub struct Apply {
    /// `id` or `id[key]`, for messages.
    pub item: String,
    /// What to apply.
    pub intent: Intent,
    /// What must be there for it.
    pub expect: Expect,
    /// The resourceVersion that was seen; a reply with the same one says that nothing changed.
    pub version: Option<Box<str>>,
    /// Take fields from other managers.
    pub force: bool,
    /// Take over an object of that name that somebody else has made.
    pub adopt: bool,
    /// Whether an item that somebody has put into a keyed list may be in the way.
    pub lost_items: bool,
    /// Whether our entry of managedFields has more than the intent: fields of others, which it gives up first.
    pub exceeds: bool,
    /// Whether it makes something, or makes it the instance's: only for one that is read live and is to stay.
    pub gives_life: bool,
    /// Whether the server has found no fault with it in this shape before.
    pub tried: bool,
    /// Why.
    pub why: Why,
    /// Whether to find out who it is that takes the fields: they are repaired too often.
    pub contested: bool,
    /// The live object, if it may be deleted and made anew where a field of it may not be changed.
    pub recreate: Option<Arc<Observed>>,
}

/// The precondition of an apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// No object of that name.
    Absent,
    /// The object of that uid.
    Present(Box<str>),
}

/// The reason of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It does not exist.
    Create,
    /// It should be something else than before.
    Update,
    /// It should be the same, and somebody took fields of it.
    Repair,
    /// Somebody changed something, and metadata cannot show whether it is ours.
    Recheck,
    /// It does not exist, was accepted, and the change that is refused waits for itself.
    Restore,
}

/// What is remembered of an instance between decisions. Losing it costs at most a request that changes
/// nothing.
#[derive(Debug, Default)]
pub struct Memory {
    /// Applies that the server refused, by item name.
    pub failures: HashMap<String, Failure>,
    /// Deletions, and retentions, that the server refused; the hash is the object's uid.
    pub kept: HashMap<ObjectRef, Failure>,
    /// The last look before the finalizer goes, if it could not be had.
    pub release: Option<Failure>,
    /// Objects whose entries do not cover the intent even right after our apply, as they were then.
    pub accepted: HashMap<ObjectRef, Arc<Observed>>,
    /// When a foreign change was last answered, by object.
    pub reapplied: HashMap<ObjectRef, Duration>,
    /// Repairs of late, by object.
    pub repairs: HashMap<ObjectRef, Repairs>,
    /// The instance before the edit that is not accepted yet.
    pub previous: Option<Arc<Value>>,
    /// A record of the last accepted target that the server did not take.
    pub unrecorded: Option<String>,
    /// How often what should be has changed while nobody changed the instance.
    pub swings: Swings,
}

/// How often an object was repaired of late.
#[derive(Debug, Clone)]
pub struct Repairs {
    /// How many, less one for each [`REPAIR_EVERY`] since.
    level: u32,
    at: Duration,
    /// The field that was lost, and its owner; once they were asked for.
    pub rival: Option<(String, Option<String>)>,
}

impl Repairs {
    /// One repair more.
    pub fn count(
        memory: &mut Memory,
        object: &ObjectRef,
        now: Duration,
        rival: Option<(String, Option<String>)>,
    ) {
        let before = memory.repairs.get(object);
        let level = before.map_or(0, |repairs| repairs.level_at(now)).saturating_add(1);
        let rival = rival.or_else(|| before.and_then(|repairs| repairs.rival.clone()));
        memory.repairs.insert(object.clone(), Self { level, at: now, rival });
    }

    fn level_at(&self, now: Duration) -> u32 {
        let passed = now.saturating_sub(self.at).as_secs() / REPAIR_EVERY.as_secs();
        self.level.saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX))
    }

    /// Whether the next one should tell who it is.
    fn is_frequent(&self, now: Duration) -> bool {
        self.level_at(now) + 1 >= REPAIRS
    }

    /// How long until the next repair; `None`: now.
    fn rest(&self, now: Duration) -> Option<Duration> {
        (self.level_at(now) >= REPAIRS)
            .then(|| REPAIR_EVERY.saturating_sub(now.saturating_sub(self.at)).max(Duration::from_secs(1)))
    }
}

impl Memory {
    /// Forgets what was about a target before the one that has been accepted.
    pub fn accept(&mut self) {
        self.failures.retain(|item, _| !item.ends_with(accepted::AS_ACCEPTED));
        self.unrecorded = None;
    }

    /// Forgets what is about objects that are not there any more. `observed`: also what former instances have left,
    /// or each refusal to delete one of those would count as the first.
    pub fn keep<'a>(&mut self, observed: impl IntoIterator<Item = &'a Arc<Observed>>) {
        if self.kept.is_empty()
            && self.accepted.is_empty()
            && self.reapplied.is_empty()
            && self.repairs.is_empty()
        {
            return;
        }
        let there: HashSet<&ObjectRef> = observed.into_iter().map(|o| &o.object).collect();
        self.kept.retain(|object, _| there.contains(object));
        self.accepted.retain(|object, _| there.contains(object));
        self.reapplied.retain(|object, _| there.contains(object));
        self.repairs.retain(|object, _| there.contains(object));
    }
}

/// An apply that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The intent it was about; another intent is tried at once.
    pub hash: String,
    /// What the server said.
    pub error: CallError,
    /// Not again before this time.
    pub retry_at: Duration,
    /// How often in a row.
    pub count: u32,
    /// The uid of the object that it was about; what another would say is not known.
    pub uid: Option<Box<str>>,
    /// The resourceVersion that it was about, where another may have mended it.
    pub version: Option<Box<str>>,
    /// Found by a dry run: until it is mended nothing of the same change is written.
    pub blocks: bool,
}

/// How an instance stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The cluster equals the target, and all of it is ready.
    Ready {
        /// How many children.
        children: usize,
    },
    /// All of the target is applied, and `readyWhen` holds. Whether all children are ready is not the matter.
    Enough {
        /// How many children.
        children: usize,
    },
    /// On the way. What is awaited.
    Reconciling {
        /// Camel case.
        reason: String,
        /// Names the child.
        message: String,
    },
    /// It will not get further by itself.
    Stalled {
        /// Camel case.
        reason: String,
        /// Names the child, the place and what to do.
        message: String,
    },
    /// Its package is not active, so nothing is known of it.
    NotLoaded {
        /// Names the package and why.
        message: String,
    },
    /// A person has stopped it.
    Paused,
    /// Being deleted. What is awaited.
    Deleting {
        /// Names the child.
        message: String,
    },
}

/// What to do next.
#[derive(Debug)]
pub struct Decision {
    /// Of what is about to be created or changed, waiting or not, that in whose shape nothing has been tried
    /// yet: a dry run of each comes before the first of the actions.
    pub checks: Vec<Check>,
    /// What to do now; the finalizer first, applies in any order, deletions last.
    pub actions: Vec<Action>,
    /// How the instance stands.
    pub verdict: Verdict,
    /// The status to write once there is nothing to do now; of what is being deleted only if something holds it.
    pub status: Option<Status>,
    /// When to decide again, if no event comes first.
    pub again: Option<Duration>,
    /// One line a child for those who look on: name, object, and what is awaited of it.
    pub children: Vec<(String, Option<ObjectRef>, Result<(), String>)>,
    /// What is to be watched for the instance, beside its children.
    pub wants: Vec<Want>,
    /// Whether some of that is still being read for the first time: then the status is not to be written
    /// yet.
    pub pending: bool,
    /// Whether all of the target was applied.
    pub accepted: bool,
    /// Changes of the target among the actions that nobody's change of the instance explains.
    pub swings: Vec<Swing>,
    /// Whether some of what is to be written was too much to be kept, and comes with a later decision.
    pub is_partial: bool,
    /// The limit at which evaluation stopped; then there is nothing to do, and the verdict says why.
    pub exceeded: Option<Exceeded>,
}

impl Decision {
    /// What is told of it, everywhere: the verdict; of one that is Ready, also what its status lacks.
    pub fn summary(&self) -> Summary {
        let summary = self.verdict.summary();
        match &self.status {
            Some(status) => status.summary(summary),
            None => summary,
        }
    }

    /// Of an instance whose package is not active: its children stay as they are.
    pub fn not_loaded(instance: &Value, message: String) -> Self {
        let verdict = Verdict::NotLoaded { message };
        Self {
            checks: Vec::new(),
            actions: Vec::new(),
            status: Some(Status::unseen(instance, &verdict)),
            verdict,
            again: None,
            children: Vec::new(),
            wants: Vec::new(),
            pending: false,
            accepted: false,
            swings: Vec::new(),
            is_partial: false,
            exceeded: None,
        }
    }
}

/// Decides about an instance. `now` is time since the manager started.
pub fn decide(ctx: &Context<'_>, memory: &Memory, now: Duration) -> Decision {
    if !ctx.instance["metadata"]["deletionTimestamp"].is_null() {
        let unlisted = ctx.unlisted_in_order();
        let leaving = super::deletion::Leaving {
            instance: ctx.instance,
            observed: ctx.observed,
            former: ctx.former,
            occupant: ctx.occupant,
            unlisted: &unlisted,
        };
        return super::deletion::decide_from(&leaving, memory, now);
    }
    let target = target(ctx);
    if let Some(exceeded) = ctx.budget.exceeded() {
        return stopped(ctx, target, exceeded);
    }
    let mut deciding = Deciding {
        ctx,
        memory,
        now,
        target: &target,
        edges: Edges::of(ctx, &target),
        checks: Vec::new(),
        actions: Vec::new(),
        again: None,
        notes: Notes::default(),
        swings: Vec::new(),
        record: None,
    };
    let paused = pause(ctx, &target);
    if paused.is_none() {
        deciding.applies();
        deciding.refs();
        deciding.leftovers();
        deciding.stale_marks();
        deciding.finalizer();
        deciding.keep_record();
        deciding.actions.extend(jobs::to_record(ctx, &target).map(Action::RecordJobs));
    }
    let accepted = deciding.is_accepted();
    let Deciding { checks, actions, again, notes, swings, .. } = deciding;
    let verdict = paused.unwrap_or_else(|| verdict::verdict(ctx, &target, &actions, &notes));
    let status = Status::project(ctx, &target, &verdict).pending(&notes.pending);
    if let Some(exceeded) = ctx.budget.exceeded() {
        return stopped(ctx, target, exceeded);
    }
    let children = lines(&target);
    let is_partial = target.items.iter().any(|item| item.is_later);
    let Refs { wants, mut pending, .. } = target.refs;
    pending |= ctx.resource.reads_cluster && ctx.apis.is_none();
    Decision {
        checks,
        actions,
        verdict,
        status: Some(status),
        again,
        children,
        wants,
        pending,
        accepted,
        swings,
        is_partial,
        exceeded: None,
    }
}

/// Evaluation stopped at a limit: what is not known as a whole is not acted upon.
fn stopped(ctx: &Context<'_>, target: Target, exceeded: Exceeded) -> Decision {
    let Exceeded { subject, error, .. } = &exceeded;
    let message = format!("{subject}: {error}; nothing of it is written until it changes");
    let verdict = Verdict::Stalled { reason: "LimitExceeded".into(), message };
    Decision {
        checks: Vec::new(),
        actions: Vec::new(),
        status: Some(Status::unfinished(ctx, &verdict)),
        verdict,
        again: None,
        children: lines(&target),
        wants: target.refs.wants,
        pending: false,
        accepted: false,
        swings: Vec::new(),
        is_partial: false,
        exceeded: Some(exceeded),
    }
}

/// One line a child.
fn lines(target: &Target) -> Vec<(String, Option<ObjectRef>, Result<(), String>)> {
    let line = |item: &Item| {
        let object = item.intent.as_ref().ok().map(|intent| intent.object.clone());
        (item.name.clone(), object, item_state(item))
    };
    target.items.iter().map(line).collect()
}

fn item_state(item: &Item) -> Result<(), String> {
    match &item.intent {
        Err(error) => Err(error.to_string()),
        Ok(_) if item.observed.is_some() && !item.is_current() => Err("awaits its update".into()),
        Ok(_) => item.ready.clone(),
    }
}

/// What keeps us from writing, if something does. Where it cannot be told whether a person wants us to stop, we
/// stop, and say so.
fn pause(ctx: &Context<'_>, target: &Target) -> Option<Verdict> {
    if ctx.instance["metadata"]["annotations"][names::PAUSED].as_str() == Some("true") {
        return Some(Verdict::Paused);
    }
    let message = |error: &EvalError| {
        format!("paused: {error}; nothing is written until it can be told whether it holds")
    };
    ctx.budget.about("paused");
    match ctx.package.engine.truthy(ctx.resource.paused.as_ref()?, &target.scope) {
        Ok(true) => Some(Verdict::Paused),
        Ok(false) => None,
        Err(error @ (EvalError::Unknown { .. } | EvalError::NotYet(_))) if !error.is_mixed() => {
            Some(Verdict::Reconciling { reason: "PausedUnknown".into(), message: message(&error) })
        }
        Err(error) => Some(Verdict::Stalled { reason: "PausedFailed".into(), message: message(&error) }),
    }
}

/// What stands between the cluster and the target.
#[derive(Default)]
struct Notes {
    stalled: Vec<(String, String)>,
    waiting: Vec<(String, String)>,
    /// Deletions that wait for approval: no reason not to be ready.
    pending: Vec<String>,
    /// The unknown refs that the notes are about.
    refs: BTreeSet<String>,
}

struct Deciding<'a> {
    ctx: &'a Context<'a>,
    memory: &'a Memory,
    now: Duration,
    target: &'a Target,
    edges: Edges<'a>,
    checks: Vec<Check>,
    actions: Vec<Action>,
    again: Option<Duration>,
    notes: Notes,
    swings: Vec<Swing>,
    /// What is kept up while a change is refused.
    record: Option<Accepted>,
}

impl Deciding<'_> {
    /// Notes why something has no value. Whose ref is unknown is told that ref's reason.
    fn tell(&mut self, name: &str, error: &ChildError) {
        let (mut reason, mut waiting) = (error.reason(), error.is_waiting());
        if let Some((_, problem)) = self.problem_of(error) {
            (reason, waiting) = (problem.reason, problem.is_waiting);
        }
        self.note_error(name, reason, waiting, error);
    }

    /// The unknown ref that an error is about.
    fn problem_of(&self, error: &ChildError) -> Option<(&str, &refs::Problem)> {
        match error {
            ChildError::Eval(EvalError::Unknown { path, .. }) => self.target.refs.problem_of(path),
            _ => None,
        }
    }

    /// Notes refs that are unknown, where nothing that reads them has said so.
    fn refs(&mut self) {
        let target = self.target;
        for (id, problem) in &target.refs.problems {
            if !self.notes.refs.contains(id) {
                let message = format!("refs.{id}: {}", problem.message);
                self.note(problem.reason, problem.is_waiting, message);
            }
        }
    }

    fn wake(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |again| again.min(after)));
    }
}

/// Whether our entry of managedFields still owns every leaf of the intent.
pub fn is_covered(intent: &Intent, observed: &Observed) -> bool {
    observed
        .owned
        .as_ref()
        .is_some_and(|owned| fields::uncovered_beside(&intent.body, owned, &observed.foreign).is_none())
}

/// Whether our entry of managedFields has what the intent, with which the object was applied last, has not. An item of
/// a list counts only where all of ours is intact: in place of a lost one it is to be removed.
pub fn exceeds(intent: &Intent, observed: &Observed, items: bool) -> bool {
    observed.intent.as_deref() == Some(&intent.hash)
        && observed
            .owned
            .as_ref()
            .is_some_and(|owned| !fields::excess(&intent.body, owned, &intent.keep, items).is_empty())
}

/// Applied as it should be, and ready.
fn settled(item: &Item) -> bool {
    item.intent.is_ok() && item.is_current() && item.ready.is_ok()
}

fn unready(item: &Item) -> String {
    match (&item.intent, &item.ready) {
        (Err(error), _) => error.to_string(),
        (_, Err(message)) => message.clone(),
        (Ok(_), Ok(())) => "awaits its update".into(),
    }
}
