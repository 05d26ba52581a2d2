//! Steps that apply and delete children.

use std::collections::{BTreeSet, HashSet};

use super::super::eval::{Eval, NoValue, holds, value};
use super::super::inputs::PodQuery;
use super::super::member::Member;
use super::super::progress::{Permit, Verb};
use super::super::step_state::{LoopItem, StepPhase};
use super::simple::not_true;
use super::step::Acted;
use super::{Advancer, At, Failure, Flow, REMAINING};
use crate::package::plan::{Action, ChildPod, Members, Step};
use crate::template::EvalError;

impl<'a> Advancer<'a> {
    pub(super) fn apply(
        &mut self,
        step: &Step,
        named: &[Members],
        path: &str,
        at: &At<'_>,
        expired: bool,
    ) -> Acted {
        if !self.fresh.is_empty() {
            // What was just recorded may change the target.
            self.wait(path, "Applying", "facts are being recorded");
            return Acted::Waiting;
        }
        let members = match self.in_target(step, named, path, at) {
            Ok(members) => members,
            Err(error) => return self.no_value(step, path, at, expired, error),
        };
        let message = if let Some(message) = self.apply_members(&members, path, step.until.is_some()) {
            message
        } else {
            let Some(until) = &step.until else { return Acted::done() };
            let scope = self.scope(step, path, at);
            match holds(self.inputs.engine.truthy(until, &scope)) {
                Ok(true) => return Acted::done(),
                Ok(false) => not_true(until.text()),
                Err(error) => return self.no_value(step, path, at, expired, error),
            }
        };
        if expired && !self.progress.in_flight {
            return Acted::Failed(self.timed_out(step, path, at, &message));
        }
        self.wait_for(step, path, at, "Applying", &message);
        Acted::Waiting
    }

    /// Records and permits members; the flag says whether the step names the member by its key. Returns what
    /// is awaited, or `None` if all members are applied.
    fn apply_members(&mut self, members: &[(Member, bool)], path: &str, has_until: bool) -> Option<String> {
        let mut message = None;
        let mut pending = 0usize;
        for (member, is_named) in members {
            let is_named = *is_named;
            let known = self.applied.contains(member) && !self.status.has_deleted(member);
            let state = self.inputs.cluster.member(member);
            if !known {
                if self.hold {
                    message.get_or_insert_with(|| format!("{member} is not applied yet"));
                    continue;
                }
                self.applied(member);
            }
            if state.exists && state.current && !state.terminating && (state.ready || has_until) {
                continue;
            }
            pending += 1;
            self.progress.awaited.push(member.clone());
            self.progress.in_flight |= state.recreating;
            let turn = state.waits_for_turn.filter(|_| !is_named);
            let why = turn.or(state.message).unwrap_or_else(|| {
                let what = match (state.exists, state.terminating, state.current) {
                    (false, ..) => "does not exist yet",
                    (_, true, _) => "is being deleted",
                    (_, _, false) => "is not applied yet",
                    _ => "is not ready",
                };
                what.to_owned()
            });
            message.get_or_insert_with(|| format!("{member}: {why}"));
            if known && (!self.hold || state.recreating) {
                self.permit(Permit {
                    member: member.clone(),
                    is_named,
                    verb: Verb::Apply,
                    step: path.to_owned(),
                });
            }
        }
        let more = pending.saturating_sub(1);
        message.map(|message| if more > 0 { format!("{message}, and {more} more") } else { message })
    }

    /// The members of the target that an apply step names, and before them those that they depend on and no
    /// step names. The flag says whether the step names the member by its key.
    fn in_target(
        &mut self,
        step: &Step,
        named: &[Members],
        path: &str,
        at: &At<'_>,
    ) -> Eval<Vec<(Member, bool)>> {
        let mut dependencies = BTreeSet::new();
        let mut queue: Vec<String> = named.iter().map(|members| members.child.clone()).collect();
        while let Some(child) = queue.pop() {
            for dependency in self.inputs.cluster.dependencies(&child) {
                if dependencies.insert(dependency.clone()) {
                    queue.push(dependency);
                }
            }
        }
        if !dependencies.is_empty() {
            let by_steps = self.applied_by_steps();
            dependencies.retain(|child| !by_steps.contains(child.as_str()));
        }
        let mut found: Vec<(Member, bool)> = Vec::new();
        let target = |child: &str| self.inputs.cluster.target(child).map_err(NoValue::Unknown);
        if !dependencies.is_empty() {
            for child in self.inputs.cluster.children() {
                if dependencies.contains(&child) {
                    let members = target(&child)?.into_iter().map(|key| Member::new(child.clone(), key));
                    found.extend(members.map(|member| (member, false)));
                }
            }
        }
        // A key that is computed is that of the moment when the step was reached: what the step waits for may change its value.
        let known = self.state(path).map(|state| state.members.clone()).unwrap_or_default();
        let (is_fixed, mut fixed, mut named_now) = (!known.is_empty(), known.into_iter(), Vec::new());
        let scope = self.scope(step, path, at);
        for members in named {
            let keys = target(&members.child)?;
            let wanted = match &members.key {
                Some(text) if text.as_literal().is_some() || !is_fixed => {
                    Some(value(self.inputs.engine, text, &scope, "the key of the member")?)
                }
                Some(_) => fixed.next().and_then(|member| member.key),
                None => None,
            };
            if !is_fixed && members.key.as_ref().is_some_and(|key| key.as_literal().is_none()) {
                named_now.push(Member::new(members.child.clone(), wanted.clone()));
            }
            let keys = keys.into_iter().filter(|key| wanted.is_none() || *key == wanted);
            for member in keys.map(|key| Member::new(members.child.clone(), key)) {
                let is_named = wanted.is_some();
                match found.iter_mut().find(|(known, _)| *known == member) {
                    Some((_, known)) => *known |= is_named,
                    None => found.push((member, is_named)),
                }
            }
        }
        if !is_fixed {
            self.state_mut(path).members = named_now;
        }
        Ok(found)
    }

    /// The children that apply steps of the run's plans name.
    fn applied_by_steps(&self) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        let mut plans: Vec<&str> = self.stored.plans.iter().map(String::as_str).collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = plans.pop() {
            if seen.insert(name)
                && let Some(plan) = self.plans.iter().find(|plan| plan.name == name)
            {
                applied_by(&plan.steps, &mut found, &mut plans);
            }
        }
        found
    }

    pub(super) fn delete(
        &mut self,
        step: &Step,
        named: &[Members],
        path: &str,
        at: &At<'_>,
        expired: bool,
    ) -> Acted {
        let stored = self.state(path).and_then(|state| state.items.clone());
        let was_stored = stored.is_some();
        let members: Vec<Member> = match stored {
            Some(items) => {
                items.into_iter().filter_map(|item| serde_json::from_value(item.value).ok()).collect()
            }
            None => match self.meant(step, named, path, at) {
                Ok(members) => members,
                Err(error) => return self.no_value(step, path, at, expired, error),
            },
        };
        // What has no value does not force anything.
        let force = step.force.as_ref().is_some_and(|force| {
            let scope = self.scope(step, path, at);
            self.inputs.engine.truthy(force, &scope).unwrap_or(false)
        });
        let mut message = None;
        for member in &members {
            if !was_stored {
                self.status.applied.retain(|applied| applied != member);
                if !self.status.deleted.contains(member) {
                    self.status.deleted.push(member.clone());
                }
            }
            let state = self.inputs.cluster.member(member);
            if !state.exists {
                continue;
            }
            self.progress.awaited.push(member.clone());
            let why = state.message.unwrap_or_else(|| "is not gone yet".to_owned());
            message.get_or_insert_with(|| format!("{member}: {why}"));
            if was_stored && !self.hold {
                let member = member.clone();
                let verb = if force { Verb::ForceDelete } else { Verb::Delete };
                self.permit(Permit { member, is_named: true, verb, step: path.to_owned() });
            }
        }
        if !was_stored {
            let items = members.iter().map(|member| LoopItem {
                key: member.to_string(),
                value: serde_json::to_value(member).unwrap_or_default(),
            });
            self.state_mut(path).items = Some(items.collect());
        }
        match message {
            None => Acted::done(),
            Some(message) if expired => Acted::Failed(self.timed_out(step, path, at, &message)),
            Some(message) => {
                self.wait_for(step, path, at, "Deleting", &message);
                Acted::Waiting
            }
        }
    }

    fn meant(&mut self, step: &Step, named: &[Members], path: &str, at: &At<'_>) -> Eval<Vec<Member>> {
        let scope = self.scope(step, path, at);
        let mut found = Vec::new();
        for members in named {
            let keys = match &members.key {
                Some(text) => vec![Some(value(self.inputs.engine, text, &scope, "the key of the member")?)],
                None => self.inputs.cluster.existing(&members.child).map_err(NoValue::Unknown)?,
            };
            for member in keys.into_iter().map(|key| Member::new(members.child.clone(), key)) {
                if !found.contains(&member) {
                    found.push(member);
                }
            }
        }
        Ok(found)
    }

    /// The implicit last step of a rollout: applies what no step has applied.
    pub(super) fn remaining(&mut self) -> Flow {
        if self.state(REMAINING).is_some_and(|state| state.phase.is_final()) {
            return Flow::Done;
        }
        if self.hold && self.state(REMAINING).is_none() {
            self.wait(REMAINING, "Settling", "the step is not started");
            return Flow::Waiting;
        }
        // From here on `applied` only grows: the members before are those of the steps.
        let before = self.status.applied.len();
        let state = self.state_mut(REMAINING);
        state.phase = StepPhase::Running;
        let before = *state.applied_before.get_or_insert(before);
        let by_steps: HashSet<Member> = self.status.applied.iter().take(before).cloned().collect();
        let mut members = Vec::new();
        for child in self.inputs.cluster.children() {
            match self.inputs.cluster.target(&child) {
                Ok(keys) => {
                    members.extend(keys.into_iter().map(|key| (Member::new(child.clone(), key), false)));
                }
                Err(why) => {
                    self.wait(REMAINING, "Unknown", format!("{child}: {why}"));
                    return Flow::Waiting;
                }
            }
        }
        members.retain(|(member, _)| !by_steps.contains(member));
        match self.apply_members(&members, REMAINING, false) {
            None => {
                self.end(REMAINING, StepPhase::Succeeded);
                Flow::Done
            }
            Some(message) => {
                self.wait(REMAINING, "Applying", message);
                Flow::Waiting
            }
        }
    }

    /// The pod of a command. If the pod does not exist, that is no failure yet.
    pub(super) fn pod(
        &mut self,
        step: &Step,
        pod: &ChildPod,
        path: &str,
        at: &At<'_>,
    ) -> Result<Eval<super::super::request::Pod>, Failure> {
        let scope = self.scope(step, path, at);
        let engine = self.inputs.engine;
        let evaluate =
            |text: &Option<crate::template::Text>, what: &str| -> Eval<Option<serde_json::Value>> {
                text.as_ref().map(|text| value(engine, text, &scope, what)).transpose()
            };
        let uid = match &pod.of {
            None => None,
            Some(of) => match engine.eval_text(&of.uid, &scope) {
                Ok(Some(serde_json::Value::String(uid))) => Some(uid),
                Ok(_) | Err(EvalError::Undefined(_)) => return Ok(Err(NoValue::Unknown(of.missing()))),
                Err(error) => return Ok(Err(error.into())),
            },
        };
        let key = match evaluate(&pod.child.key, "the key of the member") {
            Ok(key) => key,
            Err(error) => return Ok(Err(error)),
        };
        let ordinal = match evaluate(&pod.ordinal, "the ordinal") {
            Ok(ordinal) => ordinal,
            Err(error) => return Ok(Err(error)),
        };
        let ordinal = match ordinal {
            None => None,
            Some(ordinal) => match ordinal.as_u64() {
                Some(ordinal) => Some(ordinal),
                None => {
                    return Err(Failure::new(path, "ExpressionFailed", "the ordinal is not a number from 0"));
                }
            },
        };
        let of = pod.of.as_ref().map(|of| of.reference.as_str()).zip(uid.as_deref());
        let wanted = PodQuery { of, child: &pod.child.child, key: key.as_ref(), ordinal };
        Ok(self.inputs.cluster.pod(&wanted).map_err(NoValue::Unknown))
    }
}

fn applied_by<'p>(steps: &'p [Step], found: &mut BTreeSet<&'p str>, plans: &mut Vec<&'p str>) {
    for step in steps {
        match &step.action {
            Action::Apply(members) => found.extend(members.iter().map(|members| members.child.as_str())),
            Action::Steps(_, inner) => applied_by(inner, found, plans),
            Action::Plan(call) if call.of.is_none() => plans.push(&call.plan),
            _ => {}
        }
    }
}
