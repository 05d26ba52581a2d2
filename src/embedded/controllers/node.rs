//! What a cluster has before anything is created: a node, and a class of volumes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::client::{self, CLASSES, KUBELET, MANAGER, NODES};
use super::pod_status::HOST;
use crate::api::{Api, time};

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
