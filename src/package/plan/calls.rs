//! Finds the plans that a plan runs inline, within its own run.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Action, Call, OnFailure, Plan, Step};

impl Step {
    /// The plans that the step runs inline. With `None`, they have the parameters of this run.
    pub(crate) fn inlines(&self) -> Vec<(&str, Option<&Call>)> {
        let called = match &self.action {
            Action::Plan(call) if call.of.is_none() => Some((call.plan.as_str(), Some(call))),
            _ => None,
        };
        let failed = match &self.on_failure {
            OnFailure::Plan(name) => Some((name.as_str(), None)),
            OnFailure::Fail | OnFailure::Continue => None,
        };
        called.into_iter().chain(failed).collect()
    }
}

/// The facts that a plan, or a plan that it runs inline, may record.
pub(crate) fn facts_of<'a>(plans: &'a [Plan], name: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut seen, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![name]);
    while let Some(name) = open.pop() {
        let Some(plan) = plans.iter().find(|plan| plan.name == name && seen.insert(name)) else { continue };
        for visit in plan.visits() {
            found.extend(visit.step.record.iter().map(|(key, _)| key.as_str()));
            open.extend(visit.step.inlines().into_iter().map(|(called, _)| called));
        }
    }
    found
}

/// The possible schemas of `run.params` of a plan: its own, or if it has none, those of the plans that run it
/// with their parameters.
pub(crate) fn params_of<'a>(plans: &'a [Plan], name: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    let mut open = vec![name];
    let mut seen = BTreeSet::new();
    while let Some(name) = open.pop() {
        let Some(plan) = plans.iter().find(|plan| plan.name == name) else { continue };
        if !seen.insert(&plan.name) {
            continue;
        }
        if let Some(params) = &plan.params {
            found.push(params);
            continue;
        }
        let gives = |step: &Step| {
            let hands_on = |(called, call): (&str, Option<&Call>)| {
                called == name && call.is_none_or(|call| call.params.is_none())
            };
            step.inlines().into_iter().any(hands_on)
        };
        let callers = plans.iter().filter(|plan| plan.visits().iter().any(|visit| gives(visit.step)));
        open.extend(callers.map(|plan| plan.name.as_str()));
    }
    found
}
