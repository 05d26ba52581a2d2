//! What a decision says to do for runs of plans, carried out on a snapshot. A run that starts counts as succeeded: the
//! children follow the newest origin then. What its steps do beyond that cannot be foreseen.

use serde::Deserialize;
use serde_json::Value;

use super::report::{PlanReport, steps_of};
use crate::children::plans::{InstanceMemory, PlanSnapshot};
use crate::children::{Snapshot, names};
use crate::package::Resource;
use crate::plan::{DELETE_CHILD, Known, Memory, Phase, PlanRun, RunAction, RunObject, RunRef, RunStatus};

/// The effect of an action on the snapshot.
pub(super) enum Effect {
    /// The action changes nothing that the next decision would see.
    Ignored,
    /// The snapshot has changed.
    Changed,
    /// A run has started.
    Started(PlanReport),
}

/// Marks active runs as succeeded. Returns a sentence about each.
pub(super) fn end_active(plans: &mut PlanSnapshot) -> Vec<String> {
    let now = plans.now.to_string();
    let mut said = Vec::new();
    for run in &mut plans.runs {
        let plan = run.spec.plan.clone();
        let Some(status) = run.status.as_mut().filter(|status| !status.phase.is_final()) else { continue };
        if status.phase == Phase::Pending {
            continue;
        }
        let revision = status.revision.clone().unwrap_or_default();
        said.push(format!(
            "run {} of plan {plan} is active and ends first, with revision {revision}; the preview takes it for succeeded",
            run.name
        ));
        succeed(status, &now);
    }
    said
}

fn succeed(status: &mut RunStatus, now: &str) {
    status.phase = Phase::Succeeded;
    status.finished_at = Some(now.to_owned());
    status.steps.clear();
}

/// Carries out one action. `number`: for identities of new objects.
pub(super) fn carry_out(snapshot: &mut Snapshot, action: &RunAction, number: u64) -> Effect {
    let resource = snapshot.package.clone();
    let resource = resource.as_ref().ok().map(crate::children::ActivePackage::resource);
    match action {
        RunAction::If { then, .. } => return carry_out(snapshot, then, number),
        RunAction::Annotate(annotations) => {
            let live = &mut snapshot.instance["metadata"]["annotations"];
            for (name, value) in annotations {
                match (value, live.as_object_mut()) {
                    (Some(value), _) => live[name] = value.as_str().into(),
                    (None, Some(all)) => drop(all.remove(name)),
                    (None, None) => {}
                }
            }
            return Effect::Changed;
        }
        _ => {}
    }
    let Some(plans) = &mut snapshot.plans else { return Effect::Ignored };
    match action {
        RunAction::Create(sort, object) => create(plans, *sort, object, number),
        RunAction::Remember(write) => remember(plans, &write.body),
        RunAction::Store { run, status, .. } => {
            let now = plans.now.to_string();
            let Some(known) = plans.runs.iter_mut().find(|known| known.uid == run.uid) else {
                return Effect::Ignored;
            };
            let Ok(mut status) = RunStatus::deserialize(&**status) else { return Effect::Ignored };
            if status.phase != Phase::Running {
                let is_news = known.status.as_ref() != Some(&status);
                known.status = Some(status);
                return if is_news { Effect::Changed } else { Effect::Ignored };
            }
            let report = report(known, &status, resource);
            succeed(&mut status, &now);
            known.status = Some(status);
            Effect::Started(report)
        }
        RunAction::Change(RunObject::PlanRun, run, patch) => {
            let Some(known) = plans.runs.iter_mut().find(|known| known.uid == run.uid) else {
                return Effect::Ignored;
            };
            for (name, value) in patch["metadata"]["annotations"].as_object().into_iter().flatten() {
                match value.as_str() {
                    Some(text) => known.annotations.insert(name.clone(), text.to_owned()),
                    None => known.annotations.remove(name),
                };
            }
            if let Some(finalizers) = patch["metadata"]["finalizers"].as_array() {
                let names = finalizers.iter().filter_map(|name| name.as_str().map(str::to_owned));
                known.finalizers = names.collect();
            }
            Effect::Changed
        }
        RunAction::Delete(sort, object) => {
            let is_it = |known: &Value| known["metadata"]["name"] == object.name.as_str();
            match sort {
                RunObject::PlanRun => plans.runs.retain(|run| run.name != object.name),
                RunObject::Origin => plans.origins.retain(|known| !is_it(known)),
                RunObject::Job => plans.jobs.retain(|known| !is_it(known)),
                RunObject::State => {}
            }
            Effect::Changed
        }
        _ => Effect::Ignored,
    }
}

/// Replaces the memory of the instance, and recalls its runs.
fn remember(plans: &mut PlanSnapshot, state: &Value) -> Effect {
    let Ok(memory) = Memory::deserialize(&state["spec"]) else { return Effect::Ignored };
    let live = plans.runs.drain(..).filter(PlanRun::has_object);
    let live = live.map(|run| PlanRun { known: Known::No, ..run }).collect();
    let recalled = memory.recall(live);
    plans.runs = recalled.runs;
    plans.strangers.extend(recalled.strangers);
    plans.state = InstanceMemory { memory, object: Some(RunRef::of(state)), ..InstanceMemory::default() };
    Effect::Changed
}

fn create(plans: &mut PlanSnapshot, sort: RunObject, object: &Value, number: u64) -> Effect {
    let mut object = object.clone();
    let identity = format!("preview-{number}");
    object["metadata"]["uid"] = identity.as_str().into();
    object["metadata"]["resourceVersion"] = identity.into();
    object["metadata"]["creationTimestamp"] = plans.now.to_string().into();
    match sort {
        RunObject::Origin => {
            plans.origins.push(object);
            Effect::Changed
        }
        // The run asks for the approval of a person, and does nothing before.
        RunObject::PlanRun if object["spec"]["plan"] == DELETE_CHILD => Effect::Ignored,
        RunObject::PlanRun => match PlanRun::parse(&object) {
            Ok(run) => {
                plans.runs.push(run);
                Effect::Changed
            }
            Err(_) => Effect::Ignored,
        },
        RunObject::Job | RunObject::State => Effect::Ignored,
    }
}

fn report(run: &PlanRun, status: &RunStatus, resource: Option<&Resource>) -> PlanReport {
    let plans = run.spec.plans(Some(status)).to_vec();
    let of_plan = |name: &String| resource.and_then(|resource| resource.plan(name));
    let many = plans.len() > 1;
    let steps = plans.iter().filter_map(|name| Some((name, of_plan(name)?)));
    let steps = steps.flat_map(|(name, plan)| {
        steps_of(plan).into_iter().map(move |step| if many { format!("{name}: {step}") } else { step })
    });
    PlanReport {
        cause: status.cause.as_str().to_owned(),
        reason: status.message.clone(),
        revision: status.revision.clone().unwrap_or_default(),
        steps: steps.collect(),
        plans,
    }
}

/// Whether an object belongs to runs of the instance with that uid, by its label.
pub(super) fn is_of(object: &Value, uid: &str) -> bool {
    object["metadata"]["labels"][names::RUN_OF] == uid
}
