//! Why runs should begin: conditions that hold, and schedules that are due.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::Runs;
use crate::children::model::{Finding, share};
use crate::package::plan::{Event, Plan};
use crate::plan::{self, Member, Noticed, PlanRun, SCHEDULED_AT, Schedule, Watch};
use crate::template::{Expr, Scope, Var};

impl Runs<'_> {
    /// The variables of expressions. The members that active runs have changed and still await are unknown.
    fn scope_without(&self, awaited: &[Member]) -> Scope {
        if awaited.is_empty() {
            return self.target.scope.clone();
        }
        let mut children = self.target.children.clone();
        for member in awaited {
            let Some(var) = children.get_mut(&member.child) else { continue };
            let unknown = Var::Unknown(format!("a run awaits {member}"));
            let members = match (std::mem::replace(var, Var::Undefined), &member.key) {
                (_, None) => {
                    *var = unknown;
                    continue;
                }
                (Var::Map(members), Some(_)) => {
                    members.into_iter().map(|(key, live)| (key, Var::Object(live))).collect()
                }
                (Var::Keyed(members), Some(_)) => members,
                (other, Some(_)) => {
                    *var = other;
                    continue;
                }
            };
            let mut members: Vec<(Value, Var)> = members;
            let key = member.key.clone().unwrap_or_default();
            members.retain(|(known, _)| *known != key);
            members.push((key, unknown));
            *var = Var::Keyed(members);
        }
        self.target.scope.with("children", Var::Vars(children))
    }

    pub(super) fn watch_conditions(
        &mut self,
        now: Duration,
        awaited: &[Member],
    ) -> Vec<(String, plan::ConditionState)> {
        let (origin, scope_always) = (self.ctx.origin, &self.target.scope);
        let scope = &self.scope_without(awaited);
        self.outcome.conditions.pass(now, self.is_paused);
        let mut found = Vec::new();
        for plan in &origin.resource.plans {
            let is_own = |run: &&&PlanRun| run.spec.plan == plan.name;
            let runs = self.past.history.runs.iter().rev().filter(is_own);
            let ended = runs.clone().find(|run| run.is_final()).map(|run| run.uid.as_str());
            let active = runs.clone().any(|run| !run.is_final());
            let engine = &origin.package.engine;
            let watch = Watch { plan, engine, scope, scope_always, ended, active, now: self.plans.now };
            let mut noticed = Noticed::default();
            if let Some(verdict) = self.outcome.conditions.watch(&watch, &mut noticed) {
                found.push((plan.name.clone(), verdict));
            }
            self.outcome.wake = [self.outcome.wake, noticed.wake].into_iter().flatten().min();
            for (reason, problem) in noticed.problems {
                self.outcome.findings.push(invalid(plan, reason, problem));
            }
        }
        found
    }

    /// The plans whose schedule is due.
    pub(super) fn due(&mut self) -> Vec<(String, String, Timestamp)> {
        let origin = self.ctx.origin;
        let engine = &origin.package.engine;
        let scope = &self.target.scope;
        let created = self.ctx.snapshot.instance["metadata"]["creationTimestamp"].as_str();
        let Some(created) = created.and_then(|text| text.parse::<Timestamp>().ok()) else {
            return Vec::new();
        };
        let share = share(&origin.uid());
        let mut due = Vec::new();
        for plan in &origin.resource.plans {
            for trigger in &plan.triggers {
                let Event::Schedule { schedule, time_zone, starting_deadline, suspend } = &trigger.event
                else {
                    continue;
                };
                let holds = |when: &Option<Expr>, otherwise: bool| match when {
                    Some(when) => engine.truthy(when, scope).unwrap_or(false),
                    None => otherwise,
                };
                if !holds(&trigger.when, true) || holds(suspend, false) {
                    continue;
                }
                let text = |text: &crate::template::Text| {
                    engine
                        .eval_text(text, scope)
                        .ok()
                        .flatten()
                        .and_then(|value| value.as_str().map(str::to_owned))
                };
                let Some(line) = text(schedule) else { continue };
                let zone = time_zone.as_ref().and_then(text);
                let parsed = match Schedule::parse(&line, zone.as_deref()) {
                    Ok(parsed) => parsed,
                    Err(message) => {
                        self.outcome.findings.push(invalid(plan, "InvalidSchedule", message));
                        continue;
                    }
                };
                let last = self.past.history.runs.iter().filter(|run| run.spec.plan == plan.name);
                let last = last.filter_map(|run| run.annotations.get(SCHEDULED_AT)?.parse().ok());
                let last = plan::last_scheduled(last, self.plans.now);
                let found = parsed.due(last, created, self.plans.now, *starting_deadline, share);
                self.outcome.wake = [self.outcome.wake, found.wake].into_iter().flatten().min();
                if let Some(at) = found.at {
                    let name = plan::scheduled_name(origin.name(), &plan.name, at);
                    due.push((plan.name.clone(), name, at));
                }
            }
        }
        due
    }
}

/// A finding about a trigger of a plan that starts no run, because one of its templates yields no valid
/// value.
fn invalid(plan: &Plan, reason: &str, message: String) -> Finding {
    let (run, reason) = (plan.name.clone(), reason.to_owned());
    Finding::RunFailed { run, reason, message, is_undone: plan.affects_ready }
}
