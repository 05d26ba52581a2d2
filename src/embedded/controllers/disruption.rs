//! PodDisruptionBudgets: how many pods may be evicted.

use std::collections::BTreeMap;

use jiff::Timestamp;
use operetta_kube_model::facts::{
    controller, is_deleting, is_ready, is_terminal, items, key, name, namespace, number, text,
};
use serde_json::{Map, Value, json};

use super::client::{self, BUDGETS, MANAGER, REPLICA_SETS, Resource, STATEFUL_SETS, get};
use super::ownership::selected;
use super::parts::{parse_time, scaled, seconds_after};
use crate::api::Api;
use crate::verbs::pods::budget_condition;

/// Seconds after which a pod that was to be evicted and still is there counts again.
const CONFIRMED: i64 = 120;

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut budget = get(api, &BUDGETS, key)?;
    let mut pods = selected(api, namespace(&budget), &budget["spec"]["selector"]);
    pods.retain(|pod| !is_terminal(pod));
    let (expected, desired) = expected(api, &budget, &pods);
    let mut disrupted = Map::new();
    let mut due: Option<Timestamp> = None;
    for (pod_name, since) in budget["status"]["disruptedPods"].as_object().into_iter().flatten() {
        let is_there = pods.iter().any(|pod| name(pod) == pod_name && !is_deleting(pod));
        let ends = seconds_after(parse_time(since).unwrap_or(now), CONFIRMED);
        if is_there && ends > now {
            disrupted.insert(pod_name.clone(), since.clone());
            due = Some(due.map_or(ends, |due| due.min(ends)));
        }
    }
    let is_healthy = |pod: &&Value| is_ready(pod) && !is_deleting(pod) && !disrupted.contains_key(name(pod));
    let healthy = i64::try_from(pods.iter().filter(is_healthy).count()).unwrap_or(0);
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let mut status = json!({
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": allowed,
        "observedGeneration": budget["metadata"]["generation"],
        "conditions": budget_condition(&budget, allowed, now),
    });
    if !disrupted.is_empty() {
        status["disruptedPods"] = disrupted.into();
    }
    client::set_status(api, MANAGER, &BUDGETS, &mut budget, status, now);
    due
}

/// How many pods there should be, and how many have to be healthy.
fn expected(api: &Api, budget: &Value, pods: &[Value]) -> (i64, i64) {
    let spec = &budget["spec"];
    let count = i64::try_from(pods.len()).unwrap_or(0);
    if !spec["maxUnavailable"].is_null() {
        let expected = scale(api, pods);
        return (expected, (expected - scaled(&spec["maxUnavailable"], expected, true)).max(0));
    }
    match &spec["minAvailable"] {
        Value::String(_) => {
            let expected = scale(api, pods);
            (expected, scaled(&spec["minAvailable"], expected, true))
        }
        least => (count, number(least)),
    }
}

/// The replicas of the workloads that own the pods.
fn scale(api: &Api, pods: &[Value]) -> i64 {
    let mut owners: BTreeMap<&str, i64> = BTreeMap::new();
    for pod in pods {
        let Some(owner) = controller(pod) else { continue };
        let of = |resource: &Resource| {
            let workload = get(api, resource, &key(namespace(pod), text(&owner["name"])))?;
            Some(number(&workload["spec"]["replicas"]))
        };
        let replicas = match text(&owner["kind"]) {
            "ReplicaSet" => deployment(api, pod, owner).or_else(|| of(&REPLICA_SETS)),
            "StatefulSet" => of(&STATEFUL_SETS),
            _ => None,
        };
        if let Some(replicas) = replicas {
            owners.insert(text(&owner["uid"]), replicas);
        }
    }
    owners.values().sum()
}

fn deployment(api: &Api, pod: &Value, set: &Value) -> Option<i64> {
    let set = get(api, &REPLICA_SETS, &key(namespace(pod), text(&set["name"])))?;
    let owner = items(&set["metadata"]["ownerReferences"]).first()?;
    let deployment = get(api, &client::DEPLOYMENTS, &key(namespace(pod), text(&owner["name"])))?;
    Some(number(&deployment["spec"]["replicas"]))
}
