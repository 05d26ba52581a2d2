//! `Priority`: the priority of a pod is that of its `PriorityClass`.

use std::sync::Arc;

use operetta_kube_model::facts::{key, number, text};
use serde_json::Value;

use super::write::{Write, forbidden, is_new_pod, is_pod};
use crate::model::{Context, Outcome, Parsed};
use crate::state::State;

const CLASSES: &str = "priorityclasses.scheduling.k8s.io";

pub(super) fn mutate(
    state: &mut State,
    context: &mut Context<'_>,
    pod: &mut Value,
    old: &Value,
) -> Outcome<()> {
    if !is_new_pod(context, old) {
        if is_pod(context) {
            keep(pod, old);
        }
        return Ok(());
    }
    let name = text(&pod["spec"]["priorityClassName"]);
    let class = if name.is_empty() {
        default_class(state)
    } else {
        let Some(class) = state.store.get(CLASSES, &key("", name)).map(|class| class.parsed()) else {
            let why = format!("no PriorityClass with name {name} was found");
            return Err(forbidden(context, pod, &why));
        };
        Some(class)
    };
    let (priority, policy) = match class.as_deref() {
        Some(class) => (number(&class.value["value"]), text(&class.value["preemptionPolicy"])),
        None => (0, "PreemptLowerPriority"),
    };
    let given = (pod["spec"]["priority"].as_i64(), pod["spec"]["preemptionPolicy"].as_str());
    let why = match given {
        (Some(given), _) if given != priority => Some(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        )),
        (_, Some(given)) if !policy.is_empty() && given != policy => Some(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        )),
        _ => None,
    };
    if let Some(why) = why {
        return Err(forbidden(context, pod, &why));
    }
    let spec = &mut pod["spec"];
    if let Some(class) = &class {
        spec["priorityClassName"] = class.value["metadata"]["name"].clone();
    }
    spec["priority"] = priority.into();
    if !policy.is_empty() {
        spec["preemptionPolicy"] = policy.into();
    }
    Ok(())
}

/// Keeps the priority of a pod in a write that has none.
fn keep(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
            pod["spec"][field] = old["spec"][field].clone();
        }
    }
}

pub(super) fn validate(state: &mut State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    let class = write.object();
    if context.kind.resource() != CLASSES || class["globalDefault"] != true {
        return Ok(());
    }
    let Some(other) = default_class(state) else { return Ok(()) };
    let other = text(&other.value["metadata"]["name"]);
    if write.operation == "CREATE" || other != write.name {
        let why = format!("PriorityClass {other} is already marked as default. Only one default can exist");
        return Err(forbidden(context, class, &why));
    }
    Ok(())
}

/// The class of pods that name none. Texts are searched first: few classes are default, and parsing them all for each pod is slow.
fn default_class(state: &State) -> Option<Arc<Parsed>> {
    let classes = state.store.range(CLASSES, "", None);
    let defaults = classes.filter(|(_, class)| class.json.contains("\"globalDefault\":true"));
    defaults.map(|(_, class)| class.parsed()).min_by_key(|class| number(&class.value["value"]))
}
