//! `decide(package, instance, observed, now) -> actions`: what to do next for one instance.
//!
//! One call looks at one moment. Whatever can be done now is in [`Decision::actions`]; whatever waits is in
//! the [`Verdict`], and an event or [`Decision::again`] brings the next call.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::deletion;
use super::fields;
use super::intent::Intent;
use super::observed::{ObjectRef, Observed};
use super::status::Status;
use super::target::{Item, Target, target};
use super::{Context, names};
use crate::cluster::{CallError, Class};
use crate::package::{ConflictPolicy, MaxUnavailable};

/// At most one re-apply per object in this time answers foreign changes that metadata cannot explain.
const REAPPLY_EVERY: Duration = Duration::from_secs(30);

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
}

/// A server-side apply of one child.
#[derive(Debug, Clone)]
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
    /// Why.
    pub why: Why,
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
}

/// What is remembered of an instance between decisions. Losing it costs at most a request that changes
/// nothing.
#[derive(Debug, Default)]
pub struct Memory {
    /// Applies that the server refused, by item name.
    pub failures: HashMap<String, Failure>,
    /// Deletions, and retentions, that the server refused; the hash is the object's uid.
    pub kept: HashMap<ObjectRef, Failure>,
    /// Objects whose entries do not cover the intent even right after our apply, as they were then.
    pub accepted: HashMap<ObjectRef, Arc<Observed>>,
    /// When a foreign change was last answered, by object.
    pub reapplied: HashMap<ObjectRef, Duration>,
}

impl Memory {
    /// Forgets what is about objects that are not there any more.
    pub fn keep(&mut self, observed: &[Arc<Observed>]) {
        if self.kept.is_empty() && self.accepted.is_empty() && self.reapplied.is_empty() {
            return;
        }
        let there: HashSet<&ObjectRef> = observed.iter().map(|o| &o.object).collect();
        self.kept.retain(|object, _| there.contains(object));
        self.accepted.retain(|object, _| there.contains(object));
        self.reapplied.retain(|object, _| there.contains(object));
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
}

/// How an instance stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The cluster equals the target, and all of it is ready.
    Ready {
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
}

/// Decides about an instance. `now` is time since the manager started.
pub fn decide(ctx: &Context<'_>, memory: &Memory, now: Duration) -> Decision {
    if !ctx.instance["metadata"]["deletionTimestamp"].is_null() {
        return deletion::decide_from(ctx.instance, ctx.observed, memory, now);
    }
    let target = target(ctx);
    let mut deciding = Deciding {
        ctx,
        memory,
        now,
        target: &target,
        actions: Vec::new(),
        again: None,
        notes: Notes::default(),
    };
    let paused = is_paused(ctx, &target);
    if !paused {
        deciding.applies();
        deciding.leftovers();
        deciding.finalizer();
    }
    let Deciding { actions, again, notes, .. } = deciding;
    let verdict = if paused { Verdict::Paused } else { verdict(ctx, &target, &actions, &notes) };
    let status = Status::project(ctx, &target, &verdict);
    let children = target
        .items
        .iter()
        .map(|item| {
            (item.name.clone(), item.intent.as_ref().ok().map(|i| i.object.clone()), item_state(item))
        })
        .collect();
    Decision { actions, verdict, status: Some(status), again, children }
}

fn item_state(item: &Item) -> Result<(), String> {
    match &item.intent {
        Err(error) => Err(error.to_string()),
        Ok(_) if item.observed.is_some() && !item.is_current() => Err("awaits its update".into()),
        Ok(_) => item.ready.clone(),
    }
}

fn is_paused(ctx: &Context<'_>, target: &Target) -> bool {
    if ctx.instance["metadata"]["annotations"][names::PAUSED].as_str() == Some("true") {
        return true;
    }
    ctx.resource
        .paused
        .as_ref()
        .is_some_and(|paused| ctx.package.engine.truthy(paused, &target.scope).unwrap_or(false))
}

/// What stands between the cluster and the target.
#[derive(Default)]
struct Notes {
    stalled: Vec<(String, String)>,
    waiting: Vec<(String, String)>,
}

struct Deciding<'a> {
    ctx: &'a Context<'a>,
    memory: &'a Memory,
    now: Duration,
    target: &'a Target,
    actions: Vec<Action>,
    again: Option<Duration>,
    notes: Notes,
}

impl Deciding<'_> {
    fn applies(&mut self) {
        for (index, error) in &self.target.open {
            let id = self.ctx.resource.children[*index].id.clone();
            self.note_error(
                &id,
                error.reason(),
                error.is_waiting() || !self.dependencies_ready(*index, None),
                &error.to_string(),
            );
        }
        let mut budgets: BTreeMap<usize, usize> = BTreeMap::new();
        for position in self.in_order() {
            let item = &self.target.items[position];
            let gate = self.gate(item);
            let intent = match &item.intent {
                Ok(intent) => intent,
                Err(error) => {
                    match gate {
                        // What it reads is not there yet: no wonder that it has no value.
                        Err(waits) => self.waits(&item.name, &waits),
                        Ok(()) => self.note_error(
                            &item.name,
                            error.reason(),
                            error.is_waiting(),
                            &error.to_string(),
                        ),
                    }
                    continue;
                }
            };
            let Some(why) = self.due(item, intent) else { continue };
            if item.observed.as_ref().is_some_and(|o| o.terminating) {
                self.notes.waiting.push(("Terminating".into(), format!("{}: {}", item.name, unready(item))));
                continue;
            }
            // Repair is never gated.
            if matches!(why, Why::Create | Why::Update)
                && let Err(waits) = gate
            {
                self.waits(&item.name, &waits);
                continue;
            }
            if self.refused(item, intent) {
                continue;
            }
            // A member that is made anew is as much missing as one that is changed.
            if why == Why::Create {
                let left =
                    budgets.entry(item.child).or_insert_with(|| budget(self.ctx, self.target, item.child));
                *left = left.saturating_sub(1);
            }
            if why == Why::Update {
                let left =
                    budgets.entry(item.child).or_insert_with(|| budget(self.ctx, self.target, item.child));
                if *left == 0 {
                    self.notes.waiting.push((
                        "Waiting".into(),
                        format!("{} waits for its turn (maxUnavailable)", item.name),
                    ));
                    continue;
                }
                *left -= 1;
            }
            self.actions.push(Action::Apply(Box::new(Apply {
                item: item.name.clone(),
                intent: intent.clone(),
                expect: item.observed.as_ref().map_or(Expect::Absent, |o| Expect::Present(o.uid.clone())),
                version: item.observed.as_ref().map(|o| o.resource_version.clone()),
                force: self.ctx.resource.children[item.child].conflict_policy == ConflictPolicy::Force,
                why,
            })));
        }
    }

    /// Graph order; among the members of a child those first that are not ready anyway.
    fn in_order(&self) -> Vec<usize> {
        let items = &self.target.items;
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|i| (items[*i].child, items[*i].ready.is_ok()));
        order
    }

    /// Why the item needs an apply now, if it does.
    fn due(&mut self, item: &Item, intent: &Intent) -> Option<Why> {
        let Some(observed) = &item.observed else { return Some(Why::Create) };
        if observed.intent.as_deref() != Some(&intent.hash) {
            return Some(Why::Update);
        }
        let accepted = self.memory.accepted.get(&observed.object);
        let as_accepted = accepted.is_some_and(|was| {
            was.intent == observed.intent && was.owned == observed.owned && was.foreign == observed.foreign
        });
        let uncovered = !as_accepted && !is_covered(intent, observed);
        if uncovered {
            return Some(Why::Repair);
        }
        if observed.mark != observed.settled && !observed.terminating {
            let next = self.memory.reapplied.get(&observed.object).map(|at| *at + REAPPLY_EVERY);
            match next {
                Some(next) if next > self.now => self.wake(next.saturating_sub(self.now)),
                _ => return Some(Why::Recheck),
            }
        }
        None
    }

    /// Whether the server has refused this very intent and it is not yet time to try again. Notes it.
    fn refused(&mut self, item: &Item, intent: &Intent) -> bool {
        let Some(failure) = self.memory.failures.get(&item.name).filter(|f| f.hash == intent.hash) else {
            return false;
        };
        let message = format!("{} ({}): {}", item.name, intent.object, failure.error);
        if failure.error.class == Class::Retry {
            self.notes.waiting.push((reason_of(&failure.error), message));
        } else {
            self.notes.stalled.push((reason_of(&failure.error), message));
        }
        if failure.retry_at > self.now {
            self.wake(failure.retry_at.saturating_sub(self.now));
            return true;
        }
        false
    }

    /// What the item has to wait for before it is created or given a new intent.
    fn gate(&self, item: &Item) -> Result<(), String> {
        let key = item.key.as_ref();
        for dependency in &self.ctx.resource.children[item.child].depends_on {
            self.dependency_ready(*dependency, key)?;
        }
        Ok(())
    }

    fn dependencies_ready(&self, child: usize, key: Option<&Value>) -> bool {
        self.ctx.resource.children[child]
            .depends_on
            .iter()
            .all(|dep| self.dependency_ready(*dep, key).is_ok())
    }

    fn dependency_ready(&self, dependency: usize, key: Option<&Value>) -> Result<(), String> {
        let id = &self.ctx.resource.children[dependency].id;
        if self.target.open.contains_key(&dependency) {
            return Err(id.clone());
        }
        let members = || self.target.items.iter().filter(move |other| other.child == dependency);
        // Between forEach children with the same keys, an edge is key by key.
        let same = key.and_then(|key| members().find(|other| other.key.as_ref() == Some(key)));
        let blocking = match same {
            Some(one) => (!settled(one)).then_some(one),
            None => members().find(|other| !settled(other)),
        };
        blocking.map_or(Ok(()), |other| Err(format!("{} ({})", other.name, unready(other))))
    }

    fn waits(&mut self, name: &str, what: &str) {
        self.notes.waiting.push(("Waiting".into(), format!("{name} waits for {what}")));
    }

    fn note_error(&mut self, name: &str, reason: &str, waiting: bool, text: &str) {
        let note = (reason.to_owned(), format!("{name}: {text}"));
        if waiting {
            self.notes.waiting.push(note);
        } else {
            self.notes.stalled.push(note);
        }
    }

    /// Prunes what is not in the target: only once all of the target is applied, and in reverse order.
    fn leftovers(&mut self) {
        let wanted: HashSet<&ObjectRef> =
            self.target.items.iter().filter_map(|i| i.intent.as_ref().ok()).map(|i| &i.object).collect();
        let leftovers: Vec<&Arc<Observed>> = self
            .ctx
            .observed
            .iter()
            .filter(|o| !wanted.contains(&o.object) && o.is_to_go())
            .filter(|o| (self.ctx.unknown)(&o.object.api_version, &o.object.kind).is_none())
            .collect();
        if leftovers.is_empty() {
            return;
        }
        let applied = self.target.open.is_empty()
            && self.target.items.iter().all(Item::is_current)
            && !self.actions.iter().any(|a| matches!(a, Action::Apply(_)));
        if !applied {
            let text = format!("{} is pruned once all else is applied", leftovers[0].object);
            self.notes.waiting.push(("Pruning".into(), text));
            return;
        }
        let (mut actions, waits) = deletion::wave(leftovers.into_iter());
        for (object, failure) in rest(&mut actions, self.memory, self.now) {
            let note =
                ("DeletionRefused".to_owned(), format!("{object} cannot be deleted: {}", failure.error));
            self.wake(failure.retry_at.saturating_sub(self.now));
            if failure.error.class == Class::Permanent {
                self.notes.stalled.push(note);
            } else {
                self.notes.waiting.push(note);
            }
        }
        self.actions.extend(actions);
        if let Some(waits) = waits {
            self.notes.waiting.push(("Pruning".into(), waits));
        }
    }

    /// The finalizer stands before the first child that the garbage collector must not take, and only
    /// while there is one.
    fn finalizer(&mut self) {
        let has = deletion::has_finalizer(self.ctx.instance);
        let observed = self.ctx.observed.iter().any(|o| !o.owner_reference && o.is_to_go());
        let unowned = |intent: &Intent| intent.body["metadata"].get("ownerReferences").is_none();
        let planned = self.target.items.iter().any(|item| item.intent.as_ref().is_ok_and(unowned));
        if (observed || planned) && !has {
            self.actions.insert(0, Action::AddFinalizer);
        } else if has
            && !observed
            && !planned
            && self.target.open.is_empty()
            && self.target.items.iter().all(Item::is_current)
        {
            self.actions.push(Action::RemoveFinalizer);
        }
    }

    fn wake(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |again| again.min(after)));
    }
}

/// Takes out the deletions that the server has refused and that it is not yet time to try again.
pub(super) fn rest<'m>(
    actions: &mut Vec<Action>,
    memory: &'m Memory,
    now: Duration,
) -> Vec<(ObjectRef, &'m Failure)> {
    let mut resting = Vec::new();
    actions.retain(|action| {
        let (Action::Delete(o) | Action::Retain(o)) = action else { return true };
        let failure = memory.kept.get(&o.object).filter(|f| *f.hash == *o.uid && f.retry_at > now);
        resting.extend(failure.map(|failure| (o.object.clone(), failure)));
        failure.is_none()
    });
    resting
}

/// Whether our entry of managedFields still owns every leaf of the intent.
pub fn is_covered(intent: &Intent, observed: &Observed) -> bool {
    observed
        .owned
        .as_ref()
        .is_some_and(|owned| fields::uncovered_beside(&intent.body, owned, &observed.foreign).is_none())
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

/// How many more members of a child may be given a new intent now.
fn budget(ctx: &Context<'_>, target: &Target, child: usize) -> usize {
    let members: Vec<&Item> = target.items.iter().filter(|i| i.child == child).collect();
    let limit = match &ctx.resource.children[child].max_unavailable {
        None => return usize::MAX,
        Some(MaxUnavailable::Text(text)) => {
            let value = ctx.package.engine.eval_text(text, &target.scope).ok().flatten();
            // A limit that cannot be told is the careful one.
            value.and_then(|v| MaxUnavailable::from_value(&v)).and_then(|m| m.of(members.len())).unwrap_or(1)
        }
        Some(limit) => limit.of(members.len()).unwrap_or(1),
    };
    let is_going = |i: &Item| i.observed.as_ref().is_some_and(|o| o.terminating);
    let busy = members.iter().filter(|i| i.ready.is_err() && (i.is_current() || is_going(i))).count();
    limit.saturating_sub(busy)
}

fn reason_of(error: &CallError) -> String {
    if error.is_namespace_terminating() {
        return "NamespaceTerminating".into();
    }
    if error.is_apply_conflict() {
        return "ApplyConflict".into();
    }
    match error.class {
        Class::Retry => "ApplyRetried",
        Class::Conflict => "NameTaken",
        Class::NotFound | Class::Permanent => match error.code {
            403 => "Forbidden",
            _ => "ApplyRefused",
        },
    }
    .into()
}

fn verdict(ctx: &Context<'_>, target: &Target, actions: &[Action], notes: &Notes) -> Verdict {
    let join = |notes: &[(String, String)]| {
        let mut text = notes.iter().take(3).map(|(_, m)| m.as_str()).collect::<Vec<_>>().join("; ");
        if notes.len() > 3 {
            let _ = write!(text, "; and {} more", notes.len() - 3);
        }
        text
    };
    if let Some((reason, _)) = notes.stalled.first() {
        return Verdict::Stalled { reason: reason.clone(), message: join(&notes.stalled) };
    }
    if let Some(message) = first_write(actions) {
        return Verdict::Reconciling { reason: "Applying".into(), message };
    }
    if let Some((reason, _)) = notes.waiting.first() {
        return Verdict::Reconciling { reason: reason.clone(), message: join(&notes.waiting) };
    }
    let unready_items: Vec<(String, String)> = target
        .items
        .iter()
        .filter(|i| i.ready.is_err())
        .map(|i| (String::new(), format!("{}: {}", i.name, unready(i))))
        .collect();
    if let Some(ready_when) = &ctx.resource.ready_when {
        return match ctx.package.engine.truthy(ready_when, &target.scope) {
            Ok(true) => Verdict::Ready { children: target.items.len() },
            _ if !unready_items.is_empty() => {
                Verdict::Reconciling { reason: "ChildrenNotReady".into(), message: join(&unready_items) }
            }
            _ => Verdict::Reconciling {
                reason: "ReadyWhen".into(),
                message: "readyWhen is not met yet".into(),
            },
        };
    }
    if unready_items.is_empty() {
        Verdict::Ready { children: target.items.len() }
    } else {
        Verdict::Reconciling { reason: "ChildrenNotReady".into(), message: join(&unready_items) }
    }
}

fn first_write(actions: &[Action]) -> Option<String> {
    actions.iter().find_map(|action| match action {
        Action::Apply(apply) => Some(format!("applies {}", apply.item)),
        Action::Delete(observed) => Some(format!("deletes {}", observed.object)),
        Action::AddFinalizer | Action::RemoveFinalizer | Action::Retain(_) => None,
    })
}
