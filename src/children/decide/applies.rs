//! What is to be applied now, in the order of the graph.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::intent::Intent;
use super::super::target::{Item, Target};
use super::{Action, Apply, Context, Deciding, Expect, REAPPLY_EVERY, Why, is_covered, settled, unready};
use crate::cluster::{CallError, Class};
use crate::package::{ConflictPolicy, MaxUnavailable};

impl Deciding<'_> {
    pub(super) fn applies(&mut self) {
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

    pub(super) fn waits(&mut self, name: &str, what: &str) {
        self.notes.waiting.push(("Waiting".into(), format!("{name} waits for {what}")));
    }

    pub(super) fn note_error(&mut self, name: &str, reason: &str, waiting: bool, text: &str) {
        let note = (reason.to_owned(), format!("{name}: {text}"));
        if waiting {
            self.notes.waiting.push(note);
        } else {
            self.notes.stalled.push(note);
        }
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
