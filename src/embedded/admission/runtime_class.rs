//! `RuntimeClass`: a pod has the overhead, the node selector and the tolerations of its class.

use std::sync::Arc;

use operetta_kube_model::facts::{items, key, text};
use operetta_kube_model::quantity::Quantity;
use serde_json::{Map, Value};

use super::write::{Write, forbidden, is_new_pod};
use crate::model::{Context, Outcome, Parsed};
use crate::state::State;

const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub(super) fn mutate(
    state: &mut State,
    context: &mut Context<'_>,
    pod: &mut Value,
    old: &Value,
) -> Outcome<()> {
    if !is_new_pod(context, old) {
        return Ok(());
    }
    let Some(class) = class(state, context, pod)? else { return Ok(()) };
    let overhead = &class.value["overhead"]["podFixed"];
    if !class.value["overhead"].is_null() {
        if !is_empty(&pod["spec"]["overhead"]) && !is_same(overhead, &pod["spec"]["overhead"]) {
            return Err(forbidden(context, pod, MISMATCH));
        }
        if !is_empty(overhead) {
            pod["spec"]["overhead"] = overhead.clone();
        }
    }
    let scheduling = &class.value["scheduling"];
    for (label, wanted) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        let given = &pod["spec"]["nodeSelector"][label];
        if !given.is_null() && given != wanted {
            let (wanted, given) = (text(wanted), text(given));
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{label}] = {wanted}; pod.spec.nodeSelector[{label}] = {given}"
            );
            return Err(forbidden(context, pod, &why));
        }
        pod["spec"]["nodeSelector"][label] = wanted.clone();
    }
    if !items(&scheduling["tolerations"]).is_empty() {
        pod["spec"]["tolerations"] =
            merged(items(&pod["spec"]["tolerations"]), items(&scheduling["tolerations"])).into();
    }
    Ok(())
}

pub(super) fn validate(state: &mut State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    if !is_new_pod(context, write.old()) {
        return Ok(());
    }
    let pod = write.object();
    let overhead = &pod["spec"]["overhead"];
    match class(state, context, pod)?.filter(|class| !class.value["overhead"].is_null()) {
        Some(class) if !is_same(&class.value["overhead"]["podFixed"], overhead) => {
            Err(forbidden(context, pod, MISMATCH))
        }
        None if !is_empty(overhead) => {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            Err(forbidden(context, pod, why))
        }
        _ => Ok(()),
    }
}

/// The class of a pod, if it names one.
fn class(state: &State, context: &Context<'_>, pod: &Value) -> Outcome<Option<Arc<Parsed>>> {
    let Some(name) = pod["spec"]["runtimeClassName"].as_str() else { return Ok(None) };
    match state.store.get("runtimeclasses.node.k8s.io", &key("", name)) {
        Some(class) => Ok(Some(class.parsed())),
        None => Err(forbidden(context, pod, &format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

fn is_empty(overhead: &Value) -> bool {
    overhead.as_object().is_none_or(Map::is_empty)
}

/// Whether two lists of resources have the same quantities.
fn is_same(one: &Value, other: &Value) -> bool {
    let all = |list: &Value| -> Vec<(String, Option<Quantity>)> {
        let resources = list.as_object().into_iter().flatten();
        resources.map(|(name, value)| (name.clone(), Quantity::saturating(text(value)))).collect()
    };
    all(one) == all(other)
}

/// Tolerations without those that another one includes.
fn merged(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut kept: Vec<Value> = Vec::new();
    for (at, toleration) in all.iter().enumerate() {
        let is_included = kept.iter().any(|known| includes(known, toleration))
            || all[at + 1..].iter().any(|later| later != toleration && includes(later, toleration));
        if !is_included {
            kept.push((*toleration).clone());
        }
    }
    kept
}

/// Whether a toleration tolerates all that `other` does.
fn includes(one: &Value, other: &Value) -> bool {
    let [key, effect, operator] = ["key", "effect", "operator"].map(|field| text(&one[field]));
    if one == other {
        return true;
    }
    if other["key"] != one["key"] && !(key.is_empty() && operator == "Exists")
        || other["effect"] != one["effect"] && !effect.is_empty()
    {
        return false;
    }
    if effect == "NoExecute"
        && let Some(most) = one["tolerationSeconds"].as_i64()
        && other["tolerationSeconds"].as_i64().is_none_or(|seconds| seconds > most)
    {
        return false;
    }
    operator == "Exists" || other["operator"] == "Equal" && other["value"] == one["value"]
}
