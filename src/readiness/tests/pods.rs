//! Pod.

use serde_json::{Value, json};

use super::{check, cond};

#[test]
fn pod() {
    let waiting = |name: &str, reason: &str| json!({"name": name, "ready": false, "state": {"waiting": {"reason": reason}}});
    let unready = json!({"name": "b", "ready": false, "state": {"running": {}}});
    let status = |phase: &str, conditions: Value, containers: Value| json!({"status": {"phase": phase, "conditions": conditions, "containerStatuses": containers}});
    check(
        "v1",
        "Pod",
        &[
            ("not seen", json!({}), "NotReady PodNotObserved: it has no phase yet"),
            (
                "waits for a node",
                status("Pending", json!([]), json!([])),
                "NotReady PodPending: it has not started yet",
            ),
            (
                "unschedulable",
                status(
                    "Pending",
                    json!([cond(
                        "PodScheduled",
                        "False",
                        "Unschedulable",
                        "0/1 nodes are available: 1 Insufficient cpu."
                    )]),
                    json!([]),
                ),
                "NotReady Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.",
            ),
            (
                "gated",
                status("Pending", json!([cond("PodScheduled", "False", "SchedulingGated", "")]), json!([])),
                "NotReady SchedulingGated: condition PodScheduled is False",
            ),
            (
                "creating",
                status(
                    "Pending",
                    json!([cond("PodScheduled", "True", "", "")]),
                    json!([waiting("etcd", "ContainerCreating")]),
                ),
                "NotReady PodPending: it has not started yet",
            ),
            (
                "bad image",
                status("Pending", json!([]), json!([waiting("etcd", "ImagePullBackOff")])),
                "NotReady ImagePullBackOff: container etcd: ImagePullBackOff",
            ),
            (
                "bad image of an init container",
                json!({"status": {"phase": "Pending", "initContainerStatuses": [waiting("init", "ErrImagePull")], "containerStatuses": [waiting("etcd", "PodInitializing")]}}),
                "NotReady ErrImagePull: container init: ErrImagePull",
            ),
            ("ready", status("Running", json!([cond("Ready", "True", "", "")]), json!([])), "Ready"),
            (
                "not ready",
                status(
                    "Running",
                    json!([cond("Ready", "False", "ContainersNotReady", "")]),
                    json!([unready, {"name": "a", "ready": true}]),
                ),
                "NotReady ContainersNotReady: container b: not ready",
            ),
            (
                "two not ready",
                status("Running", json!([]), json!([unready, {"name": "c", "ready": false}])),
                "NotReady ContainersNotReady: containers b, c: not ready",
            ),
            (
                "readiness gate",
                status(
                    "Running",
                    json!([cond("Ready", "False", "ReadinessGatesNotReady", "the gate is closed")]),
                    json!([{"name": "a", "ready": true}]),
                ),
                "NotReady ReadinessGatesNotReady: the gate is closed",
            ),
            (
                "crash loop",
                status(
                    "Running",
                    json!([cond("Ready", "False", "ContainersNotReady", "")]),
                    json!([waiting("etcd", "CrashLoopBackOff")]),
                ),
                "Failed CrashLoopBackOff: container etcd: CrashLoopBackOff",
            ),
            (
                "bad config",
                status("Running", json!([]), json!([waiting("a", "CreateContainerConfigError")])),
                "NotReady CreateContainerConfigError: container a: CreateContainerConfigError",
            ),
            (
                "succeeded",
                status("Succeeded", json!([cond("Ready", "False", "PodCompleted", "")]), json!([])),
                "Ready",
            ),
            (
                "failed",
                status(
                    "Failed",
                    json!([]),
                    json!([{"name": "a", "ready": false, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]),
                ),
                "Failed PodFailed: container a: OOMKilled, exit code 137",
            ),
            (
                "evicted",
                json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}}),
                "Failed Evicted: The node was low on resource: memory.",
            ),
            (
                "node lost",
                status("Unknown", json!([]), json!([])),
                "NotReady PodNotReady: it is in phase Unknown",
            ),
            (
                "deleted",
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running", "conditions": [cond("Ready", "True", "", "")]}}),
                "Terminating",
            ),
            // A pod of 1.36 has an observed generation, too.
            (
                "resized",
                json!({"status": {"observedGeneration": 1, "phase": "Running", "conditions": [cond("Ready", "True", "", "")]}}),
                "NotReady LatestGenerationNotObserved: its controller has seen generation 1, the newest is 2",
            ),
        ],
    );
}
