//! One table of cases per kind, in the shape that objects of Kubernetes 1.36 have.

use serde_json::{Value, json};

use super::*;

/// `Ready`, `Terminating`, `NotReady Reason: message`, `Failed Reason: message`.
fn told(readiness: &Readiness) -> String {
    match readiness {
        Readiness::Ready => "Ready".into(),
        Readiness::Terminating => "Terminating".into(),
        Readiness::NotReady { reason, message } => format!("NotReady {reason}: {message}"),
        Readiness::Failed { reason, message } => format!("Failed {reason}: {message}"),
    }
}

fn check(api_version: &str, kind: &str, cases: &[(&str, Value, &str)]) {
    for (name, body, expected) in cases {
        let mut object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "generation": 2}});
        for (key, value) in body.as_object().expect("object") {
            if let (Value::Object(into), Value::Object(from)) = (&mut object[key], value) {
                into.extend(from.clone());
            } else {
                object[key] = value.clone();
            }
        }
        assert_eq!(told(&of(&object)), *expected, "{kind}: {name}");
    }
}

fn cond(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

#[test]
fn deployment() {
    let spec = json!({"replicas": 3, "progressDeadlineSeconds": 600});
    let available = cond("Available", "True", "MinimumReplicasAvailable", "");
    let done = cond("Progressing", "True", "NewReplicaSetAvailable", "");
    let moving = cond("Progressing", "True", "ReplicaSetUpdated", "");
    let full = json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3, "conditions": [available, done]});
    let with = |changes: Value| {
        let mut status = full.clone();
        for (key, value) in changes.as_object().expect("object") {
            status[key] = value.clone();
        }
        json!({"spec": spec, "status": status})
    };
    check(
        "apps/v1",
        "Deployment",
        &[
            (
                "just created",
                json!({"spec": spec}),
                "NotReady NotObserved: its controller has not seen it yet",
            ),
            ("all there", with(json!({})), "Ready"),
            (
                "old generation",
                with(json!({"observedGeneration": 1})),
                "NotReady LatestGenerationNotObserved: its controller has seen generation 1, the newest is 2",
            ),
            ("none created", with(json!({"replicas": 0})), "NotReady LessReplicas: 0 of 3 replicas created"),
            (
                "one updated",
                with(json!({"updatedReplicas": 1})),
                "NotReady LessUpdated: 1 of 3 replicas updated",
            ),
            ("old ones left", with(json!({"replicas": 4})), "NotReady ExtraPods: 1 old replica not gone yet"),
            (
                "two ready",
                with(json!({"readyReplicas": 2, "availableReplicas": 2})),
                "NotReady LessReady: 2 of 3 replicas ready",
            ),
            (
                "minReadySeconds",
                with(json!({"availableReplicas": 2})),
                "NotReady LessAvailable: 2 of 3 replicas available",
            ),
            (
                "rollout not complete",
                with(json!({"conditions": [available, moving]})),
                "NotReady Progressing: its rollout is not complete",
            ),
            (
                "no deadline, no progress reported",
                json!({"spec": {"replicas": 3, "progressDeadlineSeconds": 2_147_483_647}, "status": {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3, "conditions": [available]}}),
                "Ready",
            ),
            (
                "not available",
                with(json!({"conditions": [done]})),
                "NotReady NotAvailable: it is not available",
            ),
            (
                "deadline exceeded",
                with(
                    json!({"readyReplicas": 1, "conditions": [cond("Progressing", "False", "ProgressDeadlineExceeded", "")]}),
                ),
                "Failed ProgressDeadlineExceeded: no progress within its deadline; 1 of 3 replicas ready",
            ),
            (
                "quota",
                with(
                    json!({"replicas": 0, "conditions": [cond("ReplicaFailure", "True", "FailedCreate", "pods \"a-1\" is forbidden: exceeded quota: q")]}),
                ),
                "NotReady ReplicaFailure: 0 of 3 replicas created: pods \"a-1\" is forbidden: exceeded quota: q",
            ),
            (
                "scaled to nothing",
                json!({"spec": {"replicas": 0, "progressDeadlineSeconds": 600}, "status": {"observedGeneration": 2, "conditions": [available, done]}}),
                "Ready",
            ),
            (
                "deleted",
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec}),
                "Terminating",
            ),
        ],
    );
}

#[test]
fn replica_set() {
    check(
        "apps/v1",
        "ReplicaSet",
        &[
            (
                "new",
                json!({"spec": {"replicas": 1}}),
                "NotReady NotObserved: its controller has not seen it yet",
            ),
            (
                "none",
                json!({"spec": {"replicas": 1}, "status": {"observedGeneration": 2, "replicas": 0}}),
                "NotReady LessReplicas: 0 of 1 replica created",
            ),
            (
                "not ready",
                json!({"spec": {"replicas": 2}, "status": {"observedGeneration": 2, "replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 1, "availableReplicas": 1}}),
                "NotReady LessReady: 1 of 2 replicas ready",
            ),
            (
                "too many",
                json!({"spec": {"replicas": 1}, "status": {"observedGeneration": 2, "replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 3, "availableReplicas": 3}}),
                "NotReady ExtraPods: 2 old replicas not gone yet",
            ),
            (
                "ready",
                json!({"spec": {"replicas": 1}, "status": {"observedGeneration": 2, "replicas": 1, "fullyLabeledReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}}),
                "Ready",
            ),
        ],
    );
}

#[test]
fn stateful_set() {
    let spec = |strategy: Value| json!({"replicas": 3, "updateStrategy": strategy});
    let rolling = spec(json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
    let status = |replicas: i64, ready: i64, current: i64, updated: i64, revision: &str| json!({"observedGeneration": 2, "replicas": replicas, "readyReplicas": ready, "currentReplicas": current, "updatedReplicas": updated, "currentRevision": revision, "updateRevision": "a-2"});
    check(
        "apps/v1",
        "StatefulSet",
        &[
            ("new", json!({"spec": rolling}), "NotReady NotObserved: its controller has not seen it yet"),
            (
                "new, no replicas wanted",
                json!({"spec": {"replicas": 0}}),
                "NotReady NotObserved: its controller has not seen it yet",
            ),
            (
                "growing",
                json!({"spec": rolling, "status": status(2, 1, 2, 2, "a-2")}),
                "NotReady LessReplicas: 2 of 3 replicas created",
            ),
            (
                "one unready",
                json!({"spec": rolling, "status": status(3, 2, 3, 3, "a-2")}),
                "NotReady LessReady: 2 of 3 replicas ready",
            ),
            (
                "shrinking",
                json!({"spec": rolling, "status": status(5, 5, 5, 5, "a-2")}),
                "NotReady ExtraPods: 2 old replicas not gone yet",
            ),
            (
                "rolling",
                json!({"spec": rolling, "status": status(3, 3, 1, 2, "a-1")}),
                "NotReady LessUpdated: 2 of 3 replicas updated",
            ),
            (
                "just rolled",
                json!({"spec": rolling, "status": status(3, 3, 0, 3, "a-1")}),
                "NotReady RevisionMismatch: its rollout is not complete",
            ),
            ("ready", json!({"spec": rolling, "status": status(3, 3, 3, 3, "a-2")}), "Ready"),
            (
                "partition",
                json!({"spec": spec(json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}})), "status": status(3, 3, 2, 1, "a-1")}),
                "NotReady PartitionRollout: 1 of 2 replicas updated",
            ),
            (
                "partition reached",
                json!({"spec": spec(json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}})), "status": status(3, 3, 2, 1, "a-1")}),
                "Ready",
            ),
            (
                "OnDelete",
                json!({"spec": spec(json!({"type": "OnDelete"})), "status": status(3, 3, 2, 1, "a-1")}),
                "Ready",
            ),
            (
                "OnDelete, not ready",
                json!({"spec": spec(json!({"type": "OnDelete"})), "status": status(3, 0, 3, 0, "a-1")}),
                "NotReady LessReady: 0 of 3 replicas ready",
            ),
        ],
    );
}

#[test]
fn daemon_set() {
    let status = |want: i64, current: i64, updated: i64, ready: i64| json!({"observedGeneration": 2, "desiredNumberScheduled": want, "currentNumberScheduled": current, "updatedNumberScheduled": updated, "numberReady": ready, "numberAvailable": ready, "numberMisscheduled": 0});
    check(
        "apps/v1",
        "DaemonSet",
        &[
            ("new", json!({}), "NotReady NotObserved: its controller has not seen it yet"),
            (
                "as the server makes it",
                json!({"status": {"desiredNumberScheduled": 0, "currentNumberScheduled": 0, "numberReady": 0, "numberMisscheduled": 0}}),
                "NotReady NotObserved: its controller has not seen it yet",
            ),
            ("no node", json!({"status": status(0, 0, 0, 0)}), "Ready"),
            (
                "creating",
                json!({"status": status(2, 1, 1, 1)}),
                "NotReady LessCurrent: 1 of 2 replicas created",
            ),
            (
                "updating",
                json!({"status": status(2, 2, 1, 2)}),
                "NotReady LessUpdated: 1 of 2 replicas updated",
            ),
            (
                "OnDelete",
                json!({"spec": {"updateStrategy": {"type": "OnDelete"}}, "status": status(2, 2, 0, 2)}),
                "Ready",
            ),
            (
                "OnDelete, not ready",
                json!({"spec": {"updateStrategy": {"type": "OnDelete"}}, "status": status(2, 2, 0, 1)}),
                "NotReady LessReady: 1 of 2 replicas ready",
            ),
            (
                "one unready",
                json!({"status": status(2, 2, 2, 1)}),
                "NotReady LessReady: 1 of 2 replicas ready",
            ),
            ("ready", json!({"status": status(2, 2, 2, 2)}), "Ready"),
        ],
    );
}

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

#[test]
fn job_and_cron_job() {
    check(
        "batch/v1",
        "Job",
        &[
            ("new", json!({}), "NotReady JobNotStarted: it has not started yet"),
            ("runs", json!({"status": {"startTime": "2026-01-01T00:00:00Z", "active": 1}}), "Ready"),
            (
                "complete",
                json!({"status": {"conditions": [cond("SuccessCriteriaMet", "True", "", ""), cond("Complete", "True", "", "")]}}),
                "Ready",
            ),
            (
                "failed",
                json!({"status": {"startTime": "2026-01-01T00:00:00Z", "conditions": [cond("Failed", "True", "BackoffLimitExceeded", "Job has reached the specified backoff limit")]}}),
                "Failed BackoffLimitExceeded: Job has reached the specified backoff limit",
            ),
            (
                "suspended",
                json!({"spec": {"suspend": true}, "status": {"conditions": [cond("Suspended", "True", "JobSuspended", "")]}}),
                "Ready",
            ),
            (
                "resumed",
                json!({"spec": {"suspend": false}, "status": {"conditions": [cond("Suspended", "True", "JobSuspended", "")]}}),
                "NotReady JobNotStarted: it has not started yet",
            ),
        ],
    );
    check("batch/v1", "CronJob", &[("any", json!({"spec": {"schedule": "* * * * *"}}), "Ready")]);
}

#[test]
fn storage_and_network() {
    let unbound = "NotReady NotBound: it is not bound to a volume; where the storage class says WaitForFirstConsumer, a pod must use it first";
    check(
        "v1",
        "PersistentVolumeClaim",
        &[
            ("new", json!({}), unbound),
            ("pending", json!({"status": {"phase": "Pending"}}), unbound),
            ("bound", json!({"status": {"phase": "Bound"}}), "Ready"),
            ("lost", json!({"status": {"phase": "Lost"}}), "Failed ClaimLost: its volume is gone"),
        ],
    );
    check(
        "v1",
        "Service",
        &[
            (
                "cluster",
                json!({"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1"}, "status": {"loadBalancer": {}}}),
                "Ready",
            ),
            ("headless", json!({"spec": {"clusterIP": "None"}}), "Ready"),
            ("external name", json!({"spec": {"type": "ExternalName", "externalName": "a.b"}}), "Ready"),
            (
                "balancer, new",
                json!({"spec": {"type": "LoadBalancer"}}),
                "NotReady NoClusterIP: it has no cluster IP yet",
            ),
            (
                "balancer, waits",
                json!({"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1"}, "status": {"loadBalancer": {}}}),
                "NotReady NoAddress: its load balancer has no address yet",
            ),
            (
                "balancer",
                json!({"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1"}, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}),
                "Ready",
            ),
        ],
    );
    check(
        "networking.k8s.io/v1",
        "Ingress",
        &[("without address", json!({"status": {"loadBalancer": {}}}), "Ready")],
    );
    check(
        "policy/v1",
        "PodDisruptionBudget",
        &[
            ("new", json!({}), "NotReady NotObserved: its controller has not seen it yet"),
            (
                "seen",
                json!({"status": {"observedGeneration": 2, "disruptionsAllowed": 0, "conditions": [cond("DisruptionAllowed", "False", "InsufficientPods", "")]}}),
                "Ready",
            ),
        ],
    );
    check(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        &[
            ("new", json!({}), "Ready"),
            (
                "without metrics",
                json!({"status": {"conditions": [cond("AbleToScale", "True", "SucceededGetScale", ""), cond("ScalingActive", "False", "FailedGetResourceMetric", "no metrics")]}}),
                "Ready",
            ),
            (
                "without target",
                json!({"status": {"conditions": [cond("AbleToScale", "False", "FailedGetScale", "deployments.apps \"a\" not found")]}}),
                "NotReady FailedGetScale: deployments.apps \"a\" not found",
            ),
        ],
    );
}

#[test]
fn definitions_and_the_rest() {
    check(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &[
            ("new", json!({}), "NotReady Installing: it is not established yet"),
            (
                "installing",
                json!({"status": {"conditions": [cond("NamesAccepted", "True", "NoConflicts", ""), cond("Established", "False", "Installing", "")]}}),
                "NotReady Installing: it is not established yet",
            ),
            (
                "established",
                json!({"status": {"conditions": [cond("NamesAccepted", "True", "NoConflicts", ""), cond("Established", "True", "InitialNamesAccepted", "")]}}),
                "Ready",
            ),
            (
                "names taken",
                json!({"status": {"conditions": [cond("NamesAccepted", "False", "PluralConflict", "\"ws\" is already in use")]}}),
                "Failed PluralConflict: \"ws\" is already in use",
            ),
            (
                "not established",
                json!({"status": {"conditions": [cond("Established", "False", "NotAccepted", "not all names are accepted")]}}),
                "Failed NotAccepted: not all names are accepted",
            ),
        ],
    );
    check(
        "apiregistration.k8s.io/v1",
        "APIService",
        &[
            ("new", json!({}), "NotReady NotAvailable: its availability was not checked yet"),
            (
                "no endpoints",
                json!({"status": {"conditions": [cond("Available", "False", "MissingEndpoints", "no endpoints")]}}),
                "NotReady MissingEndpoints: no endpoints",
            ),
            (
                "available",
                json!({"status": {"conditions": [cond("Available", "True", "Passed", "")]}}),
                "Ready",
            ),
        ],
    );
    check(
        "v1",
        "Namespace",
        &[
            ("active", json!({"status": {"phase": "Active"}}), "Ready"),
            (
                "deleted",
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Terminating"}}),
                "Terminating",
            ),
        ],
    );
    check("v1", "ConfigMap", &[("any", json!({}), "Ready")]);
    check(
        "v1",
        "ReplicationController",
        &[
            (
                "one of two",
                json!({"spec": {"replicas": 2}, "status": {"observedGeneration": 2, "replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 1}}),
                "NotReady LessReady: 1 of 2 replicas ready",
            ),
            (
                "all there",
                json!({"spec": {"replicas": 1}, "status": {"observedGeneration": 2, "replicas": 1, "fullyLabeledReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}}),
                "Ready",
            ),
        ],
    );
    // A Deployment of another group is not a Deployment.
    check("example.org/v1", "Deployment", &[("any", json!({}), "Ready")]);
}

#[test]
fn custom_kinds() {
    let page = "x".repeat(400);
    let cut = format!("NotReady R: {}...", "x".repeat(300));
    check(
        "example.org/v1",
        "Thing",
        &[
            ("nothing known", json!({}), "Ready"),
            ("ready", json!({"status": {"conditions": [cond("Ready", "True", "", "")]}}), "Ready"),
            (
                "not ready",
                json!({"status": {"conditions": [cond("Ready", "False", "Booking", "waits for an answer")]}}),
                "NotReady Booking: waits for an answer",
            ),
            (
                "unknown, bare",
                json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
                "NotReady NotReady: condition Ready is Unknown",
            ),
            (
                "reconciling beats ready",
                json!({"status": {"conditions": [cond("Ready", "True", "", ""), cond("Reconciling", "True", "Busy", "on it")]}}),
                "NotReady Busy: on it",
            ),
            (
                "stalled",
                json!({"status": {"conditions": [cond("Stalled", "True", "Denied", "no rights")]}}),
                "Failed Denied: no rights",
            ),
            ("stalled, over", json!({"status": {"conditions": [cond("Stalled", "False", "", "")]}}), "Ready"),
            (
                "old generation beats all",
                json!({"status": {"observedGeneration": 1, "conditions": [cond("Ready", "True", "", "")]}}),
                "NotReady LatestGenerationNotObserved: its controller has seen generation 1, the newest is 2",
            ),
            (
                "old condition",
                json!({"status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}}),
                "NotReady LatestGenerationNotObserved: its condition Ready is of generation 1, the newest is 2",
            ),
            (
                "no secret in a message",
                json!({"status": {"conditions": [cond("Ready", "False", "R", "spec.password: Invalid value: \"hunter2\": too short")]}}),
                "NotReady R: spec.password",
            ),
            ("no page either", json!({"status": {"conditions": [cond("Ready", "False", "R", &page)]}}), &cut),
            ("nonsense", json!({"status": {"conditions": {"a": 1}, "observedGeneration": "x"}}), "Ready"),
            (
                "more nonsense",
                json!({"status": {"conditions": [1, null, {"type": "Ready"}, {"status": "True"}]}}),
                "Ready",
            ),
        ],
    );
    let object = |status: Value| json!({"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"generation": 1}, "status": status});
    let cases = [
        (json!({}), true, false),
        (json!({}), false, true),
        (json!({"conditions": []}), true, false),
        (json!({"phase": "Booked"}), true, false),
        (json!({"observedGeneration": 1}), true, true),
        (json!({"conditions": [{"type": "Synced", "status": "True"}]}), true, true),
        (json!({"conditions": [{"type": "Ready", "status": "False"}]}), true, false),
    ];
    for (status, subresource, ready) in cases {
        assert_eq!(
            of_custom(&object(status.clone()), subresource).is_ready(),
            ready,
            "{status} {subresource}"
        );
    }
    // Parts of what a condition Ready would say.
    let part = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "Pending"});
    for (conditions, wanted) in [
        (json!([part("Accepted", "True"), part("Programmed", "Unknown")]), false),
        (json!([part("Accepted", "True"), part("Programmed", "True"), part("Odd", "False")]), true),
        (json!([part("Available", "Degraded")]), false),
        (json!([part("Available", "False"), part("Ready", "True")]), true),
        (json!([{"type": "Accepted", "status": "True", "observedGeneration": 0}]), false),
    ] {
        let object = object(json!({"conditions": conditions}));
        assert_eq!(of(&object).is_ready(), wanted, "{object}");
    }
    let deleted = json!({"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert_eq!(of_custom(&deleted, true), Readiness::Terminating);
    for nonsense in [
        json!(null),
        json!([]),
        json!("x"),
        json!({"kind": 1, "apiVersion": [], "metadata": 3, "status": "x"}),
    ] {
        assert_eq!(of(&nonsense), Readiness::Ready);
    }
}

#[test]
fn routes_are_ready_once_all_their_parents_take_them() {
    let of = |refs: Value, parents: Value| {
        let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "r", "namespace": "n", "generation": 2},
            "spec": {"parentRefs": refs}, "status": {"parents": parents}});
        // Also where its CRD cannot be read.
        of_kind(&object, true)
    };
    let answer = |section: Option<&str>, conditions: Value| {
        let mut parent =
            json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g", "namespace": "n"});
        if let Some(section) = section {
            parent["sectionName"] = json!(section);
        }
        json!({"controllerName": "c", "parentRef": parent, "conditions": conditions})
    };
    let says = |accepted: &str, resolved: &str, generation: i64| {
        json!([{"type": "Accepted", "status": accepted, "observedGeneration": generation},
            {"type": "ResolvedRefs", "status": resolved, "observedGeneration": generation, "reason": "BackendNotFound"}])
    };
    let yes = says("True", "True", 2);
    let one = json!([{"name": "g"}]);
    let two = json!([{"name": "g", "sectionName": "a"}, {"name": "g", "sectionName": "b"}]);
    for (refs, parents, wanted) in [
        (json!([]), json!([]), "Ready"),
        (one.clone(), json!(null), "NotObserved"),
        (one.clone(), json!([answer(None, yes.clone())]), "Ready"),
        (one.clone(), json!([answer(Some("a"), yes.clone())]), "NotObserved"),
        (one.clone(), json!([answer(None, says("False", "True", 2))]), "NotReady"),
        (one.clone(), json!([answer(None, says("True", "False", 2))]), "BackendNotFound"),
        (one.clone(), json!([answer(None, says("True", "True", 1))]), "LatestGenerationNotObserved"),
        (one, json!([answer(None, json!([]))]), "NotAccepted"),
        (two.clone(), json!([answer(Some("a"), yes.clone())]), "NotObserved"),
        (two, json!([answer(Some("b"), yes.clone()), answer(Some("a"), yes)]), "Ready"),
    ] {
        let got = match of(refs.clone(), parents.clone()) {
            Readiness::NotReady { reason, .. } => reason,
            other => format!("{other:?}"),
        };
        assert_eq!(got, wanted, "{refs} {parents}");
    }
}

#[test]
fn what_needs_no_status_is_ready_from_its_metadata() {
    let bare = [
        ("", "ConfigMap"),
        ("", "Secret"),
        ("", "ServiceAccount"),
        ("rbac.authorization.k8s.io", "Role"),
        ("networking.k8s.io", "NetworkPolicy"),
        ("batch", "CronJob"),
    ];
    for (group, kind) in bare {
        assert!(!needs_status(group, kind), "{group}/{kind}");
    }
    for (group, kind) in [
        ("apps", "Deployment"),
        ("", "Pod"),
        ("", "Service"),
        ("", "PersistentVolumeClaim"),
        ("policy", "PodDisruptionBudget"),
        ("example.org", "ConfigMap"),
    ] {
        assert!(needs_status(group, kind), "{group}/{kind}");
    }
}
