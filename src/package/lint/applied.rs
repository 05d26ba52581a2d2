//! Reports steps of a first rollout that need a child which no earlier step applies, so that they would wait
//! until their timeout.

use std::collections::BTreeSet;

use super::objects::{Names, Objects, pod_of};
use super::references::{is_to, of_pod};
use super::sketch::{At, Part};
use crate::Resource;
use crate::diag::Diagnostic;
use crate::plan::{Action, Event, Plan, Step, Strategy};
use crate::template_scan::Outlines;

/// Reports children that a step of a plan for a new instance needs before they are applied.
pub(super) fn check(
    resource: &Resource,
    outlines: &Outlines,
    objects: &Objects<'_>,
    names: &Names<'_>,
    found: &mut Vec<Diagnostic>,
) {
    let is_first = |plan: &&Plan| {
        plan.triggers.iter().any(|trigger| matches!(trigger.event, Event::Created) && trigger.when.is_none())
    };
    for plan in resource.plans.iter().filter(is_first) {
        let mut checker = StepChecker { resource, outlines, objects, names, applied: BTreeSet::new(), found };
        checker.steps(&plan.steps, plan.strategy, &format!("plans.{}", plan.name));
    }
}

struct StepChecker<'a, 'o> {
    resource: &'a Resource,
    outlines: &'a Outlines,
    objects: &'o Objects<'a>,
    names: &'o Names<'a>,
    applied: BTreeSet<&'a str>,
    found: &'o mut Vec<Diagnostic>,
}

impl<'a> StepChecker<'a, '_> {
    fn steps(&mut self, steps: &'a [Step], strategy: Strategy, path: &str) {
        if strategy == Strategy::Parallel {
            // Parallel steps may run in any order.
            for step in steps {
                applies(step, self.resource, &mut self.applied, 0);
            }
        }
        for (index, step) in steps.iter().enumerate() {
            let path = format!("{path}.steps[{index}]");
            // The condition may exclude new instances, so such a step is not checked.
            let is_conditional = step.when.is_some() || step.unless.is_some();
            match &step.action {
                Action::Steps(strategy, steps) if !is_conditional => {
                    if step.is_loop() {
                        applies(step, self.resource, &mut self.applied, 0);
                    }
                    self.steps(steps, *strategy, &path);
                }
                _ => {
                    if !is_conditional {
                        self.needs(step, &path);
                    }
                    applies(step, self.resource, &mut self.applied, 0);
                }
            }
        }
    }

    fn needs(&mut self, step: &'a Step, path: &str) {
        let mut needed: Vec<&str> = Vec::new();
        match &step.action {
            action if let Some(pod) = action.pod() => {
                let own = pod.of.is_none().then(|| self.resource.child(&pod.child.child)).flatten();
                needed.extend(own.map(|child| child.id.as_str()));
            }
            Action::Job { template } => {
                if let Some(At::Part(pod)) =
                    self.outlines.root(template).map(|root| root.at(&["spec", "template"]))
                {
                    needed.extend(self.pod(pod));
                }
            }
            Action::Apply(members) => {
                let here: Vec<&str> = members.iter().map(|member| member.child.as_str()).collect();
                for child in here.iter().filter_map(|id| self.resource.child(id)) {
                    let [gvk] = child.kinds.as_slice() else { continue };
                    let pod = self.outlines.root(&child.template).and_then(|root| pod_of(root, gvk));
                    let all = pod.map(|pod| self.pod(pod)).unwrap_or_default();
                    needed.extend(all.into_iter().filter(|id| !here.contains(id)));
                }
            }
            _ => {}
        }
        // A child that exists only for some instances may not be needed by the others.
        let missing = needed.into_iter().find(|id| {
            let child = self.resource.child(id);
            !self.applied.contains(id)
                && child.is_some_and(|child| child.when.is_none() && child.group_when.is_none())
        });
        let Some(id) = missing else { return };
        let message = format!("the step `{}` needs `{id}`, which no earlier step applies", step.name);
        let warning = Diagnostic::warning("package::step-order", message).located(step.location.clone());
        self.found.push(
            warning.path(path).help(format!(
                "add `{id}` to an apply step before it; children that no step names come last"
            )),
        );
    }

    /// The children to which a pod certainly refers.
    fn pod(&self, pod: Part<'_>) -> Vec<&'a str> {
        let mut found = Vec::new();
        for reference in of_pod(pod) {
            let to = self.objects.made.iter().find(|object| is_to(&reference, object, self.names));
            found.extend(to.map(|object| object.child));
        }
        found
    }
}

/// Adds the children that a step applies, including its inner steps and the plans that it runs inline.
fn applies<'a>(step: &'a Step, resource: &'a Resource, out: &mut BTreeSet<&'a str>, depth: usize) {
    match &step.action {
        Action::Apply(members) => out.extend(members.iter().map(|member| member.child.as_str())),
        Action::Steps(_, steps) => steps.iter().for_each(|step| applies(step, resource, out, depth)),
        _ => {}
    }
    // The bound stops at plans that run each other, which are reported elsewhere.
    if depth < resource.plans.len() {
        for plan in step.inlines().into_iter().filter_map(|(name, _)| resource.plan(name)) {
            plan.steps.iter().for_each(|step| applies(step, resource, out, depth + 1));
        }
    }
}
