//! All kinds of the server: those without a readiness rule are ready at once, and all others have a test.

use super::record::Record;
use crate::support::ext::Scene;
use serde_json::json;

/// Kinds without a readiness rule: API version, kind, and the manifest's body.
const AT_ONCE: &[(&str, &str, &str)] = &[
    ("v1", "ConfigMap", "data: {a: b}"),
    ("v1", "Secret", "data: {a: Yg==}"),
    ("v1", "ServiceAccount", ""),
    ("v1", "Endpoints", "subsets: []"),
    ("v1", "LimitRange", "spec: {limits: [{type: Container, max: {cpu: 64}}]}"),
    ("v1", "ResourceQuota", "spec: {hard: {count/gadgets.example.org: 9}}"),
    ("v1", "PodTemplate", "template: {spec: {containers: [{name: a, image: a}]}}"),
    ("v1", "Event", "involvedObject: {namespace: NAMESPACE}"),
    (
        "v1",
        "PersistentVolume",
        "spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Mi}, storageClassName: nowhere, hostPath: {path: /none}}",
    ),
    ("apps/v1", "ControllerRevision", "revision: 1\ndata: {a: b}"),
    (
        "batch/v1",
        "CronJob",
        "spec: {schedule: '0 0 1 1 *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}}}",
    ),
    ("networking.k8s.io/v1", "Ingress", "spec: {defaultBackend: {service: {name: a, port: {number: 80}}}}"),
    ("networking.k8s.io/v1", "IngressClass", "spec: {controller: example.org/a}"),
    ("networking.k8s.io/v1", "NetworkPolicy", "spec: {podSelector: {}}"),
    ("rbac.authorization.k8s.io/v1", "Role", "rules: []"),
    (
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: a}",
    ),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "rules: []"),
    (
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: a}",
    ),
    ("storage.k8s.io/v1", "StorageClass", "provisioner: example.org/a"),
    ("storage.k8s.io/v1", "CSIDriver", "spec: {attachRequired: false}"),
    ("storage.k8s.io/v1", "CSINode", "spec: {drivers: []}"),
    ("storage.k8s.io/v1", "CSIStorageCapacity", "storageClassName: nobody"),
    ("storage.k8s.io/v1", "VolumeAttributesClass", "driverName: example.org/a\nparameters: {a: b}"),
    (
        "storage.k8s.io/v1",
        "VolumeAttachment",
        "spec: {attacher: a.example.org, nodeName: a, source: {persistentVolumeName: a}}",
    ),
    ("scheduling.k8s.io/v1", "PriorityClass", "value: 1"),
    ("node.k8s.io/v1", "RuntimeClass", "handler: a"),
    ("coordination.k8s.io/v1", "Lease", "spec: {holderIdentity: a}"),
    ("discovery.k8s.io/v1", "EndpointSlice", "addressType: IPv4\nendpoints: []"),
    (
        "events.k8s.io/v1",
        "Event",
        "eventTime: '2026-01-01T00:00:00.000000Z'\nreportingController: example.org/a\nreportingInstance: a\naction: a\nreason: a\ntype: Normal\nregarding: {namespace: NAMESPACE}",
    ),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "webhooks: []"),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "webhooks: []"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", POLICY),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        "spec: {policyName: nobody, validationActions: [Deny]}",
    ),
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", MUTATION),
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding", "spec: {policyName: nobody}"),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "spec: {priorityLevelConfiguration: {name: nobody}}"),
    (
        "flowcontrol.apiserver.k8s.io/v1",
        "PriorityLevelConfiguration",
        "spec: {type: Limited, limited: {nominalConcurrencyShares: 1, limitResponse: {type: Reject}}}",
    ),
    ("resource.k8s.io/v1", "DeviceClass", "spec: {}"),
    ("resource.k8s.io/v1", "ResourceClaim", "spec: {devices: {}}"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate", "spec: {spec: {devices: {}}}"),
    ("networking.k8s.io/v1", "ServiceCIDR", "spec: {cidrs: [10.250.0.0/24]}"),
    ("networking.k8s.io/v1", "IPAddress", "spec: {parentRef: {resource: services, namespace: a, name: a}}"),
];

const POLICY: &str = "spec: {matchConstraints: {resourceRules: [{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: \
                      [nothings]}]}, validations: [{expression: 'true'}]}";
const MUTATION: &str = "spec: {matchConstraints: {resourceRules: [{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: \
                        [nothings]}]}, reinvocationPolicy: Never, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: \
                        'Object{}'}}]}";

/// Kinds with a test of their own, and kinds that people do not create.
const OTHERS: &[&str] = &[
    "APIService",
    "CustomResourceDefinition",
    "DaemonSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "Job",
    "Namespace",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "ReplicaSet",
    "ReplicationController",
    "Service",
    "StatefulSet",
    // Nodes and people create these, and components answer them.
    "CertificateSigningRequest",
    "Node",
    "ResourceSlice",
];

#[tokio::test]
async fn every_served_kind_has_a_readiness_test() {
    let scene = Scene::unmanaged().await;
    let discovery = kube::discovery::Discovery::new(scene.client()).run().await.unwrap();
    let mut served = Vec::new();
    // Custom kinds of other tests.
    let is_custom = |group: &str| {
        group.ends_with("operetta.dev")
            || group.ends_with("kudo.example.com")
            || ["etcd.database.coreos.com", "flights.com"].contains(&group)
    };
    for group in discovery.groups().filter(|g| !is_custom(g.name())) {
        for (resource, can) in group.recommended_resources() {
            if ["create", "list", "watch"].iter().all(|verb| can.supports_operation(verb)) {
                served.push((resource, can.scope == kube::discovery::Scope::Namespaced));
            }
        }
    }
    let missing: Vec<_> = served
        .iter()
        .filter(|(r, _)| {
            let told = AT_ONCE.iter().any(|(api, kind, _)| *api == r.api_version && *kind == r.kind);
            !told && !OTHERS.contains(&r.kind.as_str())
        })
        .map(|(r, _)| format!("{} {}", r.api_version, r.kind))
        .collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
    let cases = AT_ONCE.iter().filter_map(|(api, kind, body)| {
        let found = served.iter().find(|(r, _)| r.api_version == *api && r.kind == *kind);
        // A kind may be disabled by a feature gate.
        found.map(|(resource, namespaced)| (*api, *kind, *body, resource.plural.as_str(), *namespaced))
    });
    let refused = futures::future::join_all(cases.map(async |(api, kind, body, plural, namespaced)| {
        let name = match kind {
            "IPAddress" => "10.250.0.9".to_owned(),
            "CSIDriver" => "any.example.org".to_owned(),
            // It is stored as the other kind of that name.
            "Event" if api == "v1" => "core".to_owned(),
            _ => "any".to_owned(),
        };
        let record = Record::of(&scene, (api, kind, plural), namespaced, &name, None);
        record.watching().await;
        let manifest = format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}}}\n{body}\n")
            .replace("NAMESPACE", scene.namespace());
        if let Err(error) = scene.kubectl_input(&["create", "-f", "-"], &manifest).await {
            return Some(format!("{kind}: {error}"));
        }
        record.comes_to("Ready", &["Ready", "LatestGenerationNotObserved"]).await;
        // The object is also ready at once after a change.
        record.again();
        let change = match kind {
            // Its controller observes each generation.
            "ValidatingAdmissionPolicy" => json!({"spec": {"failurePolicy": "Ignore"}}),
            _ => json!({"metadata": {"labels": {"a": "b"}}}),
        };
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let resource = format!("{plural}.{version}.{group}");
        scene.kubectl(&["patch", &resource, &name, "--type=merge", "-p", &change.to_string()]).await;
        record.comes_to("Ready", &["Ready", "LatestGenerationNotObserved"]).await;
        None
    }))
    .await;
    let refused: Vec<String> = refused.into_iter().flatten().collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
