//! Plugins about nodes: `DefaultTolerationSeconds`, `TaintNodesByCondition` and `PodTopologyLabels`.

use operetta_kube_model::facts::{items, key, text};
use serde_json::{Value, json};

use super::write::{is_new_pod, is_pod};
use crate::model::{Context, Outcome};
use crate::state::State;

/// A pod stays for five minutes on a node that is not ready, unless it says how long.
pub(super) fn tolerate(_: &mut State, context: &mut Context<'_>, pod: &mut Value, _: &Value) -> Outcome<()> {
    if !is_pod(context) {
        return Ok(());
    }
    let given = items(&pod["spec"]["tolerations"]);
    let has = |toleration: &Value, field: &str, wanted: &str| {
        let value = text(&toleration[field]);
        value.is_empty() || value == wanted
    };
    let missing =
        ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].into_iter().filter(|key| {
            !given
                .iter()
                .any(|toleration| has(toleration, "key", key) && has(toleration, "effect", "NoExecute"))
        });
    let added = missing.map(
        |key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
    );
    let all: Vec<Value> = given.iter().cloned().chain(added).collect();
    if all.len() > given.len() {
        pod["spec"]["tolerations"] = all.into();
    }
    Ok(())
}

/// A new node is not ready.
pub(super) fn taint(_: &mut State, context: &mut Context<'_>, node: &mut Value, old: &Value) -> Outcome<()> {
    const KEY: &str = "node.kubernetes.io/not-ready";
    if context.kind.resource() != "nodes" || !context.subresource().is_empty() || !old.is_null() {
        return Ok(());
    }
    let mut taints = items(&node["spec"]["taints"]).to_vec();
    if !taints.iter().any(|taint| taint["key"] == KEY && taint["effect"] == "NoSchedule") {
        taints.push(json!({"key": KEY, "effect": "NoSchedule"}));
        node["spec"]["taints"] = taints.into();
    }
    Ok(())
}

/// A pod that is created on a node has the labels of its topology.
pub(super) fn label(
    state: &mut State,
    context: &mut Context<'_>,
    pod: &mut Value,
    old: &Value,
) -> Outcome<()> {
    if is_new_pod(context, old) && !text(&pod["spec"]["nodeName"]).is_empty() {
        put_topology(state, pod);
    }
    Ok(())
}

/// Gives a pod the labels of the topology of its node.
pub(crate) fn put_topology(state: &State, pod: &mut Value) {
    let Some(node) = state.store.get("nodes", &key("", text(&pod["spec"]["nodeName"]))) else { return };
    for label in ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"] {
        if let Some(value) = node.label(label) {
            pod["metadata"]["labels"][label] = value.into();
        }
    }
}
