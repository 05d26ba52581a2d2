//! Readiness of Deployment, `ReplicaSet`, `StatefulSet`, `DaemonSet`, Job and `CronJob`.

use serde_json::{Value, json};

use super::{check, cond};

#[test]
fn readiness_of_deployments() {
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
fn readiness_of_replica_sets() {
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
fn readiness_of_stateful_sets() {
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

/// A wrong image was corrected, and the controller waits for the pod with the wrong one.
#[test]
fn a_pod_that_holds_up_a_stateful_set_is_named() {
    let of = |spec: Value, counts: [i64; 4], current: &str| {
        let [replicas, ready, old, updated] = counts;
        json!({"spec": spec, "status": {"observedGeneration": 2, "replicas": replicas, "readyReplicas": ready,
            "currentReplicas": old, "updatedReplicas": updated, "currentRevision": current, "updateRevision": "a-2"}})
    };
    let spec = |more: Value| {
        let mut spec = json!({"replicas": 3, "podManagementPolicy": "OrderedReady", "updateStrategy": {"type": "RollingUpdate"}});
        spec.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        spec
    };
    let (plain, created) = (json!({}), "NotReady LessReplicas: 1 of 3 replicas created");
    let waits = "of an earlier revision is not ready, and no pod is replaced before it is; delete it if it cannot become ready";
    check(
        "apps/v1",
        "StatefulSet",
        &[
            (
                "the first pod",
                of(spec(plain.clone()), [1, 0, 1, 0], "a-1"),
                &*format!("{created}: the pod a-0 {waits}"),
            ),
            (
                "numbered from 5",
                of(spec(json!({"ordinals": {"start": 5}})), [1, 0, 1, 0], "a-1"),
                &*format!("{created}: the pod a-5 {waits}"),
            ),
            (
                "one of several",
                of(spec(plain.clone()), [3, 1, 2, 1], "a-1"),
                &*format!("NotReady LessReady: 1 of 3 replicas ready: a pod {waits}"),
            ),
            (
                "a pod of the new revision is not ready",
                of(spec(plain.clone()), [3, 2, 2, 1], "a-1"),
                "NotReady LessReady: 2 of 3 replicas ready",
            ),
            ("the pod is being deleted", of(spec(plain.clone()), [1, 0, 0, 0], "a-1"), created),
            ("no rollout", of(spec(plain), [1, 0, 1, 1], "a-2"), created),
            (
                "in parallel",
                of(spec(json!({"podManagementPolicy": "Parallel"})), [1, 0, 1, 0], "a-1"),
                created,
            ),
        ],
    );
}

#[test]
fn readiness_of_daemon_sets() {
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
fn readiness_of_jobs_and_cron_jobs() {
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
