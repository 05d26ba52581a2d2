//! Which node a pod gets. Resources, the affinity between pods and spreading are not considered.

use std::collections::BTreeMap;

use jiff::Timestamp;
use operetta_kube_model::facts::{claims, has_condition, is_deleting, items, key, name, namespace, text};
use operetta_kube_model::selector::meets;
use serde_json::{Value, json};

use super::client::{self, CLAIMS, CLASSES, MANAGER, NODES, PODS, SCHEDULER, get, list};
use super::node;
use super::parts::{owner, put_condition};
use crate::api::Api;
use crate::verbs::pods::assign;

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Gives a pod a node. Returns false if no node fits; a condition of the pod says why.
pub(super) fn schedule(api: &mut Api, pod: &mut Value, now: Timestamp) -> bool {
    if !items(&pod["spec"]["schedulingGates"]).is_empty() {
        let why = "Scheduling is blocked due to non-empty scheduling gates";
        return refuse(api, pod, "SchedulingGated", why, now);
    }
    create_ephemeral(api, pod, now);
    let nodes = list(api, &NODES, "");
    let why = match claims_fault(api, pod) {
        Some(why) => format!("0/{} nodes are available: {why}. {}", nodes.len(), preemption(nodes.len())),
        None if nodes.is_empty() => "no nodes available to schedule pods".to_owned(),
        None => {
            let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
            let mut fits: Vec<&str> = Vec::new();
            for node in &nodes {
                match why_not(pod, node) {
                    Some(why) => *reasons.entry(why).or_default() += 1,
                    None if node::is_dead(node) => {
                        let why = format!("node(s) had untolerated taint {{{}: }}", node::UNREACHABLE);
                        *reasons.entry(why).or_default() += 1;
                    }
                    None => fits.push(name(node)),
                }
            }
            let load = |node: &&str| {
                let pods = api.state.store.range("pods", "", None);
                pods.filter(|(_, pod)| pod.json.contains(&format!("\"nodeName\":\"{node}\""))).count()
            };
            let best =
                if fits.len() > 1 { fits.iter().copied().min_by_key(load) } else { fits.first().copied() };
            if let Some(node) = best {
                return select(api, pod, node, now) && assign(&mut api.state, pod, node, now);
            }
            let reasons: Vec<String> = reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
            let (count, reasons) = (nodes.len(), reasons.join(", "));
            format!("0/{count} nodes are available: {reasons}. {}", preemption(count))
        }
    };
    refuse(api, pod, "Unschedulable", &why, now)
}

fn preemption(nodes: usize) -> String {
    format!(
        "no new claims to deallocate, preemption: 0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
    )
}

fn refuse(api: &mut Api, pod: &mut Value, reason: &str, message: &str, now: Timestamp) -> bool {
    let mut status = pod["status"].clone();
    let mut conditions = items(&status["conditions"]).to_vec();
    let generation = pod["metadata"]["generation"].clone();
    let new = json!({"type": "PodScheduled", "status": "False", "observedGeneration": generation, "lastProbeTime": null,
        "reason": reason, "message": message});
    if conditions.iter().any(|known| known["type"] == "PodScheduled" && known["message"] != message) {
        conditions.retain(|known| known["type"] != "PodScheduled");
    }
    put_condition(&mut conditions, new, now);
    status["conditions"] = conditions.into();
    client::set_status(api, SCHEDULER, &PODS, pod, status, now);
    false
}

/// Why a pod cannot run on a node.
pub(super) fn why_not(pod: &Value, node: &Value) -> Option<String> {
    let spec = &pod["spec"];
    let labels = &node["metadata"]["labels"];
    let selects =
        spec["nodeSelector"].as_object().into_iter().flatten().all(|(key, value)| labels[key] == *value);
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let fits = terms.is_null()
        || items(&terms["nodeSelectorTerms"]).iter().any(|term| {
            let of = |list: &str| items(&term[list]).to_vec();
            let (expressions, fields) = (of("matchExpressions"), of("matchFields"));
            !(expressions.is_empty() && fields.is_empty())
                && expressions.iter().all(|one| meets(one, labels[text(&one["key"])].as_str()))
                && fields.iter().all(|one| meets(one, Some(name(node))))
        });
    if !selects || !fits {
        return Some("node(s) didn't match Pod's node affinity/selector".to_owned());
    }
    let taint = items(&node["spec"]["taints"]).iter().find(|taint| {
        taint["effect"] != "PreferNoSchedule"
            && !items(&spec["tolerations"]).iter().any(|toleration| tolerates(toleration, taint))
    });
    if let Some(taint) = taint {
        let (key, value) = (text(&taint["key"]), text(&taint["value"]));
        return Some(format!("node(s) had untolerated taint {{{key}: {value}}}"));
    }
    if node["spec"]["unschedulable"] == true {
        return Some("node(s) were unschedulable".to_owned());
    }
    let is_known = !items(&node["status"]["conditions"]).is_empty();
    (is_known && !has_condition(node, "Ready")).then(|| "node(s) were not ready".to_owned())
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let is_absent = |field: &str| text(&toleration[field]).is_empty();
    (is_absent("effect") || toleration["effect"] == taint["effect"])
        && (is_absent("key") && toleration["operator"] == "Exists" || toleration["key"] == taint["key"])
        && (toleration["operator"] == "Exists" || text(&toleration["value"]) == text(&taint["value"]))
}

/// Whether a claim is bound when a pod uses it for the first time.
fn waits_for_pod(api: &Api, claim: &Value) -> bool {
    let class = get(api, &CLASSES, &key("", text(&claim["spec"]["storageClassName"])));
    class.is_some_and(|class| class["volumeBindingMode"] == "WaitForFirstConsumer")
}

fn is_bound(claim: &Value) -> bool {
    claim["status"]["phase"] == "Bound"
}

fn claims_fault(api: &Api, pod: &Value) -> Option<String> {
    claims(pod).iter().find_map(|claim_name| {
        let Some(claim) = get(api, &CLAIMS, &key(namespace(pod), claim_name)) else {
            return Some(format!("persistentvolumeclaim {claim_name:?} not found"));
        };
        if is_deleting(&claim) {
            return Some(format!("persistentvolumeclaim {claim_name:?} is being deleted"));
        }
        let waits = !is_bound(&claim) && !waits_for_pod(api, &claim);
        waits.then(|| "pod has unbound immediate PersistentVolumeClaims".to_owned())
    })
}

/// Has the claims that wait for a pod bound on a node. Returns whether all are bound.
fn select(api: &mut Api, pod: &Value, node: &str, now: Timestamp) -> bool {
    let claims = claims(pod);
    let claims = claims.iter().filter_map(|claim| get(api, &CLAIMS, &key(namespace(pod), claim)));
    let unbound: Vec<Value> = claims.filter(|claim| !is_bound(claim)).collect();
    for mut claim in unbound.clone() {
        if claim["metadata"]["annotations"][SELECTED_NODE] != node {
            claim["metadata"]["annotations"][SELECTED_NODE] = node.into();
            let _ = client::update(api, SCHEDULER, &CLAIMS, "", &mut claim, now);
        }
    }
    unbound.is_empty()
}

/// Creates the claims that live as long as the pod.
fn create_ephemeral(api: &mut Api, pod: &Value, now: Timestamp) {
    for volume in items(&pod["spec"]["volumes"]).iter().filter(|volume| volume["ephemeral"].is_object()) {
        let template = &volume["ephemeral"]["volumeClaimTemplate"];
        let claim_name = format!("{}-{}", name(pod), text(&volume["name"]));
        if get(api, &CLAIMS, &key(namespace(pod), &claim_name)).is_none() {
            let mut meta = template["metadata"].clone();
            meta["name"] = claim_name.into();
            meta["namespace"] = namespace(pod).into();
            meta["ownerReferences"] = json!([owner(&PODS, pod)]);
            let mut claim = json!({"metadata": meta, "spec": template["spec"]});
            let _ = client::create(api, MANAGER, &CLAIMS, &mut claim, now);
        }
    }
}
