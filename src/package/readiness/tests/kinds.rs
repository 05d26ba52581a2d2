//! The other built-in kinds: storage, network, definitions, and kinds whose status does not matter.

use serde_json::json;

use super::super::needs_status;
use super::{check, cond};

#[test]
fn readiness_of_storage_and_network_kinds() {
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
fn readiness_of_definitions_and_other_kinds() {
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
    // A Deployment of another group does not follow the rules for Deployments.
    check("example.org/v1", "Deployment", &[("any", json!({}), "Ready")]);
}

#[test]
fn kinds_without_status_are_ready_when_they_exist() {
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
