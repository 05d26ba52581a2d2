//! Which plans a change selects.

use std::collections::BTreeSet;

use super::origin::ComparedOrigin;
use crate::package::plan::{Action, ChangedPath, Event, Plan, Step, Trigger};
use crate::template::Expr;

/// What a selection is made from.
pub struct Change<'a> {
    /// All plans of the resource.
    pub plans: &'a [Plan],
    /// The instance, its package and what it reads, as they are now.
    pub newest: ComparedOrigin<'a>,
    /// The origins in use: the one last rolled out, those of rollouts that were started since, those of the children.
    pub in_use: &'a [ComparedOrigin<'a>],
    /// Whether no rollout has succeeded yet.
    pub initial: bool,
    /// The children whose target has changed through spec, labels, an object ref, CRD defaults, the package or Operetta.
    pub changed_children: &'a BTreeSet<String>,
    /// The plans of the newest rollout that has started, if it has not succeeded: its later steps may change
    /// no child, and must run nevertheless.
    pub unfinished: Option<&'a [String]>,
    /// Whether the `when` of a trigger is true; without a value it is not.
    pub holds: &'a dyn Fn(&Expr) -> bool,
}

/// A rollout that is needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selected {
    /// Its plans, in the order in which the package declares them. None: only the implicit step.
    pub plans: Vec<String>,
    /// Why, for people: `spec.size selects resize`.
    pub reasons: Vec<String>,
}

/// The name of the plan that runs when no other does.
pub const DEPLOY: &str = "deploy";
const UPDATE: &str = "update";
/// Why the plans of a rollout that has not succeeded are selected again.
const UNFINISHED: &str = "the last rollout has not succeeded";

/// Whether changes of instances start runs. Without such a plan, the graph is the rollout.
pub fn has_rollouts(plans: &[Plan]) -> bool {
    plans.iter().any(|plan| plan.triggers.iter().any(|trigger| trigger.event.is_rollout()))
}

/// The children that the steps of rollouts name: all others follow their target at once.
pub fn rollout_children(plans: &[Plan]) -> BTreeSet<String> {
    let mut queue: Vec<&str> = plans
        .iter()
        .filter(|plan| plan.triggers.iter().any(|trigger| trigger.event.is_rollout()))
        .map(|plan| plan.name.as_str())
        .collect();
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    while let Some(name) = queue.pop() {
        if seen.insert(name)
            && let Some(plan) = plans.iter().find(|plan| plan.name == name)
        {
            collect(&plan.steps, &mut found, &mut queue);
        }
    }
    found
}

/// Whether a trigger names a ref.
pub(super) fn is_named(plans: &[Plan], id: &str) -> bool {
    let names = |path: &ChangedPath| matches!(path, ChangedPath::Ref(named) if named == id);
    let mut triggers = plans.iter().flat_map(|plan| &plan.triggers);
    triggers.any(|trigger| matches!(&trigger.event, Event::Changed(paths) if paths.iter().any(names)))
}

fn collect<'p>(steps: &'p [Step], found: &mut BTreeSet<String>, plans: &mut Vec<&'p str>) {
    for step in steps {
        match &step.action {
            Action::Apply(members) => found.extend(members.iter().map(|members| members.child.clone())),
            Action::Steps(_, inner) => collect(inner, found, plans),
            Action::Plan(call) if call.of.is_none() => plans.push(&call.plan),
            _ => {}
        }
    }
}

/// The rollout that a change needs; `None` if it needs none.
pub fn select(change: &Change<'_>) -> Option<Selected> {
    if !has_rollouts(change.plans) {
        return None;
    }
    let mut selection = Selection { change, names: BTreeSet::new(), reasons: Vec::new() };
    if change.initial {
        for plan in selection.triggered(|event| matches!(event, Event::Created)) {
            selection.add(plan, "no rollout has succeeded yet");
        }
        if selection.names.is_empty() {
            selection.deploy("no rollout has succeeded yet");
        }
        return Some(selection.finish());
    }
    let mut paths: BTreeSet<Vec<String>> = BTreeSet::new();
    let mut refs = BTreeSet::new();
    let mut upgraded = None;
    for origin in change.in_use {
        paths.extend(change.newest.changed_paths(origin));
        refs.extend(change.newest.changed_refs(origin));
        if origin.revision != change.newest.revision {
            upgraded = Some(format!("package {} instead of {}", change.newest.revision, origin.revision));
        }
    }
    if let Some(reason) = &upgraded {
        let mut plans = selection.triggered(|event| matches!(event, Event::Upgraded));
        if plans.is_empty() {
            plans = selection.named(UPDATE);
        }
        for plan in plans {
            selection.add(plan, reason);
        }
    }
    for path in &paths {
        if let Some(plan) = selection.most_specific(path) {
            selection.add(plan, &path.join("."));
        }
    }
    for (plan, path) in selection.changed_metadata() {
        selection.add(plan, &path);
    }
    for id in &refs {
        let names = |event: &Event| matches!(event, Event::Changed(paths) if paths.contains(&ChangedPath::Ref(id.clone())));
        for plan in selection.triggered(names) {
            selection.add(plan, &format!("refs.{id}"));
        }
    }
    let unfinished = change.unfinished.unwrap_or_default().iter();
    let unfinished: Vec<&Plan> = unfinished.flat_map(|name| selection.named(name)).collect();
    for plan in unfinished {
        selection.add(plan, UNFINISHED);
    }
    let by_steps = rollout_children(change.plans);
    let children: Vec<&str> = change
        .changed_children
        .iter()
        .filter(|child| by_steps.contains(*child))
        .map(String::as_str)
        .collect();
    if !selection.names.is_empty() {
        return Some(selection.finish());
    }
    let reason = match (upgraded, change.unfinished) {
        _ if !children.is_empty() => format!("another target of {}", children.join(", ")),
        (Some(reason), _) => reason,
        // The plans of the unfinished rollout are gone.
        (None, Some(_)) => UNFINISHED.to_owned(),
        (None, None) => return None,
    };
    match selection.named(UPDATE).first() {
        Some(update) => selection.add(update, &reason),
        None => selection.deploy(&reason),
    }
    Some(selection.finish())
}

struct Selection<'a> {
    change: &'a Change<'a>,
    names: BTreeSet<&'a str>,
    reasons: Vec<String>,
}

impl<'a> Selection<'a> {
    fn add(&mut self, plan: &'a Plan, reason: &str) {
        self.names.insert(&plan.name);
        self.reasons.push(format!("{reason} selects {}", plan.name));
    }

    fn deploy(&mut self, reason: &str) {
        if let Some(plan) = self.change.plans.iter().find(|plan| plan.name == DEPLOY) {
            self.add(plan, reason);
        } else {
            self.reasons.push(reason.to_owned());
        }
    }

    fn named(&self, name: &str) -> Vec<&'a Plan> {
        self.change.plans.iter().filter(|plan| plan.name == name).collect()
    }

    /// The plans with such a trigger whose `when` is true.
    fn triggered(&self, is_such: impl Fn(&Event) -> bool) -> Vec<&'a Plan> {
        let plans = self.change.plans.iter();
        plans
            .filter(|plan| plan.triggers.iter().any(|trigger| is_such(&trigger.event) && self.holds(trigger)))
            .collect()
    }

    /// The plans whose triggers name a label or an annotation that has changed, with its path.
    fn changed_metadata(&self) -> Vec<(&'a Plan, String)> {
        let Change { plans, newest, in_use, .. } = self.change;
        let differs = |path: &ChangedPath| match path {
            ChangedPath::Metadata { field, key } => {
                in_use.iter().any(|origin| newest.changed_metadata(origin, field, key))
            }
            _ => false,
        };
        let triggers = plans.iter().flat_map(|plan| plan.triggers.iter().map(move |trigger| (plan, trigger)));
        let changed = triggers.filter_map(|(plan, trigger)| {
            let Event::Changed(paths) = &trigger.event else { return None };
            let path = paths.iter().find(|path| differs(path))?;
            self.holds(trigger).then(|| (plan, path.to_string()))
        });
        changed.collect()
    }

    /// Whether the `when` of a trigger is true.
    fn holds(&self, trigger: &Trigger) -> bool {
        trigger.when.as_ref().is_none_or(|when| (self.change.holds)(when))
    }

    /// The plan whose trigger names a path most specifically.
    fn most_specific(&self, path: &[String]) -> Option<&'a Plan> {
        let mut best: Option<(usize, &Plan)> = None;
        for plan in self.change.plans {
            for trigger in &plan.triggers {
                let Event::Changed(paths) = &trigger.event else { continue };
                if !self.holds(trigger) {
                    continue;
                }
                let depths = paths.iter().filter_map(|named| match named {
                    ChangedPath::Spec(named) if path.starts_with(named) => Some(named.len()),
                    _ => None,
                });
                let depth = if paths.is_empty() { Some(1) } else { depths.max() };
                if let Some(depth) = depth
                    && best.is_none_or(|(known, _)| depth > known)
                {
                    best = Some((depth, plan));
                }
            }
        }
        best.map(|(_, plan)| plan)
    }

    fn finish(self) -> Selected {
        let plans = self.change.plans.iter().map(|plan| plan.name.as_str());
        let plans = plans.filter(|name| self.names.contains(name)).map(str::to_owned).collect();
        let mut reasons = self.reasons;
        reasons.dedup();
        Selected { plans, reasons }
    }
}
