//! Readiness of workloads, pods and Jobs.

use super::record::Record;
use super::{POD_TEMPLATE, apply, created, workload};
use crate::support::ext::Scene;
use serde_json::json;

#[tokio::test]
async fn workloads_are_ready_when_their_pods_are() {
    let scene = Scene::unmanaged().await;
    // The states until the controller has observed it, until the pods exist, and until they are ready.
    let deployment = [
        "NotObserved",
        "LessReplicas",
        "LessUpdated",
        "LessReady",
        "LessAvailable",
        "Progressing",
        "NotAvailable",
    ];
    let plain = ["NotObserved", "LessReplicas", "LessReady", "LessAvailable"];
    let set = ["NotObserved", "LessReplicas", "LessReady", "LessCurrent", "LessUpdated", "RevisionMismatch"];
    let daemon = ["NotObserved", "LessCurrent", "LessUpdated", "LessReady", "LessAvailable"];
    let controller = format!(
        "{{apiVersion: v1, kind: ReplicationController, metadata: {{name: rc}}, spec: {{replicas: 2, selector: {{app: rc}}, template: {}}}}}",
        POD_TEMPLATE.replace("NAME", "rc")
    );
    let cases = [
        (
            "apps/v1",
            "Deployment",
            "deployments",
            "d",
            workload("apps/v1", "Deployment", "d", "replicas: 2"),
            &deployment[..],
        ),
        (
            "apps/v1",
            "ReplicaSet",
            "replicasets",
            "rs",
            workload("apps/v1", "ReplicaSet", "rs", "replicas: 2"),
            &plain,
        ),
        ("v1", "ReplicationController", "replicationcontrollers", "rc", controller, &plain),
        (
            "apps/v1",
            "StatefulSet",
            "statefulsets",
            "ss",
            workload("apps/v1", "StatefulSet", "ss", "replicas: 2, serviceName: ss"),
            &set,
        ),
        (
            "apps/v1",
            "DaemonSet",
            "daemonsets",
            "ds",
            workload("apps/v1", "DaemonSet", "ds", "minReadySeconds: 0"),
            &daemon,
        ),
    ];
    futures::future::join_all(cases.iter().map(async |(api, kind, plural, name, manifest, by)| {
        let record = Record::of(&scene, (api, kind, plural), true, name, None);
        record.watching().await;
        apply(&scene, manifest).await;
        record.comes_to("Ready", by).await;
        assert_eq!(
            record.states()[1],
            "NotObserved",
            "{kind} is not ready before its controller has seen it"
        );
        // Change the template, or the number of replicas for kinds that do not replace pods.
        let patch = match *name {
            "rs" | "rc" => json!({"spec": {"replicas": 3}}),
            _ => json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}}}}),
        };
        record.again();
        scene.kubectl(&["patch", kind, name, "--type=merge", "-p", &patch.to_string()]).await;
        let mut by = by.to_vec();
        by.extend(["LatestGenerationNotObserved", "ExtraPods"]);
        record.comes_to("Ready", &by).await;
        assert!(record.states().len() > 2, "{kind} has waited: {:?}", record.states());
        let held = json!({"metadata": {"finalizers": ["test.operetta.dev/hold"]}}).to_string();
        scene.kubectl(&["patch", kind, name, "--type=merge", "-p", &held]).await;
        scene.kubectl(&["delete", kind, name, "--wait=false"]).await;
        record.until("Terminating").await;
        scene
            .kubectl(&["patch", kind, name, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])
            .await;
        record.until("gone").await;
    }))
    .await;
}

#[tokio::test]
async fn readiness_of_pods_and_jobs() {
    let scene = Scene::unmanaged().await;
    let spec = "containers: [{name: a, image: a}]";
    let pod = ("v1", "Pod", "pods");
    let job = ("batch/v1", "Job", "jobs");
    let template = |more: &str| format!("template: {{spec: {{restartPolicy: Never, {more} {spec}}}}}");
    let nowhere = "nodeSelector: {there: is-none},";
    let cases = [
        (pod, "runs", format!("{{{spec}}}"), "Ready", &["PodPending", "PodNotScheduled"][..]),
        (pod, "nowhere", format!("{{{nowhere} {spec}}}"), "Unschedulable", &["PodPending"]),
        (job, "works", format!("{{{}}}", template("")), "Ready", &["JobNotStarted"]),
        (
            job,
            "late",
            format!("{{activeDeadlineSeconds: 1, {}}}", template(nowhere)),
            "!DeadlineExceeded",
            &["JobNotStarted", "Ready"],
        ),
        (job, "later", format!("{{suspend: true, {}}}", template("")), "Ready", &["JobNotStarted"]),
    ];
    futures::future::join_all(cases.iter().map(async |(kind, name, spec, last, by)| {
        let record = created(&scene, *kind, name, spec).await;
        record.comes_to(last, by).await;
        assert!(record.states().len() > 2, "{name} has waited: {:?}", record.states());
    }))
    .await;
}
