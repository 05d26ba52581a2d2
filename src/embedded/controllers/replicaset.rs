//! ReplicaSets: as many pods as they ask for.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use operetta_kube_model::facts::{condition, is_deleting, is_ready, is_terminal, items, name, number, text};
use operetta_kube_model::selector::labels_match;
use serde_json::{Value, json};

use super::client::{self, MANAGER, PODS, REPLICA_SETS, get};
use super::ownership::claim;
use super::parts::{self, is_active, is_available, next_available, put_condition, without_zeros};
use crate::api::Api;

/// How many pods are created or deleted at once.
const BURST: usize = 500;

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut set = get(api, &REPLICA_SETS, key)?;
    let pods = claim(api, (&REPLICA_SETS, &set), &PODS, now);
    let terminating = pods.iter().filter(|pod| is_deleting(pod) && !is_terminal(pod)).count();
    let pods: Vec<Value> = pods.into_iter().filter(is_active).collect();
    let failure = if is_deleting(&set) { None } else { manage(api, &set, &pods, now).err() };

    let wanted = number(&set["spec"]["replicas"]);
    let min_ready = number(&set["spec"]["minReadySeconds"]);
    let labels = json!({"matchLabels": set["spec"]["template"]["metadata"]["labels"]});
    let count = |test: &dyn Fn(&Value) -> bool| pods.iter().filter(|pod| test(pod)).count();
    let mut status = json!({
        "replicas": pods.len(),
        "fullyLabeledReplicas": count(&|pod| labels_match(&labels, &pod["metadata"]["labels"])),
        "readyReplicas": count(&is_ready),
        "availableReplicas": count(&|pod| is_available(pod, min_ready, now)),
        "observedGeneration": set["metadata"]["generation"],
    });
    status = without_zeros(status, &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"]);
    status["terminatingReplicas"] = terminating.into();
    let mut conditions = items(&set["status"]["conditions"]).to_vec();
    match failure {
        Some(message) if condition(&set, "ReplicaFailure").is_none() => {
            let is_short = i64::try_from(pods.len()).unwrap_or(0) < wanted;
            let reason = if is_short { "FailedCreate" } else { "FailedDelete" };
            let new =
                json!({"type": "ReplicaFailure", "status": "True", "reason": reason, "message": message});
            put_condition(&mut conditions, new, now);
        }
        Some(_) => {}
        None => conditions.retain(|known| known["type"] != "ReplicaFailure"),
    }
    if !conditions.is_empty() {
        status["conditions"] = conditions.into();
    }
    client::set_status(api, MANAGER, &REPLICA_SETS, &mut set, status, now);
    if min_ready > 0 { next_available(&pods, min_ready, now) } else { None }
}

/// Creates and deletes pods.
fn manage(api: &mut Api, set: &Value, pods: &[Value], now: Timestamp) -> Result<(), String> {
    let wanted = usize::try_from(number(&set["spec"]["replicas"])).unwrap_or(0);
    for _ in pods.len()..wanted.min(pods.len() + BURST) {
        let mut pod = parts::pod(&REPLICA_SETS, set, &set["spec"]["template"]);
        client::create(api, MANAGER, &PODS, &mut pod, now)?;
    }
    if pods.len() > wanted {
        let mut pods: Vec<&Value> = pods.iter().collect();
        let mut on_node: BTreeMap<&str, i64> = BTreeMap::new();
        for pod in &pods {
            *on_node.entry(text(&pod["spec"]["nodeName"])).or_default() += 1;
        }
        pods.sort_by_cached_key(|pod| rank(pod, &on_node));
        let excess = pods.len() - wanted;
        for pod in pods.into_iter().take(excess.min(BURST)) {
            client::delete(api, MANAGER, &PODS, pod, None, now)?;
        }
    }
    Ok(())
}

/// Pods of a low rank are deleted first.
fn rank(pod: &Value, on_node: &BTreeMap<&str, i64>) -> impl Ord + use<> {
    let node = text(&pod["spec"]["nodeName"]);
    let phase = match text(&pod["status"]["phase"]) {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let cost: i64 = text(&pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"])
        .parse()
        .unwrap_or(0);
    let ready = condition(pod, "Ready").filter(|known| known["status"] == "True");
    let since = ready.map(|known| text(&known["lastTransitionTime"]).to_owned());
    let restarts = items(&pod["status"]["containerStatuses"]).iter();
    let restarts = restarts.map(|status| number(&status["restartCount"])).max().unwrap_or(0);
    (
        !node.is_empty(),
        phase,
        ready.is_some(),
        cost,
        Reverse(on_node.get(node).copied().unwrap_or(0)),
        // Pods that became ready last, have restarted most and are youngest are deleted first.
        Reverse(since),
        Reverse(restarts),
        Reverse(text(&pod["metadata"]["creationTimestamp"]).to_owned()),
        name(pod).to_owned(),
    )
}
