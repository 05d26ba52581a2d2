//! Resizes of pods.

use operetta_kube_model::facts::{items, key, name, text};
use operetta_kube_model::quantity::Quantity;
use serde_json::Value;

use crate::model::{Failure, Kind, Outcome};
use crate::state::State;

/// A pod on a node cannot ask for more than the node has.
pub(crate) fn admit_resize(state: &State, kind: &Kind, live: &Value, pod: &Value) -> Outcome<()> {
    let node_name = text(&pod["spec"]["nodeName"]);
    if node_name.is_empty() || live["spec"] == pod["spec"] {
        return Ok(());
    }
    let Some(node) = state.store.get("nodes", &key("", node_name)).map(|node| node.bare()) else {
        return Err(Failure::forbidden(kind, name(pod), &format!("node {node_name:?} not found")));
    };
    let mut missing = Vec::new();
    for (resource, unit) in [("cpu", 1_000_000), ("memory", 1_000_000_000)] {
        let in_units =
            |value: &Value| (Quantity::saturating(text(value)).unwrap_or_default().nanos() + unit - 1) / unit;
        let of = |container: &Value| in_units(&container["resources"]["requests"][resource]);
        let sum: i128 = items(&pod["spec"]["containers"]).iter().map(of).sum();
        let first = items(&pod["spec"]["initContainers"]).iter().map(of).max().unwrap_or(0);
        let (wanted, has) = (sum.max(first), in_units(&node["status"]["allocatable"][resource]));
        if wanted > has {
            missing.push(format!("{resource}, requested: {wanted}, allocatable: {has}"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let why = format!("node didn't have enough allocatable resources: {}", missing.join("; "));
    let failure = Failure::forbidden(kind, name(pod), &why);
    Err(failure.caused(vec![("NodeCapacity", String::new(), String::new())]))
}
