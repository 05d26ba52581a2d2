//! What is to be applied now, in the order of the graph.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde_json::Value;

use super::super::ChildError;
use super::super::intent::Intent;
use super::super::observed::Observed;
use super::super::shape::{self, Check};
use super::super::target::{Item, Target};
use super::{
    Action, Apply, Context, Deciding, Expect, Failure, Memory, REAPPLY_EVERY, REPAIR_EVERY, Why, exceeds,
    is_covered, settled, unready,
};
use crate::children::fields;
use crate::cluster::{CallError, Class};
use crate::package::{
    Child, ConflictPolicy, DeletionPolicy, MaxUnavailable, OnImmutableChange, holds_data, locate,
};

/// What edges of the graph ask of the target.
#[derive(Default)]
pub(super) struct Edges<'t> {
    /// Members by child and key.
    by_key: HashMap<(usize, &'t Value), &'t Item>,
    /// The first member of a child that is not settled.
    unsettled: HashMap<usize, &'t Item>,
}

impl<'t> Edges<'t> {
    pub(super) fn of(ctx: &Context<'_>, target: &'t Target) -> Self {
        let mut edges = Self::default();
        if ctx.resource.children.iter().all(|child| child.depends_on.is_empty()) {
            return edges;
        }
        for item in &target.items {
            if let Some(key) = &item.key {
                edges.by_key.insert((item.child, key), item);
            }
            if !settled(item) {
                edges.unsettled.entry(item.child).or_insert(item);
            }
        }
        edges
    }
}

impl Deciding<'_> {
    pub(super) fn applies(&mut self) {
        for (index, error) in &self.target.open {
            let id = self.ctx.resource.children[*index].id.clone();
            if self.dependencies_ready(*index, None) {
                self.tell(&id, error);
            } else {
                self.note_error(&id, error.reason(), true, error);
            }
        }
        let limits = self.limits();
        let mut budgets: BTreeMap<usize, usize> = BTreeMap::new();
        let due: Vec<(usize, Option<Why>)> =
            self.in_order().into_iter().map(|i| (i, self.due_at(i))).collect();
        let changing: Vec<usize> = due
            .iter()
            .filter(|(position, why)| is_change(*why) && !self.target.items[*position].is_later)
            .map(|(position, _)| *position)
            .collect();
        let held = self.held(&changing);
        let mut lapsed = Vec::new();
        for (position, why) in due {
            let item = &self.target.items[position];
            let gate = self.gate(item);
            let intent = match &item.intent {
                Ok(intent) => intent,
                Err(error) => {
                    lapsed.push(position);
                    match gate {
                        // What it reads is not there yet: no wonder that it has no value.
                        Err(waits) => self.waits(&item.name, &waits),
                        Ok(()) => self.tell(&item.name, error),
                    }
                    continue;
                }
            };
            let Some(why) = why else { continue };
            if item.is_later {
                self.waits(&item.name, "others to be written, for all of them together are large");
                continue;
            }
            if item.observed.as_ref().is_some_and(|o| o.terminating) {
                self.notes.waiting.push(("Terminating".into(), format!("{}: {}", item.name, unready(item))));
                continue;
            }
            // Repair is never gated.
            if is_change(Some(why)) {
                if held {
                    lapsed.push(position);
                    continue;
                }
                if let Err(waits) = gate {
                    lapsed.push(position);
                    self.waits(&item.name, &waits);
                    continue;
                }
            }
            if self.refused(item, intent) {
                if is_change(Some(why)) {
                    lapsed.push(position);
                }
                continue;
            }
            // A member that is made anew is as much missing as one that is changed.
            let limit = limits.get(&item.child).copied();
            if why == Why::Create {
                let left =
                    budgets.entry(item.child).or_insert_with(|| budget(self.target, item.child, limit));
                *left = left.saturating_sub(1);
            }
            if why == Why::Update {
                let left =
                    budgets.entry(item.child).or_insert_with(|| budget(self.target, item.child, limit));
                if *left == 0 {
                    self.notes.waiting.push((
                        "Waiting".into(),
                        format!("{} waits for its turn (maxUnavailable)", item.name),
                    ));
                    continue;
                }
                if self.oscillates(item) {
                    continue;
                }
                *left -= 1;
            }
            let apply = self.apply_of(item, intent, why);
            self.actions.push(Action::Apply(Box::new(apply)));
        }
        let is_refused = |item: &Item| match &item.intent {
            Ok(intent) => failure(self.memory, item, intent).is_some_and(|f| f.retry_at > self.now),
            Err(error) => !error.is_waiting(),
        };
        let opens = self.target.open.values().any(|error| !error.is_waiting());
        if opens || (!lapsed.is_empty() && self.target.items.iter().any(is_refused)) {
            self.keep_accepted(&lapsed);
        }
        if self.actions.iter().any(|a| matches!(a, Action::Apply(apply) if is_change(Some(apply.why)))) {
            self.checks(&changing);
        }
    }

    pub(super) fn apply_of(&self, item: &Item, intent: &Intent, why: Why) -> Apply {
        let child = &self.ctx.resource.children[item.child];
        let live = item.observed.as_deref();
        Apply {
            item: item.name.clone(),
            intent: intent.clone(),
            expect: expected(item),
            version: live.map(|o| o.resource_version.clone()),
            force: child.conflict_policy == ConflictPolicy::Force,
            adopt: child.adopt,
            lost_items: why == Why::Repair && live.is_some_and(|o| has_lost_items(intent, o)),
            exceeds: matches!(why, Why::Repair | Why::Recheck)
                && live.is_some_and(|o| has_foreign_fields(intent, o, why)),
            gives_life: gives_life(intent, live),
            tried: false,
            why,
            contested: why == Why::Repair
                && self.memory.repairs.get(&intent.object).is_some_and(|r| r.is_frequent(self.now)),
            recreate: item.observed.clone().filter(|_| self.may_recreate(item)),
        }
    }

    /// How many members of each child may be unavailable, where that is limited. A limit that has no value lets no
    /// member be changed, and is told.
    fn limits(&mut self) -> BTreeMap<usize, usize> {
        let mut limits = BTreeMap::new();
        for (index, child) in self.ctx.resource.children.iter().enumerate() {
            let Some(max) = &child.max_unavailable else { continue };
            let members = self.target.items.iter().filter(|item| item.child == index).count();
            let limit = match max {
                MaxUnavailable::Text(text) => {
                    self.ctx.budget.about(&format!("maxUnavailable of {}", child.id));
                    match self.ctx.package.engine.eval_text(text, &self.target.scope) {
                        Ok(Some(value)) => MaxUnavailable::from_value(&value).and_then(|max| max.of(members)),
                        // Left out: as if it were not there.
                        Ok(None) => continue,
                        Err(error) => {
                            self.tell(&format!("maxUnavailable of {}", child.id), &ChildError::Eval(error));
                            limits.insert(index, 0);
                            continue;
                        }
                    }
                }
                max => max.of(members),
            };
            if limit.is_none() {
                let message = "it is neither a number from 1 nor a percentage from \"1%\" to \"100%\": no member is \
                               changed until it is";
                self.note(
                    "InvalidMaxUnavailable",
                    false,
                    format!("maxUnavailable of {}: {message}", child.id),
                );
            }
            limits.insert(index, limit.unwrap_or(0));
        }
        limits
    }

    /// Whether the object may be deleted to be made anew: the package says so, and it does not itself say that
    /// it is to stay, whatever the package has come to say since.
    fn may_recreate(&self, item: &Item) -> bool {
        self.ctx.resource.children[item.child].on_immutable_change == OnImmutableChange::Recreate
            && !item.observed.as_ref().is_some_and(|o| o.is_to_stay())
    }

    /// Why the item at a position of the target needs an apply now, if it does.
    fn due_at(&mut self, position: usize) -> Option<Why> {
        let item = &self.target.items[position];
        self.due(item, item.intent.as_ref().ok()?)
    }

    /// Whether a dry run has refused one of the changes, so that none of them is made. Notes it.
    fn held(&mut self, changing: &[usize]) -> bool {
        let mut held = false;
        for position in changing {
            let item = &self.target.items[*position];
            let Ok(intent) = &item.intent else { continue };
            if failure(self.memory, item, intent).is_some_and(|f| f.blocks && f.retry_at > self.now) {
                self.refused(item, intent);
                held = true;
            }
        }
        held
    }

    /// Before the first of the changes is made, a dry run of each shape that is new.
    fn checks(&mut self, changing: &[usize]) {
        let mut shapes = BTreeSet::new();
        let mut passed = BTreeSet::new();
        for position in changing {
            let item = &self.target.items[*position];
            let Ok(intent) = &item.intent else { continue };
            // What is on its way out is made anew, which is another shape.
            if item.observed.as_ref().is_some_and(|o| o.terminating) {
                continue;
            }
            let child = &self.ctx.resource.children[item.child];
            let expect = expected(item);
            let mut shape = shape::shape(self.ctx, child, intent, &expect);
            // Refused before, when the object was another: of this intent the values count.
            if self.memory.failures.get(&item.name).is_some_and(|f| f.blocks && f.hash == intent.hash) {
                shape = shape::with_values(shape, intent);
            }
            if (self.ctx.checked)(shape) {
                passed.insert(&*item.name);
                continue;
            }
            if !shapes.insert(shape) {
                continue;
            }
            let leans_on = changing
                .iter()
                .map(|other| &self.target.items[*other])
                .filter(|other| other.name != item.name && other.observed.is_none())
                .filter(|other| other.intent.as_ref().is_ok_and(|other| shape::leans_on(intent, other)))
                .map(|other| other.name.clone())
                .collect();
            self.checks.push(Check {
                item: item.name.clone(),
                intent: intent.clone(),
                expect,
                force: child.conflict_policy == ConflictPolicy::Force,
                recreate: self.may_recreate(item),
                shape,
                leans_on,
            });
        }
        for action in &mut self.actions {
            if let Action::Apply(apply) = action {
                apply.tried = passed.contains(&*apply.item);
            }
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
    pub(super) fn due(&mut self, item: &Item, intent: &Intent) -> Option<Why> {
        let Some(observed) = &item.observed else { return (!item.done).then_some(Why::Create) };
        if observed.intent.as_deref() != Some(&intent.hash) {
            return Some(Why::Update);
        }
        let accepted = self.memory.accepted.get(&observed.object);
        let as_accepted = accepted.is_some_and(|was| {
            was.intent == observed.intent && was.owned == observed.owned && was.foreign == observed.foreign
        });
        let rests = self.contested(item, observed);
        if item.needs_no_body {
            return None;
        }
        let uncovered = !as_accepted && !is_covered(intent, observed);
        if uncovered {
            return rests.is_none().then_some(Why::Repair);
        }
        let changed = observed.mark != observed.settled;
        let exceeds = !changed && !as_accepted && exceeds(intent, observed, true);
        if (changed || exceeds) && !observed.terminating {
            let next = self.memory.reapplied.get(&observed.object).map(|at| *at + REAPPLY_EVERY);
            match next {
                Some(next) if next > self.now => self.wake(next.saturating_sub(self.now)),
                _ => return Some(Why::Recheck),
            }
        }
        None
    }

    /// How long an object that somebody else keeps changing is left alone. Notes it.
    fn contested(&mut self, item: &Item, observed: &Observed) -> Option<Duration> {
        let repairs = self.memory.repairs.get(&observed.object)?;
        let rest = repairs.rest(self.now)?;
        let (field, owner) = match &repairs.rival {
            Some((field, owner)) => (field.as_str(), owner.as_deref().unwrap_or("somebody")),
            None => ("fields", "somebody"),
        };
        let message = format!(
            "{} ({}): {owner} changes {field} again and again; it is put back once in {} s now. Stop {owner}, or give the field up: list it in `yields`",
            item.name,
            observed.object,
            REPAIR_EVERY.as_secs(),
        );
        self.notes.stalled.push(("Contested".into(), message));
        self.wake(rest);
        Some(rest)
    }

    /// Whether the server has refused this very intent and it is not yet time to try again. Notes it.
    pub(super) fn refused(&mut self, item: &Item, intent: &Intent) -> bool {
        let Some(failure) = failure(self.memory, item, intent) else { return false };
        let resize = is_refused_resize(intent, &failure.error);
        let reason = if resize { "ResizeRefused".to_owned() } else { reason_of(&failure.error) };
        let retry_at = failure.retry_at;
        let mut message = format!("{} ({}): {}", item.name, intent.object, failure.error);
        let child = &self.ctx.resource.children[item.child];
        let places = self.places(child, &failure.error);
        if !places.is_empty() {
            message.push_str("; written in ");
            message.push_str(&places.join(", "));
        }
        if resize {
            message.push_str(
                "; a volume never shrinks, and grows only where its StorageClass says allowVolumeExpansion: undo the change, or set the size that the claim has",
            );
        } else if failure.error.is_immutable_change()
            && child.on_immutable_change == OnImmutableChange::Recreate
        {
            message.push_str(
                "; it cannot be changed on the live object, which says that it is to stay (deletionPolicy), so it is not deleted to be made anew: undo the change, or delete the object by hand",
            );
        } else if failure.error.is_immutable_change() && !may_be_recreated(child) {
            message.push_str(
                "; it cannot be changed on the live object, which holds data or is to stay: undo the change, or delete the object by hand",
            );
        } else if failure.error.is_immutable_change() {
            message.push_str(
                "; it cannot be changed on the live object: undo the change, or delete the object by hand, or let the package say onImmutableChange: Recreate",
            );
        }
        if failure.blocks {
            message.push_str("; a dry run has found it, so nothing of this change is written");
        }
        if failure.error.class == Class::Retry {
            self.notes.waiting.push((reason, message));
        } else {
            self.notes.stalled.push((reason, message));
        }
        if retry_at > self.now {
            self.wake(retry_at.saturating_sub(self.now));
            return true;
        }
        false
    }

    /// Where the child's template writes the fields that the server names.
    fn places(&self, child: &Child, error: &CallError) -> Vec<String> {
        let mut places = Vec::new();
        for field in error.fields() {
            // Operetta renders the text of a Secret as data.
            let texts = field.strip_prefix("data").map(|rest| format!("stringData{rest}"));
            let found = [Some(field.to_owned()), texts]
                .into_iter()
                .flatten()
                .find_map(|field| locate(&self.ctx.package.engine, &child.template, &field));
            if let Some(location) = found.map(|location| location.to_string())
                && !places.contains(&location)
            {
                places.push(location);
            }
            if places.len() == 3 {
                break;
            }
        }
        places
    }

    /// What the item has to wait for before it is created or given a new intent.
    fn gate(&self, item: &Item) -> Result<(), String> {
        let key = item.key.as_ref();
        let child = &self.ctx.resource.children[item.child];
        for dependency in &child.depends_on {
            self.dependency_ready(*dependency, key, child.group)?;
        }
        Ok(())
    }

    fn dependencies_ready(&self, child: usize, key: Option<&Value>) -> bool {
        self.ctx.resource.children[child]
            .depends_on
            .iter()
            .all(|dep| self.dependency_ready(*dep, key, None).is_ok())
    }

    fn dependency_ready(
        &self,
        dependency: usize,
        key: Option<&Value>,
        group: Option<usize>,
    ) -> Result<(), String> {
        let id = &self.ctx.resource.children[dependency].id;
        if self.target.open.contains_key(&dependency) {
            return Err(id.clone());
        }
        // Between forEach children with the same keys, an edge is key by key.
        let same = key.and_then(|key| self.edges.by_key.get(&(dependency, key)).copied());
        let together = group.is_some() && self.ctx.resource.children[dependency].group == group;
        let blocking = match same {
            Some(one) => (!settled(one)).then_some(one),
            // In a group it has no business with other keys.
            None if together && key.is_some() => None,
            None => self.edges.unsettled.get(&dependency).copied(),
        };
        blocking.map_or(Ok(()), |other| Err(format!("{} ({})", other.name, unready(other))))
    }

    pub(super) fn waits(&mut self, name: &str, what: &str) {
        self.notes.waiting.push(("Waiting".into(), format!("{name} waits for {what}")));
    }

    /// Notes why the child of that name has no value.
    pub(super) fn note_error(&mut self, name: &str, reason: &str, waiting: bool, error: &ChildError) {
        let unknown_ref = self.problem_of(error).map(|(id, _)| id.to_owned());
        self.notes.refs.extend(unknown_ref);
        self.note(reason, waiting, format!("{name}: {error}"));
    }

    pub(super) fn note(&mut self, reason: &str, waiting: bool, message: String) {
        let note = (reason.to_owned(), message);
        if waiting {
            self.notes.waiting.push(note);
        } else {
            self.notes.stalled.push(note);
        }
    }
}

/// Whether a claim is refused because of its size alone. An admission plugin refuses it with 403, which is no missing
/// right, and validation with 422.
fn is_refused_resize(intent: &Intent, error: &CallError) -> bool {
    const SIZE: &str = "spec.resources.requests.storage";
    let is_size = match error.code {
        403 => !error.is_unauthorized() && error.message.contains("resize"),
        422 => !error.causes.is_empty() && error.causes.iter().all(|cause| cause.field == SIZE),
        _ => false,
    };
    is_size && &*intent.object.kind == "PersistentVolumeClaim"
}

/// Whether its package may say `onImmutableChange: Recreate`.
fn may_be_recreated(child: &Child) -> bool {
    child.deletion_policy == DeletionPolicy::Delete
        && !child.kinds.iter().any(|(api_version, kind)| holds_data(api_version, kind))
}

/// What the server has said to this very intent for this very object.
pub(super) fn failure<'m>(memory: &'m Memory, item: &Item, intent: &Intent) -> Option<&'m Failure> {
    let uid = item.observed.as_ref().map(|o| &o.uid);
    let version = item.observed.as_ref().map(|o| &o.resource_version);
    memory.failures.get(&item.name).filter(|f| {
        f.hash == intent.hash
            && f.uid.as_ref() == uid
            && (f.version.is_none() || f.version.as_ref() == version)
    })
}

/// Whether an apply makes something of the object that it was not.
fn is_change(why: Option<Why>) -> bool {
    matches!(why, Some(Why::Create | Why::Update))
}

/// Whether an apply makes the object, or sets an owner that it does not have.
fn gives_life(intent: &Intent, observed: Option<&Observed>) -> bool {
    let is_owned = intent.body["metadata"].get("ownerReferences").is_some();
    observed.is_none_or(|observed| is_owned && !observed.owner_reference)
}

/// What must be there for an apply of the item.
fn expected(item: &Item) -> Expect {
    item.observed.as_ref().map_or(Expect::Absent, |o| Expect::Present(o.uid.clone()))
}

/// Whether our entry lost an item of a list: another one may stand in its place. Without an entry nobody knows.
fn has_lost_items(intent: &Intent, observed: &Observed) -> bool {
    let owned = observed.owned.as_ref();
    owned.is_some_and(|owned| fields::lost_items(&intent.body, owned, &observed.foreign))
}

/// Whether our entry holds fields of others. If our entry was written since, another client applied under our name:
/// what it added is ours to remove.
fn has_foreign_fields(intent: &Intent, observed: &Observed, why: Why) -> bool {
    observed.mark.applied() == observed.settled.applied() && exceeds(intent, observed, why == Why::Recheck)
}

/// How many more members of a child may be given a new intent now.
fn budget(target: &Target, child: usize, limit: Option<usize>) -> usize {
    let Some(limit) = limit else { return usize::MAX };
    let members = target.items.iter().filter(|i| i.child == child);
    let is_going = |i: &Item| i.observed.as_ref().is_some_and(|o| o.terminating);
    let busy = members.filter(|i| i.ready.is_err() && (i.is_current() || is_going(i))).count();
    limit.saturating_sub(busy)
}

fn reason_of(error: &CallError) -> String {
    if error.is_namespace_terminating() {
        return "NamespaceTerminating".into();
    }
    if error.is_apply_conflict() {
        return "ApplyConflict".into();
    }
    if error.is_immutable_change() {
        return "ImmutableField".into();
    }
    if ["PasswordLost", "GeneratedDataForeign", "RecreateRefused"].contains(&error.reason.as_str()) {
        return error.reason.clone();
    }
    match error.class {
        Class::Retry => "ApplyRetried",
        Class::Conflict => "NameTaken",
        Class::NotFound | Class::Permanent => match error.code {
            403 if error.is_unauthorized() => "Forbidden",
            _ => "ApplyRefused",
        },
    }
    .into()
}
