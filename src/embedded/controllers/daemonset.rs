//! DaemonSets: a pod on each node.

use std::collections::BTreeSet;

use jiff::Timestamp;
use operetta_kube_model::facts::{is_deleting, is_ready, is_terminal, items, name, number, text};
use serde_json::{Value, json};

use super::client::{self, DAEMON_SETS, MANAGER, NODES, PODS, REVISIONS, get, list};
use super::ownership::claim;
use super::parts::{self, is_available, next_available, scaled, without_zeros};
use super::revisions::Revisions;
use super::scheduler;
use crate::api::Api;

const HASH: &str = "controller-revision-hash";
const GENERATION: &str = "pod-template-generation";

/// Taints that pods of DaemonSets do not mind.
const TAINTS: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut set = get(api, &DAEMON_SETS, key)?;
    if is_deleting(&set) {
        return None;
    }
    let known = claim(api, (&DAEMON_SETS, &set), &REVISIONS, now);
    let revisions = Revisions::find(api, &DAEMON_SETS, &set, known, now)?;
    let hash = text(&revisions.update["metadata"]["labels"]["controller.kubernetes.io/hash"]).to_owned();
    let pods = claim(api, (&DAEMON_SETS, &set), &PODS, now);
    let min_ready = number(&set["spec"]["minReadySeconds"]);
    let nodes = list(api, &NODES, "");
    let (mut wanted, mut misplaced) = (Vec::new(), 0);
    for node in nodes {
        let here: Vec<&Value> = pods.iter().filter(|pod| node_of(pod) == name(&node)).collect();
        let new = pod(&set, &hash, name(&node));
        if scheduler::why_not(&new, &node).is_some() {
            misplaced += usize::from(!here.is_empty());
            for pod in here.iter().filter(|pod| !is_deleting(pod)) {
                let _ = client::delete(api, MANAGER, &PODS, pod, None, now);
            }
            continue;
        }
        for pod in here.iter().filter(|pod| is_terminal(pod) && !is_deleting(pod)) {
            let _ = client::delete(api, MANAGER, &PODS, pod, None, now);
        }
        if here.is_empty() {
            let mut new = new;
            let _ = client::create(api, MANAGER, &PODS, &mut new, now);
        }
        wanted.push(name(&node).to_owned());
    }
    roll(api, &set, &pods, &hash, wanted.len(), now);
    let pods = claim(api, (&DAEMON_SETS, &set), &PODS, now);
    let on = |test: &dyn Fn(&Value) -> bool| {
        let has = |node: &&String| {
            pods.iter().any(|pod| node_of(pod) == node.as_str() && !is_terminal(pod) && test(pod))
        };
        wanted.iter().filter(has).count()
    };
    let available = on(&|pod| is_available(pod, min_ready, now));
    let status = json!({
        "currentNumberScheduled": on(&|_| true),
        "desiredNumberScheduled": wanted.len(),
        "numberMisscheduled": misplaced,
        "numberReady": on(&is_ready),
        "numberAvailable": available,
        "numberUnavailable": wanted.len() - available,
        "updatedNumberScheduled": on(&|pod| pod["metadata"]["labels"][HASH] == hash),
        "observedGeneration": set["metadata"]["generation"],
    });
    let mut status =
        without_zeros(status, &["numberAvailable", "numberUnavailable", "updatedNumberScheduled"]);
    if revisions.collisions > 0 {
        status["collisionCount"] = revisions.collisions.into();
    }
    let names: Vec<String> =
        pods.iter().map(|pod| format!("{}-{}", name(&set), text(&pod["metadata"]["labels"][HASH]))).collect();
    let mut in_use: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    in_use.insert(name(&revisions.update));
    revisions.clean(api, &set, &in_use, now);
    client::set_status(api, MANAGER, &DAEMON_SETS, &mut set, status, now);
    if min_ready > 0 { next_available(&pods, min_ready, now) } else { None }
}

/// The node of a pod, or the one that it is for.
fn node_of(pod: &Value) -> &str {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let term = &affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0];
    pod["spec"]["nodeName"].as_str().unwrap_or(text(term))
}

/// Deletes pods of an old template, as many as may be unavailable.
fn roll(api: &mut Api, set: &Value, pods: &[Value], hash: &str, nodes: usize, now: Timestamp) {
    let strategy = &set["spec"]["updateStrategy"];
    if strategy["type"] != "RollingUpdate" {
        return;
    }
    let min_ready = number(&set["spec"]["minReadySeconds"]);
    let is_bad = |pod: &Value| is_deleting(pod) || !is_available(pod, min_ready, now);
    let total = i64::try_from(nodes).unwrap_or(0);
    let most = scaled(&strategy["rollingUpdate"]["maxUnavailable"], total, true).max(1);
    let missing = total - i64::try_from(pods.len()).unwrap_or(0);
    let mut budget =
        most - missing.max(0) - i64::try_from(pods.iter().filter(|pod| is_bad(pod)).count()).unwrap_or(0);
    let old = pods.iter().filter(|pod| pod["metadata"]["labels"][HASH] != hash && !is_deleting(pod));
    for pod in old {
        if is_bad(pod) || budget > 0 {
            budget -= i64::from(!is_bad(pod));
            let _ = client::delete(api, MANAGER, &PODS, pod, None, now);
        }
    }
}

/// A pod for a node.
fn pod(set: &Value, hash: &str, node: &str) -> Value {
    let mut pod = parts::pod(&DAEMON_SETS, set, &set["spec"]["template"]);
    let generation = text(&set["metadata"]["annotations"]["deprecated.daemonset.template.generation"]);
    pod["metadata"]["labels"][HASH] = hash.into();
    pod["metadata"]["labels"][GENERATION] = if generation.is_empty() { "1" } else { generation }.into();
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let affinity =
        &mut pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let mut terms = items(&affinity["nodeSelectorTerms"]).to_vec();
    if terms.is_empty() {
        terms.push(json!({}));
    }
    for term in &mut terms {
        term["matchFields"] = json!([field]);
    }
    *affinity = json!({"nodeSelectorTerms": terms});
    let mut tolerations = items(&pod["spec"]["tolerations"]).to_vec();
    for (taint, effect) in TAINTS {
        tolerations.push(json!({"key": taint, "operator": "Exists", "effect": effect}));
    }
    pod["spec"]["tolerations"] = tolerations.into();
    pod
}
