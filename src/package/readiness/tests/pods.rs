//! Readiness of Pods.

use serde_json::{Value, json};

use super::{check, cond, told};
use crate::readiness::containers::{ANNOTATION, replaced_by, running};
use crate::readiness::of;

#[test]
fn readiness_of_pods() {
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
            // Since Kubernetes 1.36 a Pod also has an observed generation.
            (
                "resized",
                json!({"status": {"observedGeneration": 1, "phase": "Running", "conditions": [cond("Ready", "True", "", "")]}}),
                "NotReady LatestGenerationNotObserved: its controller has seen generation 1, the newest is 2",
            ),
        ],
    );
}

/// The kubelet has observed the new generation while the former container still runs.
#[test]
fn pod_waits_for_replacement_of_containers_with_new_image() {
    let pod = |image: &str, running: (&str, &str)| {
        let (id, reported) = running;
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "generation": 2},
            "spec": {"containers": [{"name": "etcd", "image": image}, {"name": "other", "image": "o"}]},
            "status": {"observedGeneration": 2, "phase": "Running", "conditions": [cond("Ready", "True", "", "")],
                "containerStatuses": [{"name": "etcd", "ready": true, "image": reported, "containerID": id},
                    {"name": "other", "ready": true, "image": "o", "containerID": "c://o"}]},
        })
    };
    let applied = |before: &Value, mut after: Value| {
        if let Some(note) = replaced_by(&after, &running(before)) {
            after["metadata"]["annotations"] = json!({ANNOTATION: note});
        }
        after
    };
    let waits =
        "NotReady ContainerNotReplaced: container etcd: runs with its former image and is not replaced yet";
    let old = pod("e:1", ("c://1", "docker.io/library/e:1"));
    let changed = applied(&old, pod("e:2", ("c://1", "docker.io/library/e:1")));
    assert_eq!(told(&of(&changed)), waits);
    // The image changes again before the kubelet replaces the container, and then back.
    assert_eq!(told(&of(&applied(&changed, pod("e:3", ("c://1", "docker.io/library/e:1"))))), waits);
    assert_eq!(told(&of(&applied(&changed, pod("e:1", ("c://1", "docker.io/library/e:1"))))), "Ready");
    // The runtime reports another tag for the image of the new container.
    let mut replaced = changed.clone();
    replaced["status"] = pod("e:2", ("c://2", "mirror/e:latest"))["status"].clone();
    assert_eq!(told(&of(&replaced)), "Ready");
    // The kubelet has stopped the former container and cannot pull the image. The reported id is still the
    // former one.
    let mut pulling = changed.clone();
    pulling["status"]["conditions"] = json!([cond("Ready", "False", "ContainersNotReady", "")]);
    pulling["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "ImagePullBackOff"}});
    assert_eq!(told(&of(&pulling)), "NotReady ImagePullBackOff: container etcd: ImagePullBackOff");
    // A runtime may keep the container if only the name of the image changes, so the Pod must not wait for a
    // new one.
    let renamed = applied(&old, pod("docker.io/library/e:1", ("c://1", "docker.io/library/e:1")));
    assert_eq!(told(&of(&renamed)), "Ready");
    // A change that replaces no container adds no annotation.
    assert_eq!(replaced_by(&pod("e:1", ("", "")), &running(&old)), None);
    assert_eq!(told(&of(&applied(&json!({}), pod("e:1", ("", ""))))), "Ready");
}
