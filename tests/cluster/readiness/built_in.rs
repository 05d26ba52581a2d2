//! The other built-in kinds whose readiness is awaited: volumes, Services, budgets, autoscalers, namespaces,
//! APIServices.

use super::record::Record;
use super::{apply, created, document, workload};
use crate::support::{LONG, Scene, eventually, kubectl, kubectl_stdin};
use serde_json::json;

#[tokio::test]
async fn readiness_of_volumes_services_budgets_and_autoscalers() {
    let scene = Scene::unmanaged().await;
    let claim = ("v1", "PersistentVolumeClaim", "persistentvolumeclaims");
    let service = ("v1", "Service", "services");
    let budget = ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets");
    let autoscaler = ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers");
    let size = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}";
    let ports = "ports: [{port: 80}]";
    let target = |name: &str| {
        format!(
            "{{minReplicas: 1, maxReplicas: 2, scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}}}"
        )
    };
    apply(&scene, &workload("apps/v1", "Deployment", "target", "replicas: 1")).await;
    let cases = [
        (claim, "bound", format!("{{{size}}}"), "Ready", &["NotBound"][..]),
        (claim, "unbound", format!("{{storageClassName: nobody, {size}}}"), "NotBound", &[]),
        (service, "inner", format!("{{{ports}}}"), "Ready", &[]),
        (service, "named", "{type: ExternalName, externalName: example.org}".to_owned(), "Ready", &[]),
        (service, "outer", format!("{{type: LoadBalancer, {ports}}}"), "NoAddress", &["NoClusterIP"]),
        (budget, "budget", "{minAvailable: 1, selector: {matchLabels: {app: target}}}".to_owned(), "Ready", &["NotObserved"]),
        (autoscaler, "lost", target("nobody"), "FailedGetScale", &["Ready"]),
        (autoscaler, "scales", target("target"), "Ready", &["FailedGetScale"]),
        (("batch/v1", "CronJob", "cronjobs"), "cron", "{schedule: '0 0 1 1 *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}}".to_owned(), "Ready", &[]),
        (("networking.k8s.io/v1", "Ingress", "ingresses"), "web", "{defaultBackend: {service: {name: inner, port: {number: 80}}}}".to_owned(), "Ready", &[]),
        (("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"), "none", "{podSelector: {}}".to_owned(), "Ready", &[]),
    ];
    futures::future::join_all(cases.iter().map(async |(kind, name, spec, last, by)| {
        let record = created(&scene, *kind, name, spec).await;
        record.comes_to(last, by).await;
        if *name == "outer" {
            let address = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}).to_string();
            scene
                .kubectl(&["patch", "service", name, "--subresource=status", "--type=merge", "-p", &address])
                .await;
            record.until("Ready").await;
        }
    }))
    .await;
}

#[tokio::test]
async fn readiness_of_namespaces_and_api_services() {
    let scene = Scene::unmanaged().await;
    let name = format!("{}-more", scene.namespace());
    let record = Record::of(&scene, ("v1", "Namespace", "namespaces"), false, &name, None);
    record.watching().await;
    kubectl(&["create", "namespace", &name]).await.ok();
    record.comes_to("Ready", &[]).await;
    kubectl(&["delete", "namespace", &name, "--wait=false"]).await.ok();
    record.comes_to("gone", &["Ready", "Terminating"]).await;

    let service = ("apiregistration.k8s.io/v1", "APIService", "apiservices");
    let record = Record::of(&scene, service, false, "v1.apps", None);
    eventually("the server's own", LONG, async || match record.states().first() {
        Some(first) if first == "Ready" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // Nothing serves this APIService. It is deleted soon, because discovery is incomplete while it exists.
    let record = Record::of(&scene, service, false, "v1.nobody.operetta.dev", None);
    record.watching().await;
    let manifest = format!(
        "{{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {{name: v1.nobody.operetta.dev}}, spec: {{group: \
         nobody.operetta.dev, version: v1, groupPriorityMinimum: 1, versionPriority: 1, service: {{name: nobody, namespace: {}}}}}}}",
        scene.namespace()
    );
    kubectl_stdin(&["apply", "-f", "-"], &document(&manifest)).await.ok();
    record.comes_to("ServiceNotFound", &["NotAvailable"]).await;
    kubectl(&["delete", "apiservice", "v1.nobody.operetta.dev"]).await.ok();
}
