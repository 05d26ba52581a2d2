//! The node and the `StorageClass` that a cluster begins with, and the end of the pods of a dead node.

use jiff::Timestamp;
use operetta_kube_model::facts::{condition, is_deleting, items, key, text, time};
use serde_json::{Value, json};

use super::client::{self, CLASSES, KUBELET, MANAGER, NODES, PODS};
use super::parts::{parse_time, seconds_after};
use super::pod_status::HOST;
use crate::api::Api;

/// The taint of a node that does not answer. Nothing sets it by itself.
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The name of the node.
const NODE: &str = "embedded";

/// The provisioner of the class `standard`.
const PROVISIONER: &str = "embedded.operetta.dev/volumes";

pub(super) fn set_up(api: &mut Api, now: Timestamp) {
    let mut class = json!({"metadata": {"name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true});
    let _ = client::create(api, MANAGER, &CLASSES, &mut class, now);
    let labels = json!({"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"});
    let mut node = json!({"metadata": {"name": NODE, "labels": labels},
        "spec": {"podCIDR": "10.244.0.0/16", "podCIDRs": ["10.244.0.0/16"], "providerID": format!("embedded://{NODE}")}});
    if client::create(api, KUBELET, &NODES, &mut node, now).is_err() {
        return;
    }
    let resources = json!({"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "100000"});
    let of = |kind: &str, status: &str, reason: &str, message: &str| -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": time(now), "lastTransitionTime": time(now)})
    };
    let status = json!({
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            of("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            of("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            of("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            of("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
        "addresses": [{"type": "InternalIP", "address": HOST}, {"type": "Hostname", "address": NODE}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {"machineID": NODE, "systemUUID": NODE, "bootID": NODE, "kernelVersion": "6.12.0", "osImage": "Embedded",
            "containerRuntimeVersion": "containerd://2.2.0", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "",
            "operatingSystem": "linux", "architecture": "amd64"},
    });
    client::set_status(api, KUBELET, &NODES, &mut node, status, now);
    // The taint of a node that is not ready.
    node["spec"]["taints"] = Value::Null;
    let _ = client::update(api, MANAGER, &NODES, "", &mut node, now);
}

pub(super) fn is_dead(node: &Value) -> bool {
    items(&node["spec"]["taints"]).iter().any(|taint| taint["key"] == UNREACHABLE)
}

/// Whether the node of a pod is dead.
pub(super) fn has_dead_node(api: &Api, pod: &Value) -> bool {
    let node = api.state.store.get("nodes", &key("", text(&pod["spec"]["nodeName"])));
    node.is_some_and(|node| node.json.contains(UNREACHABLE) && is_dead(&node.bare()))
}

/// Gives up a pod whose node is dead: it is not ready, and it is deleted once it no longer tolerates the taint. It is gone only when it is
/// deleted without a grace period. What its kubelet has said last remains.
pub(super) fn give_up(api: &mut Api, mut pod: Value, now: Timestamp) -> Option<Timestamp> {
    if is_deleting(&pod) {
        return None;
    }
    let mut status = pod["status"].clone();
    let ready = status["conditions"]
        .as_array_mut()
        .into_iter()
        .flatten()
        .find(|known| known["type"] == "Ready" && known["status"] == "True");
    if let Some(ready) = ready {
        ready["status"] = "False".into();
        ready["lastTransitionTime"] = time(now).into();
        client::set_status(api, MANAGER, &PODS, &mut pod, status, now);
    }
    let tolerates = |t: &&Value| {
        (t["key"] == UNREACHABLE || t["key"].is_null())
            && (t["effect"].is_null() || t["effect"] == "NoExecute")
    };
    let mut tolerations = items(&pod["spec"]["tolerations"]).iter().filter(tolerates).peekable();
    let seconds = match tolerations.peek() {
        None => Some(0),
        Some(_) => tolerations.filter_map(|toleration| toleration["tolerationSeconds"].as_i64()).min(),
    };
    let since =
        condition(&pod, "Ready").and_then(|ready| parse_time(&ready["lastTransitionTime"])).unwrap_or(now);
    let ends = seconds_after(since, seconds?);
    if now < ends {
        return Some(ends);
    }
    let _ = client::delete(api, MANAGER, &PODS, &pod, None, now);
    None
}
