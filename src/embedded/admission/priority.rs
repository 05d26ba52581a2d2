//! `Priority`: the priority of a pod is that of its `PriorityClass`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Write, forbidden, is_pod};
use crate::api::{Api, Context, key};
use crate::facts::{number, text};
use crate::status::Outcome;
use crate::store::Parsed;

const CLASSES: &str = "priorityclasses.scheduling.k8s.io";

/// The classes that every cluster has.
pub(crate) fn system_classes() -> [Value; 2] {
    [
        ("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
        ("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
    ]
    .map(|(name, value, description)| json!({"metadata": {"name": name}, "value": value, "description": description}))
}

pub(super) fn mutate(api: &mut Api, context: &mut Context<'_>, pod: &mut Value, old: &Value) -> Outcome<()> {
    if !is_pod(context) {
        return Ok(());
    }
    if !old.is_null() {
        for field in ["priority", "preemptionPolicy"] {
            if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
                pod["spec"][field] = old["spec"][field].clone();
            }
        }
        return Ok(());
    }
    let name = text(&pod["spec"]["priorityClassName"]);
    let class = if name.is_empty() {
        default_class(api)
    } else {
        let Some(class) = api.store.get(CLASSES, &key("", name)).map(|class| class.parsed()) else {
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

pub(super) fn validate(api: &mut Api, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    let class = write.object();
    if context.kind.resource() != CLASSES || class["globalDefault"] != true {
        return Ok(());
    }
    let Some(other) = default_class(api) else { return Ok(()) };
    let other = text(&other.value["metadata"]["name"]);
    if write.operation == "CREATE" || other != write.name {
        let why = format!("PriorityClass {other} is already marked as default. Only one default can exist");
        return Err(forbidden(context, class, &why));
    }
    Ok(())
}

/// The class of pods that name none. Texts are searched first: few classes are default, and parsing them all for each pod is slow.
fn default_class(api: &Api) -> Option<Arc<Parsed>> {
    let classes = api.store.range(CLASSES, "", None);
    let defaults = classes.filter(|(_, class)| class.json.contains("\"globalDefault\":true"));
    defaults.map(|(_, class)| class.parsed()).min_by_key(|class| number(&class.value["value"]))
}
